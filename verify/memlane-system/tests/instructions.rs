//! Instructions for each message of the hot paths, counted by valgrind: nothing is timed. A path that needs more or fewer
//! than `instructions/counts.json` says fails the test; `MEMLANE_WRITE_COUNTS=1` writes the new counts instead.
//!
//! Another compiler, or another CPU as valgrind shows it, has other counts: then the test is skipped.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use memlane_system::callgrind::{Counts, count};
use memlane_system::harness::{self, Built, Mode, plain_only};
use memlane_system::real::{self, Story};
use serde_json::{Value, json};

/// How far a count may be from what is written down: this share of it, in percent.
const TOLERANCE: f64 = 3.0;
/// What `memlane-bench` wants counted.
const COUNTED: &str = "*hot_paths::counted::counted*";
/// Whose instructions count on the paths of sockets.
const LIBRARY: &str = "libmemlane_preload.so";
const WRITE: &str = "MEMLANE_WRITE_COUNTS";

/// Paths of `memlane-bench peer path`, and how many messages each carries here.
const PATHS: [(&str, u64); 18] = [
    ("socket-message", 2000),
    ("socket-stream", 100),
    ("socket-epoll", 2000),
    ("socket-sleep", 500),
    ("socket-poll", 500),
    ("socket-left", 2000),
    ("socket-wait", 2000),
    ("socket-short", 500),
    ("name-message", 2000),
    ("packet-tx-64", 6400),
    ("packet-tx-1496", 6400),
    ("packet-rx-64", 6400),
    ("packet-rx-1496", 6400),
    ("block-read-1", 1000),
    ("block-read-32", 1600),
    ("block-write-1", 1000),
    ("block-write-32", 1600),
    ("device-fragment", 1000),
];

fn note(text: &str) {
    // Not eprintln!: the test runner hides what that prints.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// What a message takes, in instructions of memlane's own code: the C library's and the load's are not in it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Cost {
    /// Apart from copies.
    work: f64,
    /// In `memlane-core/src/copy.rs`. A string instruction counts as one for each byte.
    copies: f64,
}

impl Cost {
    fn of(counts: &Counts, object: &str, times: u64) -> Cost {
        let is_copy = |file: &str| file.ends_with("memlane-core/src/copy.rs");
        let is_ours = |from: &str, file: &str| {
            Path::new(from)
                .file_name()
                .is_some_and(|name| name == object)
                && !file.contains("memlane-bench/src/")
        };
        let each = |count: u64| (count as f64 * 10.0 / times as f64).round() / 10.0;
        Cost {
            work: each(counts.of(|from, file| is_ours(from, file) && !is_copy(file))),
            copies: each(counts.of(|from, file| is_ours(from, file) && is_copy(file))),
        }
    }

    fn read(value: &Value) -> Option<Cost> {
        let part = |name: &str| value.get(name)?.as_f64();
        Some(Cost {
            work: part("work")?,
            copies: part("copies")?,
        })
    }

    fn write(self) -> Value {
        json!({ "work": self.work, "copies": self.copies })
    }

    /// What has become more or less than it was, beyond the tolerance.
    fn changes(self, before: Cost) -> Vec<String> {
        let parts = [
            ("work", before.work, self.work),
            ("copies", before.copies, self.copies),
        ];
        let changed = parts
            .iter()
            .filter(|(_, before, now)| (now - before).abs() > before * TOLERANCE / 100.0);
        let told = changed.map(|(part, before, now)| {
            let percent = (now - before) / before.max(0.1) * 100.0;
            format!("{part}: {before} → {now} instructions ({percent:+.1} %)")
        });
        told.collect()
    }
}

/// A path's cost, what the CPU said of itself, and the functions that execute most.
struct Counted {
    cost: Cost,
    cpu: String,
    most: String,
}

fn count_path(bench: &Path, path: &str, times: u64) -> Counted {
    let (mode, object) = match path {
        // As a user has them: mode `eager` would ask for a lane in each `connect`.
        "socket-left" | "socket-wait" | "socket-short" => (Mode::Auto, LIBRARY),
        path if path.starts_with("socket-") => (Mode::Eager, LIBRARY),
        _ => (Mode::Plain, "memlane-bench"),
    };
    let mut command = harness::command(mode, real::program("valgrind"));
    command.env("MEMLANE_SPIN", "off");
    let times_word = times.to_string();
    let args = ["peer", "path", path, "--times", &times_word];
    let (counts, done) = count(command, COUNTED, bench, &args);
    let cpu = done
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("cpu: "));
    Counted {
        cost: Cost::of(&counts, object, times),
        cpu: cpu.expect("what the CPU says").into(),
        most: counts.most(times),
    }
}

/// All paths, two at a time.
fn count_all(bench: &Path) -> BTreeMap<&'static str, Counted> {
    let (next, all) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((path, times)) = PATHS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let counted = count_path(bench, path, *times);
                    all.lock().expect("no panic").insert(*path, counted);
                }
            });
        }
    });
    all.into_inner().expect("no panic")
}

/// The compiler that built this file, as it says itself in the file.
fn compiler_of(file: &Path) -> Option<String> {
    const MARK: &[u8] = b"rustc version ";
    let bytes = std::fs::read(file).ok()?;
    let at = bytes.windows(MARK.len()).position(|part| part == MARK)? + MARK.len();
    let end = at + bytes[at..].iter().position(|byte| *byte == 0)?;
    String::from_utf8(bytes[at..end].to_vec()).ok()
}

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions/counts.json")
}

/// The release build of `memlane-bench`, if there is one of the library as well. A debug build has other counts.
fn release_build() -> Option<PathBuf> {
    let is_release = |path: &Path| path.parent().is_some_and(|dir| dir.ends_with("release"));
    let bench = harness::find_bench().filter(|path| is_release(path))?;
    is_release(&Built::find().preload).then_some(bench)
}

#[test]
fn each_hot_path_takes_the_instructions_that_are_written_down() {
    if plain_only() || Story::new("instructions", &["valgrind"]).is_none() {
        return;
    }
    let Some(bench) = release_build() else {
        note("SKIPPED: instructions: no release build of memlane-bench: ./dev build");
        return;
    };
    let compiler = compiler_of(&bench).expect("the compiler's name is in the file");
    let text = std::fs::read_to_string(table()).unwrap_or_else(|_| "{}".into());
    let known: Value = serde_json::from_str(&text).expect("the table");
    let writes = std::env::var_os(WRITE).is_some();
    if known["compiler"] != json!(compiler) && !writes {
        let theirs = &known["compiler"];
        note(&format!(
            "SKIPPED: instructions: counted with rustc {theirs}, built with {compiler}"
        ));
        return;
    }
    let counted = count_all(&bench);
    let cpu = &counted[PATHS[0].0].cpu;
    if writes {
        let paths = counted
            .iter()
            .map(|(path, counted)| ((*path).to_owned(), counted.cost.write()));
        let paths: serde_json::Map<String, Value> = paths.collect();
        let new = json!({ "compiler": compiler, "cpu": cpu, "paths": paths });
        let new = serde_json::to_string_pretty(&new).expect("JSON") + "\n";
        std::fs::write(table(), new).expect("the table can be written");
        return;
    }
    if known["cpu"] != json!(cpu) {
        let theirs = &known["cpu"];
        note(&format!(
            "SKIPPED: instructions: counted with the CPU {theirs}, here is {cpu}"
        ));
        return;
    }
    let mut wrong = String::new();
    for (path, counted) in &counted {
        let before = Cost::read(&known["paths"][path]);
        let Some(before) = before else {
            wrong += &format!("{path}: nothing is written down\n");
            continue;
        };
        let changes = counted.cost.changes(before);
        if !changes.is_empty() {
            let most = &counted.most;
            wrong += &format!(
                "{path}: {}. By function, a message:\n{most}",
                changes.join(", ")
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "{wrong}If that is meant: {WRITE}=1 writes the new counts."
    );
}

/// The rows `| \`path\` | … | work | copies | …` of a page.
fn rows(page: &str) -> BTreeMap<String, Cost> {
    let cells = page
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let rows = cells.filter_map(|cells| {
        let path = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        let number = |at: usize| cells.get(at)?.replace(',', "").parse().ok();
        let cost = Cost {
            work: number(3)?,
            copies: number(4)?,
        };
        Some((path.to_owned(), cost))
    });
    rows.collect()
}

#[test]
fn the_page_shows_the_counts_that_are_written_down() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/inside/profiling.md");
    let shown = rows(&std::fs::read_to_string(page).expect("the page"));
    let text = std::fs::read_to_string(table()).expect("the table");
    let known: Value = serde_json::from_str(&text).expect("JSON");
    for (path, _) in PATHS {
        let cost = Cost::read(&known["paths"][path]).expect("a cost");
        let shown = shown
            .get(path)
            .unwrap_or_else(|| panic!("{path} is not on the page"));
        let wrong = shown.changes(cost);
        assert!(
            wrong.is_empty(),
            "docs/inside/profiling.md, {path}: {wrong:?}"
        );
    }
    assert_eq!(shown.len(), PATHS.len(), "the page has other paths");
}

#[test]
fn more_and_less_than_the_tolerance_is_told() {
    let cost = |work, copies| Cost { work, copies };
    assert!(cost(102.9, 50.0).changes(cost(100.0, 50.0)).is_empty());
    assert!(cost(97.1, 0.0).changes(cost(100.0, 0.0)).is_empty());
    let told = cost(104.0, 48.0).changes(cost(100.0, 50.0));
    assert_eq!(
        told,
        [
            "work: 100 → 104 instructions (+4.0 %)",
            "copies: 50 → 48 instructions (-4.0 %)",
        ]
    );
}
