//! How much memory connections hold while they are used, and while they are idle.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memlane_system::harness::{Mode, command, plain_only};

/// Words of a chunk's 64 DMBs, its header, and a page for good measure.
const CHUNK_WORDS: u64 = (64 + 4 + 4) * 1024;

/// `ends/idle.c`. Killed when dropped.
struct Idle {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Idle {
    fn start(mode: Mode, args: &[&str]) -> Idle {
        let program = std::path::Path::new(env!("OUT_DIR")).join("idle");
        let mut command: Command = command(mode, program);
        command.args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        Idle {
            orders: child.stdin.take().expect("piped"),
            answers: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        assert!(matches!(read, Ok(n) if n > 0), "no answer: {read:?}");
        line.trim().to_owned()
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it takes orders");
    }

    fn does(&mut self, order: &str) -> String {
        self.tell(order);
        self.line()
    }

    /// Bytes that the memory shared with peers has, for each memfd.
    fn shared(&self, into: &mut BTreeMap<u64, u64>) {
        let home = format!("/proc/{}", self.child.id());
        for entry in fs::read_dir(format!("{home}/fd")).expect("/proc").flatten() {
            let is_dmb = fs::read_link(entry.path())
                .is_ok_and(|to| to.to_string_lossy().contains("memlane-dmb"));
            if let (true, Ok(of)) = (is_dmb, fs::metadata(entry.path())) {
                into.insert(of.ino(), of.blocks() * 512);
            }
        }
    }

    /// Bytes of its own: what the kernel counts for it, but for what is shared with peers.
    fn private(&self) -> u64 {
        let path = format!("/proc/{}/smaps", self.child.id());
        let mut sum = 0;
        let mut counts = false;
        for line in fs::read_to_string(path).expect("/proc").lines() {
            let first = line.split_whitespace().next().unwrap_or("");
            if first.contains('-') {
                counts = !line.contains("memlane-dmb");
            } else if first == "Pss:" && counts {
                let kib = line.split_whitespace().nth(1).expect("a number");
                sum += kib.parse::<u64>().expect("a number") * 1024;
            }
        }
        sum
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server and who calls it.
struct Two {
    server: Idle,
    caller: Idle,
    port: String,
}

impl Two {
    fn start(mode: Mode) -> Two {
        let mut server = Idle::start(mode, &["serve"]);
        let said = server.line();
        let port = said.strip_prefix("port ").expect("a port").to_owned();
        let caller = Idle::start(mode, &["call", &port]);
        Two {
            server,
            caller,
            port,
        }
    }

    /// Bytes, and memfds.
    fn shared(&self) -> (u64, u64) {
        let mut all = BTreeMap::new();
        self.server.shared(&mut all);
        self.caller.shared(&mut all);
        (all.values().sum(), all.len() as u64)
    }

    fn private(&self) -> u64 {
        self.server.private() + self.caller.private()
    }

    /// Waits without use until nothing but words is held (within a minute).
    #[track_caller]
    fn rest(&mut self) {
        let start = Instant::now();
        loop {
            assert!(self.caller.does("sleep epoll 1500").starts_with("done"));
            let (bytes, chunks) = self.shared();
            let (mut server, mut caller) = (BTreeMap::new(), BTreeMap::new());
            self.server.shared(&mut server);
            self.caller.shared(&mut caller);
            if bytes <= chunks * CHUNK_WORDS {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{bytes} bytes of {chunks} chunks are held without use: server {server:?}, caller {caller:?}"
            );
        }
    }
}

#[test]
fn rings_grow_with_what_they_carry_and_are_given_back_when_they_carry_nothing() {
    if plain_only() {
        return;
    }
    let many: u64 = 300;
    let mut two = Two::start(Mode::Eager);
    assert_eq!(two.caller.does(&format!("open {many}")), "done");
    assert_eq!(two.caller.does("send 100 20"), "done");
    let (small, chunks) = two.shared();
    assert!(chunks >= 2 * many.div_ceil(64), "{chunks} chunks");
    assert!(
        small > chunks * CHUNK_WORDS && small <= chunks * CHUNK_WORDS + 2 * many * 4096,
        "one page each way: {small} bytes"
    );
    two.rest();
    assert_eq!(two.caller.does("send 300000 2"), "done");
    assert!(two.shared().0 > 2 * small, "they grow: {:?}", two.shared());
    two.rest();
    // Small again: no connection goes back to what it once needed.
    assert_eq!(two.caller.does("send 100 20"), "done");
    let (again, chunks) = two.shared();
    assert!(
        again <= chunks * CHUNK_WORDS + 2 * many * 4096,
        "{again} bytes"
    );
    // Those that are closed leave nothing; those that are opened anew begin with nothing.
    assert_eq!(two.caller.does("send 300000 1"), "done");
    assert_eq!(two.caller.does("open 5"), "done");
    two.rest();
    assert_eq!(two.caller.does(&format!("open {many}")), "done");
    assert_eq!(two.caller.does("send 5000 10"), "done");
}

/// A wait that is made in two pieces is one wait to its program.
#[test]
fn waits_last_as_long_as_they_should_and_signals_end_them_while_rings_are_given_back() {
    if plain_only() {
        return;
    }
    let two = Two::start(Mode::Eager);
    std::thread::scope(|scope| {
        for how in ["epoll", "poll", "select", "read"] {
            let port = &two.port;
            scope.spawn(move || {
                let mut caller = Idle::start(Mode::Eager, &["call", port]);
                let grow = |caller: &mut Idle| {
                    assert_eq!(caller.does("open 3"), "done");
                    assert_eq!(caller.does("send 100000 20"), "done");
                };
                if how != "read" {
                    grow(&mut caller);
                    let said = caller.does(&format!("sleep {how} 2500"));
                    let ms = said
                        .strip_prefix("done ")
                        .unwrap_or_else(|| panic!("{how}: {said}"));
                    assert!(ms.parse::<u64>().unwrap() >= 2500, "{how}: {ms} ms");
                }
                grow(&mut caller);
                caller.tell(&format!("sleep {how} 50000"));
                std::thread::sleep(Duration::from_millis(1500));
                let pid = caller.child.id().to_string();
                let sent = Command::new("kill").args(["-USR1", &pid]).status();
                assert!(sent.is_ok_and(|s| s.success()));
                let said = caller.line();
                assert!(said.starts_with("interrupted "), "{how}: {said}");
            });
        }
    });
}

/// The table of `docs/limits/sockets.md`.
#[test]
#[ignore = "a table, not a check: --ignored --nocapture"]
fn bytes_of_idle_and_active_connections() {
    println!(
        "| connections | shared, small messages | shared, 64 KiB messages | shared, idle | own, memlane | own, plain |"
    );
    println!("|---:|---:|---:|---:|---:|---:|");
    for many in [1u64, 64, 1000, 10_000] {
        let mut cells = Vec::new();
        let mut own = Vec::new();
        for mode in [Mode::Eager, Mode::Plain] {
            let mut two = Two::start(mode);
            assert_eq!(two.caller.does("open 1"), "done");
            assert_eq!(two.caller.does("send 100 30"), "done");
            let before = if many == 1 { 0 } else { two.private() };
            assert_eq!(two.caller.does(&format!("open {many}")), "done");
            assert_eq!(two.caller.does("send 100 40"), "done");
            own.push((two.private() - before) / many);
            if mode == Mode::Plain {
                continue;
            }
            cells.push(two.shared().0 / many);
            assert_eq!(two.caller.does("send 65536 8"), "done");
            cells.push(two.shared().0 / many);
            two.rest();
            cells.push(two.shared().0 / many);
        }
        let all: Vec<String> = cells.iter().chain(&own).map(u64::to_string).collect();
        println!("| {many} | {} |", all.join(" | "));
    }
}
