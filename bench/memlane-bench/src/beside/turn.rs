//! Two programs on a CPU each, round by round: what is the same for all measurements, and what comes of them.

use super::plan::{Part as _, Plan, Row};
use super::{Missing, System, Trouble, by_turns, warn_if_busy};
use crate::exit::{Exit, fail};
use crate::machine::{self, Machine};
use crate::out;
use crate::programs::Programs;
use crate::progress::{Progress, minutes};
use crate::reading::Reading;
use crate::{proc, sys};

/// What is the same for all measurements.
pub(crate) struct Bench {
    pub(crate) programs: Programs,
    /// For sockets and logs.
    pub(crate) scratch: proc::Scratch,
    /// Who sends is on the first, who receives on the second; they are the same where there is one only.
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

    /// For tests: nothing of it runs.
    #[cfg(test)]
    pub(crate) fn idle() -> Bench {
        Bench {
            programs: Programs::nowhere(),
            scratch: proc::Scratch::new().expect("a folder"),
            cpus: [0, 1],
            seconds: 1.0,
            congestion_control: "cubic".into(),
        }
    }
}

/// All figures of a run.
pub(crate) struct Results<R: Row, O> {
    pub(crate) readings: Vec<Reading<R, O>>,
    pub(crate) missing: Vec<Missing<R::Part>>,
    pub(crate) trouble: Vec<Trouble<R::Part>>,
}

impl<R: Row, O> Default for Results<R, O> {
    fn default() -> Self {
        Results {
            readings: Vec::new(),
            missing: Vec::new(),
            trouble: Vec::new(),
        }
    }
}

/// What will happen, and what cannot.
pub(crate) fn announce<R: Row>(
    plan: &Plan<R>,
    missing: &[Missing<R::Part>],
    bench: &Bench,
    machine: &Machine,
) {
    for Missing { part, system, why } in missing {
        let part = part.word();
        out::stderr(&format!("!! NOT MEASURED: {part}, {system}: {why}\n"));
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
pub(crate) struct Turn<'a, R: Row, O> {
    pub(crate) plan: &'a Plan<R>,
    pub(crate) round: usize,
    pub(crate) progress: &'a mut Progress,
    pub(crate) results: &'a mut Results<R, O>,
}

impl<R: Row, O> Turn<'_, R, O> {
    pub(crate) fn systems(&self, part: R::Part) -> Vec<System> {
        by_turns(self.plan.systems_of(part), self.round)
    }

    /// Keeps a figure, or what went wrong. `Err`: somebody wants us to stop.
    pub(crate) fn keep(
        &mut self,
        row: R,
        system: &System,
        seen: anyhow::Result<O>,
        shown: impl Fn(&O) -> String,
    ) -> anyhow::Result<()> {
        let (system_id, round) = (system.id, self.round);
        let told = seen.map(|seen| {
            let told = shown(&seen);
            self.results.readings.push(Reading {
                row,
                system: system_id,
                round,
                seen,
            });
            told
        });
        self.note(row, system, told)
    }

    /// Says what came of a figure that is kept elsewhere. `Err`: somebody wants us to stop.
    pub(crate) fn note(
        &mut self,
        row: R,
        system: &System,
        told: anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        anyhow::ensure!(!sys::interrupted(), "interrupted");
        let (round, system) = (self.round + 1, system.id);
        let about = format!("round {round}/{} {} {system}", self.plan.rounds, row.id());
        match told {
            Ok(value) => {
                let cost = row.part().cost(self.plan.seconds);
                self.progress.took(cost, &format!("{about}: {value}"));
            }
            Err(error) => {
                out::stderr(&format!("!! {about}: {error:#}\n"));
                self.results.trouble.push(Trouble {
                    part: row.part(),
                    row: row.id(),
                    system,
                    round,
                    why: format!("{error:#}"),
                });
            }
        }
        Ok(())
    }
}
