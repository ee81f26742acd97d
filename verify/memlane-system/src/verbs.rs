//! The verbs of `memlane net`, as black boxes.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::blocks::memlane;
use crate::harness::{self, Outcome, Running, TempDir};

/// The longest that anything may take.
pub const LIMIT: Duration = Duration::from_secs(60);
/// The modes in which a back reaches packets.
pub const MODES: [&str; 3] = ["persistent", "map", "copy"];

/// A verb of `memlane net`.
pub fn net(args: &[&str]) -> Command {
    let mut command = Command::new(memlane());
    command.arg("net").args(args);
    command
}

/// Runs a verb to its end.
pub fn run(args: &[&str]) -> Outcome {
    harness::run(net(args), LIMIT)
}

/// Starts a verb.
pub fn start(args: &[&str]) -> Running {
    Running::start(net(args))
}

/// Waits until it has printed this text.
///
/// # Panics
/// If it does not.
pub fn says(running: &mut Running, what: &str) {
    running.wait_until_said(what, 1);
}

/// Checks that it ended with this code and printed this text.
///
/// # Panics
/// If it did not.
pub fn ended(said: &Outcome, code: i32, what: &str) {
    assert_eq!(said.status.code(), Some(code), "{}", said.report());
    assert!(said.stderr.contains(what), "{}", said.report());
}

/// Parses a JSON document.
///
/// # Panics
/// If it is not one.
pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A folder for a socket, and a name that no other test uses.
#[derive(Debug)]
pub struct Place {
    dir: TempDir,
    name: String,
}

impl Place {
    /// Makes a new folder.
    pub fn new(test: &str) -> Place {
        Place {
            dir: TempDir::new(test),
            name: format!("test-{test}-{}", std::process::id()),
        }
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path of the socket.
    pub fn socket(&self) -> String {
        self.path("s").display().to_string()
    }

    /// `KIND:SOCKET`.
    pub fn at(&self, kind: &str) -> String {
        format!("{kind}:{}", self.socket())
    }

    /// The name of one side.
    pub fn named(&self, side: &str) -> String {
        format!("{}-{side}", self.name)
    }
}

/// What `net stats --json` shows of a process, or `None` if it does not show it.
///
/// # Panics
/// If the output is not such a document.
pub fn stats(name: &str) -> Option<Value> {
    let said = run(&["stats", name, "--json"]);
    if said.status.code() == Some(1) {
        return None;
    }
    assert!(said.is_ok(), "{}", said.report());
    let document = json(&said.stdout);
    let found = document["processes"].as_array().expect("a list");
    assert_eq!(found.len(), 1, "{document:#}");
    Some(found[0].clone())
}

/// Polls until the condition holds.
///
/// # Panics
/// If it never does.
pub fn shows(name: &str, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + LIMIT;
    loop {
        let seen = stats(name);
        match seen {
            Some(seen) if so(&seen) => return seen,
            seen => assert!(Instant::now() < end, "{name}: not {what}: {seen:#?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A number in a document.
///
/// # Panics
/// If it is not a number.
pub fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}
