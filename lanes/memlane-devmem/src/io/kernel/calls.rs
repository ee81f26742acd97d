//! The system calls that the path makes on a stream's socket. Behind a trait, so that it can be run against a kernel
//! that is a test.

use crate::engine::{Range, Span};
use crate::wire::control::{
    self, DONTNEED, MSG_ERRQUEUE, MSG_SOCK_DEVMEM, MSG_ZEROCOPY, SOL_SOCKET, ZEROCOPY,
};
use core::fmt::Debug;
use memlane_sys::Errno;
use memlane_sys::iov::{self, Piece};
use memlane_sys::sock::{set_bytes, set_option};
use rustix::net::{Shutdown, connect_unspec, shutdown};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Stretches of one send, at most (`UIO_MAXIOV`).
pub const SPANS_MAX: usize = 1024;

/// What is asked of the kernel. No call waits.
pub trait Calls: Send + Sync + Debug {
    /// `recvmsg` with `MSG_SOCK_DEVMEM`: bytes of payload in all, and bytes of `told`. Those that are in no device are in
    /// `beside`.
    ///
    /// # Errors
    /// The kernel's.
    fn receive(&self, beside: &mut [u8], told: &mut [u64]) -> Result<(usize, usize), Errno>;

    /// `SO_DEVMEM_DONTNEED`: how many fragments came back.
    ///
    /// # Errors
    /// The kernel's: EINVAL for more than 128 ranges, or none.
    fn release(&self, ranges: &[Range]) -> Result<u32, Errno>;

    /// `sendmsg` with `MSG_ZEROCOPY`, out of a binding's memory.
    ///
    /// # Errors
    /// The kernel's.
    fn send(&self, binding: u32, spans: &[Span]) -> Result<usize, Errno>;

    /// `recvmsg` from the error queue: bytes of `told`.
    ///
    /// # Errors
    /// The kernel's: EAGAIN, it is empty.
    fn errors(&self, told: &mut [u64]) -> Result<usize, Errno>;

    /// Ends the connection in order, also while somebody still has the socket.
    fn end(&self);

    /// Ends it at once: nothing that is queued is sent.
    fn abort(&self);
}

/// The real ones.
#[derive(Debug)]
pub struct Real(pub Arc<OwnedFd>);

impl Real {
    /// Prepares a socket to be sent from without a copy.
    ///
    /// # Errors
    /// The kernel's.
    pub fn allow_zerocopy(&self) -> Result<(), Errno> {
        set_option(self.0.as_raw_fd(), SOL_SOCKET, ZEROCOPY, 1_i32)
    }
}

impl Calls for Real {
    fn receive(&self, beside: &mut [u8], told: &mut [u64]) -> Result<(usize, usize), Errno> {
        let piece = Piece {
            base: beside.as_mut_ptr(),
            len: beside.len(),
        };
        let fd = self.0.as_raw_fd();
        // SAFETY: the caller's buffer, which we have alone.
        unsafe { iov::receive_with_control(fd, &[piece], told, MSG_SOCK_DEVMEM) }
    }

    fn release(&self, ranges: &[Range]) -> Result<u32, Errno> {
        let value = control::dont_need(ranges);
        let freed = set_bytes(self.0.as_raw_fd(), SOL_SOCKET, DONTNEED, &value)?;
        Ok(u32::try_from(freed).unwrap_or(u32::MAX))
    }

    fn send(&self, binding: u32, spans: &[Span]) -> Result<usize, Errno> {
        let piece = |span: &Span| Piece {
            // An offset, not an address.
            base: core::ptr::without_provenance_mut(
                usize::try_from(span.offset).unwrap_or(usize::MAX),
            ),
            len: span.len as usize,
        };
        let pieces: Vec<_> = spans.iter().take(SPANS_MAX).map(piece).collect();
        let told = control::sent_from(binding);
        let len = usize::try_from(told[0]).unwrap_or(0);
        let fd = self.0.as_raw_fd();
        // SAFETY: with this message the pieces are offsets in a dma-buf, which the kernel checks; it reads no memory of
        // ours by them.
        unsafe { iov::send_with_control(fd, &pieces, (&told, len), MSG_ZEROCOPY) }
    }

    fn errors(&self, told: &mut [u64]) -> Result<usize, Errno> {
        let fd = self.0.as_raw_fd();
        // SAFETY: no piece at all.
        let came = unsafe { iov::receive_with_control(fd, &[], told, MSG_ERRQUEUE) };
        came.map(|(_, len)| len)
    }

    fn end(&self) {
        // Not connected any more: then it is over.
        let _ = shutdown(&*self.0, Shutdown::Both);
    }

    fn abort(&self) {
        // The kernel throws away what is queued, and tells the peer of it.
        let _ = connect_unspec(&*self.0);
    }
}
