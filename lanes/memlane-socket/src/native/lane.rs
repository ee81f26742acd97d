//! The memory lane of a TCP descriptor that its user owns and closes.

use super::start::{generation, start};
use crate::hooks::calls::life;
use crate::iov::IOV_MAX;
use crate::protocol::lane::{self, Parked, place};
use crate::protocol::upgrade::{self, Standing};
use crate::real;
use crate::real::errno;
use crate::state::conn::{Role, SEEN_DATA};
use crate::state::process;
use crate::state::process::ConnRef;
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use libc::iovec;
use memlane_core::layout::ring_size_ok;
use memlane_core::reason::Reason;
use memlane_sys::iov::Piece;
use memlane_sys::sock::{TCP_ESTABLISHED, tcp_counts};
use memlane_sys::{Errno, Result, fd, time};

pub use crate::protocol::lane::place::Came;

/// Which end of the TCP connection a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The end that called `connect`.
    Connected,
    /// The end that came from `accept`.
    Accepted,
}

/// Memory that receives the peer's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The address at which it is mapped.
    pub base: NonNull<u8>,
    /// Size in bytes: a power of two, from 16 KiB to 64 MiB.
    pub len: u32,
    /// The file that it is mapped from, which the peer gets: a memfd, sealed against any change of its size.
    pub file: i32,
    /// Offset in that file, in bytes; whole pages.
    pub offset: u64,
}

/// What to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ready {
    /// Bytes to read, or the stream's end.
    ToRead,
    /// Room to write.
    ToWrite,
}

/// Bytes that a stream has carried since it was made, by lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Sent into the peer's memory.
    pub sent_in_memory: u64,
    /// Sent by TCP.
    pub sent_by_tcp: u64,
    /// Received in memory.
    pub received_in_memory: u64,
    /// Received by TCP.
    pub received_by_tcp: u64,
}

/// The most handshake steps while nothing comes; after that the lane waits for the next bytes.
const IDLE_STEPS: u32 = 60;
/// How many times in a row a caller that wants to sleep hears at once that the peer is in the middle of a write.
const STUCK_MOST: u32 = 3;
/// How long such a caller waits afterwards.
const STEP: Duration = Duration::from_millis(1);

/// The memory lane beside one TCP connection. All reads and writes of the descriptor go through this value, from one
/// thread at a time. The owner closes the descriptor after this is dropped.
#[derive(Debug)]
pub struct Lane {
    fd: i32,
    /// `None`: this process does not track the connection, which stays plain TCP.
    conn: Option<ConnRef>,
    came: Cell<bool>,
    steps: Cell<u32>,
    /// Bytes sent, and received, by either lane.
    sent: Cell<u64>,
    received: Cell<u64>,
    /// How many times in a row the peer was in the middle of a write.
    stuck: Cell<u32>,
    generation: u32,
}

impl Lane {
    /// Makes the lane of a connected TCP socket. The socket may have carried data before, if nobody uses it any more.
    ///
    /// # Errors
    /// `ENOTCONN`: it is not an established TCP connection. `EINVAL`: the memory does not meet the rules of [`Memory`].
    ///
    /// # Safety
    /// The memory, if given, stays mapped, writable and open until this value, its [`Consumer`]s and those of its user
    /// are gone.
    pub unsafe fn of(fd: i32, end: End, memory: Option<&Memory>) -> Result<Lane> {
        let page = memlane_sys::mem::PAGE as u64;
        if memory.is_some_and(|m| {
            !ring_size_ok(m.len as usize) || !m.offset.is_multiple_of(page) || m.file < 0
        }) {
            return Err(Errno::INVAL);
        }
        start();
        let counts = tcp_counts(fd).map_err(|_| Errno(libc::ENOTCONN))?;
        if counts.state != TCP_ESTABLISHED && counts.state != CLOSE_WAIT {
            return Err(Errno(libc::ENOTCONN));
        }
        let nonblock = fd::status_flags(fd)? & libc::O_NONBLOCK != 0;
        let role = if end == End::Accepted {
            Role::Accepted
        } else {
            Role::Connected
        };
        let enabled = process::enabled();
        let conn = enabled.then(|| process::open_conn(fd, role, nonblock));
        let conn = conn.flatten();
        if let Some(conn) = &conn {
            let shared = conn.shared();
            shared.rx_count.store(counts.taken, Ordering::Relaxed);
            shared.tx_count.store(counts.written, Ordering::Relaxed);
            if let Some(m) = memory {
                conn.given_ring.store(m.base.as_ptr(), Ordering::Relaxed);
                conn.given_fd.store(m.file, Ordering::Relaxed);
                conn.given_at.store(m.offset, Ordering::Relaxed);
                conn.given_size.store(m.len, Ordering::Relaxed);
            }
            conn.seen.fetch_or(SEEN_DATA, Ordering::Relaxed);
            crate::state::stats::open_entry(conn);
            crate::protocol::upgrade::connected(conn);
        }
        Ok(Lane {
            fd,
            conn,
            came: Cell::new(false),
            steps: Cell::new(0),
            sent: Cell::new(0),
            received: Cell::new(0),
            stuck: Cell::new(0),
            generation: generation(),
        })
    }

    /// The connection; `None`: this process does not track it, and it stays plain TCP.
    #[inline]
    pub(super) fn conn(&self) -> Option<&ConnRef> {
        match self.is_ours() {
            Ok(()) => self.conn.as_ref(),
            Err(_) => None, // the number may belong to another file by now
        }
    }

    /// The number of the descriptor.
    pub(super) fn raw(&self) -> i32 {
        self.fd
    }

    /// Checks that this value was made in this process, and not in one that this process was forked from. Two processes
    /// that use one stream would take each other's bytes.
    ///
    /// # Errors
    /// `ESTALE`: it was made in another process.
    #[inline]
    pub(super) fn is_ours(&self) -> Result<()> {
        match self.generation == generation() {
            true => Ok(()),
            false => Err(Errno(libc::ESTALE)),
        }
    }

    /// Where the connection stands: on memory, or on TCP and why.
    pub fn standing(&self) -> Standing {
        match self.conn() {
            Some(conn) => upgrade::standing(conn),
            None if self.is_ours().is_err() => Standing::Tcp(Reason::SHARED_FD),
            None if process::enabled() => Standing::Tcp(Reason::FD_RANGE),
            None => Standing::Tcp(Reason::CNF_ERR),
        }
    }

    /// Has the memory lane been open, even if it has ended since? If it has not, and the connection is on TCP, it never
    /// will be.
    pub fn was_open(&self) -> bool {
        self.conn().is_some_and(|conn| conn.upgraded())
    }

    /// Goes on by TCP for good. What lies in the ring can still be received.
    pub fn end(&self, why: Reason) {
        if let Some(conn) = self.conn() {
            upgrade::bar(conn, why);
        }
    }

    /// Continues the handshake with the other end until it is over, or for at most `limit`. Nothing needs to be sent
    /// for that. Without this call, the handshake takes place while the stream is used.
    pub fn negotiate(&self, limit: Duration) -> Standing {
        let begin = time::now_ns();
        loop {
            let standing = self.standing();
            let passed = Duration::from_nanos(time::now_ns().saturating_sub(begin));
            if standing != Standing::Pending || passed >= limit {
                return standing;
            }
            if let Some(conn) = self.conn() {
                upgrade::step(conn);
            }
            if self.standing() == Standing::Pending {
                time::nap_ms(1);
            }
        }
    }

    /// Receives what is next: up to `most` bytes in memory, where they stay until [`Consumer::release_to`], or bytes by
    /// TCP that fit into `pieces` (in `Came::Tcp`, 0 is the stream's end). Never waits.
    ///
    /// # Errors
    /// `EAGAIN`: nothing is there. `ENOBUFS`: TCP is next, and `pieces` is empty. Other errors are the kernel's.
    ///
    /// # Safety
    /// Every piece is writable, and nothing in it is borrowed.
    pub unsafe fn receive(&self, most: usize, pieces: &[Piece]) -> Result<Came> {
        if pieces.len() > IOV_MAX {
            return Err(Errno::INVAL);
        }
        self.is_ours()?;
        let Some(conn) = self.conn() else {
            if pieces.is_empty() {
                return Err(Errno(libc::ENOBUFS));
            }
            // SAFETY: the caller promises it.
            let n = unsafe { memlane_sys::iov::receive(self.fd, pieces) }?;
            self.count_received(n);
            return Ok(Came::Tcp(n));
        };
        const { assert!(size_of::<Piece>() == size_of::<iovec>()) };
        // SAFETY: a Piece has the layout of an iovec: an address and a length.
        let buffers = unsafe { core::slice::from_raw_parts(pieces.as_ptr().cast(), pieces.len()) };
        let came = place::receive(conn, most, buffers)?;
        self.something_came(conn);
        let (Came::Ring { len, .. } | Came::Tcp(len)) = came;
        upgrade::after_call(conn, len.cast_signed());
        self.count_received(len);
        Ok(came)
    }

    pub(super) fn count_received(&self, n: usize) {
        self.received.set(self.received.get() + n as u64);
    }

    pub(super) fn count_sent(&self, n: usize) {
        self.sent.set(self.sent.get() + n as u64);
    }

    /// Receives what is next, by either lane, into `pieces`; 0: the stream's end. Never waits.
    ///
    /// # Errors
    /// `EAGAIN`: nothing is there. Other errors are the kernel's.
    ///
    /// # Safety
    /// Every piece is writable, and nothing in it is borrowed.
    pub unsafe fn receive_copied(&self, pieces: &[Piece]) -> Result<usize> {
        self.is_ours()?;
        // SAFETY: an all-zero msghdr is a valid value.
        let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
        msg.msg_iov = pieces.as_ptr().cast_mut().cast();
        msg.msg_iovlen = pieces.len();
        let n = crate::hooks::calls::io::recvmsg(self.fd, &raw mut msg, libc::MSG_DONTWAIT);
        let n = usize::try_from(n).map_err(|_| Errno(errno()))?;
        self.count_received(n);
        Ok(n)
    }

    /// Sends a part of `piece`, into the peer's memory or by TCP, and returns its length. Never waits.
    ///
    /// # Errors
    /// `EAGAIN`: there is no room. Other errors are the kernel's.
    ///
    /// # Safety
    /// The piece is readable.
    pub unsafe fn send(&self, piece: Piece) -> Result<usize> {
        self.is_ours()?;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let n = crate::hooks::calls::io::send(self.fd, piece.base.cast(), piece.len, flags);
        let n = usize::try_from(n).map_err(|_| Errno(errno()))?;
        self.count_sent(n);
        Ok(n)
    }

    fn something_came(&self, conn: &ConnRef) {
        if !self.came.replace(true) {
            upgrade::hope_again(conn);
        }
        self.steps.set(0);
    }

    /// A handle that gives memory back; it may outlive this value. `None`: the connection is not tracked, and nothing
    /// ever comes in memory.
    pub fn consumer(&self) -> Option<Consumer> {
        let conn = self.conn().map(ConnRef::another);
        conn.map(|conn| Consumer(conn, self.generation))
    }

    /// Waits for at most `limit`. `false`: the time is over.
    ///
    /// # Errors
    /// The kernel's. A signal does not end the wait.
    pub fn wait(&self, what: Ready, limit: Duration) -> Result<bool> {
        self.is_ours()?;
        let begin = time::now_ns();
        loop {
            let passed = Duration::from_nanos(time::now_ns().saturating_sub(begin));
            let left = limit.saturating_sub(passed);
            let stepping = self.is_stepping();
            let ready = match poll(self.fd, what, if stepping { left.min(STEP) } else { left }) {
                Err(Errno::INTR) => false,
                polled => polled?,
            };
            if ready || left.is_zero() {
                return Ok(ready);
            }
            if stepping && let Some(conn) = self.conn() {
                self.steps.set(self.steps.get() + 1);
                upgrade::step(conn);
            }
        }
    }

    /// Is there a step of the handshake to take while nothing comes?
    fn is_stepping(&self) -> bool {
        self.steps.get() < IDLE_STEPS
            && self
                .conn()
                .is_some_and(|c| c.hs_due.load(Ordering::Relaxed) != u64::MAX)
    }

    /// Prepares for a sleep on the descriptor by other means (epoll): from now on the next bytes make it readable.
    /// `false`: there is something to receive now, or will be in a moment; receive, then call this again.
    pub fn arm(&self) -> bool {
        let Some(conn) = self.conn() else { return true };
        if !conn.upgraded() {
            return true;
        }
        let Some(mut held) = crate::state::guard::lock_rx(conn) else {
            return false;
        };
        let parked = lane::park(conn, &mut held);
        drop(held);
        let stuck = if parked == Parked::Stuck {
            self.stuck.get() + 1
        } else {
            0
        };
        self.stuck.set(stuck);
        if stuck > STUCK_MOST {
            // The peer is in the middle of a write; it has no CPU, or it wants to keep this side awake.
            time::nap_ms(1);
        }
        matches!(parked, Parked::Yes | Parked::Ended)
    }

    /// The bytes that each lane has carried.
    pub fn counts(&self) -> Counts {
        let entry = self.conn().and_then(|conn| process::entry(conn));
        let (sent, received) = entry.map_or((0, 0), |e| {
            let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
            (load(&e.tx_ring_bytes), load(&e.rx_ring_bytes))
        });
        // After the lane's end nothing else counts the bytes of TCP.
        Counts {
            sent_in_memory: sent,
            sent_by_tcp: self.sent.get().saturating_sub(sent),
            received_in_memory: received,
            received_by_tcp: self.received.get().saturating_sub(received),
        }
    }
}

/// `TCP_CLOSE_WAIT`: the other end has sent everything that it will send.
const CLOSE_WAIT: u8 = 8;

impl Drop for Lane {
    /// Does what the hook of `close(2)` does before the kernel's close.
    fn drop(&mut self) {
        let ours = self.is_ours().is_ok() && !process::is_borrowed();
        if ours && process::known(self.fd) {
            life::before_close(self.fd);
        }
        if !ours {
            // The hold on the connection belongs to another process.
            core::mem::forget(self.conn.take());
        }
    }
}

/// Gives received memory back to the sender.
#[derive(Debug)]
pub struct Consumer(ConnRef, u32);

impl Consumer {
    /// Releases the bytes below this stream offset: they are not in use any more.
    pub fn release_to(&self, offset: u64) {
        if self.1 == generation() {
            place::release_to(&self.0, offset);
        }
    }

    /// The stream offset of the next byte.
    pub fn taken(&self) -> u64 {
        place::taken(&self.0)
    }
}

fn poll(fd: i32, what: Ready, limit: Duration) -> Result<bool> {
    let mut one = libc::pollfd {
        fd,
        events: match what {
            Ready::ToRead => libc::POLLIN,
            Ready::ToWrite => libc::POLLOUT,
        },
        revents: 0,
    };
    let timeout = libc::timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    let at: *mut libc::pollfd = &raw mut one;
    let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    let n = crate::hooks::wait::poll(at, 1, Some(limit_us), false, || {
        real!(ppoll(at, 1, &raw const timeout, core::ptr::null()))
    });
    match n {
        n if n < 0 => Err(Errno(errno())),
        n => Ok(n > 0),
    }
}
