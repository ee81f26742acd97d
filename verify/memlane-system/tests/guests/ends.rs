//! Programs of a test's own (`ends/end.c`) with one connection between them: each hashes what it sends and what it takes.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memlane_system::blocks::must;
use memlane_system::pair::{Alone, Hashes};

use super::{ENOUGH, Machine, PATIENCE};

/// Bytes that each end sends while the other does.
const FLOOD: usize = 4 << 20;
/// The same, where something is to happen meanwhile.
const LONG: usize = 64 << 20;

/// One end of a connection, on either kind of machine.
pub(crate) trait Side {
    fn tell(&mut self, order: &str);
    fn answer(&mut self) -> Hashes;
    /// Bytes of its connection: sent and taken by the lane, then sent and taken by TCP.
    fn bytes(&mut self) -> [u64; 4];
    /// What is known of its connection.
    fn describe(&mut self) -> String;
}

impl Side for Alone {
    fn tell(&mut self, order: &str) {
        self.end.tell(order);
    }

    fn answer(&mut self) -> Hashes {
        self.end.answer()
    }

    fn bytes(&mut self) -> [u64; 4] {
        self.end.conn().map_or([0; 4], |conn| conn.bytes)
    }

    fn describe(&mut self) -> String {
        format!("{:?}", self.end.conn())
    }
}

impl Side for Machine {
    fn tell(&mut self, order: &str) {
        self.begins(&format!("echo {order} >&3"));
    }

    fn answer(&mut self) -> Hashes {
        let line = self.answer_that(|line| line.starts_with("done ") || line.starts_with("end:"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let hash =
            |n: usize| u64::from_str_radix(words[n], 16).unwrap_or_else(|_| panic!("{line}"));
        Hashes {
            sent: hash(1),
            taken: hash(2),
        }
    }

    fn bytes(&mut self) -> [u64; 4] {
        let said = self.shell("memlane ss --json");
        let parsed: serde_json::Value = serde_json::from_str(&said).expect(&said);
        let carried = |flow: &str, way: &str| parsed["connections"][0][flow][way].as_u64();
        [
            carried("tx", "ring_bytes"),
            carried("rx", "ring_bytes"),
            carried("tx", "tcp_bytes"),
            carried("rx", "tcp_bytes"),
        ]
        .map(Option::unwrap_or_default)
    }

    fn describe(&mut self) -> String {
        self.shell("memlane ss; cat /tmp/agent.log")
    }
}

/// Has both ends send this much at the same time.
pub(crate) fn flood_begins(ends: &mut [&mut dyn Side; 2], bytes: usize) {
    static SEED: AtomicU32 = AtomicU32::new(1);
    for end in ends.iter_mut() {
        let seed = SEED.fetch_add(1, Ordering::Relaxed);
        end.tell(&format!("both {seed} {bytes} {bytes}"));
    }
}

/// Each end has to receive what the other one sent.
pub(crate) fn flood_arrives(ends: &mut [&mut dyn Side; 2]) {
    let [one, other] = ends.each_mut().map(|end| end.answer());
    assert_eq!((one.sent, one.taken), (other.taken, other.sent));
    assert_ne!(one.sent, other.sent, "each sends its own");
}

/// Both ends send, and the second one's machine is stopped in the middle of that.
pub(crate) fn flood_while_stopped(ends: &mut [&mut dyn Side; 2], stopped: u32, pause: Duration) {
    let taken = |end: &mut dyn Side| {
        let [_, by_lane, _, by_tcp] = end.bytes();
        by_lane + by_tcp
    };
    let before = taken(ends[0]);
    flood_begins(ends, LONG);
    let begin = Instant::now();
    while taken(ends[0]) == before {
        assert!(begin.elapsed() < PATIENCE, "{}", ends[0].describe());
    }
    signal("-STOP", stopped);
    std::thread::sleep(pause);
    let meanwhile = taken(ends[0]) - before;
    signal("-CONT", stopped);
    assert!(meanwhile < LONG as u64, "it was over before");
    flood_arrives(ends);
}

fn signal(name: &str, pid: u32) {
    let mut kill = Command::new("kill");
    kill.args([name, &pid.to_string()]);
    must(kill);
}

/// The lane opens, and carries a lot. It need not carry most: a receiver that sleeps gets its next bytes by TCP.
pub(crate) fn opens(mut ends: [&mut dyn Side; 2]) {
    let (begin, mut bytes) = (Instant::now(), 100_000);
    while begin.elapsed() < PATIENCE {
        flood_begins(&mut ends, bytes);
        flood_arrives(&mut ends);
        let [sent, taken, ..] = ends[0].bytes();
        if sent > 0 && taken > 0 {
            if sent + taken > ENOUGH {
                assert_eq!(ends[1].bytes()[..2], [taken, sent]);
                return;
            }
            bytes = FLOOD;
        }
    }
    panic!("{}", ends.map(|end| end.describe()).join("\n"));
}
