//! Memory handed over by name: `memlane_socket::Stream` in place, beside iceoryx2, UNIX domain sockets and a bare ring.
//!
//! | room | what |
//! |---|---|
//! | `hand`, `turns` | two processes; what they do with each size, which is what is measured |
//! | `lane`, `unix`, `ring` | by what |
//! | `other` | the program for iceoryx2, which does the same |

pub(crate) mod hand;
mod lane;
mod other;
mod ring;
mod turns;
mod unix;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::peer::figures::Sized;
use super::rows::{BARE, ICE, ICE_SLEEPS, Kind, LANE, LANE_SLEEPS, SEQPACKET, by_name_seconds};
use crate::catalogue::System;
use crate::runner::proc::{Job, Service};
use crate::runner::record::Figure;
use crate::runner::sys;
use crate::runner::turn::Bench;
pub(super) use other::find;

/// Rings that a message of 4 MiB fits into twice.
const RING: &str = "8388608";
/// The largest message of `SOCK_SEQPACKET`: the kernel wants one piece of memory for most of it.
const LARGEST_PACKET: u64 = 1 << 20;

/// Why a system cannot be measured here, if so.
pub(super) fn lacks(system: &System, other: Option<&Path>) -> Option<String> {
    let other_is = matches!(system.id, ICE | ICE_SLEEPS) && other.is_none();
    other_is.then(|| other::HOW.to_owned())
}

/// What was told of a size.
pub(super) fn figures(kind: Kind, told: &Sized) -> Vec<Figure> {
    let latency = [("p50", told.p50_ns), ("p99", told.p99_ns)];
    let latency = latency
        .into_iter()
        .filter_map(|(metric, ns)| Some((metric, "µs", ns? / 1e3)));
    match kind {
        Kind::Handover => latency.collect(),
        Kind::Carried => vec![("throughput", "MB/s", told.bytes_per_second / 1e6)],
    }
}

/// Two processes go through all sizes that the system takes.
pub(super) fn measure(
    bench: &Bench,
    other: Option<&Path>,
    kind: Kind,
    system: &'static str,
    sizes: &[u64],
) -> anyhow::Result<Vec<Sized>> {
    let most = if system == SEQPACKET {
        LARGEST_PACKET
    } else {
        u64::MAX
    };
    let sizes: Vec<u64> = sizes.iter().copied().filter(|size| *size <= most).collect();
    if sizes.is_empty() {
        return Ok(Vec::new());
    }
    let seconds = by_name_seconds(bench.seconds);
    let folder = bench.scratch.name("hand");
    std::fs::create_dir(&folder)?;
    let bytes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let command = |role: &str, cpu: usize| -> anyhow::Result<Command> {
        let (program, by) = program(bench, other, system)?;
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]);
        command.args([role, "--by", by, "--kind", kind.word(), "--at"]);
        command.arg(&folder);
        command.args(["--bytes", &bytes.join(",")]);
        command.args(["--seconds", &seconds.to_string()]);
        command
            .env_remove("LD_PRELOAD")
            .env_remove("RUST_BACKTRACE")
            .env("MEMLANE_UPGRADE", "eager");
        if kind == Kind::Handover {
            command.env("MEMLANE_RING", RING);
        }
        if system == LANE_SLEEPS {
            command.env("MEMLANE_SPIN", "off");
        }
        sys::confine(&mut command, &[cpu]);
        Ok(command)
    };
    let [first, second] = bench.cpus;
    // Whoever comes first waits for the other.
    let server = Service::start_until(command("server", first)?, &bench.scratch, |_| true)?;
    let limit = Duration::from_secs_f64(20.0 + sizes.len() as f64 * (seconds + 0.05) * 4.0);
    let client = Job::start(command("client", second)?, limit, &bench.scratch)?;
    let told: anyhow::Result<Vec<Sized>> = client.told();
    let told = told.map_err(|error| match server.said() {
        said if said.is_empty() => error,
        said => error.context(format!("the server said: {said}")),
    })?;
    anyhow::ensure!(
        told.len() == sizes.len(),
        "{system} told {} sizes",
        told.len()
    );
    Ok(told)
}

/// The program with its first arguments, and what it calls the system.
fn program(
    bench: &Bench,
    other: Option<&Path>,
    system: &'static str,
) -> anyhow::Result<(Vec<OsString>, &'static str)> {
    let ours = |by| {
        let exe = bench.programs.lanes.clone().into();
        (vec![exe, "peer".into(), "hand".into()], by)
    };
    Ok(match system {
        LANE | LANE_SLEEPS => ours("lane"),
        SEQPACKET => ours("seqpacket"),
        BARE => ours("ring"),
        ICE | ICE_SLEEPS => {
            let other = other.context(other::HOW)?;
            (vec![other.into()], system)
        }
        _ => ours("stream"),
    })
}
