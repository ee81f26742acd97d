//! redis-server without persistence and redis-benchmark.

use std::collections::HashMap;

use anyhow::Context;

use super::super::trial::{
    Address, Place, Ran, Reading, Side, Trial, Workload, cpu_of_requests, of_requests,
};
use crate::runner::parse;
use crate::runner::proc::Service;

/// Row, command, clients, bytes of a value. SET comes first, so that GET finds the key. The last two are those of the
/// published table.
const ROWS: [(&str, &str, &str, &str); 6] = [
    ("redis-set-c1", "SET", "1", "3"),
    ("redis-get-c1", "GET", "1", "3"),
    ("redis-set-c50", "SET", "50", "3"),
    ("redis-get-c50", "GET", "50", "3"),
    ("redis-set-c200", "SET", "200", "1024"),
    ("redis-get-c200", "GET", "200", "1024"),
];
/// Requests of the first, uncounted run that tells how many make up the time asked for.
const PROBE: f64 = 5000.0;
const MOST: f64 = 20_000_000.0;

/// Remembers each row's rate: redis-benchmark counts requests, not seconds.
#[derive(Default)]
pub(super) struct Redis {
    rates: HashMap<(&'static str, bool, Side), f64>,
}

impl Workload for Redis {
    fn group(&self) -> &'static str {
        "redis"
    }

    fn rows(&self) -> Vec<&'static str> {
        ROWS.iter().map(|(row, ..)| *row).collect()
    }

    fn programs(&self) -> &'static [&'static str] {
        &["redis-server", "redis-benchmark"]
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let at = trial.address()?;
        let server = server(trial, &at)?;
        for (row, command, clients, bytes) in ROWS {
            if !trial.wants(row) {
                continue;
            }
            let run = |requests| {
                let load = [command, clients, bytes];
                benchmark(trial, &server, &at, load, requests).with_context(|| row.to_owned())
            };
            let key = (row, trial.pinned, trial.side);
            let rate = match self.rates.get(&key) {
                Some(rate) => *rate,
                None => run(PROBE)?.0.rate,
            };
            let requests = (rate * trial.setting.seconds).clamp(PROBE, MOST);
            let (told, ran) = run(requests)?;
            self.rates.insert(key, told.rate);
            let mut values = of_requests("req/s", [told.rate, told.p50, told.p99]);
            values.extend(cpu_of_requests(ran.cpu, requests));
            readings.push(ran.reading(row, values));
        }
        Ok(())
    }
}

fn server(trial: &Trial<'_>, at: &Address) -> anyhow::Result<Service> {
    let folder = trial.setting.scratch.path();
    let folder = folder
        .to_str()
        .context("the temporary folder's name is not UTF-8")?;
    let number;
    let listen = match at {
        Address::Port(port) => {
            number = port.to_string();
            ["--port", &number, "--bind", "127.0.0.1"]
        }
        Address::File(path) => ["--port", "0", "--unixsocket", path],
    };
    let quiet = "--appendonly no --daemonize no --loglevel warning --tcp-backlog 511 --dir";
    let mut args = listen.to_vec();
    args.extend(["--save", ""]);
    args.extend(quiet.split(' '));
    args.push(folder);
    trial.serve(trial.command(Place::Server, "redis-server", &args)?, at)
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
            vec!["-h", "127.0.0.1", "-p", &number]
        }
        Address::File(path) => vec!["-s", path.as_str()],
    };
    args.extend(["-c", clients, "-n", &count, "-t", command, "-d", bytes]);
    args.extend(["--csv", "--precision", "3"]);
    let client = trial.command(Place::Client, "redis-benchmark", &args)?;
    let ran = trial.run(server, client)?;
    Ok((parse::redis(&ran.text, command)?, ran))
}
