//! The programs of this build: this one, whose peers it starts, and the `memlane` command beside it.

use std::path::PathBuf;

use anyhow::Context as _;

/// Where they are.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// This program.
    pub(crate) bench: PathBuf,
    /// The `memlane` command.
    pub(crate) memlane: PathBuf,
}

impl Programs {
    /// Looks for the command in the folder of this program.
    ///
    /// # Errors
    /// The command is not there: it has not been built.
    pub(crate) fn find() -> anyhow::Result<Programs> {
        let bench = std::env::current_exe().context("where is this program?")?;
        let memlane = bench.with_file_name("memlane");
        anyhow::ensure!(
            memlane.is_file(),
            "{} is not there: `./dev build` makes it",
            memlane.display()
        );
        Ok(Programs { bench, memlane })
    }

    /// For tests that start neither.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Programs {
        Programs {
            bench: "/nowhere/memlane-bench".into(),
            memlane: "/nowhere/memlane".into(),
        }
    }
}
