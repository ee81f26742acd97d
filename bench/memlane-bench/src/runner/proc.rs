//! Programs that the bench starts: pinned, bounded in time, and ended with it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};

use super::{lane, sys};

const POLL: Duration = Duration::from_millis(20);
const START_LIMIT: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_millis(100);
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// A temporary folder of our own, removed at the end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes it.
    pub(crate) fn new() -> anyhow::Result<Self> {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("memlane-bench-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // create, not create_all: somebody else's folder of that name must not do.
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        // nginx's workers run as another user and must get in whatever our umask is.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Scratch(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A file name in it that was not given out before.
    pub(crate) fn name(&self, hint: &str) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.0.join(format!("{hint}-{number}"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server that runs until this is dropped.
pub(crate) struct Service {
    child: Child,
    /// What it says.
    log: PathBuf,
}

impl Service {
    /// Starts `command` and waits until it listens on `port`, in whichever network namespace it is.
    pub(crate) fn start(command: Command, port: u16, scratch: &Scratch) -> anyhow::Result<Self> {
        Service::start_until(command, scratch, |pid| listens(pid, port))
    }

    /// Starts `command` and waits until `ready`, which is given its process id, says that it is ready.
    pub(crate) fn start_until(
        command: Command,
        scratch: &Scratch,
        ready: impl Fn(u32) -> bool,
    ) -> anyhow::Result<Self> {
        Service::start_when(command, scratch, |pid, _| ready(pid))
    }

    /// Starts `command` and waits until it has said `word`.
    pub(crate) fn start_saying(
        command: Command,
        scratch: &Scratch,
        word: &str,
    ) -> anyhow::Result<Self> {
        Service::start_when(command, scratch, |_, log| read_text(log).contains(word))
    }

    fn start_when(
        mut command: Command,
        scratch: &Scratch,
        ready: impl Fn(u32, &Path) -> bool,
    ) -> anyhow::Result<Self> {
        let log = scratch.name("server");
        let out = File::create(&log)?;
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        let program = shown(&command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let mut service = Service { child, log };
        let begin = Instant::now();
        while !ready(service.child.id(), &service.log) {
            if let Some(status) = service.child.try_wait()? {
                bail!("{program} ended at once ({status}): {}", service.said());
            }
            if sys::interrupted() {
                bail!("interrupted");
            }
            if begin.elapsed() > START_LIMIT {
                bail!(
                    "{program} was not ready within {START_LIMIT:?}: {}",
                    service.said()
                );
            }
            sleep(POLL);
        }
        Ok(service)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Process ids of the server and of everything that it started.
    pub(crate) fn pids(&self) -> Vec<u32> {
        family(self.pid())
    }

    /// The end of what it has said.
    pub(crate) fn said(&self) -> String {
        tail(&read_text(&self.log))
    }

    /// Processor time of all of them, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.pids().into_iter().map(sys::cpu_seconds).sum()
    }

    /// What its stats pages say now.
    pub(crate) fn lane(&self) -> lane::Usage {
        lane::usage_of(&self.pids())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// A program that ends by itself; what it printed is kept.
pub(crate) struct Job {
    child: Child,
    program: String,
    out: PathBuf,
    err: PathBuf,
    deadline: Instant,
    done: bool,
}

impl Job {
    /// Starts it; it may run for `limit` at most.
    pub(crate) fn start(
        mut command: Command,
        limit: Duration,
        scratch: &Scratch,
    ) -> anyhow::Result<Self> {
        let (out, err) = (scratch.name("out"), scratch.name("err"));
        command
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?);
        let program = shown(&command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        Ok(Job {
            child,
            program,
            out,
            err,
            deadline: Instant::now() + limit,
            done: false,
        })
    }

    /// Has it ended already?
    pub(crate) fn has_ended(&mut self) -> anyhow::Result<bool> {
        self.done |= self.child.try_wait()?.is_some();
        Ok(self.done)
    }

    /// Waits for the end and returns its standard output.
    pub(crate) fn finish(mut self) -> anyhow::Result<String> {
        let status = self.wait()?;
        let (out, err) = (read_text(&self.out), read_text(&self.err));
        let _ = fs::remove_file(&self.out);
        let _ = fs::remove_file(&self.err);
        if status.success() {
            return Ok(out);
        }
        Err(anyhow!(
            "{} failed ({status}): {} {}",
            self.program,
            tail(&err),
            tail(&out)
        ))
    }

    /// Waits for the end, however it ends: its standard output, and in a few words how it ended and what it said.
    pub(crate) fn printed(mut self) -> anyhow::Result<(String, String)> {
        let status = self.wait()?;
        let said = format!("{status}: {}", tail(&read_text(&self.err)));
        Ok((read_text(&self.out), said))
    }

    /// Waits for the end of one of our own programs and reads what it has printed: one JSON document.
    pub(crate) fn told<T: serde::de::DeserializeOwned>(self) -> anyhow::Result<T> {
        let program = self.program.clone();
        let text = self.finish()?;
        serde_json::from_str(text.trim()).with_context(|| format!("{program} said {text:?}"))
    }

    fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.done = true;
                return Ok(status);
            }
            if sys::interrupted() {
                bail!("interrupted");
            }
            if Instant::now() > self.deadline {
                bail!("{} did not end in time and was stopped", self.program);
            }
            sleep(POLL);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.done {
            stop(&mut self.child);
        }
    }
}

fn stop(child: &mut Child) {
    let pid = child.id();
    sys::signal_group(pid, libc::SIGTERM);
    let begin = Instant::now();
    let mut asked_again = false;
    while begin.elapsed() < STOP_LIMIT && matches!(child.try_wait(), Ok(None)) {
        // sockperf's server does not end on SIGTERM.
        if !asked_again && begin.elapsed() > PATIENCE {
            sys::signal_group(pid, libc::SIGINT);
            asked_again = true;
        }
        sleep(POLL);
    }
    // Also what outlived its leader; not found is the usual answer.
    sys::signal_group(pid, libc::SIGKILL);
    let _ = child.wait();
}

/// Waits until a file is there; `false`: it was not within `limit`, or somebody wants us to stop.
pub(crate) fn appears(file: &Path, limit: Duration) -> bool {
    let begin = Instant::now();
    while !file.exists() && begin.elapsed() < limit && !sys::interrupted() {
        sleep(Duration::from_millis(2));
    }
    file.exists()
}

/// A port below the ephemeral range, so that no client can be given it meanwhile.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..2000 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (std::process::id().wrapping_mul(7).wrapping_add(step)) % 10_000;
        let port = u16::try_from(port)?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between 20000 and 30000")
}

/// Where a program is: on PATH, or where Debian puts servers. A full path stands for itself.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .chain(folders_of_postgres())
        .chain(folder_of_builds())
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Where `./dev` builds programs of others, such as `musl/nginx`: the target folder that this program lies in.
fn folder_of_builds() -> Option<PathBuf> {
    let here = std::env::current_exe().ok()?;
    Some(here.parent()?.parent()?.to_owned())
}

/// One for each version of PostgreSQL, the newest first.
fn folders_of_postgres() -> Vec<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let versions = versions.flatten().filter_map(|version| {
        let number = version.file_name().to_str()?.parse::<u32>().ok()?;
        Some((number, version.path().join("bin")))
    });
    let mut versions: Vec<(u32, PathBuf)> = versions.collect();
    versions.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    versions.into_iter().map(|(_, folder)| folder).collect()
}

/// In a process group of its own, so that it can be ended with all that it starts.
pub(crate) fn confined(path: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(path);
    sys::confine(&mut command, &[]);
    command
}

fn shown(command: &Command) -> String {
    let parts: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    format!("`{}`", parts.join(" "))
}

fn read_text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// The last few lines, on one.
fn tail(text: &str) -> String {
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

/// Does anybody listen on `port` in the network namespace of process `pid`? Looked up, not tried: a connection that only
/// probes would confuse a server of one client.
pub(crate) fn listens(pid: u32, port: u16) -> bool {
    // Java's sockets are of IPv6 and take both.
    ["tcp", "tcp6"].into_iter().any(|table| {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}"));
        has_listener(&table.unwrap_or_default(), port)
    })
}

fn has_listener(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace();
        let local = words.nth(1).unwrap_or_default();
        let state = words.nth(1).unwrap_or_default();
        local.ends_with(&suffix) && state == "0A"
    })
}

/// Whether somebody listens on a UNIX domain socket of that name. Ask again: while others come and go, the kernel's
/// table may lack one that is there.
pub(crate) fn listens_at(path: &str) -> bool {
    // Other programs choose the other names: any bytes.
    let table = fs::read("/proc/net/unix").unwrap_or_default();
    String::from_utf8_lossy(&table).lines().any(|line| {
        // Num RefCount Protocol Flags Type St Inode Path; a listener has __SO_ACCEPTCON.
        let mut words = line.split_whitespace();
        words.nth(3) == Some("00010000") && words.nth(3) == Some(path)
    })
}

/// A process and all that it started, by process id.
pub(crate) fn family(root: u32) -> Vec<u32> {
    let parents = memlane_observe::processes::parents();
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        let children = parents.iter().filter(|(_, of)| **of == parent);
        found.extend(children.map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    fn scratch() -> Scratch {
        Scratch::new().expect("a folder")
    }

    #[test]
    fn a_listener_is_told_from_a_connection_on_the_same_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            0: 0100007F:5A47 00000000:0000 0A 00000000:00000000 00:00000000\n\
            1: 0100007F:5A48 0100007F:C350 01 00000000:00000000 00:00000000\n";
        assert!(has_listener(table, 0x5A47));
        assert!(!has_listener(table, 0x5A48));
        assert!(!has_listener(table, 0xC350));
    }

    #[test]
    fn a_listener_of_ipv6_is_found_too() {
        let listener = match TcpListener::bind("[::]:0") {
            Ok(listener) => listener,
            Err(why) => return eprintln!("SKIPPED: no IPv6 here: {why}"),
        };
        let port = listener.local_addr().expect("its address").port();
        assert!(listens(std::process::id(), port));
        drop(listener);
        assert!(!listens(std::process::id(), port));
    }

    #[test]
    fn a_socket_file_is_listened_at_only_while_somebody_does() {
        let scratch = scratch();
        let path = scratch.name("listener");
        let text = path.to_str().expect("UTF-8");
        assert!(!listens_at(text));
        let listener = UnixListener::bind(&path).expect("bind");
        assert!((0..100).any(|_| listens_at(text)));
        drop(listener);
        assert!(!listens_at(text));
    }

    #[test]
    fn a_stranger_s_name_that_is_no_text_hides_no_socket_file() {
        let name = [&b"\xff\xfe"[..], &std::process::id().to_le_bytes()].concat();
        let strange = SocketAddr::from_abstract_name(name).expect("a name");
        let _stranger = UnixListener::bind_addr(&strange).expect("a free name");
        let scratch = scratch();
        let path = scratch.name("beside");
        let _listener = UnixListener::bind(&path).expect("bind");
        assert!(listens_at(path.to_str().expect("UTF-8")));
    }

    #[test]
    fn a_program_that_hangs_is_stopped_at_its_limit() {
        let scratch = scratch();
        let mut command = Command::new("sleep");
        command.arg("60");
        sys::confine(&mut command, &[]);
        let begin = Instant::now();
        let job = Job::start(command, Duration::from_millis(200), &scratch).expect("start");
        let error = job.finish().expect_err("it cannot have ended");
        assert!(error.to_string().contains("did not end in time"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_failing_program_is_told_with_what_it_said() {
        let scratch = scratch();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such luck >&2; exit 3"]);
        let job = Job::start(command, Duration::from_secs(5), &scratch).expect("start");
        let error = job.finish().expect_err("exit 3").to_string();
        assert!(error.contains("no such luck"), "{error}");
    }

    #[test]
    fn children_of_children_belong_to_the_family() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 30 & wait"])
            .stdout(Stdio::null())
            .process_group_for_test()
            .spawn()
            .expect("sh");
        let begin = Instant::now();
        while family(child.id()).len() < 2 && begin.elapsed() < Duration::from_secs(5) {
            sleep(POLL);
        }
        let count = family(child.id()).len();
        stop(&mut child);
        assert_eq!(count, 2);
    }

    trait OwnGroup {
        fn process_group_for_test(&mut self) -> &mut Self;
    }

    impl OwnGroup for Command {
        fn process_group_for_test(&mut self) -> &mut Self {
            use std::os::unix::process::CommandExt;
            self.process_group(0)
        }
    }
}
