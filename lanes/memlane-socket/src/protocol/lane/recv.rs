//! Receiving: from the ring, from TCP, or from both, in the order of the stream.

use super::by_kernel::{after_plain, from_kernel, stream_end};
use super::{Parked, misbehaved, naps, park, silence, wake_backoff};
use crate::faults::{self, Step};
use crate::iov::Cursor;
use crate::protocol::board;
use crate::real;
use crate::real::{errno, fail, set_errno};
use crate::state::conn::{Conn, LaneView, RxMode, SEEN_RUN};
use crate::state::guard::{RxGuard, lock_rx};
use crate::state::process;
use crate::state::process::ConnRef;
use crate::state::sets;
use crate::state::spin::{self, Spun};
use crate::state::thread;
use crate::state::trace;
use core::sync::atomic::Ordering;
use libc::{iovec, ssize_t};
use memlane_core::layout::WANT_READY;
use memlane_core::ring::{Misbehaved, Next, ParkCheck, Rx};
use memlane_core::stats::Counter;
use memlane_core::trace::Way;
use memlane_sys::Errno;
use memlane_sys::sock::{self, Peeked};
use memlane_sys::time::ticks;

/// The result of one turn of a receive call.
pub(super) enum Turn {
    /// The call returns this (errno is set if it is −1).
    Done(ssize_t),
    /// The program asked for no bytes at all.
    Empty,
    /// Look at the mode again.
    Again,
    /// Nothing is there: the next `limit` bytes belong to a TCP run (0: no run is declared).
    Wait { limit: usize },
}

/// One receive call of the program. `original` repeats that very call on libc; it serves whenever only TCP is
/// concerned.
pub fn receive(
    conn: &ConnRef,
    buffers: &[iovec],
    flags: i32,
    original: impl Fn() -> ssize_t,
) -> ssize_t {
    conn.rx_calls.fetch_add(1, Ordering::Relaxed);
    if conn.upgraded() && flags & libc::MSG_TRUNC == 0 && crate::iov::implausible(buffers) {
        return fail(Errno(libc::EFAULT));
    }
    let n = if flags & libc::MSG_WAITALL != 0
        && conn.upgraded()
        && !conn.is_nonblock()
        && flags & (libc::MSG_DONTWAIT | libc::MSG_PEEK) == 0
    {
        receive_all(conn, buffers, flags)
    } else {
        receive_some(conn, buffers, flags, None, original)
    };
    received(conn, n);
    tell_end(conn, buffers, n);
    n
}

/// What follows a call on the connection, which has returned `n`.
#[inline(always)]
fn received(conn: &Conn, n: ssize_t) {
    if conn.seen.load(Ordering::Relaxed) & SEEN_RUN != 0 {
        conn.seen.fetch_and(!SEEN_RUN, Ordering::Relaxed);
        crate::state::sets::look_again(&conn.regs);
    }
    crate::state::stats::show_rx(conn, n);
    spin::received(n);
}

/// What follows a call on plain TCP during which the lane may have opened, or a tracer may have come. The call has returned `n`,
/// and its bytes are counted. Returns what the program is told.
#[cold]
pub fn came_by_kernel(conn: &ConnRef, buffers: &[iovec], flags: i32, n: ssize_t) -> ssize_t {
    let n = after_plain(conn, n, buffers.iter().any(|v| v.iov_len > 0));
    if trace::on() && flags & libc::MSG_PEEK == 0 {
        trace::unseen_received(conn, seen(buffers, flags), n);
    }
    received(conn, n);
    tell_end(conn, buffers, n);
    n
}

/// Tells a tracer of a call that has returned `n`, if that is no number of bytes.
#[inline(always)]
fn tell_end(conn: &Conn, buffers: &[iovec], n: ssize_t) {
    if n <= 0 && trace::on() {
        let keep = errno();
        trace::received_end(conn, buffers, n);
        set_errno(keep);
    }
}

/// Makes a call that takes from TCP only (`splice`), while nothing comes by the ring. `None`: the mode has changed.
pub fn plain(conn: &ConnRef, original: impl Fn() -> ssize_t) -> Option<ssize_t> {
    conn.rx_calls.fetch_add(1, Ordering::Relaxed);
    let n = from_kernel(conn, 0, true, &original)?;
    if trace::on() {
        trace::unseen_received(conn, None, n);
    }
    crate::state::stats::show_rx(conn, n);
    Some(n)
}

/// Receives with `MSG_WAITALL`: until the buffers are full.
fn receive_all(conn: &ConnRef, buffers: &[iovec], flags: i32) -> ssize_t {
    let flags = flags & !libc::MSG_WAITALL;
    let mut cursor = Cursor::new(buffers);
    let mut total = 0;
    let since = Some(handlers());
    while cursor.left() > 0 {
        let (base, len) = cursor.piece();
        let one = [iovec {
            iov_base: base.cast(),
            iov_len: len,
        }];
        let fd = conn.fd.load(Ordering::Relaxed);
        let n = receive_some(conn, &one, flags, since, || {
            real!(recv(fd, base.cast(), len, flags))
        });
        if n <= 0 {
            return if total > 0 { total } else { n };
        }
        total += n;
        cursor.advance(n.cast_unsigned());
    }
    total
}

/// `since`: how many handlers had run when the call began, if it has waited before. A handler that has run between two of
/// its waits ends it, too.
fn receive_some(
    conn: &ConnRef,
    buffers: &[iovec],
    flags: i32,
    mut since: Option<u32>,
    original: impl Fn() -> ssize_t,
) -> ssize_t {
    loop {
        match conn.rx_mode() {
            RxMode::Ended => {
                let n = original();
                if trace::on() && flags & libc::MSG_PEEK == 0 {
                    trace::after_end(conn, Way::Received, seen(buffers, flags), n);
                }
                return n;
            }
            RxMode::Cold if since.is_some_and(|since| is_interrupted(conn, since)) => {
                return fail(Errno::INTR);
            }
            RxMode::Plain | RxMode::Cold => {
                let wanted = buffers.iter().any(|v| v.iov_len > 0);
                if let Some(n) = from_kernel(conn, flags, wanted, &original) {
                    if trace::on() && flags & libc::MSG_PEEK == 0 {
                        trace::unseen_received(conn, seen(buffers, flags), n);
                    }
                    return n;
                }
            }
            // A handler that has interrupted the move itself would wait for ever.
            RxMode::Moving if lock_rx(conn).is_none() => {
                return fail(if conn.is_nonblock() {
                    Errno::AGAIN
                } else {
                    Errno::INTR
                });
            }
            RxMode::Moving => core::hint::spin_loop(),
            _ => match from_lanes(conn, buffers, flags) {
                Turn::Done(n) => return n,
                Turn::Again => {}
                Turn::Empty if super::readable(conn) => return 0,
                Turn::Empty => return original(),
                Turn::Wait { limit } => {
                    let since = *since.get_or_insert_with(handlers);
                    if let Turn::Done(n) = wait(conn, buffers, flags, limit, since) {
                        return n;
                    }
                }
            },
        }
    }
}

/// How many signal handlers have run in this thread.
fn handlers() -> u32 {
    thread::current().signals.load(Ordering::Relaxed)
}

/// Must a call that would sleep on TCP now end instead, because a handler has run since `since` of them had? As in the kernel,
/// bytes come first.
#[cold]
fn is_interrupted(conn: &Conn, since: u32) -> bool {
    handlers() != since
        && !restarts(conn)
        && sock::peek(conn.fd.load(Ordering::Relaxed)) == Peeked::Nothing
}

/// The buffers, if the bytes that were taken lie in them.
fn seen(buffers: &[iovec], flags: i32) -> Option<&[iovec]> {
    (flags & libc::MSG_TRUNC == 0).then_some(buffers)
}

/// Takes what is there, across as many changes of lane as fit into the buffers.
fn from_lanes(conn: &ConnRef, buffers: &[iovec], flags: i32) -> Turn {
    let Some(mut held) = lock_rx(conn) else {
        return Turn::Done(fail(if conn.is_nonblock() {
            Errno::AGAIN
        } else {
            Errno::INTR
        }));
    };
    if !conn.rx_mode().is_awake() {
        return Turn::Again;
    }
    if held.flags() & WANT_READY != 0 {
        board::looking(ticks()); // a loop that reads from many peers is not away, however long its turn takes
    }
    if flags & libc::MSG_PEEK != 0 {
        return peek_lanes(conn, &mut held, buffers, flags);
    }
    let mut cursor = Cursor::new(buffers);
    let wanted = cursor.left();
    if wanted == 0 {
        drop(held);
        return Turn::Empty;
    }
    let turn = take(conn, held, &mut cursor, flags);
    let got = wanted - cursor.left();
    if got > 0 {
        Turn::Done(got.cast_signed())
    } else {
        turn
    }
}

fn take(conn: &ConnRef, held: RxGuard<'_>, cursor: &mut Cursor<'_>, flags: i32) -> Turn {
    let mut held = held;
    let Some(lane) = held.lane() else {
        return Turn::Again;
    };
    let mut any = false;
    while cursor.left() > 0 {
        match held.next(lane.words, lane.ring.len()) {
            Ok(Next::Ring(n)) => {
                take_ring(conn, &mut held, lane, cursor, (n, flags));
                any = true;
            }
            Ok(Next::Tcp(k)) => {
                let (next_held, turn) = take_tcp(conn, held, cursor, k);
                match (next_held, turn) {
                    (Some(h), Turn::Again) => {
                        held = h;
                        any = true;
                    }
                    (_, turn) => return turn,
                }
            }
            Ok(Next::TcpForever) => {
                super::tune::rx_ended(conn, RxMode::Ended);
                super::ending::ended_by_peer(conn);
                return Turn::Again;
            }
            Ok(Next::Empty) if any => return Turn::Again,
            Ok(Next::Empty) => return nothing(conn, &mut held),
            Err(what) => return broken(conn, what),
        }
    }
    Turn::Again
}

fn take_ring(
    conn: &Conn,
    held: &mut RxGuard<'_>,
    lane: LaneView<'_>,
    cursor: &mut Cursor<'_>,
    (n, flags): (usize, i32),
) {
    if trace::on() {
        let (mark, seq, n) = (cursor.clone(), held.offset(), n.min(cursor.left()));
        take_ring_now(conn, held, lane, cursor, (n, flags));
        trace::from_ring(conn, mark, seq, n);
    } else {
        take_ring_now(conn, held, lane, cursor, (n, flags));
    }
}

#[inline(always)]
fn take_ring_now(
    conn: &Conn,
    held: &mut RxGuard<'_>,
    LaneView { words, ring }: LaneView<'_>,
    cursor: &mut Cursor<'_>,
    (n, flags): (usize, i32),
) {
    let n = n.min(cursor.left());
    if flags & libc::MSG_TRUNC != 0 {
        cursor.skip(n); // MSG_TRUNC on TCP takes bytes without copying them
    } else {
        let (a, b) = held.stretches(ring.len(), n);
        // SAFETY: the program's buffers, as it promised its call.
        unsafe {
            cursor.fill_from(&ring, a);
            cursor.fill_from(&ring, b);
        }
    }
    faults::at(Step::TakenFromRing);
    held.took(words, n as u64);
    naps::wake_sender(words, held.offset());
    faults::at(Step::RingTold);
    wake_backoff::by_ring(conn);
    crate::state::stats::add_rx_ring(conn, n as u64);
}

/// Takes from TCP what the run that is next allows, without waiting. Releases the lock meanwhile. `Some` with `Again`:
/// it got bytes.
pub(super) fn take_tcp<'a>(
    conn: &'a ConnRef,
    held: RxGuard<'a>,
    cursor: &mut Cursor<'_>,
    run: u64,
) -> (Option<RxGuard<'a>>, Turn) {
    let shared = conn.shared();
    let (base, len) = cursor.piece();
    let free = run.saturating_sub(shared.rx_flight.load(Ordering::Relaxed));
    let want = len.min(usize::try_from(free).unwrap_or(usize::MAX));
    if want == 0 {
        return (None, Turn::Wait { limit: 0 });
    }
    shared.rx_flight.fetch_add(want as u64, Ordering::Relaxed);
    drop(held);
    // SAFETY: the program's buffer, as it promised its call.
    let r = unsafe {
        memlane_sys::syscall!(
            libc::SYS_recvfrom,
            conn.fd.load(Ordering::Relaxed),
            base,
            want,
            libc::MSG_DONTWAIT,
            0,
            0
        )
    };
    faults::at(Step::TakenFromTcp);
    let held = settle_tcp(conn, base, want, r.unwrap_or(0));
    match r {
        Ok(0) => (None, Turn::Done(0)),
        Ok(n) => {
            cursor.advance(n);
            (held, Turn::Again)
        }
        Err(Errno::AGAIN) => (None, Turn::Wait { limit: want }),
        Err(e) => (None, Turn::Done(fail(e))),
    }
}

/// Books a TCP read of `n` bytes into `base`, for which `want` bytes had been set aside. What follows may already lie
/// in the ring without having been reported to anyone: while the run was next, only the kernel could report.
fn settle_tcp(conn: &ConnRef, base: *mut u8, want: usize, n: usize) -> Option<RxGuard<'_>> {
    if n > 0 {
        conn.seen.fetch_or(SEEN_RUN, Ordering::Relaxed);
    }
    let mut held = lock_rx(conn);
    conn.shared()
        .rx_flight
        .fetch_sub(want as u64, Ordering::Relaxed);
    if n == 0 {
        return held;
    }
    crate::state::stats::add_rx_tcp(conn, n as u64);
    match &mut held {
        Some(held) => {
            if trace::on() {
                trace::from_tcp(conn, base, held.offset(), n);
            }
            if let Some(lane) = held.lane() {
                held.took(lane.words, n as u64);
                naps::wake_sender(lane.words, held.offset());
            }
        }
        None => {
            conn.shared().rx_count.fetch_add(n as u64, Ordering::AcqRel);
        }
    }
    held
}

/// Decides what to do when nothing is published beyond what has been read.
pub(super) fn nothing(conn: &ConnRef, held: &mut RxGuard<'_>) -> Turn {
    let shared = conn.shared();
    let pending = shared.pending_error.swap(0, Ordering::Relaxed);
    if pending != 0 {
        return Turn::Done(fail(Errno(pending)));
    }
    if let Some(lane) = held.lane().filter(|_| conn.rx_mode() == RxMode::Drain) {
        // A fence followed TCP_ONLY when `Drain` began. So once no write is in progress, nothing more can be added to
        // the ring.
        match held.check_park(lane.words) {
            ParkCheck::Parked => {
                shared.rx_gate.set(RxMode::Ended);
            }
            ParkCheck::Data => {}
            ParkCheck::WriterBusy => return beside_a_writer(conn, held, lane),
        }
        return Turn::Again;
    }
    Turn::Wait { limit: 0 }
}

/// Handles `Drain` while the peer is in the middle of a write. If TCP has ended, the peer was killed there, since a
/// living peer ends its write first; then nothing more comes.
fn beside_a_writer(conn: &ConnRef, held: &mut RxGuard<'_>, lane: LaneView<'_>) -> Turn {
    let shared = conn.shared();
    let seen = sock::peek(conn.fd.load(Ordering::Relaxed));
    let next = held.next(lane.words, lane.ring.len());
    match (seen, next) {
        (Peeked::End, Ok(Next::Empty)) => {
            shared.rx_gate.set(RxMode::Ended);
        }
        (Peeked::Error(e), Ok(Next::Empty)) => {
            shared.rx_gate.set(RxMode::Ended);
            return Turn::Done(fail(e));
        }
        (Peeked::Error(e), _) => shared.pending_error.store(e.0, Ordering::Relaxed),
        // The peer may be stopped, or may never end its write: this call does not wait for it.
        (Peeked::Nothing, Ok(Next::Empty)) => return Turn::Wait { limit: 0 },
        _ => memlane_sys::proc::yield_now(),
    }
    Turn::Again
}

pub(super) fn broken(conn: &Conn, what: Misbehaved) -> Turn {
    misbehaved(conn, what);
    Turn::Done(fail(Errno(libc::ECONNRESET)))
}

/// Nothing is there: returns `EAGAIN`, spins, or parks (then `Again`, with mode `Cold`). `since`: how many handlers had run
/// when the call began to wait.
fn wait(conn: &ConnRef, buffers: &[iovec], flags: i32, limit: usize, since: u32) -> Turn {
    if conn.is_nonblock() || flags & libc::MSG_DONTWAIT != 0 {
        return without_waiting(conn, flags);
    }
    if limit > 0 {
        return wait_for_run(conn, buffers, flags, limit);
    }
    match spin_for(conn) {
        Spun::Ready => {
            process::count(Counter::SpinHits, 1);
            return Turn::Again;
        }
        Spun::Signal if !restarts(conn) => return Turn::Done(fail(Errno::INTR)),
        _ => {}
    }
    if let Some(us) = spin::nap_instead() {
        return nap(conn, us, since);
    }
    let turn = if !naps::until_bytes(conn) {
        park_or_look(conn, buffers, flags)
    } else if handlers() != since && !restarts(conn) {
        Turn::Done(fail(Errno::INTR))
    } else {
        Turn::Again
    };
    match naps::up(conn) {
        0 => turn,
        kept => after_close(turn, kept, buffers, flags),
    }
}

/// Parks; looks again if there is something by now, or if that is not possible.
fn park_or_look(conn: &ConnRef, buffers: &[iovec], flags: i32) -> Turn {
    let Some(mut held) = lock_rx(conn) else {
        return Turn::Done(fail(Errno::INTR));
    };
    match park(conn, &mut held) {
        Parked::Yes => {
            process::count(Counter::SpinMisses, 1);
            Turn::Again
        }
        Parked::Data | Parked::Ended => {
            drop(held);
            data_without_ring(conn, buffers, flags)
        }
        Parked::Stuck => {
            drop(held);
            doze(conn);
            // A peer that was killed in the middle of a write stays there for ever.
            if sock::peek(conn.fd.load(Ordering::Relaxed)) == Peeked::Nothing {
                return Turn::Again;
            }
            try_tcp_end(conn)
        }
    }
}

/// Goes on with a read whose last descriptor another thread closes meanwhile, as the kernel does for a thread that sleeps in
/// it. The number may be another file's by now; `kept` is the library's own for the socket, if it has one.
#[cold]
fn after_close(turn: Turn, kept: i32, buffers: &[iovec], flags: i32) -> Turn {
    let turn = match turn {
        Turn::Again if kept > 0 => from_kept(kept, buffers, flags),
        Turn::Again => Turn::Done(fail(Errno(libc::EBADF))),
        turn => turn,
    };
    let keep = errno();
    process::unhide(kept);
    set_errno(keep);
    turn
}

/// Reads from the library's own descriptor of the socket.
fn from_kept(kept: i32, buffers: &[iovec], flags: i32) -> Turn {
    // SAFETY: an all-zero msghdr is a valid value.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = buffers.as_ptr().cast_mut();
    msg.msg_iovlen = buffers.len();
    Turn::Done(real!(recvmsg(kept, &raw mut msg, flags)))
}

/// Handles published data: ring bytes, which the caller takes, or a TCP run whose bytes are on their way.
fn data_without_ring(conn: &ConnRef, buffers: &[iovec], flags: i32) -> Turn {
    match from_lanes(conn, buffers, flags) {
        Turn::Wait { limit } if limit > 0 => wait_for_run(conn, buffers, flags, limit),
        Turn::Wait { .. } => {
            doze(conn);
            Turn::Again
        }
        other => other,
    }
}

/// Sleeps until bytes of a declared TCP run come. Takes at most `limit` bytes, so that no byte of a later run is taken
/// too early.
fn wait_for_run(conn: &ConnRef, buffers: &[iovec], flags: i32, limit: usize) -> Turn {
    let shared = conn.shared();
    let mut cursor = Cursor::new(buffers);
    let (base, len) = cursor.piece();
    let want = len.min(limit);
    {
        let Some(mut held) = lock_rx(conn) else {
            return Turn::Done(fail(Errno::INTR));
        };
        let Some(lane) = held.lane() else {
            return Turn::Again;
        };
        let run = match held.next(lane.words, lane.ring.len()) {
            Ok(Next::Tcp(k)) => k,
            _ => return Turn::Again,
        };
        if run.saturating_sub(shared.rx_flight.load(Ordering::Relaxed)) < want as u64 || want == 0 {
            drop(held);
            doze(conn);
            return Turn::Again;
        }
        shared.rx_flight.fetch_add(want as u64, Ordering::Relaxed);
    }
    let n = real!(recv(
        conn.fd.load(Ordering::Relaxed),
        base.cast(),
        want,
        flags & !libc::MSG_WAITALL
    ));
    let keep = errno();
    let got = usize::try_from(n).unwrap_or(0);
    drop(settle_tcp(conn, base, want, got));
    set_errno(keep);
    Turn::Done(n)
}

/// A non-blocking call found nothing in the ring. Looks at TCP, unless a wait has just asked the kernel, and the kernel has
/// reported nothing since TCP was last looked at.
fn without_waiting(conn: &ConnRef, flags: i32) -> Turn {
    let asked = sets::last_asked(&conn.regs);
    // A program that peeks may want to know whether the peer lives.
    if flags & libc::MSG_PEEK == 0 && asked.is_some_and(|asked| silence::counts(conn, asked)) {
        return Turn::Done(fail(Errno::AGAIN));
    }
    let seen = sock::peek(conn.fd.load(Ordering::Relaxed));
    if let (Peeked::Nothing, Some(asked)) = (seen, asked) {
        silence::begins(conn, asked);
    }
    tcp_end(conn, seen)
}

/// A non-blocking call found nothing in the ring: has TCP something to report (its end, or an error)?
pub(super) fn try_tcp_end(conn: &ConnRef) -> Turn {
    tcp_end(conn, sock::peek(conn.fd.load(Ordering::Relaxed)))
}

fn tcp_end(conn: &ConnRef, seen: Peeked) -> Turn {
    if seen == Peeked::Nothing {
        return Turn::Done(fail(Errno::AGAIN));
    }
    // The peer may have published to the ring just before it ended its side of TCP.
    let Some(mut held) = lock_rx(conn) else {
        return Turn::Done(fail(Errno::AGAIN));
    };
    let Some(lane) = held.lane() else {
        return Turn::Again;
    };
    let next = held.next(lane.words, lane.ring.len());
    match (seen, next) {
        (_, Err(what)) => broken(conn, what),
        (Peeked::End, Ok(Next::Empty | Next::Tcp(_))) => {
            drop(held);
            Turn::Done(stream_end(conn))
        }
        (Peeked::Error(e), Ok(Next::Empty | Next::Tcp(_))) => Turn::Done(fail(e)),
        (Peeked::Error(e), Ok(_)) => {
            conn.shared().pending_error.store(e.0, Ordering::Relaxed);
            Turn::Again
        }
        // Undeclared bytes on TCP: an honest peer sends none, unless the declaration has just come or another thread is
        // taking them.
        (Peeked::Data, Ok(Next::Empty)) => {
            if conn.shared().rx_flight.load(Ordering::Relaxed) == 0
                && sock::peek(conn.fd.load(Ordering::Relaxed)) == Peeked::Data
            {
                return broken(conn, Misbehaved::Run);
            }
            Turn::Done(fail(Errno::AGAIN))
        }
        (Peeked::Data, Ok(Next::Tcp(_)))
            if conn.shared().rx_flight.load(Ordering::Relaxed) != 0 =>
        {
            Turn::Done(fail(Errno::AGAIN))
        }
        _ => Turn::Again,
    }
}

fn spin_for(conn: &ConnRef) -> Spun {
    let Some(lane) = conn.rx_lane() else {
        return Spun::Nothing;
    };
    let taken = conn.shared().rx_taken.load(Ordering::Relaxed);
    let here = is_peer_here(conn);
    board::looking(ticks());
    // What goes by TCP from here on, as all does when the peer closes, is declared in the same cache line.
    let sent = &lane.words.sent.0;
    let declared = sent.runs_declared.load(Ordering::Relaxed);
    let comes = || {
        sent.published.load(Ordering::Relaxed) != taken
            || sent.runs_declared.load(Ordering::Relaxed) != declared
            || conn.closing.load(Ordering::Relaxed) != 0
    };
    spin::until(spin::budget(), here, comes, || 1)
}

/// Looks for bytes for as long as a blocking receive would, for callers that ask the kernel next. Does not look if the
/// lane is not open. One look in vain is enough: the wait that follows does not look again.
pub fn comes(conn: &ConnRef) -> bool {
    if conn.rx_mode() != RxMode::Hot {
        return false;
    }
    let spun = spin_for(conn);
    if spun == Spun::Nothing {
        spin::skip_one();
    }
    spun == Spun::Ready
}

/// Was the peer last seen on this very CPU? Also tells the peer which CPU this thread runs on.
pub fn is_peer_here(conn: &Conn) -> bool {
    let Some(LaneView { words, .. }) = conn.rx_lane() else {
        return false;
    };
    if conn.is_across() {
        return false;
    }
    let mine = spin::cpu_mark();
    // The sender reads this cache line with every message, so it is written only when the CPU has changed.
    if words.rx.0.rx_cpu.load(Ordering::Relaxed) != mine {
        words.rx.0.rx_cpu.store(mine, Ordering::Relaxed);
    }
    words.sent.0.tx_cpu.load(Ordering::Relaxed) == mine
}

/// Would the kernel restart the call after the handler that just ran? It never does with a receive time-out: signal(7).
pub(super) fn restarts(conn: &Conn) -> bool {
    if thread::current().restart.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let fd = conn.fd.load(Ordering::Relaxed);
    let timeout: [i64; 2] = sock::option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO).unwrap_or([0, 0]);
    timeout == [0, 0]
}

/// Sleeps for `us` microseconds, or until TCP has something, before a receive looks again.
fn nap(conn: &Conn, us: u64, since: u32) -> Turn {
    sleep_us(conn, us);
    if handlers() != since && !restarts(conn) {
        return Turn::Done(fail(Errno::INTR));
    }
    Turn::Again
}

/// Sleeps in the kernel for a millisecond, or until TCP has something.
fn doze(conn: &Conn) {
    sleep_us(conn, 1_000);
}

fn sleep_us(conn: &Conn, us: u64) {
    let mut p = libc::pollfd {
        fd: conn.fd.load(Ordering::Relaxed),
        events: libc::POLLIN,
        revents: 0,
    };
    let ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: (us * 1_000).cast_signed(),
    };
    // SAFETY: both structures live over the call.
    let _ = unsafe { memlane_sys::syscall!(libc::SYS_ppoll, &raw mut p, 1, &raw const ts, 0, 0) };
}

// --- MSG_PEEK ---------------------------------------------------------------

/// Copies what is there without taking it, across as many changes of lane as fit into the buffers.
fn peek_lanes(conn: &ConnRef, held: &mut RxGuard<'_>, buffers: &[iovec], flags: i32) -> Turn {
    let Some(LaneView { words, ring }) = held.lane() else {
        return Turn::Again;
    };
    let mut cursor = Cursor::new(buffers);
    let wanted = cursor.left();
    let saved: Rx = **held;
    let mut tcp_seen = 0usize;
    while cursor.left() > 0 {
        match held.next(words, ring.len()) {
            Ok(Next::Ring(n)) => {
                let n = n.min(cursor.left());
                let (a, b) = held.stretches(ring.len(), n);
                // SAFETY: the program's buffers, as it promised its call.
                unsafe {
                    cursor.fill_from(&ring, a);
                    cursor.fill_from(&ring, b);
                }
                held.skip(n as u64);
            }
            Ok(next @ (Next::Tcp(_) | Next::TcpForever)) => {
                let (base, len) = cursor.piece();
                let run = if let Next::Tcp(k) = next {
                    usize::try_from(k).unwrap_or(usize::MAX)
                } else {
                    usize::MAX
                };
                let got = peek_tcp(conn, base, tcp_seen, len.min(run));
                if got == 0 {
                    break;
                }
                cursor.advance(got);
                held.skip(got as u64);
                tcp_seen += got;
            }
            Ok(Next::Empty) => break,
            Err(what) => return broken(conn, what),
        }
    }
    let done = wanted - cursor.left();
    **held = saved;
    if done > 0 {
        return Turn::Done(done.cast_signed());
    }
    let next = held.next(words, ring.len());
    match next {
        Ok(Next::Tcp(_)) if conn.is_nonblock() || flags & libc::MSG_DONTWAIT != 0 => {
            Turn::Wait { limit: 0 }
        }
        // The bytes are promised but not there yet. They will not come if the peer is gone.
        Ok(Next::Tcp(_)) => match sock::peek(conn.fd.load(Ordering::Relaxed)) {
            Peeked::End => Turn::Done(0),
            Peeked::Error(e) => Turn::Done(fail(e)),
            Peeked::Nothing | Peeked::Data => {
                doze(conn);
                Turn::Again
            }
        },
        Ok(Next::TcpForever) => {
            super::tune::rx_ended(conn, RxMode::Ended);
            super::ending::ended_by_peer(conn);
            Turn::Again
        }
        _ => nothing(conn, held),
    }
}

/// Peeks at `want` TCP bytes that follow `seen` TCP bytes, into `base`. A peek starts at the head of the kernel's
/// queue, so the earlier bytes are peeked at again, into a small buffer.
fn peek_tcp(conn: &Conn, base: *mut u8, seen: usize, want: usize) -> usize {
    let fd = conn.fd.load(Ordering::Relaxed);
    let mut skip = [0u8; 2048];
    if seen > skip.len() || want == 0 {
        return 0;
    }
    let list = [
        iovec {
            iov_base: skip.as_mut_ptr().cast(),
            iov_len: seen,
        },
        iovec {
            iov_base: base.cast(),
            iov_len: want,
        },
    ];
    // SAFETY: an all-zero msghdr is a valid value.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = list.as_ptr().cast_mut();
    msg.msg_iovlen = 2;
    // SAFETY: both buffers are writable for their lengths.
    let r = unsafe {
        memlane_sys::syscall!(
            libc::SYS_recvmsg,
            fd,
            &raw mut msg,
            libc::MSG_PEEK | libc::MSG_DONTWAIT
        )
    };
    r.unwrap_or(0).saturating_sub(seen)
}
