//! The kernel's own device-memory TCP: a dma-buf is bound to receive queues of an interface, payload that the interface
//! receives there lands in it, and a receive tells where.
//!
//! It takes an interface whose driver can, headers that are split off, and flows that are steered to those queues;
//! [`missing`] says what of that is not there. A binding lasts as long as its netlink socket, which is a
//! [`Bound`]'s: nothing that `kill -9` leaves behind.

mod bound;
pub mod calls;
mod checks;
mod interface;
mod link;
pub mod nic;
mod setup;

pub use bound::Bound;
pub use checks::{Missing, missing, missing_to_send};
pub use interface::Interface;
pub use link::Link;
pub use setup::{Setup, SetupError, Wanted};

use crate::error::KernelError;
use crate::region::DeviceRegion;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The dma-buf that a region is.
///
/// # Errors
/// [`KernelError::NoDmaBuf`].
pub fn dma_buf(region: &DeviceRegion) -> Result<BorrowedFd<'_>, KernelError> {
    region.dma_buf().ok_or(KernelError::NoDmaBuf)
}

/// What of a region an interface is given.
#[derive(Debug)]
pub struct Share {
    /// As a dma-buf.
    pub dma_buf: OwnedFd,
    /// Bytes at the region's end that are not in it: room for what comes beside the device.
    pub kept: u64,
}

/// Bytes that are kept, at most: as many as one receive brings.
const KEPT: u64 = 1 << 20;

/// Shares a region with an interface: all but a little at its end, or all, if it cannot be divided (a heap's).
///
/// # Errors
/// [`KernelError::NoDmaBuf`].
pub fn share(region: &DeviceRegion, chunk: u32) -> Result<Share, KernelError> {
    let whole = dma_buf(region)?;
    let chunk = u64::from(chunk.max(1));
    let kept = KEPT.min(region.len() as u64 / 4) / chunk * chunk;
    let bytes = usize::try_from(region.len() as u64 - kept).unwrap_or(0);
    let part = region
        .dma_buf_of(bytes)
        .map_err(|_| KernelError::NoDmaBuf)?;
    match part {
        Some(dma_buf) if kept > 0 => Ok(Share { dma_buf, kept }),
        _ => {
            let dma_buf = whole.try_clone_to_owned();
            let dma_buf = dma_buf.map_err(|_| KernelError::NoDmaBuf)?;
            Ok(Share { dma_buf, kept: 0 })
        }
    }
}
