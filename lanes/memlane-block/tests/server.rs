//! What a server's service does with what sessions ask, told to it as a transport would.

#[allow(dead_code)] // other tests use the rest
mod server_driver;

use memlane_block::server::{Lend, ServerConfig, Shared};
use memlane_block::store::StoreKind;
use memlane_block::volume::{EXTENT_LEN, Flags, Op};
use memlane_block::wire::{Access, CAPS, Close, IoMsg, SessInfo, VERSION, Wish, notice};
use memlane_transport::engine::Direction;
use memlane_transport::port::{Identity, Service as _};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::event::{PollFd, PollFlags, Timespec};
use server_driver::{Driver, Folder, RO, RW, io};
use std::path::Path;

// ---- opening and closing ----------------------------------------------------

#[test]
fn opening_twice_is_opening_once_and_ids_are_never_used_again() {
    let folder = Folder::new("open");
    folder.file("a", 1 << 20);
    folder.file("dir/b", 2 << 20);
    let mut driver = Driver::of(folder.config());
    let (one, two) = (driver.session("one"), driver.session("two"));
    let a = driver.open(one, "a", RW).expect("opened");
    assert_eq!(a.info().size, 1 << 20);
    assert!(!a.info().read_only && a.info().cached);
    let b = driver.open(one, "//dir/.//b", RW).expect("opened");
    assert_eq!(b.info().size, 2 << 20);
    assert_ne!(a.device_id, b.device_id);
    assert_eq!(driver.open(one, "/a", RW), Ok(a), "the same again");
    assert_eq!(driver.open(one, "dir/b", RW), Ok(b), "by whatever spelling");
    // Nobody else's id, and not after closing.
    let read = io(a.device_id, Op::Read, 0, 512).encode();
    assert_eq!(driver.read(two, &read, 512), Err(libc::ENODEV));
    assert_eq!(driver.read(one, &read, 512), Ok(vec![0; 512]));
    assert_eq!(driver.close(two, a.device_id), Err(libc::ENODEV));
    assert_eq!(driver.close(one, a.device_id), Ok(()));
    assert_eq!(driver.close(one, a.device_id), Err(libc::ENODEV));
    assert_eq!(driver.read(one, &read, 512), Err(libc::ENODEV));
    let again = driver.open(one, "a", RW).expect("opened");
    assert_ne!(again.device_id, a.device_id);
    assert_eq!(driver.read(one, &read, 512), Err(libc::ENODEV));
}

#[test]
fn an_id_of_an_earlier_life_hits_no_other_volume() {
    let folder = Folder::new("life");
    for n in 0..50 {
        folder.file(&format!("disk{n}"), 1 << 20);
    }
    let ids = || {
        let mut driver = Driver::of(folder.config());
        let session = driver.session("one");
        let open = |n| driver.open(session, &format!("disk{n}"), RW);
        let opened = (0..50).map(open).collect::<Result<Vec<_>, _>>();
        opened
            .expect("opened")
            .iter()
            .map(|rsp| rsp.device_id)
            .collect::<Vec<_>>()
    };
    let (before, after) = (ids(), ids());
    assert!(before.iter().all(|id| !after.contains(id)));
}

#[test]
fn one_writes_or_two_while_a_machine_moves_and_all_may_read() {
    let folder = Folder::new("access");
    let path = folder.file("disk", 1 << 20);
    std::fs::hard_link(&path, folder.0.join("other-name")).expect("linked");
    let shared = Shared::new(folder.config()).expect("a server");
    // Two services: as two threads have them.
    let (mut here, mut there) = (Driver::new(&shared), Driver::new(&shared));
    let (one, two, three) = (
        here.session("one"),
        there.session("two"),
        there.session("three"),
    );
    let writer = here.open(one, "disk", RW).expect("the first writer");
    assert_eq!(there.open(two, "disk", RW), Err(libc::EBUSY));
    assert_eq!(
        there.open(two, "other-name", RW),
        Err(libc::EBUSY),
        "the same file"
    );
    let reader = there.open(two, "disk", RO).expect("readers may");
    assert!(reader.info().read_only);
    let write = io(reader.device_id, Op::Write, 0, 512).encode();
    assert_eq!(there.write(two, &write, &[1; 512]), Err(libc::EROFS));
    // The move: the new host writes too, but no third one.
    let mover = there
        .open(two, "disk", Access::Migration)
        .expect("a second writer");
    assert_ne!(mover.device_id, reader.device_id);
    assert_eq!(
        there.open(three, "disk", Access::Migration),
        Err(libc::EBUSY)
    );
    assert_eq!(here.close(one, writer.device_id), Ok(()));
    assert_eq!(there.open(three, "disk", RW), Err(libc::EBUSY));
    assert_eq!(there.close(two, mover.device_id), Ok(()));
    there
        .open(three, "disk", RW)
        .expect("nobody writes any more");
    let refused = shared.snapshot().refusals;
    assert_eq!(refused.len(), 4);
    assert_eq!(refused[0].why, "another session, \"one\", writes it");
}

#[test]
fn a_session_that_dies_frees_its_volumes_when_its_requests_have_ended() {
    let folder = Folder::new("dies");
    folder.file("disk", 1 << 20);
    for store in [StoreKind::Auto, StoreKind::Threads] {
        let shared = Shared::new(ServerConfig {
            store,
            ..folder.config()
        })
        .expect("a server");
        let mut driver = Driver::new(&shared);
        let (one, two) = (driver.session("one"), driver.session("two"));
        let disk = driver.open(one, "disk", RW).expect("opened");
        let usr = io(disk.device_id, Op::Write, 0, 4096).encode();
        let permits: Vec<u16> = (0..20)
            .map(|_| driver.begin(one, Direction::Write, &usr, 4096))
            .collect();
        driver.service.gone(one);
        // Not one has been taken back yet: a second writer would meet them.
        assert_eq!(shared.snapshot().volumes.len(), 1);
        for permit in permits {
            assert_eq!(driver.end(permit), 0, "{store:?}");
        }
        assert_eq!(shared.snapshot().volumes.len(), 0, "{store:?}");
        assert_eq!(driver.read(one, &usr, 4096), Err(libc::EACCES), "nobody's");
        driver.open(two, "disk", RW).expect("free");
    }
}

#[test]
fn a_close_is_answered_when_nothing_is_under_way_any_more() {
    let folder = Folder::new("close");
    folder.file("disk", 1 << 20);
    let mut driver = Driver::of(folder.config());
    let one = driver.session("one");
    let disk = driver.open(one, "disk", RW).expect("opened");
    let usr = io(disk.device_id, Op::Write, 0, 4096).encode();
    let write = driver.begin(one, Direction::Write, &usr, 4096);
    let close = Close {
        device_id: disk.device_id,
    }
    .encode();
    let close = driver.begin(one, Direction::Write, &close, 0);
    let late = driver.begin(one, Direction::Write, &usr, 4096);
    assert_eq!(driver.end(late), u16::try_from(libc::ENODEV).unwrap());
    assert_eq!(driver.end(close), 0);
    assert!(
        driver.finished.iter().any(|done| done.permit == write),
        "told before"
    );
}

#[test]
fn a_service_that_is_dropped_leaves_no_writer_behind() {
    let folder = Folder::new("dropped");
    folder.file("disk", 1 << 20);
    let shared = Shared::new(folder.config()).expect("a server");
    let mut driver = Driver::new(&shared);
    let one = driver.session("one");
    let disk = driver.open(one, "disk", RW).expect("opened");
    let usr = io(disk.device_id, Op::Write, 0, 4096).encode();
    driver.begin(one, Direction::Write, &usr, 4096);
    drop(driver);
    assert!(shared.snapshot().volumes.is_empty());
}

#[test]
fn a_session_opens_so_many_volumes_and_no_more() {
    let folder = Folder::new("many");
    for n in 0..4 {
        folder.file(&format!("disk{n}"), 512);
    }
    let mut driver = Driver::of(ServerConfig {
        volumes: 3,
        ..folder.config()
    });
    let one = driver.session("one");
    let open = |n| driver.open(one, &format!("disk{n}"), RO).map(|_| ());
    let opened: Vec<_> = (0..4).map(open).collect();
    assert_eq!(opened, [Ok(()), Ok(()), Ok(()), Err(libc::EMFILE)]);
}

#[test]
fn a_server_that_lends_offers_each_opener_once_what_is_in_memory() {
    let folder = Folder::below(Path::new("/dev/shm"), "lends");
    folder.file("disk", 1 << 20);
    let stranger = Identity::Local { uid: 12345, pid: 8 };
    for lend in [Lend::Never, Lend::ToTracers, Lend::ToUser] {
        let lends = lend != Lend::Never;
        let mut driver = Driver::of(ServerConfig {
            lend,
            test_volumes: true,
            ..folder.config()
        });
        let (one, two) = (driver.session("one"), driver.session("two"));
        let others = [stranger.clone(), Identity::Unknown].map(|who| driver.session_of("x", &who));
        let mut loan = |session, name: &str, access| {
            let opened = driver.open(session, name, access);
            opened.expect("opened").loan
        };
        let written = loan(one, "disk", RW);
        assert_eq!(written.is_some(), lends, "{lend:?}");
        assert_eq!(loan(one, "disk", RW), written, "it is the same opener");
        let read = loan(two, "disk", RO);
        assert!(read.is_some() == lends && (read != written || !lends));
        assert_eq!(loan(one, "mem:1M", RW).is_some(), lends);
        assert_eq!(loan(one, "null:1M", RW), None);
        assert_eq!(others.map(|other| loan(other, "disk", RO)), [None, None]);
    }
}

// ---- requests ---------------------------------------------------------------

#[test]
fn requests_do_what_they_say_and_are_counted() {
    let folder = Folder::new("requests");
    let path = folder.file("disk", 1 << 20);
    for store in [StoreKind::Auto, StoreKind::Threads] {
        let shared = Shared::new(ServerConfig {
            store,
            ..folder.config()
        })
        .expect("a server");
        let mut driver = Driver::new(&shared);
        let one = driver.session("one");
        let id = driver.open(one, "disk", RW).expect("opened").device_id;
        let data: Vec<u8> = (0..8192u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
        let mut write = io(id, Op::Write, 4096, 8192);
        write.flags = Flags::FUA.and(Flags::PREFLUSH);
        assert_eq!(driver.write(one, &write.encode(), &data), Ok(()));
        let read = io(id, Op::Read, 4096, 8192).encode();
        assert_eq!(driver.read(one, &read, 8192).as_ref(), Ok(&data));
        let zero = io(id, Op::WriteZeroes, 4096, 4096).encode();
        assert_eq!(driver.write(one, &zero, &[]), Ok(()));
        let trim = io(id, Op::Trim, 1 << 19, 4096).encode();
        assert_eq!(driver.write(one, &trim, &[]), Ok(()));
        let flush = io(id, Op::Flush, 0, 0).encode();
        assert_eq!(driver.write(one, &flush, &[]), Ok(()));
        let file = std::fs::read(&path).expect("the file");
        assert!(file[4096..8192] == [0; 4096] && file[8192..12288] == data[4096..]);
        let extents = io(id, Op::Extents, 0, 1 << 20).encode();
        let records = driver.read(one, &extents, 3 * 16).expect("extents");
        assert_eq!(records[..8], 8192u64.to_le_bytes(), "a hole first");
        assert_eq!((records[8], records[EXTENT_LEN + 8]), (3, 0));
        let open = &shared.snapshot().volumes[0].openers[0];
        let counters = open.counters;
        assert_eq!((open.session.as_str(), open.access), ("one", RW));
        assert_eq!((counters.writes, counters.written_bytes), (1, 8192));
        assert_eq!((counters.reads, counters.read_bytes), (1, 8192));
        assert_eq!(
            (counters.flushes, counters.trims, counters.errors),
            (1, 2, 0)
        );
    }
}

#[test]
fn a_request_that_makes_no_sense_is_refused_and_changes_nothing() {
    let folder = Folder::new("nonsense");
    let path = folder.file("disk", 1 << 20);
    let mut driver = Driver::of(folder.config());
    let one = driver.session("one");
    let id = driver.open(one, "disk", RW).expect("opened").device_id;
    let invalid = u16::try_from(libc::EINVAL).expect("small");
    let cases = [
        (
            "outside",
            io(id, Op::Write, 1 << 20, 512),
            Direction::Write,
            512,
        ),
        (
            "over the end",
            io(id, Op::Write, (1 << 20) - 512, 1024),
            Direction::Write,
            1024,
        ),
        ("no length", io(id, Op::Write, 0, 0), Direction::Write, 0),
        (
            "not in blocks",
            io(id, Op::Write, 0, 100),
            Direction::Write,
            100,
        ),
        (
            "more than there is",
            io(id, Op::Write, 0, 4096),
            Direction::Write,
            512,
        ),
        (
            "less than there is",
            io(id, Op::Write, 0, 512),
            Direction::Write,
            4096,
        ),
        (
            "the wrong way",
            io(id, Op::Write, 0, 512),
            Direction::Read,
            512,
        ),
        (
            "the wrong way",
            io(id, Op::Read, 0, 512),
            Direction::Write,
            512,
        ),
        (
            "over the chunk",
            io(id, Op::Write, 0, 1 << 18),
            Direction::Write,
            1 << 18,
        ),
        (
            "data beside a trim",
            io(id, Op::Trim, 0, 512),
            Direction::Write,
            512,
        ),
        ("no room", io(id, Op::Extents, 0, 512), Direction::Read, 15),
    ];
    for (what, io, direction, len) in cases {
        let permit = driver.begin(one, direction, &io.encode(), len);
        assert_eq!(driver.end(permit), invalid, "{what}");
    }
    let far = IoMsg {
        sector: u64::MAX,
        ..io(id, Op::Read, 0, 512)
    };
    assert_eq!(driver.read(one, &far.encode(), 512), Err(libc::EINVAL));
    let info = SessInfo {
        version: VERSION,
        caps: CAPS,
    };
    assert_eq!(
        driver.read(one, &info.encode(), 35),
        Err(libc::EINVAL),
        "no room for the answer"
    );
    assert_eq!(driver.read(one, b"", 512), Err(libc::EINVAL));
    assert!(
        std::fs::read(&path)
            .expect("the file")
            .iter()
            .all(|byte| *byte == 0)
    );
    // A client that has not said what it can, has nothing beyond mainline.
    let two = driver.bare_session("two");
    let plain = driver.open(two, "disk", RO).expect("opened");
    assert_eq!(plain.flags, None);
    let extents = io(plain.device_id, Op::Extents, 0, 512).encode();
    assert_eq!(driver.read(two, &extents, 512), Err(libc::EINVAL));
    let mut fast = io(id, Op::WriteZeroes, 0, 512);
    fast.flags = Flags::FAST;
    assert_eq!(driver.write(one, &fast.encode(), &[]), Ok(()));
}

#[test]
fn whatever_bytes_a_client_sends_each_job_has_one_end() {
    let folder = Folder::new("hostile");
    folder.file("disk", 1 << 20);
    let mut driver = Driver::of(ServerConfig {
        test_volumes: true,
        ..folder.config()
    });
    let one = driver.session("one");
    let disk = driver.open(one, "disk", RW).expect("opened").device_id;
    let memory = driver.open(one, "mem:1M", RW).expect("opened").device_id;
    let ids = prop_oneof![Just(disk), Just(memory), any::<u32>()];
    let numbers = prop_oneof![0..4096u64, any::<u64>()];
    let lens = prop_oneof![(0..300u32).prop_map(|n| n * 512), any::<u32>()];
    let request = (ids, numbers, any::<u16>(), lens.clone()).prop_map(|(id, sector, rw, len)| {
        let mut bytes = io(id, Op::Read, 0, len).encode().to_vec();
        bytes[8..16].copy_from_slice(&sector.to_le_bytes());
        // Operations that there are, mostly, and all flags.
        bytes[16..18].copy_from_slice(&(rw & 0xff07).to_le_bytes());
        bytes
    });
    let message = prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..300),
        1 => (0..7u8, prop::collection::vec(any::<u8>(), 300)).prop_map(|(kind, mut bytes)| {
            (bytes[0], bytes[1]) = (kind, 0);
            bytes
        }),
        5 => request,
    ];
    let job = (message, any::<bool>(), lens);
    let mut runner = TestRunner::new(Config::with_cases(200));
    let driver = std::cell::RefCell::new(driver);
    let run = runner.run(&prop::collection::vec(job, 1..30), |jobs| {
        let mut driver = driver.borrow_mut();
        let begun: Vec<u16> = jobs
            .iter()
            .map(|(usr, reads, len)| {
                let direction = if *reads {
                    Direction::Read
                } else {
                    Direction::Write
                };
                driver.begin(one, direction, usr, *len)
            })
            .collect();
        for permit in begun {
            driver.end(permit);
        }
        driver.look();
        assert!(
            driver.finished.is_empty(),
            "a second end: {:?}",
            driver.finished
        );
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

// ---- sizes ------------------------------------------------------------------

#[test]
fn a_new_size_is_told_to_who_has_the_volume_open() {
    let folder = Folder::new("resize");
    let path = folder.file("disk", 1 << 20);
    folder.file("other", 1 << 20);
    let shared = Shared::new(folder.config()).expect("a server");
    let mut driver = Driver::new(&shared);
    let (one, plain) = (driver.session("one"), driver.bare_session("plain"));
    let disk = driver.open(one, "disk", RW).expect("opened");
    driver.open(one, "other", RW).expect("opened");
    driver.open(plain, "disk", RO).expect("opened");
    assert_eq!(driver.notices(), []);
    shared.resize("disk", 2 << 20).expect("resized");
    assert!(readable(&driver), "the service is called");
    driver.look();
    assert_eq!(driver.notices(), [(one, notice(disk.device_id))]);
    assert_eq!(driver.notices(), [], "told once");
    let again = driver.open(one, "disk", RW).expect("looked at");
    assert_eq!(
        (again.device_id, again.info().size),
        (disk.device_id, 2 << 20)
    );
    let end = io(disk.device_id, Op::Write, (2 << 20) - 512, 512).encode();
    assert_eq!(driver.write(one, &end, &[1; 512]), Ok(()));
    // On purpose, smaller: what is behind the end was never promised any more.
    shared.resize("disk", 1 << 20).expect("resized");
    assert_eq!(driver.write(one, &end, &[1; 512]), Err(libc::EINVAL));
    driver.look();
    assert_eq!(driver.notices(), [(one, notice(disk.device_id))]);
    // By somebody else, found out by looking.
    let file = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("the file");
    file.set_len(1 << 19).expect("shorter");
    shared.look();
    driver.look();
    assert_eq!(driver.notices(), [(one, notice(disk.device_id))]);
    let lost = io(disk.device_id, Op::Read, 1 << 19, 512).encode();
    assert_eq!(driver.read(one, &lost, 512), Err(libc::EIO));
    assert_eq!(
        driver.write(one, &end, &[1; 512]),
        Err(libc::EINVAL),
        "never told since"
    );
    let failure = shared.snapshot().volumes[0].openers[0]
        .failure
        .clone()
        .expect("kept");
    assert_eq!(
        failure.why.as_deref(),
        Some("it has shrunk from 1048576 to 524288 bytes")
    );
    for (name, size) in [
        ("nothing", 512),
        ("disk", 100),
        ("../disk", 512),
        ("disk", 0),
    ] {
        assert!(shared.resize(name, size).is_err(), "{name} {size}");
    }
}

fn readable(driver: &Driver) -> bool {
    let fd = driver.service.fd().expect("a descriptor");
    let limit = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&limit)) == Ok(1)
}

#[test]
fn the_owner_takes_a_volume_from_a_client_that_is_gone_for_good() {
    let folder = Folder::new("force");
    folder.file("disk", 1 << 20);
    let shared = Shared::new(folder.config()).expect("a server");
    let mut driver = Driver::new(&shared);
    let (one, two) = (driver.session("one"), driver.session("two"));
    let disk = driver.open(one, "disk", RW).expect("opened");
    assert_eq!(shared.force_close("disk", "two"), 0);
    assert_eq!(shared.force_close("disk", "one"), 1);
    let write = io(disk.device_id, Op::Write, 0, 512).encode();
    assert_eq!(driver.write(one, &write, &[1; 512]), Err(libc::ENODEV));
    driver.notices();
    let new = driver.open(two, "disk", RW).expect("free");
    assert_eq!(driver.write(one, &write, &[1; 512]), Err(libc::ENODEV));
    assert_eq!(driver.open(one, "disk", RW), Err(libc::EBUSY));
    // Who had it does not get it back unawares.
    driver.close(two, new.device_id).expect("closed");
    let wish = Wish {
        again: Some(disk.device_id),
        ..Wish::default()
    };
    let again = driver.wish(one, "disk", RW, wish);
    assert_eq!(again, Err((libc::ESTALE, None)));
}

#[test]
fn a_root_that_is_none_and_a_namespace_that_is_no_path_are_told_at_once() {
    let folder = Folder::new("config");
    let nowhere = ServerConfig::new(Path::new("/nowhere/at/all").to_owned());
    assert!(Shared::new(nowhere).is_err());
    for namespace in ["..", "a/../b", "", "/"] {
        let namespace = Some(namespace.to_owned());
        let config = ServerConfig {
            namespace,
            ..folder.config()
        };
        assert!(Shared::new(config).is_err());
    }
}
