//! Device memory: `memlane nc` moves bytes into it and out of it, `memlane devmem` says what there is.

pub(crate) mod nc;
mod pattern;
pub(crate) mod probe;
mod receive;
mod report;
mod send;
mod way;
