//! memlane's transport lane.
pub mod error;
pub mod wire;
