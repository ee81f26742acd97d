//! Payload straight from the kernel's socket buffers into the mapped region: its one copy is the kernel's.

use super::path::Path;
use super::ways::{Came, Source};
use crate::engine::inflow::Room;
use crate::error::ReceiveError;
use crate::region::{Access, DeviceRegion};
use memlane_sys::Errno;
use memlane_sys::iov::{self, Piece};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Stretches of one system call, at most.
pub(super) const PIECES: usize = 64;

#[derive(Debug)]
pub(super) struct Mapped;

impl Source for Mapped {
    fn path(&self) -> Path {
        Path::Mapped
    }

    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        region: &DeviceRegion,
        rooms: &[Room],
    ) -> Result<Came, ReceiveError> {
        receive(region, rooms, |pieces| {
            // SAFETY: windows on chunks that this stream has open, of a region that lives; nothing in them is borrowed.
            unsafe { iov::receive(socket.as_raw_fd(), pieces) }
        })
    }

    fn receive_waiting(
        &mut self,
        socket: BorrowedFd<'_>,
        region: &DeviceRegion,
        rooms: &[Room],
    ) -> Option<Result<Came, ReceiveError>> {
        // The CPU's access to a dma-buf is told to devices, and may not last.
        let waits = region.dma_buf().is_none();
        waits.then(|| {
            receive(region, rooms, |pieces| {
                // SAFETY: as above; the stream, which is borrowed until the call is back, keeps the chunks open.
                unsafe { iov::receive_waiting(socket.as_raw_fd(), pieces) }
            })
        })
    }
}

/// Has `call` put bytes into `rooms`.
fn receive(
    region: &DeviceRegion,
    rooms: &[Room],
    call: impl FnOnce(&[Piece]) -> Result<usize, Errno>,
) -> Result<Came, ReceiveError> {
    let came = region.cpu(Access::Write, |bytes| {
        let mut pieces = [Piece::NONE; PIECES];
        let mut count = 0;
        for (piece, room) in pieces.iter_mut().zip(rooms) {
            let at = usize::try_from(room.offset).unwrap_or(usize::MAX);
            // Rooms are within the region: it is what the chunks were made of.
            let window = bytes.part(at, room.len as usize).ok_or(Errno::INVAL)?;
            *piece = Piece {
                base: window.as_ptr(),
                len: window.len(),
            };
            count += 1;
        }
        call(&pieces[..count])
    });
    match came.map_err(ReceiveError::Kernel)? {
        Ok(bytes) => Ok(Came {
            bytes: bytes as u64,
            bounced: 0,
        }),
        Err(Errno::AGAIN) => Err(ReceiveError::WouldBlock),
        Err(errno) => Err(ReceiveError::Kernel(errno)),
    }
}
