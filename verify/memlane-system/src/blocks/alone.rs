//! A server and its mappings on one machine, without namespaces: for tests that need no cable.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::{memlane, must};
use crate::harness::{Running, TempDir, free_port};

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(20);

/// A folder of volumes and a server of its own name. All ends when this is dropped.
#[derive(Debug)]
pub struct Alone {
    dir: TempDir,
    name: String,
    port: u16,
    server: Option<Running>,
}

impl Alone {
    /// Nothing is served yet: see [`Alone::serve`].
    ///
    /// # Panics
    /// If there can be no folder.
    pub fn new(label: &str) -> Alone {
        Alone::of(TempDir::new(label), label)
    }

    /// The same, in memory: all its files lie in a tmpfs.
    ///
    /// # Panics
    /// If there can be no folder.
    pub fn in_memory(label: &str) -> Alone {
        Alone::of(TempDir::below(Path::new("/dev/shm"), label), label)
    }

    fn of(dir: TempDir, label: &str) -> Alone {
        std::fs::create_dir_all(dir.path().join("root")).expect("the root");
        Alone {
            name: format!("{label}-{}", std::process::id()),
            port: free_port(),
            dir,
            server: None,
        }
    }

    /// A folder for anything.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The folder that is served.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// How `memlane vol --server` calls the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A thin file for a volume.
    ///
    /// # Panics
    /// If it can't be made.
    pub fn volume(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.root().join(name);
        let file = std::fs::File::create(&path).expect("the file");
        file.set_len(bytes).expect("its size");
        path
    }

    /// Starts the server, at the same places each time. It lends nothing unless `more` says so: what its clients read and write goes
    /// through it.
    ///
    /// # Panics
    /// If it does not start.
    pub fn serve(&mut self, more: &[&str]) {
        let mut command = Command::new(memlane());
        command.args(["serve", "--name", &self.name, "--root"]);
        command.arg(self.root());
        command.args(["--listen", &self.local()]);
        command.args(["--listen", &format!("tcp://{}", self.tcp())]);
        if !more.contains(&"--lend") {
            command.args(["--lend", "never"]);
        }
        let mut server = Running::start({
            command.args(more);
            command
        });
        let begin = Instant::now();
        while !server.stderr().contains("serving") {
            let waits = server.is_running() && begin.elapsed() < LIMIT;
            assert!(waits, "{}", server.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server = Some(server);
    }

    /// Ends the server as its user does.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn end(&mut self) {
        if let Some(server) = self.server.take() {
            server.signal("TERM");
            let outcome = server.finish(LIMIT);
            assert!(outcome.is_ok(), "{}", outcome.report());
        }
    }

    /// Kills the server (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            drop(server.stop());
        }
    }

    /// The server's TCP address.
    pub fn tcp(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The server's place on this machine.
    pub fn local(&self) -> String {
        format!("local:{}", self.name)
    }

    /// A verb of `memlane`.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn memlane(&self, args: &[&str]) -> Output {
        let mut command = Command::new(memlane());
        command.args(args).output().expect("the command")
    }

    /// What `vol ls --json` says of a volume that this server has given out.
    ///
    /// # Panics
    /// If it says nothing.
    pub fn served(&self, volume: &str) -> serde_json::Value {
        let said = self.memlane(&["vol", "ls", "--json"]);
        let document: serde_json::Value =
            serde_json::from_slice(&said.stdout).expect("a document of volumes");
        let served = document["served"].as_array().expect("a list");
        // Other tests' servers are in the same list: sessions begin with the server's name.
        let ours = |one: &&serde_json::Value| {
            let by = one["opened_by"].as_array().into_iter().flatten();
            let mut by = by.filter_map(serde_json::Value::as_str);
            one["volume"] == volume && by.any(|who| who.starts_with(&self.name))
        };
        served.iter().find(ours).cloned().unwrap_or_default()
    }

    /// Maps `volume` of the server at `at` (several, with commas: each is a path) as an NBD export on a unix socket.
    ///
    /// # Panics
    /// If it can't be mapped.
    pub fn nbd(&self, session: &str, at: &str, volume: &str, more: &[&str]) -> Mapping {
        let socket = self.dir.path().join(format!("{session}.sock"));
        let frontend = format!("nbd:unix:{}", socket.display());
        self.map(session, at, volume, &frontend, more)
    }

    /// Maps `volume` as a file, by FUSE.
    ///
    /// # Panics
    /// If it can't be mapped.
    pub fn fuse(&self, session: &str, at: &str, volume: &str, more: &[&str]) -> Mapping {
        let path = self.dir.path().join(format!("{session}.fuse"));
        let frontend = format!("fuse:{}", path.display());
        let mut mapping = self.map(session, at, volume, &frontend, more);
        mapping.mount = Some(path);
        mapping
    }

    /// Maps `volume` with a frontend of its own.
    ///
    /// # Panics
    /// If it can't be mapped.
    pub fn map(
        &self,
        session: &str,
        at: &str,
        volume: &str,
        frontend: &str,
        more: &[&str],
    ) -> Mapping {
        let session = format!("{}-{session}", self.name);
        let mut command = Command::new(memlane());
        command.args([
            "map",
            "--foreground",
            "--session",
            &session,
            "--as",
            frontend,
        ]);
        command.args(more).args([at, volume]);
        Mapping::start(command, session)
    }

    /// Maps a file of this machine, without a server.
    ///
    /// # Panics
    /// If it can't be mapped.
    pub fn direct(&self, file: &Path, frontend: &str, more: &[&str]) -> Mapping {
        let mut command = Command::new(memlane());
        command.args(["map", "--foreground", "--as", frontend]);
        command.args(more).arg(format!("file:{}", file.display()));
        let mut mapping = Mapping::start(command, String::new());
        mapping.mount = frontend.strip_prefix("fuse:").map(PathBuf::from);
        mapping
    }
}

/// A mapped volume. Killed when dropped, and then what it has mounted is taken away.
#[derive(Debug)]
pub struct Mapping {
    shown: String,
    session: String,
    running: Option<Running>,
    mount: Option<PathBuf>,
}

impl Mapping {
    fn start(command: Command, session: String) -> Mapping {
        let mut running = Running::start(command);
        let begin = Instant::now();
        while !running.stdout().ends_with('\n') {
            let waits = running.is_running() && begin.elapsed() < LIMIT;
            assert!(waits, "{}", running.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        Mapping {
            shown: running.stdout().trim().to_owned(),
            running: Some(running),
            session,
            mount: None,
        }
    }

    /// What to give to a program: a device, a file, a URI.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The process behind it.
    ///
    /// # Panics
    /// If it was ended.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("it runs").pid()
    }

    /// The session's name.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// What `session show --json` says.
    ///
    /// # Panics
    /// If it says nothing.
    pub fn show(&self) -> serde_json::Value {
        let mut command = Command::new(memlane());
        command.args(["session", "show", &self.session, "--json"]);
        serde_json::from_str(&must(command)).expect("a document")
    }

    /// Waits until `session show` is as `ready` wants it.
    ///
    /// # Panics
    /// With the document, if it never is.
    pub fn wait_until(&self, what: &str, ready: impl Fn(&serde_json::Value) -> bool) {
        let begin = Instant::now();
        while !ready(&self.show()) {
            assert!(begin.elapsed() < LIMIT, "{what}: {:#}", self.show());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until this many paths are up.
    ///
    /// # Panics
    /// If they never are.
    pub fn wait_for_paths(&self, count: usize) {
        self.wait_until("paths", |session| {
            let paths = session["paths"].as_array().into_iter().flatten();
            paths.filter(|path| path["state"] == "connected").count() == count
        });
    }

    /// Waits until the volume is open, and has been opened again where it was lost.
    ///
    /// # Panics
    /// If it never is.
    pub fn wait_until_open(&self) {
        self.wait_until("open", |session| {
            let mut volumes = session["volumes"].as_array().into_iter().flatten();
            volumes.all(|volume| volume["state"] == "ok")
        });
    }

    /// Ends it as its user does.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn end(mut self) {
        let running = self.running.take().expect("it runs");
        running.signal("TERM");
        let outcome = running.finish(LIMIT);
        assert!(outcome.is_ok(), "{}", outcome.report());
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            drop(running.stop());
        }
        if let Some(path) = self.mount.take() {
            let mut umount = Command::new("umount");
            let _ = umount.arg("-l").arg(path).output();
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.stop();
    }
}
