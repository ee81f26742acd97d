//! What the tests of the frontends share: a daemon in a process of its own (the kernel must be able to outlive it), and
//! a folder that goes away.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// No answer of a daemon, and no command, takes so long.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Says loudly that a test is not run, and why.
pub(crate) fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// May mounts be made here?
pub(crate) fn can_mount() -> bool {
    let fuse = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    if fuse.is_err() {
        skip("no /dev/fuse that this user may open");
    }
    fuse.is_ok()
}

/// Is this program there?
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder: PathBuf| folder.join(program).exists());
    if !found {
        skip(&format!("no {program}"));
    }
    found
}

pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("not root");
    }
    root
}

/// A folder of its own.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("memlane-block-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path.canonicalize().unwrap())
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            // What a failed test has left mounted.
            let _ = rustix::mount::unmount(entry.path(), rustix::mount::UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// This test program again, in the role of a daemon: `main` is the test that plays it when `MEMLANE_DAEMON` is set.
pub(crate) struct Daemon {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Daemon {
    pub(crate) fn start(role: &str, arguments: &[&str]) -> Daemon {
        let program = Command::new(std::env::current_exe().unwrap());
        Daemon::start_by(program, role, arguments)
    }

    /// As somebody else.
    pub(crate) fn start_as(uid: u32, role: &str, arguments: &[&str]) -> Daemon {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.uid(uid).gid(uid);
        Daemon::start_by(program, role, arguments)
    }

    fn start_by(mut program: Command, role: &str, arguments: &[&str]) -> Daemon {
        let mut child = program
            .args(["--exact", "daemon", "--nocapture", "--test-threads=1"])
            .env("MEMLANE_DAEMON", role)
            .env("MEMLANE_DAEMON_ARGUMENTS", arguments.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once("daemon: ") {
                    let _ = tell.send(said.to_owned());
                }
            }
        });
        Daemon {
            child,
            stdin,
            lines,
        }
    }

    /// The next thing it says.
    pub(crate) fn hears(&self) -> String {
        self.lines
            .recv_timeout(LIMIT)
            .expect("the daemon is silent")
    }

    /// Asks it for something; its answer.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        writeln!(self.stdin, "{what}").unwrap();
        self.hears()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Like [`kill`](Self::kill), for a daemon that may fail to die.
    pub(crate) fn kill_in(&mut self, limit: Duration) {
        self.child.kill().unwrap();
        let begin = Instant::now();
        while !self.ended() {
            assert!(begin.elapsed() < limit, "it does not die");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the daemon: its role and arguments, if this process is one.
pub(crate) fn role() -> Option<(String, Vec<String>)> {
    let role = std::env::var("MEMLANE_DAEMON").ok()?;
    let arguments = std::env::var("MEMLANE_DAEMON_ARGUMENTS").unwrap_or_default();
    Some((role, arguments.lines().map(str::to_owned).collect()))
}

/// In the daemon: says something.
pub(crate) fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    // The test harness prints to the same line first.
    let _ = writeln!(out, "\ndaemon: {what}");
    let _ = out.flush();
}

/// In the daemon: the next request; none when the test is over.
pub(crate) fn request() -> Option<String> {
    let mut line = String::new();
    let n = std::io::stdin().read_line(&mut line).ok()?;
    (n > 0).then(|| line.trim().to_owned())
}

/// Runs a command to its end, within the limit; what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("timeout")
        .arg(LIMIT.as_secs().to_string())
        .arg(program)
        .args(arguments)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() {
        Ok(said)
    } else {
        Err(format!(
            "{program} {arguments:?}: {}\n{said}",
            output.status
        ))
    }
}

/// Numbers out of a seed (xorshift64*).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n)
            .map(|_| u8::try_from(self.below(256)).unwrap())
            .collect()
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
