//! redis-server without persistence and redis-benchmark.

use std::collections::HashMap;

use anyhow::Context;

use crate::bench::parse;
use crate::bench::proc::{Service, free_port};
use crate::bench::trial::{Metric, Place, Reading, Side, Trial, Workload};

/// Row, command, clients. SET comes first, so that GET finds the key.
const ROWS: [(&str, &str, &str); 4] = [
    ("redis-set-c1", "SET", "1"),
    ("redis-get-c1", "GET", "1"),
    ("redis-set-c50", "SET", "50"),
    ("redis-get-c50", "GET", "50"),
];
/// Requests of the first, uncounted run that tells how many make up the time asked for.
const PROBE: f64 = 5000.0;
const MOST: f64 = 20_000_000.0;

/// Remembers each row's rate: redis-benchmark counts requests, not seconds.
#[derive(Default)]
pub(crate) struct Redis {
    rates: HashMap<(&'static str, bool, bool), f64>,
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
        let port = free_port()?;
        let server = server(trial, port)?;
        for (row, command, clients) in ROWS {
            if !trial.wants(row) {
                continue;
            }
            let key = (row, trial.pinned, trial.side == Side::Memlane);
            let rate = match self.rates.get(&key) {
                Some(rate) => *rate,
                None => {
                    benchmark(trial, &server, port, command, clients, PROBE)?
                        .0
                        .rate
                }
            };
            let requests = (rate * trial.setting.seconds).clamp(PROBE, MOST);
            let (run, lane) = benchmark(trial, &server, port, command, clients, requests)
                .with_context(|| row.to_owned())?;
            self.rates.insert(key, run.rate);
            readings.push(Reading {
                row,
                values: vec![
                    (Metric::rate("req/s"), run.rate),
                    (Metric::latency("p50"), run.p50),
                    (Metric::latency("p99"), run.p99),
                ],
                lane,
            });
        }
        Ok(())
    }
}

fn server(trial: &Trial<'_>, port: u16) -> anyhow::Result<Service> {
    let number = port.to_string();
    let folder = trial.setting.scratch.path();
    let folder = folder
        .to_str()
        .context("the temporary folder's name is not UTF-8")?;
    let args = [
        "--port",
        &number,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--loglevel",
        "warning",
        "--dir",
        folder,
    ];
    trial.serve(trial.command(Place::Server, "redis-server", &args)?, port)
}

fn benchmark(
    trial: &Trial<'_>,
    server: &Service,
    port: u16,
    command: &str,
    clients: &str,
    requests: f64,
) -> anyhow::Result<(parse::Redis, crate::bench::lane::Usage)> {
    let (number, count) = (port.to_string(), format!("{requests:.0}"));
    let args = [
        "-h",
        "127.0.0.1",
        "-p",
        &number,
        "-c",
        clients,
        "-n",
        &count,
        "-t",
        command,
        "--csv",
        "--precision",
        "3",
    ];
    let client = trial.command(Place::Client, "redis-benchmark", &args)?;
    let (text, lane) = trial.run(server, client)?;
    Ok((parse::redis(&text, command)?, lane))
}
