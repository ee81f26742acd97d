//! Finds the processes to trace, reads their records, and writes the capture.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use memlane_core::trace::{Record, SEGMENT};
use memlane_observe::control;
use memlane_observe::processes::parents;
use memlane_observe::trace::{self as target, Id, Options, Target};
use rustix::event::{PollFd, PollFlags};

use super::Args;
use super::capture::{Capture, Put, Turns};
use super::flow::{Flows, HOLD_NS, Sink};
use super::packet::{End, Segment, end, headers};
use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use crate::daemon::service;
use crate::run;

/// Most records that are taken from one process in one round, so that all processes get a turn.
const AT_A_TURN: usize = 2048;
/// Sleep after a round with records, and after one without, in milliseconds.
const BUSY_MS: i64 = 1;
const IDLE_MS: i64 = 20;
/// Time between two searches for new processes.
const SEARCH_EVERY: Duration = Duration::from_millis(300);

/// Runs the trace. Returns the command's exit code; 0 if there is no command.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let stop = service::bell_of_the_end()?;
    let mut work = Work::new(&args, stop)?;
    let listener = match args.command.is_empty() {
        true => None,
        false => Some(Door::open()?),
    };
    let mut child = match &listener {
        Some(door) => Some(door.start(&args)?),
        None => {
            work.attach_now(&args)?;
            None
        }
    };
    let mut code = None;
    let mut stopped = false;
    while !stopped {
        let busy = work.turn(listener.as_ref(), &args)?;
        if let (Some(running), None) = (&mut child, code) {
            code = running.try_wait()?.map(code_of);
        }
        let over = match &listener {
            Some(_) => code.is_some() && work.targets.is_empty() && !busy,
            None => work.targets.is_empty() && !args.pid.is_empty(),
        };
        stopped = work.full || over || work.sleep(listener.as_ref(), busy)?;
    }
    work.finish()?;
    drop(listener);
    if let (Some(mut child), None) = (child, code) {
        code = Some(code_of(child.wait()?));
    }
    Ok(ExitCode::from(code.unwrap_or(0)))
}

fn code_of(status: std::process::ExitStatus) -> u8 {
    let signal = status.signal().map(|n| 128 + n);
    u8::try_from(status.code().or(signal).unwrap_or(1)).unwrap_or(1)
}

/// The socket to which processes of the traced command send their trace memfds.
struct Door {
    listener: UnixListener,
    name: String,
}

impl Door {
    fn open() -> anyhow::Result<Door> {
        // A random name, so that no other process can take it or guess it.
        let secret = memlane_sys::proc::random_u64()
            .map_err(|e| io::Error::from_raw_os_error(e.0))
            .context("the kernel returns no random numbers")?;
        let name = format!("memlane-trace-{secret:016x}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Door { listener, name })
    }

    fn start(&self, args: &Args) -> anyhow::Result<Child> {
        let launch = run::Args {
            options: args.options.clone(),
            command: args.command.clone(),
        };
        let mut environment = run::environment(&launch)
            .map_err(|error| fail(Exit::Launcher, format!("{error:#}")))?;
        run::options::apply(&mut environment, "MEMLANE_TRACE", self.name.clone().into());
        let mut command = Command::new(&args.command[0]);
        command
            .args(&args.command[1..])
            .arg0(&args.command[0])
            .env_clear()
            .envs(environment);
        command.spawn().map_err(|error| {
            let exit = match error.kind() {
                io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::NotExecutable,
            };
            let name = args.command[0].display();
            fail(exit, format!("cannot run {name}: {error}"))
        })
    }

    /// The next process that has connected, and its memfd.
    fn next(&self) -> Option<(u32, OwnedFd)> {
        let (stream, _) = self.listener.accept().ok()?;
        let (pid, uid) = control::peer(stream.as_fd()).ok()?;
        let ours = rustix::process::getuid().as_raw();
        // Another user may have learnt the name.
        (ours == 0 || uid == ours)
            .then(|| received(&stream))
            .flatten()
            .map(|file| (u32::try_from(pid).unwrap_or(0), file))
    }
}

fn received(stream: &UnixStream) -> Option<OwnedFd> {
    use std::os::fd::{AsRawFd as _, FromRawFd as _};
    stream.set_nonblocking(true).ok()?;
    let mut text = [0u8; 16];
    // The message was sent right after the connection was made; it may need a moment.
    for _ in 0..100 {
        match memlane_sys::sock::recv_with_fds(stream.as_raw_fd(), &mut text) {
            Ok(mut message) => {
                let file = message.fds.iter_mut().find_map(Option::take)?;
                // SAFETY: the kernel has just made this number for us, and `Fd` gives it up.
                return Some(unsafe { OwnedFd::from_raw_fd(file.into_raw()) });
            }
            Err(e) if e.0 == libc::EAGAIN => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return None,
        }
    }
    None
}

/// The state of a running trace.
struct Work {
    stop: OwnedFd,
    options: Options,
    only: Option<(End, End)>,
    targets: Vec<(usize, Target)>,
    /// Memfds that are traced already, or that cannot be traced.
    seen: HashSet<Id>,
    searched: Option<Instant>,
    /// The processes of `--pid`, and the children that they have started since.
    family: HashSet<u32>,
    /// Other processes that ran before the trace started.
    strangers: HashSet<u32>,
    /// Records that wait for older records of other processes.
    held: Vec<(usize, Record, Vec<u8>)>,
    /// Time up to which the records of all processes have been read.
    horizon: u64,
    flows: Flows,
    out: Out,
    full: bool,
    dropped: [u64; 2],
    restarts: u64,
    began: usize,
    path: PathBuf,
}

impl Work {
    fn new(args: &Args, stop: OwnedFd) -> anyhow::Result<Work> {
        let cannot = || format!("cannot write {}", args.output.display());
        let turns = args
            .rotate
            .map(|files| Turns::new(&args.output, files.size, files.count));
        let turns = turns.transpose().with_context(cannot)?;
        let most = args.rotate.map(|files| files.size).or(args.max_bytes);
        let capture =
            Capture::create(&args.output, most.unwrap_or(u64::MAX)).with_context(cannot)?;
        Ok(Work {
            stop,
            options: args.tracing(),
            only: args.only(),
            targets: Vec::new(),
            seen: HashSet::new(),
            searched: None,
            held: Vec::new(),
            horizon: u64::MAX,
            flows: Flows::default(),
            family: args.pid.iter().copied().collect(),
            strangers: HashSet::new(),
            out: Out {
                capture,
                turns,
                id: 0,
                full: false,
                broken: None,
            },
            full: false,
            dropped: [0; 2],
            restarts: 0,
            began: 0,
            path: args.output.clone(),
        })
    }

    /// Attaches to the processes of `--pid`. One that cannot be traced is an error.
    fn attach_now(&mut self, args: &Args) -> anyhow::Result<()> {
        if !args.pid.is_empty() {
            let all = parents().into_keys();
            self.strangers = all.filter(|pid| !args.pid.contains(pid)).collect();
        }
        for pid in &args.pid {
            let before = self.targets.len();
            let mut last = None;
            for path in target::find(*pid)? {
                last = self.take(*pid, &path).err().or(last);
            }
            if let (true, Some(error)) = (self.targets.len() == before, last) {
                return Err(error);
            }
        }
        if args.pid.is_empty() {
            self.search();
        }
        match self.targets.len() {
            0 => out::warn("there is no process under memlane that you may trace: waiting for one"),
            n => out::warn(&format!("tracing {n} processes; stop with ^C")),
        }
        Ok(())
    }

    fn search(&mut self) {
        self.searched = Some(Instant::now());
        for (pid, path) in target::everybody() {
            if target::id_of(&path).is_some_and(|id| !self.seen.contains(&id))
                && let Err(error) = self.take(pid, &path)
            {
                out::warn(&format!("{error:#}"));
            }
        }
    }

    /// Looks for children of the processes of `--pid`. It misses a child whose parent ends before the next search.
    fn follow(&mut self) {
        self.searched = Some(Instant::now());
        let parents = parents();
        // The id of a process that has ended may soon belong to another process.
        self.family.retain(|pid| parents.contains_key(pid));
        self.strangers.retain(|pid| parents.contains_key(pid));
        // Children of children count too.
        loop {
            let before = self.family.len();
            let is_new = |(pid, up): &(&u32, &u32)| {
                self.family.contains(up) && !self.strangers.contains(pid)
            };
            let more: Vec<u32> = parents.iter().filter(is_new).map(|(pid, _)| *pid).collect();
            self.family.extend(more);
            if self.family.len() == before {
                break;
            }
        }
        for pid in self.family.iter().copied().collect::<Vec<u32>>() {
            for path in target::of_process(pid).unwrap_or_default() {
                if let Err(error) = self.take(pid, &path) {
                    out::warn(&format!("{error:#}"));
                }
            }
        }
    }

    fn take(&mut self, pid: u32, path: &std::path::Path) -> anyhow::Result<()> {
        let id = target::id_of(path);
        if id.is_none_or(|id| !self.seen.insert(id)) {
            return Ok(());
        }
        let target = Target::begin(pid, path, self.options)?;
        self.targets.push((self.began, target));
        self.began += 1;
        Ok(())
    }

    /// One round: attaches to new processes and reads records. Returns whether there was anything to do.
    fn turn(&mut self, door: Option<&Door>, args: &Args) -> anyhow::Result<bool> {
        let mut busy = self.welcome(door);
        let is_time = self.searched.is_none_or(|t| t.elapsed() > SEARCH_EVERY);
        if door.is_none() && is_time {
            match args.pid.is_empty() {
                true => self.search(),
                false => self.follow(),
            }
        }
        busy |= self.read();
        self.bury();
        if self.targets.is_empty() && !args.pid.is_empty() {
            // A child may still run.
            self.follow();
        }
        let until = now_ns().min(self.horizon).saturating_sub(HOLD_NS);
        self.flows.settle(until, &mut self.out);
        self.written()?;
        Ok(busy)
    }

    fn welcome(&mut self, door: Option<&Door>) -> bool {
        let mut any = false;
        while let Some((pid, file)) = door.and_then(Door::next) {
            use std::os::fd::AsRawFd as _;
            any = true;
            // Opening the file again gives a lock of our own.
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            if let Err(error) = self.take(pid, &path) {
                out::warn(&format!("{error:#}"));
            }
        }
        any
    }

    /// Reads records from all processes, in the order of time. Records of a process that is ahead of another wait, because
    /// the other may still deliver older ones.
    fn read(&mut self) -> bool {
        let mut payload = Box::new([0u8; SEGMENT]);
        let mut all = std::mem::take(&mut self.held);
        let (mut any, mut horizon) = (false, u64::MAX);
        for (source, target) in &mut self.targets {
            let mine = || all.iter().filter(|(s, ..)| s == source);
            let mut newest = mine().map(|(_, r, _)| r.time_ns).max().unwrap_or(0);
            let room = AT_A_TURN.saturating_sub(mine().count());
            let mut read = 0;
            while read < room
                && let Some(record) = target.next(&mut payload)
            {
                read += 1;
                newest = newest.max(record.time_ns);
                if wanted(self.only, &record) {
                    let bytes = payload[..record.captured as usize].to_vec();
                    all.push((*source, record, bytes));
                }
            }
            any |= read > 0;
            if read == room {
                horizon = horizon.min(newest);
            }
        }
        all.sort_by_key(|(_, record, _)| record.time_ns);
        self.held = all.split_off(all.partition_point(|(_, r, _)| r.time_ns <= horizon));
        self.horizon = horizon;
        for (source, record, payload) in &all {
            self.flows.record(*source, record, payload, &mut self.out);
        }
        any || !all.is_empty()
    }

    /// Drops processes that have ended and whose ring is empty.
    fn bury(&mut self) {
        let mut payload = Box::new([0u8; SEGMENT]);
        let mut i = 0;
        while i < self.targets.len() {
            let (source, target) = &mut self.targets[i];
            if target.is_alive() || self.held.iter().any(|(s, ..)| s == source) {
                i += 1;
            } else if let Some(record) = target.next(&mut payload) {
                if wanted(self.only, &record) {
                    let bytes = payload[..record.captured as usize].to_vec();
                    self.held.push((*source, record, bytes));
                }
                i += 1;
            } else {
                let (_, gone) = self.targets.swap_remove(i);
                self.count(&gone);
            }
        }
    }

    fn count(&mut self, target: &Target) {
        for (sum, n) in self.dropped.iter_mut().zip(target.dropped()) {
            *sum += n;
        }
        self.restarts += target.restarts;
        if let Some(complaint) = target.complaint() {
            out::warn(&complaint);
        }
    }

    fn written(&mut self) -> anyhow::Result<()> {
        self.full |= self.out.full;
        let flushed = self.out.capture.flush();
        match self.out.broken.take().or(flushed.err()) {
            // The reader of the capture has gone away.
            Some(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.full = true;
                Ok(())
            }
            Some(e) => Err(e).with_context(|| format!("cannot write {}", self.path.display())),
            None => Ok(()),
        }
    }

    /// Sleeps until there may be something to do. Returns true if a signal asks the trace to end.
    fn sleep(&self, door: Option<&Door>, busy: bool) -> anyhow::Result<bool> {
        let fds: Vec<BorrowedFd<'_>> = [self.stop.as_fd()]
            .into_iter()
            .chain(door.map(|d| d.listener.as_fd()))
            .chain(self.targets.iter().filter_map(|(_, t)| t.life()))
            .collect();
        let mut polled: Vec<PollFd<'_>> = fds
            .iter()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        let ms = if busy { BUSY_MS } else { IDLE_MS };
        let limit = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: ms * 1_000_000,
        };
        match rustix::event::poll(&mut polled, Some(&limit)) {
            Ok(_) => Ok(!polled[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Ends all traces, writes what is left, and prints a summary.
    fn finish(&mut self) -> anyhow::Result<()> {
        for (_, target) in &mut self.targets {
            target.end();
        }
        if !self.full {
            while self.read() {}
            self.flows.settle(u64::MAX, &mut self.out);
        }
        for (_, target) in std::mem::take(&mut self.targets) {
            self.count(&target);
        }
        let lost = self.dropped[0];
        let ended = self.out.capture.end(lost, now_ns());
        self.out.broken = self.out.broken.take().or(ended.err());
        self.written()?;
        self.summary();
        Ok(())
    }

    fn summary(&self) {
        let mut text = format!(
            "{} packets of {} connections of {} processes in {}",
            self.out.capture.packets,
            self.flows.count,
            self.began,
            self.path.display()
        );
        if self.out.full {
            text.push_str("; it has reached --max-bytes");
        }
        if self.dropped[0] > 0 {
            text.push_str(&format!(
                "; {} records ({} of the streams) were dropped, because they came faster than the trace could \
                 write: try a larger --buffer, a smaller --snaplen, or --port",
                self.dropped[0],
                out::human(self.dropped[1])
            ));
        }
        if self.restarts > 0 {
            text.push_str(&format!("; rings restarted: {}", self.restarts));
        }
        out::warn(&text);
    }
}

fn wanted(only: Option<(End, End)>, record: &Record) -> bool {
    let (a, b) = (end(record.local), end(record.remote));
    only.is_none_or(|only| only == (a.min(b), a.max(b)))
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// Writes segments to the capture as packets.
struct Out {
    capture: Capture,
    turns: Option<Turns>,
    id: u16,
    full: bool,
    broken: Option<io::Error>,
}

impl Sink for Out {
    fn segment(&mut self, lane: u8, time_ns: u64, segment: &Segment, payload: &[u8]) {
        if self.full || self.broken.is_some() {
            return;
        }
        self.id = self.id.wrapping_add(1);
        let payload = &payload[..payload.len().min(segment.bytes)];
        let head = headers(segment, payload, self.id);
        let length = head.len() + segment.bytes;
        let mut put = self.capture.packet(lane, time_ns, &head, payload, length);
        if let (Ok(Put::Full), Some(turns)) = (&put, &self.turns) {
            put = turns
                .next(&mut self.capture)
                .and_then(|()| self.capture.packet(lane, time_ns, &head, payload, length));
        }
        match put {
            Ok(Put::Done) => {}
            Ok(Put::Full) => self.full = true,
            Err(e) => self.broken = Some(e),
        }
    }
}
