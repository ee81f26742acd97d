//! What does as the engines say: the only room with descriptors.

pub mod attach;
mod doorbell;
pub mod link;
mod memory;
pub mod queue;
pub mod socket;

pub use attach::{BackTerms, FrontTerms, back, front};
pub use link::{Link, Listener, connect, connect_until};
pub use memory::Regions;
pub use queue::{BackQueue, FrontQueue};
