//! `memlane net link` with DPDK's testpmd between two of them, over memif in both roles. Frames pass through it, and
//! go on after testpmd, or either of ours, was killed and restarted, or frozen.
//!
//! Frames here take one slot: when a ring is full, DPDK's driver (22.11, both roles) writes the beginning of a frame
//! of several slots over the oldest untaken one and damages it (docs/limits/packets.md). The packet lane's own
//! `memif_testpmd`, which never fills a ring, sends long frames.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memlane_system::blocks::{has, memlane, skip};
use memlane_system::harness::{Running, TempDir, run};

const LIMIT: Duration = Duration::from_secs(60);

/// testpmd with two memif interfaces, a server's and a client's, between which it forwards.
struct Testpmd(Child);

impl Testpmd {
    fn start(dir: &Path) -> Testpmd {
        // DPDK does not replace the socket of a dead process; who starts it again does.
        let _ = std::fs::remove_file(dir.join("a"));
        let memif = |n: u8, role: &str, socket: &str| {
            let path = dir.join(socket);
            format!(
                "--vdev=net_memif{n},role={role},socket={},socket-abstract=no",
                path.display()
            )
        };
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join("testpmd.log"))
            .expect("a log");
        let mut child = Command::new("dpdk-testpmd")
            .args(["--no-huge", "--no-pci", "--no-telemetry", "--no-shconf"])
            .args(["-m", "128", "--lcores", "(0,1)@(0-1)"])
            .args([memif(0, "server", "a"), memif(1, "client", "b")])
            .args(["--", "--interactive", "--forward-mode=io"])
            .args([
                "--no-lsc-interrupt",
                "--total-num-mbufs=8192",
                "--no-flush-rx",
            ])
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("testpmd");
        // It waits for the line in its pipe.
        writeln!(child.stdin.as_mut().expect("piped"), "start").expect("it lives");
        Testpmd(child)
    }

    fn say(&mut self, line: &str) {
        // It may have died of a peer that went, as it does: then the test starts another one.
        let _ = writeln!(self.0.stdin.as_mut().expect("piped"), "{line}");
    }

    fn signal(&self, signal: &str) {
        let kill = format!("kill -s {signal} {}", self.0.id());
        let done = Command::new("/bin/sh").args(["-c", &kill]).status();
        assert!(done.is_ok_and(|status| status.success()), "{kill}");
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Chain {
    dir: TempDir,
    testpmd: Option<Testpmd>,
    sending: Option<Running>,
    taking: Option<Running>,
    /// Sockets with a role of ours: the sender's, the taker's.
    places: [&'static str; 2],
    files: Vec<PathBuf>,
}

impl Chain {
    fn link(&self, end: &str, place: &str) -> Running {
        let mut command = Command::new(memlane());
        let memif = format!("memif:{}/{place}", self.dir.path().display());
        command.args(["net", "link", end, &memif]);
        Running::start(command)
    }

    fn send(&mut self) {
        let end = "gen:size=64-2048,rate=3000";
        self.sending = Some(self.link(end, self.places[0]));
    }

    fn take(&mut self) {
        let file = self.dir.path().join(format!("{}.pcap", self.files.len()));
        self.taking = Some(self.link(&format!("pcap:{}", file.display()), self.places[1]));
        self.files.push(file);
    }

    fn size(&self) -> u64 {
        let file = self.files.last().expect("it takes");
        file.metadata().map_or(0, |file| file.len())
    }

    /// Frames come through.
    fn goes_on(&mut self, what: &str) {
        let (before, start, mut tried) = (self.size(), Instant::now(), false);
        while self.size() < before + (1 << 20) {
            let dead = |testpmd: &mut Testpmd| !matches!(testpmd.0.try_wait(), Ok(None));
            // Its port may also not come up again after a peer went under its hands: one more try.
            let hangs = start.elapsed() > LIMIT / 3 && !tried;
            if self.testpmd.as_mut().is_none_or(dead) || hangs {
                tried = true;
                println!("testpmd: started again after {what}");
                self.testpmd = None;
                self.testpmd = Some(Testpmd::start(self.dir.path()));
            }
            let said = [&self.sending, &self.taking].map(|r| r.as_ref().map(Running::stderr));
            assert!(
                start.elapsed() < LIMIT,
                "nothing comes after {what}: {said:#?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Every frame that came is one that was sent, whole, once and in order.
    fn all_right(mut self) {
        for link in [self.sending.take(), self.taking.take()]
            .into_iter()
            .flatten()
        {
            link.signal("TERM");
            let said = link.finish(LIMIT);
            assert!(said.is_ok(), "{}", said.report());
        }
        for file in &self.files {
            cut(file);
            let mut command = Command::new(memlane());
            let replay = format!("replay:{}", file.display());
            command.args(["net", "link", &replay, "sink:", "--json"]);
            let said = run(command, LIMIT);
            assert!(said.is_ok(), "{}", said.report());
            let said: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
            let verdict = &said["ends"][1]["verdict"];
            assert!(verdict["good"].as_u64() > Some(100), "{verdict:#}");
            for wrong in ["late", "twice", "changed", "strange"] {
                assert_eq!(verdict[wrong], 0, "{verdict:#}");
            }
        }
    }
}

/// Cuts off what a killed process had not written whole.
fn cut(file: &Path) {
    let bytes = std::fs::read(file).expect("a capture");
    let mut at = 24;
    while let Some(len) = bytes.get(at + 8..at + 12) {
        let len = u32::from_le_bytes(len.try_into().expect("four")) as usize;
        if bytes.len() < at + 16 + len {
            break;
        }
        at += 16 + len;
    }
    std::fs::write(file, &bytes[..at]).expect("room for it");
}

fn chain(test: &str, places: [&'static str; 2]) -> Option<Chain> {
    if !has("dpdk-testpmd") {
        skip(test, "no dpdk-testpmd: ./dev installs dpdk-dev");
        return None;
    }
    let mut chain = Chain {
        dir: TempDir::new(test),
        testpmd: None,
        sending: None,
        taking: None,
        places,
        files: Vec::new(),
    };
    chain.send();
    chain.take();
    // A client of DPDK connects when it starts, and then only.
    let (door, start) = (chain.dir.path().join("b"), Instant::now());
    while !door.exists() {
        assert!(start.elapsed() < LIMIT, "nobody listens");
    }
    chain.testpmd = Some(Testpmd::start(chain.dir.path()));
    chain.goes_on("the beginning");
    Some(chain)
}

#[test]
fn frames_go_from_a_server_of_dpdk_to_its_client_whoever_is_killed_or_frozen() {
    let Some(mut chain) = chain("testpmd-there", ["a", "b?role=server"]) else {
        return;
    };
    chain.testpmd = None;
    chain.goes_on("testpmd was killed");
    drop(chain.sending.take());
    chain.send();
    chain.goes_on("the sender was killed");
    drop(chain.taking.take());
    chain.take();
    std::thread::sleep(Duration::from_millis(300));
    if let Some(testpmd) = &mut chain.testpmd {
        testpmd.say("stop\nport stop 1\nport start 1\nstart");
    }
    chain.goes_on("the taker was killed");
    for frozen in 0..2 {
        let signal = |signal: &str| match (frozen, &chain.testpmd, &chain.taking) {
            (0, Some(testpmd), _) => testpmd.signal(signal),
            (_, _, Some(taking)) => taking.signal(signal),
            _ => panic!("both live"),
        };
        signal("STOP");
        std::thread::sleep(Duration::from_millis(700));
        signal("CONT");
        chain.goes_on("a freeze");
    }
    chain.all_right();
}

#[test]
fn frames_go_from_a_client_of_dpdk_to_its_server_and_on_after_it_was_killed() {
    let Some(mut chain) = chain("testpmd-back", ["b?role=server", "a"]) else {
        return;
    };
    chain.testpmd = None;
    chain.goes_on("testpmd was killed");
    chain.all_right();
}
