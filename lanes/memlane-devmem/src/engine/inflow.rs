//! Where the next bytes of a stream go, and what they are called once they are there.
//!
//! A chunk that is not full after some bytes stays open: the next ones go behind them, as fragments of their own. It is
//! free when the stream has closed it and all of its fragments are back.
//!
//! Whoever wants records in one piece says how long they are ([`Inflow::whole`]): none lies in two chunks then, and what
//! a chunk has left behind its last whole one is not used.

use super::{Chunks, Fragment, Tokens};
use std::collections::VecDeque;

/// A place for bytes: from `at` to `end` of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Open {
    chunk: u32,
    at: u32,
    end: u32,
}

impl Open {
    fn left(self) -> u32 {
        self.end - self.at
    }
}

/// Where the first of some records lies: on a multiple of this, as processors' caches and vectors like it.
pub const ALIGNED: u32 = 64;

/// A stretch of the region that bytes may be put into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// From the region's beginning.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// One stream's filling of chunks.
#[derive(Debug)]
pub struct Inflow {
    /// What is open, in the order in which it is filled. Only the first can be partly filled.
    open: VecDeque<Open>,
    /// Bytes that are to be in one piece.
    unit: u32,
}

impl Default for Inflow {
    fn default() -> Inflow {
        Inflow::new()
    }
}

impl Inflow {
    /// Nothing is open.
    pub fn new() -> Inflow {
        Inflow {
            open: VecDeque::new(),
            unit: 1,
        }
    }

    /// From the next byte on, each `unit` of them are to be in one piece, the first at a multiple of [`ALIGNED`]. `false`,
    /// and nothing is changed: no chunk has `unit` bytes.
    pub fn whole(&mut self, unit: u32, chunks: &mut Chunks) -> bool {
        if unit == 0 || unit > chunks.size() {
            return false;
        }
        self.unit = unit;
        for open in &mut self.open {
            // A chunk is a multiple of it.
            open.at = open.at.next_multiple_of(ALIGNED);
            open.end = open.at + (chunks.size() - open.at) / unit * unit;
        }
        // Only the first had something in it: the others have room for one.
        if self.open.front().is_some_and(|open| open.left() == 0) {
            let first = self.open.pop_front().map(|open| open.chunk);
            first.map(|chunk| chunks.give(chunk));
        }
        true
    }

    /// Stretches for the next bytes, in order: at most `pieces`, at most `bytes` together, and never more than there
    /// are tokens for. None at all: chunks or tokens must come back first.
    pub fn room(
        &mut self,
        chunks: &mut Chunks,
        tokens: &Tokens,
        (pieces, bytes): (usize, u64),
        rooms: &mut Vec<Room>,
    ) {
        rooms.clear();
        let pieces = pieces.min(tokens.room() as usize);
        let mut found = 0;
        while rooms.len() < pieces && found < bytes {
            let open = match self.open.get(rooms.len()) {
                Some(open) => *open,
                None => match chunks.take() {
                    Some(chunk) => {
                        let end = chunks.size() / self.unit * self.unit;
                        let open = Open { chunk, at: 0, end };
                        self.open.push_back(open);
                        open
                    }
                    None => return,
                },
            };
            let wanted = u32::try_from(bytes - found).unwrap_or(u32::MAX);
            let room = Room {
                offset: chunks.offset(open.chunk) + u64::from(open.at),
                len: open.left().min(wanted),
            };
            found += u64::from(room.len);
            rooms.push(room);
        }
    }

    /// `bytes` have been put there, the first stretch first: names them. Stretches that got none are free again.
    ///
    /// # Panics
    /// If these are more than there was room for: our own mistake, by which memory would be named that nobody filled.
    pub fn landed(
        &mut self,
        bytes: u64,
        chunks: &mut Chunks,
        tokens: &mut Tokens,
        fragments: &mut Vec<Fragment>,
    ) {
        self.name(bytes, chunks, tokens, fragments);
        self.settle(chunks);
    }

    /// The first half of [`landed`](Self::landed): `bytes` are named, and what is left stays open for more of them.
    ///
    /// # Panics
    /// As there.
    pub fn name(
        &mut self,
        mut bytes: u64,
        chunks: &mut Chunks,
        tokens: &mut Tokens,
        fragments: &mut Vec<Fragment>,
    ) {
        while bytes > 0 {
            let open = self.open.front_mut().expect("bytes without room");
            let left = open.left();
            let len = u32::try_from(bytes).unwrap_or(u32::MAX).min(left);
            let offset = chunks.offset(open.chunk) + u64::from(open.at);
            fragments.push(tokens.name(offset, len).expect("bytes without a token"));
            chunks.hold(open.chunk);
            open.at += len;
            bytes -= u64::from(len);
            if len == left {
                let full = self.open.pop_front().map(|open| open.chunk);
                full.map(|chunk| chunks.give(chunk));
            }
        }
    }

    /// The second half: stretches that got no bytes are free again.
    pub fn settle(&mut self, chunks: &mut Chunks) {
        let begun = usize::from(self.open.front().is_some_and(|open| open.at > 0));
        for open in self.open.drain(begun..) {
            chunks.give(open.chunk);
        }
    }

    /// No more bytes come.
    pub fn close(&mut self, chunks: &mut Chunks) {
        for open in self.open.drain(..) {
            chunks.give(open.chunk);
        }
    }

    /// Chunks that are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }
}
