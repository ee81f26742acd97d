//! With the reopener in its thread and users who sleep: nobody oversleeps, nothing is mixed up.

mod remote;

use memlane_block::client::clock::Clock;
use memlane_block::client::{Access, Client, Options, Patience, Status};
use memlane_block::volume::{Errno, Io, Op, Queue, Volume};
use remote::{Shared, TestSession};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// So long, and something is broken.
const FOR_EVER: Duration = Duration::from_secs(60);
const SIZE: u64 = 1 << 20;

fn world(seed: u64, names: &[&str]) -> (Arc<TestSession>, Client) {
    world_with(seed, names, Options::default())
}

fn world_with(seed: u64, names: &[&str], options: Options) -> (Arc<TestSession>, Client) {
    let session = TestSession::new(seed, 32, Clock::manual());
    for name in names {
        session.world().machine.add(name, SIZE);
    }
    session.live();
    let shared = Arc::new(Shared(Arc::clone(&session)));
    let client = Client::with(shared, options).unwrap();
    (session, client)
}

/// By a sleep on the descriptor, as a frontend with an event loop does.
fn sleep(queue: &mut dyn Queue) {
    if !queue.arm() {
        let limit = Timespec::try_from(FOR_EVER).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(queue.fd(), PollFlags::IN)];
        assert_ne!(poll(&mut fds, Some(&limit)), Ok(0), "it overslept");
    }
}

/// One request, to its end.
fn ask(queue: &mut dyn Queue, io: Io, by_wait: bool) -> Option<memlane_block::volume::Lease> {
    queue.submit(io);
    let mut done = Vec::new();
    while queue.reap(&mut done) == 0 {
        if by_wait {
            queue.wait(Some(FOR_EVER));
        } else {
            sleep(queue);
        }
    }
    let done = done.pop().expect("one");
    assert_eq!(done.result, Ok(()));
    done.lease
}

fn lease(queue: &mut dyn Queue) -> memlane_block::volume::Lease {
    loop {
        if let Some(lease) = queue.lease(512).unwrap() {
            return lease;
        }
        sleep(queue);
        queue.reap(&mut Vec::new());
    }
}

/// Writes each of its blocks and reads it again, over and over; the last value of each is right.
fn use_it(volume: &dyn Volume, user: u64, by_wait: bool, over: &AtomicBool) -> u64 {
    let mut queue = volume.queue().unwrap();
    let mut round = 0;
    while !over.load(Ordering::Relaxed) || round < 20 {
        round += 1;
        let at = (user * 64 + round % 64) * 512;
        let value = (user << 32) | round;
        let lease = lease(&mut *queue);
        assert!(lease.fill(0, &value.to_le_bytes().repeat(64)));
        let io = Io::data(round, Op::Write, at, 512, lease);
        let lease = ask(&mut *queue, io, by_wait).unwrap();
        assert!(lease.fill(0, &[0; 512]));
        let io = Io::data(round, Op::Read, at, 512, lease);
        let lease = ask(&mut *queue, io, by_wait).unwrap();
        let mut block = [0; 512];
        assert!(lease.take(0, &mut block));
        assert_eq!(block.to_vec(), value.to_le_bytes().repeat(64));
        if round % 8 == 0 {
            ask(&mut *queue, Io::bare(0, Op::Flush, 0, 0), by_wait);
        }
    }
    round
}

#[test]
fn many_threads_on_two_volumes_go_on_while_the_server_restarts_again_and_again() {
    let (session, client) = world(11, &["a", "b"]);
    let volumes = ["a", "b"].map(|name| client.open(name, Access::ReadWrite).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for user in 0..6 {
            let (volume, over) = (&volumes[user % 2], &over);
            scope.spawn(move || use_it(&**volume, user as u64, user % 3 == 0, over));
        }
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(5));
            session.kill(false);
            std::thread::sleep(Duration::from_millis(2));
            session.restart();
        }
        over.store(true, Ordering::Relaxed);
    });
    let replays: u64 = volumes.iter().map(|volume| volume.stats().replays).sum();
    assert!(replays > 0, "nothing happened");
    assert_eq!(volumes[0].stats().errors + volumes[1].stats().errors, 0);
}

#[test]
fn who_sleeps_on_the_descriptor_is_woken_when_the_volume_is_open_again() {
    for by_wait in [false, true] {
        // Else the limit would wake it in the end.
        let options = Options {
            patience: Patience::Queue(FOR_EVER * 10),
            ..Options::default()
        };
        let (session, client) = world_with(12, &["disk"], options);
        let volume = client.open("disk", Access::ReadWrite).unwrap();
        let mut queue = volume.queue().unwrap();
        session.world().held = Some(Box::new(|message| message[0] == 2));
        session.kill(false);
        session.restart();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while volume.stats().waits == 0 {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(20));
                session.world().held = None;
            });
            let io = Io::bare(1, Op::Flush, 0, 0);
            ask(&mut *queue, io, by_wait);
        });
        assert_eq!((volume.stats().flushes, volume.stats().errors), (1, 0));
    }
}

#[test]
fn who_sleeps_on_the_descriptor_is_woken_when_it_has_waited_for_too_long() {
    let options = Options {
        patience: Patience::Queue(Duration::from_millis(60)),
        ..Options::default()
    };
    let (session, client) = world_with(14, &["disk"], options);
    let volume = client.open("disk", Access::ReadWrite).unwrap();
    let mut queue = volume.queue().unwrap();
    session.world().held = Some(Box::new(|message| message[0] == 2));
    session.kill(false);
    session.restart();
    // By now the reopener sleeps until the server answers, which it will not.
    while volume.status() == Status::Open {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(100));
    queue.submit(Io::bare(1, Op::Flush, 0, 0));
    let mut done = Vec::new();
    while queue.reap(&mut done) == 0 {
        sleep(&mut *queue);
    }
    assert_eq!(done[0].result, Err(Errno(libc::EIO)));
}

#[test]
fn the_last_volume_takes_the_keeper_with_it() {
    let (session, client) = world(13, &["disk"]);
    let volume = client.open("disk", Access::ReadWrite).unwrap();
    drop(client);
    let queue = volume.queue().unwrap();
    drop(volume);
    assert_eq!(session.world().machine.open.len(), 1);
    drop(queue);
    // `drop` has waited for the reopener.
    let world = session.world();
    assert_eq!((world.machine.closes, world.lent), (1, 0));
    assert!(world.machine.open.is_empty());
}
