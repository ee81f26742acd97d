//! The preload library with fault points (`memlane-socket`, feature `faults`), and programs that must survive a peer
//! that runs with it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::containers::Container;
use crate::harness::{TempDir, run};

// The table of steps from its one source: these tests link with nothing that they test.
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../../lanes/memlane-socket/src/faults/steps.rs"]
mod steps;

pub use steps::{Part, STEPS, Side};

/// Longer than any dialogue, also of a debug build on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(40);
const BUILT: Duration = Duration::from_secs(400);

/// The library with fault points, built when first asked for, into a folder of its own: it is never where one that is
/// shipped is taken from.
///
/// # Panics
/// If it can't be built.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(build)
}

fn build() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    // …/target/debug/deps/faults_kills-0123
    let target = test.ancestors().nth(3).expect("a target folder");
    let target = target.join("faults");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args([
            "build",
            "--release",
            "--locked",
            "--quiet",
            "-p",
            "memlane-preload",
        ])
        .args(["--features", "faults", "--target-dir"])
        .arg(&target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .env_remove("RUSTFLAGS");
    let built = run(command, BUILT);
    assert!(built.is_ok(), "{}", built.report());
    target.join("release/libmemlane_preload.so")
}

/// `ends/mortal.c` under that library, in a network namespace or here.
fn mortal(within: Option<&Container>, args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(Path::new(env!("OUT_DIR")).join("mortal"));
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("MEMLANE_")) {
        command.env_remove(name);
    }
    command
        .args(args)
        .env("LD_PRELOAD", library())
        .env("MEMLANE_UPGRADE", "eager")
        .envs(env.iter().copied());
    if let Some(container) = within {
        command.env("MORTAL_AT", &container.address);
        command = container.around(&command, None);
    }
    command.stdout(Stdio::piped());
    command
}

/// How far a program has come, by the file that it maps.
#[derive(Debug)]
pub struct Progress {
    file: File,
    path: PathBuf,
}

/// [`Progress`] at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    /// Connection of the dialogue, from 0.
    pub conn: u64,
    /// Bytes of it that sends have returned for.
    pub sent: u64,
    /// … that receives have.
    pub taken: u64,
    /// It is inside a receive.
    pub receiving: bool,
    /// Exchanges beside the dialogue.
    pub rounds: u64,
}

impl Progress {
    fn new(dir: &Path, name: &str) -> Progress {
        let path = dir.join(name);
        std::fs::write(&path, [0; 40]).expect("a file");
        let file = File::open(&path).expect("a file");
        Progress { file, path }
    }

    fn path(&self) -> &str {
        self.path.to_str().expect("a plain name")
    }

    /// How far it has come by now.
    ///
    /// # Panics
    /// If the file can't be read.
    pub fn reached(&self) -> Reached {
        let mut bytes = [0; 40];
        self.file.read_exact_at(&mut bytes, 0).expect("40 bytes");
        let word = |n: usize| {
            let bytes = bytes[n * 8..n * 8 + 8].try_into();
            u64::from_ne_bytes(bytes.expect("8 bytes"))
        };
        Reached {
            conn: word(0),
            sent: word(1),
            taken: word(2),
            receiving: word(3) != 0,
            rounds: word(4),
        }
    }
}

/// One end of dialogues. Killed when dropped.
#[derive(Debug)]
pub struct End {
    child: Child,
    lines: Receiver<String>,
    /// How far it has come.
    pub progress: Progress,
}

impl End {
    fn start(dir: &Path, within: Option<&Container>, args: &[&str], env: &[(&str, &str)]) -> End {
        let (role, more) = args.split_first().expect("a role");
        let progress = Progress::new(dir, if *role == "survivor" { role } else { "peer" });
        let args = [&[role, progress.path()], more].concat();
        let mut command = mortal(within, &args, env);
        command.stdin(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (to, lines) = channel();
        std::thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .all(|line| to.send(line).is_ok())
        });
        End {
            child,
            lines,
            progress,
        }
    }

    /// Its next line; `None`: it says nothing, for longer than anything takes.
    pub fn line(&self) -> Option<String> {
        self.lines.recv_timeout(PATIENCE).ok()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; `None`: it is still there, for longer than anything takes.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// Is it stopped by a signal?
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
        state == Some(b'T')
    }

    /// Has it ended? (For loops.)
    pub fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that outlives one peer after the other, with a connection to somebody else beside.
#[derive(Debug)]
pub struct Survivor {
    end: End,
    orders: ChildStdin,
    echo: Child,
    port: u16,
    dir: TempDir,
    peers: Option<Container>,
}

impl Survivor {
    /// Starts it, with these variables.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(env: &[(&str, &str)]) -> Survivor {
        Survivor::between([None, None], env)
    }

    /// Starts it in the first of two network namespaces; its peers will be in the second.
    ///
    /// # Panics
    /// If it does not start.
    pub fn between([own, peers]: [Option<&Container>; 2], env: &[(&str, &str)]) -> Survivor {
        let dir = TempDir::new("faults");
        let mut end = End::start(dir.path(), own, &["survivor"], env);
        let said = end.line().expect("ports");
        let words: Vec<&str> = said.split(' ').collect();
        let echo = mortal(own, &["echo", words[3]], &[]).spawn();
        Survivor {
            orders: end.child.stdin.take().expect("piped"),
            end,
            echo: echo.expect("an echo"),
            port: words[1].parse().expect("a port"),
            dir,
            peers: peers.cloned(),
        }
    }

    /// A peer with these faults that connects to it, and the dialogue begins.
    pub fn joined(&mut self, env: &[(&str, &str)]) -> End {
        writeln!(self.orders, "serve").expect("it takes orders");
        let port = self.port.to_string();
        End::start(self.dir.path(), self.peers.as_ref(), &["join", &port], env)
    }

    /// A peer with these faults that it connects to, and the dialogue begins.
    ///
    /// # Panics
    /// If the peer does not start.
    pub fn joins(&mut self, env: &[(&str, &str)]) -> End {
        let peer = End::start(self.dir.path(), self.peers.as_ref(), &["serve"], env);
        let said = peer.line().unwrap_or_else(|| panic!("{env:?}: no port"));
        let port = said.strip_prefix("port ").expect("a port");
        writeln!(self.orders, "join {port}").expect("it takes orders");
        peer
    }

    /// What it says of the dialogue.
    ///
    /// # Panics
    /// If it says nothing.
    pub fn report(&self, of: &str) -> String {
        self.end
            .line()
            .unwrap_or_else(|| panic!("{of}: the survivor hangs, at {:?}", self.reached()))
    }

    /// How far it has come.
    pub fn reached(&self) -> Reached {
        self.end.progress.reached()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.end.pid()
    }

    /// Its other connection goes on, by a few more exchanges.
    ///
    /// # Panics
    /// If not.
    pub fn is_undisturbed(&self, of: &str) {
        let (start, before) = (Instant::now(), self.reached().rounds);
        while self.reached().rounds < before + 3 {
            assert!(start.elapsed() < PATIENCE, "{of}: the other connection");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        let _ = self.echo.kill();
        let _ = self.echo.wait();
    }
}
