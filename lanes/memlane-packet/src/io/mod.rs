//! What does as the engines say: the only room with descriptors.

pub mod attach;
pub mod door;
mod doorbell;
pub mod link;
mod memory;
pub mod queue;
pub mod socket;

pub use attach::{BackTerms, FrontTerms, back, front};
pub use door::{Listener, connect, connect_until};
pub use link::Link;
pub use memory::Regions;
pub use queue::{BackQueue, FrontQueue};
