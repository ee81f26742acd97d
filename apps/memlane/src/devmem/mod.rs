//! Device memory: `memlane nc` moves bytes into it and out of it, `memlane devmem` says what there is, `memlane vol read` reads
//! volumes into it.

pub(crate) mod nc;
pub(crate) mod pattern;
pub(crate) mod probe;
mod receive;
mod report;
mod send;
pub(crate) mod storage;
mod way;
