//! memlane's socket lane: SMC-D loopback in user space.
//!
//! The program's descriptor is the real TCP socket, always. A connection starts
//! as plain TCP and stays one; beside it a memory lane (a ring each way, in
//! memory that the receiver owns) may open in mid-stream. The sender chooses
//! the lane for each stretch of bytes, the receiver follows the sender's map.
//!
//! * The memory lane is for speed, the TCP lane is for waiting: who sleeps,
//!   sleeps in the kernel on the real socket, and is woken by TCP.
//! * TCP carries the lifetime: FIN, RST, keepalive, death.
//! * Fallback is not a mode but a choice of lane.
//!
//! | room | what |
//! |---|---|
//! | [`native`] | the lane by name, for programs that are not preloaded: [`Stream`], [`Listener`] |
//! | [`hooks`] | what libc's calls become: bytes, waits, forks, execs |
//! | [`protocol`] | what two processes do together: the handshake, the shared memory, the two lanes of a connection |
//! | [`state`] | what is kept: per connection, process, thread, epoll set; what is shown and traced of it |
//! | [`config`], [`real`], [`iov`], [`faults`] | settings, libc's own functions, the program's buffers, where tests make a process fail |
//!
//! Each room uses only those below it, and no module of a room uses another in a circle: `verify/memlane-system` checks it.
//!
//! `no_std`, no allocation; locks are spin locks over memory-only sections. Feature `std` adds what std's
//! users expect of a stream: [`native`].
#![cfg_attr(not(any(test, feature = "std")), no_std)]
// The bodies take the program's pointers as libc's functions of the same names
// do; what the program promised its call is what each SAFETY note refers to.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

pub mod config;
pub mod faults;
pub mod hooks;
pub mod iov;
pub mod native;
pub mod protocol;
pub mod real;
pub mod state;

pub use native::{Listener, Stream};
