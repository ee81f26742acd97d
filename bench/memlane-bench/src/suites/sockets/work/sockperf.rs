//! sockperf: the latency and bandwidth rows of the published tables.

use super::super::trial::{
    Address, Metric, Place, Ran, Reading, Side, Trial, Workload, cpu_of_bytes, cpu_of_requests,
};
use crate::runner::parse;
use crate::runner::proc::{Service, free_port};

/// Messages per second asked for in ping-pong. sockperf sizes its log by this and
/// gives up above 600,000, which a memory lane exceeds; TCP never comes near it.
const PACE: &str = "--mps=500000";

/// Bytes of a message where throughput counts.
const BULK: &str = "64000";

pub(super) struct Sockperf;

impl Workload for Sockperf {
    fn group(&self) -> &'static str {
        "sockperf"
    }

    fn rows(&self) -> Vec<&'static str> {
        vec!["sockperf-pp", "sockperf-tp"]
    }

    fn programs(&self) -> &'static [&'static str] {
        &["sockperf"]
    }

    fn sides(&self) -> &'static [Side] {
        &Side::OF_TCP
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        if trial.wants("sockperf-pp") {
            let ran = client(trial, "ping-pong", "14", &[PACE])?;
            let (p50, p99) = parse::sockperf_latency(&ran.text)?;
            let mut values = vec![(Metric::latency("p50"), p50), (Metric::latency("p99"), p99)];
            let requests = parse::sockperf_messages(&ran.text)?;
            values.extend(cpu_of_requests(ran.cpu, requests));
            readings.push(ran.reading("sockperf-pp", values));
        }
        if trial.wants("sockperf-tp") {
            let ran = client(trial, "throughput", BULK, &[])?;
            let rate = parse::sockperf_bandwidth(&ran.text)?;
            let mut values = vec![(Metric::throughput("MiB/s"), rate)];
            let bytes = parse::sockperf_messages(&ran.text)? * BULK.parse::<f64>()?;
            values.extend(cpu_of_bytes(ran.cpu, bytes));
            readings.push(ran.reading("sockperf-tp", values));
        }
        Ok(())
    }
}

/// A server of its own for each run: it keeps state about its clients.
fn client(trial: &Trial<'_>, mode: &str, size: &str, more: &[&str]) -> anyhow::Result<Ran> {
    let port = free_port()?;
    let server = server(trial, port)?;
    let (number, seconds) = (port.to_string(), trial.whole_seconds());
    let mut args = vec![mode, "--tcp", "-i", "127.0.0.1", "-p", &number];
    args.extend(["-m", size, "-t", &seconds]);
    args.extend(more);
    trial.run(&server, trial.command(Place::Client, "sockperf", &args)?)
}

fn server(trial: &Trial<'_>, port: u16) -> anyhow::Result<Service> {
    let number = port.to_string();
    let args = ["server", "--tcp", "-i", "127.0.0.1", "-p", &number];
    let server = trial.command(Place::Server, "sockperf", &args)?;
    trial.serve(server, &Address::Port(port))
}
