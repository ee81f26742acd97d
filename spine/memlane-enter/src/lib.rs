//! Puts a library into a static Go program when it is executed.
//!
//! No loader comes to such a program, so nothing can be preloaded. The process that is about to execute it calls
//! [`examine`], and then [`arrange`], which starts a *helper*. The helper traces the process, waits for the exec, maps the
//! library into the new program, lets the program begin in the library instead of at its own first instruction, and ends.
//! The process may also let a child execute the program ([`Executor::Child`]). The program's file is not changed, and
//! `/proc/PID/exe` is the program. [0031](../../../docs/decisions/0031-static-go.md) has the reasons.
//!
//! The helper shares the memory of the process that starts it, because a copy of a large process takes long. It makes system
//! calls directly, and uses nothing that belongs to a thread.
//!
//! What the library finds when it begins ([`BEGINNING`]): the stack as the kernel has left it; the helper's process id in
//! R12, to wait for; all else as at the beginning of a program.
#![no_std]
// Registers hold numbers, addresses and constants of libc's odd types, as the kernel's ABI has it.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

#[cfg(target_arch = "x86_64")]
mod elf;
mod executor;
#[cfg(target_arch = "x86_64")]
mod helper;
#[cfg(target_arch = "x86_64")]
mod library;
#[cfg(target_arch = "x86_64")]
mod meeting;
mod obstacle;
#[cfg(target_arch = "x86_64")]
mod program;
#[cfg(target_arch = "x86_64")]
mod remote;

pub use executor::Executor;
pub use obstacle::Obstacle;

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere;
#[cfg(not(target_arch = "x86_64"))]
pub use elsewhere::{Arranged, Examined, arrange, examine};

#[cfg(target_arch = "x86_64")]
pub use meeting::{Arranged, Examined, arrange, examine};
