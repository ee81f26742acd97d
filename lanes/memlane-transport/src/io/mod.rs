//! The half that does I/O: a client's session, a server, and what they send each other.
//!
//! | room | what |
//! |---|---|
//! | [`open`], [`ClientSession`] | a client: implements [`Session`](crate::port::Session) |
//! | [`serve`], [`Server`] | a server: runs a [`Service`](crate::port::Service) in each of its threads |
//! | [`tls`] | who both ends are, and encryption, between machines |
//! | [`SharedMemory`] | memory that the machines of both ends have (`across`) |
//! | `link` | one connection, over a stream (`stream`) or a queue pair (`verbs`) |
//! | [`frame`], [`inflow`] | the stream's bytes, both ways (`docs/formats/tcp-device.md`); pure |

mod across;
mod address;
mod admission;
mod chunks;
mod client;
mod client_port;
pub mod frame;
pub mod inflow;
mod link;
mod link_error;
mod memory;
mod outflow;
mod pool;
mod port_state;
mod server;
mod session;
mod shared;
mod stream;
pub mod tls;
mod verbs;
mod worker;

pub use across::{Holder, SharedMemory, SharedMemoryError};
pub use address::{Address, Inherited, LOCAL, PORT, PathAddr};
pub use admission::Limits;
pub(crate) use chunks::Claim;
pub use chunks::InChunks;
pub use memory::len_of as chunks_len;
pub use server::{Server, ServerConfig, SharedMemoryUse, SteppedServer, serve};
pub use session::{ClientConfig, ClientSession, Means, PathInfo, open, open_over_tls, open_with};
pub use worker::{ServedPath, SessionInfo};
