//! Passes: which connections are read when.

use super::{Core, Entry};
use crate::engine::Time;

/// After this many passes over busy connections, all connections are looked at. A pass that asks the kernel counts
/// more.
const LOOK_AROUND: u32 = 512;
const COSTS: u32 = 16;
/// So do passes while nothing is under way.
const COSTS_IDLE: u32 = 32;

/// The connections that a pass reads, beside those where a look costs no system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Reads {
    /// None: the thread is about to sleep in the kernel, which looks first.
    Memory,
    /// Those that something is awaited from.
    Busy,
    /// Those for which the kernel has woken the thread.
    Woken,
}

impl Core {
    /// Reads what has come, and does what is due.
    pub(in super::super) fn pass(&mut self, reads: Reads) {
        // The time before reading: what came since then does not count as silence.
        let now = self.now();
        self.passes += 1;
        let due = self.deadline().is_some_and(|deadline| now >= deadline);
        self.passes += if self.is_busy() { 0 } else { COSTS_IDLE };
        if due || self.passes >= LOOK_AROUND || reads == Reads::Woken && !self.read_awaited(now) {
            self.passes = 0;
            self.look_around(now);
        }
        self.read_where(now, |entry| {
            entry.link.is_looked_at() || reads == Reads::Busy && entry.busy > 0
        });
        if due {
            self.happens();
            self.engine.poll(now);
            self.carry_out(now);
            self.expire(now);
        }
        self.submit(now);
        self.flush(now);
    }

    /// Would a pass that `reads` these find something? To be asked again and again: it changes nothing, and asks no kernel.
    pub(in super::super) fn has_ready(&mut self, reads: Reads) -> bool {
        let mut entries = self.links.iter_mut().flatten();
        entries.any(|entry| {
            let perhaps = reads == Reads::Busy && entry.busy > 0;
            entry.link.has_ready().unwrap_or(perhaps)
        })
    }

    /// Is it time for such a pass, by a thread that does nothing else here? Now and then it is, even if nothing is ready.
    pub(in super::super) fn is_time_to_pass(&mut self, reads: Reads) -> bool {
        self.passes += 1;
        self.passes >= LOOK_AROUND || self.has_ready(reads)
    }

    fn is_busy(&self) -> bool {
        self.links.iter().flatten().any(|entry| entry.busy > 0)
    }

    /// Reads the connection that something is awaited from, if there is only one. Has something come?
    fn read_awaited(&mut self, now: Time) -> bool {
        let is_awaited = |entry: &Entry| entry.busy > 0 && !entry.link.is_looked_at();
        let awaited = self
            .links
            .iter()
            .flatten()
            .filter(|&entry| is_awaited(entry));
        if awaited.count() != 1 {
            return false;
        }
        let before = std::mem::take(&mut self.has_moved);
        self.read_where(now, is_awaited);
        let came = self.has_moved;
        self.has_moved |= before;
        came
    }

    fn read_where(&mut self, now: Time, wanted: impl Fn(&Entry) -> bool) {
        for at in 0..self.links.len() {
            let Some(entry) = self.links[at].as_ref().filter(|entry| wanted(entry)) else {
                continue;
            };
            self.passes += if entry.link.is_looked_at() { 0 } else { COSTS };
            self.read(now, at, false);
        }
    }

    fn look_around(&mut self, now: Time) {
        let mut ready = std::mem::take(&mut self.ready);
        self.epoll.wait(Some(std::time::Duration::ZERO), &mut ready);
        // The first connection of a path is the oldest. It is told why all of them end.
        ready.sort_unstable_by_key(|found| found.data);
        for found in &ready {
            let is_it = |slot: &Option<Entry>| {
                let serial = slot.as_ref().map(|entry| entry.serial);
                serial == Some(found.data)
            };
            let Some(at) = self.links.iter().position(is_it) else {
                continue;
            };
            if found.write
                && let Some(entry) = self.links[at].as_mut()
            {
                entry.dirty = true;
            }
            if found.read {
                self.read(now, at, true);
            }
        }
        self.ready = ready;
    }
}
