//! `memlane bench devmem`
pub(super) mod hose;
mod sinks;
mod sizes;
mod tokens;
