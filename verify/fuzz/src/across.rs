//! What lies in a region that several machines share, while two agents work there.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use memlane_agent::across::extents::Lifetime;
use memlane_agent::across::layout::{
    EXTENTS_AT, MACHINES, MEMORY_AT, PARTICIPANTS_AT, REGION_LEAST, RINGS_AT, Ring,
};
use memlane_agent::across::participants::Identity;
use memlane_agent::across::region::Region;
use memlane_agent::across::relay::{Act, Party, Relay};
use memlane_agent::kernel::{ESTABLISHED, INITIAL_USER_NAMESPACE, Record};
use memlane_agent::pairs::{Asker, Key, Pairs, Verdict};
use memlane_socket::protocol::agent::Role;

/// Milliseconds between two looks at the agents.
const STEP: u32 = 5;
/// One word that somebody writes: which area, which word of it, its value.
const SCRIBBLE: usize = 12;

/// Two agents, one connection between them, and a machine that writes these words while they talk: neither panics, no program
/// is told of memory outside the region, and both get their answers. `true`: they met.
pub fn region(bytes: &[u8]) -> bool {
    let Some(mut world) = World::new() else {
        return false; // no memory
    };
    let mut scribbles = bytes.chunks_exact(SCRIBBLE);
    world.pass(300, &mut scribbles);
    world.ask();
    world.pass(1_200, &mut scribbles);
    assert_eq!(world.answers, 2, "both ends are answered");
    world.met == 2
}

struct World {
    memory: File,
    now: Instant,
    machines: [(Relay, Pairs); 2],
    answers: usize,
    met: usize,
}

impl World {
    fn new() -> Option<World> {
        let memory = zeroed_memory()?;
        let now = Instant::now();
        let join = |name: &str, seed: u64| {
            let region = Region::map(Path::new("region"), memory.try_clone().ok()?.into()).ok()?;
            let identity = Identity::of(name, "boot", Path::new("/"), name.to_owned());
            let mut last = seed;
            let random = Box::new(move || {
                last += 1;
                last << 8
            });
            Relay::join(region, identity, random, &drop, now).ok()
        };
        let machines = [
            (join("one", 1)?, Pairs::new(8)),
            (join("other", 1 << 32)?, Pairs::new(8)),
        ];
        Some(World {
            memory,
            now,
            machines,
            answers: 0,
            met: 0,
        })
    }

    /// The one machine has the connecting end, the other the accepting one.
    fn ask(&mut self) {
        for ((relay, pairs), (role, record)) in self.machines.iter_mut().zip(ends()) {
            let asker = Asker { process: 1, id: 7 };
            assert_eq!(pairs.ask(asker, role, &record, self.now), Verdict::Wait);
            relay.ask(party(), Key::of(&record, role), role, pairs, self.now);
        }
    }

    fn pass<'a>(&mut self, ms: u32, scribbles: &mut impl Iterator<Item = &'a [u8]>) {
        for _ in 0..ms / STEP {
            self.now += Duration::from_millis(STEP.into());
            let scribble = scribbles.next();
            if let Some(scribble) = scribble {
                self.scribble(scribble);
            }
            if scribble.is_none() && self.answers == 2 {
                return;
            }
            for machine in 0..2 {
                self.turn(machine);
            }
        }
    }

    fn turn(&mut self, machine: usize) {
        let (relay, pairs) = &mut self.machines[machine];
        let mut over = 0;
        pairs.expire(self.now, |_| over += 1);
        self.answers += over;
        if relay.next() <= self.now {
            relay.turn(pairs, &|number| (number == 1).then(party), self.now);
        }
        for act in relay.acts() {
            match act {
                Act::Introduce { across, .. } => {
                    for at in [across.own, across.theirs] {
                        let end = at + u64::from(across.ring_size) * 64;
                        assert!(at >= MEMORY_AT as u64 && end <= REGION_LEAST as u64);
                        assert!(at.is_multiple_of(4096));
                    }
                    assert_ne!(across.own, across.theirs);
                    self.answers += 1;
                    self.met += 1;
                }
                Act::Refuse(..) => self.answers += 1,
                Act::Deliver(..) | Act::EndChannel(_) | Act::EndLine(_) => {}
            }
        }
    }

    /// Most often a word that is in use.
    fn scribble(&self, bytes: &[u8]) {
        let number = |part: &[u8]| part.iter().rev().fold(0, |n, &b| n << 8 | usize::from(b));
        let (area, word) = (bytes[0], number(&bytes[1..4]));
        let at = match area % 6 {
            0 => word % 3 * 8,
            1 => PARTICIPANTS_AT + word % 48 * 8,
            2 => EXTENTS_AT + word % 32 * 8,
            3 => ring(0, 1) + word % 208 * 8,
            4 => ring(1, 0) + word % 208 * 8,
            _ => word * 8 % RINGS_AT,
        };
        let _ = self.memory.write_all_at(&bytes[4..SCRIBBLE], at as u64);
    }
}

/// A region of zeros, as far as two machines look: memory that is allocated once and used again.
fn zeroed_memory() -> Option<File> {
    thread_local!(static MEMORY: Option<File> = unnamed_file());
    MEMORY.with(|memory| {
        let memory = memory.as_ref()?;
        let rings = [ring(0, 0), ring(0, 2), ring(1, 0), ring(1, 2)];
        for [from, to] in [[0, RINGS_AT], [rings[0], rings[1]], [rings[2], rings[3]]] {
            memory.write_all_at(&vec![0; to - from], from as u64).ok()?;
        }
        memory.try_clone().ok()
    })
}

/// Where the ring of messages from one machine to another lies.
fn ring(from: usize, to: usize) -> usize {
    RINGS_AT + (from * MACHINES + to) * size_of::<Ring>()
}

fn unnamed_file() -> Option<File> {
    let thread = std::thread::current().id();
    let path = format!("/dev/shm/memlane-fuzz-{}-{thread:?}", std::process::id());
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true);
    let file = file.open(&path).ok()?;
    std::fs::remove_file(&path).ok()?;
    file.set_len(REGION_LEAST as u64).ok()?;
    Some(file)
}

/// The one program of each machine.
fn party() -> Party {
    Party {
        number: 1,
        name: 1,
        lifetime: Lifetime { pid: 1, since: 1 },
    }
}

/// The two ends of a connection, as their kernels show them.
fn ends() -> [(Role, Record); 2] {
    let record = |inode, sends_from, receives_from| Record {
        fd: 3,
        state: ESTABLISHED,
        inode,
        sends_from,
        receives_from,
        network: 1,
        owner: INITIAL_USER_NAMESPACE,
        made_by: 0,
    };
    [
        (Role::Connected, record(1, 100, 201)),
        (Role::Accepted, record(2, 201, 101)),
    ]
}

/// Seeds of [`region`]: nothing written; a bond's name, a ring's end and a machine's boot.
pub(crate) fn scribbles() -> Vec<(&'static str, Vec<u8>)> {
    let scribble = |area: u8, word: u32, value: u64| {
        let mut bytes = word.to_le_bytes().to_vec();
        bytes.rotate_right(1);
        bytes[0] = area;
        bytes.extend(value.to_le_bytes());
        bytes
    };
    let later = |scribbles: &[Vec<u8>]| {
        let quiet = scribble(5, 0x10_0000, 0);
        [vec![quiet; 64].concat(), scribbles.concat()].concat()
    };
    vec![
        ("nothing", Vec::new()),
        ("boot", later(&[scribble(1, 4, 9)])),
        ("extent", later(&[scribble(2, 2, 9), scribble(2, 1, 1)])),
        (
            "ring",
            later(&[scribble(3, 0, u64::MAX), scribble(4, 8, 3)]),
        ),
    ]
}
