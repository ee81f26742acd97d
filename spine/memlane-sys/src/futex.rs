//! futex(2): sleep while a word that processes share has a certain value.

use crate::errno::{Errno, Result};
use crate::syscall;
use core::sync::atomic::AtomicU32;

/// Sleeps while `word` is `value`, for at most `us` microseconds. The word may lie in memory that several processes map.
///
/// # Errors
/// `EAGAIN`: the word has another value; `ETIMEDOUT`: time is up; `EINTR`: a signal handler has run.
pub fn wait(word: &AtomicU32, value: u32, us: u64) -> Result<()> {
    let ts = libc::timespec {
        tv_sec: (us / 1_000_000) as i64,
        tv_nsec: (us % 1_000_000 * 1000) as i64,
    };
    // SAFETY: the word and `ts` live over the call. The kernel reads both and writes neither.
    unsafe {
        syscall!(
            libc::SYS_futex,
            core::ptr::from_ref(word),
            libc::FUTEX_WAIT,
            value,
            &raw const ts,
            0,
            0
        )
    }
    .map(drop)
}

/// Wakes all threads that sleep on `word`, in any process. Returns how many there were.
///
/// # Errors
/// `EFAULT`: nothing is mapped there (which a reference rules out).
pub fn wake(word: &AtomicU32) -> Result<usize> {
    wake_most(word, i32::MAX)
}

/// Wakes one of the threads that sleep on `word`. Returns how many it has woken.
///
/// # Errors
/// Those of [`wake`].
pub fn wake_one(word: &AtomicU32) -> Result<usize> {
    wake_most(word, 1)
}

fn wake_most(word: &AtomicU32, most: i32) -> Result<usize> {
    // SAFETY: the kernel uses the word's address only, to find who sleeps on it.
    unsafe {
        syscall!(
            libc::SYS_futex,
            core::ptr::from_ref(word),
            libc::FUTEX_WAKE,
            most,
            0,
            0,
            0
        )
    }
}

/// The error of a [`wait`] whose time is up.
pub const TIME_UP: Errno = Errno(libc::ETIMEDOUT);

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use core::sync::atomic::Ordering::SeqCst;

    #[test]
    fn a_thread_sleeps_while_the_word_has_its_value_until_it_is_woken_or_time_is_up() {
        let word = AtomicU32::new(1);
        assert_eq!(wait(&word, 2, 1_000_000), Err(Errno::AGAIN));
        assert_eq!(wait(&word, 1, 1_000), Err(TIME_UP));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| wait(&word, 1, 10_000_000));
            while wake(&word) == Ok(0) {
                std::thread::yield_now();
            }
            assert_eq!(sleeper.join().expect("it ends"), Ok(()));
        });
        word.store(2, SeqCst);
        assert_eq!(wake(&word), Ok(0), "nobody sleeps");
    }
}
