//! The socket lane by name: for programs that are not started by `memlane run`.
//!
//! A [`Stream`] is a TCP connection and stays one. If its other end is a process of this host that has the lane too (a
//! `Stream`, or any program under `memlane run`), bytes go through memory from an agreed byte on. [`Stream::standing`]
//! tells whether they do, or why not. No byte is lost on the way there or back.
//!
//! `read` and `write` copy, as a socket's do. Two pairs of calls copy nothing. [`reserve`](Stream::reserve) returns
//! room in the *peer's* memory, to be filled and committed. [`peek`](Stream::peek) returns bytes in this process's
//! memory, to be read and consumed. While TCP carries the bytes, both work too, with a buffer of the stream's in
//! between.
//!
//! ```
//! use memlane_socket::{Listener, Stream};
//!
//! let listener = Listener::bind(&"127.0.0.1:0".parse()?)?;
//! let address = listener.local_addr()?;
//! let sender = std::thread::spawn(move || {
//!     let mut stream = Stream::connect(&address)?;
//!     let place = stream.reserve(5)?;
//!     assert!(place.len() >= 5 && place.fill(0, b"hello"));
//!     place.commit(5)
//! });
//!
//! let mut stream = listener.accept()?;
//! let mut seen = [0; 5];
//! let mut have = 0;
//! while have < 5 {
//!     let here = stream.peek()?;
//!     let n = here.len().min(5 - have);
//!     assert!(n > 0, "the end came too early");
//!     here.copy_to(0, &mut seen[have..have + n]);
//!     here.consume(n);
//!     have += n;
//! }
//! assert_eq!(&seen, b"hello");
//! sender.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate has no `std`: streams return errors as [`Errno`] and descriptors as numbers. The settings are those of
//! `memlane run`, from the same `MEMLANE_*` variables, except that `--upgrade` is `eager` unless it is set.

mod address;
mod lane;
mod place;
mod start;
#[cfg(feature = "std")]
mod std_io;

pub use crate::protocol::upgrade::Standing;
pub use lane::{Came, Consumer, Counts, End, Lane, Memory, Ready};
pub use place::{Here, Slot};

use crate::hooks::calls::{io, life};
use crate::protocol::lane::place::{self as ring, Reserved};
use crate::real;
use crate::state::process::ConnRef;
use address::Address;
use core::ffi::c_int;
use core::net::SocketAddr;
use core::ptr::NonNull;
use core::time::Duration;
use memlane_core::access::SharedBytes;
use memlane_sys::fd::Fd;
use memlane_sys::{Errno, Result, mem};
use place::{SlotRoom, of_spare};

/// The size of the buffers that are used while TCP carries the bytes.
const SPARE: usize = 64 * 1024;

/// A buffer of the stream's, made when it is first needed.
#[derive(Debug, Default)]
struct Spare {
    base: Option<NonNull<u8>>,
    from: usize,
    to: usize,
}

impl Spare {
    fn base(&mut self) -> Result<NonNull<u8>> {
        if self.base.is_none() {
            self.base = Some(mem::map_anon(SPARE, false)?);
        }
        self.base.ok_or(Errno::INVAL)
    }

    fn left(&self) -> usize {
        self.to - self.from
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some(base) = self.base {
            // SAFETY: the whole mapping, of which no view exists any more.
            unsafe { mem::unmap(base, SPARE) };
        }
    }
}

/// A TCP connection with a memory lane beside it. See the module's documentation.
///
/// Only one thread at a time uses it. The child of a fork cannot use it (`ESTALE`); the parent can.
#[derive(Debug)]
pub struct Stream {
    lane: Lane,
    unread: Spare,
    unsent: Spare,
    flags: c_int,
    /// Closed last.
    fd: Fd,
}

// SAFETY: the buffers are its own.
unsafe impl Send for Stream {}

impl Stream {
    /// Connects to a TCP address.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connect(to: &SocketAddr) -> Result<Stream> {
        let to = Address::new(to);
        let fd = address::socket(&to)?;
        let (at, len) = to.as_raw();
        retried(|| real!(connect(fd.raw(), at, len)))?;
        Stream::of(fd, End::Connected)
    }

    /// Makes a stream of a connected TCP socket, whatever it has carried before.
    ///
    /// # Errors
    /// It is not a connected TCP socket.
    pub fn of(fd: Fd, end: End) -> Result<Stream> {
        // SAFETY: no memory is given.
        let lane = unsafe { Lane::of(fd.raw(), end, None) }?;
        Stream::with(lane, fd)
    }

    /// Makes a stream of a connected TCP socket that receives into `memory`.
    ///
    /// # Errors
    /// It is not a connected TCP socket, or the memory does not meet the rules of [`Memory`].
    ///
    /// # Safety
    /// The memory stays mapped, writable and open until the stream is gone.
    pub unsafe fn into_memory(fd: Fd, end: End, memory: &Memory) -> Result<Stream> {
        // SAFETY: the caller promises it.
        let lane = unsafe { Lane::of(fd.raw(), end, Some(memory)) }?;
        Stream::with(lane, fd)
    }

    fn with(lane: Lane, fd: Fd) -> Result<Stream> {
        let nonblock = memlane_sys::fd::status_flags(fd.raw())? & libc::O_NONBLOCK != 0;
        Ok(Stream {
            lane,
            unread: Spare::default(),
            unsent: Spare::default(),
            flags: if nonblock { libc::MSG_DONTWAIT } else { 0 },
            fd,
        })
    }

    /// Reads what is there, at least one byte; 0 at the stream's end.
    ///
    /// # Errors
    /// `EAGAIN`: nothing is there, and the stream is non-blocking. Other errors are the kernel's.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.lane.is_ours()?;
        if self.unread.left() > 0 {
            let here = self.peek()?;
            let n = here.len().min(into.len());
            here.copy_to(0, &mut into[..n]);
            here.consume(n);
            return Ok(n);
        }
        self.receive(into.as_mut_ptr(), into.len(), self.flags)
    }

    fn receive(&self, into: *mut u8, len: usize, flags: c_int) -> Result<usize> {
        let n = counted(io::recv(self.fd.raw(), into.cast(), len, flags))?;
        self.lane.count_received(n);
        Ok(n)
    }

    /// Writes a part of `from`, and returns its length.
    ///
    /// # Errors
    /// `EAGAIN`: there is no room, and the stream is non-blocking. `EPIPE`; other errors are the kernel's.
    pub fn write(&mut self, from: &[u8]) -> Result<usize> {
        self.flush()?;
        send(&self.lane, from.as_ptr(), from.len(), self.flags)
    }

    /// Reserves room for up to `want` bytes, in the peer's memory if the lane is open. A blocking stream always gets
    /// some.
    ///
    /// Fill the room soon: the peer sees that bytes may come.
    ///
    /// # Errors
    /// `EAGAIN`: earlier committed bytes have not gone yet, and the stream is non-blocking. Other errors are the
    /// kernel's.
    pub fn reserve(&mut self, want: usize) -> Result<Slot<'_>> {
        self.flush()?;
        let Stream {
            lane,
            unsent,
            flags,
            ..
        } = self;
        let (lane, flags) = (&*lane, *flags);
        let reserved = match lane.conn() {
            Some(conn) => ring::reserve(conn, want.max(1), flags)?,
            None => Reserved::Tcp(SPARE),
        };
        let place = match reserved {
            Reserved::Ring(place) => SlotRoom::Ring(place),
            Reserved::Tcp(most) => {
                let len = want.max(1).min(most).min(SPARE);
                // SAFETY: no more than the buffer has; the slot borrows the stream.
                SlotRoom::Spare(unsafe { of_spare(unsent.base()?, len) })
            }
        };
        Ok(Slot {
            place,
            lane,
            unsent,
            flags,
        })
    }

    /// Sends committed bytes that could not go at once. Only non-blocking streams have such bytes.
    ///
    /// # Errors
    /// `EAGAIN`: they still cannot go. Other errors are the kernel's.
    pub fn flush(&mut self) -> Result<()> {
        flush(&self.lane, &mut self.unsent, self.flags)
    }

    /// The next bytes, where they lie: in this stream's memory or, if they came by TCP, in a buffer. Empty: the
    /// stream's end.
    ///
    /// # Errors
    /// `EAGAIN`: nothing is there, and the stream is non-blocking. Other errors are the kernel's.
    pub fn peek(&mut self) -> Result<Here<'_>> {
        self.lane.is_ours()?;
        let waits = self.flags & libc::MSG_DONTWAIT == 0;
        loop {
            if self.unread.left() == 0
                && let Some(conn) = self.lane.conn()
                && let Some(bytes) = shown(conn, waits)
            {
                return Ok(Here::new(self, bytes, true));
            }
            if self.unread.left() > 0 || self.fetch(waits)? {
                let at = self.unread.base()?;
                // SAFETY: within the buffer, of which so much was filled; what this makes borrows the stream.
                let bytes = unsafe { of_spare(at.add(self.unread.from), self.unread.left()) };
                return Ok(Here::new(self, bytes, false));
            }
        }
    }

    /// Reads what TCP has into the buffer, when nothing lies in memory; nothing at the stream's end. `false`: look
    /// again.
    fn fetch(&mut self, waits: bool) -> Result<bool> {
        if waits {
            self.lane.wait(Ready::ToRead, Duration::MAX)?;
            if self.lane.conn().is_some_and(|c| ring::peek(c).is_some()) {
                return Ok(false);
            }
        }
        let base = self.unread.base()?;
        match self.receive(base.as_ptr(), SPARE, libc::MSG_DONTWAIT) {
            Ok(n) => (self.unread.from, self.unread.to) = (0, n),
            Err(Errno::AGAIN | Errno::INTR) if waits => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Waits for at most `limit`. `false`: the time is over.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&mut self, what: Ready, limit: Duration) -> Result<bool> {
        if what == Ready::ToRead && self.unread.left() > 0 {
            return Ok(true);
        }
        self.lane.wait(what, limit)
    }

    /// Prepares for a sleep on [`as_raw_fd`](Self::as_raw_fd) by other means (epoll, level- or edge-triggered): from
    /// now on, the next bytes make it readable. `false`: there is something to read now, or will be in a moment; read,
    /// then call this again. While a peer stays in the middle of a write, the first three calls return at once; from
    /// then on each call takes a millisecond, so that a caller in a loop does not keep a CPU busy.
    pub fn arm(&self) -> bool {
        self.unread.left() == 0 && self.lane.arm()
    }

    /// Where the connection stands: on memory, or on TCP and why.
    pub fn standing(&self) -> Standing {
        self.lane.standing()
    }

    /// Continues the handshake until it is over, or for at most `limit`. Without this call, it takes place while the
    /// stream is used.
    pub fn negotiate(&mut self, limit: Duration) -> Standing {
        self.lane.negotiate(limit)
    }

    /// The bytes that each lane has carried.
    pub fn counts(&self) -> Counts {
        self.lane.counts()
    }

    /// Makes the stream non-blocking, or blocking.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_nonblocking(&mut self, yes: bool) -> Result<()> {
        let now = memlane_sys::fd::status_flags(self.fd.raw())?;
        let (flags, call) = match yes {
            true => (now | libc::O_NONBLOCK, libc::MSG_DONTWAIT),
            false => (now & !libc::O_NONBLOCK, 0),
        };
        let flags = usize::try_from(flags).unwrap_or(0);
        match crate::hooks::calls::opts::fcntl(self.fd.raw(), libc::F_SETFL, flags) {
            0 => self.flags = call,
            _ => return Err(Errno(real::errno())),
        }
        Ok(())
    }

    /// Ends the sending direction: the peer reads to the end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn finish(&mut self) -> Result<()> {
        self.flush()?;
        match life::shutdown(self.fd.raw(), libc::SHUT_WR) {
            0 => Ok(()),
            _ => Err(Errno(real::errno())),
        }
    }

    /// This end's address.
    ///
    /// # Errors
    /// The kernel's.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        address::local(&self.fd)
    }

    /// The other end's address.
    ///
    /// # Errors
    /// The kernel's.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        address::remote(&self.fd)
    }

    /// The socket's number, to wait for it (see [`arm`](Self::arm)) and to set options, not to move bytes.
    pub fn as_raw_fd(&self) -> i32 {
        self.fd.raw()
    }
}

/// Accepts [`Stream`]s.
#[derive(Debug)]
pub struct Listener {
    fd: Fd,
}

impl Listener {
    /// Listens on a TCP address.
    ///
    /// # Errors
    /// The kernel's.
    pub fn bind(at: &SocketAddr) -> Result<Listener> {
        let at = Address::new(at);
        let fd = address::socket(&at)?;
        memlane_sys::sock::set_option(fd.raw(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1_i32)?;
        address::bind(&fd, &at)?;
        Ok(Listener { fd })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        address::local(&self.fd)
    }

    /// Makes `accept` non-blocking, or blocking. Accepted streams are blocking.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_nonblocking(&self, yes: bool) -> Result<()> {
        let now = memlane_sys::fd::status_flags(self.fd.raw())?;
        let flags = match yes {
            true => now | libc::O_NONBLOCK,
            false => now & !libc::O_NONBLOCK,
        };
        retried(|| {
            real!(fcntl(
                self.fd.raw(),
                libc::F_SETFL,
                flags.cast_unsigned() as usize
            ))
        })
        .map(drop)
    }

    /// Waits for a connection and accepts it.
    ///
    /// # Errors
    /// `EAGAIN`: no connection is there, and the listener is non-blocking. Other errors are the kernel's.
    pub fn accept(&self) -> Result<Stream> {
        let null = core::ptr::null_mut();
        let fd = retried(|| {
            real!(accept4(
                self.fd.raw(),
                null,
                core::ptr::null_mut(),
                libc::SOCK_CLOEXEC
            ))
        })?;
        // SAFETY: the kernel has just made this descriptor.
        let fd = unsafe { Fd::from_raw(fd) };
        Stream::of(fd, End::Accepted)
    }

    /// The number of the socket.
    pub fn as_raw_fd(&self) -> i32 {
        self.fd.raw()
    }
}

/// The bytes that lie in memory. A short look is cheaper than a readiness check, which works for any number of
/// descriptors.
#[inline]
fn shown(conn: &ConnRef, waits: bool) -> Option<SharedBytes> {
    match waits {
        true => ring::peek_soon(conn),
        false => ring::peek(conn),
    }
}

fn send(lane: &Lane, from: *const u8, len: usize, flags: c_int) -> Result<usize> {
    let flags = flags | libc::MSG_NOSIGNAL;
    let n = counted(io::send(lane.raw(), from.cast(), len, flags))?;
    lane.count_sent(n);
    Ok(n)
}

/// Sends committed bytes: see [`Stream::flush`].
fn flush(lane: &Lane, unsent: &mut Spare, flags: c_int) -> Result<()> {
    lane.is_ours()?;
    while unsent.left() > 0 {
        let from = unsent.base()?.as_ptr().wrapping_add(unsent.from);
        let n = match send(lane, from, unsent.left(), flags) {
            Err(Errno::INTR) => 0,
            sent => sent?,
        };
        unsent.from += n;
    }
    Ok(())
}

/// Converts the return value of a C call.
fn counted(n: isize) -> Result<usize> {
    usize::try_from(n).map_err(|_| Errno(real::errno()))
}

/// Makes a C call, again if a signal ended it.
fn retried(call: impl Fn() -> c_int) -> Result<c_int> {
    loop {
        match (call(), real::errno()) {
            (n, _) if n >= 0 => return Ok(n),
            (_, libc::EINTR) => {}
            (_, error) => return Err(Errno(error)),
        }
    }
}
