//! The flags of every suite.

use std::path::PathBuf;

use super::plan::Wish;
use super::programs::Programs;
use crate::exit::{Exit, fail};

/// How many times the usual number of rounds is added where those rounds lie on both sides of an aim. It is settled
/// beforehand: whoever measures until the median pleases reaches every aim.
const MORE: usize = 2;

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
    /// How often each figure is taken [default: by the suite, and three times that where an aim needs it].
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
        let usual = rounds[usize::from(self.quick)];
        Wish {
            quick: self.quick,
            rest: self.rest,
            stranger: self.stranger,
            only: self.only.clone(),
            rounds: self.rounds.map_or(usual, usize::from),
            more_rounds: self.rounds.map_or(MORE * usual, |_| 0),
            seconds: self.seconds.unwrap_or(seconds[usize::from(self.quick)]),
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
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_number_of_rounds_that_was_given_holds_for_all_rows() {
        let rounds = |words: &str| {
            let line = Line::parse_from(words.split(' '));
            let wish = line.options.wish([5, 3], [2.0, 1.0]);
            (wish.rounds, wish.more_rounds)
        };
        assert_eq!(rounds("bench"), (5, 10));
        assert_eq!(rounds("bench --quick"), (3, 6));
        assert_eq!(rounds("bench --quick --rounds 4"), (4, 0));
    }

    #[test]
    fn seconds_have_bounds() {
        assert!(seconds("0.5").is_ok());
        assert!(seconds("0").is_err() && seconds("-1").is_err() && seconds("NaN").is_err());
    }
}
