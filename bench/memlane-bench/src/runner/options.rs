//! The flags of every suite.

use std::path::PathBuf;

use super::plan::Wish;
use super::programs::Programs;
use crate::exit::{Exit, fail};

/// What is measured, how often, how long.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// A short run: fewer rounds, the most telling rows.
    #[arg(long, global = true)]
    pub(crate) quick: bool,
    /// Only the rows that a short run leaves out.
    #[arg(long, conflicts_with = "quick", global = true)]
    pub(crate) rest: bool,
    /// Let another thread compute on one of the two CPUs, all the time.
    #[arg(long, global = true)]
    stranger: bool,
    /// Only these parts, rows or systems; an unknown name lists all of them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', global = true)]
    only: Vec<String>,
    /// How often each figure is taken.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000), global = true)]
    rounds: Option<u16>,
    /// The length of each measurement.
    #[arg(long, value_name = "S", value_parser = seconds, global = true)]
    seconds: Option<f64>,
    /// Measure the build in this folder instead of the one that this program belongs to.
    #[arg(long, value_name = "FOLDER", global = true)]
    built: Option<PathBuf>,
}

impl Options {
    /// The programs of the build that is measured.
    ///
    /// # Errors
    /// They are not there.
    pub(crate) fn programs(&self) -> anyhow::Result<Programs> {
        Programs::find(self.built.as_deref())
    }

    /// For suites that count instructions of an emulated CPU.
    ///
    /// # Errors
    /// A stranger was asked for, whom the count would not show.
    pub(crate) fn without_a_stranger(&self) -> anyhow::Result<()> {
        let why =
            "--stranger: this suite counts instructions of an emulated CPU, which nobody else uses";
        match self.stranger {
            true => Err(fail(Exit::Usage, why)),
            false => Ok(()),
        }
    }

    /// What was asked for. Where nothing was said, `rounds` and `seconds` give the defaults of a full run and of a short one.
    pub(crate) fn wish(&self, rounds: [usize; 2], seconds: [f64; 2]) -> Wish {
        let usual = usize::from(self.quick);
        Wish {
            quick: self.quick,
            rest: self.rest,
            stranger: self.stranger,
            only: self.only.clone(),
            rounds: self.rounds.map_or(rounds[usual], usize::from),
            seconds: self.seconds.unwrap_or(seconds[usual]),
        }
    }
}

/// The length of a measurement.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.2..=3600.0).contains(&value) => Ok(value),
        _ => Err("a number of seconds from 0.2 to 3600".to_owned()),
    }
}

/// A size with binary units: `512`, `64k`, `128KiB`, `10G`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    memlane_core::size::parse(text).map_err(|error| format!("{text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_bounds() {
        assert!(seconds("0.5").is_ok());
        assert!(seconds("0").is_err() && seconds("-1").is_err() && seconds("NaN").is_err());
    }
}
