//! What the tests of cables share: two machines, a server on one of them with the volume `disk`, and its mapping on
//! the other.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use super::fio::Verdict;
use super::machines::Machines;
use super::volumes::{Mapped, Serving};
use super::{has, skip};

/// How long fio may take to end, once it was told to.
pub const LIMIT: Duration = Duration::from_secs(90);
/// Bytes of the volume.
const SIZE: u64 = 64 << 20;

/// Two machines and a server. Fields are dropped in this order: the server before its machine.
#[derive(Debug)]
pub struct Scene {
    /// `memlane serve` on the server's machine; none while it is killed.
    server: RefCell<Option<Serving>>,
    /// The file behind the volume `disk`.
    pub file: PathBuf,
    /// The machines and their cables.
    pub machines: Machines,
    test: &'static str,
}

impl Scene {
    /// Machines with `cables` cables, and a server with `options`. `None`, and a word on standard error, if this host
    /// has no fio or permits no network namespaces.
    pub fn new(test: &'static str, cables: usize, options: &[&str]) -> Option<Scene> {
        if !has("fio") {
            skip(test, "no fio: apt-get install fio");
            return None;
        }
        // Namespaces come with no package, so this skip is never an error.
        let machines = Machines::new(test, cables)
            .map_err(|why| eprintln!("SKIPPED {test}: {why}"))
            .ok()?;
        let file = Serving::make_volume(&machines, "disk", SIZE);
        let server = Serving::start(&machines, options);
        Some(Scene {
            server: RefCell::new(Some(server)),
            file,
            machines,
            test,
        })
    }

    /// Maps the volume on the client's machine, and waits until each cable carries a path.
    pub fn map(&self, options: &[&str]) -> Mapped<'_> {
        let mapped = Mapped::new(&self.machines, "disk", options);
        mapped.wait_for_paths(self.machines.cables());
        mapped
    }

    /// Kills the server. Its memory is lost, its files are not.
    pub fn kill_server(&self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
    }

    /// Starts another server, with default options.
    pub fn start_server(&self) {
        let server = Serving::start(&self.machines, &[]);
        self.server.replace(Some(server));
    }

    /// Prints what fio has found.
    pub fn report(&self, verdict: &Verdict) {
        println!(
            "{}: {} requests, the longest took {:.0} ms",
            self.test,
            verdict.requests,
            verdict.longest.as_secs_f64() * 1000.0
        );
    }
}

/// Sleeps.
pub fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}
