//! poll and select over the two lanes.
//!
//! The cost of both grows with the number of descriptors anyway, so nothing is kept between calls: a call looks at the
//! rings, spins, parks, and sleeps in the kernel. While the rings answer, the call asks the kernel, which looks at
//! every descriptor too, only now and then.
//!
//! A connection whose chunk has this thread as its sleeper stays awake while the call sleeps: its sender rings a bell, which
//! the kernel is asked about beside the program's list ([`super::relied`]). Only `poll` does this, not `select`.
//!
//! A connection whose ring is full is not writable, though TCP has room ([`room::is_full`]). The kernel is then asked
//! about a copy of the program's list that does not ask whether that connection is writable, and the call naps.

// Indices and descriptor numbers are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

use super::relied::{self, Relied};
use super::waited::{Room, Waited};
use crate::protocol::lane::room::{self, Naps};
use crate::protocol::lane::trim::{self, Pieces};
use crate::protocol::lane::{self, Parked};
use crate::real;
use crate::state::conn::{Conn, TxMode};
use crate::state::process::{self, PROCESS};
use crate::state::spin::{self, Spun};
use core::sync::atomic::Ordering;
use libc::{c_int, fd_set, nfds_t, pollfd};
use memlane_core::reason::Reason;
use memlane_core::stats::Counter;
use memlane_sys::mem;

/// The time between two questions to the kernel while the ring answers for a descriptor, in µs.
const GLANCE_EVERY_US: u64 = 50;

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// A call that also waits for bells.
type OnBells<'a> = &'a mut dyn FnMut(&mut Relied, Limit) -> c_int;

/// What a call can do apart from looking at rings.
struct Kernel<'a> {
    /// The number of descriptors in the program's list.
    many: usize,
    /// The part of the answer that comes from rings.
    rings: &'a mut dyn FnMut() -> c_int,
    /// The call with time-out 0, with the readiness of rings merged in.
    glance: &'a mut dyn FnMut() -> c_int,
    /// The call as the program made it.
    sleep: &'a mut dyn FnMut() -> c_int,
    /// The call with another time-out, and without a signal mask.
    nap: &'a mut dyn FnMut(Limit) -> c_int,
    /// The same, which also ends when a bell rings; with the readiness of rings merged in. `None`: the call cannot do this.
    on_bells: Option<OnBells<'a>>,
    /// How long the call may take.
    limit: Limit,
    /// The call has a signal mask, which only the kernel can apply.
    masked: bool,
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

/// What is left of a time limit that began at `start`, in `ticks`.
fn left(limit: Limit, start: u64) -> Limit {
    let passed = memlane_sys::time::ticks().wrapping_sub(start)
        / PROCESS.ticks_per_us.load(Ordering::Relaxed).max(1);
    limit.map(|limit| limit.saturating_sub(passed))
}

/// Is a time limit over that began at `start`, in `ticks`?
fn is_over(limit: Limit, start: u64) -> bool {
    left(limit, start) == Some(0)
}

/// Looks once a millisecond, within the call's own limit, while a peer stays in the middle of a write. `Some`: the
/// call's return value.
fn look_now_and_then(kernel: &mut Kernel<'_>, start: u64) -> Option<c_int> {
    let t = crate::state::thread::current();
    let signals = t.signals.load(Ordering::Relaxed);
    memlane_sys::time::nap_ms(1);
    let n = (kernel.glance)();
    if n != 0 || is_over(kernel.limit, start) {
        return Some(n);
    }
    if t.signals.load(Ordering::Relaxed) != signals {
        real::set_errno(libc::EINTR);
        return Some(-1);
    }
    None
}

/// Sleeps in the kernel. If a look at unused rings is due meanwhile, it sleeps until then, looks, and sleeps on. All of
/// `waited` are parked and counted as slept on.
fn sleep(kernel: &mut Kernel<'_>, signals: u32) -> c_int {
    let mut pieces = Pieces::WHOLE;
    let whole = kernel.limit.map(|limit| limit.div_ceil(1000));
    loop {
        // With a signal mask, the kernel would let signals in between two pieces: sleep in one piece.
        let first = if kernel.masked || !crate::state::thread::is_alone() {
            None
        } else {
            pieces.first(whole, None)
        };
        let Some(ms) = first else {
            return if pieces.is_cut() {
                (kernel.nap)(pieces.left().map(|ms| ms * 1000))
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

/// Sleeps in the kernel until a bell rings, something else comes, or it is time to look. What was asked for is over
/// afterwards. Returns what the call returns; 0: the caller looks at the rings.
fn sleep_on_bells(kernel: &mut Kernel<'_>, relied: &mut Relied, start: u64) -> c_int {
    process::count(Counter::KernelWaits, 1);
    let slept = memlane_sys::time::ticks();
    let most = relied::LOOK_MS * 1000;
    let limit = left(kernel.limit, start).map_or(most, |left| left.min(most));
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

fn run(waited: &Waited<'_>, mut kernel: Kernel<'_>) -> c_int {
    let start = memlane_sys::time::ticks();
    let signals = crate::state::thread::current()
        .signals
        .load(Ordering::Relaxed);
    trim::look(start);
    crate::protocol::board::looking(start);
    crate::protocol::upgrade::look(start);
    let may_rely = kernel.on_bells.is_some();
    if may_rely {
        waited.is_polled_here();
    }
    if !waited.upgraded {
        waited.asleep(true);
        let n = (kernel.sleep)();
        waited.asleep(false);
        return n;
    }
    let mut naps = Naps::FRESH;
    let mut relied = Relied::new(may_rely && !kernel.masked && !waited.waits_for_room());
    loop {
        if waited.any_readable() && !kernel.masked && !waited.is_kernel_due(kernel.many) {
            process::count(Counter::WaitsAvoided, 1);
            return (kernel.rings)();
        }
        // A ring that had room, or whose receiver had stopped, may count as full again when its turn comes in the glance,
        // and TCP may be full, too. Then the wait goes on, and naps.
        let is_due = waited.any_readable() || waited.any_room();
        if is_due || kernel.limit == Some(0) {
            let n = (kernel.glance)();
            if n != 0 || is_over(kernel.limit, start) {
                return n;
            }
        }
        if !kernel.masked && !is_due {
            // Not before a sleep, which asks the kernel in any case.
            if kernel.many > 1 && spin::may_spin() && waited.is_kernel_due(kernel.many) {
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
            && let Some(us) = spin::nap_instead()
            && !is_over(kernel.limit, start)
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
                if let Some(done) = look_now_and_then(&mut kernel, start) {
                    return done;
                }
            }
            Parked::Yes if !relied.is_empty() => {
                let n = sleep_on_bells(&mut kernel, &mut relied, start);
                waited.asleep(false);
                if n != 0 || is_over(kernel.limit, start) {
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
                } else {
                    sleep(&mut kernel, signals)
                };
                waited.asleep(false);
                if n > 0 && waited.is_perhaps_false() {
                    let n = (kernel.glance)();
                    if n != 0 || is_over(kernel.limit, start) {
                        return n;
                    }
                    continue;
                }
                if n == 0 && only_naps && !is_over(kernel.limit, start) {
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
    let many = list.len();
    let mut rings = || {
        // SAFETY: the program's array, which has at least `many` entries, as it promised its call.
        let list = unsafe { core::slice::from_raw_parts_mut(fds, many) };
        list.iter_mut().for_each(|p| p.revents = 0);
        merge(&waited, list)
    };
    let mut glance = || {
        if ask(fds, n, &waited, Some(0)) < 0 {
            return -1;
        }
        // SAFETY: the program's array, as it promised its call.
        merge(&waited, unsafe {
            core::slice::from_raw_parts_mut(fds, many)
        })
    };
    let mut nap = |limit| ask(fds, n, &waited, limit);
    let mut on_bells = |relied: &mut Relied, limit| {
        // SAFETY: the program's array, which has at least `many` entries, as it promised its call.
        let list = unsafe { core::slice::from_raw_parts_mut(fds, many) };
        ask_with_bells(list, &waited, relied, limit)
    };
    let can_rely = !waited.has_sets() && may_split(list, &waited);
    run(
        &waited,
        Kernel {
            many,
            rings: &mut rings,
            glance: &mut glance,
            sleep: &mut sleep,
            nap: &mut nap,
            on_bells: can_rely.then_some(&mut on_bells),
            limit,
            masked,
        },
    )
}

/// May a call with this list sleep in pieces, and has it room for bells? Where there are other threads, they may close a
/// descriptor between two pieces. Only of connections can the call tell.
fn may_split(list: &[pollfd], waited: &Waited<'_>) -> bool {
    let many = list.iter().filter(|p| p.fd >= 0).count();
    list.len() <= FEW && (crate::state::thread::is_alone() || waited.is_all_of(many))
}

/// Asks the kernel about the program's list and these bells, for at most `limit`, and merges the readiness of rings in. A
/// connection whose descriptor another thread has closed is not asked about.
fn ask_with_bells(
    list: &mut [pollfd],
    waited: &Waited<'_>,
    relied: &mut Relied,
    limit: Limit,
) -> c_int {
    let mut copy = [pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    }; FEW + relied::MOST];
    let (programs, bells) = copy.split_at_mut(list.len());
    programs.copy_from_slice(list);
    for at in waited.gone(|at| list[at].fd) {
        programs[at].fd = -1;
    }
    let mut many = list.len();
    for (place, bell) in bells.iter_mut().zip(relied.entries()) {
        *place = bell;
        many += 1;
    }
    let n = kernel_poll(copy.as_mut_ptr(), many as nfds_t, limit);
    if n < 0 {
        return n;
    }
    let (programs, bells) = copy[..many].split_at(list.len());
    for (to, from) in list.iter_mut().zip(programs) {
        to.revents = from.revents;
    }
    if relied::has_hung_up(bells) {
        relied.give_up();
    }
    if n == 0 {
        relied.give_up(); // they have been idle: the next sleep is on TCP
    }
    relied::silence(bells);
    merge(waited, list)
}

/// Asks the kernel about the program's list, for at most `limit`, but not whether full rings are writable.
fn ask(fds: *mut pollfd, n: nfds_t, waited: &Waited<'_>, limit: Limit) -> c_int {
    let many = usize::try_from(n).unwrap_or(0);
    let mut few = [pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    }; FEW];
    waited.flush_sets();
    if waited.full().next().is_none() {
        return kernel_poll(fds, n, limit);
    }
    let Some(copy) = few.get_mut(..many) else {
        return ask_long(fds, many, waited, limit);
    };
    // SAFETY: the program's array of `n` entries, as it promised its call.
    ask_by(
        unsafe { core::slice::from_raw_parts_mut(fds, many) },
        copy,
        waited,
        limit,
    )
}

/// Asks about a list that is too long for the stack.
#[cold]
fn ask_long(fds: *mut pollfd, many: usize, waited: &Waited<'_>, limit: Limit) -> c_int {
    let Ok(block) = mem::map_anon(many * size_of::<pollfd>(), false) else {
        return kernel_poll(fds, many as nfds_t, limit); // full rings are reported as writable
    };
    // SAFETY: a mapping of that length, which is ours until it is unmapped; zeros are valid entries. The other is the
    // program's array, as it promised its call.
    let n = unsafe {
        let copy = core::slice::from_raw_parts_mut(block.as_ptr().cast::<pollfd>(), many);
        ask_by(
            core::slice::from_raw_parts_mut(fds, many),
            copy,
            waited,
            limit,
        )
    };
    // SAFETY: the whole mapping.
    unsafe { mem::unmap(block, many * size_of::<pollfd>()) };
    n
}

fn ask_by(list: &mut [pollfd], copy: &mut [pollfd], waited: &Waited<'_>, limit: Limit) -> c_int {
    copy.copy_from_slice(list);
    for at in waited.full() {
        copy[at].events &= !OUT;
    }
    let n = kernel_poll(copy.as_mut_ptr(), copy.len() as nfds_t, limit);
    for (to, from) in list.iter_mut().zip(copy) {
        to.revents = from.revents;
    }
    n
}

fn kernel_poll(fds: *mut pollfd, n: nfds_t, limit: Limit) -> c_int {
    let ts = limit.map(timespec_of);
    let at = ts.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    real!(ppoll(fds, n, at, core::ptr::null()))
}

/// A time limit as the kernel takes it.
fn timespec_of(us: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (us / 1_000_000).cast_signed(),
        tv_nsec: (us % 1_000_000 * 1000).cast_signed(),
    }
}

/// The number of entries that are copied to the stack.
const FEW: usize = 64;

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

/// The events to report for a connection whose ring has bytes.
fn ring_events(conn: &Conn, asked: i16) -> i16 {
    let open = conn.tx_mode() == TxMode::Open
        && conn.shared().tx_blocked.load(Ordering::Relaxed) == 0
        && !room::is_full(conn);
    asked & if open { IN | OUT } else { IN }
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

/// The number of words of an `fd_set`.
const SET_WORDS: usize = 16;
type Sets = [[u64; SET_WORDS]; 3];

/// `select(2)` and `pselect(2)`. `sleep` makes the program's own call.
pub fn select(
    n: c_int,
    sets: [*mut fd_set; 3],
    limit: Limit,
    masked: bool,
    mut sleep: impl FnMut() -> c_int,
) -> c_int {
    let none = sets[0].is_null() && sets[1].is_null();
    if none || n <= 0 || !process::enabled() || process::fd_high() == 0 {
        return sleep();
    }
    let count = n.cast_unsigned() as usize;
    let words = count.div_ceil(64);
    let mut room = Room::new();
    let mut waited = Waited::new(&mut room, count);
    for w in 0..words {
        let [reads, writes] = sets_at(&sets, w);
        let mut bits = reads | writes;
        while bits != 0 {
            let bit = bits & bits.wrapping_neg();
            let fd = w * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if fd < count
                && reads & bit != 0
                && let Some(ep) = process::ep_of(fd as c_int)
            {
                waited.add_set(ep, fd);
            }
            if fd < count
                && let Some(conn) = process::conn_of(fd as c_int)
            {
                if count > SET_WORDS * 64 && reads & bit != 0 {
                    crate::protocol::upgrade::bar(&conn, Reason::WAIT_KIND); // the set is larger than an fd_set
                }
                waited.add(conn, fd, (reads & bit != 0, writes & bit != 0));
            }
        }
    }
    if waited.is_empty() || count > SET_WORDS * 64 {
        waited.bar_sets();
        return sleep();
    }
    let asked = copy_sets(&sets, words);
    let mut rings = || {
        let mut answer: Sets = [[0; SET_WORDS]; 3];
        merge_sets(&waited, &sets, &asked, &mut answer, words)
    };
    let mut glance = || glance_select(n, &waited, &sets, &asked, words);
    let mut nap = |limit| nap_select(n, &sets, &without_full(&asked, &waited), words, limit);
    let r = run(
        &waited,
        Kernel {
            many: count,
            rings: &mut rings,
            glance: &mut glance,
            sleep: &mut sleep,
            nap: &mut nap,
            on_bells: None,
            limit,
            masked,
        },
    );
    if r == 0 {
        write_sets(&sets, &[[0; SET_WORDS]; 3], words);
    }
    r
}

/// The words at `w` of the sets for reading and for writing.
fn sets_at(sets: &[*mut fd_set; 3], w: usize) -> [u64; 2] {
    [sets[0], sets[1]].map(|set| {
        if set.is_null() {
            return 0;
        }
        // SAFETY: the program's set covers this word, as it promised its call.
        unsafe { set.cast::<u64>().add(w).read_unaligned() }
    })
}

/// Takes full rings out of the sets that the kernel is asked about.
fn without_full(asked: &Sets, waited: &Waited<'_>) -> Sets {
    let mut sets = *asked;
    for fd in waited.full() {
        sets[1][fd / 64] &= !(1 << (fd % 64));
    }
    sets
}

fn copy_sets(sets: &[*mut fd_set; 3], words: usize) -> Sets {
    let mut copy: Sets = [[0; SET_WORDS]; 3];
    for (to, from) in copy.iter_mut().zip(sets) {
        if !from.is_null() {
            for (w, word) in to.iter_mut().enumerate().take(words) {
                // SAFETY: the program's set covers `words` words.
                *word = unsafe { from.cast::<u64>().add(w).read_unaligned() };
            }
        }
    }
    copy
}

/// `select` on the sets in `asked`, for at most `limit`. On 0 and on errors it leaves the program's sets alone.
fn nap_select(
    n: c_int,
    sets: &[*mut fd_set; 3],
    asked: &Sets,
    words: usize,
    limit: Limit,
) -> c_int {
    let mut answer = *asked;
    let mut at = |i: usize| {
        if sets[i].is_null() {
            core::ptr::null_mut()
        } else {
            answer[i].as_mut_ptr().cast::<fd_set>()
        }
    };
    let (r, w, e) = (at(0), at(1), at(2));
    let ts = limit.map(timespec_of);
    let limit = ts.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let got = real!(pselect(n, r, w, e, limit, core::ptr::null()));
    if got > 0 {
        write_sets(sets, &answer, words);
    }
    got
}

/// `select` with time-out 0, with the readiness of rings merged in. On 0 the program's sets stay as the program passed
/// them, since they are looked at again.
fn glance_select(
    n: c_int,
    waited: &Waited<'_>,
    sets: &[*mut fd_set; 3],
    asked: &Sets,
    words: usize,
) -> c_int {
    let mut answer = without_full(asked, waited);
    let at = |i: usize, a: &mut Sets| {
        if sets[i].is_null() {
            core::ptr::null_mut()
        } else {
            a[i].as_mut_ptr()
        }
    };
    let (r, w, e) = (at(0, &mut answer), at(1, &mut answer), at(2, &mut answer));
    let ts = [0i64; 2];
    // SAFETY: our copies are as long as the kernel reads for `n` ≤ 1024 descriptors.
    let got = unsafe { memlane_sys::syscall!(libc::SYS_pselect6, n, r, w, e, ts.as_ptr(), 0) };
    if let Err(e) = got {
        real::set_errno(e.0);
        return -1;
    }
    merge_sets(waited, sets, asked, &mut answer, words)
}

/// Adds the rings' events to the answer, and gives it to the program if it is not empty.
fn merge_sets(
    waited: &Waited<'_>,
    sets: &[*mut fd_set; 3],
    asked: &Sets,
    answer: &mut Sets,
    words: usize,
) -> c_int {
    for (fd, conn) in waited.readable() {
        let (word, bit) = (fd / 64, 1 << (fd % 64));
        answer[0][word] |= asked[0][word] & bit;
        if ring_events(conn, OUT) != 0 {
            answer[1][word] |= asked[1][word] & bit;
        }
    }
    for fd in waited.readable_sets() {
        let (word, bit) = (fd / 64, 1 << (fd % 64));
        answer[0][word] |= asked[0][word] & bit;
    }
    let total: u32 = answer.iter().flatten().map(|w| w.count_ones()).sum();
    if total > 0 {
        write_sets(sets, answer, words);
    }
    total.cast_signed()
}

fn write_sets(sets: &[*mut fd_set; 3], from: &Sets, words: usize) {
    for (to, answer) in sets.iter().zip(from) {
        if !to.is_null() {
            for (w, word) in answer.iter().enumerate().take(words) {
                // SAFETY: the program's set covers `words` words.
                unsafe { to.cast::<u64>().add(w).write_unaligned(*word) };
            }
        }
    }
}
