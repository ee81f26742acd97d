//! Two programs with one connection between them (`ends/end.c`), each with its own settings, driven step by step.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::containers::Networks;
use crate::harness::{Built, TempDir};
use crate::real::lane::{Conn, LaneWatch, Process};
use crate::real::{Mode, Reason};

/// The user that an end may run as, who is not root.
pub const SOMEBODY: u32 = 65534;

/// Within this time each end has the lane or has given it up (two seconds, should nobody answer).
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How an end is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings<'a> {
    /// Flags of `memlane run`.
    pub flags: &'a [&'a str],
    /// Variables.
    pub env: &'a [(&'a str, &'a str)],
    /// Its user, if not ours.
    pub uid: Option<u32>,
    /// What starts it (`prlimit --as=…`); nothing: we do.
    pub under: &'a [&'a str],
}

/// Nothing set.
pub const DEFAULT: Settings<'static> = Settings {
    flags: &[],
    env: &[],
    uid: None,
    under: &[],
};

/// Settings that are flags only.
pub const fn flags<'a>(flags: &'a [&'a str]) -> Settings<'a> {
    Settings { flags, ..DEFAULT }
}

/// One of the two programs. Killed when dropped.
#[derive(Debug)]
pub struct End {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    watch: LaneWatch,
    shows_page: bool,
}

/// What one end sent and took, as hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hashes {
    /// Of what it sent.
    pub sent: u64,
    /// Of what it took.
    pub taken: u64,
}

impl End {
    fn start(home: &Home, settings: &Settings<'_>, args: &[&str]) -> End {
        let memlane = home.at("memlane");
        let mut command = match settings.under {
            [] => Command::new(memlane),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(memlane);
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MEMLANE_") {
                command.env_remove(name);
            }
        }
        command
            .arg("run")
            .args(settings.flags)
            .arg("--")
            .arg(home.at("end"))
            .args(args);
        command.env("MEMLANE_PRELOAD", home.at("libmemlane_preload.so"));
        // By variable: a flag may say otherwise.
        command.env("MEMLANE_UPGRADE", "eager");
        command.envs(settings.env.iter().copied());
        if let Some(uid) = settings.uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("memlane starts");
        End {
            orders: child.stdin.take().expect("piped"),
            answers: BufReader::new(child.stdout.take().expect("piped")),
            watch: LaneWatch::start(child.id()),
            shows_page: !settings
                .env
                .iter()
                .any(|(name, _)| *name == "MEMLANE_DISABLE"),
            child,
        }
    }

    /// One that accepts, alone: whoever connects to its port (the second) is at the other end.
    ///
    /// # Panics
    /// If it does not start.
    pub fn listening(settings: &Settings<'_>) -> (Alone, u16) {
        End::listening_at(settings, "127.0.0.1")
    }

    /// The same, at an address of its network namespace.
    ///
    /// # Panics
    /// If it does not start.
    pub fn listening_at(settings: &Settings<'_>, address: &str) -> (Alone, u16) {
        let home = Home::new();
        let (end, port) = End::listener_at(&home, settings, address);
        (Alone { end, _home: home }, port)
    }

    /// One that connects to `port`, alone.
    ///
    /// # Panics
    /// If it does not start.
    pub fn connecting(settings: &Settings<'_>, port: u16) -> Alone {
        End::connecting_to(settings, "127.0.0.1", port)
    }

    /// The same, to another address.
    ///
    /// # Panics
    /// If it does not start.
    pub fn connecting_to(settings: &Settings<'_>, address: &str, port: u16) -> Alone {
        let home = Home::new();
        let mut end = End::start(&home, settings, &["connect", &port.to_string(), address]);
        end.line();
        Alone { end, _home: home }
    }

    fn listener_at(home: &Home, settings: &Settings<'_>, address: &str) -> (End, u16) {
        let mut end = End::start(home, settings, &["listen", address]);
        let said = end.line();
        let port = said.trim().strip_prefix("port ");
        let port = port.and_then(|port| port.parse().ok());
        (end, port.unwrap_or_else(|| panic!("said {said:?}")))
    }

    /// Its process id: memlane becomes the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order, without waiting for the answer.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it takes orders");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        assert!(
            matches!(read, Ok(n) if n > 0),
            "an end gave no answer (it ends itself after a minute): {read:?}"
        );
        line
    }

    /// The answer to the order before.
    pub fn answer(&mut self) -> Hashes {
        let line = self.line();
        let words: Vec<&str> = line.split_whitespace().collect();
        let hash = |n: usize| {
            let word = words.get(n).unwrap_or_else(|| panic!("said {line:?}"));
            u64::from_str_radix(word, 16).unwrap_or_else(|_| panic!("said {line:?}"))
        };
        assert_eq!(words[0], "done", "{line:?}");
        Hashes {
            sent: hash(1),
            taken: hash(2),
        }
    }

    /// Its connection, as its page shows it; `None`: no page has been seen (yet).
    ///
    /// # Panics
    /// If it is switched off and has a page all the same.
    pub fn conn(&self) -> Option<Conn> {
        let report = self.watch.report("end", Mode::Eager);
        // In a pid namespace of its own it is a child of the process that was started.
        let is_itself = |p: &&Process| p.pid == self.pid();
        let own = report.processes.iter().find(is_itself);
        let own = own.or_else(|| report.processes.iter().rfind(|p| !p.conns.is_empty()));
        let conn = own?.conns.last().cloned();
        assert!(self.shows_page, "it is switched off, but shows {conn:?}");
        conn
    }

    /// Looks for its page now.
    pub fn look(&self) {
        self.watch.look();
    }

    /// How often its page says that it gave this reason.
    pub fn times(&self, reason: Reason) -> u64 {
        let report = self.watch.report("end", Mode::Eager);
        let given = report.processes.iter().flat_map(|p| &p.reasons);
        given
            .filter(|(r, _)| *r == reason)
            .map(|(_, times)| times)
            .sum()
    }

    /// Has it decided to stay on TCP? One that is switched off never thinks of anything else.
    pub fn gave_up(&self) -> bool {
        let decided = |conn: &Conn| !matches!(conn.reason, Reason::TOO_YOUNG | Reason::NONE);
        !self.shows_page || self.conn().as_ref().is_some_and(decided)
    }

    /// Waits for it to end by itself.
    ///
    /// # Panics
    /// If it can't be waited for. (It does not run longer than a minute.)
    pub fn end(&mut self) -> std::process::ExitStatus {
        self.child.wait().expect("a child")
    }

    /// Has it not ended?
    ///
    /// # Panics
    /// If it is no child.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Has a signal ended it?
    ///
    /// # Panics
    /// If it is no child.
    pub fn has_crashed(&mut self) -> bool {
        let ended = self.child.try_wait().expect("a child");
        ended.is_some_and(|status| status.signal().is_some())
    }

    /// Gives an order and waits for the answer.
    pub fn does(&mut self, order: &str) -> Hashes {
        self.tell(order);
        self.answer()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was built, where every user may run it.
#[derive(Debug)]
struct Home(TempDir);

impl Home {
    fn new() -> Home {
        let built = Built::find();
        let home = Home(TempDir::new("pair"));
        let end = Path::new(env!("OUT_DIR")).join("end");
        let memlane = built.memlane.expect("`cargo build --release` first");
        for (from, name) in [
            (memlane, "memlane"),
            (built.preload, "libmemlane_preload.so"),
            (end, "end"),
        ] {
            // Not by ourselves: a program that is open for writing can't be run, and other
            // tests' children may have inherited our descriptor.
            let mut copy = Command::new("cp");
            let copied = copy.arg(from).arg(home.at(name)).status();
            assert!(copied.is_ok_and(|status| status.success()), "{name}");
        }
        home
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// One end whose other end is not one of these programs.
#[derive(Debug)]
pub struct Alone {
    /// The end.
    pub end: End,
    _home: Home,
}

/// Both ends of one connection, each in a process of its own.
#[derive(Debug)]
pub struct Pair {
    /// The accepting side.
    pub server: End,
    /// The connecting side.
    pub client: End,
    home: Home,
    seed: u64,
}

impl Pair {
    /// Starts and connects them.
    ///
    /// # Panics
    /// If that fails.
    pub fn start(server: &Settings<'_>, client: &Settings<'_>) -> Pair {
        Pair::across(server, "127.0.0.1", client, |port| {
            ("127.0.0.1".into(), port)
        })
    }

    /// Starts a server that listens at an address, and a client that connects to what `reach` makes of its port.
    ///
    /// # Panics
    /// If that fails.
    pub fn across(
        server: &Settings<'_>,
        listens_at: &str,
        client: &Settings<'_>,
        reach: impl FnOnce(u16) -> (String, u16),
    ) -> Pair {
        let home = Home::new();
        let (server, port) = End::listener_at(&home, server, listens_at);
        let (address, port) = reach(port);
        let args = ["connect", &port.to_string(), &address];
        let mut client = End::start(&home, client, &args);
        client.line();
        Pair {
            server,
            client,
            home,
            seed: 0,
        }
    }

    /// Starts client and server, each in its network namespace and with these flags of `memlane run`.
    ///
    /// # Panics
    /// If that fails.
    pub fn between(networks: &Networks, [at_client, at_server]: [&[&str]; 2]) -> Pair {
        let side = |under, flags| Settings {
            under,
            flags,
            ..DEFAULT
        };
        Pair::across(
            &side(&["ip", "netns", "exec", networks.server()], at_server),
            networks.server_address(),
            &side(&["ip", "netns", "exec", networks.client()], at_client),
            |port| (networks.reached_at().into(), port),
        )
    }

    /// Starts client and server, each in its network namespace and in the domain of one agent.
    ///
    /// # Panics
    /// If that fails.
    pub fn in_domain(networks: &Networks, domain: &str) -> Pair {
        Pair::between(networks, [&["--domain", domain]; 2])
    }

    /// The `memlane` program that both were started by.
    pub fn memlane(&self) -> Command {
        Command::new(self.home.at("memlane"))
    }

    /// A few bytes there and back.
    pub fn exchange(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            self.seed += 1;
            let order = format!("send {} 100", self.seed);
            let ends = [&mut self.client, &mut self.server];
            let sent = ends[from].does(&order).sent;
            let taken = ends[to].does("take 100").taken;
            assert_eq!(sent, taken, "100 bytes arrived as others");
        }
    }

    /// Exchanges until both have the lane.
    ///
    /// # Panics
    /// If they don't get it.
    pub fn open(&mut self) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.exchange();
            let both = [self.client.conn(), self.server.conn()];
            if both.iter().flatten().filter(|conn| conn.on_lane()).count() == 2 {
                return;
            }
        }
        panic!("no lane after {PATIENCE:?}:\n{}", self.describe());
    }

    /// Opens the lane, and sends until it has carried bytes in both directions. On a busy machine a whole flood may find the other
    /// end asleep.
    ///
    /// # Panics
    /// If the lane does not open, or carries nothing.
    pub fn open_and_carry(&mut self) {
        self.open();
        for _ in 0..20 {
            self.flood(4 << 20);
            let by_ring = [&self.server, &self.client].map(|end| end.conn().expect("a page").bytes);
            if by_ring.iter().all(|bytes| bytes[0] > 0 && bytes[1] > 0) {
                return;
            }
        }
        panic!("{}", self.describe());
    }

    /// Exchanges until both ends have given up the lane, sends a lot, and checks that not a
    /// byte took it. Returns own and peer's reason of client and server (of those with a page).
    ///
    /// # Panics
    /// If a byte took it, or if they don't give up.
    pub fn stay_on_tcp(&mut self) -> [Option<[Reason; 2]>; 2] {
        let start = Instant::now();
        while !(self.client.gave_up() && self.server.gave_up()) {
            assert!(start.elapsed() < PATIENCE, "{}", self.describe());
            self.exchange();
        }
        self.flood(1 << 20);
        let both = [self.client.conn(), self.server.conn()];
        let used = |conn: &Conn| conn.on_lane() || conn.bytes[..2] != [0, 0];
        assert!(!both.iter().flatten().any(used), "{}", self.describe());
        both.map(|conn| conn.map(|conn| [conn.reason, conn.peer_reason]))
    }

    /// Both send this many bytes at the same time; each must receive what the other sent.
    ///
    /// # Panics
    /// If not.
    pub fn flood(&mut self, bytes: usize) {
        self.seed += 2;
        self.client
            .tell(&format!("both {} {bytes} {bytes}", self.seed - 1));
        self.server
            .tell(&format!("both {} {bytes} {bytes}", self.seed));
        let (client, server) = (self.client.answer(), self.server.answer());
        assert_eq!(client.sent, server.taken, "{bytes} bytes to the server");
        assert_eq!(server.sent, client.taken, "{bytes} bytes to the client");
        assert_ne!(client.sent, server.sent, "each sends its own");
    }

    /// What both pages say.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (who, end) in [("client", &self.client), ("server", &self.server)] {
            let _ = writeln!(text, "{who}: {:?}", end.conn());
        }
        text
    }
}
