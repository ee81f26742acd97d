//! `./dev demo devmem`: sends a file from one process to another through a region of device memory, over each path
//! that needs no special hardware in turn. It prints what each path costs, and whether the file arrived unchanged.

use std::process::exit;
use std::time::Instant;

use memlane_system::devmem::{LIMIT, Listening, PATHS_HERE, both, carry, command};
use memlane_system::harness::{self, TempDir};
use memlane_system::real::{blob, sha256_of_file};
use serde_json::Value;

const FILE: usize = 64 << 20;
const REGION: &str = "memfd:64M";
/// Of the pattern.
const BYTES: &str = "1G";
const ROUNDS: usize = 3;

/// What one path did.
#[derive(Default)]
struct Seen {
    /// Gb/s, without a look at the bytes.
    rates: Vec<f64>,
    last: Value,
    same: bool,
}

fn main() {
    let begin = Instant::now();
    let dir = TempDir::new("demo-devmem");
    let [file, copy] = ["FILE", "COPY"].map(|name| dir.path().join(name));
    std::fs::write(&file, blob(5, FILE)).expect("a file in the temporary folder");
    let hash = sha256_of_file(&file);

    println!("one$ memlane nc -l 127.0.0.1:… --into {REGION} --require PATH --output COPY");
    println!(
        "two$ memlane nc 127.0.0.1:… --from FILE   # {} MiB",
        FILE >> 20
    );
    let mut all: [Seen; PATHS_HERE.len()] = Default::default();
    for (path, seen) in PATHS_HERE.iter().zip(&mut all) {
        let carried = carry(&file, &copy, REGION, path);
        seen.same = carried.hash == hash;
        let at = begin.elapsed().as_secs_f64();
        let told = if seen.same { "the same" } else { "ANOTHER" };
        println!(
            "{at:5.1} s  {path}: SHA-256 of COPY is {told} as of FILE: {:.16}…",
            carried.hash
        );
    }
    println!("one$ memlane nc -l 127.0.0.1:… --into {REGION} --require PATH [--validate 7]");
    println!("two$ memlane nc 127.0.0.1:… --from memfd:4M --bytes {BYTES} [--validate 7]");
    for round in 0..=ROUNDS {
        for (path, seen) in PATHS_HERE.iter().zip(&mut all) {
            // The first round looks at each byte; the others say how fast it is.
            let look = if round == 0 {
                &["--validate", "7"][..]
            } else {
                &[]
            };
            let counted = stream(path, look);
            let at = begin.elapsed().as_secs_f64();
            let rate = rate(&counted);
            let what = if round == 0 {
                ", every byte looked at"
            } else {
                ""
            };
            println!("{at:5.1} s  {path}: {rate:.1} Gb/s{what}");
            if round > 0 {
                seen.rates.push(rate);
            }
            seen.last = counted;
        }
    }
    println!();
    println!(
        "path     Gb/s                 copies: into the region + bounced   fragments (KiB)   tokens out   file"
    );
    for (path, seen) in PATHS_HERE.iter().zip(&mut all) {
        line(path, seen);
    }
    println!(
        "(TCP's sender makes one copy more, lane's does not; medians, lowest–highest; `./dev bench devmem` measures more, and more exactly)"
    );
    if all.iter().any(|seen| !seen.same) {
        exit(1);
    }
}

fn stream(path: &str, look: &[&str]) -> Value {
    let into = ["--into", REGION, "--require", path, "--json"];
    let receiver = Listening::start(&[&into[..], look].concat());
    let from = ["nc", &receiver.at, "--from", "memfd:4M", "--bytes", BYTES];
    let sent = harness::run(command(&[&from[..], look, both(path)].concat()), LIMIT);
    assert!(sent.is_ok(), "{}", sent.report());
    receiver.counted()
}

/// Gb/s.
fn rate(counted: &Value) -> f64 {
    let number = |name: &str| counted[name].as_f64().unwrap_or(f64::NAN);
    number("bytes") * 8e-9 / number("seconds")
}

fn line(path: &str, seen: &mut Seen) {
    seen.rates.sort_by(f64::total_cmp);
    let [low, middle, high] = [0, ROUNDS / 2, ROUNDS - 1].map(|n| seen.rates[n]);
    let rates = format!("{middle:.1} ({low:.1}–{high:.1})");
    let told = &seen.last;
    let number = |name: &str| told[name].as_f64().unwrap_or(f64::NAN);
    let mean = number("bytes") / number("fragments") / 1024.0;
    let file = if seen.same { "the same" } else { "ANOTHER" };
    println!(
        "{path:<8} {rates:<20} 1 + {:<29} {:<17.1} {:<12} {file}",
        number("bounced_per_byte"),
        mean,
        number("tokens_out")
    );
}
