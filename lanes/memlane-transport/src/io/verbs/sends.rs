//! The send queue: what it has, and what waits for it.
//!
//! Each request under way has a slot of the connection's memory, for what comes behind its data. Slots are used in turn; one is
//! free again when the device says that a later request, or the one itself, is done. It says so for each fourth part of
//! the queue, so the queue never fills up with requests that nobody hears of.

use super::buffer::Buffer;
use memlane_verbs::{Data, Domain, Pair, Piece, Verb, VerbsError};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a slot: the longest user message of a volume, and a request's header.
const SLOT: usize = 512;
/// Requests that wait for the queue, at most: a peer whose device takes none of them does not read.
const WAITING: usize = 1 << 13;

/// A request that found the queue full.
#[derive(Debug)]
struct Waiting {
    verb: Verb,
    data: Option<Piece>,
    tail: Vec<u8>,
}

/// The send queue of one connection.
#[derive(Debug)]
pub(super) struct Sends {
    domain: Arc<Domain>,
    slots: Buffer,
    most: u32,
    /// Requests that were posted, and those of them that are done.
    posted: u64,
    done: u64,
    waiting: VecDeque<Waiting>,
    /// What does not fit into a slot, and whose it is.
    long: VecDeque<(u64, Buffer)>,
}

impl Sends {
    /// For a queue of `most` requests.
    pub(super) fn new(domain: &Arc<Domain>, most: u32) -> Result<Sends, VerbsError> {
        Ok(Sends {
            domain: Arc::clone(domain),
            slots: Buffer::new(domain, most as usize * SLOT)?,
            most,
            posted: 0,
            done: 0,
            waiting: VecDeque::new(),
            long: VecDeque::new(),
        })
    }

    /// Sends `data`, and `tail` behind it: now, or when there is room.
    pub(super) fn send(
        &mut self,
        pair: &mut Pair,
        verb: Verb,
        data: Option<Piece>,
        tail: &[u8],
    ) -> Result<(), VerbsError> {
        if self.waiting.is_empty() && self.has_room() {
            return self.post(pair, verb, data, tail);
        }
        self.waiting.push_back(Waiting {
            verb,
            data,
            tail: tail.to_vec(),
        });
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.posted - self.done < u64::from(self.most)
    }

    fn post(
        &mut self,
        pair: &mut Pair,
        verb: Verb,
        data: Option<Piece>,
        tail: &[u8],
    ) -> Result<(), VerbsError> {
        let number = self.posted;
        let is_signaled = self.is_signaled(number, verb);
        if data.is_none() && tail.len() <= pair.inline() as usize {
            pair.send(number, verb, Data::Inline(tail), is_signaled)?;
        } else {
            let tail = self.lay_down(number, tail)?;
            let pieces = [data, tail].map(|piece| piece.unwrap_or(Piece::NONE));
            pair.send(number, verb, Data::Registered(&pieces), is_signaled)?;
        }
        self.posted += 1;
        Ok(())
    }

    /// A message may be the last thing that is sent: its end is waited for.
    fn is_signaled(&self, number: u64, verb: Verb) -> bool {
        let each = u64::from(self.most / 4).max(1);
        number % each == each - 1 || verb == Verb::Send
    }

    /// Copies a tail to where the device finds it until the request is done.
    fn lay_down(&mut self, number: u64, tail: &[u8]) -> Result<Option<Piece>, VerbsError> {
        if tail.is_empty() {
            return Ok(None);
        }
        let (at, into) = if tail.len() <= SLOT {
            let slot = usize::try_from(number % u64::from(self.most)).unwrap_or(0);
            (slot * SLOT, &self.slots)
        } else {
            let own = Buffer::new(&self.domain, tail.len())?;
            self.long.push_back((number, own));
            match self.long.back() {
                Some((_, own)) => (0, own),
                None => return Ok(None),
            }
        };
        // SAFETY: `tail` is readable for its length; the window checks its own bounds.
        unsafe { into.bytes().copy_in(at, tail.as_ptr(), tail.len()) };
        Ok(into.piece(at, tail.len()))
    }

    /// The request with this number is done, and so are all before it. What waits goes out.
    pub(super) fn completed(&mut self, pair: &mut Pair, number: u64) -> Result<(), VerbsError> {
        self.done = self.done.max(number + 1).min(self.posted);
        while self
            .long
            .front()
            .is_some_and(|(whose, _)| *whose < self.done)
        {
            self.long.pop_front();
        }
        while self.has_room()
            && let Some(Waiting { verb, data, tail }) = self.waiting.pop_front()
        {
            self.post(pair, verb, data, &tail)?;
        }
        Ok(())
    }

    /// Does the peer's device not take what it asks for?
    pub(super) fn is_clogged(&self) -> bool {
        self.waiting.len() > WAITING
    }

    /// Is everything out, as far as the device has been asked?
    pub(super) fn is_out(&self) -> bool {
        self.done == self.posted && self.waiting.is_empty()
    }
}
