//! `memlane-bench run containers`: two programs in two network namespaces of one host, over TCP, over the kernel's sockmap and
//! over memlane with an agent; over memlane in one namespace; and over memlane in a region, as between two machines.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom |
//! | `catalogue` | what the tables show; what should be reached |
//! | `scene` | the networks, the agent, the sockmap |
//! | `opening` | how long a connection goes on by TCP, and what it costs the agent |
//!
//! The programs are driven by the rooms of `sockets`.

pub(crate) mod catalogue;
mod opening;
mod rows;
mod scene;

use crate::catalogue::{Catalogue, System};
use crate::runner::machine::Asked;
use crate::runner::options::Options;
use crate::runner::plan::{Plan, Row as _};
use crate::runner::turn::{self, Bench, Suite, Turn};
use crate::sample::Run;
use crate::suites::sockets::trial::Trial;
use crate::suites::sockets::works::{Line, Pinning};
use crate::suites::sockets::{self, work};
use rows::{Column, Part, Row, WORKS};
use scene::Scene;

/// `--upgrade` of `memlane run`: as it is by default.
const UPGRADE: &str = "auto";

struct Measured {
    bench: Bench,
    scene: Scene,
    /// Of redis, which asks for requests, by network.
    kept: [work::Kept; 4],
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Run> {
    let plan: Plan<Row> = Plan::new(options.wish([5, 3], [2.0, 1.0]))?;
    let bench = Bench::new(options.programs()?, plan.wish.seconds)?;
    if plan.measures(|_, system| system.ours) {
        sockets::try_launcher(&bench.programs, UPGRADE)?;
    }
    let wanted = |column: &Column| plan.measures(|_, system| system.id == column.system.id);
    let mut measured = Measured {
        scene: Scene::new(&bench, wanted),
        bench,
        kept: Default::default(),
    };
    turn::run(&mut measured, plan)
}

impl Measured {
    fn trial(&self, column: &Column) -> anyhow::Result<Trial<'_>> {
        Ok(Trial {
            bench: &self.bench,
            upgrade: UPGRADE,
            side: column.side,
            pinning: Pinning::Apart,
            network: self.scene.network(column.place)?,
            sockmap: self.scene.sockmap(),
            smc: None,
        })
    }

    fn programs(
        &mut self,
        turn: &mut Turn<'_, Row>,
        column: &Column,
        place: usize,
        rows: &[Row],
    ) -> anyhow::Result<()> {
        let lines = rows.iter().filter_map(|row| match row {
            Row::Program { line, .. } => Some(*line),
            Row::Opening(_) => None,
        });
        let lines: Vec<&'static Line> = lines.collect();
        let mut kept = std::mem::take(&mut self.kept[column.place as usize]);
        let mut readings = Vec::new();
        let trial = self.trial(column)?;
        let done = work::measure(&trial, &WORKS[place], &lines, &mut kept, &mut readings);
        self.kept[column.place as usize] = kept;
        for reading in readings {
            if let Some(row) = rows.iter().find(|row| row.id() == reading.row) {
                sockets::keep(turn, row, &column.system, &reading);
            }
        }
        done
    }
}

impl Suite for Measured {
    type Row = Row;
    const NAME: &'static str = "containers";
    const PROGRAMS: &'static [Asked] = sockets::PROGRAMS;

    fn catalogue() -> Catalogue {
        catalogue::catalogue()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn lacks(&self, part: Part, system: &System) -> Option<String> {
        let column = Column::of(system)?;
        let missing = || match part {
            Part::Work(place) => sockets::not_installed(WORKS[place].programs.iter().copied()),
            Part::Opening => None,
        };
        self.scene.lacks(column).or_else(missing)
    }

    fn measure(
        &mut self,
        turn: &mut Turn<'_, Row>,
        system: &System,
        rows: &[Row],
    ) -> anyhow::Result<()> {
        let Some(column) = Column::of(system) else {
            return Ok(());
        };
        if let Part::Work(place) = rows[0].part() {
            return self.programs(turn, column, place, rows);
        }
        for row in rows {
            if let Row::Opening(how) = row
                && column.opens(*how)
            {
                let agent = self.scene.agent_pid(column.place);
                let figures = opening::measure(&self.trial(column)?, *how, agent)?;
                turn.keep(row, system, &figures);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_the_socket_suite_has_too_is_the_same_there() {
        let there = sockets::all_lines();
        for line in WORKS.iter().flat_map(|work| work.lines) {
            let same = there.iter().find(|known| known.id == line.id);
            let own = ["short-100"].contains(&line.id);
            assert_eq!(same.is_none(), own, "{}", line.id);
            if let Some(same) = same {
                assert_eq!((same.args, same.at), (line.args, line.at), "{}", line.id);
            }
        }
        let unix = crate::suites::sockets::works::Side::Unix;
        assert!(rows::COLUMNS.iter().all(|column| column.side != unix));
    }
}
