//! Sending: into the peer's ring, or by TCP where the ring cannot be used.

use super::room::{self, Waited};
use super::window::{allowed, show_change};
use super::{copying, cpu_mark_for, misbehaved, naps, order, outbox};
use crate::faults::{self, Step};
use crate::iov::Cursor;
use crate::real;
use crate::real::{errno, fail, set_errno};
use crate::state::conn::{Conn, Dmb, LaneView, SEEN_OUT, TxMode};
use crate::state::guard::{TxGuard, lock_tx};
use crate::state::process::ConnRef;
use crate::state::process::{self, PROCESS, memory};
use crate::state::spin;
use crate::state::thread;
use crate::state::trace;
use core::sync::atomic::Ordering;
use libc::{iovec, ssize_t};
use memlane_core::access::SharedBytes;
use memlane_core::layout::{PARKED, WANT_BELL, WANT_READY};
use memlane_core::ring::{MustTcp, Room, Stretch};
use memlane_core::stats::Counter;
use memlane_core::stores::{self, Stores};
use memlane_core::trace::Way;
use memlane_sys::Errno;
use memlane_sys::time::ticks;

/// How often a sender asks TCP whether the peer still lives, in microseconds.
const LOOK_EVERY_US: u64 = 500;
/// In `Conn::looked`, whose lowest bit is no part of the time: the peer had read everything when it was last looked for.
const UNPROVEN: u64 = 1;
/// A send publishes after this many bytes at the latest, so that the receiver copies while the sender does.
const PUBLISHED_AT_ONCE: usize = 128 * 1024;
/// The most bytes that one promise gives to TCP. After that the sender asks the ring again.
pub(super) const TCP_PIECE: usize = 64 * 1024;

/// One send call of the program; `original` repeats that very call on libc.
pub fn send(
    conn: &ConnRef,
    buffers: &[iovec],
    flags: i32,
    original: impl Fn() -> ssize_t,
) -> ssize_t {
    conn.tx_calls.fetch_add(1, Ordering::Relaxed);
    if conn.upgraded() && crate::iov::implausible(buffers) {
        return fail(Errno(libc::EFAULT));
    }
    let n = loop {
        match conn.tx_mode() {
            TxMode::Ended => break ended(conn, buffers, &original),
            TxMode::Plain => {
                if let Some(n) = by_kernel(conn, Some(buffers), &original) {
                    break n;
                }
            }
            TxMode::Open => {
                let n = by_lanes(conn, &mut Cursor::new(buffers), flags);
                spin::sent(n);
                let is_awaited = conn.seen.load(Ordering::Relaxed) & SEEN_OUT != 0;
                if is_awaited && n > 0 && !conn.is_nonblock() {
                    room::tell_sets(conn);
                }
                break n;
            }
            _ => core::hint::spin_loop(),
        }
    };
    crate::state::stats::show_tx(conn, n);
    n
}

/// Makes a call that sends by TCP only (`sendfile`, `splice`), while the lane is not open. `None`: it has opened.
pub fn plain(conn: &ConnRef, original: &impl Fn() -> ssize_t) -> Option<ssize_t> {
    conn.tx_calls.fetch_add(1, Ordering::Relaxed);
    let n = by_kernel(conn, None, original)?;
    crate::state::stats::show_tx(conn, n);
    Some(n)
}

/// Sends on a connection whose lane has ended. An error that an earlier send could not return goes first.
fn ended(conn: &ConnRef, buffers: &[iovec], original: &impl Fn() -> ssize_t) -> ssize_t {
    match pending(conn) {
        Errno(0) => after_end(conn, Some(buffers), original),
        error => fail(error),
    }
}

/// Takes the error that an earlier call could not return; 0: there is none.
fn pending(conn: &Conn) -> Errno {
    Errno(conn.shared().pending_error.swap(0, Ordering::Relaxed))
}

/// Makes the program's own call on a connection that stays on TCP for good. Only a tracer learns of it.
pub fn after_end(
    conn: &ConnRef,
    buffers: Option<&[iovec]>,
    original: &impl Fn() -> ssize_t,
) -> ssize_t {
    let n = original();
    if trace::on() {
        trace::after_end(conn, Way::Sent, buffers, n);
    }
    n
}

/// Makes the program's own call on plain TCP. `None`: the mode has changed.
fn by_kernel(
    conn: &ConnRef,
    buffers: Option<&[iovec]>,
    original: &impl Fn() -> ssize_t,
) -> Option<ssize_t> {
    let shared = conn.shared();
    if shared.tx_gate.enter() != TxMode::Plain {
        shared.tx_gate.leave();
        return None;
    }
    let n = original();
    if n > 0 {
        let sum = shared
            .tx_count
            .fetch_add(n.cast_unsigned() as u64, Ordering::AcqRel);
        crate::state::stats::add_tx_tcp(conn, n.cast_unsigned() as u64);
        if trace::on() {
            trace::by_kernel(conn, buffers.unwrap_or(&[]), sum, n);
        }
        process::hurry(conn, sum + n.cast_unsigned() as u64);
    }
    shared.tx_gate.leave();
    Some(n)
}

/// The result of one turn of a send call.
enum Turn {
    /// Some bytes went; look again for the rest.
    Some,
    /// The ring is full.
    Full,
    /// There is too little memory for rings: send by TCP until there is more.
    Scarce,
    /// The bytes must go by TCP.
    Tcp(MustTcp),
    /// The receiver is away: send by TCP, so that the kernel reports these bytes in their order.
    Away,
    /// The lane has ended.
    Ended,
    /// A signal handler has interrupted a send of this very thread.
    Nested,
    /// The peer wrote values that the protocol does not allow.
    Broken,
}

/// Sends by the ring, or by TCP where the ring cannot be used. Bytes that signal handlers have left go first; bytes
/// that they leave meanwhile go last.
#[inline]
fn by_lanes(conn: &Conn, cursor: &mut Cursor<'_>, flags: i32) -> ssize_t {
    outbox::send(conn);
    let n = by_lanes_alone(conn, cursor, flags);
    outbox::send(conn);
    n
}

/// Sends by the ring, or by TCP where the ring cannot be used.
#[inline(never)]
pub(super) fn by_lanes_alone(conn: &Conn, cursor: &mut Cursor<'_>, flags: i32) -> ssize_t {
    if !conn.tx_own.load(Ordering::Relaxed).is_null() {
        return by_lanes_copied(conn, cursor, flags);
    }
    by_lanes_in::<false>(conn, cursor, flags)
}

/// Sends in mode `copy`. A function of its own, so that mode `nocopy` pays only for the choice.
#[inline(never)]
fn by_lanes_copied(conn: &Conn, cursor: &mut Cursor<'_>, flags: i32) -> ssize_t {
    by_lanes_in::<true>(conn, cursor, flags)
}

#[inline(always)]
fn by_lanes_in<const COPY: bool>(conn: &Conn, cursor: &mut Cursor<'_>, flags: i32) -> ssize_t {
    let wanted = cursor.left();
    if wanted == 0 {
        return 0;
    }
    let now = look_for_death(conn);
    order::is_busy(conn, now);
    let mut handlers = None;
    while cursor.left() > 0 {
        let turn = by_ring::<COPY>(conn, cursor, flags, now);
        if cursor.left() == 0 {
            break;
        }
        let sent = wanted - cursor.left();
        let before = *handlers.get_or_insert_with(handlers_run);
        let mut waited = Waited::Stalled;
        match turn {
            Turn::Some => continue,
            Turn::Full => {
                process::count(Counter::RingFull, 1);
                waited = room::wait(conn, cursor.left(), flags, sent > 0);
            }
            Turn::Nested => return outbox::put(conn, cursor, flags),
            Turn::Broken => return answer(sent, fail(Errno(libc::EPIPE))),
            Turn::Ended if conn.shared().pending_error.load(Ordering::Relaxed) != 0 => {
                return if sent > 0 {
                    sent.cast_signed()
                } else {
                    fail(pending(conn))
                };
            }
            Turn::Tcp(MustTcp::Parked) => {
                waited = room::wait_for_wake(conn, cursor.left(), flags, sent > 0);
            }
            Turn::Ended | Turn::Scarce | Turn::Away | Turn::Tcp(_) => {}
        }
        if waited == Waited::News {
            look_now(conn);
            waited = Waited::Look;
        }
        if matches!(waited, Waited::Full | Waited::TimeUp) {
            return answer(sent, fail(Errno::AGAIN));
        }
        if handlers_run() != before && !conn.must_not_block(flags) {
            if sent > 0 {
                break;
            }
            if thread::current().restart.load(Ordering::Relaxed) == 0 {
                return fail(Errno::INTR);
            }
        }
        if waited == Waited::Look {
            continue;
        }
        let limit = cursor.rest_len(if matches!(turn, Turn::Ended) {
            usize::MAX
        } else {
            TCP_PIECE
        });
        let quiet = if sent > 0 { libc::MSG_NOSIGNAL } else { 0 };
        let n = by_tcp(
            conn,
            cursor,
            limit,
            flags | quiet,
            matches!(turn, Turn::Ended),
        );
        if n < 0 {
            conn.shared().tx_waited.store(0, Ordering::Relaxed);
            if sent > 0 {
                keep_error(conn);
            }
            return answer(sent, n);
        }
        if n.cast_unsigned() < limit && (conn.must_not_block(flags) || n == 0) {
            conn.shared().tx_blocked.store(1, Ordering::Relaxed);
            conn.shared().tx_waited.store(0, Ordering::Relaxed);
            break;
        }
        conn.shared().tx_blocked.store(0, Ordering::Relaxed);
        if n.cast_unsigned() < limit {
            break; // a signal or a time-out ended a blocking send early
        }
    }
    (wanted - cursor.left()).cast_signed()
}

/// The number of signal handlers that this thread has run. The kernel ends a call that waits for a handler that ran at
/// any time since the call began. A piece by TCP is a call of its own and would go on waiting.
fn handlers_run() -> u32 {
    thread::current().signals.load(Ordering::Relaxed)
}

/// Makes sure now and then that the peer lives. A peer that closes says so; a peer that is killed cannot, and this side would
/// write into its ring for ever. Returns the time in `ticks`.
#[inline]
pub(super) fn look_for_death(conn: &Conn) -> u64 {
    let now = ticks();
    let looked = conn.looked.load(Ordering::Relaxed);
    let every = LOOK_EVERY_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let is_due = now.wrapping_sub(looked) > every;
    if is_due || looked & UNPROVEN != 0 {
        prove_life(conn, now, is_due);
    }
    now
}

/// A peer that has read everything lived until then. The bytes that are sent now may be the first that it does not read, so
/// the next send looks again. Any other peer is asked for at TCP. To a parked receiver the bytes go by TCP, which reports a
/// dead peer by itself. A peer that lies in its words is asked for less often.
#[cold]
fn prove_life(conn: &Conn, now: u64, is_due: bool) {
    let open = conn.tx_mode() == TxMode::Open;
    let Some(LaneView { words, .. }) = conn.tx_lane().filter(|_| open) else {
        return;
    };
    if words.rx.0.flags.load(Ordering::Relaxed) & PARKED != 0 {
        return;
    }
    let published = words.sent.0.published.load(Ordering::Relaxed);
    let has_read = words.consumed.0.load(Ordering::Relaxed) == published;
    let mark = if is_due && has_read { UNPROVEN } else { 0 };
    conn.looked.store(now & !UNPROVEN | mark, Ordering::Relaxed);
    if !has_read {
        look_now(conn);
    }
}

#[cold]
fn look_now(conn: &Conn) {
    if memlane_sys::sock::has_peer_ended(conn.fd.load(Ordering::Relaxed)) {
        super::ending::peer_ended(conn);
    }
}

/// The return value of a C call: the number of bytes if any went, else the error (errno is set).
fn answer(sent: usize, error: ssize_t) -> ssize_t {
    if sent > 0 { sent.cast_signed() } else { error }
}

/// Keeps a connection's error for the next call, as the kernel does where some bytes of a send have gone. The kernel
/// goes on reporting `EPIPE` by itself.
fn keep_error(conn: &Conn) {
    let error = errno();
    if !matches!(error, libc::EAGAIN | libc::EINTR | libc::EPIPE) {
        conn.shared().pending_error.store(error, Ordering::Relaxed);
    }
}

/// Puts as much as possible into the ring. With `COPY` (mode `copy`), the bytes go through our own buffer and a device.
#[inline]
fn by_ring<const COPY: bool>(conn: &Conn, cursor: &mut Cursor<'_>, flags: i32, now: u64) -> Turn {
    let Some(mut held) = lock_tx(conn) else {
        return Turn::Nested;
    };
    let open = conn.shared().tx_gate.glance() == TxMode::Open;
    let Some(LaneView { words, ring }) = held.lane().filter(|_| open) else {
        return Turn::Ended;
    };
    if memory::is_scarce() {
        return Turn::Scarce;
    }
    match order::is_away(conn, &mut held, words, now) {
        Ok(false) => {}
        Ok(true) => return Turn::Away,
        Err(what) => {
            drop(held);
            misbehaved(conn, what);
            return Turn::Broken;
        }
    }
    let window = held.window(ring.len());
    let write = cursor.left();
    let allow = |wanted| allowed(conn, &ring, (window, wanted), write, now);
    let reserved = held.reserve_if(words, ring.len(), write, allow);
    show_change(conn, window, held.window(ring.len()));
    let n = match reserved {
        Ok(Room::Ring(n)) => n,
        Ok(Room::Full) => return Turn::Full,
        Ok(Room::Tcp(MustTcp::TcpOnly | MustTcp::Ended)) => {
            held.go_tcp_only(words);
            naps::tell_receiver(words);
            super::tune::tx_ended(conn);
            super::ending::ended_by_peer(conn);
            return Turn::Ended;
        }
        Ok(Room::Tcp(why)) => return Turn::Tcp(why),
        Err(what) => {
            drop(held);
            misbehaved(conn, what);
            return Turn::Broken;
        }
    };
    let want = cursor.left();
    if n < want && room::goes_whole(conn, flags, want, held.window(ring.len())) {
        held.commit(words, 0);
        return Turn::Full;
    }
    if trace::on() {
        trace::by_ring(conn, cursor, held.offset(), n);
    }
    faults::at(Step::WritingSet);
    let mut left = n;
    while left > PUBLISHED_AT_ONCE {
        let put = put::<COPY>(conn, &mut held, cursor, &ring, PUBLISHED_AT_ONCE);
        if put < PUBLISHED_AT_ONCE {
            return device_failed(conn, &mut held, words, put, now);
        }
        publish_by(conn, words, put, || now, || held.commit_part(words, put));
        left -= put;
    }
    let put = put::<COPY>(conn, &mut held, cursor, &ring, left);
    if put < left {
        return device_failed(conn, &mut held, words, put, now);
    }
    publish(conn, &mut held, words, put, || now);
    Turn::Some
}

/// Copies the next `n` bytes to where they belong in the ring. Returns how many it has copied: all, unless a device has failed.
#[inline(always)]
fn put<const COPY: bool>(
    conn: &Conn,
    held: &mut TxGuard<'_>,
    cursor: &mut Cursor<'_>,
    ring: &SharedBytes,
    n: usize,
) -> usize {
    let (a, b) = held.stretches(ring.len(), n);
    if COPY {
        let put = copying::put(conn, held, cursor, ring, [a, b]);
        faults::at(Step::Copied);
        return put;
    }
    if n < stores::CHOICE_FROM {
        put_by(Stores::Cached, cursor, ring, [a, b]);
    } else {
        put_much(conn, cursor, ring, [a, b], n);
    }
    faults::at(Step::Copied);
    n
}

/// Copies by the stores that cost the least now.
#[inline(never)]
fn put_much(
    conn: &Conn,
    cursor: &mut Cursor<'_>,
    ring: &SharedBytes,
    places: [Stretch; 2],
    n: usize,
) {
    conn.tx_stores
        .copy(n, |stores| put_by(stores, cursor, ring, places));
}

/// Copies to these places by these stores.
#[inline(always)]
fn put_by(stores: Stores, cursor: &mut Cursor<'_>, ring: &SharedBytes, [a, b]: [Stretch; 2]) {
    let (a, rest) = halves(a, faults::half(Step::HalfCopied, a.len));
    // SAFETY: the program's buffers, as it promised its call.
    unsafe {
        cursor.drain_to(ring, a, stores);
        faults::at(Step::HalfCopied);
        if faults::ON {
            cursor.drain_to(ring, rest, stores);
        }
        cursor.drain_to(ring, b, stores);
    }
}

/// The device has refused after `put` bytes: the rest goes by TCP.
#[cold]
fn device_failed(conn: &Conn, held: &mut TxGuard<'_>, words: &Dmb, put: usize, now: u64) -> Turn {
    publish(conn, held, words, put, || now);
    held.go_tcp_only(words);
    naps::tell_receiver(words);
    super::tune::tx_ended(conn);
    Turn::Ended
}

/// Splits a stretch into its first `len` bytes and the rest.
#[inline(always)]
fn halves(whole: Stretch, len: usize) -> (Stretch, Stretch) {
    let (at, rest) = (whole.at + len, whole.len - len);
    (Stretch { len, ..whole }, Stretch { at, len: rest })
}

/// Publishes the `n` bytes that lie in the ring behind what was sent. `words` belong to the DMB whose lock `held` is;
/// `now` returns the time in `ticks`.
#[inline]
pub(super) fn publish(
    conn: &Conn,
    held: &mut TxGuard<'_>,
    words: &Dmb,
    n: usize,
    now: impl Fn() -> u64,
) {
    publish_by(conn, words, n, now, || held.commit(words, n));
}

/// Publishes `n` bytes by `commit`, and wakes the receiver.
#[inline(always)]
fn publish_by(conn: &Conn, words: &Dmb, n: usize, now: impl Fn() -> u64, commit: impl FnOnce()) {
    let wants = |what: u32| words.rx.0.flags.load(Ordering::Relaxed) & what != 0;
    let since = wants(WANT_READY).then(|| order::will_be_ready(conn, words, now()));
    commit();
    faults::at(Step::Published);
    conn.shared().tx_to_parked.store(0, Ordering::Relaxed);
    room::end(conn);
    naps::wake_receiver(words);
    if wants(WANT_READY) {
        let since = since.unwrap_or_else(|| order::will_be_ready(conn, words, now()));
        order::is_ready(conn, words, &since);
    } else if wants(WANT_BELL) {
        order::wake_poller(conn);
    }
    if conn.tx_calls.load(Ordering::Relaxed).is_multiple_of(16) {
        words
            .sent
            .0
            .tx_cpu
            .store(cpu_mark_for(conn), Ordering::Relaxed);
    }
    crate::state::stats::add_tx_ring(conn, n as u64);
}

/// Sends up to `limit` bytes by TCP, after a promise in the ring.
fn by_tcp(conn: &Conn, cursor: &mut Cursor<'_>, limit: usize, flags: i32, ended: bool) -> ssize_t {
    let shared = conn.shared();
    if !ended {
        let Some(mut held) = lock_tx(conn) else {
            return fail(Errno::AGAIN);
        };
        let Some(LaneView { words, ring }) = held.lane() else {
            return fail(Errno::AGAIN); // cannot happen: the lane has been open
        };
        words
            .sent
            .0
            .tx_cpu
            .store(cpu_mark_for(conn), Ordering::Relaxed);
        let flight = shared.tx_flight.fetch_add(limit as u64, Ordering::Relaxed);
        let size = ring.len();
        let window = held.window(size);
        held.promise_tcp(words, usize::try_from(flight).unwrap_or(0) + limit);
        show_change(conn, window, held.window(size));
        faults::at(Step::RunDeclared);
    }
    let mut list = [iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; 16];
    let count = cursor.rest(&mut list, faults::half(Step::RunHalfPaid, limit));
    // SAFETY: an all-zero msghdr is a valid value.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = list.as_mut_ptr();
    msg.msg_iovlen = count;
    // MSG_MORE would hold the last of these bytes back until more TCP bytes come, but the next bytes may go by the
    // ring.
    let flags = if ended {
        flags
    } else {
        flags & !libc::MSG_MORE
    };
    let n = real!(sendmsg(
        conn.fd.load(Ordering::Relaxed),
        &raw const msg,
        flags
    ));
    let keep = errno();
    if !ended {
        faults::at(Step::RunHalfPaid);
        faults::at(Step::RunWritten);
    }
    let mark = cursor.clone();
    if n > 0 {
        cursor.skip(n.cast_unsigned());
        crate::state::stats::add_tx_tcp(conn, n.cast_unsigned() as u64);
    }
    if !ended {
        settle(conn, mark, limit, n.max(0).cast_unsigned());
    } else if trace::on() {
        trace::after_end(conn, Way::Sent, Some(&list[..count]), n);
    }
    set_errno(keep);
    n
}

/// Books a TCP write of `n` bytes, from `mark` on, for which `limit` bytes had been promised.
fn settle(conn: &Conn, mark: Cursor<'_>, limit: usize, n: usize) {
    // Never `None`: a handler that interrupted a send would have got `Nested` first.
    let Some(mut held) = lock_tx(conn) else {
        return;
    };
    conn.shared()
        .tx_flight
        .fetch_sub(limit as u64, Ordering::Relaxed);
    if trace::on() {
        trace::by_tcp(conn, mark, held.offset(), n);
    }
    held.paid(n);
    if let Some(lane) = held.lane() {
        naps::tell_receiver(lane.words);
    }
}
