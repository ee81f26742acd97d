//! One stream between two processes, which are hoses.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::hose::Seen;
use super::rows::{LANE, REGION, Row};
use super::{Bench, Outcome};
use crate::runner::proc::{Job, free_port};
use crate::runner::sys;

/// Beyond the measurement: to start, to meet, to end.
const LIMIT: Duration = Duration::from_secs(40);

pub(super) fn measure(bench: &Bench, row: &Row, system: &str) -> anyhow::Result<Outcome> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let limit = LIMIT + Duration::from_secs_f64(bench.seconds);
    // Whoever connects tries until the other end listens.
    let mut receive = hose(bench, 1);
    receive.args(["receive", &address, system]);
    for (flag, bytes) in [
        ("--region", REGION),
        ("--chunk", row.chunk),
        ("--hold", row.hold),
    ] {
        receive.args([flag, &bytes.to_string()]);
    }
    let mut send = hose(bench, 0);
    send.args(["send", &address, "--write", &row.write.to_string()]);
    send.args(["--seconds", &bench.seconds.to_string()]);
    send.args(["--congestion", &bench.congestion_control]);
    if system == LANE {
        send.arg("--lane");
    }
    let receive = Job::start(receive, limit, &bench.scratch)?;
    let send = Job::start(send, limit, &bench.scratch)?;
    let sent = seen(&send.finish()?)?;
    let received = seen(&receive.finish()?)?;
    Ok(Outcome {
        value: received.per_second,
        cpu: Some(sent.cpu_s_per_gb + received.cpu_s_per_gb),
        receiver_cpu: Some(received.cpu_s_per_gb),
        copied_by_kernel: Some(sent.copied_by_kernel + received.copied_by_kernel),
        copied_by_program: Some(sent.copied_by_program + received.copied_by_program),
        fragments: received.fragments,
    })
}

pub(super) fn hose(bench: &Bench, cpu: usize) -> Command {
    let mut command = Command::new(&bench.programs.bench);
    command.args(["peer", "hose"]);
    sys::confine(&mut command, &[bench.cpus[cpu]]);
    command
}

pub(super) fn seen(text: &str) -> anyhow::Result<Seen> {
    serde_json::from_str(text).context("what a hose says")
}

/// What it costs to hand tokens back.
pub(super) fn tokens(bench: &Bench) -> anyhow::Result<Vec<super::tokens::Cost>> {
    let mut command = hose(bench, 1);
    command.arg("tokens");
    let said = Job::start(command, LIMIT, &bench.scratch)?.finish()?;
    serde_json::from_str(&said).context("what tokens cost")
}
