//! Frontends of memlane's volumes: each shows a [`memlane_block::volume::Volume`] to programs that know nothing of
//! memlane.
//!
//! | module | what a program sees | who may use it |
//! |---|---|---|
//! | [`nbd`] | an NBD export at a unix or TCP socket | anybody |
//! | [`fuse`] | a regular file (feature `fuse`) | any user who may mount with FUSE |
//! | [`loopdev`] | `/dev/loopN` over such a file | root |
//! | [`nbd_kernel`] | `/dev/nbdN` | root |
//! | [`ublk`] | `/dev/ublkbN` (feature `ublk`) | root |
//! | [`vhost`] | a virtual machine's disk (feature `vhost`) | anybody |
//!
//! A frontend takes a queue of the volume for each of its threads, checks each request before it submits it, and
//! lets the data lie in memory that the queue has leased.
//!
//! An NBD export of a volume in memory:
//!
//! ```
//! use memlane_block::volume::mem::MemVolume;
//! use memlane_block_frontends::nbd::{Export, Listen, Server, ServerConfig};
//! use std::sync::Arc;
//!
//! let export = Export {
//!     name: "disk".into(),
//!     description: "a volume in memory".into(),
//!     volume: Arc::new(MemVolume::new(1 << 20)?),
//!     read_only: false,
//! };
//! let listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
//! let server = Server::bind(ServerConfig::new(listen, vec![export]))?;
//! let stop = server.stop_handle();
//! assert_eq!(server.tcp_addresses().len(), 1);
//! let serves = std::thread::spawn(move || server.run());
//! // Clients connect to the address here.
//! stop.stop();
//! serves.join().expect("the server does not panic")?;
//! # Ok::<(), std::io::Error>(())
//! ```

#[cfg(feature = "fuse")]
pub mod fuse;
mod kernel_path;
pub mod loopdev;
pub mod nbd;
pub mod nbd_kernel;
#[cfg(feature = "ublk")]
pub mod ublk;
#[cfg(feature = "vhost")]
pub mod vhost;
