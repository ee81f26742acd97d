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

/// As [`receive`], but waits for the first byte: as long as the socket's `SO_RCVTIMEO` says, not at all if the socket does
/// not block, and no longer than until a signal handler has run. `AGAIN`: nothing has come.
///
/// # Safety
/// As there, and until the call is back.
pub unsafe fn receive_waiting(socket: i32, pieces: &[Piece]) -> Result<usize> {
    let mut message = message(pieces.as_ptr(), pieces.len());
    let args = [socket as usize, &raw mut message as usize, 0, 0, 0, 0];
    // SAFETY: the header and its pieces live until the call is back; what they name is the caller's promise.
    match check(unsafe { syscall6(libc::SYS_recvmsg, args) }) {
        Err(Errno::INTR) => Err(Errno::AGAIN),
        other => other,
    }
}

/// What came beside a message: the first of its control messages, as far as it fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlMessage {
    /// `cmsg_level`.
    pub level: i32,
    /// `cmsg_type`.
    pub kind: i32,
    /// What it says; zeros behind its end.
    pub data: [u8; CONTROL_DATA],
}

/// Bytes of a control message that are kept.
pub const CONTROL_DATA: usize = 32;
/// `struct cmsghdr` on 64-bit machines.
const CONTROL_HEADER: usize = 16;

/// As [`receive`], with what came beside the bytes (a packet socket's `tpacket_auxdata`).
///
/// # Safety
/// As there.
pub unsafe fn receive_with_message(
    socket: i32,
    pieces: &[Piece],
) -> Result<(usize, Option<ControlMessage>)> {
    // Words, so that it is aligned as the kernel's structure is.
    let mut control = [0_u64; (CONTROL_HEADER + CONTROL_DATA) / 8];
    let mut message = message(pieces.as_ptr(), pieces.len());
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT as usize;
    let args = [socket as usize, &raw mut message as usize, flags, 0, 0, 0];
    // SAFETY: as above; the control memory is ours, and its length is stated.
    let n = retried(|| unsafe { syscall6(libc::SYS_recvmsg, args) })?;
    let told = message.msg_controllen > CONTROL_HEADER;
    Ok((n, told.then(|| first_of(&control))))
}

/// As [`receive`], with all that came beside the bytes: control messages, in `control` (words, so that they are
/// aligned as the kernel's structures are).
///
/// # Safety
/// As there.
pub unsafe fn receive_with_control(
    socket: i32,
    pieces: &[Piece],
    control: &mut [u64],
    flags: i32,
) -> Result<(usize, usize)> {
    let mut message = message(pieces.as_ptr(), pieces.len());
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(control);
    let flags = (libc::MSG_DONTWAIT | flags) as usize;
    let args = [socket as usize, &raw mut message as usize, flags, 0, 0, 0];
    // SAFETY: as above; the control memory is the caller's, and its length is stated.
    let n = retried(|| unsafe { syscall6(libc::SYS_recvmsg, args) })?;
    Ok((n, message.msg_controllen.min(size_of_val(control))))
}

/// As [`send`], with flags, and something told beside the bytes (words, so that they are aligned as the kernel's
/// structures are): `told` bytes of `control`.
///
/// # Safety
/// What the flags and the control message make of the pieces may be read.
pub unsafe fn send_with_control(
    socket: i32,
    pieces: &[Piece],
    (control, told): (&[u64], usize),
    flags: i32,
) -> Result<usize> {
    let mut message = message(pieces.as_ptr(), pieces.len());
    message.msg_control = control.as_ptr().cast_mut().cast();
    message.msg_controllen = told.min(size_of_val(control));
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | flags) as usize;
    let args = [socket as usize, &raw const message as usize, flags, 0, 0, 0];
    // SAFETY: the header, its pieces and the control message live until the call is back; the rest is the caller's
    // promise.
    retried(|| unsafe { syscall6(libc::SYS_sendmsg, args) })
}

fn first_of(control: &[u64; (CONTROL_HEADER + CONTROL_DATA) / 8]) -> ControlMessage {
    let kinds = control[1].to_ne_bytes();
    let four = |at: usize| [kinds[at], kinds[at + 1], kinds[at + 2], kinds[at + 3]];
    let len = usize::try_from(control[0]).unwrap_or(0);
    let mut data = [0; CONTROL_DATA];
    for (bytes, word) in data.chunks_exact_mut(8).zip(&control[2..]) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    if let Some(behind) = data.get_mut(len.saturating_sub(CONTROL_HEADER)..) {
        behind.fill(0);
    }
    ControlMessage {
        level: i32::from_ne_bytes(four(0)),
        kind: i32::from_ne_bytes(four(4)),
        data,
    }
}

/// Writes to a device that takes all or nothing (a TAP).
///
/// # Safety
/// Every piece is readable.
pub unsafe fn write(fd: i32, pieces: &[Piece]) -> Result<usize> {
    let args = [fd as usize, pieces.as_ptr() as usize, pieces.len(), 0, 0, 0];
    // SAFETY: pieces are laid out as iovec; what they name is the caller's promise.
    retried(|| unsafe { syscall6(libc::SYS_writev, args) })
}

/// Reads from one.
///
/// # Safety
/// Every piece is writable, and nothing in it is borrowed.
pub unsafe fn read(fd: i32, pieces: &[Piece]) -> Result<usize> {
    let args = [fd as usize, pieces.as_ptr() as usize, pieces.len(), 0, 0, 0];
    // SAFETY: as above.
    retried(|| unsafe { syscall6(libc::SYS_readv, args) })
}

/// Writes to a device that takes all or nothing, and whose descriptor another process holds too: it may have made calls
/// wait, but this one does not. `AGAIN`: there is no room now.
///
/// # Safety
/// Every piece is readable.
pub unsafe fn write_now(fd: i32, pieces: &[Piece]) -> Result<usize> {
    let args = now(fd, pieces);
    // SAFETY: pieces are laid out as iovec; what they name is the caller's promise.
    retried(|| unsafe { syscall6(libc::SYS_pwritev2, args) })
}

/// Reads from a device whose descriptor another process holds too: it may have made calls wait, but this one does not.
/// `AGAIN`: nothing has come.
///
/// # Safety
/// Every piece is writable, and nothing in it is borrowed.
pub unsafe fn read_now(fd: i32, pieces: &[Piece]) -> Result<usize> {
    let args = now(fd, pieces);
    // SAFETY: pieces are laid out as iovec; what they name is the caller's promise.
    retried(|| unsafe { syscall6(libc::SYS_preadv2, args) })
}

/// Arguments of `preadv2` and `pwritev2`: no position (-1, whose upper half 64-bit kernels do not use), and no wait.
fn now(fd: i32, pieces: &[Piece]) -> [usize; 6] {
    let (base, count) = (pieces.as_ptr() as usize, pieces.len());
    [
        fd as usize,
        base,
        count,
        usize::MAX,
        0,
        libc::RWF_NOWAIT as usize,
    ]
}

fn retried(mut call: impl FnMut() -> isize) -> Result<usize> {
    loop {
        match check(call()) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
