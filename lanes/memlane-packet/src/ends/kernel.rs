//! An interface of the kernel, one of its queues: a descriptor that gives and takes frames behind a [`vnet`] header.
//!
//! What TAP devices ([`tap`](super::tap)) and packet sockets ([`afpacket`](super::afpacket)) have in common, which is
//! all but how they are opened and one system call each way. Frames that go are written from where they lie: the copy
//! is the kernel's. Frames that come are read into memory of our own, where their headers stay as they were looked at.

use super::headers::{self, LOOK};
use super::{End, EndCounts, EndError, More, Sent, Sleep, lend, vnet};
use crate::engine::Meta;
use crate::engine::chain::{Frame, Offloads};
use crate::layout::{PACKET_MAX, PACKET_MIN, SLOTS_MAX};
use memlane_sys::iov::{self, Piece};
use memlane_sys::{Errno, Result};
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsRawFd, OwnedFd};

/// Room for a VLAN tag that the kernel has taken out of a frame.
const TAG: usize = 4;

/// Errors that are about one frame, or about an interface that is down and may come up again: EIO (a TAP that is
/// down), ENXIO, EINVAL, EMSGSIZE, ENETDOWN, ENOBUFS, ENOMEM.
const PASSING: [Errno; 7] = [
    Errno(5),
    Errno(6),
    Errno::INVAL,
    Errno(90),
    Errno(100),
    Errno(105),
    Errno(12),
];

/// How a descriptor is read and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// `readv`, `writev`.
    Device,
    /// `recvmsg`, `sendmsg`; VLAN tags come beside the frame.
    Socket,
}

/// One queue of an interface of the kernel.
#[derive(Debug)]
pub struct Interface {
    fd: OwnedFd,
    kind: Kind,
    name: String,
    buffer: Box<[u8]>,
    counts: EndCounts,
}

impl Interface {
    pub(super) fn new(fd: OwnedFd, kind: Kind, name: String) -> Interface {
        Interface {
            fd,
            kind,
            name,
            // One byte more than a frame may have, so that a longer one is seen.
            buffer: vec![0; TAG + PACKET_MAX + 1].into(),
            counts: EndCounts::default(),
        }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Reads a frame to `TAG` bytes from the buffer's beginning: (its header, bytes, a tag that belongs into it).
    fn read(&mut self) -> Result<([u8; vnet::LEN], usize, Option<[u8; TAG]>)> {
        let mut header = [0; vnet::LEN];
        let room = &mut self.buffer[TAG..];
        let pieces = [
            Piece {
                base: header.as_mut_ptr(),
                len: header.len(),
            },
            Piece {
                base: room.as_mut_ptr(),
                len: room.len(),
            },
        ];
        let (fd, mut tag) = (self.fd.as_raw_fd(), None);
        let n = match self.kind {
            // SAFETY: both are ours, and borrowed by nobody else.
            Kind::Device => unsafe { iov::read(fd, &pieces) }?,
            Kind::Socket => {
                // SAFETY: as above.
                let (n, told) = unsafe { iov::receive_told(fd, &pieces) }?;
                tag = told.and_then(super::afpacket::tag_of);
                n
            }
        };
        Ok((header, n.saturating_sub(vnet::LEN), tag))
    }

    /// Puts a tag back where it was; (first byte of the frame, its bytes).
    fn put_back(
        &mut self,
        tag: Option<[u8; TAG]>,
        header: &mut [u8; vnet::LEN],
        len: usize,
    ) -> (usize, usize) {
        let Some(tag) = tag else { return (TAG, len) };
        self.buffer.copy_within(TAG..TAG + 12, 0);
        self.buffer[12..16].copy_from_slice(&tag);
        vnet::shift(header, TAG);
        (0, len + TAG)
    }

    /// Reads a frame and lends it; `None`: there is none.
    fn receive_one(
        &mut self,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> core::result::Result<Option<More>, EndError> {
        let (mut header, len, tag) = match self.read() {
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) if PASSING.contains(&error) => return Ok(None),
            read => read.map_err(EndError::Device)?,
        };
        let (at, len) = if len < PACKET_MIN {
            (TAG, len)
        } else {
            self.put_back(tag, &mut header, len)
        };
        let frame = self.buffer.get_mut(at..at + len);
        let frame = frame.filter(|frame| (PACKET_MIN..=PACKET_MAX).contains(&frame.len()));
        let meta = frame.and_then(|frame| understand(&header, frame));
        let Some(meta) = meta else {
            self.counts.failed += 1;
            return Ok(Some(More::Yes));
        };
        self.counts.received += 1;
        self.counts.received_bytes += len as u64;
        Ok(Some(lend(&self.buffer[at..at + len], meta, take)))
    }

    fn write(&self, header: &mut [u8; vnet::LEN], frame: &Frame<'_>) -> Result<usize> {
        let mut pieces = [Piece::NONE; SLOTS_MAX + 1];
        pieces[0] = Piece {
            base: header.as_mut_ptr(),
            len: header.len(),
        };
        let mut count = 1;
        // More pieces than a link's frames have (memif's buffers are small): the kernel is given one.
        let mut whole = Vec::new();
        if frame.parts().len() > SLOTS_MAX {
            whole.resize(frame.len(), 0);
            frame.copy_out(0, &mut whole);
            pieces[1] = Piece {
                base: whole.as_mut_ptr(),
                len: whole.len(),
            };
            count += 1;
        } else {
            for (piece, part) in pieces[1..].iter_mut().zip(frame.parts()) {
                *piece = Piece {
                    base: part.as_ptr(),
                    len: part.len(),
                };
                count += 1;
            }
        }
        let (fd, pieces) = (self.fd.as_raw_fd(), &pieces[..count]);
        // SAFETY: a header of ours, and windows that are alive as long as the frame; the kernel copies their bytes.
        unsafe {
            match self.kind {
                Kind::Device => iov::write(fd, pieces),
                Kind::Socket => iov::send(fd, pieces),
            }
        }
    }
}

/// What a frame says of itself; fills in what netif cannot say. `None`: it is of no use.
fn understand(header: &[u8; vnet::LEN], frame: &mut [u8]) -> Option<Meta> {
    let len = frame.len();
    match vnet::read(header, &frame[..len.min(LOOK)], len) {
        vnet::Read::Said(meta) => Some(meta),
        vnet::Read::Unusable => None,
        vnet::Read::FillIn(start, offset) => {
            let meta = Meta {
                data_validated: true,
                ..Meta::default()
            };
            headers::fill_in(frame, start, offset, len).then_some(meta)
        }
    }
}

/// What to tell the kernel of a frame. `None`: it does not say of itself what it is.
fn explain(frame: &Frame<'_>) -> Option<[u8; vnet::LEN]> {
    let meta = frame.meta();
    if !meta.csum_blank && meta.gso.is_none() {
        return Some([0; vnet::LEN]);
    }
    let mut look = [0; LOOK];
    let n = frame.copy_out(0, &mut look);
    vnet::write(meta, &look[..n], frame.len())
}

impl End for Interface {
    fn name(&self) -> &str {
        &self.name
    }

    fn offloads(&self) -> Offloads {
        Offloads {
            gso4: true,
            gso6: true,
        }
    }

    fn limit(&mut self, takes: Offloads) -> core::result::Result<(), EndError> {
        if self.kind == Kind::Socket {
            return Ok(());
        }
        super::tap::set_offloads(self, takes).map_err(EndError::Device)
    }

    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> core::result::Result<usize, EndError> {
        let mut n = 0;
        while n < most {
            match self.receive_one(take)? {
                None => break,
                Some(more) => {
                    n += 1;
                    if more == More::No {
                        break;
                    }
                }
            }
        }
        Ok(n)
    }

    fn send(&mut self, frame: &Frame<'_>) -> core::result::Result<Sent, EndError> {
        let Some(mut header) = explain(frame) else {
            self.counts.failed += 1;
            return Ok(Sent::Refused);
        };
        match self.write(&mut header, frame) {
            Ok(_) => {
                self.counts.sent += 1;
                self.counts.sent_bytes += frame.len() as u64;
                Ok(Sent::Queued)
            }
            Err(Errno::AGAIN) => {
                self.counts.full += 1;
                Ok(Sent::Full(1))
            }
            Err(error) if PASSING.contains(&error) => {
                self.counts.failed += 1;
                Ok(Sent::Refused)
            }
            Err(error) => Err(EndError::Device(error)),
        }
    }

    fn sleeps(&mut self, _: Sleep) -> core::result::Result<bool, EndError> {
        // The kernel's poll looks for itself.
        Ok(true)
    }

    fn watch<'a>(&'a self, until: Sleep, fds: &mut Vec<PollFd<'a>>) {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, until.frames);
        events.set(PollFlags::OUT, until.room > 0);
        fds.push(PollFd::new(&self.fd, events));
    }

    fn counts(&self) -> EndCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_core::access::SharedBytes;
    use std::os::unix::net::UnixDatagram;
    use std::ptr::NonNull;

    #[test]
    fn a_frame_in_many_pieces_goes_whole() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let mut end = Interface::new(ours.into(), Kind::Device, "test".into());
        let bytes: Vec<u8> = (0..9000_u32).map(|n| (n / 3).to_le_bytes()[0]).collect();
        let mut buffer = vec![0; 10_000];
        for len in [9000, 500, 100, 60] {
            let windows: Vec<_> = bytes
                .chunks(len)
                // SAFETY: `bytes` outlives the frame; for reading only.
                .map(|part| unsafe {
                    SharedBytes::read_only(NonNull::from(part).cast(), part.len())
                })
                .collect();
            let frame = Frame::new(&windows, bytes.len(), Meta::default());
            assert_eq!(end.send(&frame), Ok(Sent::Queued));
            let n = theirs.recv(&mut buffer).unwrap();
            assert_eq!(n, vnet::LEN + bytes.len(), "pieces of {len}");
            assert!(buffer[vnet::LEN..n] == bytes);
        }
    }
}
