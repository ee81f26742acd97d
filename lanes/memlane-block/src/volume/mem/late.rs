//! A queue whose requests are done by another thread, later, and not in order: as a real device's are.

use super::{Inner, Pool, lock};
use crate::volume::{Done, Errno, Io, Lease, Queue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Requests that are let pile up before one is done.
const PILE: usize = 4;

/// What the other thread has done.
#[derive(Debug)]
struct Tray {
    done: Mutex<(Vec<Done>, bool)>,
    bell: OwnedFd,
}

/// See above. When it is dropped, what is under way is done nevertheless.
pub(super) struct LateQueue {
    volume: Arc<Inner>,
    pool: Arc<Pool>,
    tray: Arc<Tray>,
    asked: Sender<Io>,
    /// A lease was refused.
    hungry: bool,
}

impl LateQueue {
    pub(super) fn new(volume: Arc<Inner>, pool: Arc<Pool>) -> io::Result<LateQueue> {
        let (asked, ask) = channel();
        let tray = Arc::new(Tray {
            done: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let worker = (Arc::clone(&volume), Arc::clone(&tray));
        let thread = std::thread::Builder::new().name("mem-volume".into());
        thread.spawn(move || work(&worker.0, &worker.1, &ask))?;
        Ok(LateQueue {
            volume,
            pool,
            tray,
            asked,
            hungry: false,
        })
    }
}

/// Does what is asked, now the newest, now the oldest of those that wait.
fn work(volume: &Inner, tray: &Tray, ask: &Receiver<Io>) {
    let mut pile: Vec<Io> = Vec::new();
    let mut turn = 0_usize;
    loop {
        if pile.is_empty() {
            match ask.recv() {
                Ok(io) => pile.push(io),
                Err(_) => return,
            }
        }
        while pile.len() < PILE
            && let Ok(io) = ask.try_recv()
        {
            pile.push(io);
        }
        turn = turn.wrapping_mul(5).wrapping_add(3);
        let io = pile.swap_remove(turn % pile.len());
        let result = volume.execute(&io);
        tray.put(Done {
            tag: io.tag,
            result,
            lease: io.lease,
        });
    }
}

impl Tray {
    fn put(&self, done: Done) {
        let mut tray = lock(&self.done);
        tray.0.push(done);
        if std::mem::take(&mut tray.1) {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Queue for LateQueue {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno> {
        let lease = self.pool.lease(&self.volume, len)?;
        self.hungry |= lease.is_none();
        Ok(lease)
    }

    fn submit(&mut self, io: Io) {
        self.volume.note(&io);
        // Its thread ends only after us.
        let _ = self.asked.send(io);
    }

    fn push(&mut self) {}

    fn reap(&mut self, into: &mut Vec<Done>) -> usize {
        let mut tray = lock(&self.tray.done);
        let n = tray.0.len();
        into.append(&mut tray.0);
        n
    }

    fn arm(&mut self) -> bool {
        if self.hungry && self.pool.has_some() {
            self.hungry = false;
            return true;
        }
        let mut tray = lock(&self.tray.done);
        let _ = rustix::io::read(&self.tray.bell, &mut [0; 8]);
        tray.1 = tray.0.is_empty();
        !tray.1
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.tray.bell.as_fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        if self.arm() {
            return;
        }
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut fds = [PollFd::new(&self.tray.bell, PollFlags::IN)];
        let _ = poll(&mut fds, limit.as_ref());
    }
}
