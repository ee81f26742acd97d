//! The command that is lied to, what it must still do, and another command beside it that must not notice.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::blocks::memlane;
use memlane_system::harness::{Outcome, Running, TempDir, run};
use memlane_system::real::held::Held;
use serde_json::Value;

use super::LIMIT;

/// A `memlane net link` that is lied to.
#[derive(Debug)]
pub(crate) struct Victim {
    pub(crate) running: Running,
    pub(crate) socket: PathBuf,
    _dir: Option<TempDir>,
}

fn link(a: &str, b: &str, more: &[&str]) -> Command {
    let mut command = Command::new(memlane());
    command.args(["net", "link", a, b, "--json"]).args(more);
    command
}

impl Victim {
    /// Joins `end` with what `other` makes of a socket's path: `back:PATH`.
    pub(crate) fn new(test: &str, end: &str, other: &str, more: &[&str]) -> Victim {
        let dir = TempDir::new(test);
        let socket = dir.path().join("s");
        let running = Running::start(link(end, &at(other, &socket), more));
        Victim {
            running,
            socket,
            _dir: Some(dir),
        }
    }

    /// One that was started elsewhere, and has its link there.
    pub(crate) fn of(running: Running, socket: PathBuf) -> Victim {
        Victim {
            running,
            socket,
            _dir: None,
        }
    }

    /// Runs the next, honest peer to its end.
    pub(crate) fn honest(&self, end: &str, other: &str, more: &[&str]) -> Outcome {
        run(link(end, &at(other, &self.socket), more), LIMIT)
    }

    /// Starts the next, honest peer, which runs until it is stopped.
    pub(crate) fn honest_running(&self, end: &str, other: &str, more: &[&str]) -> Running {
        Running::start(link(end, &at(other, &self.socket), more))
    }

    /// Waits until it has said that.
    pub(crate) fn says(&mut self, what: &str) {
        self.says_again(what, 0);
    }

    /// Waits until it has printed that more than this many times.
    pub(crate) fn says_again(&mut self, what: &str, before: usize) {
        let end = Instant::now() + LIMIT;
        while self.running.stderr().matches(what).count() <= before {
            let said = self.running.stderr();
            assert!(self.running.is_running(), "it ended: {said}");
            assert!(Instant::now() < end, "no {what}: {said}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it holds.
    pub(crate) fn held(&self) -> Held {
        Held::by(self.running.pid()).expect("it lives")
    }

    /// Memory of its own that it uses, bytes.
    pub(crate) fn memory(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.running.pid());
        let text = std::fs::read_to_string(path).expect("it lives");
        let pages: Vec<u64> = text
            .split(' ')
            .filter_map(|n| n.trim().parse().ok())
            .collect();
        (pages[1] - pages[2]) * 4096
    }

    /// Processor time that it has used, in ticks of 10 ms.
    pub(crate) fn ticks(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.running.pid());
        let text = std::fs::read_to_string(path).expect("it lives");
        let (_, fields) = text.rsplit_once(')').expect("a name");
        let fields = fields.split_whitespace().skip(11).take(2);
        fields.filter_map(|n| n.parse::<u64>().ok()).sum()
    }

    /// Ends it by SIGTERM, which it must hear within some seconds; what it has counted.
    pub(crate) fn end(self) -> Value {
        self.running.signal("TERM");
        let said = self.running.finish(Duration::from_secs(20));
        assert!(said.is_ok(), "{}", said.report());
        serde_json::from_str(&said.stdout).expect("JSON")
    }
}

fn at(other: &str, socket: &std::path::Path) -> String {
    let (kind, options) = other.split_once('?').unwrap_or((other, ""));
    let mark = if options.is_empty() { "" } else { "?" };
    format!("{kind}:{}{mark}{options}", socket.display())
}

/// A link that nobody lies to: frames with numbers go over it as long as it lives.
#[derive(Debug)]
pub(crate) struct Bystander {
    from: Running,
    to: Victim,
}

impl Bystander {
    pub(crate) fn new() -> Bystander {
        let to = Victim::new("bystander", "sink:", "back", &[]);
        let from = to.honest_running("gen:size=64-1500,rate=2000", "front", &[]);
        Bystander { from, to }
    }

    /// Every frame has come, once, in order, unchanged.
    pub(crate) fn saw_nothing(mut self) {
        self.from.signal("TERM");
        let said = self.from.finish(LIMIT);
        assert!(said.is_ok(), "{}", said.report());
        self.to.says("waiting for another");
        let said = self.to.end();
        let verdict = &said["ends"][0]["verdict"];
        assert!(verdict["good"].as_u64() > Some(100), "{said:#}");
        for wrong in ["missing", "late", "twice", "changed", "strange"] {
            assert_eq!(verdict[wrong], 0, "{said:#}");
        }
    }
}

/// Frames of a generator that a sink found good, and a sink without complaints about those.
pub(crate) fn all_good(said: &Value, frames: u64) {
    let verdict = &said["ends"][0]["verdict"];
    assert_eq!(verdict["good"], frames, "{said:#}");
    for wrong in ["missing", "late", "twice", "changed"] {
        assert_eq!(verdict[wrong], 0, "{said:#}");
    }
}
