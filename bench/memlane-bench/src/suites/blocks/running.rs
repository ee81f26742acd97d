//! A system that runs, and what a load generator is given.

use std::path::{Path, PathBuf};

use super::volume::OpenVolume;
use crate::runner::proc::{Scratch, Service};
use crate::runner::programs::Programs;

/// What is the same for all of them.
pub(super) struct Bench {
    pub(super) programs: Programs,
    /// For sockets and files.
    pub(super) scratch: Scratch,
    /// The length of each measurement.
    pub(super) seconds: f64,
    /// Bytes of each volume.
    pub(super) size: u64,
    /// Processor seconds that fio takes to begin and end.
    pub(super) fio_cpu: f64,
}

/// What a load generator is given.
pub(in crate::suites) enum Target {
    /// fio's NBD engine.
    Nbd(String),
    /// fio on a file, without the page cache.
    File(PathBuf),
    /// Our own generator, over memlane's API.
    Api {
        /// The server's address, as `map` takes it.
        at: String,
        /// Memory that the server shares with other machines, if it goes by that.
        device: Option<PathBuf>,
    },
    /// fio with memlane's engine: the same API.
    Engine {
        /// libmemlane_fio.so
        library: PathBuf,
        /// The server's address.
        at: String,
        /// What it is called there.
        volume: String,
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

impl Running {
    pub(super) fn new(target: Target, services: Vec<Service>) -> Running {
        Running {
            target,
            services,
            pid_file: None,
            disk: None,
            held: None,
        }
    }

    /// Both, as one system: `self` has what `far` serves, gets the load, and ends first.
    pub(super) fn in_front_of(mut self, mut far: Running) -> Running {
        let near = std::mem::replace(&mut self.services, std::mem::take(&mut far.services));
        self.services.extend(near);
        self.disk = far.disk.take();
        self
    }
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

/// A file in memory, thin.
pub(super) fn file(bench: &Bench) -> anyhow::Result<Disk> {
    let dir = Path::new("/dev/shm");
    let name = bench.scratch.name("disk");
    let name = name
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let path = match dir.is_dir() {
        true => dir.join(format!("memlane-bench-{}-{name}", std::process::id())),
        false => bench.scratch.path().join(name),
    };
    let disk = Disk(path);
    std::fs::File::create(&disk.0)?.set_len(bench.size)?;
    Ok(disk)
}

/// The name of a volume in the server's memory.
pub(super) fn volume(size: u64) -> String {
    format!("mem:{size}")
}

/// The address of an NBD export at a unix socket.
pub(super) fn uri(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}
