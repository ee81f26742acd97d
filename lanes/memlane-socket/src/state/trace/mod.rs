//! The trace: records of what this process carries, for a tracer (`memlane trace`).
//!
//! The words that a tracer writes lie in a memfd of this process. The tracer finds it in `/proc/PID/fd` and opens it if
//! the kernel allows that (as for a debugger). The memfd is mapped over `HOME`, a page of this library's own data, so
//! a lane that is not traced pays only for one test of a word at a fixed address.
//!
//! Nothing here waits for the tracer, except for a process that starts under one (`MEMLANE_TRACE`), and that waits for
//! at most a second. Records that find no room in the ring are counted and left out. A tracer holds a lock on the memfd
//! while it lives. When the kernel no longer shows that lock, traffic notices it within a second: `on` becomes 0, and
//! the ring's memory goes back.
//!
//! Everything works in signal handlers and between fork and exec: it takes no lock and allocates nothing, and private
//! words are atomics.

mod tell;

pub use tell::{
    after_end, by_kernel, by_ring, by_tcp, closing, finished, from_ring, from_tcp, in_ring, opened,
    received_end, unseen_received, unseen_sent,
};

use crate::config;
use crate::state::far::far;
use crate::state::process::{self, PROCESS};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use memlane_core::access::SharedBytes;
use memlane_core::trace::{self, Page, RING_AT, Ring};
use memlane_sys::fd::{self, Fd};
use memlane_sys::sock::{self, UnixName};
use memlane_sys::{Result, mem, proc, time};

/// A page, as long as the largest page size of the architecture.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C, align(65536)))]
struct Home {
    page: Page,
}

const HOME_LEN: usize = size_of::<Home>();
const _: () = assert!(HOME_LEN <= RING_AT);

far! {
    /// The memfd is mapped over this page. Before that, or without a memfd, it is all zero: no tracer is there.
    static HOME: Home = Home { page: Page::zero() };
}

/// The position up to which room in the ring has been given away. It is never read back from shared memory.
static HEAD: AtomicU64 = AtomicU64::new(0);
/// The ring, mapped when it is first needed. It stays mapped while the process lives, because threads may be using it.
static BASE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The length of the mapping, in bytes; stored after `BASE`.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
/// When a tracer was last looked for, in ns of the wall clock.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// The time between two checks that the tracer still lives, in ns.
const LOOK_EVERY_NS: u64 = 1_000_000_000;
/// How long a process that starts under a tracer waits to be traced, in ms.
const WAIT_FOR_TRACER_MS: i64 = 1000;

/// Is there a tracer? One relaxed load.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn on() -> bool {
    // The compiler would make four instructions of this: load the address from a table, load the word, test, jump.
    // SAFETY: reads the aligned first word of a static, as a relaxed load does.
    unsafe {
        core::arch::asm!(
            "cmp dword ptr [rip + {home}], 0",
            "jne {yes}",
            home = sym HOME,
            yes = label { return true },
            options(nostack, readonly),
        );
    }
    false
}

/// Is there a tracer? One relaxed load.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn on() -> bool {
    HOME.page.on.load(Ordering::Relaxed) != 0
}

const _: () =
    assert!(core::mem::offset_of!(Home, page) == 0 && core::mem::offset_of!(Page, on) == 0);

/// Is it known that the environment names no tracer? Written when the process makes its tables.
static IS_UNNAMED: AtomicBool = AtomicBool::new(false);

/// The tracer that the environment names. It is asked once, if it names none: the question costs a forked child page faults.
fn named() -> Option<&'static [u8]> {
    if IS_UNNAMED.load(Ordering::Relaxed) {
        return None;
    }
    let tracer = config::env(c"MEMLANE_TRACE").filter(|name| !name.is_empty());
    IS_UNNAMED.store(tracer.is_none(), Ordering::Relaxed);
    tracer
}

/// Makes the page, when the process makes its stats page.
pub fn start() {
    start_for(named());
}

/// Must this process show itself at once? A tracer reads it (or its parent, after a fork), or was named at its start.
pub fn is_wanted() -> bool {
    on() || named().is_some()
}

fn start_for(tracer: Option<&[u8]>) {
    if make_page().is_err() {
        PROCESS.trace_fd.store(-1, Ordering::Relaxed);
        return;
    }
    if let Some(name) = tracer
        && call_tracer(name).is_ok()
    {
        for _ in 0..WAIT_FOR_TRACER_MS {
            if on() {
                break;
            }
            time::nap_ms(1);
        }
    }
}

/// Drops the page and the ring in the child of a fork: they are the parent's.
pub fn forget() {
    let home = NonNull::from(&HOME).cast::<u8>();
    // The parent's words would make this process write into the parent's ring.
    // SAFETY: only the pages of HOME, which consists of atomics: every value that they can take is a valid one.
    let gone = unsafe { mem::clear_shared(home, HOME_LEN) };
    // A write would give the child a page of its own.
    if let Some(base) = NonNull::new(BASE.load(Ordering::Acquire)) {
        BASE.store(core::ptr::null_mut(), Ordering::Relaxed);
        let len = MAPPED.swap(0, Ordering::AcqRel);
        if gone.is_ok() {
            // SAFETY: mapped here; the child has only this thread.
            unsafe { mem::unmap(base, len) };
        }
    }
    PROCESS.trace_fd.store(-1, Ordering::Relaxed);
}

fn make_page() -> Result<()> {
    let file = mem::memfd(trace::MEMFD_NAME, RING_AT, false)?;
    // A tracer may make the file longer; nobody can take away what this process has mapped.
    mem::add_seals(file.raw(), libc::F_SEAL_SHRINK)?;
    let home = NonNull::from(&HOME).cast::<u8>();
    // SAFETY: only the pages of HOME (aligned and as long as pages are), which consists of atomics.
    unsafe { mem::remap_shared(home, file.raw(), 0, HOME_LEN) }?;
    let page = &HOME.page;
    page.version.store(trace::VERSION, Ordering::Relaxed);
    page.ring_at
        .store(u32::try_from(RING_AT).unwrap_or(0), Ordering::Relaxed);
    page.pid
        .store(proc::pid().cast_unsigned(), Ordering::Relaxed);
    page.uid.store(proc::euid(), Ordering::Relaxed);
    let head = HEAD.load(Ordering::Relaxed);
    page.head.store(head, Ordering::Relaxed);
    page.tail.store(head, Ordering::Relaxed);
    page.magic.store(trace::MAGIC, Ordering::Release);
    PROCESS
        .trace_fd
        .store(process::hide(file), Ordering::Release);
    Ok(())
}

/// Hands the page to the tracer that started this process. The tracer must belong to the same user, or to root: nobody
/// else may read what the records hold.
fn call_tracer(name: &[u8]) -> Result<()> {
    let tracer: Fd = sock::unix_stream_to(&UnixName::abstract_name(name)?)?;
    let uid = sock::peer_uid(tracer.raw())?;
    if uid != 0 && uid != proc::euid() {
        return Err(memlane_sys::Errno(libc::EPERM));
    }
    sock::send_to_peer(
        tracer.raw(),
        b"trace",
        &[PROCESS.trace_fd.load(Ordering::Relaxed)],
    )
}

/// A thread that is writing records. A tracer waits until all sessions end before it begins anew.
struct Session {
    ring: Ring,
    page: &'static Page,
    now: u64,
}

impl Session {
    fn enter() -> Option<Session> {
        let page = &HOME.page;
        page.writers.fetch_add(1, Ordering::SeqCst);
        let now = time::wall_ns();
        let traced = page.on.load(Ordering::SeqCst) != 0 && is_tracer_there(page, now);
        let ring = if traced { ring(page) } else { None };
        match ring {
            Some(ring) => Some(Session { ring, page, now }),
            None => {
                page.writers.fetch_sub(1, Ordering::SeqCst);
                None
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.page.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The ring, mapped, of the size that the tracer chose. `None`: it cannot be mapped; `error` has the reason.
fn ring(page: &Page) -> Option<Ring> {
    let wanted = page.ring_size.load(Ordering::Relaxed);
    let size = usize::try_from(wanted).ok()?;
    if !trace::ring_size_ok(wanted) {
        return refuse(page, libc::EINVAL);
    }
    if MAPPED.load(Ordering::Acquire) < size
        && let Err(error) = map(size)
    {
        return refuse(page, error.0);
    }
    let base = NonNull::new(BASE.load(Ordering::Acquire))?;
    // SAFETY: mapped for at least `size` bytes, and never unmapped; the file cannot shrink.
    Ring::new(unsafe { SharedBytes::new(base, size) })
}

#[cold]
fn refuse(page: &Page, error: i32) -> Option<Ring> {
    page.error.store(error.cast_unsigned(), Ordering::Relaxed);
    None
}

/// Maps the ring, or a longer one. The shorter mapping stays, because another thread may be using it.
#[cold]
fn map(size: usize) -> Result<()> {
    let file = PROCESS.trace_fd.load(Ordering::Acquire);
    if fd::stat(file)?.size < (RING_AT + size) as u64 {
        return Err(memlane_sys::Errno::INVAL);
    }
    let base = mem::map_shared(file, RING_AT, size, true)?;
    let before = MAPPED.load(Ordering::Acquire);
    let old = BASE.load(Ordering::Acquire);
    // Two threads may map it at the same time; both mappings are the same memory, and the later one counts.
    let first = BASE.compare_exchange(old, base.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
    if first.is_ok() && before < size {
        MAPPED.store(size, Ordering::Release);
        Ok(())
    } else {
        // SAFETY: just mapped, and no other code knows of it.
        unsafe { mem::unmap(base, size) };
        Err(memlane_sys::Errno::AGAIN)
    }
}

/// Checks now and then that a tracer still reads this: it holds the file's lock for as long as it lives.
fn is_tracer_there(page: &Page, now: u64) -> bool {
    let looked = LOOKED.load(Ordering::Relaxed);
    if now.abs_diff(looked) < LOOK_EVERY_NS {
        return true;
    }
    LOOKED.store(now, Ordering::Relaxed);
    let file = PROCESS.trace_fd.load(Ordering::Acquire);
    if fd::try_lock(file).is_err() {
        return true;
    }
    page.on.store(0, Ordering::SeqCst);
    if let Ok(size) = usize::try_from(page.ring_size.load(Ordering::Relaxed)) {
        let _ = fd::punch(file, RING_AT as u64, size as u64);
    }
    fd::unlock(file);
    false
}
