//! Verbs that are programs of their own: they bring much that a machine without Kubernetes does not need.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::exit::{Exit, fail};

/// Put memlane into the pods of a Kubernetes cluster: the admission webhook.
///
/// Executes the program memlane-webhook, which the image for Kubernetes and the package memlane-kubernetes have. memlane webhook
/// --help shows its own flags.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Webhook {
    /// Arguments of memlane-webhook
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

/// Bring lanes and volumes to the pods of a Kubernetes cluster: the CSI driver.
///
/// Executes the program memlane-csi, which the image for Kubernetes and the package memlane-kubernetes have. memlane csi --help
/// shows its own flags.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Csi {
    /// Arguments of memlane-csi
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

impl Webhook {
    pub(crate) fn run(&self) -> anyhow::Error {
        become_program("memlane-webhook", &self.arguments)
    }
}

impl Csi {
    pub(crate) fn run(&self) -> anyhow::Error {
        become_program("memlane-csi", &self.arguments)
    }
}

/// Replaces this process by a program that lies beside it. Returns only an error.
fn become_program(name: &str, arguments: &[OsString]) -> anyhow::Error {
    let exe = match std::env::current_exe() {
        Ok(exe) => exe,
        Err(e) => return anyhow::Error::new(e).context("cannot find out where this program is"),
    };
    let places = places(&exe, name);
    let Some(program) = places.iter().find(|place| place.is_file()) else {
        let looked: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        let message = format!(
            "{name} is not installed; looked for {}. The image for Kubernetes and the package memlane-kubernetes \
             have it, or build it: cargo build --release -p {name}",
            looked.join(", ")
        );
        return fail(Exit::Unsupported, message);
    };
    let failed = Command::new(program).args(arguments).exec();
    anyhow::Error::new(failed).context(format!("cannot execute {}", program.display()))
}

/// In the same folder, or where packages put programs that are not for a shell.
fn places(exe: &Path, name: &str) -> Vec<PathBuf> {
    let folder = exe.parent();
    let prefix = folder.and_then(Path::parent);
    let beside = folder.map(|folder| folder.join(name));
    let hidden = prefix.map(|prefix| prefix.join("libexec/memlane").join(name));
    beside.into_iter().chain(hidden).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_lies_beside_this_one_or_in_libexec() {
        let places = places(Path::new("/usr/bin/memlane"), "memlane-csi");
        let expected = ["/usr/bin/memlane-csi", "/usr/libexec/memlane/memlane-csi"];
        assert_eq!(places, expected.map(PathBuf::from));
    }
}
