//! Memory handed over by name: `memlane_socket::Stream` in place, beside iceoryx2, UNIX domain sockets and a bare ring.
//!
//! | room | what |
//! |---|---|
//! | `hand`, `turns` | two processes; what they do with each size, which is what is measured |
//! | `lane`, `unix`, `ring` | by what |
//! | `other` | the program for iceoryx2, which does the same |
//! | `report` | the document and its tables |

pub(crate) mod hand;
mod lane;
mod other;
mod report;
mod ring;
mod turns;
mod unix;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::peer::Sized;
use super::trial::Setting;
use crate::beside::{self, System, system};
use crate::out;
use crate::proc::{Job, Service};
use crate::progress::Progress;
use crate::sys;
pub(super) use other::find;
pub(super) use report::{Report, notes, pictures, tables};

/// `--only`.
pub(super) const GROUP: &str = "native";
/// Rings that a message of 4 MiB fits into twice.
const RING: &str = "8388608";

pub(super) const LANE: &str = "native-lane";
const LANE_SLEEPS: &str = "native-lane-sleeps";
const ICE: &str = "iceoryx2";
const ICE_SLEEPS: &str = "iceoryx2-event";
const BARE: &str = "ring";
const SEQPACKET: &str = "seqpacket";

/// All of them.
pub(super) const SYSTEMS: [System; 7] = [
    system(LANE, "memlane", true),
    system(ICE, "iceoryx2", false),
    system(LANE_SLEEPS, "memlane, no spinning", true),
    system(ICE_SLEEPS, "iceoryx2, events", false),
    system("unix-stream", "UNIX stream", false),
    system(SEQPACKET, "UNIX seqpacket", false),
    system(BARE, "bare ring", false),
];

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Memory is given and taken back; nobody looks at it.
    Handover,
    /// Bytes are copied in, and out.
    Carried,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Handover, Kind::Carried];

    fn word(self) -> &'static str {
        match self {
            Kind::Handover => "handover",
            Kind::Carried => "carried",
        }
    }

    /// Who can do it, and has something to say.
    fn has(self, system: &System) -> bool {
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

/// What could not be measured.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Missing {
    pub(super) system: &'static str,
    pub(super) why: String,
}

/// One that went wrong.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Trouble {
    pub(super) kind: Kind,
    pub(super) system: &'static str,
    /// From 1.
    pub(super) round: usize,
    pub(super) why: String,
}

/// By what was done, by whom, by size: a figure for each round.
type Figures = BTreeMap<(&'static str, &'static str, u64), BTreeMap<usize, Sized>>;

/// All figures of a run.
#[derive(Default)]
pub(super) struct Results {
    figures: Figures,
    missing: Vec<Missing>,
    failed: Vec<Trouble>,
}

impl Plan {
    /// Nobody who cannot be measured; says who, and why.
    pub(super) fn without_absent(&mut self) -> Vec<Missing> {
        let mut missing = Vec::new();
        let has = self.other.is_some();
        self.systems.retain(|system| {
            let lacks = !has && matches!(system.id, ICE | ICE_SLEEPS);
            if lacks {
                let why = other::HOW.to_owned();
                out::stderr(&format!("!! NOT MEASURED: {}: {why}\n", system.id));
                missing.push(Missing {
                    system: system.id,
                    why,
                });
            }
            !lacks
        });
        missing
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
pub(super) fn run(mut plan: Plan, setting: &Setting, progress: &mut Progress) -> (Plan, Results) {
    let mut results = Results {
        missing: plan.without_absent(),
        ..Results::default()
    };
    for round in 0..plan.rounds {
        let mut turns: Vec<_> = plan.turns().collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (kind, system) in turns {
            if sys::interrupted() {
                return (plan, results);
            }
            let name = format!(
                "native {} {} round {}/{}",
                kind.word(),
                system.id,
                round + 1,
                plan.rounds
            );
            match one(&plan, setting, kind, system.id) {
                Ok(told) => {
                    for figure in told {
                        let key = (kind.word(), system.id, figure.bytes);
                        let rounds = results.figures.entry(key).or_default();
                        rounds.insert(round, figure);
                    }
                    progress.took(plan.cost(), &name);
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    progress.took(plan.cost(), &format!("{name}: FAILED: {why}"));
                    results.failed.push(Trouble {
                        kind,
                        system: system.id,
                        round: round + 1,
                        why,
                    });
                }
            }
        }
    }
    (plan, results)
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

/// For tests of the report.
#[cfg(test)]
pub(super) fn sample() -> (Plan, Results) {
    let mut results = Results::default();
    let plan = Plan {
        systems: SYSTEMS.to_vec(),
        sizes: vec![1, 65536, 1 << 22],
        rounds: 2,
        seconds: 0.1,
        other: None,
    };
    for (kind, system) in plan.turns() {
        for (bytes, round) in plan.sizes.iter().flat_map(|size| [(*size, 0), (*size, 1)]) {
            let slow = if system.id == LANE { 1.0 } else { 2.0 };
            let p50 = (kind == Kind::Handover).then_some(100.0 * slow + round as f64);
            let figure = Sized {
                bytes,
                bytes_per_second: 9e9 / slow,
                p50_ns: p50,
                p99_ns: p50.map(|p50| p50 * 2.0),
                cpu_seconds: None,
                seconds: 0.1,
            };
            let key = (kind.word(), system.id, bytes);
            results
                .figures
                .entry(key)
                .or_default()
                .insert(round, figure);
        }
    }
    results.missing.push(Missing {
        system: "nobody",
        why: "on purpose".into(),
    });
    results.failed.push(Trouble {
        kind: Kind::Handover,
        system: SEQPACKET,
        round: 1,
        why: "on purpose".into(),
    });
    (plan, results)
}

/// Both in turn; see [`beside::ratio`].
fn named<'a>(ratios: &'a [beside::Ratio], of: &str, to: &str) -> Option<&'a crate::spread::Spread> {
    beside::ratio(ratios, of, to)
}
