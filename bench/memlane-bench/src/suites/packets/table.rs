//! Frames between two processes: one sends as many as go, the other counts and checks them.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::pump::{Does, End, Seen};
use super::rows::{Outcome, Row, Way};
use crate::runner::proc::Job;
use crate::runner::sys;
use crate::runner::turn::Bench;

/// Beyond the measurement: to start, to attach, to end.
const LIMIT: Duration = Duration::from_secs(40);

/// Where the sender runs, or the receiver.
pub(super) fn cpu(bench: &Bench, does: Does) -> usize {
    bench.cpus[usize::from(does == Does::Receive)]
}

/// A pump's command, on the first or the second of our CPUs.
pub(super) fn command(bench: &Bench, end: End, does: Does, row: &Row, socket: &str) -> Command {
    let mut command = Command::new(&bench.programs.lanes);
    command.args(["peer", "pump", end.word()]);
    command.arg(match does {
        Does::Send => "send",
        Does::Receive => "receive",
    });
    command.arg(socket);
    command.args(["--queues", &row.queues.to_string()]);
    command.args(["--bytes", &row.bytes.to_string()]);
    command.args(["--burst", &row.burst.to_string()]);
    command.args(["--seconds", &bench.seconds.to_string()]);
    sys::confine(&mut command, &[cpu(bench, does)]);
    command
}

/// Both ends are ours: who sends, who receives.
pub(super) fn between(
    bench: &Bench,
    row: &Row,
    [sender, receiver]: [End; 2],
    args: &[&str],
) -> anyhow::Result<Outcome> {
    let socket = bench.scratch.name("queue");
    let text = socket.to_str().context("the name of a temporary folder")?;
    let limit = LIMIT + Duration::from_secs_f64(bench.seconds);
    let start = |end, does| {
        let mut command = command(bench, end, does, row, text);
        command.args(args);
        Job::start(command, limit, &bench.scratch)
    };
    // Whoever connects tries until the other end listens.
    let send = start(sender, Does::Send)?;
    let receive = start(receiver, Does::Receive)?;
    let (received, sent): (Seen, Seen) = (receive.told()?, send.told()?);
    Ok(Outcome {
        value: received.per_second,
        cpu: Some(received.cpu_ns_per_frame + sent.cpu_ns_per_frame),
    })
}

/// One mode.
pub(super) fn measure(bench: &Bench, row: &Row, mode: &str) -> anyhow::Result<Outcome> {
    let ends = match row.way {
        Way::Tx => [End::Front, End::Back],
        Way::Rx => [End::Back, End::Front],
    };
    between(bench, row, ends, &["--mode", mode])
}
