//! Grants that stay mapped: the tree of the persistent-grant series, with an end to what it holds.
//!
//! Found by reference; the reference is an index, so there is no tree. An entry remembers the word of the grant table
//! that it was mapped by: another word there is another grant, and the old mapping is given up. A table that is full
//! gives up what was not used for long ([`Cache::grace`] look-ups), the longest unused first; if there is none, the
//! caller copies instead, so that a working set larger than the table costs a copy, not two system calls and a TLB
//! flush. A mapping that is lent is never given up. What was not used for the idle time is unmapped by
//! [`Cache::sweep`].

use super::grant::{Access, Grant, GrantError, Reach};
use crate::error::Detach;
use memlane_core::access::SharedBytes;

/// What there was, as the series' debugfs files told it (`in_use`, `max`, `count`), and what became of look-ups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GrantCounts {
    /// Mapped now.
    pub mapped: u64,
    /// Lent now.
    pub in_use: u64,
    /// Mapped at most: as was said, or as the kernel allowed.
    pub max: u64,
    /// Look-ups that found a mapping.
    pub hits: u64,
    /// Look-ups that made one.
    pub misses: u64,
    /// Look-ups that found the table full, the old mapping lent, or no new one to be had: copied instead.
    pub busy: u64,
    /// Mappings given up because the table was full.
    pub evicted: u64,
    /// Because they were idle.
    pub idle: u64,
    /// Because the table said something else.
    pub stale: u64,
}

#[derive(Debug)]
struct Entry {
    gref: u32,
    word: u64,
    window: SharedBytes,
    /// Look-up at which it was used last.
    used: u64,
    /// How many have it.
    held: u32,
}

/// A mapping that is lent: give it back to [`Cache::release`].
#[derive(Debug)]
pub struct MappingLease(u32);

/// What a look-up gives.
#[derive(Debug)]
pub enum Found {
    /// It is mapped.
    Mapped(MappingLease, SharedBytes),
    /// There is no room, it is lent as something else, or the kernel does not map it: copy.
    Busy(Grant),
}

/// No mapping of this reference.
const NONE: u32 = u32::MAX;

/// One direction's table of one queue.
#[derive(Debug)]
pub struct Cache {
    access: Access,
    most: usize,
    entries: Vec<Entry>,
    /// Where a reference's entry is; as long as the grant table.
    by_gref: Vec<u32>,
    clock: u64,
    /// The last sweep: when, and at which look-up.
    swept: (u64, u64),
    counts: GrantCounts,
}

impl Cache {
    /// A table of at most `most` mappings of `grants` references.
    pub fn new(access: Access, most: u32, grants: u32) -> Cache {
        Cache {
            access,
            most: most as usize,
            entries: Vec::with_capacity(most.min(grants) as usize),
            by_gref: vec![NONE; grants as usize],
            clock: 0,
            swept: (0, 0),
            counts: GrantCounts {
                max: u64::from(most),
                ..GrantCounts::default()
            },
        }
    }

    /// Look-ups for which a mapping is kept although others want its place: as many as there are references, so that
    /// buffers which take turns do not push each other out for ever.
    pub fn grace(&self) -> u64 {
        self.by_gref.len() as u64
    }

    /// Counters.
    pub fn counts(&self) -> GrantCounts {
        GrantCounts {
            mapped: self.entries.len() as u64,
            ..self.counts
        }
    }

    /// The mapping of `gref`, whose entry in the table is `word` (a private copy).
    ///
    /// # Errors
    /// The grant cannot be used.
    #[inline]
    pub fn look_up<R: Reach>(
        &mut self,
        gref: u32,
        word: u64,
        reach: &mut R,
    ) -> Result<Found, Detach> {
        self.clock += 1;
        if let Some(&at) = self.by_gref.get(gref as usize)
            && let Some(entry) = self.entries.get_mut(at as usize)
            && entry.word == word
        {
            entry.used = self.clock;
            entry.held += 1;
            self.counts.in_use += 1;
            self.counts.hits += 1;
            return Ok(Found::Mapped(MappingLease(at), entry.window));
        }
        self.miss(gref, word, reach)
    }

    #[cold]
    fn miss<R: Reach>(&mut self, gref: u32, word: u64, reach: &mut R) -> Result<Found, Detach> {
        let refused = Detach::of_grant(gref);
        let grant = Grant::check(word, reach.regions(), self.access).map_err(&refused)?;
        let at = self.by_gref.get(gref as usize);
        let at = *at.ok_or_else(|| refused(GrantError::NoEntry))?;
        if !self.has_room(at, reach) {
            self.counts.busy += 1;
            return Ok(Found::Busy(grant));
        }
        let Ok(window) = reach.map(grant, self.access) else {
            // The process has all the mappings that it may have: from now on this table makes do with its own.
            self.most = self.entries.len();
            self.counts.max = self.most as u64;
            self.counts.busy += 1;
            return Ok(Found::Busy(grant));
        };
        let at = u32::try_from(self.entries.len()).unwrap_or(NONE);
        self.entries.push(Entry {
            gref,
            word,
            window,
            used: self.clock,
            held: 1,
        });
        self.by_gref[gref as usize] = at;
        self.counts.in_use += 1;
        self.counts.misses += 1;
        Ok(Found::Mapped(MappingLease(at), window))
    }

    /// Makes room for one more, and gives up `stale`, the same reference's older mapping.
    fn has_room<R: Reach>(&mut self, stale: u32, reach: &mut R) -> bool {
        if let Some(entry) = self.entries.get(stale as usize) {
            if entry.held > 0 || !self.may_move_last() {
                return false;
            }
            self.counts.stale += 1;
            self.give_up(stale as usize, reach);
        }
        if self.entries.len() < self.most {
            return true;
        }
        let oldest = self.entries.iter().enumerate().filter(|(_, e)| e.held == 0);
        let oldest = oldest
            .min_by_key(|(_, e)| e.used)
            .map(|(at, e)| (at, e.used));
        match oldest {
            Some((at, used)) if used + self.grace() <= self.clock && self.may_move_last() => {
                self.counts.evicted += 1;
                self.give_up(at, reach);
                true
            }
            _ => false,
        }
    }

    /// Giving up a mapping moves the last entry, whose position a caller may have.
    fn may_move_last(&self) -> bool {
        self.entries.last().is_none_or(|last| last.held == 0)
    }

    fn give_up<R: Reach>(&mut self, at: usize, reach: &mut R) {
        let entry = self.entries.swap_remove(at);
        debug_assert!(entry.held == 0);
        self.by_gref[entry.gref as usize] = NONE;
        if let Some(moved) = self.entries.get(at) {
            self.by_gref[moved.gref as usize] = u32::try_from(at).unwrap_or(NONE);
        }
        reach.unmap(entry.window);
    }

    /// Back from who had it.
    #[inline]
    pub fn release(&mut self, held: &MappingLease) {
        if let Some(entry) = self.entries.get_mut(held.0 as usize) {
            debug_assert!(entry.held > 0);
            entry.held = entry.held.saturating_sub(1);
            self.counts.in_use = self.counts.in_use.saturating_sub(1);
        }
    }

    /// Unmaps what was not used since the last sweep, if that was `idle` ago: nothing stays longer than twice that.
    pub fn sweep<R: Reach>(&mut self, now: u64, idle: u64, reach: &mut R) {
        let (then, clock) = self.swept;
        if now.saturating_sub(then) < idle {
            return;
        }
        let mut at = 0;
        while at < self.entries.len() {
            let entry = &self.entries[at];
            if entry.held == 0 && entry.used <= clock && self.may_move_last() {
                self.counts.idle += 1;
                self.give_up(at, reach);
            } else {
                at += 1;
            }
        }
        self.swept = (now, self.clock);
    }

    /// Unmaps everything: nobody holds anything any more.
    pub fn clear<R: Reach>(&mut self, reach: &mut R) {
        for entry in self.entries.drain(..) {
            self.by_gref[entry.gref as usize] = NONE;
            reach.unmap(entry.window);
        }
        self.counts.in_use = 0;
    }
}
