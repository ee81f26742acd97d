//! `select(2)` and `pselect(2)` over the two lanes ([`super::call`]).

// Indices and descriptor numbers are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

use super::call::{self, Kernel, Limit, OUT, Time, kernel_poll, ring_events, timespec_of};
use super::long::Entries;
use super::relied::{self, Relied};
use super::waited::{Room, Waited};
use crate::real;
use crate::state::process;
use core::cell::Cell;
use libc::{c_int, fd_set, pollfd};
use memlane_core::reason::Reason;

/// The number of words of an `fd_set`.
const SET_WORDS: usize = 16;
type Sets = [[u64; SET_WORDS]; 3];

/// `select(2)` and `pselect(2)`. `sleep` makes the program's own call, after which Linux writes the time that is left into the
/// program's limit. If another call has slept instead, `tell_left` gets that time, in µs, to do the same.
pub fn select(
    n: c_int,
    sets: [*mut fd_set; 3],
    limit: Limit,
    masked: bool,
    tell_left: impl FnOnce(u64),
    mut sleep: impl FnMut() -> c_int,
) -> c_int {
    let time = Time::of(limit);
    let has_slept = Cell::new(false);
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
    let mut nap = |limit| {
        has_slept.set(true);
        nap_select(n, &sets, &without_full(&asked, &waited), words, limit)
    };
    let mut on_bells = |relied: &mut Relied, limit| {
        has_slept.set(true);
        select_on_bells(&waited, &sets, &asked, count, relied, limit)
    };
    let can_rely = !waited.has_sets();
    let r = call::run(
        &waited,
        Kernel {
            many: count,
            rings: &mut rings,
            glance: &mut glance,
            sleep: &mut sleep,
            nap: &mut nap,
            on_bells: can_rely.then_some(&mut on_bells),
            time: &time,
            masked,
        },
    );
    if r == 0 {
        write_sets(&sets, &[[0; SET_WORDS]; 3], words);
    }
    if has_slept.get()
        && let Some(left) = time.left()
    {
        let keep = real::errno();
        tell_left(left);
        real::set_errno(keep);
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

/// What of poll's answer makes a descriptor ready in the set for reading, for writing, and for exceptions (`POLLIN_SET`,
/// `POLLOUT_SET` and `POLLEX_SET` of Linux's fs/select.c). What it must be asked for is in the same place of [`ASKED`].
const READY: [i16; 3] = [
    libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLIN | libc::POLLHUP | libc::POLLERR,
    libc::POLLWRBAND | libc::POLLWRNORM | libc::POLLOUT | libc::POLLERR,
    libc::POLLPRI,
];
/// Hang-ups and errors are reported without being asked for.
const ASKED: [i16; 3] = [
    READY[0] & !(libc::POLLHUP | libc::POLLERR),
    READY[1] & !libc::POLLERR,
    READY[2],
];

/// How many descriptors below `count` are in any of these sets.
fn how_many(sets: &Sets, count: usize) -> usize {
    let words = 0..count.div_ceil(64);
    let ones = words.map(|word| {
        let left = count - 64 * word;
        let below = if left < 64 { (1 << left) - 1 } else { u64::MAX };
        let any = sets.iter().fold(0, |all, set| all | set[word]);
        (any & below).count_ones() as usize
    });
    ones.sum()
}

/// The descriptors below `count` that are in any of these sets, as entries for poll.
fn descriptors(sets: &Sets, count: usize) -> impl Iterator<Item = pollfd> {
    let events = |fd: usize| {
        let is_in = |set: &[u64; SET_WORDS]| set[fd / 64] & 1 << (fd % 64) != 0;
        let each = sets.iter().zip(ASKED).filter(|(set, _)| is_in(set));
        each.fold(0, |all, (_, asked)| all | asked)
    };
    (0..count)
        .map(move |fd| pollfd {
            fd: fd as c_int,
            events: events(fd),
            revents: 0,
        })
        .filter(|p| p.events != 0)
}

/// `poll` about the descriptors in `asked` and about these bells, with the readiness of rings merged in.
/// On 0 and on errors it leaves the program's sets alone.
fn select_on_bells(
    waited: &Waited<'_>,
    sets: &[*mut fd_set; 3],
    asked: &Sets,
    count: usize,
    relied: &mut Relied,
    limit: Limit,
) -> c_int {
    let to_ask = without_full(asked, waited);
    let many = how_many(&to_ask, count);
    let all = descriptors(&to_ask, count).map(|p| (p.fd as usize, p.fd));
    let may_split = relied.strangers.know(waited.strangers(all));
    let mut room = Entries::room();
    let entries = may_split.then(|| room.take(many + relied::MOST)).flatten();
    let Some(entries) = entries else {
        relied.give_up();
        return merge_sets(
            waited,
            sets,
            asked,
            &mut [[0; SET_WORDS]; 3],
            count.div_ceil(64),
        );
    };
    for (place, p) in entries.iter_mut().zip(descriptors(&to_ask, count)) {
        *place = p;
    }
    for fd in waited.gone(|fd| fd as c_int) {
        let closed = entries.iter_mut().filter(|p| p.fd == fd as c_int);
        closed.for_each(|p| p.fd = -1);
    }
    let n = call::ask_with_bells(entries, many, relied, limit);
    if n < 0 {
        return n;
    }
    let mut answer: Sets = [[0; SET_WORDS]; 3];
    let mut is_any = waited.any_readable();
    for p in entries[..many].iter().filter(|p| p.revents != 0) {
        if relied.strangers.closed().any(|closed| closed == p.fd) {
            is_any = true;
            continue;
        }
        if p.revents & libc::POLLNVAL != 0 {
            real::set_errno(libc::EBADF);
            return -1;
        }
        if adds(&mut answer, asked, p) {
            is_any = true;
        } else {
            // A hang-up, which select reports in the set for reading alone. Poll would return at once, again and again.
            relied.give_up();
        }
    }
    if is_any {
        add_closed(&mut answer, asked, relied);
    }
    merge_sets(waited, sets, asked, &mut answer, count.div_ceil(64))
}

/// Adds what has been closed since the call began, as the kernel does when something else has woken it: what is not open is
/// ready in the sets for reading and writing (`POLLIN_SET`, `POLLOUT_SET`).
fn add_closed(answer: &mut Sets, asked: &Sets, relied: &Relied) {
    for fd in relied.strangers.closed() {
        let mut now = pollfd {
            fd,
            events: ASKED.iter().fold(0, |all, asked| all | asked),
            revents: 0,
        };
        kernel_poll(&raw mut now, 1, Some(0));
        if now.revents & libc::POLLNVAL != 0 {
            now.revents = libc::POLLIN | libc::POLLOUT;
        }
        adds(answer, asked, &now);
    }
}

/// Adds poll's answer about one descriptor. `false`: there is nothing in it that select tells.
fn adds(answer: &mut Sets, asked: &Sets, p: &pollfd) -> bool {
    let (word, bit) = (p.fd as usize / 64, 1 << (p.fd as usize % 64));
    let mut any = false;
    for (i, ready) in READY.iter().enumerate() {
        if p.revents & ready != 0 && asked[i][word] & bit != 0 {
            answer[i][word] |= bit;
            any = true;
        }
    }
    any
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
