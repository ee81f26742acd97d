//! Streams as std's users expect them (feature `std`): [`Read`], [`Write`], descriptors, std's sockets and errors.
//!
//! `&Stream` neither reads nor writes: bytes that TCP has brought ahead of time, and those that could not go yet, belong
//! to one user at a time. The methods of the same names that a [`Stream`] has itself give an [`Errno`](memlane_sys::Errno),
//! which `?` turns into an [`io::Error`](std::io::Error).
//!
//! ```
//! use memlane_socket::{Listener, Stream};
//! use std::io::{Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap())?;
//! let address = listener.local_addr()?;
//! let client = std::thread::spawn(move || -> std::io::Result<String> {
//!     let mut stream = Stream::connect(&address)?;
//!     stream.write_all(b"to memory, or by TCP")?;
//!     stream.finish()?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer)?;
//!     Ok(answer)
//! });
//! let mut stream = listener.accept()?;
//! let mut all = Vec::new();
//! stream.read_to_end(&mut all)?;
//! stream.write_all(&all)?;
//! drop(stream);
//! assert_eq!(client.join().unwrap()?, "to memory, or by TCP");
//! # Ok(())
//! # }
//! ```

use super::{End, Listener, Standing, Stream, counted};
use crate::hooks::calls::io as hooked;
use crate::iov::IOV_MAX;
use memlane_core::reason::Reason;
use memlane_sys::fd::Fd;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(Stream::read(self, into)?)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.lane.is_ours()?;
        if self.unread.left() > 0 {
            let first = into.iter_mut().find(|part| !part.is_empty());
            return first.map_or(Ok(0), |part| Ok(Stream::read(self, part)?));
        }
        // An IoSliceMut is an iovec: std promises it.
        let mut list = message(into.as_mut_ptr().cast(), into.len());
        let n = counted(hooked::recvmsg(self.fd.raw(), &raw mut list, self.flags))?;
        self.lane.count_received(n);
        Ok(n)
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(Stream::write(self, from)?)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        Stream::flush(self)?;
        // An IoSlice is an iovec: std promises it.
        let list = message(from.as_ptr().cast_mut().cast(), from.len());
        let flags = self.flags | libc::MSG_NOSIGNAL;
        let n = counted(hooked::sendmsg(self.fd.raw(), &raw const list, flags))?;
        self.lane.count_sent(n);
        Ok(n)
    }

    /// Nothing is ever held back but what was committed and could not go: see [`Stream::flush`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(Stream::flush(self)?)
    }
}

fn message(list: *mut libc::iovec, count: usize) -> libc::msghdr {
    // SAFETY: an all-zero msghdr is a valid value.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = list;
    msg.msg_iovlen = count.min(IOV_MAX);
    msg
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.raw()
    }
}

/// To wait for it (see [`Stream::arm`]) and to set options, not to move bytes.
impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the stream is.
        unsafe { BorrowedFd::borrow_raw(self.fd.raw()) }
    }
}

/// A connected socket of std's, whatever it has carried before. The kernel does not tell which end it is.
impl TryFrom<(TcpStream, End)> for Stream {
    type Error = io::Error;

    fn try_from((socket, end): (TcpStream, End)) -> io::Result<Stream> {
        Ok(Stream::of(owned(OwnedFd::from(socket)), end)?)
    }
}

impl Stream {
    /// Gives the socket back, for good to TCP, where memory has never been open: later, bytes that lie there would be
    /// lost. Likewise with bytes that are in a buffer of the stream's.
    ///
    /// # Errors
    /// The stream, unchanged.
    pub fn into_tcp(mut self) -> Result<TcpStream, Stream> {
        let buffered = self.unread.left() + self.unsent.left() > 0;
        if buffered || self.lane.is_ours().is_err() || self.lane.was_open() {
            return Err(self);
        }
        self.lane.end(Reason::PASSED_ON);
        // It may have opened meanwhile only by a call of ours; there was none.
        if self.lane.was_open() || self.standing() == Standing::Memory {
            return Err(self);
        }
        self.unread = super::Spare::default();
        let Stream { lane, fd, .. } = self;
        drop(lane);
        // SAFETY: ours, and nobody else's from now on.
        Ok(unsafe { TcpStream::from_raw_fd(fd.into_raw()) })
    }
}

fn owned(socket: OwnedFd) -> Fd {
    // SAFETY: it was the only owner.
    unsafe { Fd::from_raw(socket.into_raw_fd()) }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.raw()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the listener is.
        unsafe { BorrowedFd::borrow_raw(self.fd.raw()) }
    }
}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Listener {
        super::start::start();
        Listener {
            fd: owned(OwnedFd::from(socket)),
        }
    }
}

impl From<Listener> for TcpListener {
    fn from(listener: Listener) -> TcpListener {
        // SAFETY: ours, and nobody else's from now on.
        unsafe { TcpListener::from_raw_fd(listener.fd.into_raw()) }
    }
}
