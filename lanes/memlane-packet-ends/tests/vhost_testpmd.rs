//! vhost-user with DPDK's `virtio_user` at the other end: testpmd sends every frame back, and what comes back is looked
//! at.
#![cfg(feature = "vhost")]

use memlane_packet::Meta;
use memlane_packet::Offloads;
use memlane_packet_ends::generate::{Generator, Plan, Sink};
use memlane_packet_ends::join::{Join, Terms};
use memlane_packet_ends::tally::Verdict;
use memlane_packet_ends::vhost::{Role, VhostDoor, VhostQueue, VhostTerms};
use memlane_packet_ends::{End, EndCounts, EndError, Frame, More, Sent, Sleep, lend};
use rustix::event::PollFd;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// testpmd, which sends back what comes; killed when dropped.
struct Testpmd(Child, PathBuf);

impl Testpmd {
    /// `None`: it is not installed.
    fn start(folder: &Folder, features: &str, long: bool) -> Option<Testpmd> {
        let log = folder.0.join("testpmd.log");
        let output = File::create(&log).unwrap();
        let socket = folder.0.join("socket");
        let vdev = format!("net_virtio_user0,path={}{features}", socket.display());
        let child = Command::new("dpdk-testpmd")
            .args(["--no-huge", "--no-pci", "--no-telemetry", "--no-shconf"])
            .args(["-m", "256", "--lcores", "(0,1)@(0-1)"])
            .arg(format!("--vdev={vdev}"))
            .args(["--", "--interactive", "--forward-mode=io", "--no-flush-rx"])
            .args(["--total-num-mbufs=8192", "--tx-offloads=0x8000"])
            .args(
                long.then_some(["--max-pkt-len=9500", "--enable-scatter"])
                    .into_iter()
                    .flatten(),
            )
            .stdin(Stdio::piped())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                let required = std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_some();
                assert!(!required, "dpdk-testpmd: {error}");
                eprintln!("SKIPPED: dpdk-testpmd is not installed (Debian: dpdk-dev): {error}");
                return None;
            }
        };
        writeln!(child.stdin.as_mut().unwrap(), "start").unwrap();
        Some(Testpmd(child, log))
    }

    /// Ends it; how many frames it had no room for.
    fn dropped(mut self) -> u64 {
        writeln!(self.0.stdin.as_mut().unwrap(), "stop\nquit").unwrap();
        self.0.wait().unwrap();
        let log = std::fs::read_to_string(&self.1).unwrap();
        let (_, rest) = log.split_once("TX-dropped:").expect("its counts");
        rest.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.1);
            eprintln!("testpmd: {}", log.unwrap_or_default());
        }
    }
}

/// Frames come from a generator, and go to a sink.
#[derive(Debug)]
struct Both(Generator, Sink);

impl End for Both {
    fn name(&self) -> &'static str {
        "both"
    }

    fn offloads(&self) -> Offloads {
        self.1.offloads()
    }

    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        match self.0.receive(most, take) {
            // They still have to come back.
            Err(EndError::Finished) => Ok(0),
            got => got,
        }
    }

    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        self.1.send(frame)
    }

    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        Ok(false)
    }

    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}

    fn verdict(&self) -> Option<Verdict> {
        self.1.verdict()
    }

    fn counts(&self) -> EndCounts {
        self.1.counts()
    }
}

/// DPDK throws away what comes before its port has started (`virtio_dev_start` flushes the ring), and that is after its
/// driver has: frames are sent until one comes back, and all of those taken.
fn until_one_comes_back(queue: &mut VhostQueue) {
    let (end, silence) = (Instant::now() + LIMIT, Duration::from_millis(300));
    let mut last = None;
    while last.is_none_or(|last: Instant| last.elapsed() < silence) {
        assert!(Instant::now() < end, "nothing comes back");
        if last.is_none() {
            lend(&[0xff; 64], Meta::default(), &mut |frame| {
                queue.send(frame).unwrap();
                More::No
            });
            queue.flush().unwrap();
        }
        if queue.receive(32, &mut |_| More::Yes).unwrap() > 0 {
            last = Some(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Has testpmd send `count` frames back, over rings of this kind.
fn there_and_back(label: &str, features: &str, sizes: (usize, usize), count: u64) {
    let path =
        std::env::temp_dir().join(format!("memlane-vhost-pmd-{label}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let folder = Folder(path);
    let terms = VhostTerms {
        // DPDK's is not sealed.
        any_memory: true,
        ..VhostTerms::default()
    };
    let socket = folder.0.join("socket");
    let door = VhostDoor::open(socket.to_str().unwrap(), Role::Server, &terms).unwrap();
    let Some(testpmd) = Testpmd::start(&folder, features, sizes.1 > 1514) else {
        return;
    };
    let (_link, mut queues) = door.accept(LIMIT).unwrap();
    until_one_comes_back(&mut queues[0]);
    let before = queues[0].counts().sent;
    let plan = Plan {
        stream: 5,
        sizes,
        count,
        rate: 0,
    };
    let both = Box::new(Both(Generator::new(plan.checked().unwrap()), Sink::new()));
    let mut join = Join::new(both, Box::new(queues.remove(0)), Terms::default()).unwrap();
    let end = Instant::now() + LIMIT;
    let good = |join: &Join| join.ends()[0].verdict().map_or(0, |seen| seen.good);
    let (mut seen, mut since) = (0, Instant::now());
    // testpmd drops what its own sender has no room for, so: until nothing comes any more.
    while seen < count && Instant::now() < end {
        join.step().unwrap();
        let now = good(&join);
        if now > seen {
            (seen, since) = (now, Instant::now());
        } else if seen > 0 && since.elapsed() > Duration::from_secs(4) {
            break;
        }
    }
    let verdict = join.ends()[0].verdict().unwrap();
    let counts = join.ends()[1].counts();
    println!("{label}: {verdict:?} {counts:?}");
    let wrong = verdict.changed + verdict.strange + verdict.twice + verdict.late;
    assert!(wrong == 0 && verdict.good > count / 2, "{verdict:?}");
    assert_eq!((counts.sent - before, counts.failed), (count, 0));
    assert_eq!(verdict.good + testpmd.dropped(), count, "lost between us");
}

#[test]
fn testpmd_sends_back_what_it_is_sent() {
    // testpmd never sleeps: one after another.
    there_and_back("merged", "", (64, 1514), 50_000);
    there_and_back("jumbo", "", (64, 9000), 20_000);
    there_and_back("plain", ",mrg_rxbuf=0", (64, 1514), 20_000);
    there_and_back("small", ",queue_size=64", (64, 64), 50_000);
}
