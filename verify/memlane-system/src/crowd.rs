//! Many connections between few processes, or few between many: drives `ends/crowd.c` step by step.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::containers::Container;
use crate::harness::{Mode, command};
use crate::real::Reason;
use crate::real::held::Held;
use crate::real::lane::{LaneReport, LaneWatch};

/// Longest that connections may take to get their lane while they talk.
const PATIENCE: Duration = Duration::from_secs(500);

/// The program that the tests drive.
pub fn program() -> std::path::PathBuf {
    Path::new(env!("OUT_DIR")).join("crowd")
}

/// Descriptors that a process may have here, if it asks for them.
pub fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("/proc");
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    let words: Vec<&str> = line.expect("a limit").split_whitespace().collect();
    words[4].parse().unwrap_or(usize::MAX)
}

/// A process of `crowd.c`, or the first of many. Killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    watch: Option<LaneWatch>,
    found_page: bool,
    mode: Mode,
}

impl Program {
    /// Starts it with these arguments.
    pub fn start(mode: Mode, args: &[&str]) -> Program {
        let mut command = command(mode, program());
        command.args(args);
        Program::run(mode, command)
    }

    /// Starts it by way of another program, such as `unshare`.
    pub fn start_under(under: &[&str], mode: Mode, args: &[&str]) -> Program {
        let inner = command(mode, program());
        let mut outer = Command::new(under[0]);
        outer.args(&under[1..]).arg(inner.get_program());
        outer.args(inner.get_args()).args(args);
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        Program::run(mode, outer)
    }

    /// Starts it in a network namespace. A server listens at the container's address, and clients connect to it.
    pub fn start_in(container: &Container, mode: Mode, args: &[&str]) -> Program {
        let mut inner = command(mode, program());
        inner.args(args);
        let mut outer = container.around(&inner, None);
        outer.env("CROWD_AT", &container.address);
        Program::run(mode, outer)
    }

    fn run(mode: Mode, mut command: Command) -> Program {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        Program {
            orders: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().expect("piped")),
            watch: (mode != Mode::Plain).then(|| LaneWatch::start(child.id())),
            child,
            found_page: false,
            mode,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        assert!(matches!(read, Ok(n) if n > 0), "no answer: {read:?}");
        line.trim().to_owned()
    }

    /// Gives an order, waits for the answer, and returns how often it waited.
    ///
    /// # Panics
    /// If it finds something wrong.
    #[track_caller]
    pub fn does(&mut self, order: &str) -> u64 {
        let orders = self.orders.as_mut().expect("open until the end");
        writeln!(orders, "{order}").expect("it takes orders");
        let said = self.line();
        self.find_page();
        let waits = said.strip_prefix("done ").and_then(|n| n.parse().ok());
        waits.unwrap_or_else(|| panic!("{order}: said {said:?}"))
    }

    /// Its stats page, found once: it exists from the first socket on.
    fn find_page(&mut self) {
        if let (false, Some(watch)) = (self.found_page, &mut self.watch) {
            watch.rest();
            watch.look();
            self.found_page = true;
        }
    }

    /// The present contents of its stats page.
    pub fn lane(&self) -> LaneReport {
        match &self.watch {
            Some(watch) => watch.report("crowd", self.mode),
            None => LaneReport {
                who: "crowd".into(),
                mode: self.mode,
                processes: Vec::new(),
            },
        }
    }

    /// Connections of this process whose lane is open.
    pub fn on_lane(&self) -> usize {
        let report = self.lane();
        let own = report.processes.iter().find(|p| p.pid == self.pid());
        own.map_or(0, |p| p.conns.iter().filter(|conn| conn.on_lane()).count())
    }

    /// What it holds.
    ///
    /// # Panics
    /// If it has ended.
    pub fn holds(&self) -> Held {
        Held::by(self.itself()).expect("it lives")
    }

    /// The program's own process: the only child of what started it, if that stays.
    fn itself(&self) -> u32 {
        let pid = self.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let name = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        match children.unwrap_or_default().split_whitespace().next() {
            Some(child) if name(pid).trim() == "unshare" => child.parse().unwrap_or(pid),
            _ => pid,
        }
    }

    /// Kilobytes of shared memory that it has touched.
    ///
    /// # Panics
    /// If it has ended.
    pub fn shared_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("it lives");
        let line = status.lines().find_map(|l| l.strip_prefix("RssShmem:"));
        let words = line.expect("a number").split_whitespace().next();
        words.and_then(|n| n.parse().ok()).expect("a number")
    }

    /// Ends it; it must have found nothing wrong.
    ///
    /// # Panics
    /// If it has, or does not end.
    pub fn end(mut self) {
        drop(self.orders.take());
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.lane());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server, and one (or the first of many) that calls it.
#[derive(Debug)]
pub struct Crowd {
    /// The accepting side.
    pub server: Program,
    /// The connecting side.
    pub caller: Program,
}

impl Crowd {
    /// Two processes without a connection yet.
    pub fn start(mode: Mode) -> Crowd {
        let (server, port) = serve(mode);
        let caller = Program::start(mode, &["call", &port]);
        Crowd { server, caller }
    }

    /// Two processes without a connection yet, on these CPUs (as taskset(1) names them).
    pub fn start_pinned(mode: Mode, [server, caller]: [&str; 2]) -> Crowd {
        let (server, port) = serve_under(&["taskset", "-c", server], mode);
        let caller = Program::start_under(&["taskset", "-c", caller], mode, &["call", &port]);
        Crowd { server, caller }
    }

    /// A server, and this many processes that connect to it.
    pub fn of_many(mode: Mode, callers: usize) -> Crowd {
        let (server, port) = serve(mode);
        let mut caller = Program::start(mode, &["many", &port, &callers.to_string()]);
        caller.watch = None; // it has no connection of its own
        Crowd { server, caller }
    }

    /// Talks until all of the server's connections have the lane, but for one in a hundred
    /// that found nobody in time: on a full machine nobody has the CPU just then.
    ///
    /// # Panics
    /// If they don't get it, or if a byte is wrong.
    #[track_caller]
    pub fn talk_until_nearly_all_are_on_lane(&mut self, order: &str, all: usize) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            self.caller.does(order);
            let report = self.caller.lane();
            let now = self.caller.on_lane();
            let late = report.fell_back_for(Reason::PEER_NO_MEMLANE);
            if now + late >= all && late <= all / 100 {
                return now;
            }
            assert!(Instant::now() < end, "{now} of {all}\n{report}");
        }
    }

    /// Talks until this many of the server's connections have the lane.
    ///
    /// # Panics
    /// If they don't get it, or if a byte is wrong.
    #[track_caller]
    pub fn talk_until_on_lane(&mut self, order: &str, all: usize) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.caller.does(order);
            let now = self.server.on_lane();
            if now == all {
                return;
            }
            let late = Instant::now() > end;
            assert!(!late, "{now} of {all}\n{}", self.server.lane());
        }
    }

    /// Both end, and have found nothing wrong.
    pub fn end(self) {
        self.caller.end();
        self.server.end();
    }
}

/// A server, and its port.
pub fn serve(mode: Mode) -> (Program, String) {
    port_of(Program::start(mode, &["serve"]))
}

/// A server that is started by way of another program, and its port.
pub fn serve_under(under: &[&str], mode: Mode) -> (Program, String) {
    port_of(Program::start_under(under, mode, &["serve"]))
}

/// A server in a network namespace, and its port.
pub fn serve_in(container: &Container, mode: Mode) -> (Program, String) {
    port_of(Program::start_in(container, mode, &["serve"]))
}

fn port_of(mut server: Program) -> (Program, String) {
    let said = server.line();
    server.find_page();
    let port = said.strip_prefix("port ").expect("a port").to_owned();
    (server, port)
}
