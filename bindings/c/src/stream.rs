//! The socket lane by name: TCP connections whose bytes go through memory where the other end is on this host.

use crate::devmem::{accept, connect, end_of, is_stream, readiness};
use crate::fault::{Code, Fault, Result, guard, guard_int};
use crate::pointer::{Out, array, room, text};
use crate::table::{Held, get, insert, remove};
use crate::types::CStreamCounts;
use core::ffi::{c_char, c_int, c_void};
use memlane_socket::native::{End, Here, Ready, Slot, Standing, Stream};
use memlane_sys::Errno;
use memlane_sys::fd::Fd;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::{self, ThreadId};

/// A stream and what of it the program has.
#[derive(Debug)]
pub(crate) struct Native {
    fd: c_int,
    turn: Mutex<Turn>,
}

impl Held for Native {
    const NAME: &str = "memlane_stream";
}

/// What one thread at a time uses.
#[derive(Debug)]
struct Turn {
    lent: Lent,
    /// From a box; borrowed by `lent` for as long as that is something.
    stream: NonNull<Stream>,
}

/// A place that the program was given an address of.
#[derive(Debug)]
enum Lent {
    Nothing,
    /// To be filled, by this thread: it has the lane's lock.
    Slot(Slot<'static>, ThreadId),
    /// To be looked at.
    Here(Here<'static>),
}

// SAFETY: a stream may go from thread to thread; a slot is used by the thread that it was lent to alone, which `slot_of`
// and `close` check; what lies ready is looked at under the lock.
unsafe impl Send for Turn {}

impl Drop for Turn {
    fn drop(&mut self) {
        self.lent = Lent::Nothing;
        // SAFETY: of a box, and borrowed by nothing any more.
        drop(unsafe { Box::from_raw(self.stream.as_ptr()) });
    }
}

impl Turn {
    /// The stream, while nothing of it is lent.
    fn stream(&mut self) -> Result<&mut Stream> {
        match self.lent {
            // SAFETY: it lives until `self` is dropped, and nothing else borrows it.
            Lent::Nothing => Ok(unsafe { self.stream.as_mut() }),
            _ => {
                let words = "a place is lent: commit or consume it first (0 bytes will do)";
                Err(Fault::new(Code::Busy, words))
            }
        }
    }

    /// The same, for what is kept beside it in `lent`.
    fn lends(&mut self) -> Result<&'static mut Stream> {
        self.stream()?;
        // SAFETY: it lives until `self` is dropped, which drops `lent` first; and while something is lent, nothing else
        // borrows it.
        Ok(unsafe { self.stream.as_mut() })
    }
}

impl Native {
    fn new(socket: OwnedFd, end: End) -> Result<Native> {
        // SAFETY: ours alone, given up by its owner here.
        let socket = unsafe { Fd::from_raw(socket.into_raw_fd()) };
        let mut stream = Stream::of(socket, end).map_err(fault)?;
        stream.set_nonblocking(true).map_err(fault)?;
        let fd = stream.as_raw_fd();
        let stream = NonNull::from(Box::leak(Box::new(stream)));
        let lent = Lent::Nothing;
        Ok(Native {
            fd,
            turn: Mutex::new(Turn { lent, stream }),
        })
    }

    fn turn(&self) -> Result<MutexGuard<'_, Turn>> {
        match self.turn.try_lock() {
            Ok(turn) => Ok(turn),
            Err(TryLockError::Poisoned(turn)) => Ok(turn.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Fault::new(Code::Busy, "another thread uses this stream"))
            }
        }
    }
}

fn fault(errno: Errno) -> Fault {
    match errno {
        Errno::AGAIN => Fault::new(Code::Again, "nothing is there yet, or no room"),
        errno => Fault::kernel(errno.0, errno.to_string()),
    }
}

fn number(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Connects to HOST:PORT.
///
/// # Safety
/// As `memlane.h` says: pointers are NULL, or point to what they are for. So in all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_stream_connect(
    address: *const c_char,
    milliseconds: i32,
    out: *mut usize,
) -> c_int {
    guard_int(|| {
        // SAFETY: the program's promise.
        let (address, out) = unsafe { (text("address", address)?, Out::new("out", out, 1)?) };
        let socket = connect(address, end_of(milliseconds))?;
        out.put(0, insert(Arc::new(Native::new(socket, End::Connected)?))?);
        Ok(0)
    })
}

/// Takes a connection.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_stream_accept(
    listener: usize,
    milliseconds: i32,
    out: *mut usize,
) -> c_int {
    guard_int(|| {
        let listener = get::<TcpListener>(listener)?;
        // SAFETY: the program's promise.
        let out = unsafe { Out::new("out", out, 1)? };
        let socket = accept(&listener, end_of(milliseconds))?;
        out.put(0, insert(Arc::new(Native::new(socket, End::Accepted)?))?);
        Ok(0)
    })
}

/// Of a connected TCP socket of the program's; `accepted`: it came from accept, not from connect. memlane's from now on.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes; nobody else closes the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_stream_adopt(
    socket: c_int,
    accepted: c_int,
    out: *mut usize,
) -> c_int {
    guard_int(|| {
        // SAFETY: the program's promise.
        let out = unsafe { Out::new("out", out, 1)? };
        is_stream(socket)?;
        // SAFETY: it is open, and given to us.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let end = if accepted == 0 {
            End::Connected
        } else {
            End::Accepted
        };
        out.put(0, insert(Arc::new(Native::new(socket, end)?))?);
        Ok(0)
    })
}

/// Closes it. What was committed has gone; what is lent is none from now on.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_stream_close(stream: usize) -> c_int {
    guard_int(|| {
        let native = get::<Native>(stream)?;
        if let Lent::Slot(_, thread) = &native.turn()?.lent
            && *thread != thread::current().id()
        {
            let words = "another thread has reserved a place";
            return Err(Fault::new(Code::Busy, words));
        }
        remove::<Native>(stream).map(|_| 0)
    })
}

/// Reads what is there; 0 at the stream's end. Never waits.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_stream_read(stream: usize, into: *mut c_void, len: usize) -> i64 {
    guard(|| {
        let native = get::<Native>(stream)?;
        if len == 0 {
            return Err(Fault::new(Code::Invalid, "room for no byte"));
        }
        let mut turn = native.turn()?;
        let stream = turn.stream()?;
        // As much as one read takes: not all of a large buffer is to be cleared for a few bytes.
        let len = len.min(1 << 16);
        // SAFETY: the program's promise.
        let into = unsafe { room("into", into.cast(), len)? };
        Ok(number(stream.read(into).map_err(fault)?))
    })
}

/// Writes some of it; how much. Never waits.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_stream_write(
    stream: usize,
    from: *const c_void,
    len: usize,
) -> i64 {
    guard(|| {
        let native = get::<Native>(stream)?;
        // SAFETY: the program's promise.
        let from = unsafe { array("from", from.cast(), len)? };
        let mut turn = native.turn()?;
        Ok(number(turn.stream()?.write(from).map_err(fault)?))
    })
}

/// A place for up to `want` bytes; in the peer's memory, if the lane is open. To be committed by the same thread.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_stream_reserve(
    stream: usize,
    want: usize,
    place: *mut *mut c_void,
) -> i64 {
    guard(|| {
        let native = get::<Native>(stream)?;
        // SAFETY: the program's promise.
        let place = unsafe { Out::new("place", place, 1)? };
        let mut turn = native.turn()?;
        let slot = turn.lends()?.reserve(want).map_err(fault)?;
        place.put(0, slot.as_ptr().cast());
        let len = slot.len();
        turn.lent = Lent::Slot(slot, thread::current().id());
        Ok(number(len))
    })
}

/// Sends the first bytes of the place that is reserved; 0: none.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_stream_commit(stream: usize, len: usize) -> c_int {
    guard_int(|| {
        let native = get::<Native>(stream)?;
        let mut turn = native.turn()?;
        let slot = slot_of(&mut turn, len)?;
        if len > 0 {
            slot.commit(len).map_err(fault)?;
        }
        Ok(0)
    })
}

fn slot_of(turn: &mut Turn, len: usize) -> Result<Slot<'static>> {
    match std::mem::replace(&mut turn.lent, Lent::Nothing) {
        Lent::Slot(slot, thread) if thread != thread::current().id() => {
            turn.lent = Lent::Slot(slot, thread);
            Err(Fault::new(
                Code::Busy,
                "another thread has reserved this place",
            ))
        }
        Lent::Slot(slot, thread) if len > slot.len() => {
            turn.lent = Lent::Slot(slot, thread);
            Err(Fault::new(Code::Outside, "more than the place has"))
        }
        Lent::Slot(slot, _) => Ok(slot),
        other => {
            turn.lent = other;
            Err(Fault::new(Code::Invalid, "no place is reserved"))
        }
    }
}

/// What is next, where it lies; 0: the stream's end. Never waits.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_stream_peek(stream: usize, place: *mut *const c_void) -> i64 {
    guard(|| {
        let native = get::<Native>(stream)?;
        // SAFETY: the program's promise.
        let place = unsafe { Out::new("place", place, 1)? };
        let mut turn = native.turn()?;
        let here = turn.lends()?.peek().map_err(fault)?;
        let len = here.len();
        place.put(0, here.as_ptr().cast());
        if len > 0 {
            turn.lent = Lent::Here(here);
        }
        Ok(number(len))
    })
}

/// The first bytes of what was shown are done with; 0: none.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_stream_consume(stream: usize, len: usize) -> c_int {
    guard_int(|| {
        let native = get::<Native>(stream)?;
        let mut turn = native.turn()?;
        match std::mem::replace(&mut turn.lent, Lent::Nothing) {
            Lent::Here(here) if len > here.len() => {
                turn.lent = Lent::Here(here);
                Err(Fault::new(Code::Outside, "more than was shown"))
            }
            Lent::Here(here) => {
                here.consume(len);
                Ok(0)
            }
            other => {
                turn.lent = other;
                Err(Fault::new(Code::Invalid, "nothing is shown"))
            }
        }
    })
}

/// Sends what was committed and could not go at once. Never waits.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_stream_flush(stream: usize) -> c_int {
    guard_int(|| {
        let native = get::<Native>(stream)?;
        let mut turn = native.turn()?;
        turn.stream()?.flush().map_err(fault)?;
        Ok(0)
    })
}

/// Nothing more is sent: the other side reads to the end.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_stream_shutdown(stream: usize) -> c_int {
    guard_int(|| {
        let native = get::<Native>(stream)?;
        let mut turn = native.turn()?;
        turn.stream()?.finish().map_err(fault)?;
        Ok(0)
    })
}

/// Waits. 1: there is what was asked for; 0: time is up.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_stream_wait(stream: usize, until: c_int, milliseconds: i32) -> c_int {
    guard_int(|| {
        let native = get::<Native>(stream)?;
        let ready = match until {
            0 => Ready::ToRead,
            2 => Ready::ToWrite,
            _ => return Err(Fault::new(Code::Invalid, "until: PAYLOAD or SOCKET")),
        };
        let mut turn = native.turn()?;
        let waited = turn.stream()?.wait(ready, readiness(milliseconds));
        Ok(waited.map_err(fault)?.into())
    })
}

/// 1: the next bytes make the descriptor readable. 0: there is something to read already.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_stream_arm(stream: usize) -> c_int {
    guard_int(|| {
        let native = get::<Native>(stream)?;
        let mut turn = native.turn()?;
        Ok(turn.stream()?.arm().into())
    })
}

/// For poll, between an arm that said 1 and the next call.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_stream_fd(stream: usize) -> c_int {
    guard_int(|| Ok(get::<Native>(stream)?.fd.into()))
}

fn standing(standing: Standing) -> i64 {
    match standing {
        Standing::Pending => 0,
        Standing::Memory => 1,
        Standing::Tcp(_) => 2,
    }
}

/// By which lane bytes go now.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_stream_lane(stream: usize) -> c_int {
    guard_int(|| {
        let native = get::<Native>(stream)?;
        let mut turn = native.turn()?;
        Ok(standing(turn.stream()?.standing()))
    })
}

/// The same, once both ends have agreed; they have so long.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_stream_negotiate(stream: usize, milliseconds: i32) -> c_int {
    guard_int(|| {
        let native = get::<Native>(stream)?;
        let mut turn = native.turn()?;
        Ok(standing(turn.stream()?.negotiate(readiness(milliseconds))))
    })
}

/// What went which way: as many bytes of it as the program's structure has.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_stream_counts(
    stream: usize,
    into: *mut c_void,
    size: usize,
) -> c_int {
    guard_int(|| {
        let native = get::<Native>(stream)?;
        let mut turn = native.turn()?;
        let counts = turn.stream()?.counts();
        let counts = CStreamCounts {
            sent_in_memory: counts.sent_in_memory,
            sent_by_tcp: counts.sent_by_tcp,
            received_in_memory: counts.received_in_memory,
            received_by_tcp: counts.received_by_tcp,
        };
        if size > 4096 {
            let words = "size: sizeof(memlane_stream_counted)";
            return Err(Fault::new(Code::Invalid, words));
        }
        // SAFETY: the program's promise. What this version does not have stays 0.
        let into = unsafe { room("into", into.cast(), size)? };
        let len = size.min(size_of::<CStreamCounts>());
        // SAFETY: numbers only, without gaps; `into` has `len` bytes.
        unsafe {
            core::ptr::copy_nonoverlapping((&raw const counts).cast(), into.as_mut_ptr(), len);
        }
        Ok(0)
    })
}
