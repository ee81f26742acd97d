//! `memlane devmem`: which device memory and which paths this machine has.

use memlane_devmem::io::kernel::Interface;
use memlane_devmem::probe::{self, Finding};
use serde::Serialize;

use crate::cli::exit::{Exit, fail};
use crate::cli::out;

/// Show what this machine offers for device memory
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// List kinds of memory for payload, and what is missing for those that do not work
    Ls(Ls),
    /// List paths for payload into that memory, the best first, and what is missing for those that do not work
    Probe(Probe),
}

#[derive(clap::Args, Debug)]
struct Ls {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct Probe {
    /// Network interface that would receive [default: any]
    #[arg(long, value_name = "INTERFACE")]
    interface: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.verb {
            Verb::Ls(ls) => ls.json,
            Verb::Probe(probe) => probe.json,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.verb {
        Verb::Ls(ls) => say("memlane.devmem-ls/1", &probe::memory(), ls.json),
        Verb::Probe(asked) => {
            let interface = asked.interface.as_deref().map(Interface::find).transpose();
            let interface = interface.map_err(|error| fail(Exit::Usage, error.to_string()))?;
            let found = probe::paths(interface.as_ref());
            say("memlane.devmem-probe/1", &found, asked.json)
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    findings: Vec<FindingDocument<'a>>,
}

#[derive(Serialize)]
struct FindingDocument<'a> {
    name: &'a str,
    what: &'a str,
    here: bool,
    lacks: &'a [String],
}

impl<'a> FindingDocument<'a> {
    fn new(finding: &'a Finding) -> FindingDocument<'a> {
        FindingDocument {
            name: &finding.name,
            what: finding.what,
            here: finding.is_here(),
            lacks: &finding.lacks,
        }
    }
}

fn say(schema: &'static str, found: &[Finding], json: bool) -> anyhow::Result<()> {
    if json {
        let findings = found.iter().map(FindingDocument::new).collect();
        return out::print(&out::json(&Document { schema, findings })?);
    }
    let rows = found.iter().flat_map(rows).collect();
    out::print(&out::columns(&["Name", "Here", "What"], &[], rows))
}

/// A line for one path or kind of memory, and a line for each thing that it lacks.
fn rows(finding: &Finding) -> Vec<Vec<String>> {
    let here = if finding.is_here() { "yes" } else { "no" };
    let mut rows = vec![vec![finding.name.clone(), here.into(), finding.what.into()]];
    let lacking = |why: &String| vec![String::new(), String::new(), format!("- {why}")];
    rows.extend(finding.lacks.iter().map(lacking));
    rows
}
