//! Bytes from and to several places at once, by address: such a place may be memory that a peer can write, of which
//! there must be no slice.

use crate::raw::{check, syscall6};
use crate::{Errno, Result};

/// A stretch of memory, as the kernel's `struct iovec` has it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Where it begins.
    pub base: *mut u8,
    /// Bytes.
    pub len: usize,
}

impl Piece {
    /// No bytes: to fill an array with.
    pub const NONE: Piece = Piece {
        base: core::ptr::null_mut(),
        len: 0,
    };
}

const fn message(pieces: *const Piece, count: usize) -> libc::msghdr {
    // SAFETY: all zeros is a valid msghdr: no name, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = pieces.cast_mut().cast();
    message.msg_iovlen = count as _;
    message
}

/// Sends what there is room for at once; `AGAIN` if for nothing.
///
/// # Safety
/// Every piece is readable.
pub unsafe fn send(socket: i32, pieces: &[Piece]) -> Result<usize> {
    let message = message(pieces.as_ptr(), pieces.len());
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    let args = [socket as usize, &raw const message as usize, flags, 0, 0, 0];
    // SAFETY: the header and its pieces live until the call is back; what they name is the caller's promise.
    retried(|| unsafe { syscall6(libc::SYS_sendmsg, args) })
}

/// Takes what has arrived; `AGAIN` if nothing has, 0 at the end of the stream.
///
/// # Safety
/// Every piece is writable, and nothing in it is borrowed.
pub unsafe fn receive(socket: i32, pieces: &[Piece]) -> Result<usize> {
    let mut message = message(pieces.as_ptr(), pieces.len());
    let flags = libc::MSG_DONTWAIT as usize;
    let args = [socket as usize, &raw mut message as usize, flags, 0, 0, 0];
    // SAFETY: as above.
    retried(|| unsafe { syscall6(libc::SYS_recvmsg, args) })
}

fn retried(mut call: impl FnMut() -> isize) -> Result<usize> {
    loop {
        match check(call()) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
