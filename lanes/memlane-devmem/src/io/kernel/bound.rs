//! A binding of a dma-buf to an interface.

use super::interface::Interface;
use crate::error::KernelError;
use crate::wire::netdev::{self, command};
use memlane_netlink::{Attributes, Family};
use std::os::fd::{AsRawFd, BorrowedFd};

/// A dma-buf that is bound to an interface. Dropping it unbinds.
#[derive(Debug)]
pub struct Bound {
    _family: Family,
    id: u32,
}

impl Bound {
    /// Binds a dma-buf to receive queues of an interface (`CAP_NET_ADMIN`). Which one a region is: [`dma_buf`](super::dma_buf).
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
