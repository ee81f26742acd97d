//! Calls that move bytes: read, recv…, write, send…, sendfile, splice.

// Indices and descriptor numbers are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

use super::{control, plain, touch};
use crate::iov::{IOV_MAX, is_nowhere};
use crate::message::count;
use crate::protocol::lane;
use crate::protocol::upgrade;
use crate::real;
use crate::real::set_errno;
use crate::state::conn::{RxMode, TxMode};
use crate::state::process::{self, conn_of};
use crate::state::process::{ConnRef, Glimpse};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t, timespec};
use memlane_core::reason::Reason;
use memlane_core::stats::Counter;
use memlane_core::trace::Way;

/// Receives by the lanes, and takes the step of the handshake that is due afterwards.
#[inline]
fn receive(
    conn: &ConnRef,
    buffers: &[iovec],
    flags: c_int,
    original: impl Fn() -> ssize_t,
) -> ssize_t {
    let n = lane::recv::receive(conn, buffers, flags, original);
    upgrade::after_call(conn, n);
    n
}

/// Sends by the lanes, and takes the step of the handshake that is due afterwards.
#[inline]
fn send_lanes(
    conn: &ConnRef,
    buffers: &[iovec],
    flags: c_int,
    original: impl Fn() -> ssize_t,
) -> ssize_t {
    let n = lane::send::send(conn, buffers, flags, original);
    upgrade::after_call(conn, n);
    n
}

/// Flags that the lane supports or that do not matter to it. With any other flag the connection goes back to TCP.
const RECV_FLAGS: c_int = libc::MSG_PEEK
    | libc::MSG_DONTWAIT
    | libc::MSG_WAITALL
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_MORE
    | libc::MSG_EOR
    | libc::MSG_DONTROUTE
    | libc::MSG_CONFIRM;

fn one(buf: *const c_void, len: usize) -> [iovec; 1] {
    [iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    }]
}

/// The connection, if the call may concern a memory lane.
#[inline(always)]
fn lane_conn(fd: c_int) -> Option<ConnRef> {
    lane_of(process::glimpse(fd)?, fd)
}

#[inline(always)]
fn lane_of(glimpse: Glimpse, fd: c_int) -> Option<ConnRef> {
    let conn = glimpse.sure(fd)?.into_conn();
    touch(&conn);
    Some(conn)
}

/// Sends the connection back to TCP if `flags` has a flag that the lane does not support. Returns whether it has.
fn odd_recv(conn: &ConnRef, flags: c_int) -> bool {
    if flags & !RECV_FLAGS == 0 {
        return false;
    }
    let why = if flags & libc::MSG_OOB != 0 {
        Reason::URGENT
    } else {
        Reason::OPTION
    };
    if flags & libc::MSG_OOB != 0 {
        process::count(Counter::Urgent, 1);
    }
    if flags & libc::MSG_ERRQUEUE == 0 {
        upgrade::bar(conn, why);
        return conn.rx_mode() != RxMode::Drain;
    }
    true
}

fn odd_send(conn: &ConnRef, flags: c_int) -> bool {
    if flags & !SEND_FLAGS == 0 {
        return false;
    }
    let why = if flags & libc::MSG_OOB != 0 {
        Reason::URGENT
    } else {
        Reason::OPTION
    };
    if flags & libc::MSG_OOB != 0 {
        process::count(Counter::Urgent, 1);
    }
    upgrade::bar(conn, why);
    true
}

/// `read(2)`.
#[inline]
pub fn read(fd: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    match process::glimpse(fd) {
        None => real!(read(fd, buf, len)),
        Some(glimpse) if plain::is_plain(glimpse.conn()) => read_plain(fd, buf, len, glimpse),
        Some(glimpse) => read_by_lanes(fd, buf, len, glimpse),
    }
}

#[inline(never)]
fn read_plain(fd: c_int, buf: *mut c_void, len: usize, glimpse: Glimpse) -> ssize_t {
    let buffers = || one(buf, len);
    let n = plain::receive(&glimpse, 0, buffers, || real!(read(fd, buf, len)));
    n.unwrap_or_else(|| read_by_lanes(fd, buf, len, glimpse))
}

#[inline(never)]
fn read_by_lanes(fd: c_int, buf: *mut c_void, len: usize, glimpse: Glimpse) -> ssize_t {
    let Some(conn) = lane_of(glimpse, fd) else {
        return real!(read(fd, buf, len));
    };
    receive(&conn, &one(buf, len), 0, || real!(read(fd, buf, len)))
}

/// `recv(2)`.
#[inline]
pub fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    match process::glimpse(fd) {
        None => real!(recv(fd, buf, len, flags)),
        Some(glimpse) if plain::is_plain(glimpse.conn()) && flags & !RECV_FLAGS == 0 => {
            recv_plain(fd, buf, len, flags, glimpse)
        }
        Some(glimpse) => recv_by_lanes(fd, buf, len, flags, glimpse),
    }
}

#[inline(never)]
fn recv_plain(fd: c_int, buf: *mut c_void, len: usize, flags: c_int, glimpse: Glimpse) -> ssize_t {
    let (buffers, original) = (|| one(buf, len), || real!(recv(fd, buf, len, flags)));
    let n = plain::receive(&glimpse, flags, buffers, original);
    n.unwrap_or_else(|| recv_by_lanes(fd, buf, len, flags, glimpse))
}

#[inline(never)]
fn recv_by_lanes(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    glimpse: Glimpse,
) -> ssize_t {
    match lane_of(glimpse, fd) {
        Some(conn) if !odd_recv(&conn, flags) => receive(&conn, &one(buf, len), flags, || {
            real!(recv(fd, buf, len, flags))
        }),
        _ => real!(recv(fd, buf, len, flags)),
    }
}

/// `recvfrom(2)`.
#[inline]
pub fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    match lane_conn(fd) {
        Some(conn) if !odd_recv(&conn, flags) => {
            let n = receive(&conn, &one(buf, len), flags, || {
                real!(recvfrom(fd, buf, len, flags, from, from_len))
            });
            if !from_len.is_null() && n >= 0 && conn.upgraded() {
                // SAFETY: the program's word, as it promised its call. TCP reports no sender address.
                unsafe { *from_len = 0 };
            }
            n
        }
        _ => real!(recvfrom(fd, buf, len, flags, from, from_len)),
    }
}

/// `readv(2)`.
pub fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    match process::glimpse(fd) {
        Some(glimpse) if ok_list(list, count) => {
            if plain::is_plain(glimpse.conn()) {
                readv_plain(fd, list, count, glimpse)
            } else {
                readv_by_lanes(fd, list, count, glimpse)
            }
        }
        _ => real!(readv(fd, list, count)),
    }
}

#[inline(never)]
fn readv_plain(fd: c_int, list: *const iovec, count: c_int, glimpse: Glimpse) -> ssize_t {
    let buffers = || buffers_at(list, count);
    let n = plain::receive(&glimpse, 0, buffers, || real!(readv(fd, list, count)));
    n.unwrap_or_else(|| readv_by_lanes(fd, list, count, glimpse))
}

#[inline(never)]
fn readv_by_lanes(fd: c_int, list: *const iovec, count: c_int, glimpse: Glimpse) -> ssize_t {
    let original = || real!(readv(fd, list, count));
    let Some(conn) = lane_of(glimpse, fd) else {
        return original();
    };
    receive(&conn, buffers_at(list, count), 0, original)
}

/// A list of the program's that is [well-formed](ok_list).
#[inline(always)]
fn buffers_at<'a>(list: *const iovec, count: c_int) -> &'a [iovec] {
    // SAFETY: the program's array, as it promised its call, for as long as that lasts.
    unsafe { core::slice::from_raw_parts(list, count.cast_unsigned() as usize) }
}

fn ok_list(list: *const iovec, count: c_int) -> bool {
    let n = count.max(0).cast_unsigned() as usize;
    n > 0 && n <= IOV_MAX && !is_nowhere(list.cast(), n * size_of::<iovec>())
}

/// Can this be a message header and its buffer list? If it cannot, the kernel reports the error.
fn is_message(msg: *const msghdr) -> bool {
    if is_nowhere(msg.cast(), size_of::<msghdr>()) {
        return false;
    }
    // SAFETY: the program's message, as it promised its call.
    let m = unsafe { &*msg };
    let n = count(m.msg_iovlen);
    n <= IOV_MAX && !is_nowhere(m.msg_iov.cast(), n * size_of::<iovec>())
}

/// `recvmsg(2)`.
pub fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    match lane_conn(fd) {
        Some(conn) if is_message(msg) && !odd_recv(&conn, flags) => recvmsg_lane(&conn, msg, flags),
        _ => real!(recvmsg(fd, msg, flags)),
    }
}

fn recvmsg_lane(conn: &ConnRef, msg: *mut msghdr, flags: c_int) -> ssize_t {
    let fd = conn.fd.load(core::sync::atomic::Ordering::Relaxed);
    // SAFETY: the program's message, as it promised its call.
    let m = unsafe { &mut *msg };
    if m.msg_iov.is_null() || count(m.msg_iovlen) > IOV_MAX {
        return real!(recvmsg(fd, msg, flags));
    }
    // SAFETY: the program's message, as it promised its call.
    let buffers = unsafe { core::slice::from_raw_parts(m.msg_iov, count(m.msg_iovlen)) };
    if conn.barred.load(core::sync::atomic::Ordering::Relaxed) == 0 && control::tells_times(conn) {
        upgrade::bar(conn, Reason::OPTION);
    }
    let by_kernel = core::cell::Cell::new(false);
    let n = receive(conn, buffers, flags, || {
        by_kernel.set(true);
        real!(recvmsg(fd, msg, flags))
    });
    let Ok(bytes) = usize::try_from(n) else {
        return n;
    };
    if by_kernel.get() {
        control::correct(conn, m);
    } else {
        // TCP fills in no address.
        m.msg_namelen = 0;
        m.msg_flags = 0;
        control::tell(conn, m, bytes);
    }
    n
}

/// `recvmmsg(2)`.
pub fn recvmmsg(
    fd: c_int,
    list: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let Some(conn) = lane_conn(fd) else {
        return real!(recvmmsg(fd, list, count, flags, timeout));
    };
    if list.is_null() || !timeout.is_null() {
        upgrade::bar(&conn, Reason::OPTION);
        return real!(recvmmsg(fd, list, count, flags, timeout));
    }
    let mut done = 0;
    for i in 0..count as usize {
        // SAFETY: the program's array of `count` entries.
        let entry = unsafe { &mut *list.add(i) };
        let mut f = flags & !libc::MSG_WAITFORONE;
        if done > 0 && flags & libc::MSG_WAITFORONE != 0 {
            f |= libc::MSG_DONTWAIT;
        }
        let n = recvmsg(fd, &raw mut entry.msg_hdr, f);
        if n < 0 {
            return if done > 0 { done } else { -1 };
        }
        entry.msg_len = u32::try_from(n).unwrap_or(0);
        done += 1;
        if n == 0 {
            break;
        }
    }
    done
}

/// `write(2)`.
#[inline]
pub fn write(fd: c_int, buf: *const c_void, len: usize) -> ssize_t {
    match process::glimpse(fd) {
        None => real!(write(fd, buf, len)),
        Some(glimpse) if plain::is_plain(glimpse.conn()) => write_plain(fd, buf, len, glimpse),
        Some(glimpse) => write_by_lanes(fd, buf, len, glimpse),
    }
}

#[inline(never)]
fn write_plain(fd: c_int, buf: *const c_void, len: usize, glimpse: Glimpse) -> ssize_t {
    let n = plain::send(&glimpse, || one(buf, len), || real!(write(fd, buf, len)));
    n.unwrap_or_else(|| write_by_lanes(fd, buf, len, glimpse))
}

#[inline(never)]
fn write_by_lanes(fd: c_int, buf: *const c_void, len: usize, glimpse: Glimpse) -> ssize_t {
    let Some(conn) = lane_of(glimpse, fd) else {
        return real!(write(fd, buf, len));
    };
    send_lanes(&conn, &one(buf, len), 0, || real!(write(fd, buf, len)))
}

/// `send(2)`.
#[inline]
pub fn send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t {
    match process::glimpse(fd) {
        None => real!(send(fd, buf, len, flags)),
        Some(glimpse) if plain::is_plain(glimpse.conn()) && flags & !SEND_FLAGS == 0 => {
            send_plain(fd, buf, len, flags, glimpse)
        }
        Some(glimpse) => send_by_lanes(fd, buf, len, flags, glimpse),
    }
}

#[inline(never)]
fn send_plain(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    glimpse: Glimpse,
) -> ssize_t {
    let (buffers, original) = (|| one(buf, len), || real!(send(fd, buf, len, flags)));
    let n = plain::send(&glimpse, buffers, original);
    n.unwrap_or_else(|| send_by_lanes(fd, buf, len, flags, glimpse))
}

#[inline(never)]
fn send_by_lanes(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    glimpse: Glimpse,
) -> ssize_t {
    match lane_of(glimpse, fd) {
        Some(conn) if !odd_send(&conn, flags) => send_lanes(&conn, &one(buf, len), flags, || {
            real!(send(fd, buf, len, flags))
        }),
        _ => real!(send(fd, buf, len, flags)),
    }
}

/// `sendto(2)`.
#[inline]
pub fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    match lane_conn(fd) {
        Some(conn) if !odd_send(&conn, flags) => send_lanes(&conn, &one(buf, len), flags, || {
            real!(sendto(fd, buf, len, flags, to, to_len))
        }),
        _ => real!(sendto(fd, buf, len, flags, to, to_len)),
    }
}

/// `writev(2)`.
pub fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    match process::glimpse(fd) {
        Some(glimpse) if ok_list(list, count) => {
            if plain::is_plain(glimpse.conn()) {
                writev_plain(fd, list, count, glimpse)
            } else {
                writev_by_lanes(fd, list, count, glimpse)
            }
        }
        _ => real!(writev(fd, list, count)),
    }
}

#[inline(never)]
fn writev_plain(fd: c_int, list: *const iovec, count: c_int, glimpse: Glimpse) -> ssize_t {
    let buffers = || buffers_at(list, count);
    let n = plain::send(&glimpse, buffers, || real!(writev(fd, list, count)));
    n.unwrap_or_else(|| writev_by_lanes(fd, list, count, glimpse))
}

#[inline(never)]
fn writev_by_lanes(fd: c_int, list: *const iovec, count: c_int, glimpse: Glimpse) -> ssize_t {
    let original = || real!(writev(fd, list, count));
    let Some(conn) = lane_of(glimpse, fd) else {
        return original();
    };
    send_lanes(&conn, buffers_at(list, count), 0, original)
}

/// `sendmsg(2)`, also for descriptors that are passed on by AF_UNIX sockets.
pub fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    match lane_conn(fd) {
        Some(conn) if is_message(msg) && !odd_send(&conn, flags) => {
            // SAFETY: the program's message, as it promised its call.
            let m = unsafe { &*msg };
            let n = count(m.msg_iovlen);
            if m.msg_iov.is_null() || n > IOV_MAX || count(m.msg_controllen) != 0 {
                upgrade::bar(&conn, Reason::OPTION);
                return real!(sendmsg(fd, msg, flags));
            }
            // SAFETY: the program's message, as it promised its call.
            let buffers = unsafe { core::slice::from_raw_parts(m.msg_iov, n) };
            send_lanes(&conn, buffers, flags, || real!(sendmsg(fd, msg, flags)))
        }
        Some(_) => real!(sendmsg(fd, msg, flags)),
        None => {
            if is_message(msg) && process::fd_high() > 0 && super::pass::hands_over(msg).is_err() {
                set_errno(libc::EBUSY);
                return -1;
            }
            real!(sendmsg(fd, msg, flags))
        }
    }
}

/// `sendmmsg(2)`.
pub fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    if lane_conn(fd).is_none() || list.is_null() {
        return real!(sendmmsg(fd, list, count, flags));
    }
    let mut done = 0;
    for i in 0..count as usize {
        // SAFETY: the program's array of `count` entries.
        let entry = unsafe { &mut *list.add(i) };
        let n = sendmsg(fd, &raw const entry.msg_hdr, flags);
        if n < 0 {
            return if done > 0 { done } else { -1 };
        }
        entry.msg_len = u32::try_from(n).unwrap_or(0);
        done += 1;
    }
    done
}

/// Bytes for each step of `sendfile` and `splice`, where they go through a buffer.
const STEP: usize = 16 * 1024;

/// `sendfile(2)` from a file to a connection.
pub fn sendfile(out: c_int, from: c_int, offset: *mut i64, count: usize) -> ssize_t {
    // While a tracer is there, the bytes always go through our buffer, because the tracer wants to see them.
    let ours =
        |c: &ConnRef| c.upgraded() && c.tx_mode() == TxMode::Open || crate::state::trace::on();
    let Some(conn) = lane_conn(out).filter(ours) else {
        return counted_send(out, || real!(sendfile(out, from, offset, count)));
    };
    process::count(Counter::Sendfile, 1);
    let mut at = if offset.is_null() {
        None
    } else {
        // SAFETY: the program's word, as it promised its call.
        Some(unsafe { *offset })
    };
    let mut done = 0usize;
    let mut buf = core::mem::MaybeUninit::<[u8; STEP]>::uninit();
    while done < count {
        let want = STEP.min(count - done);
        let place = match at {
            Some(at) => at,
            None => match tell(from) {
                Ok(here) => here,
                // The file cannot seek: what is read cannot be put back.
                Err(_) => {
                    upgrade::bar(&conn, Reason::OPTION);
                    return counted_send(out, || real!(sendfile(out, from, offset, count)));
                }
            },
        };
        // SAFETY: `buf` is writable for `want` bytes.
        let got = match unsafe {
            memlane_sys::syscall!(libc::SYS_pread64, from, buf.as_mut_ptr(), want, place)
        } {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) => {
                return if done > 0 {
                    done.cast_signed()
                } else {
                    real::fail(e)
                };
            }
        };
        crate::iov::copied(got);
        let n = send(out, buf.as_ptr().cast(), got, 0);
        if n <= 0 {
            return if done > 0 { done.cast_signed() } else { n };
        }
        done += n.cast_unsigned();
        move_on(from, offset, &mut at, n as i64);
        if n.cast_unsigned() < got {
            break;
        }
    }
    done.cast_signed()
}

fn tell(fd: c_int) -> memlane_sys::Result<i64> {
    // SAFETY: no pointers are passed.
    unsafe { memlane_sys::syscall!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) }.map(|n| n as i64)
}

/// Advances the offset that `sendfile` reads at.
fn move_on(from: c_int, offset: *mut i64, at: &mut Option<i64>, n: i64) {
    match at {
        Some(at) => {
            *at += n;
            // SAFETY: the program's word: `at` is set only if it gave one.
            unsafe { *offset = *at };
        }
        None => {
            // SAFETY: no pointers are passed.
            let _ = unsafe { memlane_sys::syscall!(libc::SYS_lseek, from, n, libc::SEEK_CUR) };
        }
    }
}

/// Makes a call that sends on `fd` by TCP and whose bytes must be counted. If another thread opens a lane meanwhile,
/// the lane ends.
fn counted_send(fd: c_int, call: impl Fn() -> ssize_t) -> ssize_t {
    let Some(conn) = conn_of(fd) else {
        return call();
    };
    loop {
        match conn.tx_mode() {
            TxMode::Plain => {
                if let Some(n) = lane::send::plain(&conn, &call) {
                    upgrade::after_call(&conn, n);
                    return n;
                }
            }
            TxMode::Open if !lane::end_tx(&conn) && conn.tx_mode() == TxMode::Open => {
                // This is a handler that has interrupted a send of this very thread.
                return real::fail(memlane_sys::Errno::INTR);
            }
            TxMode::Open => upgrade::bar(&conn, Reason::OPTION),
            TxMode::Moving => core::hint::spin_loop(),
            _ => return lane::send::after_end(&conn, None, &call),
        }
    }
}

/// `splice(2)`. From a connection, bytes go through a buffer while its ring has some. To a connection, everything goes
/// by TCP from then on.
pub fn splice(
    from: c_int,
    off_in: *mut i64,
    to: c_int,
    off_out: *mut i64,
    len: usize,
    flags: u32,
) -> ssize_t {
    if let Some(conn) = lane_conn(to) {
        if conn.upgraded() {
            process::count(Counter::Splice, 1);
            upgrade::bar(&conn, Reason::OPTION);
        }
        return counted_send(to, || real!(splice(from, off_in, to, off_out, len, flags)));
    }
    let Some(conn) = lane_conn(from) else {
        return real!(splice(from, off_in, to, off_out, len, flags));
    };
    if conn.rx_mode() == RxMode::Plain {
        let call = || real!(splice(from, off_in, to, off_out, len, flags));
        if let Some(n) = lane::recv::plain(&conn, call) {
            upgrade::after_call(&conn, n);
            return n;
        }
    }
    if conn.upgraded() {
        process::count(Counter::Splice, 1);
        upgrade::bar(&conn, Reason::OPTION);
    }
    while conn.rx_mode() == RxMode::Drain {
        match splice_ring(&conn, to, len) {
            0 if conn.rx_mode() == RxMode::Drain => return 0,
            0 => {}
            n => return n,
        }
    }
    let n = real!(splice(from, off_in, to, off_out, len, flags));
    if crate::state::trace::on() {
        crate::state::trace::after_end(&conn, Way::Received, None, n);
    }
    n
}

/// Writes what is left in the ring into a pipe: peeks, writes, and only then takes the bytes.
fn splice_ring(conn: &ConnRef, to: c_int, len: usize) -> ssize_t {
    let mut buf = [0u8; STEP];
    let want = STEP.min(len);
    let bytes = one(buf.as_mut_ptr().cast(), want);
    // If the connection blocks, this waits for bytes that are promised and on their way.
    let n = receive(conn, &bytes, libc::MSG_PEEK, || {
        real::fail(memlane_sys::Errno::AGAIN)
    });
    if n <= 0 {
        return if conn.rx_mode() == RxMode::Ended {
            0
        } else {
            n
        };
    }
    let written = real!(write(to, buf.as_ptr().cast(), n.cast_unsigned()));
    if written > 0 {
        take_seen(conn, &mut buf[..written.cast_unsigned()]);
    }
    written
}

/// Takes the bytes that a peek has returned. A peek continues where the ring ends and TCP begins; a receive stops
/// there.
fn take_seen(conn: &ConnRef, mut seen: &mut [u8]) {
    let fd = conn.fd.load(Ordering::Relaxed);
    while !seen.is_empty() {
        let (at, left) = (seen.as_mut_ptr().cast::<c_void>(), seen.len());
        let n = receive(conn, &one(at, left), libc::MSG_DONTWAIT, || {
            real!(recv(fd, at, left, libc::MSG_DONTWAIT))
        });
        if n <= 0 {
            break; // another thread has taken them
        }
        seen = &mut seen[n.cast_unsigned().min(left)..];
    }
}

/// `preadv2(2)` on a connection, with offset −1 and no flag but `RWF_NOWAIT`.
pub fn readv_flags(fd: c_int, list: *const iovec, count: c_int, nowait: bool) -> ssize_t {
    let mut msg = message(list, count);
    recvmsg(
        fd,
        &raw mut msg,
        if nowait { libc::MSG_DONTWAIT } else { 0 },
    )
}

/// `pwritev2(2)` on a connection, with offset −1 and no flag but `RWF_NOWAIT`.
pub fn writev_flags(fd: c_int, list: *const iovec, count: c_int, nowait: bool) -> ssize_t {
    let msg = message(list, count);
    sendmsg(
        fd,
        &raw const msg,
        if nowait { libc::MSG_DONTWAIT } else { 0 },
    )
}

fn message(list: *const iovec, count: c_int) -> msghdr {
    // SAFETY: an all-zero msghdr is a valid value.
    let mut msg: msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = list.cast_mut();
    msg.msg_iovlen = count.max(0).cast_unsigned() as usize;
    msg
}
