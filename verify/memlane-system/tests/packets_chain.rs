//! A process in the middle, whose two ends are links to different neighbours. Either neighbour may go and come back.

use std::process::Command;
use std::time::Duration;

use memlane_system::blocks::memlane;
use memlane_system::harness::{Running, TempDir};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// A generator, a process in the middle, and a sink.
struct Chain {
    dir: TempDir,
    middle: Running,
}

fn start(args: &[&str]) -> Running {
    let mut command = Command::new(memlane());
    command.arg("net").args(args);
    Running::start(command)
}

impl Chain {
    /// `left` and `right` are the ends in the middle, without their sockets.
    fn new(test: &str, left: &str, right: &str) -> Chain {
        let dir = TempDir::new(test);
        let middle = start(&["link", &at(&dir, left, "left"), &at(&dir, right, "right")]);
        Chain { dir, middle }
    }

    fn generator(&self, end: &str, count: u64) -> Running {
        let count = format!("gen:count={count}&rate=20000&size=64-9000");
        start(&["link", &count, &at(&self.dir, end, "left"), "--json"])
    }

    fn sink(&self, end: &str, count: u64) -> Running {
        let count = format!("sink:count={count}");
        start(&["link", &at(&self.dir, end, "right"), &count, "--json"])
    }
}

/// `memif:?role=server` is `memif:/…/left?role=server`.
fn at(dir: &TempDir, end: &str, name: &str) -> String {
    let (kind, options) = end.split_once(':').expect("an end");
    format!("{kind}:{}{options}", dir.path().join(name).display())
}

fn verdict(sink: Running) -> Value {
    let said = sink.finish(LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    let document: Value = serde_json::from_str(&said.stdout).expect("JSON");
    document["ends"][1]["verdict"].clone()
}

/// Every pair of protocols, without a frame lost or changed.
#[test]
fn frames_cross_from_one_link_to_another() {
    let pairs = [
        ("back:", "back:", "front:", "front:"),
        ("front:", "front:", "back:", "back:"),
        ("back:", "memif:?role=server", "front:", "memif:"),
        ("memif:?role=server", "front:", "memif:", "back:"),
        (
            "memif:",
            "memif:?role=server",
            "memif:?role=server",
            "memif:",
        ),
    ];
    for (left, right, generator, sink) in pairs {
        let chain = Chain::new("chain", left, right);
        let sink = chain.sink(sink, 5000);
        let generator = chain.generator(generator, 5000);
        let seen = verdict(sink);
        assert_eq!(seen["good"], 5000, "{left} {right}: {seen}");
        for wrong in ["missing", "late", "twice", "changed", "strange"] {
            assert_eq!(seen[wrong], 0, "{left} {right}: {seen}");
        }
        drop(generator);
    }
}

/// Each neighbour is killed in its turn; the other's link stays as it was.
#[test]
fn a_neighbour_that_is_killed_comes_back_and_the_other_does_not_notice() {
    let mut chain = Chain::new("chain-kill", "back:", "back:");
    let generator = chain.generator("front:", 1_000_000);
    let first = chain.sink("front:", 0);
    chain.middle.wait_until_said("linked: ", 1);
    first.signal("KILL");
    chain.middle.wait_until_said("waiting for another", 1);
    // Frames that were on their way are lost, as on any wire; what comes is whole.
    let seen = verdict(chain.sink("front:", 3000));
    assert_eq!(seen["changed"], 0, "{seen}");
    assert!(seen["good"].as_u64() >= Some(3000), "{seen}");
    chain.middle.wait_until_said("linked: ", 2);
    let said = generator.stderr();
    assert_eq!(said.matches("linked: ").count(), 1, "it noticed: {said}");

    generator.signal("KILL");
    let sink = chain.sink("front:", 2000);
    let again = chain.generator("front:", 1_000_000);
    let seen = verdict(sink);
    assert_eq!(seen["changed"], 0, "{seen}");
    assert!(chain.middle.is_running());
    drop(again);
    let said = chain.middle.stderr();
    assert!(!said.contains("panicked"), "{said}");
}
