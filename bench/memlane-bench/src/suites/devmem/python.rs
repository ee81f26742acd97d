//! Tensors, received in Python: `bindings/python/bench/receive.py`, fed by a hose, and the same fed to a hose.
//!
//! All rates are the sender's: what is on its way when it ends is a few thousandths of what it has sent.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;

use super::outcome::{Seen, figures};
use super::rows::{REGION, Row};
use super::stream::{receiver, sender};
use crate::runner::proc::{Job, free_port};
use crate::runner::record::Figure;
use crate::runner::sys;
use crate::runner::turn::Bench;

/// In the source tree.
const SCRIPT: &str = "bindings/python/bench/receive.py";
/// Beyond the measurement: to start (torch takes its time), to meet, to end.
const LIMIT: Duration = Duration::from_secs(60);

/// What the script prints, as far as we look at it.
#[derive(Deserialize)]
struct Told {
    bytes: u64,
    cpu_seconds: f64,
    copied: u64,
}

/// Which way of the script's a system is; `None`: it is none.
fn way(system: &str) -> Option<&'static str> {
    match system {
        "wheel" => Some("tensor"),
        "recv-into" => Some("recv_into"),
        "recv-into-fresh" => Some("recv_into_fresh"),
        _ => None,
    }
}

pub(super) fn lacks(python: &str, system: &str) -> Option<String> {
    if !Path::new(SCRIPT).is_file() {
        return Some(format!(
            "there is no {SCRIPT} here: run it in the source tree"
        ));
    }
    // Rust alone is no comparison.
    let needs = match system {
        "wheel" | "rust" => "import memlane, numpy",
        _ => "import numpy",
    };
    let mut asked = Command::new(python);
    asked.args(["-c", needs]).stdin(Stdio::null());
    match asked.output() {
        Ok(said) if said.status.success() => None,
        Ok(said) => {
            let text = String::from_utf8_lossy(&said.stderr);
            let last = text.lines().last().unwrap_or("it fails").to_owned();
            Some(format!(
                "{python} -c \"{needs}\": {last} (--python names another one)"
            ))
        }
        Err(error) => Some(format!("{python}: {error}")),
    }
}

pub(super) fn measure(
    bench: &Bench,
    [python, congestion]: [&str; 2],
    row: &Row,
    system: &str,
) -> anyhow::Result<Vec<Figure>> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let limit = LIMIT + Duration::from_secs_f64(bench.seconds);
    let start = |command| Job::start(command, limit, &bench.scratch);
    let receive = start(match way(system) {
        Some(way) => script(bench, python, row, [way, &address]),
        None => receiver(bench, row, &address, "mapped"),
    })?;
    let send = sender(bench, congestion, row, &address);
    let sent: Seen = start(send)?.told()?;
    let received = match way(system) {
        Some(_) => of_script(&receive.finish()?, sent.bytes)?,
        None => receive.told()?,
    };
    Ok(figures(
        sent.per_second,
        &sent,
        &Seen {
            fragments: None,
            ..received
        },
    ))
}

fn script(bench: &Bench, python: &str, row: &Row, [way, address]: [&str; 2]) -> Command {
    let mut command = Command::new(python);
    command.args([SCRIPT, "--way", way, "--listen", address]);
    command.args(["--record", &row.hold.to_string()]);
    command.args(["--region", &format!("memfd:{REGION}")]);
    if way == "tensor" {
        command.args(["--chunk", &row.chunk.to_string(), "--path", "mapped"]);
    }
    sys::confine(&mut command, &[bench.cpus[1]]);
    command
}

fn of_script(text: &str, sent: u64) -> anyhow::Result<Seen> {
    let told: Told = serde_json::from_str(text).context("what the script says")?;
    anyhow::ensure!(told.bytes == sent, "{} bytes came of {sent}", told.bytes);
    let bytes = told.bytes as f64;
    Ok(Seen {
        bytes: told.bytes,
        cpu_s_per_gb: told.cpu_seconds / (bytes / 1e9),
        // Out of its buffers, once, in each way.
        copied_by_kernel: 1.0,
        copied_by_program: told.copied as f64 / bytes,
        ..Seen::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_script_tells_is_read_and_bytes_that_are_missing_are_noticed() {
        let text = r#"{"schema": "memlane.bench.python/1", "way": "tensor", "framework": "torch", "path": "mapped",
            "record": 1048576, "bytes": 2000000000, "seconds": 0.5, "cpu_seconds": 0.3, "copied": 0, "out": 0}"#;
        let seen = of_script(text, 2_000_000_000).expect("read");
        assert_eq!((seen.cpu_s_per_gb, seen.copied_by_program), (0.15, 0.0));
        assert!(of_script(text, 2_000_000_001).is_err());
        assert!(of_script("{}", 0).is_err());
    }

    #[test]
    fn a_python_that_is_not_there_is_said_not_to_be() {
        let why = lacks("no-such-python", "wheel").expect("a reason");
        assert!(
            why.contains("no-such-python") || why.contains(SCRIPT),
            "{why}"
        );
    }
}
