//! What the library keeps for each thread, and the locks between threads.
//!
//! A thread's state lies in the preload library's thread-local block (initial exec: one instruction reaches it, without
//! an allocation). The library's C shim owns the block; this crate reaches it through a function pointer.

use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use memlane_sys::{futex, proc};

/// The most bytes that a signal handler can send while it interrupts a send on the same connection. They follow the
/// interrupted bytes.
pub const OUTBOX: usize = 1024;

/// What a thread's spins have found and cost, in waits of one kind: see `spin`.
#[repr(C)]
#[derive(Debug)]
pub struct SpinRecord {
    /// The number of spins in vain, less what hits and short sleeps have forgiven.
    pub score: AtomicI32,
    /// The number of waits to skip before the next trial spin.
    pub skip: AtomicU32,
    /// Eight times the mean of the ticks that spins took.
    pub cost: AtomicU64,
    /// The share of spins that found what they waited for, lately, in 1024ths.
    pub hits: AtomicU32,
}

/// One thread's state. All-zero is the initial value. Only the thread itself, and signal handlers on it, read and write
/// it.
#[repr(C)]
#[derive(Debug)]
pub struct Thread {
    /// The thread id, once it is known; 0: not yet.
    pub tid: AtomicI32,
    /// The number of signal handlers that have run (see `calls::signals`).
    pub signals: AtomicU32,
    /// Did the last handler have `SA_RESTART`?
    pub restart: AtomicU32,
    /// 1: the thread has rung a bell since its last wait, so its next one probably waits for an answer.
    pub has_rung: AtomicU32,
    /// 1: the current wait, or the last one, followed a bell that the thread had rung.
    pub follows_bell: AtomicU32,
    /// The records of waits that did not follow such a bell (0), and of those that did (1).
    pub records: [SpinRecord; 2],
    /// Ticks lost to unrelated tasks in a row: see `spin`.
    pub lost: AtomicU64,
    /// `ticks` at which that row began.
    pub lost_since: AtomicU64,
    /// `ticks` at which the last loss of that row ended.
    pub lost_at: AtomicU64,
    /// `ticks` before which this thread yields instead of spinning, because the machine is full.
    pub no_spin_until: AtomicU64,
    /// `ticks` before which the score of this thread's spins forgives less, because they did not pay.
    pub dear_until: AtomicU64,
    /// `ticks` before which this thread does not even yield, because unrelated tasks have the CPU.
    pub no_yield_until: AtomicU64,
    /// The number of naps that this thread may still take instead of parking: see `spin`.
    pub naps: AtomicU32,
    /// How many more spins may find nothing while this thread still counts as the receiver of a stream: see `spin`.
    pub stream: AtomicU32,
    /// 1: the thread sleeps in a poll and relies on bells. A handler that polls meanwhile must not.
    pub relies: AtomicU32,
    /// `ticks` at which this thread last parked those of its polled connections that had been idle.
    pub swept: AtomicU64,
    /// The number of bytes in `outbox`: see `lane::outbox`.
    pub outbox_len: AtomicU32,
    /// The address of the connection that these bytes are for; without meaning if there are none.
    pub outbox_conn: AtomicUsize,
    /// The address of a connection on which a handler's send failed; 0: none.
    pub outbox_refused: AtomicUsize,
    /// Bytes that signal handlers have sent: see [`OUTBOX`].
    pub outbox: core::cell::UnsafeCell<[u8; OUTBOX]>,
}

impl Thread {
    /// Begins a wait. Its kind is known from now on.
    #[inline(always)]
    pub fn begin_wait(&self) {
        let has_rung = self.has_rung.load(Ordering::Relaxed);
        self.follows_bell.store(has_rung, Ordering::Relaxed);
        self.has_rung.store(0, Ordering::Relaxed);
    }

    /// The record of waits like the current one.
    #[inline(always)]
    pub fn record(&self) -> &SpinRecord {
        &self.records[self.follows_bell.load(Ordering::Relaxed) as usize & 1]
    }

    /// The record of waits like the next one, if it began now.
    #[inline(always)]
    pub fn next_record(&self) -> &SpinRecord {
        &self.records[self.has_rung.load(Ordering::Relaxed) as usize & 1]
    }
}

static LOCATE: AtomicUsize = AtomicUsize::new(0);

/// Sets the function that returns the calling thread's [`Thread`].
pub fn set_locator(f: unsafe extern "C" fn() -> *mut Thread) {
    LOCATE.store(f as usize, Ordering::Relaxed);
}

/// The calling thread's state.
#[inline(always)]
pub fn current() -> &'static Thread {
    let f = LOCATE.load(Ordering::Relaxed);
    // SAFETY: the preload library's init called set_locator with a function of this type; what it returns lives as long
    // as the thread.
    unsafe { &*core::mem::transmute::<usize, unsafe extern "C" fn() -> *mut Thread>(f)() }
}

/// The address of libc's flag for a process without a second thread; 0: libc has none.
static ALONE: AtomicUsize = AtomicUsize::new(0);

/// Sets the address of libc's flag (`__libc_single_threaded`, glibc 2.32 and later). It is a byte that lives as long as
/// the process; 1: there has never been a second thread.
pub fn set_alone(flag: Option<NonNull<u8>>) {
    ALONE.store(flag.map_or(0, |at| at.as_ptr() as usize), Ordering::Relaxed);
}

/// A function that is asked instead; 0: there is none.
static ASKED_ALONE: AtomicUsize = AtomicUsize::new(0);

/// Sets a function that says, if it does not return 0, that the calling thread is the only one now.
pub fn set_asked_alone(ask: unsafe extern "C" fn() -> c_int) {
    ASKED_ALONE.store(ask as usize, Ordering::Relaxed);
}

/// Is it certain that no other thread can close a descriptor while this one sleeps on it? Only the kernel keeps a
/// socket open under a sleeper. After a piece of a split sleep, the number might be closed, or belong to another file.
pub fn is_alone() -> bool {
    let flag = ALONE.load(Ordering::Relaxed) as *const u8;
    if !flag.is_null() {
        // SAFETY: a byte that lives as long as the process (`set_alone`).
        return unsafe { flag.read_volatile() } != 0;
    }
    let ask = ASKED_ALONE.load(Ordering::Relaxed);
    // SAFETY: a function of this type (`set_asked_alone`).
    ask != 0
        && unsafe { core::mem::transmute::<usize, unsafe extern "C" fn() -> c_int>(ask)() } != 0
}

/// The calling thread's id.
#[inline(always)]
pub fn tid() -> u32 {
    let t = current();
    let mut id = t.tid.load(Ordering::Relaxed);
    if id == 0 {
        id = proc::tid();
        t.tid.store(id, Ordering::Relaxed);
    }
    id.cast_unsigned()
}

/// A lock between the threads of a process, or between a parent and its forked children (never in memory that a peer
/// can write). It holds the owner's thread id, so that another thread can take it over when the owner has died.
///
/// Critical sections only touch memory: no thread makes a system call that may block under a lock.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Lock(AtomicU32);

/// A held lock. Dropping it releases the lock.
#[derive(Debug)]
pub struct LockGuard<'a>(&'a Lock);

impl Lock {
    /// Takes the lock. `None`: this very thread holds it already, because a signal handler has interrupted it.
    #[inline]
    pub fn lock(&self) -> Option<LockGuard<'_>> {
        let me = tid();
        if self
            .0
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            return Some(LockGuard(self));
        }
        self.lock_slowly(me)
    }

    /// Takes the lock if no thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_>> {
        self.0
            .compare_exchange(0, tid(), Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| LockGuard(self))
    }

    /// Forgets the owner, in the child of a fork.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }

    #[cold]
    fn lock_slowly(&self, me: u32) -> Option<LockGuard<'_>> {
        let mut turns = 0u32;
        loop {
            let owner = self.0.load(Ordering::Relaxed);
            if owner == me {
                return None;
            }
            let dead = turns % 4096 == 4095 && owner != 0 && !proc::alive(owner.cast_signed());
            if (owner == 0 || dead)
                && self
                    .0
                    .compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Some(LockGuard(self));
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(64) {
                proc::yield_now();
            }
            core::hint::spin_loop();
        }
    }
}

impl Drop for LockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

impl Lock {
    /// A free lock.
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }
}

/// The bit of a [`SleepLock`] that says that threads sleep until it is free.
const AWAITED: u32 = 1 << 31;
/// How often a thread looks whether the lock is free before it sleeps.
const LOOKS: u32 = 64;
/// How long a thread sleeps on a lock before it looks whether the owner lives, in microseconds.
const OWNER_US: u64 = 10_000;

/// A lock between the threads of one process whose critical sections make system calls that do not block. Threads that find it
/// taken sleep: where many look again and again, the owner does not get a CPU. To release it takes a locked instruction, which
/// [`Lock`] saves.
///
/// The word holds the owner's thread id, and [`AWAITED`]. All threads write and read it. To take it is an acquire, and to release
/// it a release. The kernel compares it once more before a thread sleeps, so no release falls between the last look and the sleep.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SleepLock(AtomicU32);

/// A held [`SleepLock`]. Dropping it releases the lock.
#[derive(Debug)]
pub struct SleepLockGuard<'a>(&'a SleepLock);

impl SleepLock {
    /// A free lock.
    pub const fn new() -> SleepLock {
        SleepLock(AtomicU32::new(0))
    }

    /// Takes the lock. `None`: this very thread holds it already, because a signal handler has interrupted it.
    pub fn lock(&self) -> Option<SleepLockGuard<'_>> {
        let me = tid();
        if self.take(0, me) {
            return Some(SleepLockGuard(self));
        }
        self.lock_slowly(me)
    }

    /// Releases the lock, whoever holds it.
    pub fn reset(&self) {
        if self.0.swap(0, Ordering::Release) & AWAITED != 0 {
            let _ = futex::wake_one(&self.0);
        }
    }

    fn take(&self, from: u32, to: u32) -> bool {
        self.0
            .compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// A thread that has slept takes the lock with [`AWAITED`]: it does not know whether others still sleep.
    #[cold]
    fn lock_slowly(&self, me: u32) -> Option<SleepLockGuard<'_>> {
        let (mut mine, mut looks) = (me, 0);
        loop {
            let word = self.0.load(Ordering::Relaxed);
            let owner = word & !AWAITED;
            if owner == me {
                return None;
            }
            if owner == 0 {
                if self.take(word, mine) {
                    return Some(SleepLockGuard(self));
                }
            } else if looks < LOOKS {
                looks += 1;
                core::hint::spin_loop();
            } else if word & AWAITED != 0 || self.take(word, word | AWAITED) {
                mine = me | AWAITED;
                let slept = futex::wait(&self.0, owner | AWAITED, OWNER_US);
                let is_dead = slept == Err(futex::TIME_UP) && !proc::alive(owner.cast_signed());
                if is_dead && self.take(owner | AWAITED, mine) {
                    return Some(SleepLockGuard(self));
                }
            }
        }
    }
}

impl Drop for SleepLockGuard<'_> {
    fn drop(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::{JoinHandle, spawn};

    unsafe extern "C" fn own() -> *mut Thread {
        std::thread_local!(static OWN: &'static Thread = {
            // SAFETY: all-zero is the initial value.
            Box::leak(Box::new(unsafe { core::mem::zeroed() }))
        });
        OWN.with(|t| core::ptr::from_ref(*t).cast_mut())
    }

    /// Sets a locator for the threads of a test, as the preload library does for its program.
    pub(crate) fn set_own_locator() {
        set_locator(own);
    }

    /// A thread that takes `lock` and keeps it until `released` gets a message. Then it ends with the lock held, as a
    /// thread that is killed does.
    fn holder(lock: &'static Lock, released: Receiver<()>) -> JoinHandle<()> {
        let (tell, told) = channel();
        let thread = spawn(move || {
            let held = lock.lock();
            tell.send(held.is_some()).unwrap();
            core::mem::forget(held);
            let _ = released.recv();
        });
        assert!(told.recv().unwrap());
        thread
    }

    #[test]
    fn a_lock_is_not_taken_from_a_living_thread_but_from_a_dead_one() {
        set_locator(own);
        let lock: &'static Lock = Box::leak(Box::new(Lock::new()));
        let (release, released) = channel();
        let owner = holder(lock, released);
        assert!(lock.try_lock().is_none());
        let (tell, told) = channel();
        let waiter = spawn(move || {
            let held = lock.lock();
            tell.send(held.is_some()).unwrap();
        });
        // Far longer than the turns after which a waiter checks whether the owner lives.
        let early = told.recv_timeout(std::time::Duration::from_millis(300));
        assert!(early.is_err(), "taken from a living thread");
        release.send(()).unwrap();
        owner.join().unwrap();
        let late = told.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(late, Ok(true), "not taken over from a dead one");
        waiter.join().unwrap();
        assert!(lock.try_lock().is_some(), "free again");
    }

    #[test]
    fn one_thread_at_a_time_has_a_lock_on_which_others_sleep() {
        set_locator(own);
        static LOCK: SleepLock = SleepLock::new();
        static SUM: AtomicU32 = AtomicU32::new(0);
        let threads = (0..8).map(|_| {
            spawn(|| {
                for turn in 0..2_000 {
                    let held = LOCK.lock();
                    assert!(held.is_some());
                    let sum = SUM.load(Ordering::Relaxed);
                    if turn % 100 == 0 {
                        std::thread::sleep(std::time::Duration::from_micros(50));
                    }
                    SUM.store(sum + 1, Ordering::Relaxed);
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(SUM.load(Ordering::Relaxed), 16_000);
        assert_eq!(LOCK.0.load(Ordering::Relaxed), 0, "free, and nobody waits");
        let held = LOCK.lock();
        assert!(held.is_some() && LOCK.lock().is_none());
        drop(held);
        // Who releases it wakes a thread that sleeps, which then need not wait until it looks by itself.
        let mut took: Vec<_> = (0..21).map(|_| hand_over(&LOCK)).collect();
        took.sort_unstable();
        assert!(
            took[10] < std::time::Duration::from_micros(OWNER_US / 2),
            "{took:?}"
        );
        // An owner that has died is followed by whoever waits.
        spawn(|| core::mem::forget(LOCK.lock())).join().unwrap();
        assert!(LOCK.lock().is_some());
        assert!(LOCK.lock().is_some(), "free again");
    }

    /// How long a thread that sleeps on the lock takes to have it once it is released.
    fn hand_over(lock: &'static SleepLock) -> std::time::Duration {
        let held = lock.lock();
        let waiter = spawn(|| {
            assert!(lock.lock().is_some());
            std::time::Instant::now()
        });
        while lock.0.load(Ordering::Relaxed) & AWAITED == 0 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
        let released = std::time::Instant::now();
        drop(held);
        waiter.join().unwrap() - released
    }

    #[test]
    fn a_thread_that_asks_twice_is_told_that_it_has_the_lock() {
        set_locator(own);
        let lock = Lock::new();
        let held = lock.lock();
        assert!(held.is_some() && lock.lock().is_none() && lock.try_lock().is_none());
        drop(held);
        assert!(lock.lock().is_some());
    }
}
