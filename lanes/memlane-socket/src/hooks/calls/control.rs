//! Control messages of `recvmsg`, as the kernel gives them with bytes that come by TCP.
//!
//! `TCP_INQ`: how many bytes can be read next. gRPC asks for it, to save a read that would find nothing.
//!
//! `SO_TIMESTAMP`, `SO_TIMESTAMPNS`: when the bytes came. The ring keeps no times, so a connection goes back to TCP with the first
//! `recvmsg`; what is in the ring then is said to have come when it is read. A program that sets the option and reads by
//! other calls, as iperf 2 does, sees no times, and keeps its lane.

use crate::message::count;
use crate::protocol::lane;
use crate::state::conn::{Conn, SEEN_INQ, SEEN_NO_TIMES};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use libc::{cmsghdr, msghdr};
use memlane_sys::{sock, time};

/// `TCP_CM_INQ` (linux/tcp.h): the type of the control message, the same number as the option's.
const TCP_CM_INQ: c_int = libc::TCP_INQ;
/// Bytes of the control message with that number.
const INQ_LEN: usize = size_of::<cmsghdr>() + size_of::<c_int>();
/// The options for times whose seconds have 64 bits everywhere (asm-generic/socket.h).
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
/// Options that ask for times, which are the types of their control messages, too, and the nanoseconds that the second word of
/// such a time counts. The kernel has one of them on at a time: the one that was set last.
const TIMES: [(c_int, u64); 4] = [
    (libc::SO_TIMESTAMP, 1000),
    (libc::SO_TIMESTAMPNS, 1),
    (SO_TIMESTAMP_NEW, 1000),
    (SO_TIMESTAMPNS_NEW, 1),
];

/// Notes what the program has set, so far as it concerns control messages.
pub fn note(conn: &Conn, level: c_int, name: c_int, on: bool) {
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_INQ) if on => {
            conn.seen.fetch_or(SEEN_INQ, Ordering::Relaxed);
        }
        (libc::IPPROTO_TCP, libc::TCP_INQ) => {
            conn.seen.fetch_and(!SEEN_INQ, Ordering::Relaxed);
        }
        (libc::SOL_SOCKET, name) if TIMES.iter().any(|(time, _)| *time == name) => {
            conn.seen.fetch_and(!SEEN_NO_TIMES, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// The option by which the program asks for times, and its unit. This asks the kernel, because a socket may have the option from
/// its listener. Once the kernel has said that there is none, it is not asked again.
fn times(conn: &Conn) -> Option<(c_int, u64)> {
    if conn.seen.load(Ordering::Relaxed) & SEEN_NO_TIMES != 0 {
        return None;
    }
    let fd = conn.fd.load(Ordering::Relaxed);
    let is_on = |option| sock::option::<i32>(fd, libc::SOL_SOCKET, option) == Ok(1);
    let found = TIMES.into_iter().find(|(option, _)| is_on(*option));
    if found.is_none() {
        conn.seen.fetch_or(SEEN_NO_TIMES, Ordering::Relaxed);
    }
    found
}

/// Does a `recvmsg` tell when its bytes came?
pub fn tells_times(conn: &Conn) -> bool {
    times(conn).is_some()
}

fn is_inq_asked(conn: &Conn) -> bool {
    conn.seen.load(Ordering::Relaxed) & SEEN_INQ != 0
}

/// Tells in a message what the program asks for, after `bytes` bytes have come by the ring.
pub fn tell(conn: &Conn, m: &mut msghdr, bytes: usize) {
    let mut control = Control::of(m);
    if bytes > 0
        && let Some((option, unit)) = times(conn)
    {
        let now = time::wall_ns();
        let (seconds, rest) = (now / 1_000_000_000, now % 1_000_000_000);
        let words = [seconds.to_ne_bytes(), (rest / unit).to_ne_bytes()];
        control.put(libc::SOL_SOCKET, option, words.as_flattened());
    }
    if is_inq_asked(conn) {
        control.put(libc::IPPROTO_TCP, TCP_CM_INQ, &hint(conn).to_ne_bytes());
    }
    control.end();
}

/// The control data of a program's message, while it is filled in.
struct Control<'a> {
    m: &'a mut msghdr,
    /// Bytes that have been filled in.
    len: usize,
    /// Bytes that there is room for.
    room: usize,
}

impl<'a> Control<'a> {
    fn of(m: &'a mut msghdr) -> Self {
        let room = match m.msg_control.is_null() {
            true => 0,
            false => count(m.msg_controllen),
        };
        Self { m, len: 0, room }
    }

    /// Adds a control message. What has no room is cut off, and the message is marked so (`put_cmsg`, net/core/scm.c).
    fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        const HEADER: usize = size_of::<cmsghdr>();
        let (left, whole) = (self.room - self.len, HEADER + data.len());
        if left < whole {
            self.m.msg_flags |= libc::MSG_CTRUNC;
        }
        if left < HEADER {
            return;
        }
        // SAFETY: all-zero is a control message's header; padding, where a libc has some, is zero with it.
        let mut header: cmsghdr = unsafe { core::mem::zeroed() };
        header.cmsg_len = whole.min(left);
        header.cmsg_level = level;
        header.cmsg_type = kind;
        let at = self.m.msg_control.cast::<u8>().wrapping_add(self.len);
        // SAFETY: the program's control data of `room` bytes, as it promised its call; both copies end inside.
        unsafe {
            at.cast::<cmsghdr>().write_unaligned(header);
            at.add(HEADER)
                .copy_from_nonoverlapping(data.as_ptr(), data.len().min(left - HEADER));
        }
        self.len += whole.next_multiple_of(align_of::<cmsghdr>()).min(left);
    }

    /// Tells how many bytes have been filled in.
    fn end(self) {
        self.m.msg_controllen = self.len;
    }
}

/// Corrects the number in a message that came by TCP: the kernel does not know of bytes in the ring.
pub fn correct(conn: &Conn, m: &msghdr) {
    if !is_inq_asked(conn) {
        return;
    }
    let (base, len) = (m.msg_control.cast::<u8>(), count(m.msg_controllen));
    let mut at = 0;
    while !base.is_null() && at + INQ_LEN <= len {
        // SAFETY: inside the control data that the kernel has just written.
        let header = unsafe { base.add(at).cast::<cmsghdr>().read_unaligned() };
        let is_it = header.cmsg_level == libc::IPPROTO_TCP && header.cmsg_type == TCP_CM_INQ;
        if is_it && header.cmsg_len >= INQ_LEN {
            let number = base.wrapping_add(at + size_of::<cmsghdr>()).cast::<c_int>();
            // SAFETY: four bytes inside the control data.
            unsafe { number.write_unaligned(hint(conn)) };
            return;
        }
        if header.cmsg_len < size_of::<cmsghdr>() {
            return;
        }
        at += header.cmsg_len.next_multiple_of(align_of::<cmsghdr>());
    }
}

/// What can be read now. The end of the stream counts as one byte, so that the program reads it (`tcp_inq_hint`,
/// net/ipv4/tcp.c).
fn hint(conn: &Conn) -> c_int {
    let fd = conn.fd.load(Ordering::Relaxed);
    let by_tcp = sock::queue_len(fd, libc::FIONREAD).unwrap_or(0);
    let bytes = lane::readable_now(conn, by_tcp) + u64::from(sock::has_peer_ended(fd));
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}
