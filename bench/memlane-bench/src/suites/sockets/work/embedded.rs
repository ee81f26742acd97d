//! Rows that need no other program: our own plain pair with sockets of the standard library, as separate processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;

use super::super::peer::Outcome;
use super::super::trial::{
    Address, Metric, Place, Ran, Reading, Side, Trial, Workload, cpu_of_requests, of_requests,
};
use crate::runner::lane;
use crate::runner::proc::Service;
use crate::runner::sys;

const GROUP: &str = "embedded";

/// 100-byte requests, one at a time.
pub(super) struct Pair {
    pub(super) row: &'static str,
    pub(super) unit: &'static str,
    /// Connect, one request, close.
    pub(super) once: bool,
    /// A program under `run` whose peer is not.
    pub(super) one_sided: bool,
}
/// More programs than CPUs.
pub(super) struct Oversubscribed {
    pub(super) row: &'static str,
    pub(super) pairs: usize,
    /// Threads beside them that compute all the time.
    pub(super) strangers: usize,
}

impl Pair {
    /// Over one connection, both ends of the same column.
    pub(super) fn plain(row: &'static str, unit: &'static str) -> Pair {
        Pair {
            row,
            unit,
            once: false,
            one_sided: false,
        }
    }
}

impl Workload for Pair {
    fn group(&self) -> &'static str {
        GROUP
    }

    fn rows(&self) -> Vec<&'static str> {
        vec![self.row]
    }

    fn sides(&self) -> &'static [Side] {
        match self.one_sided {
            true => &[Side::Tcp, Side::Nocopy],
            false => &Side::ALL,
        }
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let side = match self.one_sided {
            true => Side::Tcp,
            false => trial.side,
        };
        let (server, at) = serve(trial, side, Place::Server, self.once)?;
        let client = client(trial, Place::Client, &at, self.once);
        let ran = trial.run(&server, client)?;
        readings.push(reading(self.row, self.unit, ran)?);
        Ok(())
    }
}

impl Workload for Oversubscribed {
    fn group(&self) -> &'static str {
        GROUP
    }

    fn rows(&self) -> Vec<&'static str> {
        vec![self.row]
    }

    fn pinning(&self) -> &'static [bool] {
        // Always on two CPUs: the scheduler places the programs.
        &[false]
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let mut servers = Vec::new();
        let mut clients = Vec::new();
        for _ in 0..self.pairs {
            servers.push(serve(trial, trial.side, Place::BothCpus, false)?);
        }
        let _strangers = Strangers::start(self.strangers, trial.setting.cpus);
        for (_, at) in &servers {
            clients.push(trial.start(client(trial, Place::BothCpus, at, false))?);
        }
        let mut sum = Outcome {
            exchanges: 0,
            all: 0,
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
        let mut values = figures("msg/s", &sum);
        values[0].1 = rate;
        readings.push(Reading {
            row: self.row,
            values,
            lane: usage,
        });
        Ok(())
    }
}

/// Threads that compute until this is dropped.
struct Strangers {
    enough: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Strangers {
    fn start(how_many: usize, cpus: [usize; 2]) -> Strangers {
        let enough = Arc::new(AtomicBool::new(false));
        let compute = || {
            let enough = Arc::clone(&enough);
            std::thread::spawn(move || {
                sys::stay_on(&cpus);
                while !enough.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..how_many).map(|_| compute()).collect();
        Strangers { enough, threads }
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(
    trial: &Trial<'_>,
    side: Side,
    place: Place,
    once: bool,
) -> anyhow::Result<(Service, Address)> {
    let at = trial.address()?;
    let text = at.text();
    let mut args = vec!["server", "--at", &text];
    args.extend(once.then_some("--once"));
    let service = trial.serve(trial.embedded(side, place, &args), &at)?;
    Ok((service, at))
}

fn client(trial: &Trial<'_>, place: Place, at: &Address, once: bool) -> std::process::Command {
    let (text, seconds) = (at.text(), trial.setting.seconds.to_string());
    let mut args = vec!["client", "--at", &text, "--seconds", &seconds];
    args.extend(once.then_some("--once"));
    trial.embedded(trial.side, place, &args)
}

fn parse(text: &str) -> anyhow::Result<Outcome> {
    serde_json::from_str(text.trim()).with_context(|| format!("the embedded client said {text:?}"))
}

fn per_second(outcome: &Outcome) -> f64 {
    outcome.exchanges as f64 / outcome.seconds.max(1e-9)
}

fn figures(unit: &'static str, outcome: &Outcome) -> Vec<(Metric, f64)> {
    let [p50, p99] = [outcome.p50_ns, outcome.p99_ns].map(|ns| ns as f64 / 1000.0);
    of_requests(unit, [per_second(outcome), p50, p99])
}

/// What an embedded client has told, and what it took.
pub(super) fn reading(row: &'static str, unit: &'static str, ran: Ran) -> anyhow::Result<Reading> {
    let outcome = parse(&ran.text)?;
    let mut values = figures(unit, &outcome);
    values.extend(cpu_of_requests(ran.cpu, outcome.all as f64));
    Ok(ran.reading(row, values))
}
