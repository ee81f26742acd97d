//! `--device`: memory that this machine shares with others, and who takes part in it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use memlane_agent::across::participants::{Identity, Machine, machines};
use memlane_agent::across::region::{Region, Speed};
use memlane_agent::across::{extents, participants};
use memlane_agent::server::Agent;
use serde::{Deserialize, Serialize};

use crate::cli::device::{self, Device, NAMELESS, TRUST, slow};
use crate::cli::out;

fn open(device: &Device) -> anyhow::Result<Region> {
    Region::open(&device.path()?).map_err(device::told)
}

/// What an agent tells of its region.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct ToldRegion {
    /// Its file.
    pub(crate) path: PathBuf,
    /// Bytes.
    pub(crate) len: u64,
    /// How many times longer reads take than those of ordinary memory, if it is mapped uncached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uncached: Option<u32>,
}

/// Has the agent take part in the region of a device. Where the boot's name is not the kernel's, it lies in `boot_id`.
pub(super) fn share(
    agent: &mut Agent,
    domain: &Path,
    device: &Device,
    boot_id: Option<&Path>,
) -> anyhow::Result<ToldRegion> {
    let region = open(device)?;
    let told = ToldRegion {
        path: region.path().to_owned(),
        len: region.len() as u64,
        uncached: match region.speed() {
            Speed::Cached => None,
            Speed::Uncached(times) => Some(times),
        },
    };
    let identity = Identity::here(domain, boot_id).context(NAMELESS)?;
    agent.share(domain, region, identity)?;
    out::print(&line(domain, &told))?;
    if let Some(times) = told.uncached {
        out::warn(&slow(times));
    }
    Ok(told)
}

fn line(domain: &Path, told: &ToldRegion) -> String {
    format!(
        "{} shares {} ({} MiB) with other machines: {TRUST}\n",
        domain.display(),
        told.path.display(),
        told.len >> 20
    )
}

/// Free the place of a machine that has left a region for good, and the memory that it had.
///
/// A machine that is merely paused may wake and write, so its silence alone frees nothing. Make sure that it is gone: deleted,
/// or booted without the region.
#[derive(clap::Args, Debug)]
pub(super) struct Forget {
    /// The memory: ivshmem:PATH or ivshmem:auto
    #[arg(long, value_name = "DEVICE")]
    device: Device,
    /// The machine, by its name or its place, as memlane agent machines prints them
    machine: String,
}

/// Print the machines that have a place in a region.
#[derive(clap::Args, Debug)]
pub(super) struct Machines {
    /// The memory: ivshmem:PATH or ivshmem:auto
    #[arg(long, value_name = "DEVICE")]
    device: Device,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// An agent shows ten times within this time that it lives.
const LOOK: Duration = Duration::from_secs(1);

pub(super) fn forget(args: &Forget) -> anyhow::Result<()> {
    let region = open(&args.device)?;
    let is_it = |(machine, _): &(Machine, bool)| {
        machine.name == args.machine || machine.place.to_string() == args.machine
    };
    let found: Vec<(Machine, bool)> = look(&region).into_iter().filter(is_it).collect();
    match found.as_slice() {
        [] => anyhow::bail!("no machine {:?} has a place in the region", args.machine),
        [(machine, true)] => {
            anyhow::bail!("an agent runs on {}: stop it first", machine.name)
        }
        [(machine, false)] => {
            extents::forget(&region, machine.place);
            participants::forget(&region, machine.place);
            Ok(())
        }
        _ => anyhow::bail!(
            "several machines have the name {:?}: name its place",
            args.machine
        ),
    }
}

/// One machine, as `memlane agent machines --json` prints it.
#[derive(Serialize)]
struct Shown<'a> {
    place: usize,
    name: &'a str,
    id: String,
    is_alive: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    machines: Vec<Shown<'a>>,
}

pub(super) fn print(args: &Machines) -> anyhow::Result<()> {
    let machines = look(&open(&args.device)?);
    if args.json {
        let machines = machines.iter().map(|(machine, is_alive)| Shown {
            place: machine.place,
            name: &machine.name,
            id: format!("{:032x}", machine.machine),
            is_alive: *is_alive,
        });
        let document = Document {
            schema: "memlane.machines/1",
            machines: machines.collect(),
        };
        return out::print(&out::json(&document)?);
    }
    let mut text = String::from("Place  State   Machine\n");
    for (machine, is_alive) in &machines {
        let state = if *is_alive { "alive" } else { "silent" };
        text += &format!("{:<6} {state:<7} {}\n", machine.place, machine.name);
    }
    out::print(&text)
}

/// The machines of a region, and whether the agent of each runs.
fn look(region: &Region) -> Vec<(Machine, bool)> {
    let before = machines(region);
    std::thread::sleep(LOOK);
    let after = machines(region);
    let beats = |machine: &Machine| {
        let was = before.iter().find(|was| was.place == machine.place);
        was.is_none_or(|was| was.heartbeat != machine.heartbeat)
    };
    let with_state = |machine: Machine| {
        let is_alive = beats(&machine);
        (machine, is_alive)
    };
    after.into_iter().map(with_state).collect()
}
