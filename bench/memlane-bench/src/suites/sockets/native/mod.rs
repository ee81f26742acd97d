//! Memory handed over by name: `memlane_socket::Stream` in place, beside iceoryx2, UNIX domain sockets and a bare ring.
//!
//! | room | what |
//! |---|---|
//! | `hand`, `turns` | two processes; what they do with each size, which is what is measured |
//! | `lane`, `unix`, `ring` | by what |
//! | `other` | the program for iceoryx2, which does the same |

pub(crate) mod hand;
mod lane;
mod other;
mod ring;
mod turns;
mod unix;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::peer::Sized;
use super::trial::Setting;
use crate::runner::proc::{Job, Service};
use crate::runner::progress::Progress;
use crate::runner::sys;
use crate::runner::{Figure, Record, by_turns};
use crate::suites::{System, system};
pub(super) use other::find;

/// `--only`.
pub(super) const GROUP: &str = "native";
/// Rings that a message of 4 MiB fits into twice.
const RING: &str = "8388608";

pub(super) const LANE: &str = "native-lane";
pub(super) const LANE_SLEEPS: &str = "native-lane-sleeps";
pub(super) const ICE: &str = "iceoryx2";
pub(super) const ICE_SLEEPS: &str = "iceoryx2-event";
pub(super) const BARE: &str = "ring";
/// A UNIX domain socket.
pub(super) const STREAM: &str = "unix-stream";
const SEQPACKET: &str = "seqpacket";

/// All of them.
pub(super) const SYSTEMS: [System; 7] = [
    system(LANE, "memlane", true),
    system(ICE, "iceoryx2", false),
    system(LANE_SLEEPS, "memlane, no spinning", true),
    system(ICE_SLEEPS, "iceoryx2, events", false),
    system(STREAM, "UNIX stream", false),
    system(SEQPACKET, "UNIX seqpacket", false),
    system(BARE, "bare ring", false),
];

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Memory is given and taken back; nobody looks at it.
    Handover,
    /// Bytes are copied in, and out.
    Carried,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Handover, Kind::Carried];

    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Handover => "handover",
            Kind::Carried => "carried",
        }
    }

    /// Who can do it, and has something to say.
    pub(super) fn has(self, system: &System) -> bool {
        match self {
            Kind::Handover => system.id != BARE,
            Kind::Carried => !matches!(system.id, LANE_SLEEPS | ICE_SLEEPS),
        }
    }
}

/// What was asked for.
pub(super) struct Plan {
    pub(super) systems: Vec<System>,
    /// Bytes.
    pub(super) sizes: Vec<u64>,
    pub(super) rounds: usize,
    /// For each size.
    pub(super) seconds: f64,
    /// The program for iceoryx2, if there is one.
    pub(super) other: Option<PathBuf>,
}

/// Bytes, in steps of four, or of sixteen and the largest.
pub(super) fn sizes(quick: bool) -> Vec<u64> {
    let all = (0..=11).map(|step| 1u64 << (2 * step));
    let wanted = |size: &u64| !quick || size.trailing_zeros().is_multiple_of(4) || *size == 1 << 22;
    all.filter(wanted).collect()
}

/// The row of a size.
pub(super) fn row(kind: Kind, bytes: u64) -> String {
    format!("{}-{bytes}", kind.word())
}

/// What was told of a size.
fn figures(kind: Kind, told: &Sized) -> Vec<Figure> {
    let latency = [("p50", told.p50_ns), ("p99", told.p99_ns)];
    let latency = latency
        .into_iter()
        .filter_map(|(metric, ns)| Some((metric, "µs", ns? / 1e3)));
    match kind {
        Kind::Handover => latency.collect(),
        Kind::Carried => vec![("throughput", "MB/s", told.bytes_per_second / 1e6)],
    }
}

impl Plan {
    /// Leaves out whoever cannot be measured, and says so.
    fn without_absent(&mut self, record: &mut Record) {
        let has = self.other.is_some();
        self.systems.retain(|system| {
            let lacks = !has && matches!(system.id, ICE | ICE_SLEEPS);
            if lacks {
                record.missing(GROUP, system.id, other::HOW);
            }
            !lacks
        });
    }

    fn cost(&self) -> f64 {
        0.1 + self.sizes.len() as f64 * (self.seconds + 0.05)
    }

    fn turns(&self) -> impl Iterator<Item = (Kind, System)> {
        let kinds = Kind::ALL.into_iter();
        kinds.flat_map(|kind| {
            let systems = self.systems.iter().filter(move |system| kind.has(system));
            systems.map(move |system| (kind, *system))
        })
    }

    /// About how many seconds all of it takes.
    pub(super) fn time(&self) -> f64 {
        self.turns().count() as f64 * self.cost() * self.rounds as f64
    }

    /// Largest messages that a system takes.
    fn sizes_of(&self, system: &str) -> Vec<u64> {
        let most = match system {
            // The kernel wants one piece of memory for most of it.
            SEQPACKET => 1 << 20,
            _ => u64::MAX,
        };
        let sizes = self.sizes.iter().copied();
        sizes.filter(|size| *size <= most).collect()
    }
}

/// Runs all of it.
pub(super) fn run(mut plan: Plan, setting: &Setting, record: &mut Record, progress: &mut Progress) {
    plan.without_absent(record);
    for round in 0..plan.rounds {
        for (kind, system) in by_turns(&plan.turns().collect::<Vec<_>>(), round) {
            if sys::interrupted() {
                return;
            }
            let (word, id) = (kind.word(), system.id);
            let name = format!("native {word} {id} round {}/{}", round + 1, plan.rounds);
            match one(&plan, setting, kind, id) {
                Ok(told) => {
                    for size in &told {
                        record.add(&row(kind, size.bytes), id, round, &figures(kind, size));
                    }
                    progress.took(plan.cost(), &name);
                }
                Err(error) => {
                    progress.took(plan.cost(), &format!("{name}: FAILED: {error:#}"));
                    record.failed(word, id, round, &format!("{error:#}"));
                }
            }
        }
    }
}

fn one(
    plan: &Plan,
    setting: &Setting,
    kind: Kind,
    system: &'static str,
) -> anyhow::Result<Vec<Sized>> {
    let folder = setting.scratch.name("hand");
    std::fs::create_dir(&folder)?;
    let sizes = plan.sizes_of(system);
    let bytes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let command = |role: &str, cpu: usize| -> anyhow::Result<Command> {
        let (program, by) = program(plan, setting, system)?;
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]);
        command.args([role, "--by", by, "--kind", kind.word(), "--at"]);
        command.arg(&folder);
        command.args(["--bytes", &bytes.join(",")]);
        command.args(["--seconds", &plan.seconds.to_string()]);
        command
            .env_remove("LD_PRELOAD")
            .env_remove("RUST_BACKTRACE")
            .env("MEMLANE_UPGRADE", "eager");
        if kind == Kind::Handover {
            command.env("MEMLANE_RING", RING);
        }
        if system == LANE_SLEEPS {
            command.env("MEMLANE_SPIN", "off");
        }
        sys::confine(&mut command, &[cpu]);
        Ok(command)
    };
    let [first, second] = setting.cpus;
    // Whoever comes first waits for the other.
    let server = Service::start_until(command("server", first)?, &setting.scratch, |_| true)?;
    let limit = Duration::from_secs_f64(20.0 + plan.cost() * 4.0);
    let client = Job::start(command("client", second)?, limit, &setting.scratch)?;
    let text = client.finish();
    let told = text.map_err(|error| match server.said() {
        said if said.is_empty() => error,
        said => error.context(format!("the server said: {said}")),
    })?;
    let told: Vec<Sized> =
        serde_json::from_str(told.trim()).with_context(|| format!("{system} said {told:?}"))?;
    anyhow::ensure!(
        told.len() == sizes.len(),
        "{system} told {} sizes",
        told.len()
    );
    Ok(told)
}

/// The program with its first arguments, and what it calls the system.
fn program(
    plan: &Plan,
    setting: &Setting,
    system: &'static str,
) -> anyhow::Result<(Vec<OsString>, &'static str)> {
    let ours = |by| {
        let exe = setting.programs.bench.clone().into();
        (vec![exe, "peer".into(), "hand".into()], by)
    };
    Ok(match system {
        LANE | LANE_SLEEPS => ours("lane"),
        SEQPACKET => ours("seqpacket"),
        BARE => ours("ring"),
        ICE | ICE_SLEEPS => {
            let other = plan.other.clone().context(other::HOW)?;
            (vec![other.into()], system)
        }
        _ => ours("stream"),
    })
}
