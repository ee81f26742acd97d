//! The frame of a story: its modes, its directory, its programs.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::lane::Missed;
use super::proc::{Done, Proc, note};
use crate::containers::Container;
use crate::harness::{self, Mode, TempDir};
use crate::musl;

/// Set to 1, a missing program is a failure.
const REQUIRE_ALL: &str = "MEMLANE_TEST_REQUIRE_ALL";
/// Runs one mode only.
const ONE_MODE: &str = "MEMLANE_TEST_MODE";

/// Debian package of each program that a story may need.
const PACKAGES: &[(&str, &str)] = &[
    ("nginx", "nginx"),
    ("wrk", "wrk"),
    ("curl", "curl"),
    ("haproxy", "haproxy"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("redis-benchmark", "redis-tools"),
    ("memcached", "memcached"),
    ("postgres", "postgresql"),
    ("initdb", "postgresql"),
    ("psql", "postgresql-client"),
    ("pgbench", "postgresql-contrib"),
    ("pg_dump", "postgresql-client"),
    ("iperf3", "iperf3"),
    ("sockperf", "sockperf"),
    ("python3", "python3"),
    ("valgrind", "valgrind"),
    ("openssl", "openssl"),
    ("node", "nodejs"),
    ("java", "default-jre-headless"),
    ("javac", "default-jdk-headless"),
    ("go", "golang-go"),
];

/// How often a story may run by TCP alone before that is a failure.
const TURNS: u32 = 6;

/// A test that runs in every mode.
#[derive(Debug)]
pub struct Story {
    name: String,
    dir: TempDir,
}

impl Story {
    /// `None`, after a loud note, if a program that it needs is not installed.
    ///
    /// # Panics
    /// Instead of the note, if `MEMLANE_TEST_REQUIRE_ALL=1`.
    pub fn new(name: &str, needs: &[&str]) -> Option<Story> {
        let missing: Vec<&&str> = needs.iter().filter(|need| find(need).is_none()).collect();
        if !missing.is_empty() {
            let packages = missing.iter().map(|name| package(name));
            let packages = packages.collect::<Vec<_>>().join(" ");
            let text = format!("SKIPPED {name}: no {missing:?}: apt-get install {packages}");
            let required = std::env::var_os(REQUIRE_ALL).is_some_and(|value| value == "1");
            assert!(!required, "{text}");
            note(&text);
            return None;
        }
        Some(Story {
            name: name.to_owned(),
            dir: TempDir::new(&format!("real-{name}")),
        })
    }

    /// A directory that all modes share.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A stage in `mode`, with the directory `name`, for a test that is not the
    /// same in each mode.
    ///
    /// # Panics
    /// If the directory can't be made.
    pub fn stage(&self, mode: Mode, name: &str) -> Stage {
        let dir = self.dir().join(name);
        std::fs::create_dir_all(&dir).expect("directory of the stage");
        Stage {
            mode,
            dir,
            serial: Rc::default(),
            container: None,
            with_musl: false,
        }
    }

    /// Runs `body` plain, then under memlane.
    ///
    /// # Panics
    /// If the body does, or if memlane is asked for but not built.
    pub fn in_each_mode(&self, body: impl Fn(&Stage)) {
        for mode in modes() {
            let failing = Failing(format!("story {} fails in mode {}", self.name, mode.name()));
            let start = Instant::now();
            self.until_by_the_lane(mode, &body);
            println!("{} {}: {:.1?}", self.name, mode.name(), start.elapsed());
            std::mem::forget(failing);
        }
    }

    /// Runs once, and again only if everything was right but TCP carried too much of it.
    fn until_by_the_lane(&self, mode: Mode, body: &impl Fn(&Stage)) {
        for turn in 1..=TURNS {
            let stage = self.stage(mode, &format!("{}-{turn}", mode.name()));
            let played = std::panic::catch_unwind(AssertUnwindSafe(|| body(&stage)));
            let Err(panic) = played else { return };
            match panic.downcast::<Missed>() {
                Ok(missed) if turn < TURNS => {
                    note(&format!(
                        "again, {turn} of {TURNS}: {}: {}",
                        self.name, missed.0
                    ));
                }
                Ok(missed) => panic!("{TURNS} times: {}", missed.0),
                Err(other) => std::panic::resume_unwind(other),
            }
        }
    }
}

/// A story without preparations: see [`Story`].
pub fn story(name: &str, needs: &[&str], body: impl Fn(&Stage)) {
    if let Some(story) = Story::new(name, needs) {
        story.in_each_mode(body);
    }
}

/// Prints, when dropped by a panic, which story and mode it was.
struct Failing(String);

impl Drop for Failing {
    fn drop(&mut self) {
        eprintln!("===== {} =====", self.0);
    }
}

fn modes() -> Vec<Mode> {
    let mut modes = vec![Mode::Plain];
    if !harness::plain_only() {
        modes.extend(Mode::UNDER_MEMLANE);
    }
    if let Ok(only) = std::env::var(ONE_MODE) {
        modes.retain(|mode| mode.name() == only);
        assert!(!modes.is_empty(), "{ONE_MODE}={only}: plain, eager or auto");
    }
    modes
}

/// Where a story plays in one mode.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The mode.
    pub mode: Mode,
    dir: PathBuf,
    serial: Rc<Cell<u32>>,
    container: Option<Container>,
    with_musl: bool,
}

impl Stage {
    /// The same stage, but its programs are those that are linked with musl.
    pub fn with_musl(&self) -> Stage {
        Stage {
            with_musl: true,
            ..self.clone()
        }
    }

    /// The same stage, but its programs run in a network namespace.
    pub fn inside(&self, container: &Container) -> Stage {
        Stage {
            container: Some(container.clone()),
            ..self.clone()
        }
    }

    /// The address at which servers listen here, or to which clients connect.
    pub fn address(&self) -> &str {
        let there = self.container.as_ref();
        there.map_or("127.0.0.1", |container| &container.address)
    }

    /// That address, as it stands in a URL.
    pub fn host(&self) -> String {
        let there = self.container.as_ref();
        there.map_or_else(|| "127.0.0.1".into(), Container::host)
    }

    /// A directory of its own.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A new directory in it.
    pub fn new_dir(&self, name: &str) -> PathBuf {
        let dir = self.dir.join(format!("{name}-{}", self.next()));
        std::fs::create_dir_all(&dir).expect("a new directory");
        dir
    }

    /// True if programs run under memlane here.
    pub fn under_memlane(&self) -> bool {
        self.mode != Mode::Plain
    }

    /// A command in this stage's mode.
    pub fn command(&self, name: impl AsRef<OsStr>) -> Command {
        let mut command = harness::command(self.mode, self.resolve(name.as_ref()));
        command.current_dir(&self.dir);
        self.placed(command, None)
    }

    /// The command as it runs where this stage is, as another user if there is one.
    pub fn placed(&self, mut command: Command, owner: Option<(u32, u32)>) -> Command {
        match (&self.container, owner) {
            (Some(container), _) => container.around(&command, owner),
            (None, Some((uid, gid))) => {
                command.uid(uid).gid(gid);
                command
            }
            (None, None) => command,
        }
    }

    /// A command that is never under memlane.
    pub fn plain_command(&self, name: impl AsRef<OsStr>) -> Command {
        let mut command = harness::command(Mode::Plain, self.resolve(name.as_ref()));
        command.current_dir(&self.dir);
        self.placed(command, None)
    }

    /// Python running one of `src/real/programs`.
    pub fn python(&self, name: &str) -> Command {
        let mut command = self.command("python3");
        command.arg("-u").arg(script(name));
        command
    }

    /// Starts a program.
    pub fn start(&self, name: &str, command: Command) -> Proc {
        let stem = self.dir.join(format!("{:03}-{name}", self.next()));
        Proc::start(name, self.mode, command, &stem)
    }

    /// Starts a program that is not under memlane.
    pub fn start_plain(&self, name: &str, command: Command) -> Proc {
        let stem = self.dir.join(format!("{:03}-{name}", self.next()));
        Proc::start(name, Mode::Plain, command, &stem)
    }

    /// Runs a program to its end.
    ///
    /// # Panics
    /// If it fails or hangs.
    #[track_caller]
    pub fn run(&self, name: &str, command: Command, limit: Duration) -> Done {
        self.start(name, command).wait(limit).success()
    }

    fn resolve(&self, name: &OsStr) -> PathBuf {
        match name.to_str() {
            Some(plain) if self.with_musl => musl::program(plain),
            Some(plain) if !plain.contains('/') => program(plain),
            _ => PathBuf::from(name),
        }
    }

    fn next(&self) -> u32 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }
}

fn package(program: &str) -> &str {
    let found = PACKAGES.iter().find(|(name, _)| *name == program);
    found.map_or(program, |(_, package)| package)
}

/// Path of a program that the story has named among its needs.
///
/// # Panics
/// If it is not installed.
pub fn program(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| panic!("{name} is not installed ({})", package(name)))
}

/// Path of a file of `src/real/programs`.
pub fn script(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/real/programs");
    let path = dir.join(name);
    assert!(path.is_file(), "{}", path.display());
    path
}

fn find(name: &str) -> Option<PathBuf> {
    let found = search_path()
        .into_iter()
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())?;
    if name == "python3" {
        python(&found)
    } else {
        Some(found)
    }
}

/// The interpreter itself: what stands in PATH may be a script that chooses one.
fn python(found: &Path) -> Option<PathBuf> {
    let out = Command::new(found)
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
    path.is_file().then_some(path)
}

fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    dirs.extend(["/usr/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from));
    // Debian keeps PostgreSQL's server programs out of PATH. Before it: /usr/bin/psql is a wrapper.
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    versions.sort();
    versions.reverse();
    versions.extend(dirs);
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plays(ends: impl Fn(u32)) -> (bool, u32) {
        let story = Story::new("turns", &[]).expect("needs nothing");
        let turns = Cell::new(0);
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| {
            story.until_by_the_lane(Mode::Plain, &|_| {
                turns.set(turns.get() + 1);
                ends(turns.get());
            });
        }));
        (told.is_ok(), turns.get())
    }

    fn by_tcp() {
        std::panic::panic_any(Missed("all by TCP".into()));
    }

    #[test]
    fn a_story_told_by_tcp_is_told_again_but_not_for_ever() {
        assert_eq!(plays(|_| {}), (true, 1));
        assert_eq!(
            plays(|turn| if turn < 3 {
                by_tcp()
            }),
            (true, 3)
        );
        assert_eq!(plays(|_| by_tcp()), (false, TURNS));
    }

    #[test]
    fn a_story_with_a_wrong_byte_is_told_once() {
        assert_eq!(plays(|_| panic!("a byte is wrong")), (false, 1));
    }
}
