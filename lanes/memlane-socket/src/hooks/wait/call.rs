//! One call of poll or select over the two lanes.
//!
//! The cost of both grows with the number of descriptors anyway, so nothing is kept between calls: a call looks at the
//! rings, spins, parks, and sleeps in the kernel. While the rings answer, the call asks the kernel, which looks at
//! every descriptor too, only now and then.
//!
//! A connection whose chunk has this thread as its sleeper stays awake while the call sleeps: its sender rings a bell, which
//! the kernel is asked about beside the program's descriptors ([`super::relied`]).
//!
//! A connection whose ring is full is not writable, though TCP has room ([`room::is_full`]). The kernel is then asked
//! about a copy of what the program asks for, without whether that connection is writable, and the call naps. Bells end
//! a nap, too.

use super::relied::{self, Relied};
use super::waited::Waited;
use crate::protocol::lane::Parked;
use crate::protocol::lane::room::{self, Naps};
use crate::protocol::lane::trim::{self, Pieces};
use crate::real;
use crate::state::conn::Conn;
use crate::state::process;
use crate::state::spin::{self, Spun};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use libc::{c_int, nfds_t, pollfd};
use memlane_core::stats::Counter;

pub(super) const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
pub(super) const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// How much later than its time limit a call may return, in µs, beside what the kernel takes. A spin is shorter.
const LATE_US: u64 = 1_000;

/// A call that also waits for bells.
pub(super) type OnBells<'a> = &'a mut dyn FnMut(&mut Relied, Limit) -> c_int;

/// What a call can do apart from looking at rings.
pub(super) struct Kernel<'a> {
    /// The number of descriptors in the program's list.
    pub(super) many: usize,
    /// The part of the answer that comes from rings.
    pub(super) rings: &'a mut dyn FnMut() -> c_int,
    /// The call with time-out 0, with the readiness of rings merged in.
    pub(super) glance: &'a mut dyn FnMut() -> c_int,
    /// The call as the program made it.
    pub(super) sleep: &'a mut dyn FnMut() -> c_int,
    /// The call with another time-out, and without a signal mask.
    pub(super) nap: &'a mut dyn FnMut(Limit) -> c_int,
    /// The same, which also ends when a bell rings; with the readiness of rings merged in. `None`: the call cannot do this.
    pub(super) on_bells: Option<OnBells<'a>>,
    /// How long the call may take.
    pub(super) time: &'a Time,
    /// The call has a signal mask, which only the kernel can apply.
    pub(super) masked: bool,
}

/// A time limit in µs; `None`: no limit.
pub type Limit = Option<u64>;

/// The limit of a `poll(2)` in ms; a negative one is no limit.
pub fn limit_ms(ms: c_int) -> Limit {
    u64::try_from(ms).ok().map(|ms| ms * 1000)
}

/// The limit of a pair of seconds and a smaller unit, of which `parts` make a µs.
fn limit_of(seconds: i64, small: i64, parts: u64) -> Limit {
    let whole = u64::try_from(seconds)
        .unwrap_or(0)
        .saturating_mul(1_000_000);
    let rest = u64::try_from(small).unwrap_or(0).div_ceil(parts);
    Some(whole.saturating_add(rest))
}

/// The limit of a `ppoll(2)` or `pselect(2)`.
pub fn limit_ts(ts: *const libc::timespec) -> Limit {
    // SAFETY: null, or the program's structure.
    unsafe { ts.as_ref() }.and_then(|t| limit_of(t.tv_sec, t.tv_nsec, 1000))
}

/// The limit of a `select(2)`.
pub fn limit_tv(tv: *const libc::timeval) -> Limit {
    // SAFETY: null, or the program's structure.
    unsafe { tv.as_ref() }.and_then(|t| limit_of(t.tv_sec, t.tv_usec, 1))
}

/// Gives the program what is left of its time limit, in µs, as a pair of seconds and a smaller unit, of which `parts` make a
/// µs. Where it lies may be read-only memory or nothing: then nothing happens, as with the kernel.
pub fn tell_left(at: usize, left: u64, parts: u64) {
    let pair = [left / 1_000_000, left % 1_000_000 * parts];
    let mut bytes = [0; 16];
    for (to, word) in bytes.chunks_exact_mut(8).zip(pair) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    let _ = memlane_sys::mem::write_if_possible(at, &bytes);
}

/// How long a call may take, and since when.
pub(super) struct Time {
    limit: Limit,
    /// The clock's time when the call first looked at it, in ns; 0: it has not. A call that rings answer does not look. Any other
    /// looks before it sleeps.
    begun: Cell<u64>,
}

impl Time {
    pub(super) fn of(limit: Limit) -> Time {
        Time {
            limit,
            begun: Cell::new(0),
        }
    }

    /// What is left of the limit. By the clock and not by `ticks`, of which it is not known well enough how many make a µs: no call
    /// may return before its time.
    pub(super) fn left(&self) -> Limit {
        let us = self.limit?;
        if us == 0 {
            return Some(0);
        }
        let now = memlane_sys::time::now_ns();
        if self.begun.get() == 0 {
            self.begun.set(now);
        }
        Some(us.saturating_sub(now.saturating_sub(self.begun.get()) / 1000))
    }

    fn is_over(&self) -> bool {
        self.left() == Some(0)
    }
}

/// Looks once a millisecond, within the call's own limit, while a peer stays in the middle of a write. `Some`: the
/// call's return value.
fn look_now_and_then(kernel: &mut Kernel<'_>) -> Option<c_int> {
    let t = crate::state::thread::current();
    let signals = t.signals.load(Ordering::Relaxed);
    memlane_sys::time::nap_ms(1);
    let n = (kernel.glance)();
    if n != 0 || kernel.time.is_over() {
        return Some(n);
    }
    if t.signals.load(Ordering::Relaxed) != signals {
        real::set_errno(libc::EINTR);
        return Some(-1);
    }
    None
}

/// Sleeps in the kernel. If a look at unused rings is due meanwhile, it sleeps until then,
/// looks, and sleeps on. All of `waited` are parked and counted as slept on.
fn sleep(kernel: &mut Kernel<'_>, signals: u32) -> c_int {
    let mut pieces = Pieces::WHOLE;
    let limit = kernel.time.left();
    let whole = limit.map(|limit| limit.div_ceil(1000));
    loop {
        // With a signal mask, the kernel would let signals in between two pieces: sleep in one piece.
        let first = if kernel.masked || !crate::state::thread::is_alone() {
            None
        } else {
            pieces.first(memlane_sys::time::ticks(), whole, None)
        };
        let Some(ms) = first else {
            return if pieces.is_cut() {
                (kernel.nap)(pieces.left().map(|ms| ms * 1000))
            } else if has_used_much(kernel, limit) {
                (kernel.nap)(limit)
            } else {
                (kernel.sleep)()
            };
        };
        let n = (kernel.nap)(limit_ms(ms));
        if n != 0 {
            return n;
        }
        trim::look(memlane_sys::time::ticks());
        if has_handler_run(signals) {
            real::set_errno(libc::EINTR);
            return -1;
        }
    }
}

/// Sleeps in the kernel to the end, without what has been closed since the call began. All of `waited` are parked.
#[cold]
fn sleep_without_closed(kernel: &mut Kernel<'_>, relied: &mut Relied) -> c_int {
    let limit = kernel.time.left();
    let sleep = kernel.on_bells.as_mut();
    sleep.map_or(0, |sleep| sleep(relied, limit))
}

/// Has the call used more than [`LATE_US`] of its time? Then the kernel gets what is left, not the whole limit again.
fn has_used_much(kernel: &Kernel<'_>, left: Limit) -> bool {
    let used = kernel
        .time
        .limit
        .zip(left)
        .map(|(whole, left)| whole - left);
    !kernel.masked && used.is_some_and(|us| us > LATE_US)
}

/// Sleeps in the kernel until a bell rings, something else comes, or it is time to look, which is after `nap` µs if that is
/// set. What was asked for is over afterwards. Returns what the call returns; 0: the caller looks at the rings.
fn sleep_on_bells(kernel: &mut Kernel<'_>, relied: &mut Relied, nap: Limit) -> c_int {
    process::count(Counter::KernelWaits, 1);
    let slept = memlane_sys::time::ticks();
    relied.naps = nap.is_some();
    let most = nap.unwrap_or(relied::LOOK_MS * 1000);
    let limit = kernel.time.left().map_or(most, |left| left.min(most));
    let n = kernel
        .on_bells
        .as_mut()
        .map_or(0, |sleep| sleep(relied, Some(limit)));
    let keep = real::errno();
    relied.get_up();
    let now = memlane_sys::time::ticks();
    if n > 0 {
        spin::slept(now.wrapping_sub(slept));
    }
    trim::look(now);
    real::set_errno(keep);
    n
}

/// Has a signal handler run since `signals` of them had? It may have run outside the kernel's sleep.
fn has_handler_run(signals: u32) -> bool {
    crate::state::thread::current()
        .signals
        .load(Ordering::Relaxed)
        != signals
}

/// Begins a call: looks whether anything is due, and notes that this thread waits for the connections, if it `may_rely` on
/// their bells.
#[inline]
fn begin(waited: &Waited<'_>, may_rely: bool) {
    let start = memlane_sys::time::ticks();
    trim::look(start);
    crate::protocol::board::looking(start);
    crate::protocol::upgrade::look(start);
    if may_rely {
        waited.is_polled_here();
    }
}

/// The whole call, if none of the connections has ever had a lane: only the kernel can have news.
pub(super) fn sleep_by_tcp(
    waited: &Waited<'_>,
    may_rely: bool,
    sleep: &mut dyn FnMut() -> c_int,
) -> c_int {
    begin(waited, may_rely);
    waited.asleep(true);
    let n = sleep();
    waited.asleep(false);
    n
}

pub(super) fn run(waited: &Waited<'_>, mut kernel: Kernel<'_>) -> c_int {
    let may_rely = kernel.on_bells.is_some();
    if !waited.upgraded {
        return sleep_by_tcp(waited, may_rely, kernel.sleep);
    }
    let signals = crate::state::thread::current()
        .signals
        .load(Ordering::Relaxed);
    begin(waited, may_rely);
    let mut naps = Naps::FRESH;
    let mut relied = Relied::new(may_rely && !kernel.masked);
    loop {
        let is_readable = waited.any_readable();
        if is_readable && !kernel.masked && !waited.is_kernel_due(kernel.many) {
            process::count(Counter::WaitsAvoided, 1);
            return (kernel.rings)();
        }
        // A ring that had room, or whose receiver had stopped, may count as full again when its turn comes in the glance,
        // and TCP may be full, too. Then the wait goes on, and naps.
        let is_due = is_readable || waited.any_room();
        if is_due || kernel.time.limit == Some(0) {
            let n = (kernel.glance)();
            if n != 0 || kernel.time.is_over() {
                return n;
            }
        }
        if !kernel.masked && !is_due {
            // Not before a sleep, which asks the kernel in any case.
            let may_ask = kernel.many > 1 && !relied.strangers.is_any_closed();
            if may_ask && spin::may_spin() && waited.is_kernel_due(kernel.many) {
                let n = (kernel.glance)();
                if n != 0 {
                    return n;
                }
            }
            match waited.spin() {
                // What is published may also be a TCP run on its way, which the kernel will report.
                Spun::Ready if waited.any_readable() || waited.any_room() => continue,
                Spun::Ready | Spun::Nothing => {}
                Spun::Signal => {
                    real::set_errno(libc::EINTR);
                    return -1;
                }
            }
        }
        if !kernel.masked
            && waited.any_awake()
            && !relied.strangers.is_any_closed()
            && let Some(us) = spin::nap_instead()
            && !kernel.time.is_over()
        {
            if (kernel.nap)(Some(us)) < 0 {
                return -1;
            }
            continue;
        }
        waited.asleep(true);
        match waited.park(&mut relied) {
            Parked::Data | Parked::Ended => waited.asleep(false),
            Parked::Stuck => {
                waited.asleep(false);
                if let Some(done) = look_now_and_then(&mut kernel) {
                    return done;
                }
            }
            Parked::Yes if !relied.is_empty() => {
                let nap = waited.only_naps().then(|| naps.next_us());
                let n = sleep_on_bells(&mut kernel, &mut relied, nap);
                waited.asleep(false);
                if n != 0 || kernel.time.is_over() {
                    return n;
                }
                if has_handler_run(signals) {
                    real::set_errno(libc::EINTR);
                    return -1;
                }
            }
            Parked::Yes => {
                process::count(Counter::KernelWaits, 1);
                let slept = memlane_sys::time::ticks();
                let only_naps = waited.only_naps();
                waited.flush_sets();
                let n = if only_naps {
                    (kernel.nap)(Some(naps.next_us()))
                } else if relied.strangers.is_any_closed() {
                    sleep_without_closed(&mut kernel, &mut relied)
                } else {
                    sleep(&mut kernel, signals)
                };
                waited.asleep(false);
                if n > 0 && waited.is_perhaps_false() {
                    let n = (kernel.glance)();
                    if n != 0 || kernel.time.is_over() {
                        return n;
                    }
                    continue;
                }
                if n == 0 && only_naps && !kernel.time.is_over() {
                    if has_handler_run(signals) {
                        real::set_errno(libc::EINTR);
                        return -1;
                    }
                    continue;
                }
                if n > 0 {
                    spin::slept(memlane_sys::time::ticks().wrapping_sub(slept));
                }
                return n;
            }
        }
    }
}

/// Asks the kernel about the first `many` of these entries, and about these bells, for at most `limit`. The other entries are
/// room for the bells, [`relied::MOST`] of them. What has been closed since the call began is left out. Returns what poll
/// returns; the answer is in the entries.
pub(super) fn ask_with_bells(
    entries: &mut [pollfd],
    many: usize,
    relied: &mut Relied,
    limit: Limit,
) -> c_int {
    relied.strangers.leave_out_closed(&mut entries[..many]);
    let mut all = many;
    for (place, bell) in entries[many..].iter_mut().zip(relied.entries()) {
        *place = bell;
        all += 1;
    }
    let begun = memlane_sys::time::now_ns();
    let n = kernel_poll(entries.as_mut_ptr(), all as nfds_t, limit);
    if n < 0 && real::errno() != libc::EINVAL {
        return n;
    }
    let (programs, bells) = entries[..all].split_at_mut(many);
    let is_over = |us| memlane_sys::time::now_ns().saturating_sub(begun) / 1000 >= us;
    if n > 0 && relied.strangers.is_any_closed() && limit.is_some_and(is_over) {
        // Nothing has woken the kernel. At the end of a limit, it looks at what the numbers mean by then.
        relied.strangers.leave_out_closed(programs);
    }
    if n < 0 {
        // The bells make more entries than the program may have descriptors (`RLIMIT_NOFILE`).
        relied.give_up();
        programs.iter_mut().for_each(|p| p.revents = 0);
        return 0;
    }
    if n == 0 {
        relied.were_idle();
    }
    relied.silence(bells);
    n
}

pub(super) fn kernel_poll(fds: *mut pollfd, n: nfds_t, limit: Limit) -> c_int {
    let ts = limit.map(timespec_of);
    let at = ts.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    real!(ppoll(fds, n, at, core::ptr::null()))
}

/// A time limit as the kernel takes it.
pub(super) fn timespec_of(us: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (us / 1_000_000).cast_signed(),
        tv_nsec: (us % 1_000_000 * 1000).cast_signed(),
    }
}

/// The events to report for a connection whose ring has bytes.
pub(super) fn ring_events(conn: &Conn, asked: i16) -> i16 {
    let ready = match room::is_writable(conn) {
        true => IN | OUT,
        false => IN,
    };
    asked & ready
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A moment's preemption while a process starts makes it count too few ticks for a µs, or too many.
    #[test]
    fn a_limit_is_counted_by_the_clock_from_the_first_look() {
        let began = |ms: u64, limit| Time {
            limit,
            begun: Cell::new(memlane_sys::time::now_ns() - ms * 1_000_000),
        };
        let fresh = Time::of(Some(700_000));
        assert_eq!(fresh.left(), Some(700_000));
        memlane_sys::time::nap_ms(20);
        let left = fresh.left().unwrap();
        assert!(left > 0 && left <= 680_000, "{left} µs");
        assert!(!began(500, Some(60_000_000)).is_over() && began(500, Some(500_000)).is_over());
        assert!(Time::of(Some(0)).is_over());
        assert!(!Time::of(None).is_over() && !began(500, None).is_over());
    }
}
