//! A client's bytes: a socket, plain or with TLS on it. Nothing here waits.

use memlane_core::access::SharedBytes;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How long [`Stream::recv`] waits. Other news for the thread that waits come this much later at most.
const NAP: Duration = Duration::from_millis(50);

/// See [`Stream::least_alone`]; measured in docs/decisions/0047.
const LEAST_ALONE: u32 = 64 << 10;
/// The same by TCP: each call wakes the receiver.
const LEAST_ALONE_BY_TCP: u32 = 512 << 10;

/// Most parts that are sent by one system call.
pub(super) const MAX_PARTS: usize = 128;

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Came {
    /// Bytes at the beginning of the payload's memory.
    pub(super) payload: usize,
    /// Bytes at the beginning of the buffer.
    pub(super) buffer: usize,
}

/// A stream of bytes.
pub(super) enum Stream {
    /// As they are.
    Plain(OwnedFd),
    /// Encrypted.
    #[cfg(feature = "tls")]
    Tls(Box<super::tls::TlsStream>),
}

impl Stream {
    /// The bytes of a socket that blocks.
    pub(super) fn plain(fd: OwnedFd) -> io::Result<Stream> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        set_socket_timeout(&fd, Timeout::Recv, Some(NAP))?;
        Ok(Stream::Plain(fd))
    }

    /// Receives what there is: first into `payload`, then into `buffer`. With TLS all of it comes into `buffer`.
    ///
    /// With `wait`, a plain stream waits a little while for something ([`NAP`]).
    ///
    /// # Errors
    /// `UnexpectedEof`: there will be no more. `WouldBlock`: not now.
    pub(super) fn recv(
        &mut self,
        payload: Option<SharedBytes>,
        buffer: &mut [u8],
        wait: bool,
    ) -> io::Result<Came> {
        let (n, room) = match self {
            Stream::Plain(fd) => {
                let room = payload.as_ref().map_or(0, SharedBytes::len);
                (recv_parts(fd, payload, buffer, wait)?, room)
            }
            #[cfg(feature = "tls")]
            Stream::Tls(tls) => (tls.recv(buffer)?, 0),
        };
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Came {
            payload: n.min(room),
            buffer: n.saturating_sub(room),
        })
    }

    /// How many bytes have come, without TLS.
    ///
    /// # Errors
    /// As of [`recv`](Self::recv), if there are none.
    pub(super) fn waiting(&self) -> io::Result<usize> {
        let waiting = rustix::io::ioctl_fionread(self.as_fd())?;
        if waiting > 0 {
            return Ok(usize::try_from(waiting).unwrap_or(usize::MAX));
        }
        use rustix::net::{RecvFlags, recv};
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(self.as_fd(), &mut [0_u8; 1], look)?.0 {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => Ok(n),
        }
    }

    /// Receives what there is into `bytes`, without TLS.
    ///
    /// # Errors
    /// As of [`recv`](Self::recv).
    pub(super) fn recv_into(&mut self, bytes: SharedBytes) -> io::Result<usize> {
        let came = self.recv(Some(bytes), &mut [], false)?;
        Ok(came.payload)
    }

    /// Sends some of the parts' bytes, and says how many.
    ///
    /// # Errors
    /// `WouldBlock`: none now.
    pub(super) fn send(&mut self, parts: &[SharedBytes]) -> io::Result<usize> {
        match self {
            Stream::Plain(fd) => send_parts(fd, parts),
            #[cfg(feature = "tls")]
            Stream::Tls(tls) => tls.send(parts),
        }
    }

    /// Are there bytes that were taken by [`send`](Self::send) but are not on their way?
    pub(super) fn holds_back(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(tls) => tls.holds_back(),
        }
    }

    /// Says politely that there is no more, if it can.
    pub(super) fn end(&mut self) {
        match self {
            Stream::Plain(_) => {}
            #[cfg(feature = "tls")]
            Stream::Tls(tls) => tls.end(),
        }
    }

    /// From this many bytes on, a call that sends them from where they lie is faster than a copy that is sent together with others.
    pub(super) fn least_alone(&self) -> u32 {
        use rustix::net::{AddressFamily, sockopt::socket_domain};
        match socket_domain(self.as_fd()) {
            Ok(AddressFamily::UNIX) => LEAST_ALONE,
            _ => LEAST_ALONE_BY_TCP,
        }
    }

    /// Does payload come to its place without a copy?
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Stream::Plain(_))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Plain(fd) => fd.as_fd(),
            #[cfg(feature = "tls")]
            Stream::Tls(tls) => tls.as_fd(),
        }
    }
}

fn iovec(part: &SharedBytes) -> libc::iovec {
    libc::iovec {
        iov_base: part.as_ptr().cast(),
        iov_len: part.len(),
    }
}

/// rustix wants slices, which may not point into memory that others write; so the calls are libc's.
fn recv_parts(
    fd: &OwnedFd,
    payload: Option<SharedBytes>,
    buffer: &mut [u8],
    wait: bool,
) -> io::Result<usize> {
    let mut parts = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; 2];
    let mut n = 0;
    if let Some(payload) = payload {
        (parts[0], n) = (iovec(&payload), 1);
    }
    if !buffer.is_empty() {
        parts[n].iov_base = buffer.as_mut_ptr().cast();
        parts[n].iov_len = buffer.len();
        n += 1;
    }
    // SAFETY: all zero is a message header without name, control and parts.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = n as _;
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    loop {
        // SAFETY: each part is writable memory of its length: a lease's or the volume's, which the queue keeps mapped, or `buffer`.
        let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
        match usize::try_from(got) {
            Ok(got) => return Ok(got),
            Err(_) => retry(io::Error::last_os_error())?,
        }
    }
}

fn send_parts(fd: &OwnedFd, parts: &[SharedBytes]) -> io::Result<usize> {
    let mut vector = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; MAX_PARTS];
    let n = parts.len().min(MAX_PARTS);
    for (to, part) in vector.iter_mut().zip(parts) {
        *to = iovec(part);
    }
    // SAFETY: all zero is a message header without name, control and parts.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vector.as_mut_ptr();
    message.msg_iovlen = n as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: each part is readable memory of its length, as its `SharedBytes` promises.
        let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
        match usize::try_from(sent) {
            Ok(sent) => return Ok(sent),
            Err(_) => retry(io::Error::last_os_error())?,
        }
    }
}

fn retry(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}
