//! Memory of users' own.

use memlane_core::access::SharedBytes;
use std::os::fd::BorrowedFd;

/// Memory of a user's own that leases may be pieces of: a device's region.
///
/// What a session was told of once stays mapped until the session is over, whatever a server sends late.
pub trait Memory: Send + Sync + std::fmt::Debug {
    /// All of it: the same, and mapped, as long as `self` lives. No bytes, if the CPU does not reach it.
    fn bytes(&self) -> SharedBytes;

    /// The same memory as a dma-buf, from its beginning on, and how long it is. An RDMA device puts there what is read without
    /// the CPU, if its driver can ([`Lease::detour`](super::Lease::detour)). `None`: it is none.
    fn dma_buf(&self) -> Option<(BorrowedFd<'_>, usize)> {
        None
    }
}

/// Why what was read did not go straight to a user's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detour {
    /// It came by a socket, or from a server of this host; only an RDMA device reaches this memory.
    NoDevice,
    /// rdma-core is too old to register dma-bufs.
    OldLibrary,
    /// The device, or its driver, refused the memory: Linux's error number.
    Refused(i32),
}

impl std::fmt::Display for Detour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Detour::NoDevice => {
                f.write_str("no RDMA device on this path, which could put data there")
            }
            Detour::OldLibrary => {
                f.write_str("libibverbs registers no dma-bufs: install rdma-core 34 or later")
            }
            Detour::Refused(libc::EOPNOTSUPP) => {
                f.write_str("the RDMA device's driver registers no dma-bufs")
            }
            Detour::Refused(errno) => {
                let why = std::io::Error::from_raw_os_error(*errno);
                write!(f, "the RDMA device refused the memory: {why}")
            }
        }
    }
}
