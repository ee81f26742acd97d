//! A program that a test started, and its end.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::lane::{LaneReport, LaneWatch};
use super::net::listening_beside;
use super::tree::{children, tree};
use crate::harness::Mode;

/// How much of a program's output is shown when a test fails.
const SHOWN: usize = 4000;

/// A started program. When dropped, it and its descendants are killed; if a
/// test is failing, its output and its processes are shown before.
#[derive(Debug)]
pub struct Proc {
    name: String,
    mode: Mode,
    child: Child,
    ended: Option<ExitStatus>,
    out: PathBuf,
    err: PathBuf,
    watch: Option<LaneWatch>,
    started: Instant,
}

/// What a program left behind.
#[derive(Debug)]
pub struct Done {
    /// Its name in the test.
    pub name: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output, in a file.
    pub out: PathBuf,
    /// Its standard error, in a file.
    pub err: PathBuf,
    /// The last contents of its stats page.
    pub lane: LaneReport,
}

impl Done {
    /// Standard output as text.
    pub fn stdout(&self) -> String {
        read_lossy(&self.out)
    }

    /// Standard error as text.
    pub fn stderr(&self) -> String {
        read_lossy(&self.err)
    }

    /// The program must have ended well.
    ///
    /// # Panics
    /// With its output, if not.
    #[track_caller]
    pub fn success(self) -> Done {
        if !self.status.success() {
            let (out, err) = (tail(&self.out), tail(&self.err));
            panic!("{}: {}\n{out}\n{err}", self.name, self.status);
        }
        self
    }
}

impl Proc {
    /// Starts `command`; its output goes to `<stem>.out` and `<stem>.err`.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start(name: &str, mode: Mode, mut command: Command, stem: &Path) -> Proc {
        let (out, err) = (stem.with_extension("out"), stem.with_extension("err"));
        command.stdout(File::create(&out).expect("file for output"));
        command.stderr(File::create(&err).expect("file for output"));
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let watch = (mode != Mode::Plain).then(|| LaneWatch::start(child.id()));
        let started = Instant::now();
        Proc {
            name: name.to_owned(),
            mode,
            child,
            ended: None,
            out,
            err,
            watch,
            started,
        }
    }

    /// The process id; the launcher's, should the program be its child.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The program's own process id.
    pub fn program_id(&self) -> u32 {
        let is_launcher = |pid: u32| {
            let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            exe.file_name().is_some_and(|name| name == "memlane")
        };
        let mut pid = self.id();
        while is_launcher(pid) {
            match children(pid).first() {
                Some(child) => pid = *child,
                None => break,
            }
        }
        pid
    }

    /// The program and everything it started, itself first.
    pub fn tree(&self) -> Vec<u32> {
        tree(self.id())
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        read_lossy(&self.out)
    }

    /// The file that its standard output goes to.
    pub fn stdout_file(&self) -> &Path {
        &self.out
    }

    /// True while it has not ended.
    pub fn running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child can be waited for");
        }
        self.ended.is_none()
    }

    /// Sends a signal (`TERM`, `HUP`, …) to the program itself.
    pub fn signal(&self, signal: &str) {
        send(signal, &[self.program_id()]);
    }

    /// Kills the program and its descendants, at once.
    pub fn kill(&self) {
        send("KILL", &self.tree());
    }

    /// What its stats pages say.
    pub fn lane(&self) -> LaneReport {
        match &self.watch {
            Some(watch) => {
                if self.ended.is_none() {
                    watch.look();
                }
                watch.report(&self.name, self.mode)
            }
            None => LaneReport {
                who: self.name.clone(),
                mode: self.mode,
                processes: vec![],
            },
        }
    }

    /// Waits until `done` says so, or fails when the program ends first.
    ///
    /// # Panics
    /// If it ends first or nothing happens within `limit`.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + limit;
        while !done() {
            let name = self.name.clone();
            assert!(self.running(), "{name} ended while waiting for {what}");
            assert!(
                Instant::now() < end,
                "{name}: waited {limit:?} in vain for {what}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until somebody in its network namespace listens on `port`.
    ///
    /// # Panics
    /// If nobody does.
    #[track_caller]
    pub fn wait_listening(&mut self, port: u16) {
        let process = self.id().to_string();
        let what = format!("port {port}");
        self.wait_until(&what, Duration::from_secs(30), || {
            listening_beside(&process, port)
        });
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end within `limit`: a hang.
    #[track_caller]
    pub fn wait(mut self, limit: Duration) -> Done {
        let end = Instant::now() + limit;
        while self.running() {
            let name = &self.name;
            assert!(
                Instant::now() < end,
                "HANG: {name} still runs after {limit:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        self.done()
    }

    /// Asks it to end (SIGTERM), and waits.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn stop(self) -> Done {
        self.stop_by("TERM")
    }

    /// Asks it to end by a signal, and waits.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn stop_by(self, signal: &str) -> Done {
        self.signal(signal);
        self.wait(Duration::from_secs(20))
    }

    fn done(&mut self) -> Done {
        Done {
            name: self.name.clone(),
            status: self.ended.expect("it has ended"),
            out: self.out.clone(),
            err: self.err.clone(),
            lane: self.lane(),
        }
    }

    /// Everything that may help to understand a failure.
    fn show(&mut self) {
        let mut text = format!("\n===== {} ({}, ", self.name, self.mode.name());
        text.push_str(&match (self.running(), self.ended) {
            (false, Some(status)) => format!("{status}"),
            _ => format!("running for {:.1?}", self.started.elapsed()),
        });
        text.push_str(") =====\n");
        for pid in self.tree() {
            text.push_str(&describe_process(pid));
        }
        if self.mode != Mode::Plain {
            text.push_str(&format!("--- lane: {}", self.lane()));
        }
        text.push_str(&format!("--- stdout\n{}\n", tail(&self.out)));
        text.push_str(&format!("--- stderr\n{}\n", tail(&self.err)));
        eprint!("{text}");
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show();
        }
        if self.running() {
            // Twice: a process may be forking while its family is listed.
            for _ in 0..2 {
                send("KILL", &self.tree());
            }
        }
        let _ = self.child.wait();
    }
}

/// Sends a signal to processes; one that has gone already is no error.
pub fn send(signal: &str, pids: &[u32]) {
    let mut kill = Command::new("/bin/sh");
    kill.args([
        "-c",
        "signal=$1; shift; kill -s \"$signal\" \"$@\"",
        "sh",
        signal,
    ]);
    kill.args(pids.iter().map(u32::to_string))
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let _ = kill.status();
}

/// Name, state and what each thread sleeps in.
fn describe_process(pid: u32) -> String {
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let command = read(format!("/proc/{pid}/cmdline")).replace('\0', " ");
    let short: String = command.chars().take(120).collect();
    let mut text = format!("{pid} {short}\n");
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return text;
    };
    for task in tasks.flatten().take(8) {
        let at = task.path().display().to_string();
        let status = read(format!("{at}/status"));
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        let (state, call) = (state.unwrap_or("?").trim(), read(format!("{at}/syscall")));
        let wait = read(format!("{at}/wchan"));
        text.push_str(&format!(
            "    {state}, in {wait}, system call {}\n",
            call.trim()
        ));
    }
    text
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn tail(path: &Path) -> String {
    let text = read_lossy(path);
    let mut start = text.len().saturating_sub(SHOWN);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].trim_end().to_owned()
}

/// Writes a note that is seen even when the test passes.
pub fn note(text: &str) {
    // Not eprintln!: the test runner hides what that prints.
    let _ = writeln!(std::io::stderr(), "{text}");
}
