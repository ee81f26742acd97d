//! The memory that messages come into: slots, posted in turn.

use super::buffer::Buffer;
use memlane_verbs::{Domain, Pair, VerbsError};
use std::sync::Arc;

/// Slots for long messages. The first message of each side is the only one that is long.
const LONG: u32 = 2;
/// Bytes of each other slot: more than any message that comes later (a fence, a new key).
const SHORT: usize = 64;

/// Slots of one connection.
#[derive(Debug)]
pub(super) struct Receives {
    slots: Buffer,
    /// Bytes of a long one.
    long: usize,
    count: u32,
}

impl Receives {
    /// Posts `count` receives, the first of them for messages of up to `long` bytes.
    pub(super) fn post(
        pair: &mut Pair,
        domain: &Arc<Domain>,
        count: u32,
        long: usize,
    ) -> Result<Receives, VerbsError> {
        let count = count.max(LONG + 1);
        let long = long.max(SHORT).next_multiple_of(SHORT);
        let len = LONG as usize * long + (count - LONG) as usize * SHORT;
        let receives = Receives {
            slots: Buffer::new(domain, len)?,
            long,
            count,
        };
        for number in 0..count {
            receives.again(pair, u64::from(number))?;
        }
        Ok(receives)
    }

    /// Where a slot begins, and its bytes. `None`: there is no such slot.
    fn slot(&self, number: u64) -> Option<(usize, usize)> {
        let number = u32::try_from(number).ok().filter(|n| *n < self.count)?;
        Some(match number.checked_sub(LONG) {
            None => (number as usize * self.long, self.long),
            Some(short) => (LONG as usize * self.long + short as usize * SHORT, SHORT),
        })
    }

    /// Posts a slot.
    pub(super) fn again(&self, pair: &mut Pair, number: u64) -> Result<(), VerbsError> {
        let piece = self
            .slot(number)
            .and_then(|(at, len)| self.slots.piece(at, len));
        match piece {
            Some(piece) => pair.receive(number, piece),
            None => Err(VerbsError::Failed {
                function: "ibv_post_recv",
                errno: libc::EINVAL,
            }),
        }
    }

    /// The message of `len` bytes that has come into a slot.
    pub(super) fn message(&self, number: u64, len: u32) -> Option<Vec<u8>> {
        let (at, room) = self.slot(number)?;
        let mut bytes = vec![0; (len as usize).min(room)];
        // SAFETY: the vector has so many bytes; the window checks its own bounds.
        let copied = unsafe {
            self.slots
                .bytes()
                .copy_out(at, bytes.as_mut_ptr(), bytes.len())
        };
        copied.then_some(bytes)
    }
}
