//! The programs of the build that is measured: this one, or another that `--built` names. Whatever only loads is always
//! this program's, so that two builds get the same load.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Where they are.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// This program, whose peers load what is measured.
    pub(crate) bench: PathBuf,
    /// The `memlane-bench` of the build, whose peers are measured: they have memlane's lanes in them.
    pub(crate) lanes: PathBuf,
    /// The `memlane` command.
    pub(crate) memlane: PathBuf,
}

impl Programs {
    /// Looks into the folder `built`, or into that of this program.
    ///
    /// # Errors
    /// The command is not there: it has not been built.
    pub(crate) fn find(built: Option<&Path>) -> anyhow::Result<Programs> {
        let bench = std::env::current_exe().context("where is this program?")?;
        let lanes = built.map_or_else(|| bench.clone(), |folder| folder.join("memlane-bench"));
        let memlane = lanes.with_file_name("memlane");
        anyhow::ensure!(
            memlane.is_file(),
            "{} is not there: `./dev build` makes it",
            memlane.display()
        );
        Ok(Programs {
            bench,
            lanes,
            memlane,
        })
    }

    /// For tests that start neither.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Programs {
        Programs {
            bench: "/nowhere/memlane-bench".into(),
            lanes: "/nowhere/memlane-bench".into(),
            memlane: "/nowhere/memlane".into(),
        }
    }
}
