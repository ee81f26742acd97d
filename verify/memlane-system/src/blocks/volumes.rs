//! A server, and the volumes mapped from it.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::machines::{Machines, Side};
use super::{memlane, must};
use crate::harness::Running;

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(20);

/// `memlane serve` on the server's machine, listening at every cable's end.
#[derive(Debug)]
pub struct Serving {
    running: Running,
}

impl Serving {
    /// Serves `root` below the machines' folder.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(machines: &Machines, more: &[&str]) -> Serving {
        let root = machines.dir().join("root");
        std::fs::create_dir_all(&root).expect("the root");
        let mut command = machines.command(Side::Server, memlane());
        command
            .args(["serve", "--insecure", "--root"])
            .arg(&root)
            .args(more);
        for cable in 0..machines.cables() {
            let at = format!("tcp://{}:1234", machines.address(cable, Side::Server));
            command.args(["--listen", &at]);
        }
        let mut running = Running::start(command);
        let begin = std::time::Instant::now();
        while !running.stderr().contains("serving") {
            let waits = running.is_running() && begin.elapsed() < LIMIT;
            assert!(waits, "{}", running.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        Serving { running }
    }

    /// A thin file for a volume.
    ///
    /// # Panics
    /// If it can't be made.
    pub fn make_volume(machines: &Machines, name: &str, bytes: u64) -> PathBuf {
        let root = machines.dir().join("root");
        std::fs::create_dir_all(&root).expect("the root");
        let path = root.join(name);
        let file = std::fs::File::create(&path).expect("the file");
        file.set_len(bytes).expect("its size");
        path
    }

    /// As a machine whose power fails, as far as processes can.
    pub fn kill(self) {
        drop(self.running.stop());
    }

    /// What it said.
    pub fn stderr(&self) -> String {
        self.running.stderr()
    }
}

/// A volume that is mapped on the client's machine, as an NBD export on a unix socket.
#[derive(Debug)]
pub struct Mapped<'a> {
    machines: &'a Machines,
    volume: String,
    session: String,
    socket: PathBuf,
}

impl Mapped<'_> {
    /// Maps `volume` over all cables.
    ///
    /// # Panics
    /// If it can't be mapped.
    pub fn new<'a>(machines: &'a Machines, volume: &str, more: &[&str]) -> Mapped<'a> {
        let socket = machines.dir().join(format!("{volume}.sock"));
        let servers: Vec<String> = (0..machines.cables())
            .map(|cable| format!("{}:1234", machines.address(cable, Side::Server)))
            .collect();
        let mut command = machines.command(Side::Client, memlane());
        command.args(["map", "--session", "test", "--as"]);
        command
            .arg(format!("nbd:unix:{}", socket.display()))
            .args(more);
        command.arg(servers.join(",")).arg(volume);
        must(command);
        Mapped {
            machines,
            volume: volume.to_owned(),
            session: "test".to_owned(),
            socket,
        }
    }

    /// For NBD clients.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// A verb of `memlane` on the client's machine.
    pub fn verb(&self, args: &[&str]) -> Command {
        let mut command = self.machines.command(Side::Client, memlane());
        command.args(args);
        command
    }

    /// What `session show --json` says.
    ///
    /// # Panics
    /// If it says nothing.
    pub fn session(&self) -> serde_json::Value {
        let text = must(self.verb(&["session", "show", &self.session, "--json"]));
        serde_json::from_str(&text).expect("a document")
    }

    /// How many paths are up.
    pub fn paths_up(&self) -> usize {
        let session = self.session();
        let paths = session["paths"].as_array().expect("paths");
        paths
            .iter()
            .filter(|path| path["state"] == "connected")
            .count()
    }

    /// Waits until this many paths are up.
    ///
    /// # Panics
    /// If they never are.
    pub fn wait_for_paths(&self, count: usize) {
        let begin = std::time::Instant::now();
        while self.paths_up() != count {
            assert!(begin.elapsed() < LIMIT, "{:#}", self.session());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Requests that had to go by another path.
    pub fn failed_over(&self) -> u64 {
        let session = self.session();
        let paths = session["paths"].as_array().expect("paths");
        paths
            .iter()
            .filter_map(|path| path["failed_over"].as_u64())
            .sum()
    }

    /// Ends the mapping.
    ///
    /// # Panics
    /// If it can't be ended.
    pub fn unmap(self) {
        must(self.verb(&["vol", "unmap", &self.volume]));
        assert!(!self.socket.exists(), "the socket is left behind");
    }
}
