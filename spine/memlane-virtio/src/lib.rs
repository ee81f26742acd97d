//! Checked access to a guest's memory and descriptors. The block lane's disks and the packet lane's network devices both
//! use it (vhost-user, with rust-vmm's crates).
//!
//! | module | what |
//! |---|---|
//! | [`memory`] | checks a guest's memory before it is touched, and gives views of it |
//! | [`chain`] | the descriptors of a chain, copied once |
//! | [`socket`] | a socket for one user; descriptors that must be eventfds |
//!
//! A guest's memory must be a file that its owner cannot shorten, because a touch behind the end of a file kills the
//! process that touches it:
//!
//! ```
//! use memlane_virtio::memory::{MemoryError, check, each_window};
//! use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
//! use std::fs::File;
//! use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};
//!
//! let file = memfd_create("guest", MemfdFlags::ALLOW_SEALING)?;
//! ftruncate(&file, 8192)?;
//! let own = File::from(file.try_clone()?);
//! let region = (GuestAddress(0), 8192, Some(FileOffset::new(own, 0)));
//! let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges_with_files([region])?;
//! assert_eq!(check(&memory, true), Err(MemoryError::NotSealed));
//!
//! fcntl_add_seals(&file, SealFlags::SHRINK)?;
//! assert_eq!(check(&memory, true), Ok(()));
//! let mut len = 0;
//! assert!(each_window(&memory, GuestAddress(4096), 100, |view| {
//!     len += view.len();
//!     true
//! }));
//! assert_eq!(len, 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod chain;
pub mod memory;
pub mod socket;
