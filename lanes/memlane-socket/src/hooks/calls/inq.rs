//! `TCP_INQ`: each `recvmsg` tells in a control message how many bytes can be read next. gRPC asks for it, to save a read
//! that would find nothing.

use crate::message::count;
use crate::protocol::lane;
use crate::state::conn::{Conn, SEEN_INQ};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use libc::{cmsghdr, msghdr};
use memlane_sys::sock;

/// `TCP_CM_INQ` (linux/tcp.h): the type of the control message, the same number as the option's.
const TCP_CM_INQ: c_int = libc::TCP_INQ;
/// Bytes of the control message's header and number, and with what aligns the next one.
const LEN: usize = size_of::<cmsghdr>() + size_of::<c_int>();
const SPACE: usize = LEN.next_multiple_of(align_of::<cmsghdr>());

/// Notes what the program has set, or what the socket has had from its listener.
pub fn note(conn: &Conn, on: bool) {
    match on {
        true => conn.seen.fetch_or(SEEN_INQ, Ordering::Relaxed),
        false => conn.seen.fetch_and(!SEEN_INQ, Ordering::Relaxed),
    };
}

/// Has the program asked for it?
pub fn is_asked(conn: &Conn) -> bool {
    conn.seen.load(Ordering::Relaxed) & SEEN_INQ != 0
}

/// Tells the number in a message that came by the ring, as the kernel would: what has no room is cut off, and marked so.
pub fn tell(conn: &Conn, m: &mut msghdr) {
    let room = if m.msg_control.is_null() {
        0
    } else {
        count(m.msg_controllen)
    };
    if room < LEN {
        m.msg_flags |= libc::MSG_CTRUNC;
    }
    if room < size_of::<cmsghdr>() {
        m.msg_controllen = 0;
        return;
    }
    // SAFETY: all-zero is a control message's header; padding, where a libc has some, is zero with it.
    let mut header: cmsghdr = unsafe { core::mem::zeroed() };
    header.cmsg_len = LEN.min(room);
    header.cmsg_level = libc::IPPROTO_TCP;
    header.cmsg_type = TCP_CM_INQ;
    let number = hint(conn).to_ne_bytes();
    let at = m.msg_control.cast::<u8>();
    // SAFETY: the program's control data of `room` bytes, as it promised its call; both copies end inside.
    unsafe {
        at.cast::<cmsghdr>().write_unaligned(header);
        let fits = number.len().min(room - size_of::<cmsghdr>());
        at.add(size_of::<cmsghdr>())
            .copy_from_nonoverlapping(number.as_ptr(), fits);
    }
    m.msg_controllen = SPACE.min(room);
}

/// Corrects the number in a message that came by TCP: the kernel does not know of bytes in the ring.
pub fn correct(conn: &Conn, m: &msghdr) {
    let (base, len) = (m.msg_control.cast::<u8>(), count(m.msg_controllen));
    let mut at = 0;
    while !base.is_null() && at + LEN <= len {
        // SAFETY: inside the control data that the kernel has just written.
        let header = unsafe { base.add(at).cast::<cmsghdr>().read_unaligned() };
        let is_it = header.cmsg_level == libc::IPPROTO_TCP && header.cmsg_type == TCP_CM_INQ;
        if is_it && header.cmsg_len >= LEN {
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
