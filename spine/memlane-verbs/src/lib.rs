//! RDMA connections through rdma-core: InfiniBand, RoCE, and whatever else has queue pairs.
//!
//! The libraries, `libibverbs.so.1` and `librdmacm.so.1`, are looked for at run time. A program that uses this crate starts
//! on machines without them, and can say what is missing. Nothing here is a model of all of verbs: there is what a transport
//! of requests needs, which is reliable connections, sends, and writes with an immediate.
//!
//! | room | what |
//! |---|---|
//! | [`Verbs`] | the two libraries |
//! | [`Id`], [`Event`] | how a connection comes about, and ends |
//! | [`Domain`], [`Registration`], [`Piece`] | memory that a device may reach |
//! | [`Pair`] | work requests, and their completions |
//! | [`layout`] | the structures of C that are shared with the libraries |
//!
//! Nothing here sleeps: events and completions are asked for, and descriptors become readable when there are some.
//!
//! ```
//! match memlane_verbs::Verbs::find().and_then(|verbs| verbs.devices()) {
//!     Ok(devices) => println!("RDMA devices: {}", devices.join(", ")),
//!     Err(why) => println!("{why}"),
//! }
//! ```

mod address;
mod cm;
mod domain;
mod error;
pub mod layout;
mod library;
mod pair;

pub use cm::{Event, Id, PRIVATE_DATA};
pub use domain::{Domain, Piece, Registration};
pub use error::{Status, VerbsError};
pub use library::{LIBRARIES, Verbs};
pub use pair::{Capacity, Completed, Completion, Data, Pair, Verb};
