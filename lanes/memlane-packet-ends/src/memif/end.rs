//! A queue of a memif interface as an end.

use super::queue::MemifQueue;
use crate::segment::fill_in_blank;
use crate::tally::Tally;
use crate::{End, EndCounts, EndError, More, Sent, Sleep, carry};
use memlane_packet::engine::chain::{Frame, Room};
use memlane_packet::error::Detach;
use memlane_packet::port::PacketPort;
use memlane_packet::{Meta, Offloads};
use rustix::event::PollFd;
use std::time::Instant;

impl MemifQueue {
    /// memif says nothing of checksums: a blank one is filled in, in memory of our own, and then the frame goes. One
    /// whose checksum is not found goes as it is, as its sender's other readers would have it.
    #[cold]
    fn send_filled_in(&mut self, frame: &Frame<'_>) -> Result<Sent, Detach> {
        let mut bytes = vec![0; frame.len()];
        frame.copy_out(0, &mut bytes);
        fill_in_blank(&mut bytes);
        PacketPort::send(self, bytes.len(), Meta::default(), |room| {
            room.copy_in(0, &bytes);
        })
    }
}

impl End for MemifQueue {
    fn name(&self) -> &str {
        MemifQueue::name(self)
    }

    /// None: frames of several segments cannot be told from others.
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        Ok(self.receive_while(most, take)?)
    }

    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        let meta = frame.meta();
        if meta.csum_blank && meta.gso.is_none() {
            return Ok(self.send_filled_in(frame)?);
        }
        let fill = |room: &Room<'_>| carry(frame, room);
        Ok(PacketPort::send(self, frame.len(), meta, fill)?)
    }

    fn flush(&mut self) -> Result<(), EndError> {
        Ok(PacketPort::flush(self)?)
    }

    fn sleeps(&mut self, until: Sleep) -> Result<bool, EndError> {
        Ok(MemifQueue::sleeps(self, until)?)
    }

    fn watch<'a>(&'a self, until: Sleep, fds: &mut Vec<PollFd<'a>>) {
        MemifQueue::watch(self, until, fds);
    }

    fn woken(&mut self) -> Result<(), EndError> {
        Ok(MemifQueue::woken(self)?)
    }

    fn due(&self) -> Option<Instant> {
        MemifQueue::due(self)
    }

    fn counts(&self) -> EndCounts {
        let counts = MemifQueue::counts(self);
        EndCounts {
            received: counts.received,
            received_bytes: counts.received_bytes,
            sent: counts.sent,
            sent_bytes: counts.sent_bytes,
            full: counts.full,
            failed: counts.failed + counts.refused,
        }
    }

    fn tally(&self) -> Tally {
        let counts = MemifQueue::counts(self);
        Tally {
            counts: End::counts(self),
            doorbells: counts.doorbells,
            quiet: counts.quiet,
            ..Tally::default()
        }
    }
}
