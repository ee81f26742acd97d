//! Locks without poisoning.
//!
//! A thread that panics while it holds a lock poisons it: every later `lock()` fails. memlane's locks protect data that
//! is consistent between any two statements that can panic, and the release build aborts on a panic. So these functions
//! take the data as it is.

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::Duration;

/// Locks a mutex.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives access to the data of a mutex that nobody else can reach, without locking it.
pub fn get_mut<T: ?Sized>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading: other readers may hold the lock at the same time.
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing.
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Releases the lock, waits until the condition is notified, and locks again. It may also return without a
/// notification: the caller checks its condition in a loop.
pub fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition
        .wait(guard)
        .unwrap_or_else(PoisonError::into_inner)
}

/// Waits as [`wait`] does, but not longer than `limit`.
pub fn wait_timeout<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
) -> MutexGuard<'a, T> {
    let waited = condition.wait_timeout(guard, limit);
    waited.unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_whose_holder_panicked_is_taken_with_the_data_as_it_was_left() {
        let (mut mutex, rw) = (Mutex::new(1), RwLock::new(1));
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let (mut value, mut other) = (lock(&mutex), write(&rw));
                (*value, *other) = (2, 2);
                panic!("with two locks held");
            });
            assert!(panics.join().is_err());
        });
        assert!(mutex.is_poisoned() && rw.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
        assert_eq!(*read(&rw), 2);
        assert_eq!(*write(&rw), 2);
        assert_eq!(*get_mut(&mut mutex), 2);
        let limit = Duration::from_millis(1);
        assert_eq!(*wait_timeout(&Condvar::new(), lock(&mutex), limit), 2);
    }
}
