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
//! | [`calls`] | bodies of the hooked calls |
//! | [`wait`] | epoll, poll, select over both lanes |
//! | [`lane`] | one connection's lanes: open, wake, park, end, receive, send |
//! | [`upgrade`], [`wire`], [`group`] | the handshake, its bytes, the memory shared with one peer process |
//! | [`conn`], [`process`], [`thread`] | what is kept per connection, process, thread |
//! | [`faults`] | where a process can be made to fail: empty but in tests |
//! | [`native`] | the lane by name, for programs that are not preloaded: [`Stream`], [`Listener`] |
//! | [`trace`] | what this process carries, told to a tracer |
//! | [`spin`] | when to spin |
//! | [`config`], [`stats`], [`real`], [`iov`] | settings, what is shown, libc's own functions, buffers |
//!
//! `no_std`, no allocation; locks are spin locks over memory-only sections. Feature `std` adds what std's
//! users expect of a stream: [`native`].
#![cfg_attr(not(any(test, feature = "std")), no_std)]
// The bodies take the program's pointers as libc's functions of the same names
// do; what the program promised its call is what each SAFETY note refers to.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

pub mod calls;
pub mod carry;
pub mod config;
pub mod conn;
pub mod faults;
pub mod group;
pub mod guard;
pub mod iov;
pub mod lane;
pub mod native;
pub mod process;
pub mod real;
pub mod spin;
pub mod stats;
pub mod thread;
pub mod trace;
pub mod upgrade;
pub mod wait;
pub mod wire;

pub use native::{Listener, Stream};
