//! `memlane stats`: counters of the processes under memlane, and their totals.

mod baseline;
mod document;
mod sheet;

use memlane_observe::processes::Survey;
use memlane_observe::rings;
use serde::Serialize;

use crate::out;
use baseline::Baseline;
use document::{Counted, Counts, Document};
use sheet::Shown;

/// Show counters: connections, fall-backs and their reasons, bytes by lane, wake-ups.
///
/// They count from the start of each process, or from the last `memlane stats reset` of this user.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    show: Show,
}

#[derive(clap::Args, Debug)]
struct Show {
    /// Details: by role, each reason with its text, special calls one by one
    #[arg(short, long)]
    details: bool,
    /// From the start of each process on, whatever was reset
    #[arg(short, long)]
    absolute: bool,
    #[command(flatten)]
    which: Which,
    /// Say what could not be read
    #[arg(short, long)]
    verbose: bool,
    /// One JSON document: totals and every process
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct Which {
    /// Only this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
}

impl Which {
    fn survey(&self) -> anyhow::Result<Survey> {
        match self.pid {
            Some(pid) => Ok(Survey::of(pid)?),
            None => Ok(Survey::all()?),
        }
    }
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Let the counters begin at 0 now, for this user: what they are at is put aside
    ///
    /// The processes notice nothing, and other users see what they saw. A process that begins later counts from its
    /// start. --absolute shows the counters as they are.
    Reset(Reset),
}

#[derive(clap::Args, Debug)]
struct Reset {
    #[command(flatten)]
    which: Which,
    /// One JSON document: how many processes, and where it was put aside
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.verb {
            None => self.show.json,
            Some(Verb::Reset(reset)) => reset.json,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.verb {
        None => show(&args.show),
        Some(Verb::Reset(args)) => reset(args),
    }
}

fn show(args: &Show) -> anyhow::Result<()> {
    let mut survey = args.which.survey()?;
    rings::measure(&mut survey);
    if args.verbose {
        out::warn(&survey.unseen());
    }
    let baseline = match args.absolute {
        true => Baseline::default(),
        false => Baseline::load().unwrap_or_else(|error| {
            out::warn(&format!(
                "{error:#}: counted from the start of each process"
            ));
            Baseline::default()
        }),
    };
    let each: Vec<Counted> = survey
        .processes
        .iter()
        .map(|process| Counted::new(process, &baseline))
        .collect();
    let text = match args.json {
        true => out::json(&Document::new(&survey, &each))?,
        false => {
            let since = each.iter().filter(|one| one.since.is_some()).count();
            sheet::text(&Shown {
                sums: &document::sum(&each),
                counts: &Counts::total(&each),
                processes: each.len(),
                since,
                details: args.details,
            })
        }
    };
    out::print(&text)
}

#[derive(Serialize)]
struct ResetDocument {
    schema: &'static str,
    processes: usize,
    processes_unreadable: u64,
    baseline: String,
}

fn reset(args: &Reset) -> anyhow::Result<()> {
    let survey = args.which.survey()?;
    let everybody = match args.which.pid {
        Some(_) => Some(Survey::all()?),
        None => None,
    };
    let alive = everybody.as_ref().unwrap_or(&survey);
    let file = Baseline::change(|baseline| baseline.reset(&survey.processes, &alive.processes))?;
    let done = ResetDocument {
        schema: "memlane.stats-reset/1",
        processes: survey.processes.len(),
        processes_unreadable: survey.unreadable,
        baseline: file.display().to_string(),
    };
    let text = match args.json {
        true => out::json(&done)?,
        false => format!(
            "{} processes count from now on, for this user; {} of other users were not looked at ({})\n",
            done.processes, done.processes_unreadable, done.baseline
        ),
    };
    out::print(&text)
}
