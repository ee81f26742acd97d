//! Running programs with and without memlane, under a time limit.

use std::ffi::OsStr;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Set to 1 to run only the plain half of each comparison (for work on the
/// tests themselves). Without it a missing library is a failure.
pub const PLAIN_ONLY: &str = "MEMLANE_TEST_PLAIN_ONLY";

/// How a program is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// As it is: what it then does is what is expected of the other modes.
    Plain,
    /// Under memlane, each connection upgraded as soon as it can be.
    Eager,
    /// Under memlane as a user would run it.
    Auto,
    /// As `Eager`, and bytes go by way of the sender's own buffer (`--mode copy`).
    Copy,
}

impl Mode {
    /// The modes that must be like `Plain`; `Copy` too, which [`crate::cases::compare_copied`] looks at.
    pub const UNDER_MEMLANE: [Mode; 2] = [Mode::Eager, Mode::Auto];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Eager => "eager",
            Mode::Auto => "auto",
            Mode::Copy => "copy",
        }
    }

    /// The settings, as variables.
    fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Mode::Plain => &[],
            Mode::Eager => &[("MEMLANE_UPGRADE", "eager")],
            Mode::Auto => &[("MEMLANE_UPGRADE", "auto")],
            Mode::Copy => &[("MEMLANE_UPGRADE", "eager"), ("MEMLANE_MODE", "copy")],
        }
    }
}

/// True if this run was asked to leave memlane out.
pub fn plain_only() -> bool {
    std::env::var_os(PLAIN_ONLY).is_some_and(|value| value == "1")
}

/// Where the built files are.
#[derive(Clone, Debug)]
pub struct Built {
    /// The `memlane` program, if it has been built.
    pub memlane: Option<PathBuf>,
    /// `libmemlane_preload.so`.
    pub preload: PathBuf,
}

impl Built {
    /// Looks at `MEMLANE_BIN` and `MEMLANE_PRELOAD`, then beside this test's own
    /// target directory, then in the work tree's; release before debug.
    ///
    /// # Panics
    /// If there is no library: tests that can't test must fail.
    pub fn find() -> Built {
        let preload = find_file("MEMLANE_PRELOAD", "libmemlane_preload.so");
        let preload = preload.unwrap_or_else(|| {
            panic!(
                "libmemlane_preload.so not found in {:?}: run `cargo build --release`, \
                 or set MEMLANE_PRELOAD, or {PLAIN_ONLY}=1 to leave memlane out",
                build_dirs()
            )
        });
        Built {
            memlane: find_file("MEMLANE_BIN", "memlane"),
            preload,
        }
    }
}

/// The `memlane-bench` program: `MEMLANE_BENCH`, or where [`Built::find`] looks.
pub fn find_bench() -> Option<PathBuf> {
    find_file("MEMLANE_BENCH", "memlane-bench")
}

/// The `memlane-webhook` program: `MEMLANE_WEBHOOK`, or where [`Built::find`] looks.
pub fn find_webhook() -> Option<PathBuf> {
    find_file("MEMLANE_WEBHOOK", "memlane-webhook")
}

/// The `memlane-csi` program: `MEMLANE_CSI`, or where [`Built::find`] looks.
///
/// # Panics
/// If it is not built.
pub fn find_csi() -> PathBuf {
    find_file("MEMLANE_CSI", "memlane-csi")
        .expect("memlane-csi: run `cargo build --release -p memlane-csi`")
}

fn find_file(variable: &str, name: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        assert!(
            path.is_file(),
            "{variable}={} is not a file",
            path.display()
        );
        return Some(path);
    }
    build_dirs()
        .into_iter()
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// Directories that may hold built files, best first.
fn build_dirs() -> Vec<PathBuf> {
    let mut targets = Vec::new();
    // …/target/debug/deps/differential_fork-0123
    if let Ok(test) = std::env::current_exe()
        && let Some(target) = test.ancestors().nth(3)
    {
        targets.push(target.to_path_buf());
    }
    targets.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let profiles = ["release", "debug"];
    targets
        .iter()
        .flat_map(|dir| profiles.map(|profile| dir.join(profile)))
        .collect()
}

/// A command that runs `program` in `mode`; arguments may be added to it.
/// Variables of memlane in our own environment don't reach it.
pub fn command(mode: Mode, program: impl AsRef<OsStr>) -> Command {
    let mut command = match mode {
        Mode::Plain => Command::new(program.as_ref()),
        _ => under_memlane(&Built::find(), mode, program.as_ref()),
    };
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("MEMLANE_")) {
        if !command.get_envs().any(|(set, _)| set == name) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

fn under_memlane(built: &Built, mode: Mode, program: &OsStr) -> Command {
    if let Some(memlane) = &built.memlane {
        let mut command = Command::new(memlane);
        command.args(["run", "--"]).arg(program);
        command.env("MEMLANE_PRELOAD", &built.preload);
        command.envs(mode.variables().iter().copied());
        return command;
    }
    // The launcher is not built (yet): what it would set.
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", &built.preload)
        .envs(mode.variables().iter().copied());
    command
}

/// What became of a command.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status; after a hang, that of the kill.
    pub status: ExitStatus,
    /// It had to be killed.
    pub hung: bool,
    /// Everything it and its children wrote to standard output.
    pub stdout: String,
    /// Everything it and its children wrote to standard error.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

impl Outcome {
    /// Ended by itself, with code 0.
    pub fn is_ok(&self) -> bool {
        !self.hung && self.status.success()
    }

    /// `exit 3`, `signal 11` or `HUNG after 20 s`.
    pub fn ending(&self) -> String {
        match (self.hung, self.status.code(), self.status.signal()) {
            (true, ..) => format!("HUNG after {} s", self.took.as_secs()),
            (_, Some(code), _) => format!("exit {code}"),
            (_, _, Some(signal)) => format!("signal {signal}"),
            _ => "ended".into(),
        }
    }

    /// All of it, for the message of a failed test.
    pub fn report(&self) -> String {
        format!(
            "{}\n--- stdout\n{}\n--- stderr\n{}\n---",
            self.ending(),
            self.stdout.trim_end(),
            self.stderr.trim_end()
        )
    }
}

/// Runs `command` to its end, or kills it and all its process group at `limit`.
pub fn run(command: Command, limit: Duration) -> Outcome {
    Running::start(command).finish(limit)
}

/// A program that has been started, in a process group of its own. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    dir: TempDir,
    started: Instant,
    name: String,
}

impl Running {
    /// Starts `command`; its output is collected in files.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start(mut command: Command) -> Running {
        let dir = TempDir::new("run");
        let create = |name| File::create(dir.path().join(name)).expect("temporary file");
        command
            .stdout(create("stdout"))
            .stderr(create("stderr"))
            .process_group(0);
        let name = format!("{command:?}");
        let started = Instant::now();
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        Running {
            child,
            dir,
            started,
            name,
        }
    }

    /// Its process id (that of the launcher's own process, which becomes the program).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True until it has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        read_lossy(&self.dir.path().join("stdout"))
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        read_lossy(&self.dir.path().join("stderr"))
    }

    /// Waits until `ready` says so.
    ///
    /// # Panics
    /// With all its output, if it ends first or is not ready at `limit`.
    pub fn wait_until(&mut self, limit: Duration, what: &str, mut ready: impl FnMut() -> bool) {
        let deadline = Instant::now() + limit;
        while !ready() {
            let alive = self.is_running();
            if !alive || Instant::now() > deadline {
                let why = if alive { "too slow" } else { "it ended" };
                let (out, err) = (self.stdout(), self.stderr());
                panic!("{}: waiting for {what}: {why}\n{out}\n{err}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How often it has written `what` to standard error.
    pub fn said(&self, what: &str) -> usize {
        self.stderr().matches(what).count()
    }

    /// Waits until it has written `what` to standard error `times` times.
    ///
    /// # Panics
    /// With all its output, if it ends first or has not done so after a minute.
    pub fn wait_until_said(&mut self, what: &str, times: usize) {
        let stderr = self.dir.path().join("stderr");
        let limit = Duration::from_secs(60);
        self.wait_until(limit, what, || {
            read_lossy(&stderr).matches(what).count() >= times
        });
    }

    /// Waits until something listens on `port` of 127.0.0.1.
    pub fn wait_for_port(&mut self, port: u16, limit: Duration) {
        let connect = || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        self.wait_until(limit, &format!("port {port}"), connect);
    }

    /// Sends a signal (`TERM`, `KILL`, `HUP`, …) to the process alone.
    pub fn signal(&self, signal: &str) {
        send_signal(signal, i64::from(self.pid()));
    }

    /// Waits for its end; kills the group at `limit` (then `hung` is set).
    ///
    /// # Panics
    /// If the system can't wait for it.
    pub fn finish(mut self, limit: Duration) -> Outcome {
        let deadline = Instant::now() + limit;
        let mut hung = false;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(None) => {
                    hung = true;
                    self.kill_group();
                    break self.child.wait().expect("killed child");
                }
                Err(error) => panic!("{}: wait: {error}", self.name),
            }
        };
        let took = self.started.elapsed();
        Outcome {
            status,
            hung,
            stdout: self.stdout(),
            stderr: self.stderr(),
            took,
        }
    }

    /// Kills it and everything it started, and returns what it had said.
    pub fn stop(mut self) -> Outcome {
        self.kill_group();
        self.finish(Duration::from_secs(5))
    }

    fn kill_group(&mut self) {
        send_signal("KILL", -i64::from(self.pid()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Also after a normal end: it may have left children behind.
        self.kill_group();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process, or, with a number below zero, to a group.
pub fn send_signal(signal: &str, pid: i64) {
    // A process that is gone already is no error.
    let _ = Command::new("/bin/sh")
        .args(["-c", &format!("kill -s {signal} -- {pid}")])
        .stderr(Stdio::null())
        .status();
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// A directory that is removed when dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// A new, empty directory, readable by every user.
    ///
    /// # Panics
    /// If it can't be made.
    pub fn new(label: &str) -> TempDir {
        TempDir::below(&std::env::temp_dir(), label)
    }

    /// A new, empty directory below `dir`, such as one of another file system.
    ///
    /// # Panics
    /// If it can't be made.
    pub fn below(dir: &Path, label: &str) -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("memlane-{label}-{}-{serial}", std::process::id());
        let path = dir.join(name);
        std::fs::create_dir_all(&path).expect("temporary directory");
        TempDir(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A port of 127.0.0.1 that nobody uses, below the range from which the kernel
/// takes the ports of outgoing connections (so that no client can take it
/// before the server does).
///
/// # Panics
/// If there is none.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Far from where the programs that were started just before and after this one look.
    let start = std::process::id().wrapping_mul(7919);
    for _ in 0..20_000 {
        let n = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 11_000 + u16::try_from(n % 20_000).expect("small");
        if TcpListener::bind(("127.0.0.1", port)).is_ok()
            && TcpListener::bind(("0.0.0.0", port)).is_ok()
        {
            return port;
        }
    }
    panic!("no free port between 11000 and 31000");
}

/// True if the tests run as root (some cases need it).
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut uids = status.lines().filter_map(|line| line.strip_prefix("Uid:"));
    uids.next().and_then(|line| line.split_whitespace().nth(1)) == Some("0")
}

/// A program without what only a debugger needs, in this folder: all of it is in a guest's memory.
///
/// # Panics
/// If strip(1) fails.
pub fn stripped(from: &Path, folder: &Path) -> PathBuf {
    let small = folder.join(from.file_name().expect("a file"));
    let mut strip = Command::new("strip");
    let stripped = strip.arg("-o").args([&small, from]).output();
    let stripped = stripped.expect("strip runs: apt-get install binutils");
    assert!(stripped.status.success(), "{stripped:?}");
    small
}
