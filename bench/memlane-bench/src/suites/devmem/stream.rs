//! One stream between two processes, which are hoses.

use std::process::Command;
use std::time::Duration;

use super::outcome::{Seen, figures};
use super::rows::{LANE, REGION, Row};
use crate::runner::proc::{Job, free_port};
use crate::runner::record::Figure;
use crate::runner::sys;
use crate::runner::turn::Bench;

/// Beyond the measurement: to start, to meet, to end.
const LIMIT: Duration = Duration::from_secs(40);

pub(super) fn measure(
    bench: &Bench,
    congestion: &str,
    row: &Row,
    system: &str,
) -> anyhow::Result<Vec<Figure>> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let limit = LIMIT + Duration::from_secs_f64(bench.seconds);
    // Whoever connects tries until the other end listens.
    let receive = receiver(bench, row, &address, system);
    let mut send = sender(bench, congestion, row, &address);
    if system == LANE {
        send.arg("--lane");
    }
    let receive = Job::start(receive, limit, &bench.scratch)?;
    let send = Job::start(send, limit, &bench.scratch)?;
    let (sent, received): (Seen, Seen) = (send.told()?, receive.told()?);
    Ok(figures(received.per_second, &sent, &received))
}

/// Who receives on the second CPU.
pub(super) fn receiver(bench: &Bench, row: &Row, address: &str, system: &str) -> Command {
    let mut command = hose(bench, 1);
    command.args(["receive", address, system]);
    for (flag, bytes) in [
        ("--region", REGION),
        ("--chunk", row.chunk),
        ("--hold", row.hold),
    ] {
        command.args([flag, &bytes.to_string()]);
    }
    command
}

/// Who sends on the first one.
pub(super) fn sender(bench: &Bench, congestion: &str, row: &Row, address: &str) -> Command {
    let mut command = hose(bench, 0);
    command.args(["send", address, "--write", &row.write.to_string()]);
    command.args(["--seconds", &bench.seconds.to_string()]);
    command.args(["--congestion", congestion]);
    command
}

fn hose(bench: &Bench, cpu: usize) -> Command {
    let mut command = Command::new(&bench.programs.lanes);
    command.args(["peer", "hose"]);
    sys::confine(&mut command, &[bench.cpus[cpu]]);
    command
}

/// What it costs to hand tokens back.
pub(super) fn tokens(bench: &Bench) -> anyhow::Result<Vec<super::tokens::Cost>> {
    let mut command = hose(bench, 1);
    command.arg("tokens");
    Job::start(command, LIMIT, &bench.scratch)?.told()
}
