//! `memlane-bench run machines`: programs in two emulated machines that share a region of memory, and on their host, by TCP over
//! virtual network cards and by memlane.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom |
//! | `catalogue` | what the table shows; what should be reached |
//! | `scene` | the guests, the region, the networks |
//! | `computer` | a guest or the host, told by its shell |
//! | `programs` | how a row is measured |

pub(crate) mod catalogue;
mod computer;
mod programs;
mod rows;
mod scene;

use std::collections::BTreeSet;

use memlane_guest::Kernel;

use crate::catalogue::{Catalogue, System};
use crate::exit::{Exit, fail};
use crate::out;
use crate::runner::machine::Asked;
use crate::runner::options::Options;
use crate::runner::plan::Plan;
use crate::runner::proc::{Scratch, find_program};
use crate::runner::turn::{self, Suite, Turn};
use crate::sample::Run;
use crate::suites::{counted, sockets};
use rows::{Column, Row};
use scene::Scene;

/// The first server's port: each has one of its own.
const FIRST_PORT: u16 = 7000;

struct Measured<'a> {
    scene: Scene<'a>,
    kernel: String,
    seconds: f64,
    servers: u16,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Run> {
    let plan: Plan<Row> = Plan::new(options.wish([5, 1], [2.0, 0.5]))?;
    let programs = options.programs()?;
    let lacking = |why: String| fail(Exit::Unsupported, format!("no machines here: {why}"));
    memlane_guest::qemu().map_err(lacking)?;
    let kernel = Kernel::of_package(counted::KERNEL).map_err(lacking)?;
    let needed = plan.rows.iter().flat_map(|row| row.programs()).copied();
    let there: BTreeSet<&str> = needed.filter(|name| find_program(name).is_some()).collect();
    let others: Vec<&str> = there.into_iter().collect();
    let scratch = Scratch::new()?;
    out::stderr("booting two guests\n");
    let scene = Scene::new((&programs, &scratch), &kernel, &others);
    let mut measured = Measured {
        scene: scene.map_err(|why| lacking(format!("{why:#}")))?,
        kernel: kernel.release(),
        seconds: plan.wish.seconds,
        servers: 0,
    };
    turn::run(&mut measured, plan)
}

impl Suite for Measured<'_> {
    type Row = Row;
    const NAME: &'static str = "machines";
    const PROGRAMS: &'static [Asked] = &[
        ("nginx", &["-v"]),
        ("wrk", &["-v"]),
        ("redis-server", &["--version"]),
        ("qemu-system-x86_64", &["--version"]),
    ];

    fn catalogue() -> Catalogue {
        catalogue::catalogue()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("guests' kernel", self.kernel.clone()),
            ("guests' CPU", "QEMU's TCG".to_owned()),
        ]
    }

    fn lacks(&self, row: Row, _: &System) -> Option<String> {
        sockets::not_installed(row.programs().iter().copied())
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
        for row in rows {
            self.servers += 1;
            let what = (*row, self.seconds);
            let port = FIRST_PORT + self.servers;
            let reading = programs::measure(&mut self.scene, column, what, port)?;
            sockets::keep(turn, row, system, &reading);
        }
        Ok(())
    }
}
