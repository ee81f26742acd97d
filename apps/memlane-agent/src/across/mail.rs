//! Messages between agents, in rings that lie in the region: one for each direction of each pair of machines.
//!
//! A ring has one writer and one reader. Nobody is woken: agents look.

use super::layout::{MESSAGE_WORDS, MESSAGES, Ring};
use super::region::Region;
use crate::pairs::Key;
use core::sync::atomic::Ordering;

/// Words of a message before its bytes.
const HEAD: usize = 8;
/// The longest message between two programs that an agent passes on, in bytes.
pub(super) const BYTES: usize = (MESSAGE_WORDS - HEAD) * 8;

const ASK: u64 = 1;
const FOUND: u64 = 2;
const MEET: u64 = 3;
const FAILED: u64 = 4;
const RELAY: u64 = 5;
const ENDED: u64 = 6;

/// Why there is no meeting, as one agent tells another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Failure {
    /// The other end does not ask any more.
    Nobody = 1,
    /// One of the network namespaces was made by an ordinary user.
    Untrusted = 2,
    /// More than two sockets claim to be the ends.
    Forged = 3,
    /// There is no extent left.
    NoMemory = 4,
}

/// What one side of a bond tells the other of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Side {
    /// Its channel for this connection.
    pub(crate) channel: u64,
    /// Its name for the bond.
    pub(crate) bond: u64,
    /// The other side's name for the bond, as this one knows it; 0: not yet.
    pub(crate) other: u64,
    /// The extent in which its process receives.
    pub(crate) extent: u64,
}

/// What agents tell each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mail {
    /// "Who has the accepting end of this connection?"
    Ask {
        key: Key,
        /// The asker's process.
        process: u64,
        /// Is its network one of root's?
        is_roots: bool,
    },
    /// "I have it": from the accepting end's agent.
    Found { key: Key, process: u64, side: Side },
    /// "They meet": from the connecting end's agent, about a channel of the other's.
    Meet { channel: u64, side: Side },
    /// "They do not meet": about a channel of the receiver's, or about a connection that it has asked for.
    Failed {
        key: Key,
        channel: u64,
        why: Failure,
    },
    /// A program's message, for a channel of the receiver's.
    Relay { channel: u64, bytes: Vec<u8> },
    /// No more comes over this channel of the receiver's.
    Ended { channel: u64 },
}

/// A message as it lies in a ring.
pub(crate) type Words = [u64; MESSAGE_WORDS];

/// Between which runs of which agents a message goes: one that was sent to an earlier run is nobody's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Runs {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Mail {
    /// As words: kind, length of the bytes, the two runs, and what the kind needs.
    pub(crate) fn encode(&self, runs: Runs) -> Words {
        let mut words = [0; MESSAGE_WORDS];
        let (kind, rest): (u64, &[u64]) = match self {
            Mail::Ask {
                key,
                process,
                is_roots,
            } => (ASK, &[key.as_word(), *process, u64::from(*is_roots)]),
            Mail::Found { key, process, side } => {
                let Side {
                    channel,
                    bond,
                    other,
                    extent,
                } = *side;
                (
                    FOUND,
                    &[key.as_word(), *process, channel, bond, other, extent],
                )
            }
            Mail::Meet { channel, side } => (
                MEET,
                &[*channel, side.channel, side.bond, side.other, side.extent],
            ),
            Mail::Failed { key, channel, why } => (FAILED, &[key.as_word(), *channel, *why as u64]),
            Mail::Relay { channel, bytes } => {
                words[1] = bytes.len() as u64;
                words[4] = *channel;
                for (word, part) in words[HEAD..].iter_mut().zip(bytes.chunks(8)) {
                    let mut eight = [0; 8];
                    eight[..part.len()].copy_from_slice(part);
                    *word = u64::from_le_bytes(eight);
                }
                (RELAY, &[])
            }
            Mail::Ended { channel } => (ENDED, &[*channel]),
        };
        (words[0], words[2], words[3]) = (kind, runs.from, runs.to);
        words[4..4 + rest.len()].copy_from_slice(rest);
        words
    }

    /// From words. `None`: it is no message, or one between other runs.
    pub(crate) fn decode(words: &Words, runs: Runs) -> Option<Mail> {
        if (words[2], words[3]) != (runs.from, runs.to) {
            return None;
        }
        let side = |at: usize| Side {
            channel: words[at],
            bond: words[at + 1],
            other: words[at + 2],
            extent: words[at + 3],
        };
        let key = Key::from_word(words[4]);
        let failure = |code: u64| match code {
            1 => Some(Failure::Nobody),
            2 => Some(Failure::Untrusted),
            3 => Some(Failure::Forged),
            4 => Some(Failure::NoMemory),
            _ => None,
        };
        match words[0] {
            ASK => Some(Mail::Ask {
                key,
                process: words[5],
                is_roots: words[6] == 1,
            }),
            FOUND => Some(Mail::Found {
                key,
                process: words[5],
                side: side(6),
            }),
            MEET => Some(Mail::Meet {
                channel: words[4],
                side: side(5),
            }),
            FAILED => failure(words[6]).map(|why| Mail::Failed {
                key,
                channel: words[5],
                why,
            }),
            RELAY => {
                let len = usize::try_from(words[1]).ok().filter(|&len| len <= BYTES)?;
                let bytes = words[HEAD..].iter().flat_map(|word| word.to_le_bytes());
                Some(Mail::Relay {
                    channel: words[4],
                    bytes: bytes.take(len).collect(),
                })
            }
            ENDED => Some(Mail::Ended { channel: words[4] }),
            _ => None,
        }
    }
}

/// The two rings between this machine and another, and how far they are, as this machine knows it by itself.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Cursor {
    sent: u64,
    taken: u64,
}

impl Cursor {
    /// Where the rings stand between machine `own` and `other`. What lies in the ring to this machine was meant for an earlier run of its agent.
    pub(crate) fn now(region: &Region, own: usize, other: usize) -> Cursor {
        let cursor = Cursor {
            sent: region.ring(own, other).sent.0.load(Ordering::Acquire),
            taken: region.ring(other, own).sent.0.load(Ordering::Acquire),
        };
        let taken = &region.ring(other, own).taken.0;
        taken.store(cursor.taken, Ordering::Release);
        cursor
    }

    /// Sends a message. `false`: there is no room.
    pub(crate) fn send(&mut self, ring: &Ring, words: &Words) -> bool {
        let taken = ring.taken.0.load(Ordering::Acquire);
        // What was never sent cannot have been taken: then somebody has scribbled there, and the reader will mend it.
        if self.sent.wrapping_sub(taken) >= MESSAGES as u64 {
            return false;
        }
        for (word, value) in ring.messages[index(self.sent)].iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        self.sent = self.sent.wrapping_add(1);
        ring.sent.0.store(self.sent, Ordering::Release);
        true
    }

    /// Takes the next message.
    pub(crate) fn take(&mut self, ring: &Ring) -> Option<Words> {
        let sent = ring.sent.0.load(Ordering::Acquire);
        match sent.wrapping_sub(self.taken) {
            0 => return None,
            waiting if waiting <= MESSAGES as u64 => {}
            // Somebody has scribbled there, or has sent more than there is room for: what lies in the ring is lost.
            _ => {
                self.taken = sent;
                ring.taken.0.store(sent, Ordering::Release);
                return None;
            }
        }
        let mut words = [0; MESSAGE_WORDS];
        for (value, word) in words.iter_mut().zip(&ring.messages[index(self.taken)]) {
            *value = word.load(Ordering::Relaxed);
        }
        self.taken = self.taken.wrapping_add(1);
        ring.taken.0.store(self.taken, Ordering::Release);
        Some(words)
    }

    /// Writes again what this machine says of the two rings, where it does not stand there any more.
    pub(crate) fn mend(&self, to_other: &Ring, to_us: &Ring) {
        for (word, ours) in [(&to_other.sent.0, self.sent), (&to_us.taken.0, self.taken)] {
            if word.load(Ordering::Relaxed) != ours {
                word.store(ours, Ordering::Release);
            }
        }
    }
}

fn index(count: u64) -> usize {
    usize::try_from(count % MESSAGES as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RUNS: Runs = Runs {
        from: 0x1111,
        to: 0x2222,
    };
    const SIDE: Side = Side {
        channel: 1,
        bond: 9,
        other: 0,
        extent: 3,
    };

    #[test]
    fn a_message_is_word_for_word_as_its_page_shows_it() {
        let found = Mail::Found {
            key: Key::from_word(0xc528_76e5_6a33_b23c),
            process: 7,
            side: SIDE,
        };
        let mut shown = [0; MESSAGE_WORDS];
        shown[..10].copy_from_slice(&[2, 0, 0x1111, 0x2222, 0xc528_76e5_6a33_b23c, 7, 1, 9, 0, 3]);
        assert_eq!(found.encode(RUNS), shown);
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same_and_only_between_the_same_runs() {
        let key = Key::from_word(77);
        let mails = [
            Mail::Ask {
                key,
                process: 5,
                is_roots: true,
            },
            Mail::Found {
                key,
                process: 5,
                side: SIDE,
            },
            Mail::Meet {
                channel: 4,
                side: SIDE,
            },
            Mail::Failed {
                key,
                channel: 4,
                why: Failure::NoMemory,
            },
            Mail::Relay {
                channel: 4,
                bytes: (0..=255).chain(0..=191).collect(),
            },
            Mail::Relay {
                channel: 4,
                bytes: vec![1; 13],
            },
            Mail::Ended { channel: 4 },
        ];
        for mail in mails {
            let words = mail.encode(RUNS);
            assert_eq!(Mail::decode(&words, RUNS), Some(mail));
            let other = Runs { from: 1, ..RUNS };
            assert_eq!(Mail::decode(&words, other), None);
        }
    }

    proptest! {
        #[test]
        fn whatever_lies_in_a_ring_is_a_message_or_none(
            kind in 0..9_u64,
            len in prop_oneof![0..500_u64, any::<u64>()],
            rest in any::<[u64; 8]>(),
        ) {
            let mut words = [0; MESSAGE_WORDS];
            (words[0], words[1], words[2], words[3]) = (kind, len, RUNS.from, RUNS.to);
            words[4..12].copy_from_slice(&rest);
            if let Some(Mail::Relay { bytes, .. }) = Mail::decode(&words, RUNS) {
                prop_assert!(bytes.len() <= BYTES);
            }
        }
    }
}
