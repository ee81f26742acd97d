//! The records that each step of a lane makes. Callers check `trace::on()` first; these functions do nothing if that
//! has changed meanwhile.

use super::Session;
use crate::iov::Cursor;
use crate::real::errno;
use crate::state::conn::{Conn, SEEN_TUPLE, TxMode};
use crate::state::process;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use libc::iovec;
use memlane_core::access::SharedBytes;
use memlane_core::ring::Stretch;
use memlane_core::trace::{RECORD, Record, RecordKind, SEGMENT, Way, length_of};
use memlane_sys::sock::{self, Addr, Tuple};

const TCP: u8 = 0;
const RING: u8 = 1;

// --- sent ---------------------------------------------------------------------

/// Records that the next `n` bytes of `cursor` are about to go by the ring. `seq` is the stream offset of the first
/// one.
#[cold]
pub fn by_ring(conn: &Conn, cursor: &Cursor<'_>, seq: u64, n: usize) {
    data(conn, Way::Sent, RING, seq, n, Some(cursor.clone()));
}

/// Records that the next `n` of `bytes`, which lie in the ring already, are published. `seq` is the stream offset of
/// the first one.
#[cold]
pub fn finished(conn: &Conn, bytes: &SharedBytes, seq: u64, n: usize) {
    let piece = piece(bytes.as_ptr(), n.min(bytes.len()));
    data(conn, Way::Sent, RING, seq, n, Some(Cursor::new(&piece)));
}

/// Records that `n` bytes of `cursor` have gone by TCP on an open lane.
#[cold]
pub fn by_tcp(conn: &Conn, cursor: Cursor<'_>, seq: u64, n: usize) {
    data(conn, Way::Sent, TCP, seq, n, Some(cursor));
}

/// Records that bytes have gone by TCP while no lane was open. `n` is the call's return value.
#[cold]
pub fn by_kernel(conn: &Conn, buffers: &[iovec], seq: u64, n: isize) {
    let n = usize::try_from(n).unwrap_or(0);
    data(conn, Way::Sent, TCP, seq, n, Some(Cursor::new(buffers)));
}

/// Records that `n` bytes have gone by TCP while only the kernel knows which bytes they were (splice).
#[cold]
pub fn unseen_sent(conn: &Conn, n: isize) {
    let n = usize::try_from(n).unwrap_or(0);
    let seq = sent_so_far(conn).saturating_sub(n as u64);
    data(conn, Way::Sent, TCP, seq, n, None);
}

/// Records bytes that were sent (`way`) or received by TCP after the lane ended, and counts them: nothing else does.
/// `n` is the call's return value.
#[cold]
pub fn after_end(conn: &Conn, way: Way, buffers: Option<&[iovec]>, n: isize) {
    let Ok(n) = usize::try_from(n) else { return };
    let shared = conn.shared();
    let (before, sum) = match way {
        Way::Sent => (sent_so_far(conn), &shared.tx_after),
        Way::Received => (received_so_far(conn), &shared.rx_after),
    };
    sum.fetch_add(n as u64, Relaxed);
    data(conn, way, TCP, before, n, buffers.map(Cursor::new));
}

// --- received -------------------------------------------------------------------

/// Records that `n` bytes have come out of the ring, to where `cursor` points.
#[cold]
pub fn from_ring(conn: &Conn, cursor: Cursor<'_>, seq: u64, n: usize) {
    data(conn, Way::Received, RING, seq, n, Some(cursor));
}

/// Records bytes that lie in the ring and are used there.
#[cold]
pub fn in_ring(conn: &Conn, ring: &SharedBytes, at: Stretch, seq: u64) {
    if let Some(bytes) = ring.part(at.at, at.len) {
        let piece = piece(bytes.as_ptr(), at.len);
        data(
            conn,
            Way::Received,
            RING,
            seq,
            at.len,
            Some(Cursor::new(&piece)),
        );
    }
}

/// Records that `n` bytes have come by TCP on an open lane, to `base`.
#[cold]
pub fn from_tcp(conn: &Conn, base: *mut u8, seq: u64, n: usize) {
    let piece = piece(base, n);
    data(conn, Way::Received, TCP, seq, n, Some(Cursor::new(&piece)));
}

/// Records bytes that have come by the program's own call and are counted already. `n` is the call's return value.
#[cold]
pub fn unseen_received(conn: &Conn, buffers: Option<&[iovec]>, n: isize) {
    let Ok(n) = usize::try_from(n) else { return };
    let seq = received_so_far(conn).saturating_sub(n as u64);
    data(conn, Way::Received, TCP, seq, n, buffers.map(Cursor::new));
}

/// Records that a receive call returned `n`, which is not a number of bytes.
#[cold]
pub fn received_end(conn: &Conn, buffers: &[iovec], n: isize) {
    let wanted = buffers.iter().any(|v| v.iov_len > 0);
    let kind = match n {
        0 if wanted => RecordKind::Fin,
        -1 if errno() == libc::ECONNRESET => RecordKind::Reset,
        _ => return,
    };
    event(conn, kind, Way::Received, received_so_far(conn));
}

// --- the connection ---------------------------------------------------------------

/// Records a new connection: both addresses are known.
#[cold]
pub fn opened(conn: &Conn) {
    event(conn, RecordKind::Open, Way::Sent, sent_so_far(conn));
}

/// Records that the sending half, or all, of the connection is being closed, perhaps with unread bytes in its ring.
#[cold]
pub fn closing(conn: &Conn, all: bool, ring_has_bytes: bool) {
    if all && conn.shared().procs.load(Acquire) > 1 {
        return; // another process still holds the socket
    }
    let unread = || {
        let fd = conn.fd.load(Relaxed);
        ring_has_bytes || sock::queue_len(fd, libc::FIONREAD).is_ok_and(|n| n > 0)
    };
    let kind = if all && unread() {
        RecordKind::Reset
    } else {
        RecordKind::Fin
    };
    event(conn, kind, Way::Sent, sent_so_far(conn));
}

// --- how far the streams are --------------------------------------------------------

/// The number of bytes that the program has sent.
fn sent_so_far(conn: &Conn) -> u64 {
    let shared = conn.shared();
    let before = if conn.upgraded() {
        shared.tx_sent.load(Relaxed)
    } else {
        shared.tx_count.load(Relaxed)
    };
    before.wrapping_add(shared.tx_after.load(Relaxed))
}

/// The number of bytes that the program has received.
fn received_so_far(conn: &Conn) -> u64 {
    let shared = conn.shared();
    let before = if conn.upgraded() {
        shared.rx_taken.load(Relaxed)
    } else {
        0
    };
    before
        .wrapping_add(shared.rx_count.load(Relaxed))
        .wrapping_add(shared.rx_after.load(Relaxed))
}

/// The number of sent bytes that the peer has read, as far as this side can know.
fn peer_has(conn: &Conn) -> u64 {
    let sent = sent_so_far(conn);
    let open = conn.tx_mode() == TxMode::Open;
    conn.tx_lane()
        .filter(|_| open)
        .map_or(sent, |lane| lane.words.consumed.0.load(Relaxed).min(sent))
}

// --- records --------------------------------------------------------------------

fn piece(base: *mut u8, len: usize) -> [iovec; 1] {
    [iovec {
        iov_base: base.cast(),
        iov_len: len,
    }]
}

/// The addresses of both ends; `None`: the socket is not connected (any more).
fn tuple(conn: &Conn) -> Option<Tuple> {
    if conn.seen.load(Acquire) & SEEN_TUPLE != 0 {
        // SAFETY: written once, before SEEN_TUPLE.
        return Some(unsafe { *conn.tuple.get() });
    }
    let fd = conn.fd.load(Relaxed);
    Some(Tuple {
        local: sock::local_addr(fd).ok()?,
        remote: sock::remote_addr(fd).ok()?,
    })
}

fn blank(conn: &Conn, session: &Session, way: Way) -> Option<Record> {
    let Tuple { local, remote } = tuple(conn)?;
    let only = session.page.port.load(Relaxed);
    if only != 0 && only != u32::from(local.port) && only != u32::from(remote.port) {
        return None;
    }
    let end = |a: Addr| (a.ip, a.port);
    Some(Record {
        kind: RecordKind::Data,
        way,
        lane: TCP,
        role: conn.role.load(Relaxed) as u8,
        time_ns: session.now,
        seq: 0,
        ack: match way {
            Way::Sent => received_so_far(conn),
            Way::Received => peer_has(conn),
        },
        conn: process::id_of(conn),
        bytes: 0,
        captured: 0,
        local: end(local),
        remote: end(remote),
    })
}

fn event(conn: &Conn, kind: RecordKind, way: Way, seq: u64) {
    let Some(session) = Session::enter() else {
        return;
    };
    if let Some(record) = blank(conn, &session, way) {
        let record = Record {
            kind,
            seq,
            ..record
        };
        write(&session, &record, None);
    }
}

fn data(conn: &Conn, way: Way, lane: u8, seq: u64, n: usize, cursor: Option<Cursor<'_>>) {
    if n == 0 {
        return;
    }
    let Some(session) = Session::enter() else {
        return;
    };
    let Some(blank) = blank(conn, &session, way) else {
        return;
    };
    let mut cursor = cursor;
    let most = session.page.snaplen.load(Relaxed) as usize;
    let mut done = 0;
    while done < n {
        let bytes = SEGMENT.min(n - done);
        let captured = match &cursor {
            Some(cursor) => most.min(bytes).min(cursor.left()),
            None => 0,
        };
        let small = |n: usize| u32::try_from(n).unwrap_or(0);
        let record = Record {
            lane,
            seq: seq.wrapping_add(done as u64),
            bytes: small(bytes),
            captured: small(captured),
            ..blank
        };
        write(&session, &record, cursor.as_mut());
        if let Some(cursor) = &mut cursor {
            cursor.skip(bytes - captured);
        }
        done += bytes;
    }
}

/// Writes one record. `cursor` moves on by the bytes that belong to it, even if there is no room for them.
fn write(session: &Session, record: &Record, cursor: Option<&mut Cursor<'_>>) {
    let captured = record.captured as usize;
    let length = length_of(captured);
    let (page, ring) = (session.page, &session.ring);
    let Some(at) = ring.reserve(&super::HEAD, &page.tail, length) else {
        page.dropped_records.fetch_add(1, Relaxed);
        page.dropped_bytes
            .fetch_add(u64::from(record.bytes), Relaxed);
        if let Some(cursor) = cursor {
            cursor.skip(captured);
        }
        return;
    };
    page.head
        .fetch_max(at + length as u64, core::sync::atomic::Ordering::Release);
    ring.put_record(at, record);
    if let Some(cursor) = cursor {
        copy(session, cursor, at + RECORD as u64, captured);
    }
    ring.publish(at, length);
}

fn copy(session: &Session, cursor: &mut Cursor<'_>, mut at: u64, mut left: usize) {
    while left > 0 {
        let (base, len) = cursor.piece();
        let n = len.min(left);
        if n == 0 {
            return;
        }
        // SAFETY: the program's buffers, which this very call reads or has filled; or a stretch of a mapped ring.
        unsafe { session.ring.put(at, base, n) };
        cursor.advance(n);
        at += n as u64;
        left -= n;
    }
}
