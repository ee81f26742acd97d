//! io_uring: what the program hands to the kernel in submission queues. The hooks see the three system calls where they go
//! through libc's `syscall`; [`state::uring`](crate::state::uring) finds the entries.
//!
//! - An operation on a connection sends that connection back to TCP first: the kernel knows nothing of rings. The others
//!   keep their lanes.
//! - `EPOLL_CTL`, of which libuv hands over many at once, is done here as `epoll_ctl` does it.
//! - Where nobody can see what is submitted (a thread of the kernel polls the queue, or instances are registered), all
//!   connections of the process stay on TCP.

use super::calls::{self, io, life};
use super::wait::epoll;
use crate::protocol::lane::{self, Patience};
use crate::protocol::upgrade::{bar, freeze};
use crate::real::errno;
use crate::state::process::{self, ConnRef, PROCESS, conn_of, ep_of, stand_in};
use crate::state::uring::{self, Entry, Params, Prepared, op};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use libc::{iovec, msghdr};
use memlane_core::reason::Reason;

/// `IORING_ENTER_REGISTERED_RING`: the descriptor is an index of registered instances.
const ENTER_REGISTERED_RING: u32 = 1 << 4;
/// `IORING_REGISTER_USE_REGISTERED_RING`, a flag in the operation of `io_uring_register`.
const REGISTER_USE_REGISTERED_RING: u32 = 1 << 31;

/// Follows a successful `io_uring_setup(2)` that gave descriptor `fd`.
pub fn set_up(fd: c_int, params: *const Params) {
    if process::is_borrowed() || !process::enabled() {
        return;
    }
    process::forget(fd);
    // SAFETY: the program's structure, which the kernel has just filled.
    let params = unsafe { params.read_unaligned() };
    match uring::watch(fd, &params) {
        Ok(()) if process::note_uring(fd) => {}
        Ok(()) => {
            uring::forget(fd);
            freeze(Reason::IO_URING);
        }
        Err(_) => freeze(Reason::IO_URING),
    }
}

/// Prepares for `io_uring_enter(2)`, which hands `count` entries to the kernel.
pub fn before_enter(fd: c_int, count: u32, flags: u32) {
    if process::is_borrowed() || count == 0 {
        return;
    }
    let keep = errno();
    let seen = match flags & ENTER_REGISTERED_RING {
        0 => uring::each_pending(fd, count, look),
        _ => None,
    };
    // A process that is frozen has no lane to end, and this may come with each of its operations.
    if seen.is_none() && PROCESS.frozen.load(Ordering::Relaxed) == 0 {
        freeze(Reason::IO_URING);
    }
    crate::real::set_errno(keep);
}

/// Prepares for a function of liburing that hands over what `ring` has prepared.
///
/// # Safety
/// `ring` is a `struct io_uring` of `liburing.so.2` that the program has set up, and no other thread uses it.
pub unsafe fn before_submit(ring: *const Prepared) {
    if process::is_borrowed() {
        return;
    }
    let keep = errno();
    // SAFETY: the caller's promise.
    let seen = unsafe { uring::each_prepared(ring, look) };
    if seen.is_none() && PROCESS.frozen.load(Ordering::Relaxed) == 0 {
        freeze(Reason::IO_URING);
    }
    crate::real::set_errno(keep);
}

/// Prepares for a function of liburing that registers these descriptors.
pub fn before_files(files: *const c_int, count: u32) {
    if !process::is_borrowed() {
        each_file(files as u64, count);
    }
}

/// Prepares for `io_uring_register(2)`: what is registered is used without its descriptor.
pub fn before_register(operation: u32, arg: usize, count: u32) {
    /// `IORING_REGISTER_RING_FDS`: instances are entered without their descriptors.
    const RING_FDS: u32 = 20;
    /// `IORING_REGISTER_RESIZE_RINGS`: queues move.
    const RESIZE_RINGS: u32 = 33;
    if process::is_borrowed() || operation & REGISTER_USE_REGISTERED_RING != 0 {
        return; // registering the instance itself has ended all lanes
    }
    match operation {
        RING_FDS | RESIZE_RINGS => freeze(Reason::IO_URING),
        _ => registered_files(operation, arg, count)
            .into_iter()
            .for_each(|(list, count)| each_file(list, count)),
    }
}

/// Where the descriptors lie that are registered, and how many they are. `None`: something else is registered.
fn registered_files(operation: u32, arg: usize, count: u32) -> Option<(u64, u32)> {
    /// `IORING_REGISTER_FILES`: `arg` is the list.
    const FILES: u32 = 2;
    /// `IORING_REGISTER_FILES_UPDATE`: two words, the address of the list.
    const FILES_UPDATE: u32 = 6;
    /// `IORING_REGISTER_FILES2`: a count, flags, a reserved word of 8 bytes, the address of the list.
    const FILES2: u32 = 13;
    /// `IORING_REGISTER_FILES_UPDATE2`: two words, the address of the list, that of tags, a count.
    const FILES_UPDATE2: u32 = 14;
    let last = match operation {
        FILES => return Some((arg as u64, count)),
        FILES_UPDATE => 8,
        FILES2 => 16,
        FILES_UPDATE2 => 24,
        _ => return None,
    };
    if crate::iov::is_nowhere(arg as *const u8, last + 8) {
        return None; // the kernel refuses it
    }
    let address = |at: usize| {
        // SAFETY: inside the program's structure, as it promised its call.
        unsafe { (arg as *const u64).byte_add(at).read_unaligned() }
    };
    let number = |at: usize| {
        // SAFETY: inside the program's structure, as it promised its call.
        unsafe { (arg as *const u32).byte_add(at).read_unaligned() }
    };
    Some(match operation {
        FILES_UPDATE => (address(8), count),
        FILES2 => (address(16), number(0)),
        _ => (address(8), number(24)),
    })
}

fn each_file(list: u64, count: u32) {
    let list = list as *const c_int;
    if crate::iov::is_nowhere(list.cast(), count as usize * size_of::<c_int>()) {
        return; // the kernel refuses it
    }
    for i in 0..count as usize {
        // SAFETY: an entry of the program's list, as it promised its call.
        is_used(unsafe { list.add(i).read_unaligned() });
    }
}

/// Descriptor `fd` is used by io_uring from now on. Returns its connection.
fn is_used(fd: c_int) -> Option<ConnRef> {
    if let Some(set) = ep_of(fd) {
        epoll::is_waited_for(set);
    }
    let conn = conn_of(fd)?;
    calls::touch(&conn);
    bar(&conn, Reason::IO_URING);
    Some(conn)
}

/// One entry that the kernel will take next.
fn look(entry: Entry) {
    if entry.opcode() == op::EPOLL_CTL {
        return epoll_ctl(entry);
    }
    if let Some(source) = entry.source() {
        is_used(source);
    }
    let Some(fd) = entry.fd() else { return };
    if entry.opcode() == op::CLOSE {
        return close(entry, fd);
    }
    let Some(conn) = is_used(fd) else { return };
    if op::receives(entry.opcode()) && lane::holds_bytes(&conn, &mut Patience::fresh()) {
        take_from_ring(entry, fd);
    }
}

/// Does a change of a set as `epoll_ctl` would, and leaves the result to be told by the kernel.
///
/// All changes of a call are done here before the kernel sees the first. So one that has failed must not be the kernel's to
/// try: it would come after later ones.
fn epoll_ctl(entry: Entry) {
    let (epfd, operation, fd, event) = entry.epoll_ctl();
    match epoll::ctl_of_connection(epfd, operation, fd, event) {
        None => {}
        Some(0) => entry.becomes_nop(),
        Some(_) => fail_change(entry, fd, errno()),
    }
}

/// Makes a change of a set fail with `error`: it is tried where it must. Errors that epoll_ctl(2) does not have for a
/// registered connection become `EBADF`.
fn fail_change(entry: Entry, fd: c_int, error: c_int) {
    let set = stand_in::set();
    match error {
        libc::EEXIST => entry.becomes_change(set, libc::EPOLL_CTL_ADD, stand_in::never()),
        libc::ENOENT => entry.becomes_change(set, libc::EPOLL_CTL_DEL, fd),
        libc::EINVAL => entry.becomes_change(set, libc::EPOLL_CTL_DEL, set),
        _ => entry.becomes_change(-1, libc::EPOLL_CTL_DEL, -1),
    }
}

fn close(entry: Entry, fd: c_int) {
    if process::is_hidden(fd) {
        return entry.becomes_result(-1, 0, 0); // EBADF, as close(2) says of the library's descriptors
    }
    if process::known(fd) {
        life::before_close(fd);
    }
}

/// The lane has ended with bytes in the ring, which only this library can read: does now what was to be done, and lets the
/// kernel tell the result.
fn take_from_ring(entry: Entry, fd: c_int) {
    let (addr, len) = (entry.addr(), entry.count());
    let n = match entry.opcode() {
        op::POLL_ADD => {
            let asked =
                entry.op_flags() & u32::from((libc::POLLIN | libc::POLLRDNORM).cast_unsigned());
            return tell(entry, asked);
        }
        _ if !entry.has_own_buffer() => None,
        op::READ | op::READ_FIXED => Some(io::recv(
            fd,
            addr as *mut c_void,
            len as usize,
            libc::MSG_DONTWAIT,
        )),
        op::RECV => {
            let flags = entry.op_flags().cast_signed() | libc::MSG_DONTWAIT;
            Some(io::recv(fd, addr as *mut c_void, len as usize, flags))
        }
        op::RECVMSG => {
            let flags = entry.op_flags().cast_signed() | libc::MSG_DONTWAIT;
            Some(io::recvmsg(fd, addr as *mut msghdr, flags))
        }
        op::READV => Some(read_list(fd, addr as *mut iovec, len as usize)),
        _ => None,
    };
    match n.map(u32::try_from) {
        Some(Ok(n)) => tell(entry, n),
        // Neither now nor by the kernel: EAGAIN. A later operation, or a read of the program's own, gets the bytes.
        _ => entry.becomes_read(stand_in::never(), addr, 8),
    }
}

fn read_list(fd: c_int, list: *mut iovec, count: usize) -> isize {
    // SAFETY: all-zero is a message without anything.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = list;
    message.msg_iovlen = count;
    io::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT)
}

fn tell(entry: Entry, result: u32) {
    entry.becomes_result(stand_in::null(), entry.addr(), result);
}
