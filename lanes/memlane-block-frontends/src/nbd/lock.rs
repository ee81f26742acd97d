//! Who may change which bytes of an export at the same time.
//!
//! A request that is not in whole blocks is served by reading a block, changing a part of it and writing it back.
//! Whatever else is written to that block in between, by whichever connection, would be lost; so the change of a
//! part holds its block alone, and everything else that writes holds its bytes together with others. Reads hold
//! nothing: what a read sees of a write that is under way is not defined.

use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a connection is told things by other threads.
#[derive(Debug)]
pub(super) struct Bell {
    fd: OwnedFd,
    /// Something is in `granted`.
    rung: AtomicBool,
    granted: Mutex<Vec<(u32, Held)>>,
}

impl Bell {
    pub(super) fn new() -> io::Result<Arc<Bell>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Bell {
            fd,
            rung: AtomicBool::new(false),
            granted: Mutex::default(),
        }))
    }

    /// Wakes its owner. A counter that is full wakes as well.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Quiet again.
    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }

    /// What was waited for and is held now.
    pub(super) fn granted(&self) -> Vec<(u32, Held)> {
        match self.rung.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut *guard(&self.granted)),
            false => Vec::new(),
        }
    }

    fn grant(&self, key: u32, held: Held) {
        guard(&self.granted).push((key, held));
        self.rung.store(true, Ordering::Release);
        self.ring();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Bytes that are held; given to [`RangeLock::release`].
#[derive(Debug)]
pub(super) struct Held(usize);

#[derive(Clone, Copy, Debug)]
struct Range {
    from: u64,
    to: u64,
    alone: bool,
}

impl Range {
    fn excludes(&self, other: &Range) -> bool {
        (self.alone || other.alone) && self.from < other.to && other.from < self.to
    }
}

#[derive(Debug)]
struct Waiter {
    range: Range,
    key: u32,
    owner: Arc<Bell>,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Option<Range>>,
    free: Vec<usize>,
    /// How many of `held` are held alone.
    alone: usize,
    waiting: VecDeque<Waiter>,
}

/// One export's.
#[derive(Debug, Default)]
pub(super) struct RangeLock {
    state: Mutex<State>,
}

impl RangeLock {
    /// Holds `from..to`, if nothing speaks against it. `None`: `owner` is told with `key` when it is held. First
    /// come, first served, so that nobody waits for ever.
    pub(super) fn acquire(
        &self,
        (from, to): (u64, u64),
        alone: bool,
        owner: &Arc<Bell>,
        key: u32,
    ) -> Option<Held> {
        let range = Range { from, to, alone };
        let mut state = guard(&self.state);
        if state.admits(&range) {
            return Some(state.hold(range));
        }
        state.waiting.push_back(Waiter {
            range,
            key,
            owner: Arc::clone(owner),
        });
        None
    }

    /// Lets go, and tells those who can go on now.
    pub(super) fn release(&self, held: Held) {
        let mut state = guard(&self.state);
        if let Some(range) = state.held.get_mut(held.0).and_then(Option::take) {
            state.alone -= usize::from(range.alone);
            state.free.push(held.0);
        }
        if !state.waiting.is_empty() {
            state.admit_waiting();
        }
    }
}

impl State {
    fn admits(&self, range: &Range) -> bool {
        if !range.alone && self.alone == 0 && self.waiting.is_empty() {
            return true;
        }
        self.nobody_holds_against(range) && !self.waiting.iter().any(|w| w.range.excludes(range))
    }

    fn nobody_holds_against(&self, range: &Range) -> bool {
        !self.held.iter().flatten().any(|held| held.excludes(range))
    }

    fn hold(&mut self, range: Range) -> Held {
        self.alone += usize::from(range.alone);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        self.held[slot] = Some(range);
        Held(slot)
    }

    fn admit_waiting(&mut self) {
        let mut still: VecDeque<Waiter> = VecDeque::with_capacity(self.waiting.len());
        while let Some(waiter) = self.waiting.pop_front() {
            let earlier = still.iter().any(|w| w.range.excludes(&waiter.range));
            if earlier || !self.nobody_holds_against(&waiter.range) {
                still.push_back(waiter);
                continue;
            }
            let held = self.hold(waiter.range);
            waiter.owner.grant(waiter.key, held);
        }
        self.waiting = still;
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bell: &Bell) -> Vec<(u32, Held)> {
        bell.granted()
    }

    #[test]
    fn writers_of_whole_blocks_do_not_wait_for_each_other() {
        let (lock, bell) = (RangeLock::default(), Bell::new().unwrap());
        let a = lock.acquire((0, 4096), false, &bell, 1).unwrap();
        let b = lock.acquire((0, 4096), false, &bell, 2).unwrap();
        lock.release(a);
        lock.release(b);
    }

    #[test]
    fn who_changes_a_part_of_a_block_has_it_alone() {
        let (lock, bell) = (RangeLock::default(), Bell::new().unwrap());
        let whole = lock.acquire((0, 4096), false, &bell, 1).unwrap();
        assert!(lock.acquire((512, 1024), true, &bell, 2).is_none());
        let elsewhere = lock.acquire((8192, 8704), true, &bell, 3).unwrap();
        assert!(keys(&bell).is_empty());
        lock.release(whole);
        let (key, part) = keys(&bell).pop().unwrap();
        assert_eq!(key, 2);
        assert!(lock.acquire((0, 4096), false, &bell, 4).is_none());
        lock.release(part);
        assert_eq!(keys(&bell).pop().unwrap().0, 4);
        lock.release(elsewhere);
    }

    #[test]
    fn who_waits_is_not_overtaken_by_those_who_come_later() {
        let (lock, bell) = (RangeLock::default(), Bell::new().unwrap());
        let first = lock.acquire((0, 512), false, &bell, 1).unwrap();
        assert!(lock.acquire((0, 512), true, &bell, 2).is_none());
        assert!(lock.acquire((0, 512), false, &bell, 3).is_none());
        lock.release(first);
        let granted = keys(&bell);
        assert_eq!(granted.iter().map(|g| g.0).collect::<Vec<_>>(), [2]);
        for (_, held) in granted {
            lock.release(held);
        }
        assert_eq!(keys(&bell)[0].0, 3);
    }

    #[test]
    fn slots_are_used_again() {
        let (lock, bell) = (RangeLock::default(), Bell::new().unwrap());
        for i in 0..1000 {
            let held = lock.acquire((i, i + 512), i % 2 == 0, &bell, 0).unwrap();
            assert!(held.0 < 1);
            lock.release(held);
        }
    }
}
