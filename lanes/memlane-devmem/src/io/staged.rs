//! Payload into memory of our own first, then into the region: for regions that the kernel cannot write to, and the
//! baseline that the other paths are measured against.

use super::{Came, Path, Source};
use crate::engine::inflow::Room;
use crate::error::{AccessError, ReceiveError};
use crate::region::DeviceRegion;
use memlane_sys::Errno;
use memlane_sys::iov::{self, Piece};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of the memory in between.
const STAGE: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Staged {
    stage: Box<[u8]>,
}

impl Staged {
    pub(super) fn new() -> Staged {
        Staged {
            stage: vec![0; STAGE].into(),
        }
    }
}

impl Source for Staged {
    fn path(&self) -> Path {
        Path::Staged
    }

    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        region: &DeviceRegion,
        rooms: &[Room],
    ) -> Result<Came, ReceiveError> {
        let most: usize = rooms.iter().map(|room| room.len as usize).sum();
        let piece = Piece {
            base: self.stage.as_mut_ptr(),
            len: most.min(STAGE),
        };
        // SAFETY: memory of ours, borrowed by nobody else.
        let came = unsafe { iov::receive(socket.as_raw_fd(), &[piece]) };
        let came = came.map_err(|errno| match errno {
            Errno::AGAIN => ReceiveError::WouldBlock,
            errno => ReceiveError::Kernel(errno),
        })?;
        let mut left = &self.stage[..came];
        for room in rooms {
            let (now, later) = left.split_at(left.len().min(room.len as usize));
            region
                .write(room.offset, now)
                .map_err(|error| match error {
                    AccessError::Device(errno) => ReceiveError::Kernel(errno),
                    _ => ReceiveError::Kernel(Errno::INVAL),
                })?;
            left = later;
        }
        Ok(Came {
            bytes: came as u64,
            bounced: came as u64,
        })
    }
}
