//! What is said to the agent, and what it answers.
//!
//! One fixed layout for both, big endian, 32 bytes; `docs/formats/agent.md` has the table. The messages travel over a
//! SEQPACKET socket of the agent's, a file in the directory that is the domain.
//!
//! Pure: bytes in, bytes out.

// The crate works with 64-bit words: the lengths of messages fit everywhere.
#![allow(clippy::cast_possible_truncation)]

/// Bytes of a message.
pub const LEN: usize = 32;
/// First four bytes.
pub const EYECATCHER: [u8; 4] = *b"MLAG";
/// Version of this layout.
pub const VERSION: u8 = 1;
/// Name of the agent's socket in a domain's directory.
pub const SOCKET: &str = "agent.sock";

const ASK: u8 = 1;
const MEET: u8 = 2;
const REFUSE: u8 = 3;

/// Which end of a connection a socket is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Role {
    /// It called `connect`.
    Connected = 0,
    /// It came from `accept`.
    Accepted = 1,
}

/// "Who has the other end of this socket of mine?"
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question {
    /// The asker's name for the question.
    pub id: u64,
    /// The socket's descriptor …
    pub fd: i32,
    /// … and inode, which tells the agent whether the number has changed hands.
    pub inode: u64,
    /// Which end it is.
    pub role: Role,
}

/// The answer to a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The question's `id`.
    pub id: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The message brings one end of a channel; the process with the other end of the connection has the other.
    Meet {
        /// The agent's name for that process, the same in all answers about it: random, never 0.
        peer: u64,
    },
    /// There is no meeting.
    Refuse(Refusal),
}

/// Why there is no meeting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Refusal {
    /// The other end has not asked: it is not under memlane, or in another domain, or a proxy lies between.
    Nobody = 1,
    /// The agent does not see this process or this socket.
    NotSeen = 2,
    /// The two network namespaces belong to different users.
    Untrusted = 3,
    /// More than two sockets claim to be the ends of this connection.
    Forged = 4,
    /// Too many questions at a time.
    Busy = 5,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Refusal; 5] = [
        Refusal::Nobody,
        Refusal::NotSeen,
        Refusal::Untrusted,
        Refusal::Forged,
        Refusal::Busy,
    ];
}

impl Question {
    /// To bytes.
    pub fn encode(&self) -> [u8; LEN] {
        let mut b = empty(ASK, self.id);
        b[8..12].copy_from_slice(&self.fd.to_be_bytes());
        b[12] = self.role as u8;
        b[16..24].copy_from_slice(&self.inode.to_be_bytes());
        b
    }

    /// From bytes. `None`: it is not a question of this version.
    pub fn decode(b: &[u8]) -> Option<Question> {
        let (b, id) = head(b, ASK)?;
        let role = match b[12] {
            0 => Role::Connected,
            1 => Role::Accepted,
            _ => return None,
        };
        Some(Question {
            id,
            fd: i32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            inode: be64(b, 16),
            role,
        })
    }
}

impl Answer {
    /// To bytes.
    pub fn encode(&self) -> [u8; LEN] {
        match self.outcome {
            Outcome::Meet { peer } => {
                let mut b = empty(MEET, self.id);
                b[16..24].copy_from_slice(&peer.to_be_bytes());
                b
            }
            Outcome::Refuse(why) => {
                let mut b = empty(REFUSE, self.id);
                b[8..12].copy_from_slice(&(why as u32).to_be_bytes());
                b
            }
        }
    }

    /// From bytes. `None`: it is not an answer of this version.
    pub fn decode(b: &[u8]) -> Option<Answer> {
        if let Some((b, id)) = head(b, MEET) {
            let outcome = Outcome::Meet { peer: be64(b, 16) };
            return Some(Answer { id, outcome });
        }
        let (b, id) = head(b, REFUSE)?;
        let code = u32::from_be_bytes([b[8], b[9], b[10], b[11]]);
        let why = Refusal::ALL.into_iter().find(|&why| why as u32 == code)?;
        let outcome = Outcome::Refuse(why);
        Some(Answer { id, outcome })
    }
}

fn empty(kind: u8, id: u64) -> [u8; LEN] {
    let mut b = [0; LEN];
    b[..4].copy_from_slice(&EYECATCHER);
    (b[4], b[5]) = (VERSION, kind);
    b[6..8].copy_from_slice(&(LEN as u16).to_be_bytes());
    b[24..].copy_from_slice(&id.to_be_bytes());
    b
}

/// The message, if it is one of this kind, and its id.
fn head(b: &[u8], kind: u8) -> Option<(&[u8; LEN], u64)> {
    let b: &[u8; LEN] = b.try_into().ok()?;
    let good = b[..4] == EYECATCHER
        && (b[4], b[5]) == (VERSION, kind)
        && usize::from(u16::from_be_bytes([b[6], b[7]])) == LEN;
    good.then(|| (b, be64(b, 24)))
}

fn be64(b: &[u8; LEN], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&b[at..at + 8]);
    u64::from_be_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: Question = Question {
        id: 0x0102_0304_0506_0708,
        fd: 513,
        inode: 0x1122_3344,
        role: Role::Accepted,
    };

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        assert_eq!(Question::decode(&QUESTION.encode()), Some(QUESTION));
        let outcomes = Refusal::ALL.map(Outcome::Refuse);
        for outcome in outcomes.into_iter().chain([Outcome::Meet { peer: 77 }]) {
            let answer = Answer { id: 9, outcome };
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn a_question_is_byte_for_byte_as_its_page_shows_it() {
        let bytes = QUESTION.encode();
        assert_eq!(&bytes[..8], b"MLAG\x01\x01\x00\x20");
        assert_eq!(bytes[8..16], [0, 0, 2, 1, 1, 0, 0, 0]);
        assert_eq!(bytes[16..24], [0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(bytes[24..], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn anything_else_is_refused() {
        let good = QUESTION.encode();
        assert_eq!(Question::decode(&good[1..]), None);
        assert_eq!(Answer::decode(&good), None);
        for at in [0, 4, 5, 7, 12] {
            let mut bad = good;
            bad[at] ^= 0x40;
            assert_eq!(Question::decode(&bad), None, "byte {at}");
        }
    }
}
