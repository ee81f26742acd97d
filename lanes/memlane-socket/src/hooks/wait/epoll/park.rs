//! Parking the connections of a set before a thread sleeps on it.

use super::*;

#[derive(PartialEq, Eq)]
pub(in crate::hooks::wait) enum AllParked {
    Yes,
    No,
    Stuck,
}

impl AllParked {
    pub(in crate::hooks::wait) fn is_stuck(&self) -> bool {
        *self == AllParked::Stuck
    }
}

enum ParkedReg {
    /// The connection is parked, or on TCP.
    Yes,
    /// The connection stays awake, but only the kernel can have news for this set.
    ByTcp,
    /// The connection stays awake: bytes of TCP are the next ones. The kernel tells of these, but not of others that may come by
    /// the ring behind them.
    Run,
    /// The peer is in the middle of a write.
    Stuck,
    /// There is something to report.
    Report,
}

/// Asks for the bells once more, for threads that still sleep. The caller looks at the rings afterwards, and holds the set's
/// lock.
pub(super) fn ask_again(ep: &Ep) {
    let _ = board::lie_down(ep);
}

/// Parks those connections of a list for which `wanted` is true. Sets `is_any_awake` if one could not be parked, because of bytes
/// that TCP has for it.
pub(super) fn park_list(
    ep: &Ep,
    list: &core::sync::atomic::AtomicPtr<Reg>,
    wanted: impl Fn(&Conn) -> bool,
    is_any_awake: &mut bool,
) -> AllParked {
    let mut at = list.load(Ordering::Relaxed);
    while let Some(reg) = reg_ref(at) {
        at = reg.next_hot.load(Ordering::Relaxed);
        if reg_conn(reg).is_some_and(|conn| !wanted(conn)) {
            continue;
        }
        match park_reg(reg) {
            ParkedReg::Yes => drop_hot(ep, reg),
            ParkedReg::ByTcp => {}
            ParkedReg::Run => *is_any_awake = true,
            ParkedReg::Stuck => return AllParked::Stuck,
            ParkedReg::Report => {
                mark(reg, REG_IN_EDGE);
                push_ready(ep, reg);
                return AllParked::No;
            }
        }
    }
    AllParked::Yes
}

/// Parks the connections of a list, except for those with unread bytes; `No`: there is one.
pub(super) fn park_what_is_read(ep: &Ep, list: &core::sync::atomic::AtomicPtr<Reg>) -> AllParked {
    let mut all = AllParked::Yes;
    let mut at = list.load(Ordering::Relaxed);
    while let Some(reg) = reg_ref(at) {
        at = reg.next_hot.load(Ordering::Relaxed);
        match park_reg(reg) {
            ParkedReg::Yes => drop_hot(ep, reg),
            ParkedReg::ByTcp => {}
            ParkedReg::Stuck => return AllParked::Stuck,
            ParkedReg::Report | ParkedReg::Run => all = AllParked::No,
        }
    }
    all
}

fn park_reg(reg: &Reg) -> ParkedReg {
    let Some(conn) = reg_conn(reg) else {
        return ParkedReg::Yes;
    };
    if !matches!(conn.rx_mode(), RxMode::Hot | RxMode::Moving | RxMode::Drain) {
        return ParkedReg::Yes;
    }
    if !may_report(reg) {
        return ParkedReg::ByTcp; // no thread waits for it here
    }
    let Some(mut held) = crate::state::guard::lock_rx(conn) else {
        return ParkedReg::Stuck;
    };
    match lane::park(conn, &mut held) {
        Parked::Yes | Parked::Ended => ParkedReg::Yes,
        Parked::Stuck => ParkedReg::Stuck,
        Parked::Data if !wants_in(reg) => ParkedReg::ByTcp,
        Parked::Data if ring_bytes(&mut held) => ParkedReg::Report,
        Parked::Data => ParkedReg::Run,
    }
}

fn wants_in(reg: &Reg) -> bool {
    !marked(reg, REG_ABSENT) && reg.events.load(Ordering::Relaxed) & IN != 0
}

fn ring_bytes(held: &mut crate::state::guard::RxGuard<'_>) -> bool {
    let Some(lane) = held.lane() else {
        return false;
    };
    matches!(
        held.next(lane.words, lane.ring.len()),
        Ok(memlane_core::ring::Next::Ring(_)) | Err(_)
    )
}
