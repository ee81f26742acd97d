//! The instances of io_uring that the program has set up by `syscall(2)`, and their submission queues.
//!
//! A program fills entries in memory that it shares with the kernel, and calls `io_uring_enter`. To see which descriptors the
//! entries are for, this library maps the same memory and looks before that call. Offsets are those of linux/io_uring.h.

mod entry;
mod liburing;

pub use entry::{Entry, op};
pub use liburing::{Prepared, each_prepared, is_loaded};

use crate::state::far::far;
use crate::state::thread::Lock;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use memlane_sys::{Errno, Result, mem};

/// The most instances that are watched. A program with more has one for each of many threads.
const MOST: usize = 64;

/// `IORING_SETUP_SQPOLL`: a thread of the kernel takes entries without any call.
pub const SETUP_SQPOLL: u32 = 1 << 1;
/// `IORING_SETUP_SQE128`: entries have 128 bytes.
const SETUP_SQE128: u32 = 1 << 10;
/// `IORING_SETUP_NO_SQARRAY`: entries are taken in the order in which they lie.
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// Flags that change neither where entries lie nor who hands them to the kernel: `IOPOLL`, `SQ_AFF`, `CQSIZE`, `CLAMP`,
/// `ATTACH_WQ`, `R_DISABLED`, `SUBMIT_ALL`, `COOP_TASKRUN`, `TASKRUN_FLAG`, `CQE32`, `SINGLE_ISSUER`, `DEFER_TASKRUN`,
/// `HYBRID_IOPOLL`, `CQE_MIXED`.
const SETUP_HARMLESS: u32 =
    1 | 0b111 << 2 | 0b11 << 5 | 0b111 << 7 | 0b111 << 11 | 1 << 17 | 1 << 18;

/// `IORING_OFF_SQES`: where the entries lie in the instance's file.
const OFF_SQES: usize = 0x1000_0000;

/// `struct io_uring_params`, as far as it matters here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Entries of the submission queue: a power of two.
    pub entries: u32,
    _completions: u32,
    /// `IORING_SETUP_*`.
    pub flags: u32,
    _thread: [u32; 2],
    _features: u32,
    _wq_fd: u32,
    _reserved: [u32; 3],
    head: u32,
    tail: u32,
    _mask: u32,
    _entries: u32,
    _flags: u32,
    _dropped: u32,
    array: u32,
}
const _: () = assert!(core::mem::offset_of!(Params, head) == 40);
const _: () = assert!(core::mem::offset_of!(Params, array) == 64);

/// One submission queue, mapped.
#[derive(Debug)]
struct Mapped {
    fd: i32,
    params: Params,
    words: NonNull<u8>,
    words_len: usize,
    entries: NonNull<u8>,
}

impl Mapped {
    fn of(fd: i32, params: &Params) -> Result<Mapped> {
        let known = SETUP_HARMLESS | SETUP_SQE128 | SETUP_NO_SQARRAY;
        if params.flags & !known != 0 || !params.entries.is_power_of_two() {
            return Err(Errno::NOTSUP);
        }
        let words_len = Mapped::words_len(params).next_multiple_of(mem::PAGE);
        let words = mem::map_shared(fd, 0, words_len, true)?;
        let entries = mem::map_shared(fd, OFF_SQES, Mapped::entries_len(params), true);
        let entries = entries.inspect_err(|_| {
            // SAFETY: the whole mapping, which nobody else knows of.
            unsafe { mem::unmap(words, words_len) }
        })?;
        // The child of a fork must not keep the instance alive.
        mem::keep_from_children(words, words_len);
        mem::keep_from_children(entries, Mapped::entries_len(params));
        Ok(Mapped {
            fd,
            params: *params,
            words,
            words_len,
            entries,
        })
    }

    /// Bytes of the words and, where there is one, of the array of indices.
    fn words_len(params: &Params) -> usize {
        let words = params.head.max(params.tail) as usize + 4;
        if params.flags & SETUP_NO_SQARRAY != 0 {
            return words;
        }
        words.max(params.array as usize + 4 * params.entries as usize)
    }

    fn stride(params: &Params) -> usize {
        entry::LEN << u32::from(params.flags & SETUP_SQE128 != 0)
    }

    fn entries_len(params: &Params) -> usize {
        (params.entries as usize * Mapped::stride(params)).next_multiple_of(mem::PAGE)
    }

    /// A word at this offset, which lies inside: see [`words_len`](Mapped::words_len).
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping and aligned (the kernel's offsets are multiples of 4); the program writes it as an atomic
        // word, as the kernel asks, and so does the kernel.
        unsafe { self.words.add(offset).cast::<AtomicU32>().as_ref() }
    }

    /// The entry in this place of the queue.
    fn entry(&self, place: u32) -> Option<Entry> {
        let place = place & (self.params.entries - 1);
        let index = match self.params.flags & SETUP_NO_SQARRAY {
            0 => {
                let at = self.params.array as usize + 4 * place as usize;
                self.word(at).load(Ordering::Relaxed)
            }
            _ => place,
        };
        let at = index as usize * Mapped::stride(&self.params);
        (index < self.params.entries).then(|| {
            // SAFETY: an entry inside the mapping, which stays until the queue is forgotten, under the lock that is held.
            unsafe { Entry::at(self.entries.add(at)) }
        })
    }

    /// Calls `look` with each of the next `count` entries that the program has filled and the kernel has not taken.
    fn each_pending(&self, count: u32, mut look: impl FnMut(Entry)) {
        // Acquire: a thread that fills entries for another one publishes them by the tail.
        let tail = self.word(self.params.tail as usize).load(Ordering::Acquire);
        let head = self.word(self.params.head as usize).load(Ordering::Relaxed);
        let filled = tail.wrapping_sub(head).min(self.params.entries);
        for i in 0..filled.min(count) {
            if let Some(entry) = self.entry(head.wrapping_add(i)) {
                look(entry);
            }
        }
    }

    fn unmap(self) {
        // SAFETY: both whole mappings; whoever looks at entries holds the lock under which this value was taken.
        unsafe {
            mem::unmap(self.words, self.words_len);
            mem::unmap(self.entries, Mapped::entries_len(&self.params));
        }
    }
}

/// A place for one queue.
struct Place {
    /// Held while entries are looked at, so that no other thread's `close` unmaps them. Ending a lane may take system calls
    /// and some ms: only threads that use the same instance at the same time wait for that.
    lock: Lock,
    /// Descriptor + 1 of the queue in it; 0: none. Written under `lock`, read without it to find the place.
    fd: AtomicU32,
    queue: UnsafeCell<Option<Mapped>>,
}

// SAFETY: `queue` is only reached with `lock` held.
unsafe impl Sync for Place {}

far! {
    static PLACES: [Place; MOST] = [const {
        Place {
            lock: Lock::new(),
            fd: AtomicU32::new(0),
            queue: UnsafeCell::new(None),
        }
    }; MOST];
}

/// Has the program ever tried to set up an instance that is watched? Set before its place is taken, read by all, and in the
/// child of a fork.
static ANY: AtomicBool = AtomicBool::new(false);

fn tag(fd: i32) -> u32 {
    fd.cast_unsigned().wrapping_add(1)
}

fn place_of(fd: i32) -> Option<&'static Place> {
    PLACES
        .iter()
        .find(|place| place.fd.load(Ordering::Relaxed) == tag(fd))
}

/// Has this process an instance whose submissions are looked at?
pub fn is_used() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Watches the submissions of a new instance with descriptor `fd`.
///
/// # Errors
/// `EOPNOTSUPP`: its submissions cannot be seen (flags that are not known, `IORING_SETUP_SQPOLL`); `ENOSPC`: there are too
/// many instances; the kernel's errors of mmap(2).
pub fn watch(fd: i32, params: &Params) -> Result<()> {
    let queue = Mapped::of(fd, params)?;
    ANY.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst); // a fork in another thread copies no place that is taken without this word
    for place in &PLACES {
        let Some(_held) = place.lock.try_lock() else {
            continue;
        };
        if place.fd.load(Ordering::Relaxed) == 0 {
            // SAFETY: the lock is held.
            unsafe { *place.queue.get() = Some(queue) };
            place.fd.store(tag(fd), Ordering::Relaxed);
            return Ok(());
        }
    }
    queue.unmap();
    Err(Errno(libc::ENOSPC))
}

/// Looks at the next `count` submissions of instance `fd`. `None`: it is not watched.
pub fn each_pending(fd: i32, count: u32, look: impl FnMut(Entry)) -> Option<()> {
    let place = place_of(fd)?;
    let _held = place.lock.lock()?;
    // SAFETY: the lock is held.
    let queue = unsafe { (*place.queue.get()).as_ref() }?;
    (queue.fd == fd).then(|| queue.each_pending(count, look))
}

/// Forgets instance `fd`, which the program closes.
pub fn forget(fd: i32) {
    let Some(place) = place_of(fd) else { return };
    // `None`: a handler closes it while this very thread looks at its entries; the mapping stays.
    let Some(_held) = place.lock.lock() else {
        return;
    };
    // SAFETY: the lock is held.
    let queue = unsafe { (*place.queue.get()).take() };
    place.fd.store(0, Ordering::Relaxed);
    if let Some(queue) = queue {
        queue.unmap();
    }
}

/// Forgets all instances in the child of a fork, which has one thread and none of the mappings.
pub fn forget_all() {
    // A write would give the child a page of its own.
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    for place in &PLACES {
        place.lock.reset();
        place.fd.store(0, Ordering::Relaxed);
        // SAFETY: the child has one thread. The mappings are not there, so nothing is unmapped.
        unsafe { *place.queue.get() = None };
    }
}
