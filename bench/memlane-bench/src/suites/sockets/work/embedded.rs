//! Rows that need no other program: our own plain pair with sockets of the standard library, as separate processes.

use anyhow::Context as _;

use super::super::peer::figures::Outcome;
use super::super::trial::{Address, Place, Ran, Reading, Trial, cpu_of_requests, of_requests};
use super::super::works::{Line, Side};
use crate::runner::lane;
use crate::runner::proc::Service;
use crate::runner::strangers::Strangers;

/// 100-byte requests, one at a time, over one connection or each over one of its own.
pub(super) fn pair(trial: &Trial<'_>, server: Side, line: &Line) -> anyhow::Result<Reading> {
    let (server, at) = serve(trial, server, Place::SERVER, line.args)?;
    let client = client(trial, Place::CLIENT, &at, line.args);
    let ran = trial.run(&server, client)?;
    let forever = line.args.is_empty();
    reading(line.id, if forever { "msg/s" } else { "conn/s" }, ran)
}

/// More programs than CPUs.
pub(super) fn oversubscribed(trial: &Trial<'_>, line: &Line) -> anyhow::Result<Reading> {
    let [pairs, strangers] = line.args else {
        anyhow::bail!("a row without its arguments");
    };
    let (pairs, strangers): (usize, usize) = (pairs.parse()?, strangers.parse()?);
    let servers = (0..pairs).map(|_| serve(trial, trial.side, Place::SERVER.on_both_cpus(), &[]));
    let servers: Vec<_> = servers.collect::<anyhow::Result<_>>()?;
    let _strangers = Strangers::start(strangers, &trial.bench.cpus);
    let mut clients = Vec::new();
    for (_, at) in &servers {
        clients.push(trial.start(client(trial, Place::CLIENT.on_both_cpus(), at, &[]))?);
    }
    let (mut rate, mut p50, mut p99) = (0.0, 0, 0);
    for client in clients {
        let outcome = parse(&client.finish()?)?;
        rate += per_second(&outcome);
        // The worst pair's: a pair that starves must show.
        p50 = p50.max(outcome.p50_ns);
        p99 = p99.max(outcome.p99_ns);
    }
    let mut usage = lane::Usage::default();
    for (server, _) in &servers {
        usage.add(&server.lane());
    }
    Ok(Reading {
        row: line.id,
        values: of_requests("msg/s", [rate, p50 as f64 / 1e3, p99 as f64 / 1e3]),
        lane: usage,
        carried: None,
    })
}

fn serve(
    trial: &Trial<'_>,
    side: Side,
    place: Place,
    more: &[&str],
) -> anyhow::Result<(Service, Address)> {
    let at = trial.address()?;
    let text = trial.listens(&at);
    let args = [&["server", "--at", &text], more].concat();
    let service = trial.serve(trial.embedded(side, place, &args), &at)?;
    Ok((service, at))
}

fn client(trial: &Trial<'_>, place: Place, at: &Address, more: &[&str]) -> std::process::Command {
    let (text, seconds) = (trial.reached(at), trial.bench.seconds.to_string());
    let args = ["client", "--at", &text, "--seconds", &seconds];
    let args = [&args, more].concat();
    trial.embedded(trial.side, place, &args)
}

fn parse(text: &str) -> anyhow::Result<Outcome> {
    serde_json::from_str(text.trim()).with_context(|| format!("the embedded client said {text:?}"))
}

fn per_second(outcome: &Outcome) -> f64 {
    outcome.exchanges as f64 / outcome.seconds.max(1e-9)
}

/// What an embedded client has told, and what it took.
pub(super) fn reading(row: &'static str, unit: &'static str, ran: Ran) -> anyhow::Result<Reading> {
    let outcome = parse(&ran.text)?;
    let [p50, p99] = [outcome.p50_ns, outcome.p99_ns].map(|ns| ns as f64 / 1e3);
    let mut values = of_requests(unit, [per_second(&outcome), p50, p99]);
    values.extend(cpu_of_requests(ran.cpu, outcome.all as f64));
    Ok(ran.reading(row, values))
}
