//! The program's standard error, to which `--stats-on-exit` prints.
//!
//! Descriptor 2 may be something else by the end: a server that forks for each connection, or that inetd starts, has its
//! connection there, and after a close, any file may get the number. So the lines go only to what was standard error when the
//! library began, and to a file that is opened for appending, which a program makes its log.

use core::sync::atomic::{AtomicU64, Ordering};
use memlane_sys::{fd, proc};

/// The device and inode of descriptor 2 when the library began; zeros: nothing is known of it. Written once, before the program
/// begins, and read by [`print`]; nothing is ordered by it.
static AT_START: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Notes what standard error is.
pub fn remember() {
    for (word, now) in AT_START.iter().zip(identity()) {
        word.store(now, Ordering::Relaxed);
    }
}

/// Prints these lines, unless descriptor 2 has become something else.
pub fn print(lines: &[u8]) {
    if is_as_at_start() || appends() {
        proc::write_stderr(lines);
    }
}

fn is_as_at_start() -> bool {
    let before = AT_START.each_ref().map(|word| word.load(Ordering::Relaxed));
    before != [0; 2] && before == identity()
}

fn identity() -> [u64; 2] {
    fd::stat(libc::STDERR_FILENO).map_or([0; 2], |it| [it.dev, it.ino])
}

fn appends() -> bool {
    fd::status_flags(libc::STDERR_FILENO).is_ok_and(|flags| flags & libc::O_APPEND != 0)
}
