//! An interface of the kernel, one of its queues: a descriptor that gives and takes frames behind a [`vnet`] header.
//!
//! What TAP devices ([`tap`](super::tap)) and packet sockets ([`afpacket`]) have in common, which is
//! all but how they are opened and one system call each way. Frames that go are written from where they lie: the copy
//! is the kernel's; for a TAP device, segments that follow each other are [merged](super::merge) first. Frames that come are read to where they are to lie, if they are large and the other end lends room;
//! else into memory of our own. What is believed of their headers is looked at in a private copy, once.

use super::headers::{self, LOOK};
use super::merge::{Merge, Offered};
use super::{
    End, EndCounts, EndError, Filled, More, Sent, Sleep, Taker, Taking, afpacket, lend, presence,
    vnet,
};
use memlane_packet::engine::chain::{Frame, Part, Room};
use memlane_packet::layout::{PACKET_MAX, PACKET_MIN, SLOTS_MAX};
use memlane_packet::{Meta, Offloads};
use memlane_sys::iov::{self, Piece};
use memlane_sys::{Errno, Result};
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

/// Room for a VLAN tag that the kernel has taken out of a frame.
const TAG: usize = 4;

/// The next frame is read into lent room if the last one had more bytes than this: for a small one, copying it is less
/// work than naming the kernel so many places.
const LARGE: usize = 4096;

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

/// Those of them that are about the interface: ENXIO (a packet socket whose interface is gone), ENETDOWN.
const DOWN: [Errno; 2] = [Errno(6), Errno(100)];
/// ENODEV.
const GONE: Errno = Errno(19);
/// EBADFD: what a TAP's descriptor says when its interface has been removed.
const DETACHED: Errno = Errno(77);

/// How a descriptor is read and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DescriptorKind {
    /// `readv`, `writev`.
    Device,
    /// `preadv2`, `pwritev2`, which never wait: another process holds the descriptor too, and says whether others do.
    Lent,
    /// `recvmsg`, `sendmsg`; VLAN tags come beside the frame.
    Socket {
        /// The interface's number.
        index: u32,
    },
}

impl DescriptorKind {
    /// Is it a TAP device?
    fn is_device(self) -> bool {
        matches!(self, DescriptorKind::Device | DescriptorKind::Lent)
    }
}

/// One queue of an interface of the kernel.
#[derive(Debug)]
pub struct Interface {
    fd: OwnedFd,
    kind: DescriptorKind,
    name: String,
    buffer: Box<[u8]>,
    /// The last frame was large.
    large: bool,
    /// Segments that go as one large frame, with the next flush at the latest. Not of a packet socket: what goes to a wire
    /// would only be cut up again.
    merge: Option<Merge>,
    counts: EndCounts,
    /// Of a packet socket: its interface was down when we looked last, and may be gone the next time.
    down: Option<Instant>,
}

impl Interface {
    pub(super) fn new(fd: OwnedFd, kind: DescriptorKind, name: String) -> Interface {
        Interface {
            fd,
            kind,
            name,
            // One byte more than a frame may have, so that a longer one is seen.
            buffer: vec![0; TAG + PACKET_MAX + 1].into(),
            large: false,
            merge: kind.is_device().then(Merge::default),
            counts: EndCounts::default(),
            down: None,
        }
    }

    /// After an error that may pass: has the interface gone meanwhile?
    #[cold]
    fn passes(&mut self, error: Errno) -> core::result::Result<(), EndError> {
        if DOWN.contains(&error) {
            self.look_whether_gone()?;
        }
        Ok(())
    }

    fn look_whether_gone(&mut self) -> core::result::Result<(), EndError> {
        let DescriptorKind::Socket { index } = self.kind else {
            return Ok(());
        };
        if presence::is_gone(&self.fd, index) {
            return Err(EndError::Device(GONE));
        }
        self.down = (!presence::is_up(&self.fd, index)).then(Instant::now);
        Ok(())
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
            DescriptorKind::Device => unsafe { iov::read(fd, &pieces) }?,
            // SAFETY: as above.
            DescriptorKind::Lent => unsafe { iov::read_now(fd, &pieces) }?,
            DescriptorKind::Socket { .. } => {
                // SAFETY: as above.
                let (n, told) = unsafe { iov::receive_with_message(fd, &pieces) }?;
                tag = told.and_then(afpacket::tag_of);
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

    /// Reads a frame into room that `taker` lends; `None`: it lends none, or there is no frame (which is told by `came`).
    fn place_one(&mut self, taker: &mut dyn Taker, came: &mut Result<()>) -> Option<More> {
        taker.place(&mut |room| match self.read_to(room) {
            Ok(filled) => filled,
            Err(error) => {
                *came = Err(error);
                None
            }
        })
    }

    /// Reads a frame to where it is to lie. `None`: it is of no use.
    fn read_to(&mut self, room: &Room<'_>) -> Result<Filled> {
        let (mut header, mut beyond) = ([0; vnet::LEN], [0; 1]);
        let mut pieces = [Piece::NONE; SLOTS_MAX + 2];
        pieces[0] = Piece {
            base: header.as_mut_ptr(),
            len: header.len(),
        };
        let count = 1 + name(room.parts(), &mut pieces[1..=SLOTS_MAX]);
        // So that a frame that is too long is seen.
        pieces[count] = Piece {
            base: beyond.as_mut_ptr(),
            len: beyond.len(),
        };
        let (fd, pieces) = (self.fd.as_raw_fd(), &pieces[..=count]);
        // SAFETY: ours, and windows that are alive as long as the room; nobody borrows their bytes.
        let n = unsafe {
            match self.kind {
                DescriptorKind::Lent => iov::read_now(fd, pieces),
                _ => iov::read(fd, pieces),
            }
        }?;
        let len = n.saturating_sub(vnet::LEN);
        self.large = len > LARGE;
        let fits = (PACKET_MIN..=PACKET_MAX).contains(&len);
        let meta = if fits {
            self.understand_in(room, &header, len)
        } else {
            None
        };
        let Some(meta) = meta else {
            self.counts.failed += 1;
            return Ok(None);
        };
        self.counts.count_received(len);
        Ok(Some((len, meta)))
    }

    /// As [`understand`], of a frame that others can change: in a private copy of its headers, or of all of it.
    fn understand_in(
        &mut self,
        room: &Room<'_>,
        header: &[u8; vnet::LEN],
        len: usize,
    ) -> Option<Meta> {
        let mut look = [0; LOOK];
        let n = room.copy_out(0, &mut look[..len.min(LOOK)]);
        match vnet::read(header, &look[..n], len) {
            vnet::Read::Said(meta) => Some(meta),
            vnet::Read::Unusable => None,
            vnet::Read::FillIn(..) => {
                room.copy_out(0, &mut self.buffer[..len]);
                let frame = &mut self.buffer[..len];
                let meta = understand(header, frame)?;
                room.copy_in(0, frame);
                Some(meta)
            }
        }
    }

    /// Reads a frame and has it taken; `None`: there is none.
    fn receive_one(
        &mut self,
        taker: &mut dyn Taker,
    ) -> core::result::Result<Option<More>, EndError> {
        let mut came = Ok(());
        if self.large && self.kind.is_device() {
            let more = self.place_one(taker, &mut came);
            if more.is_some() && came.is_ok() {
                return Ok(more);
            }
        }
        let (mut header, len, tag) = match came.and_then(|()| self.read()) {
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) if PASSING.contains(&error) => {
                self.passes(error)?;
                return Ok(None);
            }
            read => read.map_err(ended)?,
        };
        if self.down.is_some() {
            // The frame may have waited since before the interface went down.
            self.look_whether_gone()?;
        }
        self.large = len > LARGE;
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
        self.counts.count_received(len);
        let frame = &self.buffer[at..at + len];
        Ok(Some(lend(frame, meta, &mut |frame| taker.take(frame))))
    }

    fn write(&mut self, header: &mut [u8; vnet::LEN], frame: &Frame<'_>) -> Result<usize> {
        let mut pieces = [Piece::NONE; SLOTS_MAX + 1];
        pieces[0] = Piece {
            base: header.as_mut_ptr(),
            len: header.len(),
        };
        let mut count = 1 + name(frame.parts(), &mut pieces[1..]);
        if pieces[1..count]
            .iter()
            .map(|piece| piece.len)
            .sum::<usize>()
            < frame.len()
        {
            // More stretches than the lane has: memif's buffers can be small.
            let n = frame.copy_out(0, &mut self.buffer);
            pieces[1] = Piece {
                base: self.buffer.as_mut_ptr(),
                len: n,
            };
            count = 2;
        }
        let (fd, pieces) = (self.fd.as_raw_fd(), &pieces[..count]);
        // SAFETY: a header of ours, and windows that are alive as long as the frame; the kernel copies their bytes.
        unsafe {
            match self.kind {
                DescriptorKind::Device => iov::write(fd, pieces),
                DescriptorKind::Lent => iov::write_now(fd, pieces),
                DescriptorKind::Socket { .. } => iov::send(fd, pieces),
            }
        }
    }

    /// Holds a frame for a large one, if it may be part of one. `None`: it is to be written by itself, now.
    fn hold(&mut self, frame: &Frame<'_>) -> core::result::Result<Option<Sent>, EndError> {
        let Some(merge) = &mut self.merge else {
            return Ok(None);
        };
        match merge.offer(frame) {
            Offered::Joined => return Ok(Some(Sent::Queued)),
            Offered::Complete => {
                self.put_merged()?;
                return Ok(Some(Sent::Queued));
            }
            Offered::Apart => {}
        }
        if !self.put_merged()? {
            return Ok(Some(Sent::Full(1)));
        }
        let held = self.merge.as_mut().is_some_and(|merge| merge.begin(frame));
        Ok(held.then_some(Sent::Queued))
    }

    /// Writes what was merged. `false`: there is no room, and it stays.
    fn put_merged(&mut self) -> core::result::Result<bool, EndError> {
        let Some(mut merge) = self.merge.take() else {
            return Ok(true);
        };
        let mut put = Ok(Sent::Queued);
        if let Some(held) = merge.close() {
            lend(held.bytes, held.meta, &mut |frame| {
                put = self.put(frame, held.frames, held.frame_bytes);
                More::Yes
            });
        }
        let went = !matches!(put, Ok(Sent::Full(_)));
        if went {
            merge.clear();
        }
        self.merge = Some(merge);
        put.map(|_| went)
    }

    /// Writes a frame that was merged from `frames` frames of `bytes` bytes in all, which are what is counted.
    fn put(
        &mut self,
        frame: &Frame<'_>,
        frames: u64,
        bytes: u64,
    ) -> core::result::Result<Sent, EndError> {
        let Some(mut header) = explain(frame) else {
            self.counts.failed += frames;
            return Ok(Sent::Refused);
        };
        match self.write(&mut header, frame) {
            Ok(_) => {
                self.counts.sent += frames;
                self.counts.sent_bytes += bytes;
                Ok(Sent::Queued)
            }
            Err(Errno::AGAIN) => {
                self.counts.full += 1;
                Ok(Sent::Full(1))
            }
            Err(error) if PASSING.contains(&error) => {
                self.passes(error)?;
                self.counts.failed += frames;
                Ok(Sent::Refused)
            }
            Err(error) => Err(ended(error)),
        }
    }
}

fn ended(error: Errno) -> EndError {
    EndError::Device(if error == DETACHED { GONE } else { error })
}

/// Names stretches to the kernel, those that lie beside each other as one; how many.
fn name<'a>(parts: impl Iterator<Item = Part<'a>>, pieces: &mut [Piece]) -> usize {
    let mut count = 0;
    for part in parts {
        if let Some(last) = pieces[..count].last_mut()
            && last.base.wrapping_add(last.len) == part.as_ptr()
        {
            last.len += part.len();
        } else if let Some(piece) = pieces.get_mut(count) {
            *piece = Piece {
                base: part.as_ptr(),
                len: part.len(),
            };
            count += 1;
        }
    }
    count
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

    fn limit(&mut self, takes: Offloads) -> core::result::Result<(), EndError> {
        if !self.kind.is_device() {
            return Ok(());
        }
        super::tun::set_offloads(&self.fd, takes).map_err(EndError::Device)
    }

    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> core::result::Result<usize, EndError> {
        self.receive_for(most, &mut Taking(take))
    }

    fn receive_for(
        &mut self,
        most: usize,
        taker: &mut dyn Taker,
    ) -> core::result::Result<usize, EndError> {
        let mut n = 0;
        while n < most {
            match self.receive_one(taker)? {
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
        match self.hold(frame)? {
            Some(sent) => Ok(sent),
            None => self.put(frame, 1, frame.len() as u64),
        }
    }

    fn lacks(&mut self) -> core::result::Result<u32, EndError> {
        let waits = self.merge.as_ref().is_some_and(Merge::is_closed);
        Ok(u32::from(waits && !self.put_merged()?))
    }

    fn flush(&mut self) -> core::result::Result<(), EndError> {
        // What finds no room stays, and is asked for by `lacks`.
        self.put_merged().map(|_| ())
    }

    fn asks_the_kernel(&self) -> bool {
        true
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

    fn woken(&mut self) -> core::result::Result<(), EndError> {
        match self.down {
            Some(at) if at.elapsed() >= presence::LOOK_AGAIN => self.look_whether_gone(),
            _ => Ok(()),
        }
    }

    fn due(&self) -> Option<Instant> {
        self.down.map(|at| at + presence::LOOK_AGAIN)
    }

    fn counts(&self) -> EndCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
