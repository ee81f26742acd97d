//! Descriptors that are passed on: to other programs by exec, to other processes by SCM_RIGHTS, to stdio by fdopen.
//! From then on, code without hooks may use them, so the connection goes back to TCP.

use crate::hooks::handoff::target::Target;
use crate::hooks::handoff::{self, Handoff};
use crate::message::count;
use crate::protocol::lane::{self, Patience};
use crate::state::conn::{Conn, SEEN_TO_CHILD};
use crate::state::process::ConnRef;
use crate::state::process::{self, conn_of};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use libc::msghdr;
use memlane_core::reason::Reason;

/// The ring still has unread bytes. Only this library can read them, so a new user of the descriptor would miss them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnreadInRing;

fn give_away(conn: &Conn, why: Reason) {
    crate::protocol::upgrade::bar(conn, why);
    conn.shared().procs.fetch_add(1, Ordering::AcqRel); // for good: this library does not see the new holder
}

/// Sends the connections whose descriptors are in a message with SCM_RIGHTS back to TCP.
pub fn hands_over(msg: *const msghdr) -> Result<(), UnreadInRing> {
    // SAFETY: the program's message, as it promised its call.
    let m = unsafe { &*msg };
    let (base, len) = (m.msg_control.cast::<u8>(), count(m.msg_controllen));
    let head = size_of::<libc::cmsghdr>();
    let (mut at, mut patience) = (0usize, Patience::fresh());
    while !base.is_null() && at + head <= len {
        // SAFETY: inside the program's control data.
        let hdr = unsafe { base.add(at).cast::<libc::cmsghdr>().read_unaligned() };
        let cmsg_len = count(hdr.cmsg_len);
        if cmsg_len < head || at + cmsg_len > len {
            return Ok(()); // the kernel will refuse the message
        }
        if hdr.cmsg_level == libc::SOL_SOCKET && hdr.cmsg_type == libc::SCM_RIGHTS {
            for i in 0..(cmsg_len - head) / 4 {
                // SAFETY: inside this control message.
                let fd = unsafe { base.add(at + head + 4 * i).cast::<c_int>().read_unaligned() };
                if let Some(conn) = conn_of(fd) {
                    give_away(&conn, Reason::PASSED_ON);
                    if lane::holds_bytes(&conn, &mut patience) {
                        return Err(UnreadInRing);
                    }
                }
            }
        }
        at += cmsg_len.next_multiple_of(8);
    }
    Ok(())
}

/// Prepares an exec or spawn: connections that survive it go back to TCP, and unread bytes in their rings are handed
/// over. `is_entered`: the program will have this library although no loader comes to it.
pub fn before_exec(target: Target, is_entered: bool) -> Result<Option<Handoff>, UnreadInRing> {
    let mut unread: [Option<&'static Conn>; handoff::MOST] = [None; handoff::MOST];
    let (mut count, mut too_many) = (0, false);
    let mut patience = Patience::fresh();
    process::each_conn(0, i32::MAX, |fd, conn| {
        let marked = conn.seen.load(Ordering::Relaxed) & SEEN_TO_CHILD != 0;
        if !marked && memlane_sys::fd::is_cloexec(fd) != Ok(false) {
            return;
        }
        give_away(conn, Reason::PASSED_ON);
        let known = unread[..count]
            .iter()
            .flatten()
            .any(|c| core::ptr::eq::<Conn>(*c, conn));
        if !known && lane::holds_bytes(conn, &mut patience) {
            too_many |= count == unread.len();
            if let Some(place) = unread.get_mut(count) {
                *place = Some(conn);
                count += 1;
            }
        }
    });
    let Some(first) = unread[0] else {
        return Ok(None);
    };
    if too_many || !(is_entered || target.loads_us()) {
        return Err(UnreadInRing);
    }
    let unread = unread.map(|conn| conn.unwrap_or(first));
    handoff::give(&unread[..count])
        .map(Some)
        .ok_or(UnreadInRing)
}

/// Ends the lanes of sockets that do not survive an exec: the kernel closes them, and it does not know of rings.
pub fn leaving() {
    if process::is_borrowed() {
        return;
    }
    process::each_conn(0, i32::MAX, |fd, conn| {
        if memlane_sys::fd::is_cloexec(fd) == Ok(true) && process::is_last(conn) {
            crate::protocol::lane::closing(conn);
            conn.shared().procs.fetch_sub(1, Ordering::AcqRel);
        }
    });
}

/// Takes back what [`leaving`] did, after an exec has failed.
pub fn stayed() {
    if process::is_borrowed() {
        return;
    }
    process::each_conn(0, i32::MAX, |fd, conn| {
        if memlane_sys::fd::is_cloexec(fd) == Ok(true) && process::is_last(conn) {
            conn.shared().procs.fetch_add(1, Ordering::AcqRel);
        }
    });
}

/// Ends the lane, because stdio reads and writes without calling a hook. Returns whether bytes are left in the ring.
pub fn to_stdio(conn: &ConnRef) -> bool {
    crate::protocol::upgrade::bar(conn, Reason::UNHOOKED_IO);
    lane::holds_bytes(conn, &mut Patience::fresh())
}

/// Has the lane ended with bytes left in the ring?
pub fn still_draining(conn: &ConnRef) -> bool {
    conn.rx_mode() == crate::state::conn::RxMode::Drain
}

/// Is this a connection that has a lane, or may still get one?
pub fn may_have_lane(fd: c_int) -> bool {
    conn_of(fd).is_some_and(|conn| conn.barred.load(Ordering::Relaxed) == 0)
}

/// Sends a connection back to TCP after `fd` got a copy whose number is not tracked: calls on the copy reach no hook.
/// The copy exists already, so unread bytes in the ring do not prevent it.
pub fn out_of_range(fd: c_int) {
    if let Some(conn) = conn_of(fd) {
        give_away(&conn, Reason::FD_RANGE);
    }
}

/// Marks a connection whose descriptor a child is to get under another number (`posix_spawn_file_actions_adddup2`, or
/// dup2 between vfork and exec).
pub fn to_child(fd: c_int) {
    if let Some(conn) = conn_of(fd) {
        conn.seen.fetch_or(SEEN_TO_CHILD, Ordering::Relaxed);
    }
}
