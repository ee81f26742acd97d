//! Streams into a region: listeners, connections, fragments and their tokens.

use crate::fault::{Code, Fault, Result, guard, guard_int};
use crate::pointer::{Out, array, room, text};
use crate::table::{Held, get, insert, remove};
use crate::types::{CCounts, CFragment, CRange, CTerms};
use core::ffi::{c_char, c_int, c_void};
use memlane_devmem::error::ReceiveError;
use memlane_devmem::io::lane::{self, End};
use memlane_devmem::io::{Binding, Desk, Owned, Path, Stream, StreamCounts, Terms, Wait};
use memlane_devmem::{Fragment, Range};
use memlane_wait::event::poll;
use memlane_wait::mutex::lock;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// A stream and what belongs to its handle.
///
/// Who receives, sends or waits has `turn`: one thread at a time, another one is told so and does not wait. Who gives
/// tokens back goes to the desk, whoever waits meanwhile.
#[derive(Debug)]
pub(crate) struct Flow {
    turn: Mutex<Turn>,
    desk: Desk,
    binding: Arc<Binding>,
    /// The stream's, which is open as long as `turn` is.
    fd: c_int,
    told: Mutex<StreamReport>,
}

impl Held for Flow {
    const NAME: &str = "memlane_devmem";
}

impl Held for TcpListener {
    const NAME: &str = "memlane_listener";
}

impl Held for Owned {
    const NAME: &str = "memlane_kept";
}

#[derive(Debug)]
struct Turn {
    stream: Stream,
    /// Received, and not told yet: the program's array was too short.
    pending: VecDeque<Fragment>,
    scratch: Vec<Fragment>,
}

/// What a stream has said when its turn was over.
#[derive(Debug)]
struct StreamReport {
    path: Path,
    counts: StreamCounts,
}

impl Flow {
    fn new(stream: Stream, binding: &Arc<Binding>) -> Flow {
        let (path, counts) = (stream.path(), stream.counts());
        Flow {
            desk: stream.desk(),
            fd: stream.as_fd().as_raw_fd(),
            binding: Arc::clone(binding),
            told: Mutex::new(StreamReport { path, counts }),
            turn: Mutex::new(Turn {
                stream,
                pending: VecDeque::new(),
                scratch: Vec::new(),
            }),
        }
    }

    fn turn(&self) -> Result<MutexGuard<'_, Turn>> {
        match self.turn.try_lock() {
            Ok(turn) => Ok(turn),
            Err(TryLockError::Poisoned(turn)) => Ok(turn.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let words = "another thread receives, sends or waits on this stream";
                Err(Fault::new(Code::Busy, words))
            }
        }
    }

    fn told(&self) -> MutexGuard<'_, StreamReport> {
        lock(&self.told)
    }

    fn tell(&self, stream: &Stream) {
        let (path, counts) = (stream.path(), stream.counts());
        *self.told() = StreamReport { path, counts };
    }
}

/// Does a stretch lie within the first `bytes` bytes? Asked before the program's memory is touched.
pub(crate) fn fits(bytes: usize, offset: u64, len: usize) -> Result<()> {
    let end = offset.checked_add(len as u64);
    match end.filter(|end| *end <= bytes as u64) {
        Some(_) => Ok(()),
        None => Err(Fault::new(Code::Outside, "beyond the end")),
    }
}

/// When a wait is over: -1 milliseconds are for ever, for all that a program lives.
pub(crate) fn end_of(milliseconds: i32) -> Instant {
    const FOR_EVER: Duration = Duration::from_secs(1 << 32);
    let limit = u64::try_from(milliseconds).map_or(FOR_EVER, Duration::from_millis);
    Instant::now() + limit
}

/// The same as a time from now on.
pub(crate) fn readiness(milliseconds: i32) -> Duration {
    end_of(milliseconds).saturating_duration_since(Instant::now())
}

/// # Safety
/// Null, or terms as the program's header has them.
unsafe fn terms(terms: *const CTerms) -> Result<Terms> {
    if terms.is_null() {
        return Ok(Terms::default());
    }
    // SAFETY: the program's promise; all versions begin with their size.
    let size = unsafe { array("terms", terms.cast::<u32>(), 1)?[0] };
    if (size as usize) < size_of::<CTerms>() {
        return Err(Fault::new(Code::Invalid, "terms: size is not set"));
    }
    // SAFETY: as above, and of this version at least.
    let asked = unsafe { array("terms", terms, 1)?[0] };
    if asked.reserved != 0 {
        return Err(Fault::new(Code::Invalid, "terms: reserved is not 0"));
    }
    let mut terms = Terms::default();
    if !asked.require.is_null() {
        // SAFETY: as above.
        let name = unsafe { text("require", asked.require)? };
        let wrong = |why| Fault::new(Code::Path, why);
        let path = name.parse().map_err(wrong)?;
        if !matches!(path, Path::Lane | Path::Mapped | Path::Staged) {
            return Err(ReceiveError::Unprepared(path).into());
        }
        terms.require = Some(path);
    }
    if asked.fragments != 0 {
        terms.fragments = asked.fragments;
    }
    if asked.burst != 0 {
        terms.burst = asked.burst;
    }
    Ok(terms)
}

fn addresses(address: &str) -> Result<impl Iterator<Item = std::net::SocketAddr> + use<>> {
    let wrong = |error: io::Error| Fault::new(Code::Invalid, format!("{address}: {error}"));
    address.to_socket_addrs().map_err(wrong)
}

/// Waits for connections at HOST:PORT (port 0: any).
///
/// # Safety
/// As `memlane.h` says: pointers are NULL, or point to what they are for. So in all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_listen(address: *const c_char, out: *mut usize) -> c_int {
    guard_int(|| {
        // SAFETY: the program's promise.
        let (address, out) = unsafe { (text("address", address)?, Out::new("out", out, 1)?) };
        let refused = |error| Fault::system(address, &error);
        let at: Vec<_> = addresses(address)?.collect();
        let listener = TcpListener::bind(&at[..]).map_err(refused)?;
        // A connection that is gone again before it is taken makes nobody wait.
        listener.set_nonblocking(true).map_err(refused)?;
        out.put(0, insert(Arc::new(listener))?);
        Ok(0)
    })
}

/// Where it listens, as text; how long that is.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_listener_address(
    listener: usize,
    into: *mut c_char,
    len: usize,
) -> c_int {
    guard_int(|| {
        let listener = get::<TcpListener>(listener)?;
        let at = listener.local_addr();
        let at = at.map_err(|error| Fault::system("getsockname", &error))?;
        let at = at.to_string();
        if len <= at.len() {
            let words = format!("into: {} bytes are needed", at.len() + 1);
            return Err(Fault::new(Code::TooMany, words));
        }
        // SAFETY: the program's promise.
        let into = unsafe { room("into", into.cast(), at.len() + 1)? };
        into[..at.len()].copy_from_slice(at.as_bytes());
        Ok(i64::try_from(at.len()).unwrap_or(i64::MAX))
    })
}

/// For poll: readable when a connection is there. The listener's, for as long as it is.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_listener_fd(listener: usize) -> c_int {
    guard_int(|| Ok(get::<TcpListener>(listener)?.as_raw_fd().into()))
}

/// No more connections.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_listener_close(listener: usize) -> c_int {
    guard_int(|| remove::<TcpListener>(listener).map(|_| 0))
}

fn readable(fd: BorrowedFd<'_>, end: Instant) -> Result<bool> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match poll(&mut fds, Some(left)) {
            Err(errno) => return Err(Fault::system("poll", &errno.into())),
            // A signal handler ran: there is time left.
            Ok(0) if !left.is_zero() => {}
            Ok(count) => return Ok(count > 0),
        }
    }
}

pub(crate) fn accept(listener: &TcpListener, end: Instant) -> Result<OwnedFd> {
    loop {
        match listener.accept() {
            Ok((socket, _)) => return Ok(socket.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::system("accept", &error)),
        }
        if !readable(listener.as_fd(), end)? {
            return Err(Fault::new(Code::TimedOut, "nobody has connected"));
        }
    }
}

/// By the best path that a connection of this end can have.
fn best(socket: OwnedFd, end: End, binding: &Arc<Binding>, terms: &Terms) -> Result<Stream> {
    let stream = lane::stream(socket, end, binding, terms);
    stream.map_err(|no| Fault::new(Code::Path, no.to_string()))
}

/// Takes a connection, whose payload goes to the region.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_devmem_accept(
    listener: usize,
    region: usize,
    asked: *const CTerms,
    milliseconds: i32,
    out: *mut usize,
) -> c_int {
    guard_int(|| {
        let (listener, binding) = (get::<TcpListener>(listener)?, get::<Binding>(region)?);
        // SAFETY: the program's promise.
        let (terms, out) = unsafe { (terms(asked)?, Out::new("out", out, 1)?) };
        let socket = accept(&listener, end_of(milliseconds))?;
        let stream = best(socket, End::Accepted, &binding, &terms)?;
        out.put(0, insert(Arc::new(Flow::new(stream, &binding)))?);
        Ok(0)
    })
}

pub(crate) fn connect(address: &str, end: Instant) -> Result<OwnedFd> {
    let mut last = Fault::new(Code::Invalid, format!("{address}: no address"));
    for at in addresses(address)? {
        let left = end.saturating_duration_since(Instant::now());
        // 0 is refused by the standard library.
        let left = left.max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&at, left) {
            Ok(socket) => return Ok(socket.into()),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                last = Fault::new(Code::TimedOut, format!("{at}: {error}"));
            }
            Err(error) => last = Fault::system(&at.to_string(), &error),
        }
    }
    Err(last)
}

/// Connects to HOST:PORT.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_devmem_connect(
    address: *const c_char,
    region: usize,
    asked: *const CTerms,
    milliseconds: i32,
    out: *mut usize,
) -> c_int {
    guard_int(|| {
        let binding = get::<Binding>(region)?;
        // SAFETY: the program's promise.
        let (address, terms, out) = unsafe {
            let address = text("address", address)?;
            (address, terms(asked)?, Out::new("out", out, 1)?)
        };
        let socket = connect(address, end_of(milliseconds))?;
        let stream = best(socket, End::Connected, &binding, &terms)?;
        out.put(0, insert(Arc::new(Flow::new(stream, &binding)))?);
        Ok(0)
    })
}

/// Of a connected socket of the program's, which is memlane's from now on; only if this succeeds.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes; nobody else closes the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_devmem_adopt(
    socket: c_int,
    region: usize,
    asked: *const CTerms,
    out: *mut usize,
) -> c_int {
    guard_int(|| {
        let binding = get::<Binding>(region)?;
        // SAFETY: the program's promise.
        let (terms, out) = unsafe { (terms(asked)?, Out::new("out", out, 1)?) };
        is_stream(socket)?;
        if terms.require == Some(Path::Lane) {
            return Err(ReceiveError::Unprepared(Path::Lane).into());
        }
        // SAFETY: it is open, and given to us.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let stream = Stream::new(socket, &binding, &terms);
        out.put(0, insert(Arc::new(Flow::new(stream, &binding)))?);
        Ok(0)
    })
}

pub(crate) fn is_stream(socket: c_int) -> Result<()> {
    use rustix::net::{SocketType, getpeername, sockopt};
    if socket < 0 {
        return Err(Fault::new(Code::Invalid, "socket: no descriptor"));
    }
    // SAFETY: borrowed to ask the kernel what it is: a number that is not open is one of its answers.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    let refused = |errno: rustix::io::Errno| Fault::system("socket", &errno.into());
    match sockopt::socket_type(socket).map_err(refused)? {
        SocketType::STREAM => getpeername(socket).map(drop).map_err(refused),
        _ => Err(Fault::new(Code::Invalid, "socket: no stream")),
    }
}

/// Closes it; what is out comes back, but for what is kept.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_devmem_close(devmem: usize) -> c_int {
    guard_int(|| remove::<Flow>(devmem).map(|_| 0))
}

/// For poll: the socket. The stream's, for as long as it is.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_devmem_fd(devmem: usize) -> c_int {
    guard_int(|| Ok(get::<Flow>(devmem)?.fd.into()))
}

/// By which path payload comes; lives for ever. NULL: no such stream.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_devmem_path(devmem: usize) -> *const c_char {
    let mut name: &CStr = c"";
    let found = guard(|| {
        let path = get::<Flow>(devmem)?.told().path;
        name = path_name(path)?;
        Ok(0)
    });
    match found {
        0 => name.as_ptr(),
        _ => core::ptr::null(),
    }
}

/// With a 0 at its end, made once for each path.
fn path_name(path: Path) -> Result<&'static CStr> {
    static NAMES: Mutex<Vec<&'static CStr>> = Mutex::new(Vec::new());
    let mut names = lock(&NAMES);
    let known = names
        .iter()
        .find(|name| name.to_bytes() == path.name().as_bytes());
    if let Some(name) = known {
        return Ok(name);
    }
    let made = std::ffi::CString::new(path.name());
    let made = made.map_err(|_| Fault::new(Code::Bug, "a path's name"))?;
    let made: &'static CStr = Box::leak(made.into_boxed_c_str());
    names.push(made);
    Ok(made)
}

/// Waits. 1: there is what was asked for; 0: time is up.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_devmem_wait(devmem: usize, until: c_int, milliseconds: i32) -> c_int {
    guard_int(|| {
        let flow = get::<Flow>(devmem)?;
        let until = match until {
            0 => Wait::Payload,
            1 => Wait::Room,
            2 => Wait::Socket,
            3 => Wait::Sent,
            _ => return Err(Fault::new(Code::Invalid, "until: MEMLANE_WAIT_…")),
        };
        let turn = flow.turn()?;
        if until == Wait::Payload && !turn.pending.is_empty() {
            return Ok(1);
        }
        let left = readiness(milliseconds);
        let waited = turn.stream.wait(until, left);
        let waited = waited.map_err(|errno| Fault::kernel(errno.0, format!("poll: {errno}")));
        Ok(waited?.into())
    })
}

/// What has come, into the caller's array; how many, 0 at the stream's end. Never waits.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_devmem_receive(
    devmem: usize,
    fragments: *mut CFragment,
    room: usize,
) -> c_int {
    guard_int(|| {
        let flow = get::<Flow>(devmem)?;
        if room == 0 {
            return Err(Fault::new(Code::Invalid, "room for no fragment"));
        }
        // SAFETY: the program's promise.
        let out = unsafe { Out::new("fragments", fragments, room)? };
        let mut turn = flow.turn()?;
        let Turn {
            stream,
            pending,
            scratch,
        } = &mut *turn;
        if pending.is_empty() {
            scratch.clear();
            let came = stream.receive(scratch);
            flow.tell(stream);
            came?;
            pending.extend(scratch.drain(..));
        }
        let count = pending.len().min(room);
        for (at, Fragment { offset, len, token }) in pending.drain(..count).enumerate() {
            out.put(at, CFragment { offset, len, token });
        }
        Ok(i64::try_from(count).unwrap_or(i64::MAX))
    })
}

/// Gives fragments back, in ranges of tokens; how many were out.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_devmem_release(
    devmem: usize,
    ranges: *const CRange,
    count: usize,
) -> c_int {
    guard_int(|| {
        let flow = get::<Flow>(devmem)?;
        // SAFETY: the program's promise.
        let ranges = unsafe { array("ranges", ranges, count)? };
        let range = |CRange { start, count }: &CRange| Range {
            start: *start,
            count: *count,
        };
        let ranges: Vec<_> = ranges.iter().map(range).collect();
        Ok(flow.desk.release(&ranges)?.into())
    })
}

/// Gives these fragments back, as many as they are; how many were out.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_devmem_release_all(
    devmem: usize,
    fragments: *const CFragment,
    count: usize,
) -> i64 {
    guard(|| {
        let flow = get::<Flow>(devmem)?;
        // SAFETY: the program's promise.
        let fragments = unsafe { array("fragments", fragments, count)? };
        let mut given = 0;
        // One release takes up to 128 ranges.
        for fragments in fragments.chunks(128) {
            let one = |fragment: &CFragment| Range {
                start: fragment.token,
                count: 1,
            };
            let ranges: Vec<_> = fragments.iter().map(one).collect();
            given += i64::from(flow.desk.release(&ranges)?);
        }
        Ok(given)
    })
}

/// Copies bytes of a fragment that is out.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_devmem_read(
    devmem: usize,
    token: u32,
    at: u32,
    into: *mut c_void,
    len: usize,
) -> c_int {
    guard_int(|| {
        let flow = get::<Flow>(devmem)?;
        // More than any fragment has: not to touch the program's memory for nothing.
        fits(flow.binding.region().len(), at.into(), len)?;
        // SAFETY: the program's promise.
        let into = unsafe { room("into", into.cast(), len)? };
        flow.desk.read(token, at, into)?;
        Ok(0)
    })
}

/// Sends bytes of the region; how many went. Never waits.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_devmem_send(devmem: usize, offset: u64, len: u32) -> i64 {
    guard(|| {
        let flow = get::<Flow>(devmem)?;
        let mut turn = flow.turn()?;
        // An int can say as many.
        let len = len.min(i32::MAX.unsigned_abs());
        let sent = turn.stream.send(offset, len);
        flow.tell(&turn.stream);
        Ok(sent?.into())
    })
}

/// The other side sees the end of the stream; receiving goes on.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_devmem_shutdown(devmem: usize) -> c_int {
    guard_int(|| {
        let flow = get::<Flow>(devmem)?;
        let turn = flow.turn()?;
        let done = rustix::net::shutdown(turn.stream.as_fd(), rustix::net::Shutdown::Write);
        done.map_err(|errno| Fault::system("shutdown", &errno.into()))?;
        Ok(0)
    })
}

/// From now on this fragment is its handle's: it outlives the stream, and no release frees it.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_devmem_keep(
    devmem: usize,
    fragment: *const CFragment,
    out: *mut usize,
) -> c_int {
    guard_int(|| {
        let flow = get::<Flow>(devmem)?;
        // SAFETY: the program's promise.
        let (fragment, out) =
            unsafe { (array("fragment", fragment, 1)?[0], Out::new("out", out, 1)?) };
        let CFragment { offset, len, token } = fragment;
        let kept = flow.desk.own(Fragment { offset, len, token });
        let why = "no such fragment is out, or it is kept already";
        let kept = kept.ok_or_else(|| Fault::new(Code::Token, why))?;
        out.put(0, insert(Arc::new(kept))?);
        Ok(0)
    })
}

/// Gives a kept fragment back.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_kept_release(kept: usize) -> c_int {
    guard_int(|| remove::<Owned>(kept).map(|_| 0))
}

/// What was counted: as many bytes of it as the program's structure has.
///
/// # Safety
/// Pointers are NULL or valid for what the function reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_devmem_counts(
    devmem: usize,
    into: *mut c_void,
    size: usize,
) -> c_int {
    guard_int(|| {
        let flow = get::<Flow>(devmem)?;
        let (counts, pool) = (flow.told().counts, flow.binding.counts());
        let (released, out) = flow.desk.released_and_out();
        let counts = CCounts {
            received: counts.received,
            fragments: counts.fragments,
            released,
            bounced: counts.bounced,
            no_room: counts.no_room,
            sent: counts.sent,
            out,
            chunk_bytes: pool.chunk,
            chunks: pool.chunks,
            chunks_free: pool.free,
        };
        let known = size_of::<CCounts>();
        if size > 4096 {
            return Err(Fault::new(Code::Invalid, "size: sizeof(memlane_counts)"));
        }
        // SAFETY: the program's promise. What this version does not have stays 0.
        let into = unsafe { room("into", into.cast(), size)? };
        let len = size.min(known);
        // SAFETY: numbers only, without gaps, as `types` asserts; `into` has `len` bytes.
        unsafe {
            core::ptr::copy_nonoverlapping((&raw const counts).cast(), into.as_mut_ptr(), len)
        };
        Ok(0)
    })
}
