//! How memlane gets into programs that nobody starts with `memlane run`: containers and services.
//!
//! [`memlane_inject`] describes what such a program needs. `cdi` writes it for container engines, `units` for systemd.

pub(crate) mod cdi;
pub(crate) mod units;

pub(crate) use memlane_inject::{Edits, Place, tree};
