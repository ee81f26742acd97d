//! From a run to what people read: tables in Markdown, plots, one HTML page, `bench/RESULTS.md`.
//!
//! | room | what |
//! |---|---|
//! | `figures` | ratios and aims |
//! | `tables` (`table`) | the tables |
//! | `plots` (`plot`) | the plots, as SVG |
//! | `page` | all of it on one page |
//! | `results` | `bench/RESULTS.md` |
//! | `published` | what others published |
//! | `spread` | medians, and numbers for people |

pub(crate) mod figures;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod plots;
pub(crate) mod published;
pub(crate) mod results;
pub(crate) mod spread;
pub(crate) mod table;
pub(crate) mod tables;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

use crate::exit::{Exit, fail};
use crate::out;
use crate::sample::{Run, metric};
use crate::suites::{Catalogue, catalogue};
use figures::Figures;

/// Renders files that `run` wrote: as Markdown on standard output, or into the files named.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Runs, as `run --json` prints them.
    #[arg(value_name = "FILE", required_unless_present = "results")]
    files: Vec<PathBuf>,
    /// Write one HTML page into this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write SUITE.md, SUITE.html and the plots into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print RESULTS.md, from the runs in DIR/measured.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["files", "html", "out"])]
    results: Option<PathBuf>,
}

/// Renders what was asked for.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.results {
        out::print(&results::of(folder)?)?;
        return Ok(Exit::Ok.into());
    }
    for file in &args.files {
        let run = Run::read(file)?;
        let Some(catalogue) = catalogue(&run.head.suite) else {
            let text = format!("{}: no suite {:?} is known", file.display(), run.head.suite);
            return Err(fail(Exit::Failed, text));
        };
        let figures = Figures::new(&run, &catalogue);
        if let Some(file) = &args.html {
            write(file, &page::of(&figures)?)?;
        }
        if let Some(folder) = &args.out {
            into(folder, &figures)?;
        }
        if args.html.is_none() && args.out.is_none() {
            out::print(&markdown(&figures))?;
        }
    }
    Ok(Exit::Ok.into())
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Everything that a run makes, into a folder.
pub(crate) fn into(folder: &Path, figures: &Figures<'_>) -> anyhow::Result<()> {
    let suite = figures.catalogue.suite;
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    write(&folder.join(format!("{suite}.md")), &markdown(figures))?;
    write(&folder.join(format!("{suite}.jsonl")), &figures.run.text()?)?;
    write(&folder.join(format!("{suite}.html")), &page::of(figures)?)?;
    for (name, picture) in plots::of(figures) {
        write(&folder.join(name), &picture)?;
    }
    Ok(())
}

/// One HTML page, into a file.
pub(crate) fn html(file: &Path, figures: &Figures<'_>) -> anyhow::Result<()> {
    write(file, &page::of(figures)?)
}

/// What stands above the tables: what was run, where.
pub(crate) fn facts(run: &Run) -> Vec<String> {
    let (head, machine) = (&run.head, &run.head.machine);
    let quick = if head.quick { " --quick" } else { "" };
    let settings = head.settings.iter();
    let settings: String = settings.map(|(key, is)| format!(", {key} {is}")).collect();
    let versions = machine.versions.iter();
    let versions: Vec<String> = versions.map(|(name, is)| format!("{name} {is}")).collect();
    let mut facts = vec![
        format!(
            "memlane-bench run {}{quick}: {} rounds × {} s{settings}",
            head.suite, head.rounds, head.seconds
        ),
        format!(
            "machine: {}, {} CPUs, {} MiB, Linux {}, TCP congestion control {}, load {}",
            machine.cpu,
            machine.cores,
            machine.memory_mib,
            machine.kernel,
            machine.congestion_control,
            machine.load
        ),
        format!("programs: {}", versions.join(", ")),
    ];
    facts.extend((!head.note.is_empty()).then(|| head.note.clone()));
    facts
}

/// All of a run, as Markdown.
pub(crate) fn markdown(figures: &Figures<'_>) -> String {
    let mut out = String::new();
    for fact in facts(figures.run) {
        let _ = writeln!(out, "{fact}  ");
    }
    for table in tables::of(figures) {
        table.markdown(&mut out);
    }
    out.push('\n');
    for note in tables::notes(figures) {
        let _ = writeln!(out, "- {note}");
    }
    out
}

/// A figure on its way, for people.
pub(crate) fn told(figures: &[(&'static str, &'static str, f64)]) -> String {
    let judged = figures.iter().find(|(id, ..)| {
        metric(id).is_some_and(|(_, better)| better != crate::sample::Better::Neither)
    });
    judged.map_or(String::new(), |(_, unit, value)| {
        format!("{} {unit}", spread::short(*value))
    })
}

/// How a run ends.
pub(crate) fn verdict(catalogue: &Catalogue, figures: &Figures<'_>) -> Exit {
    let failed = figures.run.absent.iter().filter(|one| one.round.is_some());
    let mut failed = failed.filter(|one| catalogue.is_ours(&one.system));
    if failed.next().is_some() {
        Exit::Failed
    } else if !figures.not_by_memory().is_empty() {
        Exit::FellBack
    } else {
        Exit::Ok
    }
}

#[cfg(test)]
mod tests;
