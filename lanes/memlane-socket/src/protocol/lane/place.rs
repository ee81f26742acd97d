//! Sending and receiving in place: the user reads and writes the bytes in the ring itself, without a copy. For users
//! that call this library by name ([`crate::native`]).

use super::by_kernel::from_kernel;
use super::ending::cut;
use super::recv::{Turn, broken, comes, nothing, take_tcp, try_tcp_end};
use super::room::{self, Waited};
use super::send::{TCP_PIECE, look_for_death, publish};
use super::window::{can_grow, show_change};
use super::{copying, misbehaved, naps, outbox, wake_backoff};
use crate::faults::{self, Step};
use crate::iov::Cursor;
use crate::real;
use crate::real::errno;
use crate::state::conn::{LaneView, RxMode, SEEN_RUN, TxMode};
use crate::state::guard::{TxGuard, lock_rx, lock_tx};
use crate::state::large;
use crate::state::process::ConnRef;
use crate::state::process::{self, memory};
use crate::state::trace;
use core::sync::atomic::{AtomicU64, Ordering};
use libc::iovec;
use memlane_core::access::SharedBytes;
use memlane_core::reason::Reason;
use memlane_core::ring::{MustTcp, Next, Room};
use memlane_core::stats::Counter;
use memlane_core::trace::Way;
use memlane_sys::Errno;
use memlane_sys::time::ticks;

/// What [`receive`] got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// `len` bytes lie in the ring at `at`, without a wrap. They stay there until [`release_to`] releases them.
    Ring {
        /// Stream offset of the first byte.
        offset: u64,
        /// Position in the ring, in bytes.
        at: usize,
        /// Number of bytes.
        len: usize,
    },
    /// This many bytes came by TCP, into the buffers; 0: the stream has ended.
    Tcp(usize),
}

/// Receives what is next in the stream: up to `most` bytes of the ring, or bytes of TCP that fit into `buffers`. Never
/// waits. Fails with `ENOBUFS` if TCP is next and `buffers` is empty.
pub fn receive(conn: &ConnRef, most: usize, buffers: &[iovec]) -> Result<Came, Errno> {
    conn.rx_calls.fetch_add(1, Ordering::Relaxed);
    let came = some(conn, most, buffers);
    if conn.seen.load(Ordering::Relaxed) & SEEN_RUN != 0 {
        conn.seen.fetch_and(!SEEN_RUN, Ordering::Relaxed);
        crate::state::sets::look_again(&conn.regs);
    }
    let n = match came {
        Ok(Came::Ring { len, .. } | Came::Tcp(len)) => len.cast_signed(),
        Err(_) => -1,
    };
    crate::state::stats::show_rx(conn, n);
    came
}

fn some(conn: &ConnRef, most: usize, buffers: &[iovec]) -> Result<Came, Errno> {
    let plain = || by_kernel(conn, buffers);
    loop {
        match conn.rx_mode() {
            RxMode::Ended | RxMode::Plain | RxMode::Cold if buffers.is_empty() => {
                return Err(Errno(libc::ENOBUFS));
            }
            RxMode::Ended => {
                let n = plain();
                if trace::on() {
                    trace::after_end(conn, Way::Received, Some(buffers), n);
                }
                return answer(n);
            }
            RxMode::Plain | RxMode::Cold => {
                if let Some(n) = from_kernel(conn, libc::MSG_DONTWAIT, true, &plain) {
                    if trace::on() {
                        trace::unseen_received(conn, Some(buffers), n);
                    }
                    return answer(n);
                }
            }
            RxMode::Moving if lock_rx(conn).is_none() => return Err(Errno::INTR),
            RxMode::Moving => core::hint::spin_loop(),
            _ => {
                if let Some(came) = from_lanes(conn, most, buffers)? {
                    return Ok(came);
                }
            }
        }
    }
}

fn by_kernel(conn: &ConnRef, buffers: &[iovec]) -> isize {
    // SAFETY: an all-zero msghdr is a valid value.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = buffers.as_ptr().cast_mut();
    msg.msg_iovlen = buffers.len();
    real!(recvmsg(
        conn.fd.load(Ordering::Relaxed),
        &raw mut msg,
        libc::MSG_DONTWAIT
    ))
}

/// Converts the return value of a C call.
fn answer(n: isize) -> Result<Came, Errno> {
    usize::try_from(n)
        .map(Came::Tcp)
        .map_err(|_| Errno(errno()))
}

/// Receives from the ring or from a TCP run. `None`: the mode has changed, look at it again.
fn from_lanes(conn: &ConnRef, most: usize, buffers: &[iovec]) -> Result<Option<Came>, Errno> {
    let mut held = lock_rx(conn).ok_or(Errno::INTR)?;
    let awake = conn.rx_mode().is_awake();
    let Some(LaneView { words, ring }) = held.lane().filter(|_| awake) else {
        return Ok(None);
    };
    let turn = match held.next(words, ring.len()) {
        Ok(Next::Ring(n)) => {
            let (first, _) = held.stretches(ring.len(), n.min(most));
            let offset = held.offset();
            if trace::on() {
                trace::in_ring(conn, &ring, first, offset);
            }
            held.took_to_hold(first.len as u64);
            wake_backoff::by_ring(conn);
            faults::at(Step::HeldHere);
            crate::state::stats::add_rx_ring(conn, first.len as u64);
            return Ok(Some(Came::Ring {
                offset,
                at: first.at,
                len: first.len,
            }));
        }
        Ok(Next::Tcp(_)) if buffers.is_empty() => return Err(Errno(libc::ENOBUFS)),
        Ok(Next::Tcp(run)) => {
            let mut cursor = Cursor::new(buffers);
            let wanted = cursor.left();
            let (_, turn) = take_tcp(conn, held, &mut cursor, run);
            match (wanted - cursor.left(), turn) {
                (0, turn) => turn,
                (n, _) => return Ok(Some(Came::Tcp(n))),
            }
        }
        Ok(Next::TcpForever) => {
            super::tune::rx_ended(conn, RxMode::Ended);
            super::ending::ended_by_peer(conn);
            return Ok(None);
        }
        Ok(Next::Empty) => match nothing(conn, &mut held) {
            Turn::Wait { .. } => {
                drop(held);
                try_tcp_end(conn)
            }
            turn => turn,
        },
        Err(what) => {
            drop(held);
            broken(conn, what)
        }
    };
    match turn {
        Turn::Done(n) => answer(n).map(Some),
        Turn::Wait { .. } => Err(Errno::AGAIN),
        Turn::Again | Turn::Empty => Ok(None),
    }
}

/// Releases the bytes below stream offset `to`: the sender may write there again.
pub fn release_to(conn: &ConnRef, to: u64) {
    if let Some(mut held) = lock_rx(conn)
        && let Some(lane) = held.lane()
    {
        held.release_to(lane.words, to);
        naps::wake_sender(lane.words, to);
        faults::at(Step::HeldReleased);
    }
}

/// The stream offset up to which all bytes are released, if none are in use.
pub fn taken(conn: &ConnRef) -> u64 {
    lock_rx(conn).map_or(0, |held| held.offset())
}

/// Room in the peer's ring. Until it is dropped, this side holds the send lock, and the peer is told that this side may
/// be writing.
#[derive(Debug)]
pub struct Reservation<'a> {
    bytes: SharedBytes,
    /// In mode `copy` the bytes lie in a buffer of our own, and a device moves them to this position of the ring.
    by_device: Option<usize>,
    filled: usize,
    /// `Some` until this is dropped.
    held: Option<TxGuard<'a>>,
    conn: &'a ConnRef,
}

impl Reservation<'_> {
    /// The room, to be filled from its first byte on.
    #[inline]
    pub fn bytes(&self) -> SharedBytes {
        self.bytes
    }

    /// Does the room lie in the peer's memory? In mode `copy` it does not.
    pub fn is_in_ring(&self) -> bool {
        self.by_device.is_none()
    }

    /// Publishes the first `n` bytes: the peer has them when this returns.
    #[inline]
    pub fn publish(mut self, n: usize) {
        self.filled = n.min(self.bytes.len());
    }
}

impl Drop for Reservation<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut held) = self.held.take() else {
            return; // cannot happen
        };
        let Some(LaneView { words, .. }) = held.lane() else {
            return; // cannot happen: the room lies in this lane's ring
        };
        if let Some(at) = self.by_device
            && !copying::take(self.conn, &mut held, &self.bytes, self.filled, at)
        {
            // The device failed: what the user has committed cannot be sent.
            self.filled = 0;
            cut(self.conn, Reason::INTERNAL);
        }
        if trace::on() {
            trace::finished(self.conn, &self.bytes, held.offset(), self.filled);
        }
        faults::at(Step::PlaceFilled);
        publish(self.conn, &mut held, words, self.filled, ticks);
        drop(held);
        outbox::send(self.conn);
    }
}

/// What [`reserve`] found.
#[derive(Debug)]
pub enum Reserved<'a> {
    /// Room in the peer's ring.
    Ring(Reservation<'a>),
    /// No room there: at most this many bytes go by TCP before the next call of [`reserve`].
    Tcp(usize),
}

/// Reserves room for up to `want` bytes, without a wrap. Waits for room as a send with these flags would. Only one
/// thread at a time may call this for a connection.
#[inline]
pub fn reserve(conn: &ConnRef, want: usize, flags: i32) -> Result<Reserved<'_>, Errno> {
    count(&conn.tx_calls);
    let _ = look_for_death(conn);
    if conn.tx_mode() == TxMode::Open
        && let Turned::Reservation(place) = in_ring(conn, want)?
    {
        return Ok(Reserved::Ring(place));
    }
    reserve_patiently(conn, want, flags)
}

/// Continues [`reserve`] where there was no room at once.
#[inline(never)]
fn reserve_patiently(conn: &ConnRef, want: usize, flags: i32) -> Result<Reserved<'_>, Errno> {
    let mut spun = false;
    loop {
        match conn.tx_mode() {
            TxMode::Plain | TxMode::Ended => return Ok(Reserved::Tcp(usize::MAX)),
            TxMode::Moving => {
                core::hint::spin_loop();
                continue;
            }
            _ => {}
        }
        match in_ring(conn, want)? {
            Turned::Reservation(place) => return Ok(Reserved::Ring(place)),
            Turned::Ended => {}
            Turned::Full if !spun => {
                process::count(Counter::RingFull, 1);
                spun = room::wait(conn, 0, flags, false) != Waited::Look;
            }
            Turned::Must(MustTcp::Parked)
                if room::wait_for_wake(conn, want, flags, false) == Waited::Look => {}
            Turned::Full | Turned::Scarce | Turned::Must(_) => return Ok(Reserved::Tcp(TCP_PIECE)),
        }
    }
}

/// Counts one more call. Only one thread at a time counts.
#[inline]
fn count(calls: &AtomicU64) {
    calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

enum Turned<'a> {
    Reservation(Reservation<'a>),
    Full,
    Scarce,
    Must(MustTcp),
    Ended,
}

#[inline(always)]
fn in_ring(conn: &ConnRef, want: usize) -> Result<Turned<'_>, Errno> {
    let mut held = lock_tx(conn).ok_or(Errno::AGAIN)?;
    let open = conn.shared().tx_gate.glance() == TxMode::Open;
    let Some(LaneView { words, ring }) = held.lane().filter(|_| open) else {
        return Ok(Turned::Ended);
    };
    if memory::is_scarce() {
        return Ok(Turned::Scarce);
    }
    let want = want.min(ring.len());
    let room = held.straighten(words, ring.len(), want);
    let window = held.window(ring.len());
    let allow = |wanted| {
        // A place must hold what it is asked for, so it does not depend on what other streams do.
        let fits = |wanted| {
            large::allows(conn, wanted, ring.len()) && can_grow(conn, &ring, window, wanted)
        };
        if wanted <= window || fits(wanted) {
            wanted
        } else {
            window
        }
    };
    let reserved = room.and_then(|()| held.reserve_if(words, ring.len(), want, allow));
    show_change(conn, window, held.window(ring.len()));
    match reserved {
        Ok(Room::Ring(n)) => {
            faults::at(Step::PlaceGiven);
            let (at, _) = held.stretches(ring.len(), n);
            match where_to(conn, &mut held, &ring, at.at, at.len) {
                Some((bytes, by_device)) => Ok(Turned::Reservation(Reservation {
                    bytes,
                    by_device,
                    filled: 0,
                    held: Some(held),
                    conn,
                })),
                None => Err(Errno::INVAL), // cannot happen: a stretch lies in the ring
            }
        }
        Ok(Room::Full) => Ok(Turned::Full),
        Ok(Room::Tcp(MustTcp::TcpOnly | MustTcp::Ended)) => {
            held.go_tcp_only(words);
            naps::tell_receiver(words);
            super::tune::tx_ended(conn);
            super::ending::ended_by_peer(conn);
            Ok(Turned::Ended)
        }
        Ok(Room::Tcp(why)) => Ok(Turned::Must(why)),
        Err(what) => {
            drop(held);
            misbehaved(conn, what);
            Err(Errno(libc::EPIPE))
        }
    }
}

/// Up to `n` bytes of memory for what belongs at position `at` of the ring: there, or, in mode `copy`, in a buffer of
/// our own.
#[inline]
fn where_to(
    conn: &ConnRef,
    held: &mut TxGuard<'_>,
    ring: &SharedBytes,
    at: usize,
    n: usize,
) -> Option<(SharedBytes, Option<usize>)> {
    match copying::place(conn, held, n) {
        Some(own) => Some((own, Some(at))),
        None => ring.part(at, n).map(|bytes| (bytes, None)),
    }
}

/// The next bytes of the ring, without a wrap. They stay there until [`took`] takes them. `None`: TCP is next, or
/// nothing.
#[inline]
pub fn peek(conn: &ConnRef) -> Option<SharedBytes> {
    if !conn.rx_mode().is_awake() {
        return None;
    }
    let mut held = lock_rx(conn)?;
    if !conn.rx_mode().is_awake() {
        return None;
    }
    let LaneView { words, ring } = held.lane()?;
    let Ok(Next::Ring(n)) = held.next(words, ring.len()) else {
        return None;
    };
    let (first, _) = held.stretches(ring.len(), n);
    faults::at(Step::Shown);
    ring.part(first.at, first.len)
}

/// The next bytes of the ring, like [`peek`]. If there are none, looks for as long as a receive that may block would.
pub fn peek_soon(conn: &ConnRef) -> Option<SharedBytes> {
    match peek(conn) {
        None if comes(conn) => peek(conn),
        found => found,
    }
}

/// Takes the first `n` bytes of what [`peek`] returned. Only one thread at a time may call this for a connection.
#[inline]
pub fn took(conn: &ConnRef, n: usize) {
    count(&conn.rx_calls);
    if let Some(mut held) = lock_rx(conn)
        && let Some(LaneView { words, ring }) = held.lane()
    {
        if trace::on() && conn.rx_mode().is_awake() {
            let (first, _) = held.stretches(ring.len(), n);
            trace::in_ring(conn, &ring, first, held.offset());
        }
        held.took(words, n as u64);
        naps::wake_sender(words, held.offset());
        wake_backoff::by_ring(conn);
        faults::at(Step::ShownTaken);
        crate::state::stats::add_rx_ring(conn, n as u64);
    }
    crate::state::stats::show_rx(conn, n.cast_signed());
}
