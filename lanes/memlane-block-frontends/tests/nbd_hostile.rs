//! Hostile and broken clients; other clients beside them must not notice.

mod nbd_support;

use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Errno, Op};
use memlane_block_frontends::nbd::wire::{self, cmd, error, opt, rep};
use nbd_support::{Raw, Served, noise};
use std::io::Write as _;
use std::net::Shutdown;
use std::time::Duration;

const SIZE: u64 = 64 << 20;

/// A server, and a client that works with it all the while.
struct Scene {
    served: Served,
    volume: MemVolume,
    neighbour: Raw,
    round: u64,
}

impl Scene {
    fn new() -> Scene {
        let volume = MemVolume::late(SIZE, |_| {}).unwrap();
        let served = Served::volume(volume.clone());
        let neighbour = served.client(true);
        Scene {
            served,
            volume,
            neighbour,
            round: 0,
        }
    }

    /// The neighbour writes and reads back, at the end of the volume.
    fn is_fine(&mut self) {
        self.round += 1;
        let (at, bytes) = (SIZE - (1 << 20), noise(100_000, self.round));
        assert_eq!(self.neighbour.write(at, &bytes).error, 0);
        assert!(self.neighbour.read(at, 100_000).data == bytes);
    }

    /// All but the neighbour are gone.
    fn is_quiet(&mut self) {
        self.served
            .until("alone again", |s| s.connections.len() == 1);
        self.is_fine();
    }
}

#[test]
fn garbage_ends_a_handshake_and_nothing_else() {
    let mut scene = Scene::new();
    for seed in 1..40 {
        let mut raw = scene.served.connect();
        let _ = raw.stream.write_all(&noise(2000, seed));
        let _ = raw.stream.shutdown(Shutdown::Write);
        raw.bytes(18);
        while !raw.is_closed() {}
    }
    scene.is_quiet();
}

#[test]
fn garbage_instead_of_a_request_ends_that_connection() {
    let mut scene = Scene::new();
    for structured in [false, true] {
        let mut raw = scene.served.client(structured);
        assert_eq!(raw.write(0, &[1; 512]).error, 0);
        raw.send(&[0x55; 28]);
        assert!(raw.is_closed());
    }
    scene.is_quiet();
}

#[test]
fn a_handshake_may_end_anywhere() {
    let mut scene = Scene::new();
    let mut whole = 3u32.to_be_bytes().to_vec();
    whole.extend(Raw::option_header(opt::STRUCTURED_REPLY, 0));
    whole.extend(Raw::option_header(opt::GO, 6));
    whole.extend([0; 6]);
    for n in 0..=whole.len() {
        let mut raw = scene.served.connect();
        raw.send(&whole[..n]);
    }
    scene.is_quiet();
}

#[test]
fn an_option_of_four_gigabytes_is_not_read() {
    let mut scene = Scene::new();
    let mut raw = scene.served.connect();
    raw.greet();
    raw.send(&Raw::option_header(opt::GO, u32::MAX));
    assert_eq!(raw.option_replies(opt::GO)[0].0, rep::ERR_TOO_BIG);
    assert!(raw.is_closed());
    scene.is_quiet();
}

#[test]
fn an_option_that_nobody_knows_is_refused_and_the_next_is_heard() {
    let served = Served::volume(MemVolume::new(SIZE).unwrap());
    let mut raw = served.connect();
    raw.greet();
    for option in [0, 4, 11, 12, 99, u32::MAX] {
        let replies = raw.option(option, &noise(5000, 1));
        assert_eq!(replies[0].0, rep::ERR_UNSUP, "{option}");
    }
    raw.go("", true);
    assert_eq!(raw.read(0, 512).error, 0);
}

#[test]
fn the_old_way_to_choose_an_export_still_works() {
    let served = Served::volume(MemVolume::new(SIZE).unwrap());
    for (flags, zeroes) in [(1u32, 124), (3, 0)] {
        let mut raw = served.connect();
        raw.bytes(18);
        raw.send(&flags.to_be_bytes());
        raw.send(&Raw::option_header(opt::EXPORT_NAME, 0));
        let told = raw.bytes(10 + zeroes);
        assert_eq!(wire::u64_at(&told, 0), Some(SIZE));
        assert_eq!(raw.write(3, b"hello").error, 0);
        assert_eq!(raw.read(0, 10).data, b"\0\0\0hello\0\0");
    }
    let mut raw = served.connect();
    raw.greet();
    raw.send(&Raw::option_header(opt::EXPORT_NAME, 4));
    raw.send(b"none");
    assert!(raw.is_closed());
}

#[test]
fn who_is_slow_in_the_handshake_is_not_waited_for() {
    let volume = MemVolume::new(SIZE).unwrap();
    let export = nbd_support::export("", volume);
    let served = Served::with(vec![export], |config| {
        config.handshake_limit = Duration::from_millis(50);
    });
    let mut fine = served.client(true);
    let mut slow: Vec<Raw> = (0..20).map(|_| served.connect()).collect();
    for raw in &mut slow {
        raw.bytes(18);
        // A byte now and then does not help.
        let trickle = Raw::option_header(opt::GO, 100);
        for byte in [0, 0, 0, 3].into_iter().chain(trickle) {
            if raw.stream.write_all(&[byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        while !raw.is_closed() {}
    }
    served.until("only one left", |s| s.connections.len() == 1);
    assert_eq!(served.snapshot().failed_handshakes, 20);
    assert_eq!(fine.read(0, 512).error, 0);
}

#[test]
fn there_are_only_so_many_clients_at_a_time() {
    let export = nbd_support::export("", MemVolume::new(SIZE).unwrap());
    let served = Served::with(vec![export], |config| config.max_connections = 2);
    let first = served.client(true);
    let mut second = served.client(true);
    assert!(served.connect().is_closed());
    assert_eq!(second.read(0, 512).error, 0);
    drop(first);
    served.until("room again", |s| s.connections.len() == 1);
    assert_eq!(served.client(false).read(0, 512).error, 0);
    assert_eq!(served.snapshot().turned_away, 1);
}

#[test]
fn a_write_that_is_too_long_is_refused_and_a_monster_ends_it() {
    let mut scene = Scene::new();
    let mut raw = scene.served.client(true);
    let len = wire::MAX_PAYLOAD + 512;
    let reply = raw.call(cmd::WRITE, 0, 0, len, &vec![1; len as usize]);
    assert_eq!(reply.error, error::EINVAL);
    assert_eq!(raw.read(0, 512).data, [0; 512], "the connection goes on");
    raw.ask(cmd::WRITE, 0, 0, u32::MAX, b"");
    assert!(raw.is_closed());
    scene.is_quiet();
}

#[test]
fn lengths_and_places_that_overflow_are_refused() {
    let mut scene = Scene::new();
    for structured in [false, true] {
        let mut raw = scene.served.client(structured);
        for (at, len) in [(u64::MAX, u32::MAX), (0, u32::MAX), (u64::MAX - 3, 4)] {
            for (command, expected) in [
                (cmd::READ, vec![error::EINVAL, error::EOVERFLOW]),
                (cmd::TRIM, vec![error::EINVAL]),
                (cmd::WRITE_ZEROES, vec![error::ENOSPC]),
                (cmd::CACHE, vec![error::EINVAL]),
                (cmd::BLOCK_STATUS, vec![error::EINVAL]),
            ] {
                let error = raw.call(command, 0, at, len, b"").error;
                assert!(expected.contains(&error), "{command} {at} {len}: {error}");
            }
        }
        assert_eq!(raw.write(SIZE - 100, &[1; 101]).error, error::ENOSPC);
        let most = raw.read(0, wire::MAX_PAYLOAD);
        assert_eq!((most.error, most.data.len()), (0, 32 << 20));
    }
    scene.is_fine();
}

#[test]
fn a_command_that_nobody_knows_is_refused_and_the_next_is_heard() {
    let mut scene = Scene::new();
    let mut raw = scene.served.client(true);
    for command in [8, 9, 100, u16::MAX] {
        let reply = raw.call(command, 0, 0, 512, b"");
        assert_eq!(reply.error, error::EINVAL);
    }
    assert_eq!(
        raw.call(cmd::READ, 1 << 9, 0, 512, b"").error,
        error::EINVAL
    );
    assert_eq!(raw.call(cmd::FLUSH, 0, 4, 4, b"").error, error::EINVAL);
    assert_eq!(raw.call(cmd::FLUSH, 0, 0, 0, b"").error, 0);
    scene.is_fine();
}

#[test]
fn nothing_is_asked_for_and_nothing_is_got() {
    let served = Served::volume(MemVolume::new(SIZE).unwrap());
    for structured in [false, true] {
        let mut raw = served.client(structured);
        for command in [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
            let reply = raw.call(command, 0, 512, 0, b"");
            assert_eq!((reply.error, reply.data.len()), (0, 0), "{command}");
        }
    }
}

#[test]
fn who_goes_in_the_middle_of_a_command_leaves_no_trace() {
    let mut scene = Scene::new();
    for structured in [false, true] {
        for part in [1, 27, 28, 29, 1000, 20_000, 130_000, 199_999] {
            let mut raw = scene.served.client(structured);
            let mut bytes = wire::Request {
                flags: 0,
                command: cmd::WRITE,
                cookie: 1,
                at: 513,
                len: 200_000,
            }
            .encode()
            .to_vec();
            bytes.extend(vec![0xee; 200_000]);
            raw.send(&bytes[..part]);
        }
    }
    scene.is_quiet();
    // Whole pieces of it may be written; one that came in part is not.
    let last = scene.neighbour.read(200_192, 321);
    assert!(last.data.iter().all(|byte| *byte == 0));
}

#[test]
fn who_asks_for_much_and_reads_nothing_holds_up_only_itself() {
    let mut scene = Scene::new();
    let mut greedy = scene.served.client(false);
    greedy.stream.set_nonblocking(true).unwrap();
    let request = wire::Request {
        flags: 0,
        command: cmd::READ,
        cookie: 1,
        at: 0,
        len: 32 << 20,
    };
    let mut asked = 0;
    while asked < 100_000 && greedy.stream.write(&request.encode()).is_ok() {
        asked += 1;
    }
    scene.is_fine();
    // Each of them is 32 MiB of memory until it is sent.
    let snapshot = scene.served.snapshot();
    let counted = snapshot.connections.last().unwrap().counters.requests;
    assert!(counted < 3, "{counted} requests taken in");
    drop(greedy);
    scene.is_quiet();
}

#[test]
fn who_sends_wrong_requests_and_reads_nothing_is_not_answered_for_ever() {
    let mut scene = Scene::new();
    let mut greedy = scene.served.client(false);
    greedy.stream.set_nonblocking(true).unwrap();
    let request = wire::Request {
        flags: 0,
        command: 77,
        cookie: 1,
        at: 0,
        len: 0,
    };
    let many = request.encode().repeat(1000);
    let mut sent = 0;
    while sent < 50 << 20 {
        match greedy.stream.write(&many) {
            Ok(n) => sent += n,
            Err(_) => break,
        }
    }
    assert!(sent < 50 << 20, "it reads on and on");
    scene.is_fine();
    drop(greedy);
    scene.is_quiet();
}

#[test]
fn more_requests_than_may_be_under_way_wait_and_are_answered() {
    let export = nbd_support::export("", MemVolume::late(SIZE, |_| {}).unwrap());
    let served = Served::with(vec![export], |config| config.max_requests = 4);
    let mut raw = served.client(true);
    let mut open: Vec<u64> = (0..500)
        .map(|i| raw.ask(cmd::READ, 0, i * 4096, 4096, b""))
        .collect();
    while !open.is_empty() {
        let (cookie, reply) = raw.reply();
        assert_eq!((reply.error, reply.data.len()), (0, 4096));
        open.retain(|c| *c != cookie);
    }
}

#[test]
fn a_disc_is_obeyed_after_what_came_before_it() {
    let mut scene = Scene::new();
    let mut raw = scene.served.client(true);
    let cookie = raw.ask(cmd::WRITE, 0, 0, 512, &[9; 512]);
    let disc = wire::Request {
        flags: 0,
        command: cmd::DISC,
        cookie: 99,
        at: 0,
        len: 0,
    };
    raw.send(&disc.encode());
    let (of, reply) = raw.reply();
    assert_eq!((of, reply.error), (cookie, 0));
    assert!(raw.is_closed());
    scene.is_quiet();
    assert_eq!(scene.neighbour.read(0, 512).data, [9; 512]);
}

#[test]
fn a_disk_that_fails_is_told_in_the_protocols_words() {
    let mut scene = Scene::new();
    for (errno, expected) in [
        (libc::EIO, error::EIO),
        (libc::ENOSPC, error::ENOSPC),
        (libc::EROFS, error::EPERM),
        (libc::EOPNOTSUPP, error::ENOTSUP),
        (libc::ENODEV, error::EIO),
    ] {
        for structured in [false, true] {
            let mut raw = scene.served.client(structured);
            scene.volume.fail_with(Some(Errno(errno)));
            let mut errors = vec![
                raw.read(0, 4096).error,
                raw.read(0, 1 << 20).error,
                raw.read(5, 7).error,
                raw.write(0, &[1; 4096]).error,
                raw.write(0, &[1; 1 << 20]).error,
                raw.write(5, &[1; 7]).error,
                raw.call(cmd::TRIM, 0, 0, 4096, b"").error,
                raw.call(cmd::WRITE_ZEROES, 0, 7, 4096, b"").error,
                raw.call(cmd::FLUSH, 0, 0, 0, b"").error,
            ];
            if structured {
                errors.push(raw.call(cmd::BLOCK_STATUS, 0, 0, 4096, b"").error);
            }
            assert!(errors.iter().all(|e| *e == expected), "{errno}: {errors:?}");
            scene.volume.fail_with(None);
            assert_eq!(raw.read(0, 512).error, 0, "and then it works again");
        }
    }
    scene.is_fine();
}

#[test]
fn flags_reach_the_volume_in_every_piece() {
    use memlane_block::volume::Flags;
    use memlane_block_frontends::nbd::wire::cmd_flag;
    let volume = MemVolume::new(SIZE).unwrap();
    let served = Served::volume(volume.clone());
    let mut raw = served.client(true);
    let len = 300_000;
    raw.call(cmd::WRITE, cmd_flag::FUA, 100, len, &vec![1; len as usize]);
    let zero = cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO;
    raw.call(cmd::WRITE_ZEROES, zero, 0, 4096, b"");
    raw.call(cmd::TRIM, cmd_flag::FUA, 0, 4096, b"");
    let log = volume.log();
    let of = |op| log.iter().filter(move |entry| entry.0 == op);
    assert!(of(Op::Write).count() >= 3);
    assert!(of(Op::Write).all(|entry| entry.3 == Flags::FUA));
    assert!(of(Op::Read).all(|entry| entry.3 == Flags::NONE));
    assert_eq!(of(Op::Trim).next().unwrap().3, Flags::FUA);
    let zeroes = of(Op::WriteZeroes).next().unwrap().3;
    assert_eq!(zeroes, Flags::NO_HOLE.and(Flags::FAST));
}

#[test]
fn a_read_that_must_not_be_split_is_not() {
    use memlane_block_frontends::nbd::wire::cmd_flag;
    let served = Served::volume(MemVolume::late(SIZE, |_| {}).unwrap());
    let mut raw = served.client(true);
    let bytes = noise(1 << 20, 5);
    assert_eq!(raw.write(100, &bytes).error, 0);
    let split = raw.read(100, 1 << 20);
    assert!(split.data == bytes && split.chunks > 1);
    let whole = raw.call(cmd::READ, cmd_flag::DF, 100, 1 << 20, b"");
    assert!(whole.data == bytes && whole.chunks == 1);
}

#[test]
fn block_status_covers_what_was_asked_and_no_more() {
    use memlane_block_frontends::nbd::wire::cmd_flag;
    let served = Served::volume(MemVolume::new(SIZE).unwrap());
    let mut raw = served.client(true);
    for (at, len, flags) in [(0, 4096, 0), (700, 5000, 0), (700, 1, cmd_flag::REQ_ONE)] {
        let reply = raw.call(cmd::BLOCK_STATUS, flags, at, len, b"");
        assert_eq!(reply.extents, [(len, 0)]);
    }
    let mut without = served.connect();
    without.greet();
    without.go("", false);
    let refused = without.call(cmd::BLOCK_STATUS, 0, 0, 4096, b"");
    assert_eq!(refused.error, error::EINVAL);
}
