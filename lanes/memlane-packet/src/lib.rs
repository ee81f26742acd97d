//! memlane's packet lane.
#![cfg_attr(feature = "loom", allow(dead_code))]

pub mod engine;
pub mod error;
pub mod io;
pub mod layout;
pub mod port;
pub mod ring;
pub mod stats;
pub mod wire;

pub use engine::chain::{Frame, Part, Room};
pub use engine::grant::Mode;
pub use engine::{Gso, GsoKind, Meta};
pub use error::{AttachError, Detach};
pub use port::{PacketPort, Sent, Sleep};
