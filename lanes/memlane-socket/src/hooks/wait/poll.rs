//! `poll(2)` and `ppoll(2)` over the two lanes ([`super::call`]).

// Indices and descriptor numbers are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

use super::call::{self, IN, Kernel, Limit, OUT, Time, kernel_poll, ring_events};
use super::long::Entries;
use super::relied::{self, Relied};
use super::waited::{Room, Waited};
use crate::protocol::lane::{self, room};
use crate::state::process::{self, PROCESS};
use core::sync::atomic::Ordering;
use libc::{c_int, nfds_t, pollfd};
use memlane_core::stats::Counter;

/// The time between two questions to the kernel while the ring answers for a descriptor, in µs.
const GLANCE_EVERY_US: u64 = 50;

/// `poll(2)` and `ppoll(2)`. `sleep` makes the program's own call.
pub fn poll(
    fds: *mut pollfd,
    n: nfds_t,
    limit: Limit,
    masked: bool,
    mut sleep: impl FnMut() -> c_int,
) -> c_int {
    if fds.is_null() || !process::enabled() || process::fd_high() == 0 {
        return sleep();
    }
    // SAFETY: the program's array of `n` entries, as it promised its call.
    let list = unsafe { core::slice::from_raw_parts_mut(fds, usize::try_from(n).unwrap_or(0)) };
    if let [one] = list
        && let Some(done) = poll_one(one)
    {
        return done;
    }
    let mut room = Room::new();
    let mut waited = Waited::new(&mut room, list.len());
    for (at, p) in list.iter().enumerate() {
        if p.events & IN != 0
            && let Some(ep) = process::ep_of(p.fd)
        {
            waited.add_set(ep, at);
        }
        if p.fd >= 0
            && p.events & (IN | OUT) != 0
            && let Some(conn) = process::conn_of(p.fd)
        {
            waited.add(conn, at, (p.events & IN != 0, p.events & OUT != 0));
        }
    }
    if waited.is_empty() {
        return sleep();
    }
    let can_rely = !waited.has_sets();
    if !waited.upgraded {
        // Before what follows is prepared: caches are often cold by the time a thread waits.
        return call::sleep_by_tcp(&waited, can_rely, &mut sleep);
    }
    let many = list.len();
    let mut rings = || {
        // SAFETY: the program's array, which has at least `many` entries, as it promised its call.
        let list = unsafe { core::slice::from_raw_parts_mut(fds, many) };
        list.iter_mut().for_each(|p| p.revents = 0);
        merge(&waited, list)
    };
    let mut glance = || {
        // SAFETY: as above.
        glance(
            unsafe { core::slice::from_raw_parts_mut(fds, many) },
            &waited,
        )
    };
    let mut nap = |limit| {
        // SAFETY: as above.
        let list = unsafe { core::slice::from_raw_parts_mut(fds, many) };
        ask(list, &waited, limit)
    };
    let mut on_bells = |relied: &mut Relied, limit| {
        // SAFETY: as above.
        let list = unsafe { core::slice::from_raw_parts_mut(fds, many) };
        ask_with_bells(list, &waited, relied, limit)
    };
    call::run(
        &waited,
        Kernel {
            many,
            rings: &mut rings,
            glance: &mut glance,
            sleep: &mut sleep,
            nap: &mut nap,
            on_bells: can_rely.then_some(&mut on_bells),
            time: &Time::of(limit),
            masked,
        },
    )
}

/// Asks the kernel about the program's list and these bells, for at most `limit`, and merges the readiness of rings in.
fn ask_with_bells(
    list: &mut [pollfd],
    waited: &Waited<'_>,
    relied: &mut Relied,
    limit: Limit,
) -> c_int {
    let many = list.len();
    let all = list.iter().enumerate().filter(|(_, p)| p.fd >= 0);
    let strangers = waited.strangers(all.map(|(at, p)| (at, p.fd)));
    let may_split = relied.strangers.know(strangers);
    let mut room = Entries::room();
    let entries = may_split.then(|| room.take(many + relied::MOST)).flatten();
    let Some(entries) = entries else {
        relied.give_up();
        list.iter_mut().for_each(|p| p.revents = 0);
        return merge(waited, list);
    };
    entries[..many].copy_from_slice(list);
    for at in waited.gone(|at| list.get(at).map_or(-1, |p| p.fd)) {
        entries[at].fd = -1;
    }
    leave_out_full(entries, waited);
    match call::ask_with_bells(entries, many, relied, limit) {
        n if n < 0 => n,
        _ => {
            answer(list, &entries[..many]);
            let n = merge(waited, list);
            if n > 0 && relied.strangers.is_any_closed() {
                return glance(list, waited);
            }
            n
        }
    }
}

/// Asks the kernel about the program's list, for at most `limit`, but not whether full rings are writable.
fn ask(list: &mut [pollfd], waited: &Waited<'_>, limit: Limit) -> c_int {
    let many = list.len();
    waited.flush_sets();
    let mut room = Entries::room();
    let copy = waited.full().next().and_then(|_| room.take(many));
    let Some(entries) = copy else {
        // Where there is no memory for a copy, full rings are reported as writable.
        return kernel_poll(list.as_mut_ptr(), many as nfds_t, limit);
    };
    entries.copy_from_slice(list);
    leave_out_full(entries, waited);
    let n = kernel_poll(entries.as_mut_ptr(), many as nfds_t, limit);
    answer(list, entries);
    n
}

/// The kernel is not to say of these entries that full rings are writable.
fn leave_out_full(entries: &mut [pollfd], waited: &Waited<'_>) {
    for at in waited.full() {
        entries[at].events &= !OUT;
    }
}

/// Asks the kernel about the program's list without waiting, and merges the readiness of rings in.
fn glance(list: &mut [pollfd], waited: &Waited<'_>) -> c_int {
    if ask(list, waited, Some(0)) < 0 {
        return -1;
    }
    merge(waited, list)
}

/// Gives the program the answer in these entries.
fn answer(list: &mut [pollfd], entries: &[pollfd]) {
    for (to, from) in list.iter_mut().zip(entries) {
        to.revents = from.revents;
    }
}

/// Adds the rings' events to the answer, and returns the number of descriptors with events.
fn merge(waited: &Waited<'_>, list: &mut [pollfd]) -> c_int {
    for at in waited.readable_sets() {
        list[at].revents |= list[at].events & IN;
    }
    for (at, conn) in waited.readable() {
        if let Some(p) = list.get_mut(at) {
            p.revents |= ring_events(conn, p.events);
        }
    }
    c_int::try_from(list.iter().filter(|p| p.revents != 0).count()).unwrap_or(0)
}

/// Answers for one descriptor whose ring has bytes, without a system call.
fn poll_one(p: &mut pollfd) -> Option<c_int> {
    if p.events & IN == 0 {
        return None;
    }
    let conn = process::conn_of(p.fd)?;
    if conn.inherited.load(Ordering::Relaxed) != 0 || !lane::readable(&conn) {
        return None;
    }
    if p.events & OUT != 0 {
        room::fills(&conn);
    }
    // The kernel knows the rest (the peer's end, errors), so it is asked now and then.
    let now = memlane_sys::time::ticks();
    let every = GLANCE_EVERY_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    if now.wrapping_sub(conn.glanced.load(Ordering::Relaxed)) > every {
        return None; // the caller asks the kernel and notes the time
    }
    p.revents = ring_events(&conn, p.events);
    process::count(Counter::WaitsAvoided, 1);
    Some(1)
}
