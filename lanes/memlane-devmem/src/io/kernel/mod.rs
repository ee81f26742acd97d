//! The kernel's own device-memory TCP: a dma-buf is bound to receive queues of an interface, payload that the interface
//! receives there lands in it, and a receive tells where.
//!
//! It takes an interface whose driver can, headers that are split off, and flows that are steered to those queues;
//! [`missing`] says what of that is not there. A binding lasts as long as its netlink socket, which is a
//! [`Bound`]'s: nothing that `kill -9` leaves behind.

pub mod calls;
mod checks;
mod link;
pub mod nic;
mod setup;

pub use checks::{Interface, Missing, missing, missing_to_send};
pub use link::Link;
pub use setup::{Setup, SetupError, Wanted};

use crate::error::KernelError;
use crate::region::DeviceRegion;
use crate::wire::netdev::{self, command};
use memlane_netlink::{Attributes, Family};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// A dma-buf that is bound to an interface. Dropping it unbinds.
#[derive(Debug)]
pub struct Bound {
    _family: Family,
    id: u32,
}

impl Bound {
    /// Binds a dma-buf to receive queues of an interface (`CAP_NET_ADMIN`). Which one a region is: [`dma_buf`].
    ///
    /// # Errors
    /// [`KernelError::Refused`]: the kernel's number and words.
    pub fn receive(
        dma_buf: BorrowedFd<'_>,
        interface: &Interface,
        queues: &[u32],
    ) -> Result<Bound, KernelError> {
        let request = |fd| netdev::bind_rx(interface.index, fd, queues);
        Bound::by(command::BIND_RX, dma_buf, request)
    }

    /// Binds a dma-buf to be sent from, by an interface.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn send(dma_buf: BorrowedFd<'_>, interface: &Interface) -> Result<Bound, KernelError> {
        let request = |fd| netdev::bind_tx(interface.index, fd);
        Bound::by(command::BIND_TX, dma_buf, request)
    }

    fn by(
        command: u8,
        dma_buf: BorrowedFd<'_>,
        request: impl FnOnce(u32) -> Attributes,
    ) -> Result<Bound, KernelError> {
        // Not negative: it is open.
        let request = request(dma_buf.as_raw_fd().unsigned_abs());
        let (name, version) = netdev::FAMILY;
        let mut family = Family::open(name, version).map_err(KernelError::NoFamily)?;
        let told = family
            .ask(command, &request)
            .map_err(KernelError::Refused)?;
        let id = netdev::bound(&told).ok_or(KernelError::NoAnswer)?;
        Ok(Bound {
            _family: family,
            id,
        })
    }

    /// Its number: receives tell it, sends name it.
    pub fn id(&self) -> u32 {
        self.id
    }
}

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
