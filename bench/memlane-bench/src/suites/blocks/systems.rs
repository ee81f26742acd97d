//! Who is measured, and what a load generator is given.

use std::path::{Path, PathBuf};

use super::volume::OpenVolume;
use super::{ours, peers};
use crate::runner::proc::{Scratch, Service, find_program};
use crate::runner::programs::Programs;

/// What is the same for all of them.
pub(super) struct Bench {
    pub(super) programs: Programs,
    /// For sockets and files.
    pub(super) scratch: Scratch,
    /// Bytes of each volume.
    pub(super) size: u64,
    /// Processor seconds that fio takes to begin and end.
    pub(super) fio_cpu: f64,
}

/// What a load generator is given.
pub(super) enum Target {
    /// fio's NBD engine.
    Nbd(String),
    /// fio on a file, without the page cache.
    File(PathBuf),
    /// Our own generator, over memlane's API: the server's address, as `map` takes it.
    Api(String),
    /// fio with memlane's engine: the same API.
    Engine {
        /// libmemlane_fio.so
        library: PathBuf,
        /// The server's address.
        at: String,
    },
}

/// A system that runs.
pub(super) struct Running {
    /// Where the load goes.
    pub(super) target: Target,
    /// The last one is ended first.
    pub(super) services: Vec<Service>,
    /// Names a process that is no child of ours any more.
    pub(super) pid_file: Option<PathBuf>,
    /// What they keep it in.
    pub(super) disk: Option<Disk>,
    /// Keeps the volume from going with its last user, between one load and the next.
    pub(super) held: Option<OpenVolume>,
}

/// A file, for as long as it is needed.
pub(super) struct Disk(pub(super) PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It says goodbye to a server that is still there.
        drop(self.held.take());
        while let Some(service) = self.services.pop() {
            drop(service);
        }
        drop(self.disk.take());
    }
}

/// With what a system is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tool {
    /// fio, whatever the engine.
    Fio,
    /// `memlane-bench peer load`.
    Own,
}

/// Something that serves blocks.
#[derive(Clone, Copy)]
pub(super) struct System {
    /// For `--only`.
    pub(super) id: &'static str,
    /// For people.
    pub(super) about: &'static str,
    /// Programs of others that it takes, beside the generator.
    pub(super) needs: &'static [&'static str],
    pub(super) tool: Tool,
    /// Also measured with more and more jobs?
    pub(super) in_sweep: bool,
    /// Starts it.
    pub(super) start: fn(&Bench) -> anyhow::Result<Running>,
}

type Start = fn(&Bench) -> anyhow::Result<Running>;

const fn own(id: &'static str, about: &'static str, start: Start) -> System {
    System {
        id,
        about,
        needs: &[],
        tool: Tool::Own,
        in_sweep: false,
        start,
    }
}

const fn by_fio(
    id: &'static str,
    about: &'static str,
    needs: &'static [&'static str],
    in_sweep: bool,
    start: Start,
) -> System {
    System {
        id,
        about,
        needs,
        tool: Tool::Fio,
        in_sweep,
        start,
    }
}

const NBDKIT: &[&str] = &["nbdkit"];
const QSD: &[&str] = &["qemu-storage-daemon"];

const ALL: [System; 15] = [
    by_fio(
        "fio-local",
        "memlane, API, loopback device",
        &[],
        true,
        |b| ours::engine(b, true),
    ),
    by_fio("fio-tcp", "memlane, API, TCP device", &[], true, |b| {
        ours::engine(b, false)
    }),
    own(
        "api-local",
        "memlane, API, loopback device, own generator",
        |b| ours::api(b, true),
    ),
    own("api-tcp", "memlane, API, TCP device, own generator", |b| {
        ours::api(b, false)
    }),
    by_fio(
        "nbd-local",
        "memlane, NBD export, loopback device",
        &[],
        true,
        |b| ours::nbd(b, true),
    ),
    by_fio(
        "nbd-tcp",
        "memlane, NBD export, TCP device",
        &[],
        false,
        |b| ours::nbd(b, false),
    ),
    by_fio(
        "fuse",
        "memlane, FUSE file, loopback device",
        &[],
        false,
        ours::fuse,
    ),
    by_fio("nbdkit", "nbdkit memory, unix socket", NBDKIT, true, |b| {
        peers::nbdkit_memory(b, false)
    }),
    by_fio("nbdkit-tcp", "nbdkit memory, TCP", NBDKIT, false, |b| {
        peers::nbdkit_memory(b, true)
    }),
    by_fio(
        "nbdkit-file",
        "nbdkit file in memory, unix socket",
        NBDKIT,
        false,
        |b| peers::nbdkit_file(b, false),
    ),
    by_fio(
        "nbdkit-file-tcp",
        "nbdkit file in memory, TCP",
        NBDKIT,
        false,
        |b| peers::nbdkit_file(b, true),
    ),
    by_fio(
        "nbd-server",
        "nbd-server, file in memory, unix socket",
        &["nbd-server"],
        false,
        |b| peers::nbd_server(b, false),
    ),
    by_fio(
        "nbd-server-tcp",
        "nbd-server, file in memory, TCP",
        &["nbd-server"],
        false,
        |b| peers::nbd_server(b, true),
    ),
    by_fio(
        "qsd",
        "qemu-storage-daemon, file in memory, unix socket",
        QSD,
        true,
        |b| peers::qsd(b, false),
    ),
    by_fio(
        "qsd-tcp",
        "qemu-storage-daemon, file in memory, TCP",
        QSD,
        false,
        |b| peers::qsd(b, true),
    ),
];

/// All of them, ours first.
pub(super) fn all() -> &'static [System] {
    &ALL
}

/// Peers that a short run leaves out: the same programs are in it, over a unix socket.
const NOT_QUICK: [&str; 3] = ["nbdkit-file-tcp", "nbd-server-tcp", "qsd-tcp"];

/// Belongs to a short run?
pub(super) fn is_quick(system: &System) -> bool {
    !NOT_QUICK.contains(&system.id)
}

/// What an id means.
pub(super) fn known(id: &str) -> Option<&'static System> {
    ALL.iter().find(|system| system.id == id)
}

/// Is it one of memlane's own?
pub(super) fn is_ours(id: &str) -> bool {
    known(id).is_some_and(|system| system.about.starts_with("memlane"))
}

/// Why a system cannot be measured here, if so: what it lacks, and who brings that.
pub(super) fn lacks(system: &System, bench: &Bench) -> Option<String> {
    let fio: &[&str] = match system.tool {
        Tool::Fio => &["fio"],
        Tool::Own => &[],
    };
    let mut needed = system.needs.iter().chain(fio);
    if let Some(name) = needed.find(|name| find_program(name).is_none()) {
        return Some(format!("not installed: {name} ({})", package(name)));
    }
    match system.id {
        "fio-local" | "fio-tcp" => ours::no_engine(&ours::library(bench)),
        _ => None,
    }
}

fn package(program: &str) -> String {
    let package = match program {
        "qemu-storage-daemon" => "qemu-system-common",
        name => name,
    };
    format!("apt-get install {package}")
}

/// The name of a volume in the server's memory.
pub(super) fn volume(size: u64) -> String {
    format!("mem:{size}")
}

pub(super) fn uri(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_have_names_of_their_own_and_both_sides_are_there() {
        for (index, system) in ALL.iter().enumerate() {
            let twice = ALL[..index].iter().any(|other| other.id == system.id);
            assert!(!twice, "{}", system.id);
        }
        let ours = ALL.iter().filter(|system| is_ours(system.id)).count();
        assert_eq!((ours, ALL.len() - ours), (7, 8));
        assert!(NOT_QUICK.iter().all(|id| known(id).is_some()));
        // The sweep compares, too.
        let swept = |ours| {
            let mut all = ALL.iter().filter(|system| system.in_sweep);
            all.any(|system| is_ours(system.id) == ours)
        };
        assert!(swept(true) && swept(false));
    }

    #[test]
    fn what_is_missing_is_named_with_the_package_that_brings_it() {
        let bench = Bench {
            programs: Programs::nowhere(),
            scratch: Scratch::new().expect("a folder"),
            size: 1 << 20,
            fio_cpu: 0.0,
        };
        let absent = System {
            needs: &["no-such-program-as-this"],
            tool: Tool::Own,
            ..ALL[0]
        };
        let told = lacks(&absent, &bench).expect("it is not there");
        assert!(
            told.contains("apt-get install no-such-program-as-this"),
            "{told}"
        );
        let engine = System {
            tool: Tool::Own,
            ..ALL[0]
        };
        let told = lacks(&engine, &bench).expect("no library there");
        assert!(told.contains("libmemlane_fio.so"), "{told}");
        assert!(package("qemu-storage-daemon").ends_with("qemu-system-common"));
    }
}
