//! `memlane stats`: the counters of the processes under memlane.

mod baseline;
mod document;
mod sheet;

use memlane_observe::processes::Survey;
use memlane_observe::rings;
use serde::Serialize;

use crate::cli::out;
use baseline::Baseline;
use document::{Counted, Counts, Document};
use sheet::Shown;

/// Show counters: connections, reasons for TCP, bytes by lane, waits.
///
/// The counters start when a process starts, or at your last `memlane stats reset`.
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
    /// Show details: client and server apart, each reason for TCP, each special call
    #[arg(short, long)]
    details: bool,
    /// Show counters since the start of each process, and ignore resets
    #[arg(short, long)]
    absolute: bool,
    #[command(flatten)]
    which: Which,
    /// Report which processes could not be read
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON document: totals and every process
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct Which {
    /// Cover only this process
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
    /// Show counters from now on as if they started at 0
    ///
    /// This stores the current values in a file of yours; later calls of memlane stats subtract them. The processes do not
    /// notice, and other users still see the full counters. --absolute shows the full counters to you.
    Reset(Reset),
}

#[derive(clap::Args, Debug)]
struct Reset {
    #[command(flatten)]
    which: Which,
    /// Print one JSON document: the number of processes, and the name of the file
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
                "{error:#}: showing counters since the start of each process"
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
            "{} processes count from now on; {} processes of other users could not be read ({})\n",
            done.processes, done.processes_unreadable, done.baseline
        ),
    };
    out::print(&text)
}
