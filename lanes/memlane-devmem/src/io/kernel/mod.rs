//! The kernel's own device-memory TCP: a dma-buf is bound to receive queues of an interface, payload that the interface
//! receives there lands in it, and a receive tells where.
//!
//! It takes an interface whose driver can, headers that are split off, and flows that are steered to those queues;
//! [`missing`] says what of that is not there. A binding lasts as long as its netlink socket, which is a
//! [`Bound`]'s: nothing that `kill -9` leaves behind.

mod checks;

pub use checks::{Interface, Missing, missing, missing_to_send};

use crate::engine::Range;
use crate::error::KernelError;
use crate::region::DeviceRegion;
use crate::wire::control::{self, DONTNEED, MSG_SOCK_DEVMEM, SOL_SOCKET, Stretch};
use crate::wire::netdev::{self, command};
use memlane_netlink::{Attributes, Family};
use memlane_sys::Errno;
use memlane_sys::iov::{self, Piece};
use memlane_sys::sock::set_bytes;
use std::os::fd::{AsRawFd, BorrowedFd};

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

/// Room for what one receive tells: so many stretches.
const STRETCHES: usize = 1024;
/// Bytes of a control message that tells of one (`CMSG_SPACE(sizeof(struct dmabuf_cmsg))`).
const TOLD: usize = 40;

/// Receives what has come: how many bytes in all, and where they are. Those that the kernel could not keep in device
/// memory are in `linear`, in order.
///
/// # Errors
/// The kernel's: EAGAIN; ENODEV (something between this socket and the device does not know of device memory); EPROTO:
/// what it told makes no sense.
pub fn receive(socket: BorrowedFd<'_>, linear: &mut [u8]) -> Result<(usize, Vec<Stretch>), Errno> {
    let mut told = vec![0_u64; STRETCHES * TOLD / 8];
    let piece = Piece {
        base: linear.as_mut_ptr(),
        len: linear.len(),
    };
    let fd = socket.as_raw_fd();
    // SAFETY: the caller's buffer, which we have alone.
    let came = unsafe { iov::receive_with_control(fd, &[piece], &mut told, MSG_SOCK_DEVMEM) };
    let (bytes, len) = came?;
    let told: Vec<u8> = told.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let stretches = control::stretches(&told[..len]).map_err(|_| Errno::PROTO)?;
    Ok((bytes, stretches))
}

/// Hands tokens back to the kernel; how many fragments that freed.
///
/// # Errors
/// The kernel's: EINVAL for more than 128 ranges, or none.
pub fn release(socket: BorrowedFd<'_>, ranges: &[Range]) -> Result<u32, Errno> {
    let value = control::dont_need(ranges);
    let freed = set_bytes(socket.as_raw_fd(), SOL_SOCKET, DONTNEED, &value)?;
    Ok(u32::try_from(freed).unwrap_or(u32::MAX))
}
