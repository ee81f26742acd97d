//! The drivers of the programs, one file each.

mod caddy;
mod connections;
mod crowd;
mod embedded;
mod go;
mod go_start;
mod grpc;
mod haproxy;
mod iperf3;
mod netcat;
mod netty;
mod nginx;
mod paced;
mod pgbench;
mod redis;
mod script;
mod sizes;
mod sockperf;
mod tunnel;

use std::path::PathBuf;

use super::lines::MUSL_NGINX;
use super::trial::{Reading, Trial};
use super::works::{By, Line, Side, Work};

/// What drivers keep from one measurement to the next.
#[derive(Default)]
pub(in crate::suites) struct Kept {
    rates: redis::Rates,
    cluster: Option<pgbench::Cluster>,
    /// Of the proxy in Java.
    classes: Option<PathBuf>,
    /// Of the ends in Go, linked with libc.
    program: Option<PathBuf>,
    /// The same, static.
    static_program: Option<PathBuf>,
    keys: Option<tunnel::Keys>,
}

/// Measures some rows of a program in one column. What was read before an error is kept.
pub(in crate::suites) fn measure(
    trial: &Trial<'_>,
    work: &Work,
    lines: &[&'static Line],
    kept: &mut Kept,
    readings: &mut Vec<Reading>,
) -> anyhow::Result<()> {
    let one: fn(&Trial<'_>, &mut Kept, &Line) -> anyhow::Result<Reading> = match work.by {
        By::Nginx => return nginx::measure(trial, "nginx", lines, readings),
        By::MuslNginx => return nginx::measure(trial, MUSL_NGINX, lines, readings),
        By::Redis => return redis::measure(trial, &mut kept.rates, lines, readings),
        By::Pgbench => return pgbench::measure(trial, &mut kept.cluster, lines, readings),
        By::Echo => return sizes::measure(trial, "echo", lines, readings),
        By::Stream => return sizes::measure(trial, "stream", lines, readings),
        By::Pair => |trial, _, line| embedded::pair(trial, trial.side, line),
        By::OneSided => |trial, _, line| embedded::pair(trial, Side::Tcp, line),
        By::Oversubscribed => |trial, _, line| embedded::oversubscribed(trial, line),
        By::Sockperf => |trial, _, line| sockperf::measure(trial, line),
        By::Iperf3 => |trial, _, line| iperf3::measure(trial, line),
        By::Connections => |trial, _, line| connections::measure(trial, line),
        By::Crowd => |trial, _, line| crowd::measure(trial, line),
        By::Paced => |trial, _, line| paced::measure(trial, line),
        By::Haproxy => |trial, _, line| haproxy::measure(trial, line),
        By::Netty => |trial, kept, line| netty::measure(trial, &mut kept.classes, line),
        By::Go => |trial, kept, line| go::measure(trial, &mut kept.program, line),
        By::GoStart => |trial, kept, line| go_start::measure(trial, &mut kept.static_program, line),
        By::Grpc => |trial, _, line| grpc::measure(trial, line),
        By::Caddy => |trial, _, line| caddy::measure(trial, line),
        By::Script => |trial, kept, line| script::measure(trial, &mut kept.program, line),
        By::Netcat => |trial, _, line| netcat::measure(trial, line),
        By::Tunnel => |trial, kept, line| tunnel::measure(trial, &mut kept.keys, line),
    };
    for line in lines {
        readings.push(one(trial, kept, line)?);
    }
    Ok(())
}
