//! The bodies of the hooked libc calls. [`calls`] move bytes and end descriptors; [`wait`] waits; [`fork`] and
//! [`handoff`] let other processes have what this one has; [`uring`] looks at what io_uring is given; [`start`] begins.

pub mod calls;
pub mod fork;
pub mod handoff;
pub mod start;
pub mod uring;
pub mod wait;
