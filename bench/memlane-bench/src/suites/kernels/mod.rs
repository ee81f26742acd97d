//! `memlane-bench run kernels`: memlane beside what the kernel has for the same work, on one CPU of an emulated machine whose
//! clock counts instructions: volumes over a network beside RNBD and NVMe, sockets beside SMC-D loopback.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom |
//! | `catalogue` | what the tables show; what should be reached |
//! | `outfit` | what is in the machine for volumes |
//! | `inside/` | the half in the guest |

pub(crate) mod catalogue;
pub(crate) mod inside;
mod outfit;
mod rows;

use memlane_guest::Kernel;

use crate::catalogue::{Catalogue, System};
use crate::exit::{Exit, fail};
use crate::out;
use crate::runner::machine::Asked;
use crate::runner::options::Options;
use crate::runner::plan::{Plan, Row as _};
use crate::runner::proc::Scratch;
use crate::runner::programs::Programs;
use crate::runner::turn::{self, Suite, Turn};
use crate::sample::Run;
use crate::suites::guest::Request;
use crate::suites::guest::machine::{self, Machine, Outfit, SmcPeer};
use crate::suites::sockets::works::Work;
use crate::suites::{counted, guest, sockets};
use rows::{Part, Row, works};

struct Measured {
    machine: Machine,
    kernel: String,
    /// Why SMC is not measured, if so.
    no_smc: Option<String>,
    /// Why volumes of memlane's, by fio's engine, are not.
    no_engine: Option<String>,
    /// Files of the guest.
    _scratch: Scratch,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Run> {
    options.without_a_stranger()?;
    let plan: Plan<Row> = Plan::new(options.wish([1, 1], [1.0, 1.0]))?;
    let programs = options.programs()?;
    let lacking = |why: String| fail(Exit::Unsupported, format!("no guest here: {why}"));
    memlane_guest::qemu().map_err(lacking)?;
    let kernel = Kernel::of_package(counted::KERNEL).map_err(lacking)?;
    let kernel = outfit::with_rnbd(&programs, kernel).map_err(lacking)?;
    outfit::lacks().map_or(Ok(()), |why| Err(lacking(why)))?;
    let mut measured = Measured::new(&programs, &kernel, &plan)?;
    turn::run(&mut measured, plan)
}

impl Measured {
    fn new(programs: &Programs, kernel: &Kernel, plan: &Plan<Row>) -> anyhow::Result<Measured> {
        let scratch = Scratch::new()?;
        let asked = plan.measures(|_, system| system.id == counted::rows::SMC);
        let smc = match asked {
            true => SmcPeer::find(programs, kernel),
            false => Err("nobody asked for it".to_owned()),
        };
        let others = counted::programs_of(works());
        let outfit = Outfit {
            smc: smc.as_ref().ok(),
            others: &others,
            seconds: plan.wish.seconds,
            more: &|guest| outfit::of_volumes(programs, &scratch, guest),
        };
        out::stderr("booting the guest\n");
        Ok(Measured {
            machine: Machine::boot((programs, &scratch), kernel, &outfit)?,
            kernel: kernel.release(),
            no_smc: smc.err(),
            no_engine: outfit::no_engine(programs),
            _scratch: scratch,
        })
    }
}

impl Suite for Measured {
    type Row = Row;
    const NAME: &'static str = "kernels";
    const PROGRAMS: &'static [Asked] = &[
        ("fio", &["--version"]),
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

    fn lacks(&self, part: Part, system: &System) -> Option<String> {
        let by_engine = [rows::RDMA, rows::TCP].contains(system);
        match part {
            Part::Sockets(place) => {
                let is_smc = system.id == counted::rows::SMC;
                let smc = self.no_smc.clone().filter(|_| is_smc);
                let work: &Work = &works()[place];
                smc.or_else(|| sockets::not_installed(work.programs.iter().copied()))
            }
            _ => self.no_engine.clone().filter(|_| by_engine),
        }
    }

    fn measure(
        &mut self,
        turn: &mut Turn<'_, Row>,
        system: &System,
        rows: &[Row],
    ) -> anyhow::Result<()> {
        let part = rows[0].part();
        let (system_id, ids) = (system.id.to_owned(), rows.iter().map(Row::id).collect());
        let request = match part {
            Part::Sockets(work) => Request::Sockets(counted::inside::Request {
                system: system_id,
                work,
                rows: ids,
            }),
            _ => Request::Volumes(inside::Request {
                system: system_id,
                paths: part.paths(),
                rows: ids,
            }),
        };
        self.machine
            .measure(&request, |id, figures: &[guest::Told]| {
                if let Some(row) = rows.iter().find(|row| row.id() == id) {
                    turn.keep(row, system, figures);
                }
            })
    }
}
