//! A queue whose requests are done by another thread, later, and not in order: as a real device's are.

use super::{Inner, Pool};
use crate::volume::{Done, Errno, Io, Lease, Queue};
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Requests that are let pile up before one is done.
const PILE: usize = 4;

/// What the other thread has done.
#[derive(Debug)]
struct Tray {
    done: Mutex<(Vec<Done>, bool)>,
    event: EventFd,
}

/// A queue whose requests another thread does. Those under way when it is dropped are done nevertheless.
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
            event: EventFd::new()?,
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
            self.event.signal();
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
        self.tray.event.drain();
        tray.1 = tray.0.is_empty();
        !tray.1
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.tray.event.as_fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        if !self.arm() {
            self.tray.event.wait(limit);
        }
    }
}
