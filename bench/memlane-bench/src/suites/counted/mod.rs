//! `memlane-bench run counted`: TCP, the kernel's SMC-D loopback and memlane on one CPU of an emulated machine whose clock
//! counts instructions: an instruction takes 1 ns.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom |
//! | `catalogue` | what the tables show; what should be reached |
//! | `inside` | the half in the guest, where the rooms of `sockets` drive the programs |
//!
//! The machine itself is in `guest`.

pub(crate) mod catalogue;
pub(crate) mod inside;
pub(in crate::suites) mod rows;

use std::collections::BTreeSet;

use memlane_guest::Kernel;

use crate::catalogue::{Catalogue, System};
use crate::exit::{Exit, fail};
use crate::out;
use crate::runner::machine::Asked;
use crate::runner::options::Options;
use crate::runner::plan::{Plan, Row as _};
use crate::runner::proc::{Scratch, find_program};
use crate::runner::programs::Programs;
use crate::runner::sys;
use crate::runner::turn::{self, Suite, Turn};
use crate::sample::Run;
use crate::suites::guest::machine::{self, Machine, Outfit, SmcPeer};
use crate::suites::sockets::works::Work;
use crate::suites::{guest, sockets};
use inside::Request;
use rows::{Part, Row, SMC, WORKS};

/// The kernel of the guest: a name for the newest of Debian's that `bench/peers/smc` can build SMC for.
pub(in crate::suites) const KERNEL: &str = "linux-image-6.12-amd64";

struct Measured {
    machine: Machine,
    kernel: String,
    /// Why SMC is not measured, if so.
    no_smc: Option<String>,
    /// Files of the guest.
    _scratch: Scratch,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Run> {
    options.without_a_stranger()?;
    let plan: Plan<Row> = Plan::new(options.wish([1, 1], [1.0, 1.0]))?;
    let programs = options.programs()?;
    let lacking = |why: String| fail(Exit::Unsupported, format!("no guest here: {why}"));
    memlane_guest::qemu().map_err(lacking)?;
    let kernel = Kernel::of_package(KERNEL).map_err(lacking)?;
    let mut measured = Measured::new(&programs, &kernel, &plan)?;
    turn::run(&mut measured, plan)
}

impl Measured {
    /// Boots the guest; without SMC, if nobody asked for it, or it is not built, or the guest does not come up with it.
    fn new(programs: &Programs, kernel: &Kernel, plan: &Plan<Row>) -> anyhow::Result<Measured> {
        let scratch = Scratch::new()?;
        let others = programs_of(&WORKS);
        let boot = |smc: Option<&SmcPeer>| {
            out::stderr("booting the guest\n");
            let outfit = Outfit {
                smc,
                others: &others,
                seconds: plan.wish.seconds,
                more: &Ok,
            };
            Machine::boot((programs, &scratch), kernel, &outfit)
        };
        let asked = plan.measures(|_, system| system.id == SMC);
        let smc = match asked {
            true => SmcPeer::find(programs, kernel),
            false => Err("nobody asked for it".to_owned()),
        };
        let with_smc = smc.and_then(|smc| boot(Some(&smc)).map_err(|why| format!("{why:#}")));
        anyhow::ensure!(!sys::interrupted(), "interrupted");
        let (machine, no_smc) = match with_smc {
            Ok(machine) => (machine, None),
            Err(why) => (boot(None)?, Some(why)),
        };
        Ok(Measured {
            machine,
            kernel: kernel.release(),
            no_smc,
            _scratch: scratch,
        })
    }
}

/// Programs that works are made of, as far as they are installed, each once.
pub(in crate::suites) fn programs_of(works: &[Work]) -> Vec<&'static str> {
    let names = works.iter().flat_map(|work| work.programs).copied();
    let there: BTreeSet<&str> = names.filter(|name| find_program(name).is_some()).collect();
    there.into_iter().collect()
}

impl Suite for Measured {
    type Row = Row;
    const NAME: &'static str = "counted";
    const PROGRAMS: &'static [Asked] = &[
        ("nginx", &["-v"]),
        ("wrk", &["-v"]),
        ("redis-server", &["--version"]),
        ("iperf3", &["--version"]),
        ("sockperf", &["--version"]),
        ("qemu-system-x86_64", &["--version"]),
    ];
    const MINDS_LOAD: bool = false;

    fn catalogue() -> Catalogue {
        catalogue::catalogue()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        machine::settings(&self.kernel)
    }

    fn lacks(&self, Part(place): Part, system: &System) -> Option<String> {
        let smc = self.no_smc.as_ref().filter(|_| system.id == SMC).cloned();
        smc.or_else(|| sockets::not_installed(WORKS[place].programs.iter().copied()))
    }

    fn measure(
        &mut self,
        turn: &mut Turn<'_, Row>,
        system: &System,
        rows: &[Row],
    ) -> anyhow::Result<()> {
        let request = Request {
            system: system.id.to_owned(),
            work: rows[0].part().0,
            rows: rows.iter().map(Row::id).collect(),
        };
        let request = guest::Request::Sockets(request);
        self.machine.measure(&request, |id, figures| {
            if let Some(row) = rows.iter().find(|row| row.id() == id) {
                turn.keep(row, system, figures);
            }
        })
    }
}
