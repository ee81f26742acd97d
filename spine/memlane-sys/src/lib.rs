//! memlane's only door to the kernel.
//!
//! Every call here goes straight to the kernel (`raw`), never through libc's
//! symbols: the preload library *is* libc's `read`, `recvmsg`, `getsockopt`…
//! for the program it sits in, so a libc call from inside it would come back
//! to itself. The `libc` crate is used for constants and struct layouts only.
//!
//! `no_std`, no allocation, no locks, no thread-locals: all of it may run
//! inside a signal handler or in the child of a `fork`.
#![cfg_attr(not(feature = "std"), no_std)]
// System call arguments and answers are machine words: numbers, addresses and
// constants of libc's odd types, reinterpreted as the kernel's ABI has it.
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap
)]

pub mod diag;
pub mod errno;
pub mod fd;
pub mod iov;
pub mod mem;
pub mod proc;
pub mod raw;
pub mod sock;
pub mod time;

pub use errno::{Errno, Result};
