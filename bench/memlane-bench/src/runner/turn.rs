//! Two programs on a CPU each, round by round.

use super::plan::{Part as _, Plan, Row};
use super::programs::Programs;
use super::progress::{Progress, minutes};
use super::{Figure, Missing, Record, by_turns, machine, proc, sys, warn_if_busy};
use crate::exit::{Exit, fail};
use crate::out;
use crate::render::told;
use crate::suites::System;
use machine::Machine;

/// What is the same for all measurements.
pub(crate) struct Bench {
    pub(crate) programs: Programs,
    /// For sockets and logs.
    pub(crate) scratch: proc::Scratch,
    /// The sender runs on the first, the receiver on the second; they are the same where there is one only.
    pub(crate) cpus: [usize; 2],
    pub(crate) seconds: f64,
    /// Of all TCP between the two.
    pub(crate) congestion_control: String,
}

impl Bench {
    pub(crate) fn new(seconds: f64, congestion: Option<&str>) -> anyhow::Result<Bench> {
        let cpus = sys::allowed_cpus();
        Ok(Bench {
            programs: Programs::find()?,
            scratch: proc::Scratch::new()?,
            cpus: [cpus[0], cpus[cpus.len().min(2) - 1]],
            seconds,
            congestion_control: machine::congestion_control(congestion)
                .map_err(|text| fail(Exit::Usage, text))?,
        })
    }
}

/// Says what will happen, and what cannot.
pub(crate) fn announce<R: Row>(
    plan: &Plan<R>,
    missing: &[Missing<R::Part>],
    record: &mut Record,
    bench: &Bench,
    machine: &Machine,
) {
    for Missing { part, system, why } in missing {
        record.missing(part.word(), system.id, why);
    }
    if bench.cpus[0] == bench.cpus[1] {
        out::warn("one CPU only: both ends share it");
    }
    warn_if_busy(machine);
    let parts = R::Part::ALL.iter();
    let parts = parts.map(|part| format!("{} of {}", plan.figures(*part), part.word()));
    let parts: Vec<String> = parts.collect();
    let (rounds, time) = (plan.rounds, minutes(plan.time().as_secs_f64()));
    let parts = parts.join(", ");
    out::stderr(&format!(
        "{rounds} rounds of {parts}: about {time}; Ctrl-C clears away\n"
    ));
}

/// One round.
pub(crate) struct Turn<'a, R: Row> {
    pub(crate) plan: &'a Plan<R>,
    pub(crate) round: usize,
    pub(crate) progress: &'a mut Progress,
    pub(crate) record: &'a mut Record,
}

impl<R: Row> Turn<'_, R> {
    pub(crate) fn systems(&self, part: R::Part) -> Vec<System> {
        by_turns(self.plan.systems_of(part), self.round)
    }

    /// Keeps figures, or what went wrong. `Err`: somebody wants us to stop.
    pub(crate) fn keep(
        &mut self,
        row: &R,
        system: &System,
        seen: anyhow::Result<Vec<Figure>>,
    ) -> anyhow::Result<()> {
        anyhow::ensure!(!sys::interrupted(), "interrupted");
        let (round, id) = (self.round, row.id());
        let about = format!(
            "round {}/{} {id} {}",
            round + 1,
            self.plan.rounds,
            system.id
        );
        match seen {
            Ok(figures) => {
                let cost = row.part().cost(self.plan.seconds);
                let value = told(&figures);
                self.progress.took(cost, &format!("{about}: {value}"));
                self.record.add(&id, system.id, round, &figures);
            }
            Err(error) => {
                out::stderr(&format!("!! {about}: {error:#}\n"));
                self.record
                    .failed(&id, system.id, round, &format!("{error:#}"));
            }
        }
        Ok(())
    }
}
