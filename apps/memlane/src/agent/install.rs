//! `memlane agent install`: the service, and the device by which container engines put memlane into containers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use memlane_socket::config::DEFAULT_DOMAIN;

use super::directory;
use crate::cli::out;
use crate::inject::{Edits, Place, cdi, tree, units};
use crate::run;

/// The unit, as packages install it.
const UNIT: &str = include_str!("../../../../packaging/systemd/memlane-agent.service");
/// Its name.
const UNIT_NAME: &str = "memlane-agent.service";
/// Where packages install units.
const PACKAGED: &[&str] = &["/usr/lib/systemd/system", "/usr/local/lib/systemd/system"];

/// Set this host up for containers: the agent's service, and a device for container engines.
///
/// Writes the unit memlane-agent.service, unless a package has brought it; the CDI file by which docker, podman and containerd
/// know the device memlane.dev/lane=on; and the library, laid out so that every image finds it, with glibc or musl. Run it again
/// after an upgrade of memlane.
#[derive(clap::Args, Debug)]
pub(crate) struct Install {
    /// The domain of containers that get the device
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DOMAIN, value_parser = directory)]
    domain: PathBuf,
    /// Put everything below this folder, for packages and tests
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    destdir: PathBuf,
    /// Write no service: the agent runs in a container
    #[arg(long)]
    no_unit: bool,
}

pub(crate) fn run(args: &Install) -> anyhow::Result<()> {
    let below = |path: &str| args.destdir.join(path.trim_start_matches('/'));
    let library = run::library::find(std::env::var_os("MEMLANE_PRELOAD"))?;
    let laid_out = below(units::TREE);
    tree::lay_out(&library, &laid_out)
        .with_context(|| format!("cannot lay out the library in {}", laid_out.display()))?;
    let edits = Edits::new(Place::Container, Path::new(units::TREE), &args.domain);
    put(&below("/etc/cdi/memlane.json"), &cdi::text(&edits)?)?;
    if args.no_unit {
        return Ok(());
    }
    let packaged = PACKAGED
        .iter()
        .find(|folder| below(folder).join(UNIT_NAME).exists());
    match packaged {
        Some(folder) => out::print(&format!("{folder}/{UNIT_NAME} is there\n"))?,
        None => {
            let program =
                std::env::current_exe().context("cannot find out where this program is")?;
            let program = program.display().to_string();
            let unit = UNIT.replace("/usr/bin/memlane", &program);
            put(&below("/etc/systemd/system").join(UNIT_NAME), &unit)?;
        }
    }
    out::print(
        "Start the agent: systemctl daemon-reload && systemctl enable --now memlane-agent\n\
         Then: docker run --device memlane.dev/lane=on IMAGE, or the same with podman\n",
    )?;
    Ok(())
}

fn put(file: &Path, text: &str) -> anyhow::Result<()> {
    let named = || file.display().to_string();
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(named)?;
    }
    fs::write(file, text).with_context(named)?;
    out::print(&format!("wrote {}\n", file.display()))
}
