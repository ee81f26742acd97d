//! memlane's block lane: volumes of one machine, used on another (IBNBD).
//!
//! A [`volume::Volume`] is what a client has: a device of blocks, wherever they are stored. Each thread that uses one
//! has a [`volume::Queue`] of its own, puts requests in and takes results out; the memory of a request is leased from
//! the queue, so that the device under it can move it without a copy.
//!
//! ```
//! use memlane_block::volume::mem::MemVolume;
//! use memlane_block::volume::{Io, Op, Queue as _, Volume as _};
//!
//! let volume = MemVolume::new(1 << 20).unwrap();
//! let mut queue = volume.queue().unwrap();
//! let lease = queue.lease(4096).unwrap().expect("nothing else is under way");
//! lease.fill(0, b"hello");
//! queue.submit(Io::data(1, Op::Write, 8192, 4096, lease));
//! let mut done = Vec::new();
//! while done.is_empty() {
//!     queue.wait(None);
//!     queue.reap(&mut done);
//! }
//! assert_eq!((done[0].tag, done[0].result), (1, Ok(())));
//! ```

pub mod client;
mod loan;
pub mod names;
pub mod server;
pub mod store;
pub mod volume;
pub mod wire;
