//! From a run to what people read: tables in Markdown, plots, one HTML page, `bench/RESULTS.md`.
//!
//! | room | what |
//! |---|---|
//! | `aims` | how many were reached, and those that were not |
//! | `tables` (`table`) | the tables |
//! | `markdown` | all of it as Markdown |
//! | `plots` (`plot`) | the plots, as SVG |
//! | `page` | all of it on one page |
//! | `results` | `bench/RESULTS.md` |

mod aims;
mod markdown;
mod page;
mod plot;
mod plots;
mod results;
pub(crate) mod table;
mod tables;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

use crate::catalogue::Catalogue;
use crate::exit::Exit;
use crate::figures::Figures;
use crate::out;
use crate::sample::Run;
use markdown::markdown;

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

/// Where the result of a run goes, beside the tables on standard output.
#[derive(clap::Args, Debug)]
pub(crate) struct Output {
    /// Print the figures as lines of JSON (schema memlane.bench/1) instead of tables.
    #[arg(long, global = true)]
    json: bool,
    /// Also write one HTML page with all of it into this file.
    #[arg(long, value_name = "FILE", global = true)]
    html: Option<PathBuf>,
    /// Also write SUITE.md, SUITE.jsonl, SUITE.html and the plots into this folder.
    #[arg(long, value_name = "DIR", global = true)]
    out: Option<PathBuf>,
}

/// Prints and writes what a run has seen. The exit code says whether memlane's own figures are all there.
pub(crate) fn show(
    output: &Output,
    run: &Run,
    catalogues: &[Catalogue],
) -> anyhow::Result<ExitCode> {
    let figures = Figures::new(run, of_suite(catalogues, run)?);
    files(output.html.as_deref(), output.out.as_deref(), &figures)?;
    out::print(&match output.json {
        true => run.text()?,
        false => markdown(&figures),
    })?;
    if output.json {
        // The tables say it in their notes.
        for line in figures.not_by_memory() {
            eprintln!("memlane-bench: NOT BY MEMORY: {line}");
        }
    }
    Ok(verdict(&figures).into())
}

/// Renders recorded runs.
pub(crate) fn run(args: &Args, catalogues: &[Catalogue]) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.results {
        out::print(&results::of(folder, catalogues)?)?;
        return Ok(Exit::Ok.into());
    }
    for file in &args.files {
        let run = Run::read(file)?;
        let catalogue = of_suite(catalogues, &run).with_context(|| file.display().to_string())?;
        let figures = Figures::new(&run, catalogue);
        files(args.html.as_deref(), args.out.as_deref(), &figures)?;
        if args.html.is_none() && args.out.is_none() {
            out::print(&markdown(&figures))?;
        }
    }
    Ok(Exit::Ok.into())
}

fn of_suite<'a>(catalogues: &'a [Catalogue], run: &Run) -> anyhow::Result<&'a Catalogue> {
    let suite = &run.head.suite;
    let found = catalogues.iter().find(|known| known.suite == suite);
    found.with_context(|| format!("no suite {suite:?} is known"))
}

/// One page, and all that a run makes, where they were asked for.
fn files(page: Option<&Path>, all: Option<&Path>, figures: &Figures<'_>) -> anyhow::Result<()> {
    if let Some(file) = page {
        write(file, &page::of(figures)?)?;
    }
    all.map_or(Ok(()), |folder| into(folder, figures))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Everything that a run makes, into a folder.
fn into(folder: &Path, figures: &Figures<'_>) -> anyhow::Result<()> {
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

/// How a run ends.
fn verdict(figures: &Figures<'_>) -> Exit {
    let failed = figures.run.absent.iter().filter(|one| one.round.is_some());
    let mut failed = failed.filter(|one| figures.catalogue.is_ours(&one.system));
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
