//! sockperf: the latency and bandwidth rows of the published tables.

use super::super::trial::{Address, Place, Ran, Reading, Trial, cpu_of_bytes, cpu_of_requests};
use super::super::works::Line;
use crate::runner::parse;
use crate::runner::proc::{Service, free_port};

/// Messages per second asked for in ping-pong. sockperf sizes its log by this and
/// gives up above 600,000, which a memory lane exceeds; TCP never comes near it.
const PACE: &str = "--mps=500000";

pub(super) fn measure(trial: &Trial<'_>, line: &Line) -> anyhow::Result<Reading> {
    let [mode, size] = line.args else {
        anyhow::bail!("a row without its arguments");
    };
    let latency = *mode == "ping-pong";
    let ran = client(trial, mode, size, if latency { &[PACE] } else { &[] })?;
    let messages = parse::sockperf_messages(&ran.text)?;
    let mut values = Vec::new();
    if latency {
        let (p50, p99) = parse::sockperf_latency(&ran.text)?;
        values.extend([("p50", "µs", p50), ("p99", "µs", p99)]);
        values.extend(cpu_of_requests(ran.cpu, messages));
    } else {
        let rate = parse::sockperf_bandwidth(&ran.text)?;
        values.push(("throughput", "MiB/s", rate));
        values.extend(cpu_of_bytes(ran.cpu, messages * size.parse::<f64>()?));
    }
    Ok(ran.reading(line.id, values))
}

/// A server of its own for each run: it keeps state about its clients.
fn client(trial: &Trial<'_>, mode: &str, size: &str, more: &[&str]) -> anyhow::Result<Ran> {
    let port = free_port()?;
    let server = server(trial, port)?;
    let (number, seconds) = (port.to_string(), trial.whole_seconds());
    let mut args = vec![mode, "--tcp", "-i", trial.network.reached(), "-p", &number];
    args.extend(["-m", size, "-t", &seconds]);
    args.extend(more);
    trial.run(&server, trial.command(Place::CLIENT, "sockperf", &args)?)
}

fn server(trial: &Trial<'_>, port: u16) -> anyhow::Result<Service> {
    let number = port.to_string();
    let args = [
        "server",
        "--tcp",
        "-i",
        trial.network.listens(),
        "-p",
        &number,
    ];
    let server = trial.command(Place::SERVER, "sockperf", &args)?;
    trial.serve(server, &Address::Port(port))
}
