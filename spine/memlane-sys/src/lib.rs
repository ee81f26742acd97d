//! memlane's only door to the kernel.
//!
//! Every call here goes straight to the kernel ([`raw`]), never through libc's symbols. In a program under memlane the
//! preload library *is* libc's `read`, `recvmsg`, `getsockopt` and so on, so a call to libc from inside the library would
//! come back to it. The crate uses `libc` for constants and struct layouts only. Clocks may be read by the kernel's own
//! library, without a system call ([`time::use_vdso`]).
//!
//! It is `no_std`, allocates nothing, takes no locks and has no thread-locals. All of it may run in a signal handler or in
//! the child of a `fork`.
//!
//! A file in memory that nobody can shorten:
//!
//! ```
//! use memlane_sys::{Errno, fd, mem};
//!
//! let file = mem::memfd(c"example", 4096, false)?;
//! mem::add_seals(file.raw(), libc::F_SEAL_SHRINK)?;
//!
//! fd::write_at(file.raw(), b"hello", 100)?;
//! let mut bytes = [0; 5];
//! assert_eq!(fd::read_at(file.raw(), &mut bytes, 100)?, 5);
//! assert_eq!(&bytes, b"hello");
//! # Ok::<(), Errno>(())
//! ```
#![cfg_attr(not(feature = "std"), no_std)]
// System call arguments and answers are machine words: numbers, addresses and
// constants of libc's odd types, reinterpreted as the kernel's ABI has it.
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap
)]

pub mod diag;
pub mod elf;
pub mod epoll;
pub mod errno;
pub mod fd;
pub mod futex;
pub mod iov;
pub mod mem;
pub mod proc;
pub mod ptrace;
pub mod raw;
pub mod sock;
pub mod time;

pub use errno::{Errno, Result};
