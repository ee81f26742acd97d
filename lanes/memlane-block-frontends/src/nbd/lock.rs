//! Who may change which bytes of an export at the same time.
//!
//! A request that is not in whole blocks is served by reading a block, changing a part of it and writing it back.
//! Whatever else is written to that block in between, by whichever connection, would be lost; so the change of a
//! part holds its block alone, and everything else that writes holds its bytes together with others. Reads hold
//! nothing: what a read sees of a write that is under way is not defined.

use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What other threads tell a connection's thread: look again, or these bytes are yours now.
#[derive(Debug)]
pub(super) struct Wakeup {
    pub(super) event: EventFd,
    /// Whether `granted` has anything, so that a look at nothing takes no lock. Other threads set it (release) after
    /// they have added to `granted`; the connection's thread clears it (acquire) before it takes.
    pending: AtomicBool,
    granted: Mutex<Vec<(u32, HeldRange)>>,
}

impl Wakeup {
    pub(super) fn new() -> io::Result<Arc<Wakeup>> {
        Ok(Arc::new(Wakeup {
            event: EventFd::new()?,
            pending: AtomicBool::new(false),
            granted: Mutex::default(),
        }))
    }

    /// Takes the ranges that were waited for and are held now, each with its key.
    pub(super) fn granted(&self) -> Vec<(u32, HeldRange)> {
        match self.pending.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut *lock(&self.granted)),
            false => Vec::new(),
        }
    }

    fn grant(&self, key: u32, held: HeldRange) {
        lock(&self.granted).push((key, held));
        self.pending.store(true, Ordering::Release);
        self.event.signal();
    }
}

/// Bytes that are held; given to [`RangeLock::release`].
#[derive(Debug)]
pub(super) struct HeldRange(usize);

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
    owner: Arc<Wakeup>,
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
    /// Holds `from..to` if no other holder overlaps it. `None`: `owner` gets `key` when it is held. First come, first
    /// served, so that nobody waits for ever.
    pub(super) fn acquire(
        &self,
        (from, to): (u64, u64),
        alone: bool,
        owner: &Arc<Wakeup>,
        key: u32,
    ) -> Option<HeldRange> {
        let range = Range { from, to, alone };
        let mut state = lock(&self.state);
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

    /// Holds `from..to` together with others. `None`: somebody holds some of it alone, or waits to.
    pub(super) fn try_share(&self, (from, to): (u64, u64)) -> Option<HeldRange> {
        let range = Range {
            from,
            to,
            alone: false,
        };
        let mut state = lock(&self.state);
        state.admits(&range).then(|| state.hold(range))
    }

    /// Lets go, and tells those who can go on now.
    pub(super) fn release(&self, held: HeldRange) {
        let mut state = lock(&self.state);
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

    fn hold(&mut self, range: Range) -> HeldRange {
        self.alone += usize::from(range.alone);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        self.held[slot] = Some(range);
        HeldRange(slot)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(wakeup: &Wakeup) -> Vec<(u32, HeldRange)> {
        wakeup.granted()
    }

    #[test]
    fn writers_of_whole_blocks_do_not_wait_for_each_other() {
        let (ranges, wakeup) = (RangeLock::default(), Wakeup::new().unwrap());
        let a = ranges.acquire((0, 4096), false, &wakeup, 1).unwrap();
        let b = ranges.acquire((0, 4096), false, &wakeup, 2).unwrap();
        ranges.release(a);
        ranges.release(b);
    }

    #[test]
    fn who_changes_a_part_of_a_block_has_it_alone() {
        let (ranges, wakeup) = (RangeLock::default(), Wakeup::new().unwrap());
        let whole = ranges.acquire((0, 4096), false, &wakeup, 1).unwrap();
        assert!(ranges.acquire((512, 1024), true, &wakeup, 2).is_none());
        let elsewhere = ranges.acquire((8192, 8704), true, &wakeup, 3).unwrap();
        assert!(keys(&wakeup).is_empty());
        ranges.release(whole);
        let (key, part) = keys(&wakeup).pop().unwrap();
        assert_eq!(key, 2);
        assert!(ranges.acquire((0, 4096), false, &wakeup, 4).is_none());
        ranges.release(part);
        assert_eq!(keys(&wakeup).pop().unwrap().0, 4);
        ranges.release(elsewhere);
    }

    #[test]
    fn who_waits_is_not_overtaken_by_those_who_come_later() {
        let (ranges, wakeup) = (RangeLock::default(), Wakeup::new().unwrap());
        let first = ranges.acquire((0, 512), false, &wakeup, 1).unwrap();
        assert!(ranges.acquire((0, 512), true, &wakeup, 2).is_none());
        assert!(ranges.acquire((0, 512), false, &wakeup, 3).is_none());
        ranges.release(first);
        let granted = keys(&wakeup);
        assert_eq!(granted.iter().map(|g| g.0).collect::<Vec<_>>(), [2]);
        for (_, held) in granted {
            ranges.release(held);
        }
        assert_eq!(keys(&wakeup)[0].0, 3);
    }

    #[test]
    fn slots_are_used_again() {
        let (ranges, wakeup) = (RangeLock::default(), Wakeup::new().unwrap());
        for i in 0..1000 {
            let held = ranges
                .acquire((i, i + 512), i % 2 == 0, &wakeup, 0)
                .unwrap();
            assert!(held.0 < 1);
            ranges.release(held);
        }
    }
}
