//! Frames into a stream: what is ready goes out together, small parts from a buffer, data from where it lies.

use super::frame::{Header, Step, WriteTarget};
use crate::wire::CONN_LEN;
use memlane_core::access::SharedBytes;
use memlane_sys::iov::{self, Piece};
use memlane_sys::{Errno, Result};
use std::collections::VecDeque;

/// Pieces that go out with one system call.
const PIECES: usize = 128;
/// Data of up to this size is copied to the other small parts: a piece of its own costs as much.
const SMALL: u32 = 256;
/// Staged bytes from which on a peer does not read what it is told.
const CLOGGED: usize = 2 * super::frame::MAX_MESSAGE;

#[derive(Debug)]
enum Part {
    /// This many bytes of the buffer.
    Staged(usize),
    /// Memory that stays mapped while this connection lives.
    Data(SharedBytes),
}

/// The sending half of one stream.
#[derive(Debug, Default)]
pub(super) struct Outflow {
    staged: Vec<u8>,
    /// Bytes of `staged` that have gone out.
    gone: usize,
    parts: VecDeque<Part>,
    /// Bytes of the first part that have gone out.
    begun: usize,
}

impl Outflow {
    /// Does the peer not read?
    #[must_use]
    pub(super) fn is_clogged(&self) -> bool {
        self.staged.len() - self.gone > CLOGGED
    }

    /// A step of making the connection.
    pub(super) fn step(&mut self, step: Step, private: &[u8; CONN_LEN]) {
        self.stage(&Header::Step(step).encode());
        self.stage(private);
    }

    /// Where in memory that both machines have a connection's queues and chunks lie.
    pub(super) fn place(&mut self, slots: u32, base: u64, places: &[u8; CONN_LEN]) {
        self.stage(&Header::Place { slots, base }.encode());
        self.stage(places);
    }

    /// A message.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.stage(&Header::Send { len, imm: None }.encode());
        self.stage(&bytes[..len as usize]);
    }

    /// An immediate alone.
    pub(super) fn immediate(&mut self, imm: u32) {
        self.stage(&Header::Immediate(imm).encode());
    }

    /// Data and a tail into the peer's memory, then an immediate. As much of `data` goes as `place` says.
    pub(super) fn write(
        &mut self,
        place: WriteTarget,
        data: Option<SharedBytes>,
        tail: &[u8],
        imm: u32,
    ) {
        let imm = Some(imm);
        self.stage(&Header::Write { place, imm }.encode());
        self.stage(tail);
        let data = data.and_then(|data| data.part(0, place.len as usize));
        match data {
            Some(data) if place.len <= SMALL => {
                let mut copy = [0; SMALL as usize];
                // SAFETY: the array is as long as `SMALL`.
                unsafe { data.copy_out(0, copy.as_mut_ptr(), data.len()) };
                self.stage(&copy[..data.len()]);
            }
            Some(data) => self.parts.push_back(Part::Data(data)),
            // The driver always has the data; if not, the stream must not lose its place.
            None => self.stage(&vec![0; place.len as usize]),
        }
    }

    fn stage(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.staged.extend_from_slice(bytes);
        match self.parts.back_mut() {
            Some(Part::Staged(len)) => *len += bytes.len(),
            _ => self.parts.push_back(Part::Staged(bytes.len())),
        }
    }

    /// Sends what the stream takes. Is everything out?
    pub(super) fn flush(&mut self, socket: i32) -> Result<bool> {
        while !self.parts.is_empty() {
            let mut pieces = [Piece::NONE; PIECES];
            let count = self.pieces(&mut pieces);
            // SAFETY: staged bytes are ours; other parts stay mapped, as is promised where they are queued.
            match unsafe { iov::send(socket, &pieces[..count]) } {
                Ok(sent) => self.sent(sent),
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.staged.clear();
        self.gone = 0;
        Ok(true)
    }

    /// Hands what is ready to `send`, which says how many of the bytes it has taken, until all is.
    pub(super) fn flush_by<E>(
        &mut self,
        mut send: impl FnMut(&[Piece]) -> std::result::Result<usize, E>,
    ) -> std::result::Result<(), E> {
        while !self.parts.is_empty() {
            let mut pieces = [Piece::NONE; PIECES];
            let count = self.pieces(&mut pieces);
            self.sent(send(&pieces[..count])?);
        }
        self.staged.clear();
        self.gone = 0;
        Ok(())
    }

    /// Is there nothing to be sent?
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn pieces(&self, pieces: &mut [Piece; PIECES]) -> usize {
        let (mut staged, mut skip) = (self.gone, self.begun);
        let mut count = 0;
        for (piece, part) in pieces.iter_mut().zip(&self.parts) {
            *piece = match part {
                Part::Staged(len) => {
                    let bytes = &self.staged[staged..staged + len - skip];
                    staged += bytes.len();
                    Piece {
                        base: bytes.as_ptr().cast_mut(),
                        len: bytes.len(),
                    }
                }
                Part::Data(data) => Piece {
                    base: data.as_ptr().wrapping_add(skip),
                    len: data.len() - skip,
                },
            };
            skip = 0;
            count += 1;
        }
        count
    }

    fn sent(&mut self, mut count: usize) {
        while let Some(part) = self.parts.front() {
            let (len, is_staged) = match part {
                Part::Staged(len) => (*len, true),
                Part::Data(data) => (data.len(), false),
            };
            let step = count.min(len - self.begun);
            if is_staged {
                self.gone += step;
            }
            self.begun += step;
            count -= step;
            if self.begun < len {
                break;
            }
            self.parts.pop_front();
            self.begun = 0;
        }
        // What has gone out is dropped now and then, so that a stream that never runs dry does not grow.
        if self.gone > CLOGGED / 2 {
            self.staged.drain(..self.gone);
            self.gone = 0;
        }
    }
}
