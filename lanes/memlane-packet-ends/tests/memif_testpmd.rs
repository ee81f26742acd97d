//! memif with DPDK at the other end: testpmd sends every frame back, and what comes back is compared.

use memlane_fixtures::frames::{copied, frame};
use memlane_fixtures::random::Random;
use memlane_packet::{Detach, Meta, PacketPort, Sent, Sleep};
use memlane_packet_ends::memif::{
    ClientTerms, MemifLink, MemifListener, MemifQueue, ServerTerms, connect_until,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// A folder of its own, which goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("memlane-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn socket(&self) -> String {
        self.0.join("memif.sock").to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// testpmd, which sends back what comes; killed when dropped.
struct Testpmd {
    child: Child,
    log: PathBuf,
}

impl Testpmd {
    /// `None`: it is not installed.
    fn start(folder: &Folder, role: &str, queues: u16) -> Option<Testpmd> {
        let log = folder.0.join("testpmd.log");
        let socket = folder.socket();
        let vdev = format!("net_memif0,role={role},socket={socket},socket-abstract=no");
        let output = File::create(&log).unwrap();
        let child = Command::new("dpdk-testpmd")
            .args([
                "--no-huge",
                "--no-pci",
                "--no-telemetry",
                "--no-shconf",
                "-m",
                "128",
            ])
            // Two threads on whatever cores there are: the second one forwards.
            .args(["--lcores", "(0,1)@(0-1)"])
            .arg(format!("--vdev={vdev}"))
            .args([
                "--",
                "--interactive",
                "--forward-mode=io",
                "--no-lsc-interrupt",
            ])
            // Else it throws away what came before it was told to start.
            .args(["--total-num-mbufs=8192", "--no-flush-rx"])
            .args([format!("--rxq={queues}"), format!("--txq={queues}")])
            .stdin(Stdio::piped())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                let required = std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_some();
                assert!(!required, "dpdk-testpmd: {error}");
                eprintln!("SKIPPED: dpdk-testpmd is not installed (Debian: dpdk-dev): {error}");
                return None;
            }
        };
        let mut testpmd = Testpmd { child, log };
        // It waits for the line in its pipe.
        testpmd.say("start");
        Some(testpmd)
    }

    fn say(&mut self, line: &str) {
        self.tell(line).unwrap();
    }

    fn tell(&mut self, line: &str) -> std::io::Result<()> {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What it has to say comes out of its buffers when it goes.
            let _ = self.tell("show config fwd\nshow fwd stats all\nquit");
            std::thread::sleep(Duration::from_secs(2));
        }
        self.kill();
        if std::thread::panicking() {
            eprintln!("testpmd: {}", self.log());
        }
    }
}

/// testpmd never sleeps: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

type Side = (MemifLink, Vec<MemifQueue>);

fn client(folder: &Folder, terms: &ClientTerms) -> Side {
    connect_until(&folder.socket(), terms, Instant::now() + LIMIT).unwrap()
}

fn send(queue: &mut MemifQueue, number: u64, len: usize) -> Sent {
    let bytes = frame(number, len).0;
    let fill = |room: &memlane_packet::Room<'_>| {
        room.copy_in(0, &bytes);
    };
    queue.send(len, Meta::default(), fill).unwrap()
}

/// Sends frames and takes them back, `window` of them under way at most. Lost ones: none.
fn there_and_back(queue: &mut MemifQueue, frames: u64, lens: (usize, usize), window: usize) {
    let mut random = Random(frames + lens.0 as u64);
    let mut away: VecDeque<(u64, usize)> = VecDeque::new();
    let (mut sent, mut back) = (0, 0);
    let (mut end, mut before) = (Instant::now() + LIMIT, 0);
    while back < frames {
        if back > before {
            (end, before) = (Instant::now() + LIMIT, back);
        }
        assert!(
            Instant::now() < end,
            "{back} of {frames} frames of {lens:?} came back"
        );
        while sent < frames && away.len() < window {
            let len = lens.0 + usize::try_from(random.below((lens.1 - lens.0 + 1) as u64)).unwrap();
            if send(queue, sent, len) != Sent::Queued {
                break;
            }
            away.push_back((sent, len));
            sent += 1;
        }
        queue.flush().unwrap();
        queue
            .wait(Sleep::FOR_FRAMES, Duration::from_millis(100))
            .unwrap();
        queue
            .receive(64, |lent| {
                let (number, len) = away.pop_front().expect("a frame that nobody sent");
                assert_eq!(lent.len(), len, "frame {number}");
                assert_eq!(copied(lent).0, frame(number, len).0, "frame {number}");
                back += 1;
            })
            .unwrap();
    }
    // Nothing more comes: no frame twice.
    let more = queue.wait(Sleep::FOR_FRAMES, Duration::from_millis(50));
    assert_eq!(more, Ok(false));
}

fn all_sizes(queue: &mut MemifQueue) {
    for len in [64, 1496, 2048, 2049, 4096, 9000] {
        there_and_back(queue, 1000, (len, len), 100);
    }
    // Short ones where long ones lay, and the other way round.
    there_and_back(queue, 5_000, (64, 9000), 60);
    there_and_back(queue, 5_000, (64, 64), 500);
}

#[test]
fn a_server_of_dpdk_sends_back_every_frame_of_64_to_9000_bytes() {
    let _alone = alone();
    let folder = Folder::new("memif-dpdk-server");
    let Some(_testpmd) = Testpmd::start(&folder, "server", 1) else {
        return;
    };
    let (link, mut queues) = client(&folder, &ClientTerms::default());
    all_sizes(&mut queues[0]);
    assert_eq!(link.ended(), None);
}

#[test]
fn a_client_of_dpdk_sends_back_every_frame_of_64_to_9000_bytes() {
    let _alone = alone();
    let folder = Folder::new("memif-dpdk-client");
    let listener = MemifListener::bind(&folder.socket()).unwrap();
    let Some(_testpmd) = Testpmd::start(&folder, "client", 1) else {
        return;
    };
    let (link, mut queues) = listener.accept(&ServerTerms::default(), LIMIT).unwrap();
    all_sizes(&mut queues[0]);
    assert_eq!(link.ended(), None);
}

/// Under traffic: sends until the other side is gone, and says why.
fn until_gone(queue: &mut MemifQueue) -> Detach {
    let end = Instant::now() + LIMIT;
    let mut number = 0;
    while Instant::now() < end {
        let done = queue
            .send(1496, Meta::default(), |room| {
                room.copy_in(0, &frame(number, 1496).0);
            })
            .and_then(|_| queue.flush())
            .and_then(|()| queue.receive(64, |_| ()))
            .and_then(|_| queue.wait(Sleep::FOR_FRAMES, Duration::from_millis(1)));
        if let Err(why) = done {
            return why;
        }
        number += 1;
    }
    panic!("nobody noticed in {LIMIT:?}");
}

/// Has it stop. DPDK's driver unmaps a region when its peer goes, while its own forwarding thread may be in it, and dies
/// of that (22.11); so it must be still before we go.
fn still(testpmd: &mut Testpmd, queue: &mut MemifQueue) {
    testpmd.say("stop");
    let end = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < end, "it does not stop");
        send(queue, 0, 64);
        queue.flush().unwrap();
        let back = queue.wait(Sleep::FOR_FRAMES, Duration::from_millis(300));
        if !back.unwrap() {
            return;
        }
        queue.receive(64, |_| ()).unwrap();
    }
}

#[test]
fn several_queues_go_to_either_side_of_dpdk() {
    let _alone = alone();
    let folder = Folder::new("memif-dpdk-queues");
    let Some(testpmd) = Testpmd::start(&folder, "server", 3) else {
        return;
    };
    let terms = ClientTerms {
        queues: 3,
        ..ClientTerms::default()
    };
    let (_link, mut queues) = client(&folder, &terms);
    for queue in &mut queues {
        there_and_back(queue, 2000, (64, 9000), 50);
    }
    drop(testpmd);
    let folder = Folder::new("memif-dpdk-queues-client");
    let listener = MemifListener::bind(&folder.socket()).unwrap();
    let Some(_testpmd) = Testpmd::start(&folder, "client", 3) else {
        return;
    };
    let (_link, mut queues) = listener.accept(&ServerTerms::default(), LIMIT).unwrap();
    assert_eq!(queues.len(), 3);
    for queue in &mut queues {
        there_and_back(queue, 2000, (64, 9000), 50);
    }
}

#[test]
fn a_server_of_dpdk_that_is_killed_under_traffic_is_found_again() {
    let _alone = alone();
    let folder = Folder::new("memif-dpdk-killed-server");
    let Some(mut testpmd) = Testpmd::start(&folder, "server", 1) else {
        return;
    };
    let (link, mut queues) = client(&folder, &ClientTerms::default());
    there_and_back(&mut queues[0], 1000, (64, 1496), 50);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        testpmd.kill();
    });
    assert_eq!(until_gone(&mut queues[0]), Detach::PeerGone);
    killer.join().unwrap();
    drop((link, queues));
    // DPDK does not replace the socket of a dead process; who starts it again does.
    std::fs::remove_file(folder.socket()).unwrap();
    let Some(mut testpmd) = Testpmd::start(&folder, "server", 1) else {
        return;
    };
    let (link, mut queues) = client(&folder, &ClientTerms::default());
    there_and_back(&mut queues[0], 1000, (64, 9000), 50);
    // We go and come back: the server takes us again.
    still(&mut testpmd, &mut queues[0]);
    drop((link, queues));
    testpmd.say("start");
    let (_link, mut queues) = client(&folder, &ClientTerms::default());
    there_and_back(&mut queues[0], 1000, (64, 9000), 50);
}

#[test]
fn a_client_of_dpdk_that_is_killed_under_traffic_is_taken_again_and_takes_us_again() {
    let _alone = alone();
    let folder = Folder::new("memif-dpdk-killed-client");
    let listener = MemifListener::bind(&folder.socket()).unwrap();
    let Some(mut testpmd) = Testpmd::start(&folder, "client", 1) else {
        return;
    };
    let (link, mut queues) = listener.accept(&ServerTerms::default(), LIMIT).unwrap();
    there_and_back(&mut queues[0], 1000, (64, 1496), 50);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        testpmd.kill();
    });
    assert_eq!(until_gone(&mut queues[0]), Detach::PeerGone);
    killer.join().unwrap();
    drop((link, queues));
    let Some(mut testpmd) = Testpmd::start(&folder, "client", 1) else {
        return;
    };
    let (link, mut queues) = listener.accept(&ServerTerms::default(), LIMIT).unwrap();
    there_and_back(&mut queues[0], 1000, (64, 9000), 50);
    // We go and come back; its driver connects when its port starts, and then only.
    still(&mut testpmd, &mut queues[0]);
    drop((link, queues, listener));
    let listener = MemifListener::bind(&folder.socket()).unwrap();
    testpmd.say("port stop 0\nport start 0\nstart");
    let (_link, mut queues) = listener.accept(&ServerTerms::default(), LIMIT).unwrap();
    there_and_back(&mut queues[0], 1000, (64, 9000), 50);
}
