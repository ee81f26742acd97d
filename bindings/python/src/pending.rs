//! Bytes that have come and that nobody has taken yet: fragments in the order of the stream, cut where records end.

use std::collections::VecDeque;

/// A stretch of the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stretch {
    /// From the region's beginning.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
}

/// A fragment, or what is left of it, and who gives it back.
#[derive(Debug)]
struct Part<O> {
    owner: O,
    at: Stretch,
}

/// Some bytes of the stream: where they lie, and whose they are.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Piece<O> {
    /// In order; one, if they lie in one piece.
    pub(crate) stretches: Vec<Stretch>,
    /// All of them must live as long as the bytes are used.
    pub(crate) owners: Vec<O>,
}

/// What has come. An owner is shared by the records that lie in its fragment.
#[derive(Debug)]
pub(crate) struct Pending<O> {
    parts: VecDeque<Part<O>>,
    bytes: u64,
}

impl<O: Clone> Pending<O> {
    /// Nothing yet.
    pub(crate) fn new() -> Pending<O> {
        Pending {
            parts: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Bytes that are there.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// More have come. Not 0.
    pub(crate) fn push(&mut self, owner: O, offset: u64, len: u32) {
        let len = u64::from(len);
        let at = Stretch { offset, len };
        self.parts.push_back(Part { owner, at });
        self.bytes += len;
    }

    /// The next `bytes`. `None`: fewer have come so far.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Piece<O>> {
        if bytes > self.bytes {
            return None;
        }
        let mut piece = Piece {
            stretches: Vec::new(),
            owners: Vec::new(),
        };
        let mut left = bytes;
        while left > 0 {
            let first = self.parts.front_mut()?;
            let len = first.at.len.min(left);
            piece.add(Stretch { len, ..first.at });
            left -= len;
            if len == first.at.len {
                piece
                    .owners
                    .extend(self.parts.pop_front().map(|part| part.owner));
            } else {
                piece.owners.push(first.owner.clone());
                first.at.offset += len;
                first.at.len -= len;
            }
        }
        self.bytes -= bytes;
        Some(piece)
    }

    /// The next fragment, as it came (or what is left of it), but not more than `most` of its bytes.
    pub(crate) fn take_first(&mut self, most: u64) -> Option<Piece<O>> {
        let first = self.parts.front()?.at.len;
        self.take(first.min(most.max(1)))
    }
}

impl<O> Piece<O> {
    /// Behind what there is; it is one stretch if it lies there, too.
    fn add(&mut self, more: Stretch) {
        match self.stretches.last_mut() {
            Some(last) if last.offset + last.len == more.offset => last.len += more.len,
            _ => self.stretches.push(more),
        }
    }
}
