//! Every target without libFuzzer: over its seeds, and over mutants of them
//! that are the same in every run. Short enough for every test run.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use memlane_fuzz::{TARGETS, Target, canary, seeds};

/// Mutants of each target.
const MUTANTS: u32 = 5_000;

/// Set to 1, the files of `seeds/` are written instead of compared.
const WRITE: &str = "MEMLANE_FUZZ_WRITE_SEEDS";

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("below a usize")
    }

    /// A place in `bytes` (0 of none).
    fn place(&mut self, bytes: &[u8]) -> usize {
        self.below(bytes.len().max(1))
    }
}

/// Numbers at which lengths and counts go wrong.
const EDGES: [u64; 10] = [
    0,
    1,
    2,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    u64::MAX,
];

/// Changes `bytes` in one place, as libFuzzer would.
fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let at = random.place(bytes);
    let len = 1 + random.below(16);
    match random.below(8) {
        0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        2 if !bytes.is_empty() => bytes[at] = random.next().to_le_bytes()[0],
        3 => {
            let (edge, width) = (EDGES[random.below(EDGES.len())], 1 << random.below(4));
            let number = match random.below(2) {
                0 => edge.to_le_bytes()[..width].to_vec(),
                _ => edge.to_be_bytes()[8 - width..].to_vec(),
            };
            for (byte, new) in bytes.iter_mut().skip(at).zip(number) {
                *byte = new;
            }
        }
        4 => bytes.truncate(at),
        5 => {
            let end = bytes.len().min(at + len);
            bytes.drain(at.min(end)..end);
        }
        6 => {
            let more: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[0]).collect();
            let at = at.min(bytes.len());
            bytes.splice(at..at, more);
        }
        7 => {
            let other = &others[random.below(others.len())];
            let from = random.place(other);
            bytes.truncate(at);
            bytes.extend(other.iter().skip(from));
        }
        _ => bytes.push(0),
    }
}

/// An input at which a target panicked.
#[derive(Debug)]
struct Found {
    input: Vec<u8>,
    mutant: bool,
}

/// How many inputs were believed, and how many not.
#[derive(Debug, Default)]
struct Taken {
    seeds: u32,
    mutants: u32,
    refused: u32,
}

/// Runs `target` over its committed seeds and `MUTANTS` mutants of them.
fn hunt(name: &str, target: Target) -> Result<Taken, Found> {
    let seeds = committed(name);
    assert!(!seeds.is_empty(), "no seeds for {name}");
    let mut taken = Taken::default();
    let run = |input: &[u8], mutant| {
        let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
        outcome.map_err(|_| Found {
            input: input.to_vec(),
            mutant,
        })
    };
    for seed in &seeds {
        taken.seeds += u32::from(run(seed, false)?);
    }
    let mut random = Random(1);
    for _ in 0..MUTANTS {
        let mut input = seeds[random.below(seeds.len())].clone();
        for _ in 0..1 + random.below(5) {
            mutate(&mut input, &seeds, &mut random);
        }
        match run(&input, true)? {
            true => taken.mutants += 1,
            false => taken.refused += 1,
        }
    }
    Ok(taken)
}

fn committed(target: &str) -> Vec<Vec<u8>> {
    let dir = here().join("seeds").join(target);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("seeds").path()).collect();
    files.sort();
    let read = |file| std::fs::read(file).expect("a seed");
    files.into_iter().map(read).collect()
}

#[test]
fn no_target_finds_anything_near_its_seeds() {
    for (name, target) in TARGETS {
        match hunt(name, target) {
            Ok(taken) => {
                println!("{name}: {taken:?}");
                // A target that believes nothing, or everything, tests nothing.
                assert!(
                    taken.seeds > 0 && taken.mutants > 0 && taken.refused > 0,
                    "{name}: {taken:?}"
                );
            }
            Err(found) => panic!("{name} fails with these bytes: {:02x?}", found.input),
        }
    }
}

#[test]
fn the_canary_is_found() {
    let found = hunt("canary", canary).expect_err("the planted bug was not found");
    assert!(found.mutant, "its seeds are right");
    assert!(catch_unwind(|| canary(&found.input)).is_err());
}

#[test]
fn the_committed_seeds_are_what_the_formats_are_now() {
    let mut names = BTreeSet::new();
    for (name, bytes) in seeds::all() {
        let file = here().join("seeds").join(&name);
        if std::env::var_os(WRITE).is_some_and(|value| value == "1") {
            std::fs::create_dir_all(file.parent().expect("seeds")).expect("directory");
            std::fs::write(&file, &bytes).expect("written");
        }
        let there = std::fs::read(&file).unwrap_or_default();
        assert!(there == bytes, "seeds/{name} is old: {WRITE}=1 writes it");
        names.insert(name);
    }
    let targets = TARGETS.iter().map(|(name, _)| *name).chain(["canary"]);
    for target in targets {
        assert!(
            names
                .iter()
                .any(|name| name.starts_with(&format!("{target}/")))
        );
    }
}

#[test]
fn every_target_has_a_program_for_libfuzzer() {
    let manifest = std::fs::read_to_string(here().join("Cargo.toml")).expect("Cargo.toml");
    let (_, bins) = manifest.split_once("[[bin]]").expect("programs");
    let names = bins.lines().filter_map(|line| line.strip_prefix("name = "));
    let names: BTreeSet<&str> = names.map(|name| name.trim_matches('"')).collect();
    let targets = TARGETS.iter().map(|(name, _)| *name).chain(["canary"]);
    assert_eq!(names, targets.collect());
}
