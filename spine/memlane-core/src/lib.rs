//! memlane's spine: what all five lanes stand on.
//!
//! *Set the memory up once; after that, move only descriptors.*
//!
//! | room | what |
//! |---|---|
//! | [`region`] | memory that can be shared: sealed memfds, mapped once |
//! | [`token`] | the 64-bit capability that names a piece of a region to a peer |
//! | [`access`] | the one window on bytes that a peer can write |
//! | [`layout`] | every structure that lies in shared memory |
//! | [`ring`] | the byte stream over two lanes: published/consumed offsets, TCP runs, parking |
//! | [`queue`] | 32-bit words from one process to another, with the same way to sleep |
//! | [`sync`] | the atomics behind the ring: the CPU's, or loom's in model checks |
//! | [`device`] | register · attach · write · signal, and the loopback device |
//! | [`peer`] | who the other end is, by the kernel's word |
//! | [`trace`] | what a process carries, for a tracer that may look at it |
//! | [`size`] | sizes in bytes, as people write and read them |
//! | [`stats`], [`reason`] | what a process shows of itself, and why it is on TCP |
#![cfg_attr(not(test), no_std)]

pub mod access;
pub mod device;
pub mod layout;
pub mod peer;
pub mod queue;
pub mod reason;
pub mod region;
pub mod ring;
pub mod size;
pub mod stats;
pub mod sync;
pub mod token;
pub mod trace;
