//! What the kernel has told the program of a set, and when it was last asked: a read that finds no bytes need not ask about a
//! connection that the kernel was silent about a moment ago.
//!
//! Bytes that come by TCP are declared in shared memory, as is the end of a stream. So of an awake connection, only the
//! kernel's own news are left: that the peer was killed, and errors. The kernel reports these to a wait on a set that the
//! connection is in. A program that reads until `EAGAIN` before it waits would otherwise make a system call for each message.

use super::*;

const IN: u32 = libc::EPOLLIN as u32;

/// Counts reports of all sets, so that no two reports have the same number. Threads of this process add to it; nothing is
/// ordered by it.
static REPORTS: AtomicU64 = AtomicU64::new(0);

/// The number of the last report to the program, and when the kernel was asked (`ticks`).
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) report: u64,
    at: u64,
}

impl Asked {
    /// Was the kernel asked within the last `most` ticks?
    pub(crate) fn is_within(self, most: u64, now: u64) -> bool {
        now.wrapping_sub(self.at) < most
    }
}

/// Gives the set's last report a number of its own: the kernel has reported something to the program, or the set is new.
pub(crate) fn count_report(ep: &Ep) {
    let number = REPORTS.fetch_add(1, Ordering::Relaxed) + 1;
    // Whoever acts on the report finds the number: this thread, or one that it tells.
    ep.report.store(number, Ordering::Relaxed);
}

/// The last question about the one set that the connection is in. `None`: the kernel's silence says nothing, because the set
/// is another process's, too, or because the kernel does not tell it of input.
pub(crate) fn last_asked(regs: &Regs) -> Option<Asked> {
    let ep = ep_ref(only_set(regs))?;
    let is_in = |reg: &&Reg| core::ptr::eq(reg.ep.load(Ordering::Relaxed), ep);
    let reg = regs.iter().find(is_in)?;
    // With `EPOLLEXCLUSIVE`, it may tell another set.
    let is_told = reg.events.load(Ordering::Relaxed) & (IN | ONESHOT | EXCLUSIVE) == IN
        && !marked(reg, REG_DIRTY | REG_ABSENT)
        && ep.inherited.load(Ordering::Relaxed) == 0;
    is_told.then(|| Asked {
        report: ep.report.load(Ordering::Relaxed),
        at: ep.asked.load(Ordering::Relaxed),
    })
}

#[cfg(test)]
mod tests;
