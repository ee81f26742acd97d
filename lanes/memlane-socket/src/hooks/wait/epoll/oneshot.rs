//! `EPOLLONESHOT`: one report until the registration is armed anew, from the kernel or from a ring, whichever comes
//! first.
//!
//! The kernel disarms a registration when it reports it, so the library must know which one that was. The kernel's copy
//! of such a registration therefore holds a number of ours instead of the program's data, and events are translated
//! before the program sees them. The first side to find `armed` reports; the other report is dropped.

use super::*;

/// The registration that the kernel's `data` stands for.
fn decode(ep: &Ep, data: u64) -> Option<&'static Reg> {
    let known = BASE.load(Ordering::Relaxed);
    if known == 0 {
        return None; // the library has made no number yet
    }
    let number = u32::try_from((data ^ known) >> GENERATION_BITS).ok()?;
    let reg = spare_reg(number).or_else(|| own_reg(number as usize))?;
    let ours = reg.events.load(Ordering::Relaxed) & ONESHOT != 0
        && core::ptr::eq(reg.ep.load(Ordering::Acquire), ep)
        && cookie(reg) == data;
    ours.then_some(reg)
}

fn own_reg(number: usize) -> Option<&'static Reg> {
    let conn = process::conn_at(number / REGS)?;
    conn.regs.iter().nth(number % REGS)
}

/// Could `data` be a number of ours, even of a registration that is gone?
fn looks_like_ours(data: u64) -> bool {
    let known = BASE.load(Ordering::Relaxed);
    let number = (data ^ known) >> GENERATION_BITS;
    let made = process::conns_made() as u64 * REGS as u64;
    known != 0 && (number < made || u32::try_from(number).is_ok_and(is_spare))
}

/// Notes that a ring's news have been reported. The caller holds the set's lock.
pub(super) fn reported(ep: &Ep, reg: &Reg) {
    if reg.events.load(Ordering::Relaxed) & ONESHOT != 0 {
        reg.armed.store(0, Ordering::Relaxed);
        push_dirty(ep, reg);
    }
}

/// What the kernel has reported.
pub(super) struct Came {
    /// The number of events that are left for the program.
    pub(super) left: usize,
    /// Where among these the bell of a chunk lay; `None`: no bell has rung.
    pub(super) bell_at: Option<usize>,
}

/// Turns the kernel's events into those that the program sees.
pub(super) fn translate(ep: &Ep, events: &mut [epoll_event]) -> Came {
    let came = if events.iter().all(|event| is_programs(event.u64)) {
        Came {
            left: events.len(),
            bell_at: None,
        }
    } else {
        without_ours(ep, events)
    };
    if came.left > 0 {
        count_report(ep);
    }
    came
}

fn without_ours(ep: &Ep, events: &mut [epoll_event]) -> Came {
    let Some(_held) = ep.lock.lock() else {
        return Came {
            left: events.len(),
            bell_at: None,
        };
    };
    let (mut kept, mut bell_at) = (0, None);
    for i in 0..events.len() {
        let (bits, data) = (events[i].events, events[i].u64);
        match rung_by(data) {
            Some(Rung::Own) => {
                let _ = silence(ep);
                continue;
            }
            Some(Rung::Chunk(name)) => {
                rung(ep, name, bits);
                bell_at = bell_at.or(Some(kept));
                continue;
            }
            None => {}
        }
        let Some(reg) = decode(ep, data) else {
            if !looks_like_ours(data) {
                events[kept] = events[i];
                kept += 1;
            }
            continue;
        };
        // The kernel has disarmed this registration.
        let asked = reg.events.load(Ordering::Relaxed);
        reg.kernel_events
            .store(asked & (ONESHOT | ET), Ordering::Relaxed);
        if reg.armed.swap(0, Ordering::Relaxed) != 0 {
            events[kept] = epoll_event {
                events: bits,
                u64: reg.data.load(Ordering::Relaxed),
            };
            kept += 1;
        }
    }
    if bell_at.is_some() && ep.bells.sleepers.load(Ordering::Relaxed) != 0 {
        // The bell was meant for a thread that still sleeps. This thread looks at the rings instead.
        super::park::ask_again(ep);
    }
    Came {
        left: kept,
        bell_at,
    }
}

/// Makes an `EPOLL_CTL_MOD` that the kernel must know at once. The caller holds the set's lock.
pub(super) fn modify_now(ep: &Ep, reg: &Reg, events: u32, data: u64) -> c_int {
    let before = (
        reg.events.load(Ordering::Relaxed),
        reg.data.load(Ordering::Relaxed),
        reg.armed.load(Ordering::Relaxed),
    );
    reg.events.store(events, Ordering::Relaxed);
    reg.data.store(data, Ordering::Relaxed);
    reg.armed.store(1, Ordering::Relaxed);
    match kernel_ctl(ep, libc::EPOLL_CTL_MOD, reg, events) {
        Ok(_) => {
            reg.kernel_events.store(events, Ordering::Relaxed);
            reg.kernel_data.store(data, Ordering::Relaxed);
            0
        }
        Err(e) => {
            reg.events.store(before.0, Ordering::Relaxed);
            reg.data.store(before.1, Ordering::Relaxed);
            reg.armed.store(before.2, Ordering::Relaxed);
            real::set_errno(e.0);
            -1
        }
    }
}
