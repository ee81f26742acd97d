//! The vhost-user frontend against virtual machine monitors that break the protocol: each is told why (or hung up on), and the next one is
//! served.
#![cfg(feature = "vhost")]

#[path = "support/front.rs"]
mod front;
#[path = "support/slow.rs"]
mod slow;
#[path = "support/mod.rs"]
mod support;

use front::{
    F_CONFIG_WCE, F_FLUSH, FREE, Front, INDIRECT, MEMORY, NEXT, RING, USER, WRITE, addresses, state,
};
use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Errno, Flags, Info, Op};
use memlane_block_frontends::vhost::{self, Event, Options, Served};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Folder, Rng};

const SIZE: u64 = 4 << 20;
const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

struct Bench {
    memory: MemVolume,
    stuck: Arc<AtomicBool>,
    submitted: Arc<AtomicUsize>,
    told: Receiver<Event>,
    socket: PathBuf,
    served: Served,
    _folder: Folder,
}

fn bench(drain: Duration, change: impl FnOnce(&mut Info)) -> Bench {
    let folder = Folder::new();
    let memory = MemVolume::with(SIZE, change).unwrap();
    let volume = slow::SlowVolume::new(memory.clone(), 2);
    let (stuck, submitted) = (Arc::clone(&volume.stuck), Arc::clone(&volume.submitted));
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let options = Options {
        queues: 2,
        serial: "serial".into(),
        drain,
        any_memory: false,
        told: Some(Arc::new(move |event| {
            drop(tell.lock().unwrap().send(event))
        })),
    };
    let socket = folder.at("socket");
    let served = vhost::serve(Arc::new(volume), &socket, &options).unwrap();
    Bench {
        memory,
        stuck,
        submitted,
        told,
        socket,
        served,
        _folder: folder,
    }
}

fn plain() -> Bench {
    bench(support::LIMIT, |_| {})
}

impl Bench {
    fn hears(&self) -> Event {
        self.told.recv_timeout(support::LIMIT).unwrap()
    }

    /// Waits until this number of requests has come to the volume.
    fn has(&self, requests: usize) {
        while self.submitted.load(Ordering::SeqCst) < requests {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A front end that behaves finds all well.
    fn works(&self) {
        let mut front = Front::ready(&self.socket, 0);
        let bytes = Rng(9).bytes(300_000 / 512 * 512);
        assert_eq!(front.write(8, &bytes), OK);
        let (status, read) = front.read(8, u32::try_from(bytes.len()).unwrap());
        assert_eq!(status, OK);
        assert!(read == bytes);
    }
}

#[test]
fn one_after_another_is_served() {
    let bench = plain();
    for _ in 0..5 {
        bench.works();
        assert_eq!(bench.hears(), Event::Gone(None));
    }
}

#[test]
fn descriptors_do_not_become_more_with_connections() {
    let bench = plain();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    bench.works();
    bench.hears();
    // Other tests run in this process, too: a leak of some per connection shows through them.
    let before = open();
    for _ in 0..100 {
        drop(Front::connect(&bench.socket));
        bench.hears();
    }
    assert!(open() < before + 100, "{before} then {}", open());
}

#[test]
fn what_a_disk_is_asked_it_answers() {
    let bench = bench(support::LIMIT, |info| info.max_trim = 4096);
    let mut front = Front::ready(&bench.socket, F_FLUSH);
    assert_eq!(front.request(8, 0, Some((FREE, 20, true))), OK);
    assert_eq!(front.peek(FREE, 20), b"serial\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(front.request(8, 0, Some((FREE, 19, true))), IOERR);
    assert_eq!(front.request(4, 0, None), OK);
    assert_eq!(front.write(0, &[7; 16384]), OK);
    let range = |sector: u64, sectors: u32, flags: u32| {
        [
            &sector.to_le_bytes()[..],
            &sectors.to_le_bytes(),
            &flags.to_le_bytes(),
        ]
        .concat()
    };
    // Sectors 1 to 17 and 30 to 31: more than the volume takes at a time.
    front.poke(FREE, &[range(1, 17, 0), range(30, 1, 0)].concat());
    assert_eq!(front.request(13, 0, Some((FREE, 32, false))), OK);
    let (_, read) = front.read(0, 16384);
    let zeros: Vec<usize> = (0..32).filter(|sector| read[sector * 512] == 0).collect();
    assert_eq!(zeros, [(1..18).collect(), vec![30]].concat());
    front.poke(FREE, &range(0, 1, 1));
    assert_eq!(front.request(13, 0, Some((FREE, 16, false))), OK);
    assert_eq!(
        front.request(11, 0, Some((FREE, 16, false))),
        UNSUPP,
        "no such flag"
    );
    front.poke(FREE, &range(SIZE / 512, 1, 0));
    assert_eq!(front.request(11, 0, Some((FREE, 16, false))), IOERR);
    assert_eq!(front.request(999, 0, None), UNSUPP);
    let config = front.config(0, 60);
    assert_eq!(config[..8], (SIZE / 512).to_le_bytes());
    assert_eq!(
        config[36..40],
        8_u32.to_le_bytes(),
        "discards of 4096 bytes"
    );
    let ops = bench.memory.log();
    let zeroes: Vec<_> = ops.iter().filter(|op| op.0 == Op::WriteZeroes).collect();
    assert_eq!(zeroes.len(), 5);
    assert!(zeroes[..4].iter().all(|op| op.3.has(Flags::NO_HOLE)) && zeroes[4].3 == Flags::NONE);
}

#[test]
fn a_guest_without_a_cache_has_what_it_wrote() {
    let bench = plain();
    // Neither knows of flushes: each write is durable.
    let mut front = Front::ready(&bench.socket, 0);
    assert_eq!(front.write(0, &[1; 512]), OK);
    drop(front);
    bench.hears();
    // Both know, and the guest switches.
    let mut front = Front::ready(&bench.socket, F_FLUSH | F_CONFIG_WCE);
    assert_eq!(front.write(0, &[2; 512]), OK);
    let mut body = [32_u32.to_le_bytes(), 1_u32.to_le_bytes(), [0; 4]].concat();
    body.push(0);
    front.send(front::SET_CONFIG, &body, &[]);
    assert_eq!(front.config(32, 1), [0]);
    assert_eq!(front.write(0, &[3; 512]), OK);
    let fua: Vec<bool> = bench
        .memory
        .log()
        .iter()
        .map(|op| op.3.has(Flags::FUA))
        .collect();
    assert_eq!(fua, [true, false, true]);
}

#[test]
fn errors_of_the_volume_are_the_guests() {
    let bench = plain();
    let mut front = Front::ready(&bench.socket, F_FLUSH);
    bench.memory.fail_with(Some(Errno(libc::EIO)));
    assert_eq!(front.write(0, &[1; 512]), IOERR);
    assert_eq!(front.read(0, 512).0, IOERR);
    assert_eq!(front.request(4, 0, None), IOERR);
    bench.memory.fail_with(Some(Errno(libc::EOPNOTSUPP)));
    assert_eq!(front.request(4, 0, None), UNSUPP);
    bench.memory.fail_with(None);
    assert_eq!(front.write(0, &[1; 512]), OK);
}

#[test]
fn a_disk_that_is_read_only_is_not_written() {
    let bench = bench(support::LIMIT, |info| info.read_only = true);
    let mut front = Front::ready(&bench.socket, 1 << 5);
    assert_eq!(front.write(0, &[1; 512]), IOERR);
    assert_eq!(front.read(0, 512), (OK, vec![0; 512]));
    assert!(bench.memory.log().iter().all(|op| op.0 == Op::Read));
}

#[test]
fn a_ring_that_stops_waits_for_its_requests() {
    let bench = plain();
    let mut front = Front::ready(&bench.socket, 0);
    bench.stuck.store(true, Ordering::SeqCst);
    front.begin(0, 0, Some((FREE, 4096, true)));
    bench.has(1);
    front.send(front::GET_VRING_BASE, &state(0, 0), &[]);
    bench.stuck.store(false, Ordering::SeqCst);
    assert_eq!(front.answer(), state(0, 1));
    assert_eq!((front.used(), front.status()), (1, OK));
}

#[test]
fn a_ring_that_stops_does_not_wait_for_a_stuck_volume_for_ever() {
    let bench = bench(Duration::from_millis(200), |_| {});
    let mut front = Front::ready(&bench.socket, 0);
    bench.stuck.store(true, Ordering::SeqCst);
    // More parts than leases: one waits for memory, too.
    front.begin(0, 0, Some((FREE, 0x80000, true)));
    bench.has(2);
    assert_eq!(front.ask(front::GET_VRING_BASE, &state(0, 0)), state(0, 1));
    assert_eq!((front.used(), front.status()), (1, IOERR));
    bench.stuck.store(false, Ordering::SeqCst);
    front.start();
    assert_eq!(front.read(0, 4096).0, OK);
}

/// As after a reboot, when the guest's memory begins anew under a ring that goes on; or a guest that lies.
#[test]
fn a_ring_whose_index_cannot_be_keeps_nobody_busy() {
    let bench = plain();
    for index in [0, 1000, u16::MAX] {
        let mut front = Front::ready(&bench.socket, 0);
        for _ in 0..3 {
            assert_eq!(front.read(0, 4096).0, OK);
        }
        front.claim(index);
        // Who looked at the ring has stopped: it can be taken away.
        let base = front.ask(front::GET_VRING_BASE, &state(0, 0));
        assert_eq!(base, state(0, 3), "index {index}");
        drop(front);
    }
    bench.works();
}

#[test]
fn memory_that_could_be_taken_away_is_not_touched() {
    let bench = plain();
    let open = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&open, MEMORY as u64).unwrap();
    let short = memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&short, 4096).unwrap();
    fcntl_add_seals(&short, SealFlags::SHRINK).unwrap();
    for (file, why) in [(open, "seal"), (short, "end of its file")] {
        let mut front = Front::ready(&bench.socket, 0);
        assert_eq!(front.write(0, &[1; 512]), OK);
        // The ring is in use, and goes on being used, while the memory is exchanged.
        let good = std::mem::replace(&mut front.file, file);
        front.share(&[(0, MEMORY as u64, USER, 0)]);
        for _ in 0..20 {
            front.give(0);
        }
        front.is_hung_up_on();
        drop(good);
        let Event::Gone(Some(said)) = bench.hears() else {
            panic!("no reason");
        };
        assert!(said.contains(why), "{said}");
    }
    bench.works();
}

#[test]
fn descriptors_that_are_no_eventfds_are_not_used() {
    let bench = plain();
    let front = Front::ready(&bench.socket, 0);
    front.send(
        front::SET_VRING_KICK,
        &0_u64.to_le_bytes(),
        &[front.file.as_fd()],
    );
    front.send(
        front::SET_VRING_CALL,
        &0_u64.to_le_bytes(),
        &[front.socket.as_fd()],
    );
    drop(front);
    bench.hears();
    bench.works();
}

#[test]
fn serving_ends_also_under_a_machine_that_uses_it() {
    let mut bench = plain();
    let mut front = Front::ready(&bench.socket, 0);
    assert_eq!(front.write(0, &[1; 512]), OK);
    bench.served.stop();
    assert!(!bench.socket.exists());
    front.is_hung_up_on();
}

#[test]
fn chains_that_lead_nowhere_come_back_and_harm_nobody() {
    let bench = plain();
    let mut front = Front::ready(&bench.socket, 0);
    let outside = 1 << 40;
    let end = MEMORY as u64;
    let chains: [&[(u64, u32, u16, u16)]; 11] = [
        &[(outside, 16, 0, 0)],
        &[(FREE, 16, NEXT, 0)],
        &[(FREE, 16, NEXT, 1), (FREE, 16, NEXT, 0)],
        &[(FREE, 16, NEXT, 40_000)],
        &[(FREE, 0, WRITE, 0)],
        &[
            (FREE, u32::MAX, NEXT, 1),
            (FREE, u32::MAX, NEXT | WRITE, 2),
            (FREE, 1, WRITE, 0),
        ],
        // Half of the data is outside.
        &[
            (FREE, 16, NEXT, 1),
            (end - 512, 1024, NEXT | WRITE, 2),
            (FREE + 100, 1, WRITE, 0),
        ],
        // The status is outside.
        &[
            (FREE, 16, NEXT, 1),
            (FREE + 512, 512, NEXT | WRITE, 2),
            (outside, 1, WRITE, 0),
        ],
        &[(0, 16, INDIRECT, 0)],
        &[(outside, 64, INDIRECT, 0)],
        &[(0, 0xffff_fff0, INDIRECT, 0)],
    ];
    front.poke(FREE, &[0; 64]);
    for chain in chains {
        for (number, (at, len, flags, next)) in chain.iter().enumerate() {
            front.descriptor(number as u64, *at, *len, *flags, *next);
        }
        front.give(0);
        front.wait();
    }
    // Heads that are none, and an index far ahead: the ring is dead, and only the ring.
    front.give(RING + 5);
    front.claim(30_000);
    drop(front);
    bench.hears();
    bench.works();
}

#[test]
fn garbage_in_the_rings_is_survived() {
    let bench = bench(Duration::from_millis(500), |_| {});
    for seed in 1..60 {
        let mut rng = Rng(seed);
        let mut front = Front::ready(&bench.socket, 0);
        for _ in 0..rng.below(40) {
            let number = rng.below(8);
            let at = [FREE, rng.below(1 << 21), 0x3000][usize::try_from(rng.below(3)).unwrap()];
            let len = [1, 16, 512, 4096, u32::MAX][usize::try_from(rng.below(5)).unwrap()];
            let flags = u16::try_from(rng.below(8)).unwrap();
            let next = u16::try_from(rng.below(9)).unwrap();
            front.descriptor(number, at, len, flags, next);
            let kind = u32::try_from(rng.below(15)).unwrap();
            front.poke(0x3000, &kind.to_le_bytes());
            front.poke(0x3008, &rng.below(SIZE / 512 + 10).to_le_bytes());
            front.give(u16::try_from(rng.below(8)).unwrap());
        }
        drop(front);
        bench.hears();
    }
    bench.works();
}

#[test]
fn addresses_and_tables_that_cannot_be_are_refused_with_a_reason() {
    let bench = plain();
    let big = u64::MAX;
    let tables: [&[(u64, u64, u64, u64)]; 6] = [
        &[(0, 0, USER, 0)],
        &[(big, 4096, USER, 0)],
        &[(0, big, USER, 0)],
        &[(0, 4096, big - 1, 0)],
        // Longer than the file.
        &[(0, 1 << 40, USER, 0)],
        // One over another.
        &[(0, 8192, USER, 0), (4096, 8192, USER + 8192, 0)],
    ];
    for table in tables {
        let mut front = Front::connect(&bench.socket);
        front.negotiate(0);
        front.share(table);
        front.is_hung_up_on();
        let Event::Gone(Some(why)) = bench.hears() else {
            panic!("{table:?}: no reason");
        };
        assert!(!why.is_empty());
    }
    let rings = [
        addresses(0, 0, 0),
        addresses(USER + 1, USER + 0x2000, USER + 0x1000),
        addresses(USER, USER + 0x2001, USER + 0x1000),
        addresses(USER + MEMORY as u64, USER, USER),
        addresses(big, big, big),
    ];
    for ring in rings {
        let mut front = Front::connect(&bench.socket);
        front.negotiate(0);
        front.share(&[(0, MEMORY as u64, USER, 0)]);
        front.send(front::SET_VRING_ADDR, &ring, &[]);
        front.is_hung_up_on();
        assert!(matches!(bench.hears(), Event::Gone(Some(_))));
    }
    for (index, num) in [(0, 0), (0, 100_000), (2, 64), (u32::MAX, 64)] {
        let mut front = Front::connect(&bench.socket);
        front.negotiate(0);
        front.send(front::SET_VRING_NUM, &state(index, num), &[]);
        front.is_hung_up_on();
        assert!(matches!(bench.hears(), Event::Gone(Some(_))));
    }
    bench.works();
}

#[test]
fn garbage_on_the_socket_is_survived() {
    let bench = plain();
    for seed in 1..80 {
        let mut rng = Rng(seed);
        let front = Front::connect(&bench.socket);
        for _ in 0..=rng.below(6) {
            let n = usize::try_from(rng.below(80)).unwrap();
            let body = rng.bytes(n);
            let request = u32::try_from(rng.below(45)).unwrap();
            let files = [front.file.as_fd(), front.socket.as_fd()];
            let files = &files[..usize::try_from(rng.below(3)).unwrap()];
            let sent = match rng.below(3) {
                0 => front.try_send_raw(&rng.bytes(n + 1), files),
                1 => front.try_send(request, &rng.below(3).to_le_bytes(), files),
                _ => front.try_send(request, &body, files),
            };
            if sent.is_err() {
                break;
            }
        }
        drop(front);
        bench.hears();
    }
    bench.works();
}

#[test]
fn a_socket_that_is_in_use_or_no_socket_is_left_alone() {
    let bench = plain();
    let volume = || Arc::new(bench.memory.clone());
    let again = vhost::serve(volume(), &bench.socket, &Options::default());
    assert_eq!(again.err().unwrap().kind(), std::io::ErrorKind::AddrInUse);
    let folder = Folder::new();
    let file = folder.at("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(vhost::serve(volume(), &file, &Options::default()).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    // One whose process is gone is taken over.
    let left = folder.at("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let served = vhost::serve(volume(), &left, &Options::default()).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(served.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}
