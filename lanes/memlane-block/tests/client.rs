//! What a user of a remote volume may rely on, one story at a time.

mod remote;

use memlane_block::client::error::{Change, OpenError};
use memlane_block::client::{Access, Options, Patience, Status};
use memlane_block::volume::{Errno, Flags, Io, Op, Queue, Volume as _};
use memlane_block::wire::notice;
use memlane_transport::engine::path::PathId;
use memlane_transport::port::News;
use remote::rig::Rig;
use std::time::Duration;

const SIZE: u64 = 64 << 10;
const EIO: Result<(), Errno> = Err(Errno(libc::EIO));
const EINVAL: Result<(), Errno> = Err(Errno(libc::EINVAL));
const ENODEV: Result<(), Errno> = Err(Errno(libc::ENODEV));

fn one() -> (
    Rig,
    std::sync::Arc<memlane_block::client::RemoteVolume>,
    Box<dyn Queue>,
) {
    let mut rig = Rig::new(&[("disk", SIZE)]);
    let volume = rig.open("disk");
    let queue = volume.queue().unwrap();
    (rig, volume, queue)
}

fn reaped(queue: &mut Box<dyn Queue>) -> Vec<(u64, Result<(), Errno>)> {
    let mut all = Vec::new();
    queue.reap(&mut all);
    all.iter().map(|done| (done.tag, done.result)).collect()
}

// ---- opening -----------------------------------------------------------------

#[test]
fn what_is_written_is_read_and_counted_and_many_volumes_share_a_session() {
    let names = ["a", "b", "c"];
    let mut rig = Rig::new(&names.map(|name| (name, SIZE)));
    let volumes = names.map(|name| rig.open(name));
    let mut queues = volumes.each_ref().map(|volume| volume.queue().unwrap());
    for (queue, byte) in queues.iter_mut().zip(1..) {
        assert_eq!(rig.write(queue, 512, byte), Ok(()));
    }
    for (queue, byte) in queues.iter_mut().zip(1..) {
        assert_eq!(rig.read(queue, 512), byte);
        assert_eq!(rig.flush(queue), Ok(()));
    }
    assert_eq!(rig.session.world().machine.hellos, 1);
    let stats = volumes[0].stats();
    assert_eq!((stats.reads, stats.read_bytes), (1, 512));
    assert_eq!((stats.writes, stats.write_bytes), (1, 512));
    assert_eq!((stats.flushes, stats.errors, stats.replays), (1, 0, 0));
    let info = volumes[0].info();
    assert_eq!((info.size, info.block, info.max_io), (SIZE, 512, 4096));
    assert!(info.cached && info.trim && info.zeroes && info.extents && !info.read_only);
}

#[test]
fn each_reason_not_to_open_is_told_apart_and_says_what_to_do() {
    let reasons = [
        (libc::ENOENT, OpenError::NotFound),
        (libc::EBUSY, OpenError::InUse),
        (libc::ESTALE, OpenError::Taken),
        (libc::EACCES, OpenError::NotPermitted),
        (libc::EROFS, OpenError::ReadOnly),
        (libc::EINVAL, OpenError::RefusedName),
        (libc::EISDIR, OpenError::NotAVolume),
        (libc::EMFILE, OpenError::Server(24)),
    ];
    for (errno, reason) in reasons {
        let mut rig = Rig::new(&[("disk", SIZE)]);
        let errno = u16::try_from(errno).unwrap();
        rig.session.world().machine.disk("disk").refuse = Some(errno);
        let error = rig.try_open("disk", Access::ReadWrite).unwrap_err();
        assert_eq!(error, reason);
        assert!(error.to_string().contains(':'), "no advice: {error}");
    }
    let mut rig = Rig::new(&[("disk", SIZE)]);
    let refused = [String::new(), "a\0b".into(), "x".repeat(255)];
    for name in refused {
        let error = rig.try_open(&name, Access::ReadOnly).unwrap_err();
        assert_eq!(error, OpenError::RefusedName);
    }
    assert_eq!(rig.session.world().machine.opens, 0, "nobody was asked");
    let first = rig.open("disk");
    let again = rig.try_open("disk", Access::ReadOnly).unwrap_err();
    assert_eq!(again, OpenError::AlreadyOpen);
    let alias = rig.try_open("//disk", Access::ReadOnly).unwrap_err();
    assert_eq!(alias, OpenError::AlreadyOpen, "by another spelling");
    let mut queue = first.queue().unwrap();
    assert_eq!(rig.write(&mut queue, 0, 1), Ok(()));
    assert_eq!(rig.session.world().machine.closes, 0);
    drop((first, queue));
    assert!(rig.try_open("disk", Access::ReadOnly).is_ok());
}

#[test]
fn an_open_that_nobody_answers_ends_in_time_and_is_closed_should_the_answer_come() {
    let mut rig = Rig::new(&[("disk", SIZE)]);
    rig.session.world().held = Some(Box::new(|message| message[0] == 2));
    let error = rig.try_open("disk", Access::ReadWrite).unwrap_err();
    assert_eq!(error, OpenError::TimedOut);
    rig.session.world().held = None;
    rig.drive();
    let world = rig.session.world();
    assert_eq!((world.machine.opens, world.machine.closes), (1, 1));
    assert!(world.machine.open.is_empty(), "a writer's place is kept");
}

#[test]
fn an_open_that_hangs_keeps_no_other_volume_waiting() {
    let mut rig = Rig::new(&[("hung", SIZE), ("fine", SIZE)]);
    let (hung, fine) = (rig.open("hung"), rig.open("fine"));
    let mut queue = fine.queue().unwrap();
    rig.session.world().held = Some(Box::new(|message| message[6..].starts_with(b"hung")));
    rig.restart(false);
    assert_eq!(rig.write(&mut queue, 0, 5), Ok(()));
    assert_eq!(hung.status(), Status::Reopening(None));
    rig.session.world().held = None;
    rig.drive();
    assert_eq!(hung.status(), Status::Open);
}

#[test]
fn a_volume_that_may_only_be_read_refuses_writes_by_itself() {
    let mut rig = Rig::new(&[("disk", SIZE)]);
    let volume = rig.try_open("disk", Access::ReadOnly).unwrap();
    assert!(volume.info().read_only);
    let mut queue = volume.queue().unwrap();
    assert_eq!(rig.write(&mut queue, 0, 1), Err(Errno(libc::EROFS)));
    let trim = Io::bare(1, Op::Trim, 0, 512);
    assert_eq!(rig.ask(&mut queue, trim), Err(Errno(libc::EROFS)));
    assert_eq!(rig.read(&mut queue, 0), 0);
}

// ---- requests ----------------------------------------------------------------

#[test]
fn requests_that_no_disk_would_take_are_refused_here() {
    let (mut rig, volume, mut queue) = one();
    assert_eq!(queue.lease(4097).unwrap_err(), Errno(libc::EINVAL));
    let data = |queue: &mut Box<dyn Queue>, at, len| {
        let lease = queue.lease(4096).unwrap().unwrap();
        Io::data(1, Op::Read, at, len, lease)
    };
    for (at, len) in [
        (1, 512),
        (512, 511),
        (SIZE, 512),
        (SIZE - 512, 1024),
        (u64::MAX - 511, 512),
        (0, 8192),
    ] {
        let io = data(&mut queue, at, len);
        assert_eq!(rig.ask(&mut queue, io), EINVAL, "{at} {len}");
    }
    let bare = Io::bare(1, Op::Read, 0, 512);
    assert_eq!(rig.ask(&mut queue, bare), EINVAL, "no memory");
    let short = queue.lease(512).unwrap().unwrap();
    let io = Io::data(1, Op::Write, 0, 1024, short);
    assert_eq!(rig.ask(&mut queue, io), EINVAL, "too little memory");
    let long = Io::bare(1, Op::Trim, 0, 1 << 31);
    assert_eq!(rig.ask(&mut queue, long), EINVAL);
    let nothing = data(&mut queue, 0, 0);
    assert_eq!(rig.ask(&mut queue, nothing), Ok(()));
    assert!(rig.session.world().machine.disk("disk").log.is_empty());
    assert_eq!(volume.stats().errors, 9);
}

#[test]
fn errors_of_the_server_are_a_disks_errors() {
    for (told, given) in [
        (libc::ENOSPC, libc::ENOSPC),
        (libc::EDQUOT, libc::ENOSPC),
        (libc::EROFS, libc::EROFS),
        (libc::EOPNOTSUPP, libc::EOPNOTSUPP),
        (libc::EIO, libc::EIO),
        (libc::EPERM, libc::EIO),
    ] {
        let (mut rig, volume, mut queue) = one();
        let told = u16::try_from(told).unwrap();
        rig.session.world().tamper = Some(Box::new(move |_, _| Some(told)));
        assert_eq!(rig.write(&mut queue, 0, 1), Err(Errno(given)));
        assert_eq!(volume.stats().errors, 1);
    }
}

#[test]
fn a_trim_that_is_longer_than_the_server_takes_is_split_and_told_as_one() {
    let mut rig = Rig::new(&[("disk", SIZE)]);
    rig.session.world().machine.disk("disk").info.max_trim = 4096;
    let volume = rig.open("disk");
    assert!(volume.info().max_trim >= 10 * 1024);
    let mut queue = volume.queue().unwrap();
    assert_eq!(rig.write(&mut queue, 9728, 7), Ok(()));
    let zeroes = Io::bare(1, Op::WriteZeroes, 512, 10 * 1024).with(Flags::NO_HOLE);
    assert_eq!(rig.ask(&mut queue, zeroes), Ok(()));
    let mut world = rig.session.world();
    let log = &world.machine.disk("disk").log;
    let parts: Vec<_> = log.iter().skip(1).map(|io| (io.sector, io.len)).collect();
    assert_eq!(parts, [(1, 4096), (9, 4096), (17, 2048)]);
    assert!(log[3].flags.has(Flags::NO_HOLE));
    drop(world);
    assert_eq!(volume.stats().trims, 1);
    assert_eq!(rig.read(&mut queue, 9728), 0);
}

#[test]
fn what_the_server_cannot_do_it_is_not_asked() {
    let mut rig = Rig::new(&[("disk", SIZE)]);
    rig.session.world().machine.caps = 0;
    rig.session.world().machine.disk("disk").info.trim = false;
    let volume = rig.open("disk");
    let info = volume.info();
    assert!(!info.trim && info.zeroes && !info.extents);
    let mut queue = volume.queue().unwrap();
    let unsupported = Err(Errno(libc::EOPNOTSUPP));
    let trim = Io::bare(1, Op::Trim, 0, 512);
    assert_eq!(rig.ask(&mut queue, trim), unsupported);
    let fast = Io::bare(1, Op::WriteZeroes, 0, 512).with(Flags::FAST);
    assert_eq!(rig.ask(&mut queue, fast), unsupported);
    let lease = queue.lease(512).unwrap().unwrap();
    let extents = Io::data(1, Op::Extents, 0, 512, lease);
    assert_eq!(rig.ask(&mut queue, extents), unsupported);
    assert!(rig.session.world().machine.disk("disk").log.is_empty());
}

// ---- a server that restarts ---------------------------------------------------

#[test]
fn a_restart_in_the_middle_of_a_write_only_makes_it_take_longer() {
    let (mut rig, volume, mut queue) = one();
    let io = rig.writing(&mut queue, 1024, 3);
    queue.submit(io);
    queue.push();
    rig.session.happen();
    rig.restart(false);
    assert_eq!(reaped(&mut queue), [], "its outcome is not known");
    rig.drive();
    queue.push();
    let again = reaped(&mut queue);
    rig.drive();
    assert_eq!(again.len() + reaped(&mut queue).len(), 1);
    assert_eq!(rig.read(&mut queue, 1024), 3);
    let stats = volume.stats();
    assert_eq!((stats.replays, stats.errors, stats.writes), (1, 0, 1));
}

#[test]
fn volumes_that_come_back_in_another_order_never_get_each_others_requests() {
    let mut rig = Rig::new(&[("a", SIZE), ("b", SIZE)]);
    let volumes = [rig.open("a"), rig.open("b")];
    let mut queues = volumes.each_ref().map(|volume| volume.queue().unwrap());
    for round in 1..20_u8 {
        // Submitted to the old server; on the way when the new one comes; and before the reopener knows of it.
        for (i, queue) in queues.iter_mut().enumerate() {
            let io = rig.writing(queue, i as u64 * 512, round);
            queue.submit(io);
            queue.push();
        }
        rig.session.happen();
        rig.session.kill(false);
        for (i, queue) in queues.iter_mut().enumerate() {
            let io = rig.writing(queue, 1024 + i as u64 * 512, round);
            queue.submit(io);
            queue.push();
        }
        rig.session.world().machine.disk("a").refuse = Some(2);
        rig.session.restart();
        rig.session.settle();
        rig.drive();
        rig.session.world().machine.disk("a").refuse = None;
        rig.pass(Duration::from_millis(200));
        for queue in &mut queues {
            let mut results = Vec::new();
            for _ in 0..4 {
                results.extend(reaped(queue));
                rig.drive();
            }
            assert!(results.len() == 2 && results.iter().all(|r| r.1.is_ok()));
        }
        let mut world = rig.session.world();
        for (i, name) in ["a", "b"].iter().enumerate() {
            let other = [512, 0][i];
            let disk = world.machine.disk(name);
            assert_eq!(disk.now[i * 512], round);
            assert_eq!((disk.now[other], disk.now[1024 + other]), (0, 0));
        }
    }
    assert!(rig.session.world().machine.strangers > 0);
}

#[test]
fn requests_that_hold_all_memory_do_not_keep_the_volume_from_being_opened_again() {
    let (mut rig, _volume, mut queue) = one();
    rig.session.kill(false);
    let mut n = 0;
    while let Some(lease) = queue.lease(512).unwrap() {
        n += 1;
        queue.submit(Io::data(n, Op::Write, 0, 512, lease));
    }
    assert!(n > 4 && rig.session.world().lent == 16);
    rig.session.restart();
    let mut results = Vec::new();
    for _ in 0..10 {
        rig.drive();
        results.extend(reaped(&mut queue));
    }
    assert_eq!(results.len() as u64, n);
    assert!(results.iter().all(|result| result.1.is_ok()));
}

#[test]
fn a_volume_that_is_refused_after_a_restart_fails_after_a_grace_says_why_and_comes_back() {
    let (mut rig, volume, mut queue) = one();
    let changes = volume.changes();
    rig.session.world().machine.disk("disk").refuse = Some(16);
    rig.restart(false);
    rig.drive();
    assert_eq!(volume.status(), Status::Reopening(Some(OpenError::InUse)));
    let io = rig.writing(&mut queue, 0, 1);
    queue.submit(io);
    rig.pass(Duration::from_secs(1));
    assert_eq!(reaped(&mut queue), [], "perhaps it comes back at once");
    rig.pass(Duration::from_secs(8));
    assert_eq!(volume.status(), Status::Failed(OpenError::InUse));
    assert_eq!(reaped(&mut queue)[0].1, EIO);
    assert_eq!(rig.write(&mut queue, 0, 1), EIO, "at once now");
    assert!(volume.changes() > changes);
    rig.session.world().machine.disk("disk").refuse = None;
    rig.pass(Duration::from_secs(8));
    assert_eq!(volume.status(), Status::Open);
    assert_eq!(rig.write(&mut queue, 0, 1), Ok(()));
}

#[test]
fn another_volume_under_the_same_name_is_not_taken_for_it() {
    type Change1 = fn(&mut remote::machine::Disk);
    let changes: [(Change1, Change); 5] = [
        (
            |disk| disk.resize(SIZE / 2),
            Change::Smaller {
                was: SIZE,
                is: SIZE / 2,
            },
        ),
        (
            |disk| disk.info.block = 4096,
            Change::Block { was: 512, is: 4096 },
        ),
        (
            |disk| disk.info.max_io = 1024,
            Change::MaxIo {
                was: 4096,
                is: 1024,
            },
        ),
        (|disk| disk.info.read_only = true, Change::ReadOnly),
        (|disk| disk.info.cached = true, Change::Cached),
    ];
    for (change, told) in changes {
        let mut rig = Rig::new(&[("disk", SIZE)]);
        rig.session.world().machine.disk("disk").info.cached = false;
        let volume = rig.open("disk");
        let mut queue = volume.queue().unwrap();
        rig.session.kill(false);
        change(rig.session.world().machine.disk("disk"));
        rig.session.restart();
        rig.pass(Duration::from_secs(10));
        assert_eq!(volume.status(), Status::Failed(OpenError::Changed(told)));
        assert_eq!(rig.write(&mut queue, 0, 1), EIO);
        assert_eq!(volume.info().size, SIZE);
    }
}

#[test]
fn a_volume_that_grew_while_its_server_was_away_is_larger() {
    let (mut rig, volume, mut queue) = one();
    rig.session.kill(false);
    rig.session.world().machine.disk("disk").resize(SIZE * 2);
    rig.session.restart();
    rig.drive();
    assert_eq!(volume.info().size, SIZE * 2);
    assert_eq!(rig.write(&mut queue, SIZE, 1), Ok(()));
}

#[test]
fn nobody_waits_for_longer_than_the_limit() {
    let patience = Duration::from_secs(2);
    let options = Options {
        patience: Patience::Queue(patience),
        ..Options::default()
    };
    let mut rig = Rig::with(&[("disk", SIZE)], options);
    let volume = rig.open("disk");
    let mut queue = volume.queue().unwrap();
    rig.session.world().held = Some(Box::new(|message| message[0] == 2));
    rig.restart(false);
    rig.drive();
    let io = rig.writing(&mut queue, 0, 1);
    queue.submit(io);
    assert!(!queue.arm());
    rig.pass(patience - Duration::from_millis(100));
    assert_eq!(reaped(&mut queue), []);
    rig.pass(Duration::from_millis(200));
    // Who sleeps on the descriptor is told.
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let fd = queue.fd();
    let none = Timespec::default();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&none)), Ok(1));
    assert_eq!(reaped(&mut queue)[0].1, EIO);
    let stats = volume.stats();
    assert_eq!((stats.errors, stats.waits), (1, 1));
    assert!(stats.waited >= patience);
}

#[test]
fn who_does_not_want_to_wait_does_not() {
    let options = Options {
        patience: Patience::Fail,
        ..Options::default()
    };
    let mut rig = Rig::with(&[("disk", SIZE)], options);
    let volume = rig.open("disk");
    let mut queue = volume.queue().unwrap();
    rig.session.world().held = Some(Box::new(|message| message[0] == 2));
    rig.restart(false);
    rig.drive();
    assert_eq!(rig.write(&mut queue, 0, 1), EIO);
    rig.session.world().held = None;
    rig.drive();
    assert_eq!(rig.write(&mut queue, 0, 1), Ok(()));
}

#[test]
fn a_volume_that_the_server_has_closed_is_opened_again_and_one_that_it_denies_fails() {
    let (mut rig, volume, mut queue) = one();
    rig.session.world().machine.open.clear();
    assert_eq!(rig.write(&mut queue, 0, 4), Ok(()));
    assert_eq!(volume.stats().replays, 1);
    let enodev = u16::try_from(libc::ENODEV).unwrap();
    let deny = move |message: &[u8], _: &mut Vec<u8>| (message[0] == 4).then_some(enodev);
    rig.session.world().tamper = Some(Box::new(deny));
    assert_eq!(rig.write(&mut queue, 0, 5), EIO);
    rig.session.world().tamper = None;
    assert_eq!(rig.write(&mut queue, 0, 6), Ok(()));
}

#[test]
fn a_server_that_forgets_the_volume_again_and_again_does_not_keep_a_request_for_ever() {
    let options = Options {
        patience: Patience::Queue(Duration::from_secs(1)),
        ..Options::default()
    };
    let mut rig = Rig::with(&[("disk", SIZE)], options);
    let volume = rig.open("disk");
    let mut queue = volume.queue().unwrap();
    let enodev = u16::try_from(libc::ENODEV).unwrap();
    let mut id = 0_u32;
    rig.session.world().tamper = Some(Box::new(move |message, answer| match message[0] {
        2 => {
            id += 1;
            answer[4..8].copy_from_slice(&id.to_le_bytes());
            None
        }
        4 => Some(enodev),
        _ => None,
    }));
    let io = rig.writing(&mut queue, 0, 1);
    queue.submit(io);
    let mut results = Vec::new();
    for _ in 0..300 {
        rig.drive();
        rig.session.advance(Duration::from_millis(10));
        results.extend(reaped(&mut queue));
    }
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].1, EIO);
    assert!(volume.stats().replays > 3);
}

#[test]
fn a_restart_of_which_no_news_came_is_noticed_by_the_volumes_other_number() {
    let (mut rig, volume, mut queue) = one();
    assert_eq!(rig.write(&mut queue, 0, 1), Ok(()));
    // As a session does that has more news than it keeps.
    {
        let mut world = rig.session.world();
        world.kill(true);
        world.up = true;
        world.machine.said_hello = true;
    }
    assert_eq!(rig.flush(&mut queue), EIO, "what was lost is known");
    assert_eq!(volume.losses(), 1);
    assert_eq!(rig.write(&mut queue, 0, 2), Ok(()));
}

// ---- size --------------------------------------------------------------------

#[test]
fn a_volume_that_grows_or_shrinks_is_told_by_the_server_and_users_see_it() {
    let (mut rig, volume, mut queue) = one();
    for size in [SIZE * 4, SIZE / 2] {
        let before = volume.changes();
        let id = {
            let mut world = rig.session.world();
            world.machine.disk("disk").resize(size);
            *world.machine.open.keys().next().unwrap()
        };
        rig.session.tell(News::Notice(notice(id)));
        rig.pass(Duration::from_millis(100));
        assert_eq!(volume.info().size, size);
        assert_ne!(volume.changes(), before);
        assert_eq!(rig.write(&mut queue, size - 512, 1), Ok(()));
        assert_eq!(rig.write(&mut queue, size, 1), EINVAL);
    }
    assert_eq!(volume.stats().replays, 0);
    // A notice was lost with its path.
    rig.session.world().machine.disk("disk").resize(SIZE * 8);
    rig.session.tell(News::PathUp(PathId(1)));
    rig.pass(Duration::from_millis(100));
    assert_eq!(volume.info().size, SIZE * 8);
    let opens = rig.session.world().machine.opens;
    for _ in 0..100 {
        let id = *rig.session.world().machine.open.keys().next().unwrap();
        rig.session.tell(News::Notice(notice(id)));
        rig.session.tell(News::Notice(12345));
        rig.drive();
    }
    rig.pass(Duration::from_millis(100));
    assert!(rig.session.world().machine.opens - opens < 10, "a flood");
}

// ---- what a flush means ---------------------------------------------------------

#[test]
fn writes_that_a_machine_lost_are_told_by_the_next_flush_of_each_queue_once() {
    let (mut rig, volume, mut first) = one();
    let mut second = volume.queue().unwrap();
    assert_eq!(rig.write(&mut first, 0, 1), Ok(()));
    rig.restart(true);
    rig.drive();
    assert_eq!(volume.losses(), 1);
    assert_eq!(rig.flush(&mut first), EIO);
    assert_eq!(rig.flush(&mut first), Ok(()));
    let preflush = rig.writing(&mut second, 0, 2).with(Flags::PREFLUSH);
    assert_eq!(rig.ask(&mut second, preflush), EIO, "it flushes too");
    assert_eq!(rig.flush(&mut second), Ok(()));
    let mut third = volume.queue().unwrap();
    assert_eq!(rig.flush(&mut third), Ok(()), "it was told already");
}

#[test]
fn a_loss_of_which_nobody_was_told_is_told_to_a_queue_that_comes_later() {
    let (mut rig, volume, mut first) = one();
    assert_eq!(rig.write(&mut first, 0, 1), Ok(()));
    rig.restart(true);
    rig.drive();
    drop(first);
    let mut second = volume.queue().unwrap();
    assert_eq!(rig.flush(&mut second), EIO);
}

#[test]
fn nothing_is_lost_if_it_was_flushed_or_forced_or_only_the_process_died() {
    let (mut rig, volume, mut queue) = one();
    assert_eq!(rig.write(&mut queue, 0, 1), Ok(()));
    assert_eq!(rig.flush(&mut queue), Ok(()));
    let forced = rig.writing(&mut queue, 512, 2).with(Flags::FUA);
    assert_eq!(rig.ask(&mut queue, forced), Ok(()));
    rig.restart(true);
    assert_eq!(rig.flush(&mut queue), Ok(()), "flushed, forced");
    assert_eq!(rig.write(&mut queue, 1024, 3), Ok(()));
    rig.restart(false);
    assert_eq!(rig.flush(&mut queue), Ok(()), "the machine kept it");
    for (block, byte) in [(0, 1), (512, 2), (1024, 3)] {
        assert_eq!(rig.read(&mut queue, block), byte);
    }
    assert_eq!(volume.losses(), 0);
}

#[test]
fn a_server_that_does_not_say_which_boot_it_is_may_have_lost_what_was_not_flushed() {
    let (mut rig, _volume, mut queue) = {
        let mut rig = Rig::new(&[("disk", SIZE)]);
        rig.session.world().machine.caps = 0;
        let volume = rig.open("disk");
        let queue = volume.queue().unwrap();
        (rig, volume, queue)
    };
    assert_eq!(rig.write(&mut queue, 0, 1), Ok(()));
    rig.restart(false);
    assert_eq!(rig.flush(&mut queue), EIO);
    assert_eq!(rig.flush(&mut queue), Ok(()));
}

#[test]
fn a_write_that_a_machine_acknowledged_before_it_died_is_sent_again_if_nobody_knows_yet() {
    let (mut rig, volume, mut queue) = one();
    let io = rig.writing(&mut queue, 0, 9);
    queue.submit(io);
    queue.push();
    rig.session.settle();
    // The answer lies in the port.
    rig.restart(true);
    rig.drive();
    let mut results = Vec::new();
    for _ in 0..4 {
        results.extend(reaped(&mut queue));
        rig.drive();
    }
    assert_eq!(results.len(), 1);
    assert_eq!(rig.flush(&mut queue), Ok(()));
    assert_eq!(rig.session.world().machine.disk("disk").durable[0], 9);
    assert_eq!((volume.losses(), volume.stats().replays), (0, 1));
}

#[test]
fn a_long_zeroing_whose_first_part_was_lost_begins_anew() {
    let mut rig = Rig::new(&[("disk", SIZE)]);
    rig.session.world().machine.disk("disk").info.max_trim = 4096;
    let volume = rig.open("disk");
    let mut queue = volume.queue().unwrap();
    for at in [0, 4096] {
        assert_eq!(rig.write(&mut queue, at, 1), Ok(()));
    }
    assert_eq!(rig.flush(&mut queue), Ok(()));
    queue.submit(Io::bare(1, Op::WriteZeroes, 0, 8192));
    queue.push();
    rig.session.settle();
    assert_eq!(reaped(&mut queue), [], "the second part is under way");
    rig.session.kill(true);
    // Whatever chance has kept of it: all of it is gone.
    rig.session.world().machine.disk("disk").now.fill(1);
    rig.session.restart();
    let mut results = Vec::new();
    for _ in 0..6 {
        results.extend(reaped(&mut queue));
        rig.drive();
    }
    assert_eq!(results, [(1, Ok(()))]);
    assert_eq!(rig.read(&mut queue, 0), 0);
    assert_eq!(rig.flush(&mut queue), Ok(()));
}

#[test]
fn an_answer_of_a_new_server_does_not_overtake_the_news_of_the_restart() {
    let (mut rig, _volume, mut queue) = one();
    assert_eq!(rig.write(&mut queue, 0, 1), Ok(()));
    // A look at the size is on its way to a server that dies, with its machine, and reaches the next one, which
    // answers it, in the moment between the reopener's looks at the news and at the answers.
    rig.session.world().held = Some(Box::new(|message| message[0] == 2));
    let id = *rig.session.world().machine.open.keys().next().unwrap();
    rig.session.world().up = false;
    rig.session.tell(News::Notice(notice(id)));
    rig.pass(Duration::from_millis(50));
    rig.session.world().before_reap = Some(Box::new(|world| {
        world.held = None;
        world.kill(true);
        world.restart();
        world.machine.said_hello = true;
        while world.happen() {}
    }));
    rig.reopener.step();
    queue.submit(Io::bare(1, Op::Flush, 0, 0));
    queue.push();
    rig.session.settle();
    let at_once = reaped(&mut queue);
    assert!(at_once.is_empty(), "the loss is not known yet: {at_once:?}");
    rig.drive();
    queue.push();
    let mut results = Vec::new();
    for _ in 0..4 {
        results.extend(reaped(&mut queue));
        rig.drive();
    }
    assert_eq!(results, [(1, EIO)]);
}

// ---- the end -----------------------------------------------------------------

#[test]
fn a_closed_volume_is_closed_at_the_server_too_and_leases_stay_good() {
    let (mut rig, volume, mut queue) = one();
    let lease = queue.lease(512).unwrap().unwrap();
    let closing = std::sync::Arc::clone(&volume);
    let closer = std::thread::spawn(move || closing.close());
    while !closer.is_finished() {
        rig.drive();
        std::thread::yield_now();
    }
    assert!(rig.session.world().machine.open.is_empty());
    assert_eq!(volume.status(), Status::Closed);
    assert_eq!(rig.flush(&mut queue), ENODEV);
    assert!(lease.fill(0, &[1; 512]), "it is still mapped");
    let done = rig.done(&mut queue, Io::data(1, Op::Write, 0, 512, lease));
    assert_eq!(done.result, ENODEV);
    drop((done, queue, volume));
    rig.drive();
    assert_eq!(rig.session.world().machine.closes, 1, "once is enough");
}

#[test]
fn who_drops_everything_leaves_nothing_behind() {
    let mut rig = Rig::new(&[("a", SIZE), ("b", SIZE)]);
    let (a, b) = (rig.open("a"), rig.open("b"));
    let mut queue = b.queue().unwrap();
    let io = rig.writing(&mut queue, 0, 1);
    queue.submit(io);
    queue.push();
    drop(a);
    drop(b);
    rig.drive();
    let open = |rig: &Rig| rig.session.world().machine.open.len();
    assert_eq!(open(&rig), 1, "its queue is still used");
    drop(queue);
    let abandoned = rig
        .client
        .as_ref()
        .unwrap()
        .begin_open("a", Access::ReadOnly);
    rig.drive();
    assert_eq!(open(&rig), 1);
    drop(abandoned);
    rig.client = None;
    let mut over = false;
    for _ in 0..10 {
        over |= rig.reopener.step().is_none();
        rig.session.settle();
    }
    assert!(over, "the reopener goes on for nobody");
    assert_eq!(open(&rig), 0);
    let Rig {
        session,
        shared,
        reopener,
        ..
    } = rig;
    drop(reopener);
    assert!(shared.upgrade().is_none(), "somebody holds the session");
    assert_eq!(session.world().lent, 1, "but for the write's, in an inbox");
}

#[test]
fn a_closed_session_fails_everything_and_says_so() {
    let (mut rig, volume, mut queue) = one();
    let io = rig.writing(&mut queue, 0, 1);
    queue.submit(io);
    queue.push();
    rig.session.world().close();
    assert_eq!(reaped(&mut queue)[0].1, ENODEV);
    assert!(matches!(queue.lease(512), Err(Errno(libc::ENODEV))));
    drop((queue, volume));
    rig.drive();
    let error = rig.try_open("disk", Access::ReadOnly).unwrap_err();
    assert_eq!(error, OpenError::Closed);
}
