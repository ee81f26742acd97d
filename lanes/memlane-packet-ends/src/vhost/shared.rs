//! What the thread that talks with the machine monitor and the threads that carry frames have in common.

use super::vring::Vring;
use memlane_packet::Offloads;
use memlane_packet::error::{Detach, Ring};
use memlane_packet::io::socket::errno;
use memlane_sys::Errno;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

/// What a guest's driver has agreed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Driver {
    /// Bytes before each frame.
    pub(super) header: usize,
    /// A frame for the guest may lie in several buffers.
    pub(super) merges: bool,
    /// The guest takes blank checksums.
    pub(super) sums: bool,
    /// The guest takes frames that are still to be cut.
    pub(super) takes: Offloads,
}

/// A connection, and what is known of who is at its other end.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) driver: Driver,
    pub(super) socket: Option<UnixStream>,
    /// A process carries frames for the guest.
    pub(super) taken: bool,
    /// What the guest or its monitor did wrong, and in which session.
    wrong: Option<(u32, String)>,
    /// What the guest or its monitor did wrong before there was a session; the next caller that waits for a session
    /// gets it.
    trouble: Option<String>,
    stopping: bool,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) name: String,
    /// Two for each pair, as VIRTIO numbers them: what the guest receives by, what it sends by.
    rings: Vec<Mutex<Vring>>,
    /// For each pair: something has changed that its thread does not know of.
    changed: Vec<EventFd>,
    state: Mutex<State>,
    /// Odd while the guest's driver is there: written by the monitor's thread, with `state` locked; read by all.
    session: AtomicU32,
    /// A guest is there that nobody has taken yet.
    pub(super) door: EventFd,
    /// The monitor's thread is to end.
    pub(super) stop: EventFd,
}

impl Shared {
    pub(super) fn new(name: String, pairs: u16) -> Result<Shared, Errno> {
        let ring = |n| {
            let kind = if n % 2 == 0 { Ring::Rx } else { Ring::Tx };
            Vring::new(kind).map(Mutex::new).ok_or(Errno::INVAL)
        };
        Ok(Shared {
            name,
            rings: (0..2 * pairs).map(ring).collect::<Result<_, _>>()?,
            changed: (0..pairs)
                .map(|_| EventFd::new().map_err(errno))
                .collect::<Result<_, _>>()?,
            state: Mutex::default(),
            session: AtomicU32::new(0),
            door: EventFd::new().map_err(errno)?,
            stop: EventFd::new().map_err(errno)?,
        })
    }

    pub(super) fn pairs(&self) -> usize {
        self.changed.len()
    }

    pub(super) fn ring(&self, n: usize) -> Option<MutexGuard<'_, Vring>> {
        Some(lock(self.rings.get(n)?))
    }

    pub(super) fn rings(&self) -> impl Iterator<Item = MutexGuard<'_, Vring>> {
        self.rings.iter().map(lock)
    }

    /// What the guest receives by, of this pair; of the first, if it does not use this one.
    pub(super) fn inbox(&self, pair: usize) -> MutexGuard<'_, Vring> {
        let ring = lock(&self.rings[2 * pair]);
        if pair == 0 || ring.is_running() {
            return ring;
        }
        drop(ring);
        lock(&self.rings[0])
    }

    /// What the guest sends by.
    pub(super) fn outbox(&self, pair: usize) -> MutexGuard<'_, Vring> {
        lock(&self.rings[2 * pair + 1])
    }

    pub(super) fn changed(&self, pair: usize) -> &EventFd {
        &self.changed[pair]
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn session(&self) -> u32 {
        self.session.load(Ordering::Acquire)
    }

    /// A ring was started, stopped, or has another doorbell: is the guest's driver there?
    pub(super) fn look(&self) {
        let there = [0, 1].iter().all(|n| lock(&self.rings[*n]).is_running());
        let mut state = self.state();
        let session = self.session();
        if there != (session % 2 == 1) {
            self.session
                .store(session.wrapping_add(1), Ordering::Release);
            state.taken = false;
            if there {
                self.door.signal();
            } else {
                self.door.drain();
            }
        }
        drop(state);
        self.changed.iter().for_each(EventFd::signal);
    }

    /// A front end has connected; `false`: we are to stop.
    pub(super) fn begin(&self, socket: Option<UnixStream>) -> bool {
        let mut state = self.state();
        state.socket = socket;
        !state.stopping
    }

    /// It is gone; what it did wrong.
    pub(super) fn end(&self, wrong: Option<String>) {
        let mut state = self.state();
        state.socket = None;
        let session = self.session();
        // Who hung up has said why already.
        let said = matches!(&state.wrong, Some((when, _)) if *when == session);
        if let Some(wrong) = wrong.filter(|_| !said) {
            if session.is_multiple_of(2) {
                state.trouble = Some(wrong);
                self.door.signal();
            } else {
                state.wrong = Some((session, wrong));
            }
        }
        drop(state);
        self.rings().for_each(|mut ring| ring.clear());
        self.look();
    }

    /// Why a session ended, if the guest or its monitor did something wrong.
    pub(super) fn wrong(&self, session: u32) -> Option<String> {
        let state = self.state();
        let wrong = state.wrong.as_ref().filter(|(when, _)| *when == session);
        wrong.map(|(_, what)| what.clone())
    }

    /// Takes the guest that is there: (session, what it has agreed to); or what is wrong with who came last.
    pub(super) fn take(&self) -> Result<Option<(u32, Driver)>, String> {
        let mut state = self.state();
        let session = self.session();
        if let Some(trouble) = state.trouble.take() {
            if session.is_multiple_of(2) || state.taken {
                self.door.drain();
            }
            return Err(trouble);
        }
        if session.is_multiple_of(2) || state.taken {
            return Ok(None);
        }
        state.taken = true;
        self.door.drain();
        Ok(Some((session, state.driver)))
    }

    /// Gives the session back, so that it may be taken again.
    pub(super) fn give_back(&self, session: u32) {
        let mut state = self.state();
        if session == self.session() && state.taken {
            state.taken = false;
            self.door.signal();
        }
    }

    /// The guest or its monitor did what it must not.
    pub(super) fn hang_up(&self, session: u32, why: &Detach) {
        let mut state = self.state();
        if session == self.session() {
            state.wrong = Some((session, why.to_string()));
            shut(state.socket.as_ref());
        }
    }

    /// Ends the monitor's thread.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.stopping = true;
        shut(state.socket.as_ref());
        self.stop.signal();
    }
}

fn shut(socket: Option<&UnixStream>) {
    if let Some(socket) = socket {
        let _ = socket.shutdown(Shutdown::Both);
    }
}
