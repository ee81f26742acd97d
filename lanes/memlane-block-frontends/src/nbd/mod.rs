//! A volume as an NBD export: for qemu, libnbd, nbd-client, fio and whatever else speaks the protocol.
//!
//! Fixed newstyle handshake, structured replies, block status, TLS ([formats](../../../../docs/formats/nbd.md)).
//! Each client has a thread and a queue of the volume; replies go out of the volume's own memory.
//!
//! ```no_run
//! use memlane_block_frontends::nbd::{Export, Listen, Server, ServerConfig};
//! use memlane_block::volume::mem::MemVolume;
//! use std::sync::Arc;
//!
//! let export = Export {
//!     name: "scratch".into(),
//!     description: "a gigabyte of memory".into(),
//!     volume: Arc::new(MemVolume::new(1 << 30)?),
//!     read_only: false,
//! };
//! let listen = vec![Listen::Unix("/run/scratch.sock".into())];
//! let server = Server::bind(ServerConfig::new(listen, vec![export]))?;
//! let stop = server.stop_handle(); // for a signal handler's thread
//! server.run()?;
//! # drop(stop);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! | part | what |
//! |---|---|
//! | [`wire`], [`negotiate`], [`request`] | the protocol, without descriptors |
//! | `handshake`, `conn`, `outbox`, `stream`, `tls` | bytes |
//! | `lock` | requests that are not in blocks |
//! | `listen`, `server`, `stats` | doors, threads, counters |

mod conn;
mod handshake;
mod listen;
mod lock;
pub mod negotiate;
mod outbox;
pub mod request;
mod server;
mod slab;
mod stats;
mod stream;
#[cfg(feature = "tls")]
mod tls;
pub mod wire;

pub use listen::{Listen, activated};
pub use server::{Export, Server, ServerConfig, StopHandle};
pub use stats::{Connection, Counters, Snapshot};
#[cfg(feature = "tls")]
pub use tls::TlsConfig;
