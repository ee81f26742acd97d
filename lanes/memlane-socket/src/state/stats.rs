//! What a connection shows in the process's stats page.

use crate::state::conn::{Conn, Role};
use crate::state::process::{appear, entry, header};
use crate::state::stderr;
use crate::state::typed::Bits as _;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use memlane_core::reason::Reason;
use memlane_core::stats::{
    COPIED_RX, COPIED_TX, ConnEntry, ConnState, Counter, Header, SIZE_CLASSES,
};
use memlane_sys::proc;
use memlane_sys::sock::Tuple;

/// Fills the entry of a new connection. What is not filled is 0: no connection has had the entry, or [`close_entry`] has left
/// it so.
pub fn open_entry(conn: &Conn) {
    let Some(e) = entry(conn) else { return };
    e.seq.fetch_add(1, Relaxed);
    e.fd.store(conn.fd.load(Relaxed).cast_unsigned(), Relaxed);
    e.role.store(conn.role.load(Relaxed).bits(), Relaxed);
    e.since_ns.store(memlane_sys::time::wall_ns(), Relaxed);
    e.reason.store(Reason::TOO_YOUNG.0, Relaxed);
    e.state.store(ConnState::New as u32, Relaxed);
    e.seq.fetch_add(1, Relaxed);
    if let Some(h) = header() {
        h.conn_high.fetch_max(conn.index.load(Relaxed) + 1, Relaxed);
    }
}

/// Fills the entry of a connection that is older than the page, unless the page has taken it over.
pub fn open_missing_entry(conn: &Conn) {
    if entry(conn).is_some_and(|e| e.state.load(Relaxed) == ConnState::Free as u32) {
        open_entry(conn);
    }
}

/// Notes that the connection is connected.
pub fn connected(conn: &Conn) {
    let Some(h) = header() else { return };
    count_conn(h, conn.role.load(Relaxed));
    if let Some(e) = entry(conn) {
        e.state.store(ConnState::Tcp as u32, Relaxed);
    }
}

/// Counts a connection that is not tracked because its descriptor's number is beyond the table.
pub fn out_of_range(role: Role) {
    appear();
    let Some(h) = header() else { return };
    count_conn(h, role);
    count_reason_as(h, role, Reason::FD_RANGE);
    h.counters[Counter::Fallbacks as usize].fetch_add(1, Relaxed);
}

fn count_conn(h: &Header, role: Role) {
    h.counters[Counter::Conns as usize].fetch_add(1, Relaxed);
    let side = if role == Role::Connected {
        Counter::ConnsClient
    } else {
        Counter::ConnsServer
    };
    h.counters[side as usize].fetch_add(1, Relaxed);
}

/// Notes that the connection has got its memory lane.
pub fn upgraded(conn: &Conn) {
    let Some(h) = header() else { return };
    let side = match conn.role.load(Relaxed) {
        Role::Connected => Counter::UpgradedClient,
        Role::Accepted => Counter::UpgradedServer,
    };
    for counter in [Counter::Upgraded, side] {
        h.counters[counter as usize].fetch_add(1, Relaxed);
    }
}

/// Bytes that the connection's lane has carried; 0 where there is no stats page.
pub fn ring_bytes(conn: &Conn) -> u64 {
    entry(conn).map_or(0, |e| {
        e.tx_ring_bytes.load(Relaxed) + e.rx_ring_bytes.load(Relaxed)
    })
}

/// Frees the entry of a connection that ends, and adds its sums to the process's. `is_as_made`: its handshake has not begun.
pub fn close_entry(conn: &Conn, is_as_made: bool) {
    let (Some(e), Some(h)) = (entry(conn), header()) else {
        return;
    };
    if e.state.load(Relaxed) == ConnState::Tcp as u32
        && e.reason.load(Relaxed) == Reason::TOO_YOUNG.0
    {
        count_reason(conn, Reason::TOO_YOUNG);
    }
    e.state.store(ConnState::Free as u32, Relaxed);
    move_sum(h, Counter::TxTcpBytes, &e.tx_tcp_bytes);
    move_sum(h, Counter::RxTcpBytes, &e.rx_tcp_bytes);
    if !is_as_made {
        clear(e, h);
    }
}

/// Adds one of a connection's sums, which no thread adds to any more, to the process's.
fn move_sum(h: &Header, c: Counter, from: &AtomicU64) {
    let sum = from.load(Relaxed);
    if sum != 0 {
        from.store(0, Relaxed);
        h.counters[c as usize].fetch_add(sum, Relaxed);
    }
}

/// Clears what only a handshake or a lane has written into a free entry.
#[inline(never)]
fn clear(e: &ConnEntry, h: &Header) {
    move_sum(h, Counter::TxRingBytes, &e.tx_ring_bytes);
    move_sum(h, Counter::RxRingBytes, &e.rx_ring_bytes);
    move_sum(h, Counter::TxCalls, &e.tx_calls);
    move_sum(h, Counter::RxCalls, &e.rx_calls);
    e.seq.fetch_add(1, Relaxed);
    for word in [
        &e.local_ip[0],
        &e.local_ip[1],
        &e.remote_ip[0],
        &e.remote_ip[1],
        &e.inode,
        &e.lane,
    ] {
        word.store(0, Relaxed);
    }
    for word in [
        &e.ports,
        &e.peer_pid,
        &e.peer_reason,
        &e.peer_uid,
        &e.parked,
        &e.tx_ring_size,
        &e.rx_ring_size,
        &e.tx_ring_window,
        &e.copied,
    ] {
        word.store(0, Relaxed);
    }
    e.seq.fetch_add(1, Relaxed);
}

/// Shows the connection's addresses.
pub fn show_tuple(conn: &Conn, t: &Tuple) {
    let Some(e) = entry(conn) else { return };
    e.seq.fetch_add(1, Relaxed);
    for (words, addr) in [(&e.local_ip, &t.local), (&e.remote_ip, &t.remote)] {
        for (word, bytes) in words.iter().zip(addr.ip.chunks_exact(8)) {
            let mut b = [0u8; 8];
            b.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(b), Relaxed);
        }
    }
    let inode = memlane_sys::fd::stat(conn.fd.load(Relaxed)).map_or(0, |s| s.ino);
    e.inode.store(inode, Relaxed);
    e.ports.store(
        u32::from(t.local.port) | u32::from(t.remote.port) << 16,
        Relaxed,
    );
    e.seq.fetch_add(1, Relaxed);
}

/// Shows the connection's peer, and the name of the lane between the two.
pub fn show_peer(conn: &Conn, pid: i32, uid: u32, lane: u64) {
    if let Some(e) = entry(conn) {
        e.lane.store(lane, Relaxed);
        e.peer_pid.store(pid.cast_unsigned(), Relaxed);
        e.peer_uid.store(uid, Relaxed);
    }
}

/// Shows the sizes of the connection's rings.
pub fn show_rings(conn: &Conn) {
    if let Some(e) = entry(conn) {
        e.tx_ring_size.store(conn.tx_size.load(Relaxed), Relaxed);
        e.rx_ring_size.store(conn.rx_size.load(Relaxed), Relaxed);
        e.parked.store(1, Relaxed);
    }
}

/// Shows the size of the window of the peer's ring that the sender uses from now on.
#[cold]
pub fn show_window(conn: &Conn, window: usize) {
    if let Some(e) = entry(conn) {
        e.tx_ring_window
            .store(u32::try_from(window).unwrap_or(0), Relaxed);
    }
}

/// Shows which directions, sent and received, of an open lane use mode `copy`.
pub fn show_copied(conn: &Conn, [own, by_peer]: [bool; 2]) {
    if let Some(e) = entry(conn) {
        let bits = (u32::from(own) * COPIED_TX) | (u32::from(by_peer) * COPIED_RX);
        e.copied.store(bits, Relaxed);
    }
}

/// Counts one more connection, or attempt, that is on TCP for this reason.
pub fn count_reason(conn: &Conn, why: Reason) {
    if let Some(h) = header() {
        count_reason_as(h, conn.role.load(Relaxed), why);
    }
}

fn count_reason_as(h: &Header, role: Role, why: Reason) {
    for slot in &h.reasons {
        let code = slot.code.load(Relaxed);
        let mine = code == why.0
            || code == 0
                && slot
                    .code
                    .compare_exchange(0, why.0, Relaxed, Relaxed)
                    .map_or_else(|c| c == why.0, |_| true);
        if mine {
            let side = if role == Role::Connected {
                &slot.client
            } else {
                &slot.server
            };
            side.fetch_add(1, Relaxed);
            return;
        }
    }
}

/// Counts bytes received through the ring. The caller holds `rx_lock`.
#[inline]
pub fn add_rx_ring(conn: &Conn, n: u64) {
    if let Some(e) = entry(conn) {
        e.rx_ring_bytes
            .store(e.rx_ring_bytes.load(Relaxed) + n, Relaxed);
    }
}

/// Counts bytes sent through the ring. The caller holds `tx_lock`.
#[inline]
pub fn add_tx_ring(conn: &Conn, n: u64) {
    if let Some(e) = entry(conn) {
        e.tx_ring_bytes
            .store(e.tx_ring_bytes.load(Relaxed) + n, Relaxed);
    }
}

/// Counts bytes received through TCP.
pub fn add_rx_tcp(conn: &Conn, n: u64) {
    if let Some(e) = entry(conn) {
        e.rx_tcp_bytes.fetch_add(n, Relaxed);
    }
}

/// Counts bytes sent through TCP.
pub fn add_tx_tcp(conn: &Conn, n: u64) {
    if let Some(e) = entry(conn) {
        e.tx_tcp_bytes.fetch_add(n, Relaxed);
    }
}

/// Counts a receive call that has ended.
#[inline]
pub fn show_rx(conn: &Conn, n: isize) {
    if n > 0
        && conn.upgraded()
        && let (Some(e), Some(h)) = (entry(conn), header())
    {
        e.rx_calls.store(conn.rx_calls.load(Relaxed), Relaxed);
        bump(&h.rx_sizes, n.cast_unsigned());
    }
}

/// Counts a send call that has ended.
#[inline]
pub fn show_tx(conn: &Conn, n: isize) {
    if n > 0
        && conn.upgraded()
        && let (Some(e), Some(h)) = (entry(conn), header())
    {
        e.tx_calls.store(conn.tx_calls.load(Relaxed), Relaxed);
        bump(&h.tx_sizes, n.cast_unsigned());
        if n.cast_unsigned() > conn.tx_size.load(Relaxed) as usize {
            h.counters[Counter::TxBeyondRing as usize].fetch_add(1, Relaxed);
        }
    }
}

/// Counts a message in its size class, as `smcd stats` does: ≤8K, ≤16K … ≤512K, more.
#[inline]
fn bump(classes: &[AtomicU64; SIZE_CLASSES], n: usize) {
    let class = (usize::BITS - (n.saturating_sub(1) >> 13).leading_zeros()) as usize;
    classes[class.min(SIZE_CLASSES - 1)].fetch_add(1, Relaxed);
}

/// Prints the summary of `--stats-on-exit`.
pub fn print_summary() {
    let Some(h) = header() else { return };
    let mut line = Line {
        bytes: [0; 512],
        len: 0,
    };
    let c = |c: Counter| h.counters[c as usize].load(Relaxed);
    let _ = writeln!(
        line,
        "memlane: pid {}: {} connections, {} upgraded, {} fallbacks, {} downgrades",
        proc::pid(),
        c(Counter::Conns),
        c(Counter::Upgraded),
        c(Counter::Fallbacks),
        c(Counter::Downgrades),
    );
    let _ = write_bytes(&mut line, h);
    stderr::print(&line.bytes[..line.len]);
}

fn write_bytes(line: &mut Line, h: &'static Header) -> core::fmt::Result {
    let mut sum = [
        h.counters[Counter::TxRingBytes as usize].load(Relaxed),
        h.counters[Counter::TxTcpBytes as usize].load(Relaxed),
        h.counters[Counter::RxRingBytes as usize].load(Relaxed),
        h.counters[Counter::RxTcpBytes as usize].load(Relaxed),
    ];
    crate::state::process::for_live(|conn| {
        if let Some(e) = entry(conn) {
            for (s, w) in sum.iter_mut().zip([
                &e.tx_ring_bytes,
                &e.tx_tcp_bytes,
                &e.rx_ring_bytes,
                &e.rx_tcp_bytes,
            ]) {
                *s += w.load(Relaxed);
            }
        }
    });
    writeln!(
        line,
        "memlane: sent {} ring + {} TCP bytes, received {} ring + {} TCP bytes",
        sum[0], sum[1], sum[2], sum[3]
    )?;
    for slot in &h.reasons {
        let code = slot.code.load(Relaxed);
        if code != 0 {
            let n = slot.client.load(Relaxed) + slot.server.load(Relaxed);
            writeln!(line, "memlane: {n} x {}", Reason(code).name())?;
        }
    }
    Ok(())
}

struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let room = self.bytes.len() - self.len;
        let n = s.len().min(room);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}
