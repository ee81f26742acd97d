//! redis-server without persistence and redis-benchmark.

use std::collections::HashMap;

use anyhow::Context;

use super::super::trial::{Address, Place, Ran, Reading, Trial, cpu_of_requests, of_requests};
use super::super::works::{Line, Pinning, Side};
use crate::runner::parse;
use crate::runner::proc::Service;

/// Requests of the first, uncounted run that tells how many make up the time asked for: as many as this, unless that were
/// more bytes than [`PROBE_BYTES`].
const PROBE: f64 = 5000.0;
const PROBE_BYTES: f64 = 128e6;
const MOST: f64 = 20_000_000.0;

/// The rate that a row had before: redis-benchmark counts requests, not seconds.
pub(super) type Rates = HashMap<(&'static str, Pinning, Side), f64>;

pub(super) fn measure(
    trial: &Trial<'_>,
    rates: &mut Rates,
    lines: &[&'static Line],
    readings: &mut Vec<Reading>,
) -> anyhow::Result<()> {
    let at = trial.address()?;
    let server = server(trial, &at)?;
    for line in lines {
        let &[command, clients, bytes] = line.args else {
            anyhow::bail!("a row without its arguments");
        };
        let least = PROBE.min((PROBE_BYTES / bytes.parse::<f64>()?).ceil());
        let run = |requests| {
            let load = [command, clients, bytes];
            benchmark(trial, &server, &at, load, requests).with_context(|| line.id)
        };
        let key = (line.id, trial.pinning, trial.side);
        let rate = match rates.get(&key) {
            Some(rate) => *rate,
            None => run(least)?.0.rate,
        };
        let requests = (rate * trial.bench.seconds).clamp(least, MOST);
        let (told, ran) = run(requests)?;
        rates.insert(key, told.rate);
        let mut values = of_requests("req/s", [told.rate, told.p50, told.p99]);
        values.extend(cpu_of_requests(ran.cpu, requests));
        readings.push(ran.reading(line.id, values));
    }
    Ok(())
}

fn server(trial: &Trial<'_>, at: &Address) -> anyhow::Result<Service> {
    let folder = trial.bench.scratch.path();
    let folder = folder
        .to_str()
        .context("the temporary folder's name is not UTF-8")?;
    let number;
    let listen = match at {
        Address::Port(port) => {
            number = port.to_string();
            ["--port", &number, "--bind", trial.network.listens()]
        }
        Address::File(path) => ["--port", "0", "--unixsocket", path],
    };
    let quiet = "--appendonly no --daemonize no --loglevel warning --tcp-backlog 511 --dir";
    let mut args = listen.to_vec();
    args.extend(["--save", "", "--protected-mode", "no"]);
    args.extend(quiet.split(' '));
    args.push(folder);
    trial.serve(trial.command(Place::SERVER, "redis-server", &args)?, at)
}

fn benchmark(
    trial: &Trial<'_>,
    server: &Service,
    at: &Address,
    [command, clients, bytes]: [&str; 3],
    requests: f64,
) -> anyhow::Result<(parse::Redis, Ran)> {
    let count = format!("{requests:.0}");
    let number;
    let mut args = match at {
        Address::Port(port) => {
            number = port.to_string();
            vec!["-h", trial.network.reached(), "-p", &number]
        }
        Address::File(path) => vec!["-s", path.as_str()],
    };
    args.extend(["-c", clients, "-n", &count, "-t", command, "-d", bytes]);
    args.extend(["--csv", "--precision", "3"]);
    let client = trial.command(Place::CLIENT, "redis-benchmark", &args)?;
    let ran = trial.run(server, client)?;
    Ok((parse::redis(&ran.text, command)?, ran))
}
