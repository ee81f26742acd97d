//! fio's external engine: `fio --ioengine=external:/path/libmemlane_fio.so --thread --address=… --volume=…` measures
//! a volume without any export. See `docs/guides/fio.md`.
//!
//! fio's structures are known to `shim.c` alone, which is compiled against the headers of the fio that is there; what
//! crosses to it from here are numbers, strings and opaque pointers. Without those headers this library is no engine.
//!
//! | room | what |
//! |---|---|
//! | `job` | one job's requests |
//! | `memory` | fio's buffers |
//! | `session` | what jobs share |
//! | `address` | what a user writes |

mod address;
mod job;
mod memory;
mod session;

use job::{Buffer, Job, Refusal, Request};
use memlane_block::client::Access;
use memlane_block::volume::{Flags, Op, Volume as _};
use memlane_transport::engine::policy::Policy;
use session::{Attached, Settings};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

/// `FIO_Q_BUSY`, told to the shim.
const BUSY: c_int = 1;
/// `FLAG_DURABLE`: done means durable.
const DURABLE: u32 = 1;

/// Options of a job; the strings may be missing.
#[repr(C)]
pub struct CSettings {
    address: *const c_char,
    volume: *const c_char,
    session: *const c_char,
    tls: *const c_char,
    tls_name: *const c_char,
    access: u32,
    policy: u32,
    connections: u32,
    /// Seconds.
    timeout: u32,
}

/// What a volume is.
#[repr(C)]
pub struct CShape {
    size: u64,
    block: u32,
    read_only: u32,
    trim: u32,
    zeroes: u32,
}

/// A request that is done.
#[repr(C)]
pub struct CEvent {
    index: u32,
    error: i32,
    /// Where its buffer is from now on; null: where it was.
    buffer: *mut c_void,
}

/// # Safety
/// Null, or a string that ends.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    let string = unsafe { CStr::from_ptr(string) };
    string.to_string_lossy().into_owned()
}

/// Copies an error into the caller's memory, cut to its length, with a 0 at its end.
///
/// # Safety
/// `why` has `len` writable bytes.
unsafe fn tell(why: *mut c_char, len: usize, error: &str) {
    let Some(most) = len.checked_sub(1) else {
        return;
    };
    let count = error.len().min(most);
    // SAFETY: `count` + 1 bytes are no more than `len`; `error` is memory of our own.
    unsafe {
        why.copy_from_nonoverlapping(error.as_ptr().cast(), count);
        why.add(count).write(0);
    }
}

/// # Safety
/// The strings end, where there are any.
unsafe fn settings(c: &CSettings) -> (Settings, Access) {
    // SAFETY: the caller's promise.
    let [address, session, tls, tls_name] =
        [c.address, c.session, c.tls, c.tls_name].map(|string| unsafe { text(string) });
    let access = match c.access {
        1 => Access::ReadOnly,
        2 => Access::Migration,
        _ => Access::ReadWrite,
    };
    let policy = match c.policy {
        1 => Policy::RoundRobin,
        2 => Policy::MinLatency,
        _ => Policy::MinInflight,
    };
    let settings = Settings {
        address,
        session,
        tls: (!tls.is_empty()).then(|| tls.into()),
        tls_name: (!tls_name.is_empty()).then_some(tls_name),
        policy,
        connections: u16::try_from(c.connections).unwrap_or(u16::MAX),
        timeout: Duration::from_secs(c.timeout.into()),
    };
    (settings, access)
}

/// Opens a job's volume. Null: it is not open, and `why` says why.
///
/// # Safety
/// `settings` points to such, whose strings end; `why` has `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_attach(
    c: *const CSettings,
    why: *mut c_char,
    len: usize,
) -> *mut c_void {
    // SAFETY: the caller's promises.
    let ((settings, access), name) = unsafe {
        let c = &*c;
        (settings(c), text(c.volume))
    };
    match session::attach(&settings, &name, access) {
        Ok(attached) => Box::into_raw(Box::new(attached)).cast(),
        Err(error) => {
            // SAFETY: the caller's promise.
            unsafe { tell(why, len, &error) };
            std::ptr::null_mut()
        }
    }
}

/// What the volume is now.
///
/// # Safety
/// `attached` is from [`memlane_fio_attach`]; `shape` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_shape(attached: *const c_void, shape: *mut CShape) {
    // SAFETY: the caller's promise; it lives until it is detached.
    let attached = unsafe { &*attached.cast::<Attached>() };
    let info = attached.volume.info();
    let now = CShape {
        size: info.size,
        block: info.block,
        read_only: info.read_only.into(),
        trim: info.trim.into(),
        zeroes: info.zeroes.into(),
    };
    // SAFETY: the caller's promise.
    unsafe { shape.write(now) };
}

/// A job needs its volume no more.
///
/// # Safety
/// `attached` is from [`memlane_fio_attach`], and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_detach(attached: *mut c_void) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(attached.cast::<Attached>()) });
}

/// A job's queue, for the thread that calls this, with `depth` requests. Null: there is none, and `why` says why.
///
/// # Safety
/// `attached` is from [`memlane_fio_attach`]; `why` has `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_start(
    attached: *const c_void,
    depth: u32,
    why: *mut c_char,
    len: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let attached = unsafe { &*attached.cast::<Attached>() };
    match attached.volume.queue() {
        Ok(queue) => {
            let (info, shared) = (attached.volume.info(), Arc::clone(&attached.shared));
            let job = Job::new(queue, info, depth, shared);
            Box::into_raw(Box::new(job)).cast()
        }
        Err(error) => {
            // SAFETY: the caller's promise.
            unsafe { tell(why, len, &format!("no queue: {error}")) };
            std::ptr::null_mut()
        }
    }
}

/// Memory of `len` bytes for fio's buffers, until the job stops, or null.
///
/// # Safety
/// `job` is from [`memlane_fio_start`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_buffers(job: *mut c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller's promise; one thread uses a job.
    let job = unsafe { &mut *job.cast::<Job>() };
    job.make_buffers(len)
        .map_or(std::ptr::null_mut(), |buffers| buffers.0.cast())
}

/// Where the buffer of this request is to be: in the session's memory, or where it is.
///
/// # Safety
/// `job` is from [`memlane_fio_start`]; `buffer` has `len` readable bytes, for as long as the job lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_hold(
    job: *mut c_void,
    index: u32,
    buffer: *mut c_void,
    len: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise; one thread uses a job.
    let job = unsafe { &mut *job.cast::<Job>() };
    // SAFETY: the caller's buffer.
    let held = unsafe { job.hold(index, Buffer(buffer.cast()), len as u64) };
    held.map_or(buffer, |buffer| buffer.0.cast())
}

/// Takes a request: 0, `BUSY`, or a negative error number.
///
/// # Safety
/// `job` is from [`memlane_fio_start`]; the buffer of a read or write has `len` bytes, which nobody else uses until
/// the request's event was handed out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_queue(
    job: *mut c_void,
    index: u32,
    op: u32,
    flags: u32,
    at: u64,
    len: u64,
    buffer: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise; one thread uses a job.
    let job = unsafe { &mut *job.cast::<Job>() };
    let op = match op {
        0 => Op::Read,
        1 => Op::Write,
        2 => Op::Flush,
        3 => Op::Trim,
        _ => Op::WriteZeroes,
    };
    let durable = flags & DURABLE != 0 && matches!(op, Op::Write | Op::Trim | Op::WriteZeroes);
    let request = Request {
        op,
        flags: if durable { Flags::FUA } else { Flags::NONE },
        at,
        len,
        buffer: Buffer(buffer.cast()),
    };
    // SAFETY: the caller's buffer.
    match unsafe { job.submit(index, request) } {
        Ok(()) => 0,
        Err(Refusal::Busy) => BUSY,
        Err(Refusal::Error(errno)) => -errno.0,
    }
}

/// Sends what was taken.
///
/// # Safety
/// `job` is from [`memlane_fio_start`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_push(job: *mut c_void) {
    // SAFETY: the caller's promise; one thread uses a job.
    unsafe { &mut *job.cast::<Job>() }.commit();
}

/// Waits for `min` events, but not longer than `limit` (null: for ever); how many there are to take, up to `max`.
///
/// # Safety
/// `job` is from [`memlane_fio_start`]; `limit` is null or points to a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_wait(
    job: *mut c_void,
    min: u32,
    max: u32,
    limit: *const libc::timespec,
) -> u32 {
    // SAFETY: the caller's promises; one thread uses a job.
    let (job, limit) = unsafe { (&mut *job.cast::<Job>(), limit.as_ref()) };
    let limit = limit.map(|limit| {
        let seconds = u64::try_from(limit.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(limit.tv_nsec).unwrap_or(0))
    });
    job.wait(min, max, limit)
}

/// One of the events that the last [`memlane_fio_wait`] counted; false: it counted fewer.
///
/// # Safety
/// `job` is from [`memlane_fio_start`]; `event` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_event(
    job: *const c_void,
    number: u32,
    event: *mut CEvent,
) -> bool {
    // SAFETY: the caller's promise; one thread uses a job.
    let job = unsafe { &*job.cast::<Job>() };
    let Some(found) = job.event(number) else {
        return false;
    };
    let told = CEvent {
        index: found.index,
        error: found.errno,
        buffer: found
            .moved
            .map_or(std::ptr::null_mut(), |buffer| buffer.0.cast()),
    };
    // SAFETY: the caller's promise.
    unsafe { event.write(told) };
    true
}

/// A job is over.
///
/// # Safety
/// `job` is from [`memlane_fio_start`], and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_fio_stop(job: *mut c_void) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(job.cast::<Job>()) });
}

/// What fio asks an external engine for: its `struct ioengine_ops`. A function, because a `cdylib` exports no symbol
/// of a C object.
///
/// # Safety
/// `ops` can be written.
#[cfg(all(fio_headers, not(test)))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_ioengine(ops: *mut *mut c_void) {
    unsafe extern "C" {
        fn memlane_fio_engine() -> *mut c_void;
    }
    // SAFETY: the shim's function takes nothing and gives the address of a static; the caller's promise.
    unsafe { ops.write(memlane_fio_engine()) };
}
