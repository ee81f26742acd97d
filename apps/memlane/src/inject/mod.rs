//! How memlane gets into programs that nobody starts with `memlane run`: containers and services.
//!
//! `edits` is the one description of what such a program needs. `cdi` writes it for container engines, `units` for systemd.
//! `tree` lays the library out so that one path is right in every image.

pub(crate) mod cdi;
mod edits;
pub(crate) mod tree;
pub(crate) mod units;

pub(crate) use edits::{Edits, Place};
