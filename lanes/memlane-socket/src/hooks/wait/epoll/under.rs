//! How a thread sleeps on sets that lie in what it waits on.
//!
//! Before it sleeps in the kernel, it parks the connections of these sets: TCP wakes it. Such a set uses no bells, which the
//! kernel would report as news of the set.

use super::below::flush;
use super::nested::news;
use super::park::{AllParked, park_what_is_read};
use super::*;
use core::mem::MaybeUninit;
use libc::pollfd;

/// The most sets of one call of poll or select that are followed.
pub(in crate::hooks::wait) const POLLED: usize = 8;
/// The most sets that one thread can sleep on: all that lie in others, and those that it polls.
const MOST: usize = NESTS + POLLED;

/// The sets that a thread sleeps on in the kernel, because what it waits on is one of them or holds them.
pub(in crate::hooks::wait) struct Under {
    sets: [MaybeUninit<&'static Ep>; MOST],
    len: usize,
    /// A connection could not be parked, because it has unread bytes that nobody waits for: the thread may sleep only for a
    /// moment. That may also be a connection of the set that the thread waits on.
    pub(in crate::hooks::wait) is_any_awake: bool,
}

impl Under {
    pub(in crate::hooks::wait) fn new() -> Under {
        Under {
            sets: [const { MaybeUninit::uninit() }; MOST],
            len: 0,
            is_any_awake: false,
        }
    }

    fn sets(&self) -> &[&'static Ep] {
        // SAFETY: `add` has written the first `len`.
        unsafe { core::slice::from_raw_parts(self.sets.as_ptr().cast(), self.len) }
    }

    /// Parks the connections of the sets below this one, and counts the thread as asleep on these sets, until
    /// [`get_up`](Under::get_up), which must follow in any case.
    pub(super) fn lie_down_below(&mut self, ep: &Ep) -> AllParked {
        for inner in nests_in(ep).filter_map(Nest::inner) {
            if self.lie_down(inner).is_stuck() {
                return AllParked::Stuck;
            }
        }
        AllParked::Yes
    }

    /// The same for this set, too.
    pub(in crate::hooks::wait) fn lie_down(&mut self, ep: &'static Ep) -> AllParked {
        if self.sets().iter().any(|known| core::ptr::eq(*known, ep)) {
            return AllParked::Yes;
        }
        if !self.lie_down_on(ep) {
            return AllParked::Stuck;
        }
        self.lie_down_below(ep)
    }

    fn lie_down_on(&mut self, ep: &'static Ep) -> bool {
        let (Some(_held), Some(place)) = (ep.lock.lock(), self.sets.get_mut(self.len)) else {
            return false;
        };
        for list in [&ep.hot, &ep.belled] {
            match park_what_is_read(ep, list) {
                AllParked::Stuck => return false,
                AllParked::No => self.is_any_awake = true,
                AllParked::Yes => {}
            }
        }
        ep.sleepers.fetch_add(1, Ordering::SeqCst);
        place.write(ep);
        self.len += 1;
        true
    }

    /// Counts the thread as awake. Returns whether another thread has woken it by the eventfd of one of the sets: the kernel may
    /// have reported that set, though it has nothing.
    pub(in crate::hooks::wait) fn get_up(&mut self) -> bool {
        let mut rung = false;
        for ep in self.sets() {
            let _held = ep.lock.lock();
            let sleepers = ep.sleepers.load(Ordering::Relaxed);
            // 0: the set has been closed meanwhile, and another one has its place.
            ep.sleepers
                .store(sleepers.saturating_sub(1), Ordering::SeqCst);
            if sleepers <= 1 {
                rung |= silence(ep); // other sleepers read it themselves
            }
        }
        self.len = 0;
        self.is_any_awake = false;
        rung
    }
}

/// Drops the kernel's reports of sets that have nothing. Returns how many events are left.
#[cold]
pub(super) fn drop_false(ep: &'static Ep, events: &mut [epoll_event]) -> usize {
    let mut kept = 0;
    for i in 0..events.len() {
        let event = events[i];
        let is_it = |nest: &&Nest| nest.reg.data.load(Ordering::Relaxed) == { event.u64 };
        let inner = nests_in(ep).find(is_it).and_then(Nest::inner);
        if event.events & !IN == 0 && inner.is_some_and(|inner| !is_readable(inner)) {
            continue;
        }
        events[kept] = event;
        kept += 1;
    }
    kept
}

/// Is the set readable, by rings or by what the kernel has?
fn is_readable(ep: &'static Ep) -> bool {
    news(ep).is_some() || {
        flush(ep);
        let mut one = pollfd {
            fd: ep.fd.load(Ordering::Relaxed),
            events: libc::POLLIN,
            revents: 0,
        };
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        real!(ppoll(&raw mut one, 1, &raw const now, core::ptr::null())) > 0
    }
}
