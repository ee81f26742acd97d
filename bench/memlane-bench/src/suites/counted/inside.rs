//! The half in the guest: it measures what it is told to, line by line, with the drivers of the socket suite.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::rows::{self, WORKS};
use crate::runner::programs::Programs;
use crate::runner::smc::Smc;
use crate::runner::turn::Bench;
use crate::suites::sockets::network::Network;
use crate::suites::sockets::trial::Trial;
use crate::suites::sockets::works::{Line, Pinning};
use crate::suites::sockets::{self, work};

/// What each line for the other half begins with; everything else on the console is chatter.
pub(super) const MARK: &str = "counted: ";

/// The half in the guest of `run counted`: reads requests from standard input, one JSON document a line.
#[derive(clap::Args, Debug)]
pub(crate) struct Inside {
    /// The length of each measurement.
    #[arg(long)]
    seconds: f64,
    /// A library that gives programs SMC sockets.
    #[arg(long)]
    smc: Option<PathBuf>,
}

/// What is asked for: rows of one work in one column.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) system: String,
    /// Of [`WORKS`].
    pub(super) work: usize,
    pub(super) rows: Vec<String>,
}

/// What is answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Answer {
    /// Requests are taken.
    Ready,
    /// A row's figures: metric, unit, value.
    Row(String, Vec<(String, String, f64)>),
    /// A request is done; what went wrong, if something did.
    Done(Option<String>),
}

pub(crate) fn run(args: &Inside) -> anyhow::Result<()> {
    let smc = args.smc.clone().map(Smc::new).transpose()?;
    let bench = Bench::new(Programs::find(None)?, args.seconds)?;
    let network = Network::loopback().with_domain("off");
    let mut kept = work::Kept::default();
    tell(&Answer::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?).context("a request")?;
        let side = rows::column(&request.system).context("an unknown column")?;
        let trial = Trial {
            bench: &bench,
            upgrade: "auto",
            side,
            pinning: Pinning::Apart,
            network: &network,
            sockmap: None,
            smc: smc.as_ref(),
        };
        let done = measure(&trial, &request, &mut kept);
        tell(&Answer::Done(done.err().map(|error| format!("{error:#}"))))?;
    }
    Ok(())
}

fn tell(answer: &Answer) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{}", serde_json::to_string(answer)?)?;
    Ok(out.flush()?)
}

fn measure(trial: &Trial<'_>, request: &Request, kept: &mut work::Kept) -> anyhow::Result<()> {
    let work = WORKS.get(request.work).context("an unknown work")?;
    let lines: Vec<&'static Line> = lines(work.lines, &request.rows).collect();
    let mut readings = Vec::new();
    let done = work::measure(trial, work, &lines, kept, &mut readings);
    for reading in readings {
        let figures = sockets::figures(&reading).into_iter();
        let figures = figures.map(|(metric, unit, value)| (metric, unit.to_owned(), value));
        tell(&Answer::Row(reading.row.to_owned(), figures.collect()))?;
    }
    done
}

fn lines(all: &'static [Line], ids: &[String]) -> impl Iterator<Item = &'static Line> {
    all.iter().filter(|line| ids.iter().any(|id| id == line.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_over_the_console_is_read_as_it_was_written() {
        let figures = vec![("p50".to_owned(), "µs".to_owned(), 4.5)];
        for answer in [
            Answer::Ready,
            Answer::Row("nginx-1".into(), figures),
            Answer::Done(None),
            Answer::Done(Some("no \"such\" thing".into())),
        ] {
            let text = serde_json::to_string(&answer).expect("text");
            assert!(!text.contains('\n'));
            assert_eq!(
                serde_json::from_str::<Answer>(&text).expect("an answer"),
                answer
            );
        }
    }

    #[test]
    fn a_request_measures_the_rows_that_it_names() {
        let ids = ["nginx-128".to_owned(), "redis".to_owned()];
        let found: Vec<&str> = lines(WORKS[1].lines, &ids).map(|line| line.id).collect();
        assert_eq!(found, ["nginx-128"]);
    }
}
