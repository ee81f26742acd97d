//! `memlane nc` as a black box: waiting receivers, their counts, and who holds which memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::blocks::machines::{Machines, Side};
use crate::blocks::memlane;
use crate::harness::{self, Outcome, Running};
use crate::real::sha256_of_file;

/// Time limit for anything that should take seconds.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Paths that every machine has, for any sender.
pub const PATHS: [&str; 2] = ["mapped", "staged"];
/// The same, and the path for a memlane sender on the same machine.
pub const PATHS_HERE: [&str; 3] = ["lane", "mapped", "staged"];

/// Arguments that a sender also needs if the receiver requires that path.
pub fn both(path: &str) -> &'static [&'static str] {
    match path {
        "lane" => &["--require", "lane"],
        _ => &[],
    }
}

/// `memlane` with these arguments.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(memlane());
    command.args(args);
    command
}

/// `memlane` with these arguments, on one of two machines.
pub fn command_on(machines: &Machines, side: Side, args: &[&str]) -> Command {
    let mut command = machines.command(side, memlane());
    command.args(args);
    command
}

/// A listening `memlane nc`, and its address.
#[derive(Debug)]
pub struct Listening {
    /// The process.
    pub running: Running,
    /// `HOST:PORT`, to connect to.
    pub at: String,
}

impl Listening {
    /// On a free port of 127.0.0.1.
    pub fn start(args: &[&str]) -> Listening {
        Listening::of(command(&[&["nc", "-l", "127.0.0.1:0"], args].concat()))
    }

    /// Starts this command and reads the address that it prints.
    ///
    /// # Panics
    /// If it does not.
    pub fn of(command: Command) -> Listening {
        let mut running = Running::start(command);
        let begin = Instant::now();
        let at = loop {
            let said = running.stderr();
            let line = said.lines().find(|line| line.contains("listening on "));
            if let Some((_, at)) = line.and_then(|line| line.rsplit_once(' ')) {
                break at.to_owned();
            }
            let alive = running.is_running() && begin.elapsed() < LIMIT;
            assert!(alive, "nobody listens: {said}");
            std::thread::sleep(Duration::from_millis(5));
        };
        Listening { running, at }
    }

    /// Waits for its end.
    pub fn finish(self) -> Outcome {
        self.running.finish(LIMIT)
    }

    /// Waits for its end and returns its counts.
    ///
    /// # Panics
    /// If it failed.
    pub fn counted(self) -> Value {
        counted(&self.finish())
    }
}

/// The counts that a successful command printed.
///
/// # Panics
/// If it failed, or printed none.
pub fn counted(outcome: &Outcome) -> Value {
    assert!(outcome.is_ok(), "{}", outcome.report());
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

/// Checks what holds for every receiver that ended well.
///
/// # Panics
/// If it does not hold.
pub fn nothing_is_lost(counted: &Value, bytes: u64) {
    assert_eq!(counted["schema"], "memlane.nc/1");
    assert_eq!(counted["bytes"], bytes);
    assert_eq!(counted["tokens_out"], 0);
    assert_eq!(counted["tokens_released"], counted["fragments"]);
    assert_eq!(counted["chunks_free"], counted["chunks"]);
}

/// Checks an error: this code, one sentence, and nothing on standard output.
///
/// # Panics
/// If it differs.
pub fn refused(outcome: &Outcome, code: i32, says: &str) {
    let report = outcome.report();
    assert!(!outcome.hung, "{report}");
    assert_eq!(outcome.status.code(), Some(code), "{report}");
    assert!(outcome.stderr.contains(says), "{says}: {report}");
    assert_eq!(outcome.stdout, "", "{report}");
    assert!(!outcome.stderr.contains("panicked"), "{report}");
}

/// Memory of a process in KiB: all of it, and the anonymous part that belongs to no file or region.
pub fn resident(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.unwrap_or(0)
    };
    (field("VmRSS:"), field("RssAnon:"))
}

/// CPU time of a process, in ticks (hundredths of a second).
pub fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after.split_whitespace().skip(11).take(2);
    ticks.filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Processes that have a region's memfd open, among those that we may examine.
pub fn holders_of_regions() -> Vec<(u32, PathBuf)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut holders = Vec::new();
    for pid in pids {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd"));
        for fd in fds.into_iter().flatten().flatten() {
            let target = std::fs::read_link(fd.path()).unwrap_or_default();
            if target
                .to_string_lossy()
                .starts_with("/memfd:memlane-device")
            {
                holders.push((pid, target));
            }
        }
    }
    holders
}

/// A file that went through device memory.
#[derive(Debug)]
pub struct Carried {
    /// What the receiver counted.
    pub counted: Value,
    /// SHA-256 of what came out.
    pub hash: String,
}

/// Sends `file` from one `memlane nc` to another over a path, through a region, into `copy`.
///
/// # Panics
/// If either end fails.
pub fn carry(file: &Path, copy: &Path, region: &str, path: &str) -> Carried {
    let text = |path: &Path| path.to_str().expect("a path").to_owned();
    let (file, copy_name) = (text(file), text(copy));
    let into = ["--into", region, "--require", path, "--json"];
    let receiver = Listening::start(&[&into[..], &["--output", &copy_name]].concat());
    let from = ["nc", &receiver.at, "--from", &file];
    let sent = harness::run(command(&[&from[..], both(path)].concat()), LIMIT);
    assert!(sent.is_ok(), "{}", sent.report());
    Carried {
        counted: receiver.counted(),
        hash: sha256_of_file(copy),
    }
}
