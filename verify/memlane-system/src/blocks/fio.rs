//! fio as the judge: it writes, reads back and verifies, whatever happens meanwhile.

use std::process::Command;
use std::time::Duration;

use crate::harness::{Outcome, Running};

/// A run of fio that verifies what it has written.
#[derive(Debug)]
pub struct Verifying {
    running: Running,
}

/// What it found.
#[derive(Debug)]
pub struct Verdict {
    /// Requests that were completed.
    pub requests: u64,
    /// The longest that one took: the time without I/O, if there was one.
    pub longest: Duration,
}

impl Verifying {
    /// Starts it on an NBD export, for this many seconds.
    pub fn start(uri: &str, seconds: u32, more: &[&str]) -> Verifying {
        let mut command = Command::new("fio");
        command.args([
            "--name=verify",
            "--ioengine=nbd",
            "--rw=randrw",
            "--bs=4k",
            "--size=32m",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_backlog=256",
            "--verify_state_save=0",
            "--time_based",
            "--output-format=json",
            "--group_reporting",
        ]);
        command
            .arg(format!("--uri={uri}"))
            .arg(format!("--runtime={seconds}"))
            .args(more);
        Verifying {
            running: Running::start(command),
        }
    }

    /// Is it still at it?
    pub fn is_running(&mut self) -> bool {
        self.running.is_running()
    }

    /// Waits for its end.
    pub fn end(self, limit: Duration) -> Outcome {
        self.running.finish(limit)
    }

    /// Waits for its end; it must have found nothing wrong.
    ///
    /// # Panics
    /// If it has.
    pub fn must_find_nothing(self, limit: Duration) -> Verdict {
        let outcome = self.running.finish(limit);
        assert!(outcome.is_ok(), "{}", outcome.report());
        verdict(&outcome.stdout)
    }
}

fn verdict(text: &str) -> Verdict {
    // fio may say something before its document.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let document: serde_json::Value = serde_json::from_str(json).expect("fio's document");
    let job = &document["jobs"][0];
    assert_eq!(job["error"], 0, "{text}");
    let sides = ["read", "write"];
    let number = |side: &str, path: &[&str]| {
        let value = path.iter().fold(&job[side], |value, name| &value[name]);
        value.as_u64().unwrap_or(0)
    };
    Verdict {
        requests: sides.iter().map(|side| number(side, &["total_ios"])).sum(),
        longest: Duration::from_nanos(
            sides
                .iter()
                .map(|side| number(side, &["clat_ns", "max"]))
                .max()
                .unwrap_or(0),
        ),
    }
}
