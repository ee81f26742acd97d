//! The full list: registrations of connections whose ring had no room for a send that must not block, or has too little for one that may.

use super::*;

/// Notes that the ring of a connection had no room for a send that must not block. Until there is room, the sets do not
/// report that the connection can send, and a thread that sleeps on one of them naps. Returns `false` if another
/// process waits on one of the sets, too: it would not know. The caller holds no lane lock.
#[cold]
pub fn full(regs: &Regs, hiding: &Hiding) -> bool {
    for reg in regs.iter() {
        let Some((ep, _held)) = set_of(reg) else {
            continue;
        };
        if ep.inherited.load(Ordering::Relaxed) != 0 {
            return false;
        }
        unmark(reg, REG_ROOM);
        push_full(ep, reg);
        push_dirty(ep, reg);
        if ep.sleepers.load(Ordering::Relaxed) != 0 {
            ring_bell(ep, hiding);
        }
    }
    true
}

pub(crate) fn push_full(ep: &Ep, reg: &Reg) {
    if marked(reg, REG_FULL) {
        return;
    }
    mark(reg, REG_FULL);
    reg.next_full
        .store(ep.full.load(Ordering::Relaxed), Ordering::Relaxed);
    ep.full.store(ptr(reg), Ordering::Relaxed);
}

/// What a ring that was full is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fullness {
    /// Still full.
    Full,
    /// A send finds room, or does not block.
    Room,
    /// The next send goes by TCP, of which only the kernel knows whether it has room.
    AskKernel,
}

/// Takes the registrations out of the full list whose ring has room, and makes the next wait report them; and those for
/// which the kernel is to be asked. Returns whether there is one to be reported.
pub(crate) fn drop_full(ep: &Ep, now: impl Fn(&Reg) -> Fullness) -> bool {
    let mut link = &ep.full;
    let mut any = false;
    while let Some(reg) = reg_ref(link.load(Ordering::Relaxed)) {
        let found = match now(reg) {
            Fullness::Full => {
                link = &reg.next_full;
                continue;
            }
            Fullness::Room => true,
            // The kernel reports an edge once: it has done so.
            Fullness::AskKernel => reg.events.load(Ordering::Relaxed) & ET != 0,
        };
        link.store(reg.next_full.load(Ordering::Relaxed), Ordering::Relaxed);
        unmark(reg, REG_FULL);
        if found {
            mark(reg, REG_ROOM | REG_OUT_EDGE);
            push_ready(ep, reg);
            any = true;
        }
        push_dirty(ep, reg);
    }
    any
}
