//! memlane's spine: what all five lanes use.
//!
//! *Set the memory up once; after that, move only descriptors.*
//!
//! | room | what |
//! |---|---|
//! | [`region`] | memory that can be shared: sealed memfds, mapped once |
//! | [`token`] | the 64-bit capability that names a piece of a region to a peer |
//! | [`access`] | views of bytes that a peer can write |
//! | [`stores`] | the stores that copy into a peer's memory: into the caches, or past them |
//! | [`layout`] | every structure that lies in shared memory |
//! | [`ring`] | the byte stream over two lanes: published/consumed offsets, TCP runs, parking |
//! | [`bell`] | how a receiver of many rings sleeps without parking them |
//! | [`nap`] | how one end of a ring sleeps for a moment, awake |
//! | [`queue`] | 32-bit words from one process to another, with the same way to sleep |
//! | [`sync`] | the atomics behind the ring: the CPU's, or loom's in model checks |
//! | [`device`] | register · attach · write · signal, and the loopback device |
//! | [`peer`] | the proof, by the kernel, of who the other end is |
//! | [`trace`] | records of what a process carries, for a tracer |
//! | [`size`] | sizes in bytes as text |
//! | [`stats`], [`reason`] | the stats page of a process, and the reasons for staying on TCP |
//!
//! A stream's two ends share the words of a DMB and its ring. The sender copies its bytes into the ring and publishes them;
//! the receiver copies them out and releases the room:
//!
//! ```
//! use memlane_core::layout::{DMB_WORDS_LEN, DmbWords};
//! use memlane_core::region::Region;
//! use memlane_core::ring::{Next, Room, Rx, Tx};
//! use memlane_core::sync::Cpu;
//!
//! const RING: usize = 4096;
//! let region = Region::create(c"example", DMB_WORDS_LEN + RING, false)?;
//! // SAFETY: the words are atomics, the memory is zeroed, and the region outlives the reference.
//! let words = unsafe { region.words::<DmbWords<Cpu>>(0).expect("it fits").as_ref() };
//! let ring = region.bytes().part(DMB_WORDS_LEN, RING).expect("it fits");
//!
//! let (mut tx, mut rx) = (Tx::default(), Rx::default());
//! rx.prepare(words);
//! rx.unpark(words);
//! tx.activate(words, 0);
//!
//! let message = b"hello";
//! assert_eq!(tx.reserve(words, RING, message.len()), Ok(Room::Ring(message.len())));
//! let (at, _) = tx.stretches(RING, message.len());
//! // SAFETY: `message` is readable for its length.
//! assert!(unsafe { ring.copy_in(at.at, message.as_ptr(), at.len) });
//! tx.commit(words, message.len());
//!
//! assert_eq!(rx.next(words, RING), Ok(Next::Ring(message.len())));
//! let (at, _) = rx.stretches(RING, message.len());
//! let mut came = [0; 5];
//! // SAFETY: `came` is writable for its length.
//! assert!(unsafe { ring.copy_out(at.at, came.as_mut_ptr(), at.len) });
//! rx.took(words, at.len as u64);
//! assert_eq!(&came, message);
//! # Ok::<(), memlane_sys::Errno>(())
//! ```
#![cfg_attr(not(test), no_std)]

pub mod access;
pub mod bell;
mod copy;
pub mod device;
pub mod golang;
pub mod layout;
pub mod marks;
pub mod nap;
pub mod peer;
pub mod queue;
pub mod reason;
pub mod region;
pub mod ring;
pub mod size;
pub mod stats;
pub mod stores;
pub mod sync;
pub mod token;
pub mod trace;
