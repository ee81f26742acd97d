//! Opens a file so that nobody who gets the descriptor can truncate the file with it.
//!
//! A program that may write a shared mapping needs a descriptor that may write, and such a descriptor may also truncate: then
//! every process that has the file mapped ends by SIGBUS, QEMU among them. Landlock ties the right to truncate to the descriptor,
//! from Linux 6.2 on: one that was opened by a thread without the right never has it, whoever uses it.

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// `LANDLOCK_ACCESS_FS_TRUNCATE` (include/uapi/linux/landlock.h).
const TRUNCATE: u64 = 1 << 14;

/// Opens a file for reading and writing, without the right to truncate it where the kernel can take that away.
pub(super) fn open(path: &Path) -> Result<OwnedFd, Errno> {
    // A thread of its own: what it gives up stays away from the agent.
    let opened = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _ = give_up_truncating();
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
            rustix::fs::open(path, flags, Mode::empty())
        });
        thread.join()
    });
    opened.unwrap_or(Err(Errno::IO))
}

/// Takes the right to truncate from this thread. An error: the kernel has no Landlock, or an older one.
fn give_up_truncating() -> std::io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    // `struct landlock_ruleset_attr`, whose first word is all that this needs.
    let handled = TRUNCATE;
    // SAFETY: the attributes are alive, and as long as said.
    let made = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const handled,
            size_of_val(&handled),
            0,
        )
    };
    let rules = match i32::try_from(made) {
        // SAFETY: a new descriptor, nobody else's.
        Ok(fd) if fd >= 0 => unsafe { OwnedFd::from_raw_fd(fd) },
        _ => return Err(std::io::Error::last_os_error()),
    };
    // SAFETY: no pointers are passed.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gets_the_descriptor_cannot_truncate_the_file() {
        let path = std::env::temp_dir().join(format!("memlane-untruncated-{}", std::process::id()));
        std::fs::write(&path, [7; 8192]).unwrap();
        let file = open(&path).unwrap();
        let truncated = rustix::fs::ftruncate(&file, 0);
        rustix::io::pwrite(&file, b"x", 0).unwrap();
        // Its own is not taken from this thread.
        let own = std::fs::File::options().write(true).open(&path).unwrap();
        own.set_len(4096).unwrap();
        std::fs::remove_file(&path).unwrap();
        let is_there = std::thread::spawn(|| give_up_truncating().is_ok()).join();
        match is_there.unwrap() {
            true => assert_eq!(truncated, Err(Errno::ACCESS)),
            false => eprintln!("SKIPPED: this kernel has no Landlock that knows truncation"),
        }
    }
}
