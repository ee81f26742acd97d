//! The command that is attacked, what it must do all the same, and another link beside it, which must not notice.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::blocks::memlane;
use crate::harness::{Outcome, Running, TempDir, run};
use crate::real::held::Held;
use serde_json::Value;

use super::LIMIT;

/// What the command says when a link has ended and it waits for the next peer.
pub const LINK_OVER: &str = "waiting for another";

/// A `memlane net link` that is attacked.
#[derive(Debug)]
pub struct Victim {
    /// The command.
    pub running: Running,
    /// The socket of its link.
    pub socket: PathBuf,
    _dir: Option<TempDir>,
}

fn link(a: &str, b: &str, more: &[&str]) -> Command {
    let mut command = Command::new(memlane());
    command.args(["net", "link", a, b, "--json"]).args(more);
    command
}

impl Victim {
    /// Joins `end` with what `other` makes of a socket's path: `back:PATH`.
    pub fn new(test: &str, end: &str, other: &str, more: &[&str]) -> Victim {
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
    pub fn of(running: Running, socket: PathBuf) -> Victim {
        Victim {
            running,
            socket,
            _dir: None,
        }
    }

    /// Runs an honest peer to its end.
    pub fn honest(&self, end: &str, other: &str, more: &[&str]) -> Outcome {
        run(link(end, &at(other, &self.socket), more), LIMIT)
    }

    /// Starts an honest peer, which runs until it is stopped.
    pub fn honest_running(&self, end: &str, other: &str, more: &[&str]) -> Running {
        Running::start(link(end, &at(other, &self.socket), more))
    }

    /// Has an honest peer send frames (`gen:count=1000`), and waits until the link is over: then all have been taken.
    ///
    /// # Panics
    /// If the peer fails.
    pub fn takes_from(&mut self, generator: &str, other: &str, more: &[&str]) {
        let before = self.running.said(LINK_OVER);
        let said = self.honest(generator, other, more);
        assert!(said.is_ok(), "{}", said.report());
        self.running.wait_until_said(LINK_OVER, before + 1);
    }

    /// Has an honest peer take a hundred frames.
    ///
    /// # Panics
    /// If the peer fails, or finds a frame changed.
    pub fn gives_to(&self, other: &str) {
        let said = self.honest("sink:count=100", other, &[]);
        assert!(said.is_ok(), "{}", said.report());
        let said: Value = serde_json::from_str(&said.stdout).expect("JSON");
        let verdict = &said["ends"][0]["verdict"];
        assert_eq!(
            (&verdict["changed"], &verdict["twice"]),
            (&0.into(), &0.into())
        );
        assert!(verdict["good"].as_u64() >= Some(100), "{said:#}");
    }

    /// Waits until it has written `what` to standard error.
    pub fn says(&mut self, what: &str) {
        self.running.wait_until_said(what, 1);
    }

    /// What it holds while it waits for its first peer.
    pub fn idle(&mut self) -> Held {
        self.says("waiting for");
        self.held()
    }

    /// Waits until it holds what it held `before`.
    ///
    /// # Panics
    /// If it goes on holding more.
    pub fn holds_again(&self, before: &Held) {
        let counted = |held: &Held| (held.fds, held.memfds, held.shared_maps);
        let end = Instant::now() + LIMIT;
        while counted(&self.held()) != counted(before) {
            let now = self.held();
            assert!(Instant::now() < end, "before: {before:?}, now: {now:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it holds now.
    ///
    /// # Panics
    /// If it has ended.
    pub fn held(&self) -> Held {
        Held::by(self.running.pid()).expect("it lives")
    }

    /// Memory of its own that it uses, in bytes.
    pub fn memory(&self) -> u64 {
        own_memory(self.running.pid())
    }

    /// Processor time that it has used, in ticks of 10 ms.
    ///
    /// # Panics
    /// If it has ended.
    pub fn ticks(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.running.pid());
        let text = std::fs::read_to_string(path).expect("it lives");
        let (_, fields) = text.rsplit_once(')').expect("a name");
        let fields = fields.split_whitespace().skip(11).take(2);
        fields.filter_map(|n| n.parse::<u64>().ok()).sum()
    }

    /// Ends it by SIGTERM and returns the document that it prints.
    ///
    /// # Panics
    /// If it does not end well within 20 seconds.
    pub fn end(self) -> Value {
        self.running.signal("TERM");
        let said = self.running.finish(Duration::from_secs(20));
        assert!(said.is_ok(), "{}", said.report());
        serde_json::from_str(&said.stdout).expect("JSON")
    }
}

/// Memory of its own that process `pid` uses, in bytes: what is resident and not shared.
///
/// # Panics
/// If the process has gone.
pub fn own_memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("it lives");
    let pages: Vec<u64> = text
        .split(' ')
        .filter_map(|n| n.trim().parse().ok())
        .collect();
    (pages[1] - pages[2]) * 4096
}

/// The other end of a link as the command's user writes it: `memif?role=server` is `memif:SOCKET?role=server`.
fn at(other: &str, socket: &std::path::Path) -> String {
    let (kind, options) = other.split_once('?').unwrap_or((other, ""));
    let mark = if options.is_empty() { "" } else { "?" };
    format!("{kind}:{}{mark}{options}", socket.display())
}

/// How long a bystander's link lives at least: 2,000 frames a second, of which more than 100 must have come.
const BYSTANDER_LIVES: Duration = Duration::from_millis(500);

/// A link that nobody lies to: frames with numbers go over it as long as it lives.
#[derive(Debug)]
pub struct Bystander {
    from: Running,
    to: Victim,
    since: Instant,
}

impl Default for Bystander {
    fn default() -> Bystander {
        Bystander::new()
    }
}

impl Bystander {
    /// Starts both ends of it.
    pub fn new() -> Bystander {
        let to = Victim::new("bystander", "sink:", "back", &[]);
        let from = to.honest_running("gen:size=64-1500,rate=2000", "front", &[]);
        let since = Instant::now();
        Bystander { from, to, since }
    }

    /// Ends it: every frame must have come once, in order, unchanged.
    ///
    /// # Panics
    /// If not.
    pub fn saw_nothing(mut self) {
        // So that there are frames to judge by, however fast the lies were told.
        std::thread::sleep(BYSTANDER_LIVES.saturating_sub(self.since.elapsed()));
        self.from.signal("TERM");
        let said = self.from.finish(LIMIT);
        assert!(said.is_ok(), "{}", said.report());
        self.to.says(LINK_OVER);
        let said = self.to.end();
        let verdict = &said["ends"][0]["verdict"];
        assert!(verdict["good"].as_u64() > Some(100), "{said:#}");
        for wrong in ["missing", "late", "twice", "changed", "strange"] {
            assert_eq!(verdict[wrong], 0, "{said:#}");
        }
    }
}

/// What a sink printed must name `frames` good frames and no bad one.
///
/// # Panics
/// If it does not.
pub fn all_good(said: &Value, frames: u64) {
    let verdict = &said["ends"][0]["verdict"];
    assert_eq!(verdict["good"], frames, "{said:#}");
    for wrong in ["missing", "late", "twice", "changed"] {
        assert_eq!(verdict[wrong], 0, "{said:#}");
    }
}
