//! Rows that need no other program: our own plain std::net pair, as separate processes.

use anyhow::Context;

use crate::bench::lane;
use crate::bench::peer::Outcome;
use crate::bench::proc::{Service, free_port};
use crate::bench::trial::{Metric, Place, Reading, Side, Trial, Workload};

const GROUP: &str = "embedded";
const PAIRS: usize = 4;

/// 100-byte request/response.
pub(crate) struct PingPong;
/// Connect, one request, close.
pub(crate) struct Short;
/// A program under `run` whose peer is not.
pub(crate) struct OneSided;
/// More spinning programs than CPUs.
pub(crate) struct Oversubscribed;

impl Workload for PingPong {
    fn group(&self) -> &'static str {
        GROUP
    }

    fn rows(&self) -> Vec<&'static str> {
        vec!["msg100"]
    }

    fn programs(&self) -> &'static [&'static str] {
        &[]
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let (outcome, lane) = pair(trial, trial.side, false)?;
        readings.push(reading("msg100", "msg/s", &outcome, lane));
        Ok(())
    }
}

impl Workload for Short {
    fn group(&self) -> &'static str {
        GROUP
    }

    fn rows(&self) -> Vec<&'static str> {
        vec!["short"]
    }

    fn programs(&self) -> &'static [&'static str] {
        &[]
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let (outcome, lane) = pair(trial, trial.side, true)?;
        readings.push(reading("short", "conn/s", &outcome, lane));
        Ok(())
    }
}

impl Workload for OneSided {
    fn group(&self) -> &'static str {
        GROUP
    }

    fn rows(&self) -> Vec<&'static str> {
        vec!["one-sided"]
    }

    fn programs(&self) -> &'static [&'static str] {
        &[]
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let (outcome, lane) = pair(trial, Side::Tcp, false)?;
        readings.push(reading("one-sided", "msg/s", &outcome, lane));
        Ok(())
    }
}

impl Workload for Oversubscribed {
    fn group(&self) -> &'static str {
        GROUP
    }

    fn rows(&self) -> Vec<&'static str> {
        vec!["oversubscribed"]
    }

    fn programs(&self) -> &'static [&'static str] {
        &[]
    }

    fn can_pin(&self) -> bool {
        // Always on two CPUs: the scheduler places the eight programs.
        false
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let mut servers = Vec::new();
        let mut clients = Vec::new();
        for _ in 0..PAIRS {
            servers.push(serve(trial, trial.side, Place::BothCpus, false)?);
        }
        for (_, port) in &servers {
            clients.push(trial.start(client(trial, Place::BothCpus, *port, false))?);
        }
        let mut sum = Outcome {
            exchanges: 0,
            seconds: trial.setting.seconds,
            p50_ns: 0,
            p99_ns: 0,
        };
        let mut rate = 0.0;
        for client in clients {
            let outcome = parse(&client.finish()?)?;
            rate += per_second(&outcome);
            // The worst pair's: a pair that starves must show.
            sum.p50_ns = sum.p50_ns.max(outcome.p50_ns);
            sum.p99_ns = sum.p99_ns.max(outcome.p99_ns);
        }
        let mut usage = lane::Usage::default();
        for (server, _) in &servers {
            usage.add(&server.lane());
        }
        let mut reading = reading("oversubscribed", "msg/s", &sum, usage);
        reading.values[0].1 = rate;
        readings.push(reading);
        Ok(())
    }
}

fn pair(
    trial: &Trial<'_>,
    server_side: Side,
    once: bool,
) -> anyhow::Result<(Outcome, lane::Usage)> {
    let (server, port) = serve(trial, server_side, Place::Server, once)?;
    let (text, lane) = trial.run(&server, client(trial, Place::Client, port, once))?;
    Ok((parse(&text)?, lane))
}

fn serve(
    trial: &Trial<'_>,
    side: Side,
    place: Place,
    once: bool,
) -> anyhow::Result<(Service, u16)> {
    let port = free_port()?;
    let number = port.to_string();
    let mut args = vec!["server", "--port", &number];
    args.extend(once.then_some("--once"));
    let service = trial.serve(trial.embedded(side, place, &args), port)?;
    Ok((service, port))
}

fn client(trial: &Trial<'_>, place: Place, port: u16, once: bool) -> std::process::Command {
    let (number, seconds) = (port.to_string(), trial.setting.seconds.to_string());
    let mut args = vec!["client", "--port", &number, "--seconds", &seconds];
    args.extend(once.then_some("--once"));
    trial.embedded(trial.side, place, &args)
}

fn parse(text: &str) -> anyhow::Result<Outcome> {
    serde_json::from_str(text.trim()).with_context(|| format!("the embedded client said {text:?}"))
}

fn per_second(outcome: &Outcome) -> f64 {
    as_float(outcome.exchanges) / outcome.seconds.max(1e-9)
}

/// Counts and nanoseconds here are far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn as_float(value: u64) -> f64 {
    value as f64
}

fn reading(row: &'static str, unit: &'static str, outcome: &Outcome, lane: lane::Usage) -> Reading {
    Reading {
        row,
        values: vec![
            (Metric::rate(unit), per_second(outcome)),
            (Metric::latency("p50"), as_float(outcome.p50_ns) / 1000.0),
            (Metric::latency("p99"), as_float(outcome.p99_ns) / 1000.0),
        ],
        lane,
    }
}
