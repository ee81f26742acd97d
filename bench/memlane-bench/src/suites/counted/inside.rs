//! The half in the guest: rows of programs, by the drivers of the socket suite.

use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::rows::{self, WORKS};
use crate::runner::smc::Smc;
use crate::runner::turn::Bench;
use crate::suites::guest::Told;
use crate::suites::sockets::network::Network;
use crate::suites::sockets::trial::Trial;
use crate::suites::sockets::works::{Line, Pinning};
use crate::suites::sockets::{self, work};

/// What is asked for: rows of one work in one column.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(in crate::suites) struct Request {
    pub(in crate::suites) system: String,
    /// Of [`WORKS`].
    pub(in crate::suites) work: usize,
    pub(in crate::suites) rows: Vec<String>,
}

/// What stays from one request to the next.
pub(in crate::suites) struct Sockets<'a> {
    bench: &'a Bench,
    smc: Option<Smc>,
    network: Network,
    kept: work::Kept,
}

impl<'a> Sockets<'a> {
    /// `smc`: a library that gives programs SMC sockets.
    ///
    /// # Errors
    /// There is one, and no SMC in this kernel.
    pub(in crate::suites) fn new(bench: &'a Bench, smc: Option<PathBuf>) -> anyhow::Result<Self> {
        Ok(Sockets {
            bench,
            smc: smc.map(Smc::new).transpose()?,
            network: Network::loopback().with_domain("off"),
            kept: work::Kept::default(),
        })
    }

    /// Measures rows; `keep` is given each one's figures.
    ///
    /// # Errors
    /// What went wrong with the first row that was not kept.
    pub(in crate::suites) fn measure(
        &mut self,
        request: &Request,
        keep: &mut dyn FnMut(&str, Vec<Told>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let trial = Trial {
            bench: self.bench,
            upgrade: "auto",
            side: rows::column(&request.system).context("an unknown column")?,
            pinning: Pinning::Apart,
            network: &self.network,
            sockmap: None,
            smc: self.smc.as_ref(),
        };
        let work = WORKS.get(request.work).context("an unknown work")?;
        let lines: Vec<&'static Line> = lines(work.lines, &request.rows).collect();
        let mut readings = Vec::new();
        let done = work::measure(&trial, work, &lines, &mut self.kept, &mut readings);
        for reading in readings {
            let figures = sockets::figures(&reading).into_iter();
            let figures = figures.map(|(metric, unit, value)| (metric, unit.to_owned(), value));
            keep(reading.row, figures.collect())?;
        }
        done
    }
}

fn lines(all: &'static [Line], ids: &[String]) -> impl Iterator<Item = &'static Line> {
    all.iter().filter(|line| ids.iter().any(|id| id == line.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_measures_the_rows_that_it_names() {
        let ids = ["nginx-128".to_owned(), "redis".to_owned()];
        let found: Vec<&str> = lines(WORKS[1].lines, &ids).map(|line| line.id).collect();
        assert_eq!(found, ["nginx-128"]);
    }
}
