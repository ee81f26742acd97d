//! Extents: who receives and who writes in each, and when one is free again.
//!
//! The receiver's agent allots an extent and frees it; the sender's agent says when its process has let go. Both are words in
//! the region and not messages, so that neither a restart nor a full ring loses them. What an agent has itself allotted it knows
//! by itself.

use super::layout::{Extent, LET_GO, NOT_TAKEN, held_by};
use super::participants::Participants;
use super::region::Region;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeSet;

/// A process, so that another one which gets its number later is told from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lifetime {
    /// Its number.
    pub pid: i32,
    /// When it started, in the kernel's ticks.
    pub since: u64,
}

impl Lifetime {
    /// Of the process that has this number now. `None`: nobody has.
    pub fn of(pid: i32) -> Option<Lifetime> {
        let since = memlane_sys::proc::started(u32::try_from(pid).ok()?)?;
        Some(Lifetime { pid, since })
    }

    /// Is that process alive?
    pub fn lasts(self) -> bool {
        Lifetime::of(self.pid) == Some(self)
    }
}

/// What the sender's word of an extent says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sender {
    /// Nobody has come yet.
    NotTaken,
    /// A machine whose present boot has the extent.
    Uses,
    /// It will not write there any more.
    Ended,
}

/// The extents that this machine's processes receive in, and that they had before a restart of the agent.
#[derive(Default)]
pub(crate) struct Extents {
    /// Allotted by this machine and not free yet.
    own: BTreeSet<usize>,
    /// Those of `own` whose process has let go: they are free when the sender has, too.
    leaving: BTreeSet<usize>,
    /// Extents that processes have been using since before the agent's start, and those processes.
    orphans: Vec<(usize, Lifetime, Use)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Receives,
    Sends,
}

impl Extents {
    /// Takes over what earlier runs of this machine's agent have left.
    pub(crate) fn take_over(region: &Region, who: &Participants) -> Extents {
        let mut extents = Extents::default();
        for number in 0..region.division().extents {
            let entry = region.extent(number);
            let ours = |word: &AtomicU64| {
                let (place, _) = held_by(load(word))?;
                (place == who.place()).then(|| load(word) == who.holder())
            };
            if let Some(is_this_boot) = ours(&entry.receiver) {
                extents.own.insert(number);
                entry.receiver.store(who.holder(), Ordering::Release);
                let process = lifetime(&entry.receiver_pid, &entry.receiver_since);
                match process.filter(|process| is_this_boot && process.lasts()) {
                    Some(process) => extents.orphans.push((number, process, Use::Receives)),
                    None => extents.leave(number),
                }
            }
            if let Some(is_this_boot) = ours(&entry.sender) {
                let process = lifetime(&entry.sender_pid, &entry.sender_since);
                match process.filter(|process| is_this_boot && process.lasts()) {
                    Some(process) => extents.orphans.push((number, process, Use::Sends)),
                    None => entry.sender.store(LET_GO, Ordering::Release),
                }
            }
        }
        extents
    }

    /// Allots an extent to a process that receives there. `None`: there is no memory.
    pub(crate) fn allot(
        &mut self,
        region: &Region,
        who: &Participants,
        process: Lifetime,
        bond: u64,
    ) -> Option<usize> {
        let mut numbers = 0..region.division().extents;
        let number = numbers.find(|&number| self.claim(region, who, number))?;
        let entry = region.extent(number);
        entry.bond.store(bond, Ordering::Relaxed);
        note(process, &entry.receiver_pid, &entry.receiver_since);
        entry.sender_bond.store(0, Ordering::Relaxed);
        entry.sender_pid.store(0, Ordering::Relaxed);
        if !region.clear(number) {
            give_up(entry, who.holder());
            return None;
        }
        entry.sender.store(NOT_TAKEN, Ordering::SeqCst);
        self.own.insert(number);
        Some(number)
    }

    fn claim(&self, region: &Region, who: &Participants, number: usize) -> bool {
        let entry = region.extent(number);
        if self.own.contains(&number) || load(&entry.receiver) != 0 {
            return false;
        }
        let order = Ordering::SeqCst;
        let won = entry
            .receiver
            .compare_exchange(0, who.holder(), order, order);
        if won.is_ok() && sender(entry, who) == Sender::Uses {
            give_up(entry, who.holder()); // somebody comes too late, and will see that
            return false;
        }
        won.is_ok()
    }

    /// The process that receives in an extent of ours has let go.
    pub(crate) fn leave(&mut self, number: usize) {
        self.leaving.insert(number);
    }

    /// Frees what everybody has let go of.
    pub(crate) fn free(&mut self, region: &Region, who: &Participants) {
        let holder = who.holder();
        let freed: Vec<usize> = self
            .leaving
            .iter()
            .copied()
            .filter(|&number| {
                let entry = region.extent(number);
                let order = Ordering::SeqCst;
                // From here on no sender comes any more.
                let _ = entry
                    .sender
                    .compare_exchange(NOT_TAKEN, LET_GO, order, order);
                sender(entry, who) != Sender::Uses
            })
            .collect();
        for number in freed {
            region.give_back(number);
            give_up(region.extent(number), holder);
            self.leaving.remove(&number);
            self.own.remove(&number);
        }
    }

    /// Looks after the processes that were there before the agent: what those that are no more had is let go of.
    pub(crate) fn bury(&mut self, region: &Region, who: &Participants) {
        let orphans = core::mem::take(&mut self.orphans);
        let (alive, dead): (Vec<_>, Vec<_>) = orphans
            .into_iter()
            .partition(|(_, process, _)| process.lasts());
        self.orphans = alive;
        for (number, _, use_) in dead {
            self.end(region, who, number, use_);
        }
    }

    /// A process that was there before the agent has let go of what it shares with another, which it knows by this name.
    pub(crate) fn part(
        &mut self,
        region: &Region,
        who: &Participants,
        process: Lifetime,
        peer: u64,
    ) {
        let is_meant = |(number, orphan, use_): &(usize, Lifetime, Use)| {
            let entry = region.extent(*number);
            let name = match use_ {
                Use::Receives => &entry.sender_bond,
                Use::Sends => &entry.bond,
            };
            *orphan == process && load(name) == peer
        };
        let orphans = core::mem::take(&mut self.orphans);
        let (meant, others): (Vec<_>, Vec<_>) = orphans.into_iter().partition(is_meant);
        self.orphans = others;
        for (number, _, use_) in meant {
            self.end(region, who, number, use_);
        }
    }

    fn end(&mut self, region: &Region, who: &Participants, number: usize, use_: Use) {
        match use_ {
            Use::Receives => self.leave(number),
            Use::Sends => let_go(region.extent(number), who),
        }
    }

    /// Extents that this machine's processes receive in.
    pub(crate) fn len(&self) -> usize {
        self.own.len()
    }
}

/// A process of this machine's is going to write in another's extent, by the other's name for the bond and by ours. `false`: the
/// extent is not for this bond any more.
pub(crate) fn take(
    region: &Region,
    who: &Participants,
    number: usize,
    [bond, own_bond]: [u64; 2],
    process: Lifetime,
) -> bool {
    let entry = region.extent(number);
    let order = Ordering::SeqCst;
    let taken = entry
        .sender
        .compare_exchange(NOT_TAKEN, who.holder(), order, order);
    if taken.is_err() {
        return false;
    }
    if load(&entry.bond) != bond {
        // It was allotted anew meanwhile.
        let _ = entry
            .sender
            .compare_exchange(who.holder(), NOT_TAKEN, order, order);
        return false;
    }
    entry.sender_bond.store(own_bond, Ordering::Relaxed);
    note(process, &entry.sender_pid, &entry.sender_since);
    true
}

/// A process of this machine's will not write in another's extent any more.
pub(crate) fn let_go(entry: &Extent, who: &Participants) {
    let order = Ordering::SeqCst;
    let _ = entry
        .sender
        .compare_exchange(who.holder(), LET_GO, order, order);
}

/// What an extent's sender's word says. A machine that was booted again, or that is not there any more, uses nothing.
pub(crate) fn sender(entry: &Extent, who: &Participants) -> Sender {
    match load(&entry.sender) {
        NOT_TAKEN => Sender::NotTaken,
        LET_GO => Sender::Ended,
        word => match held_by(word) {
            Some((place, _)) if who.holder_at(place) == word => Sender::Uses,
            _ => Sender::Ended,
        },
    }
}

fn give_up(entry: &Extent, holder: u64) {
    let order = Ordering::SeqCst;
    let _ = entry.receiver.compare_exchange(holder, 0, order, order);
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

fn note(process: Lifetime, pid: &AtomicU64, since: &AtomicU64) {
    since.store(process.since, Ordering::Relaxed);
    pid.store(u64::try_from(process.pid).unwrap_or(0), Ordering::Release);
}

fn lifetime(pid: &AtomicU64, since: &AtomicU64) -> Option<Lifetime> {
    let pid = i32::try_from(load(pid)).ok().filter(|&pid| pid > 0)?;
    let since = load(since);
    Some(Lifetime { pid, since })
}

/// Lets go of all that a machine has, which will never come back.
pub fn forget(region: &Region, place: usize) {
    for number in 0..region.division().extents {
        let entry = region.extent(number);
        let is_its = |word: &AtomicU64| held_by(load(word)).is_some_and(|(at, _)| at == place);
        if is_its(&entry.sender) {
            entry.sender.store(LET_GO, Ordering::SeqCst);
        }
        if is_its(&entry.receiver) {
            entry.receiver.store(0, Ordering::SeqCst);
        }
    }
}
