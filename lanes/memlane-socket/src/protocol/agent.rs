//! What is said to the agent, and what it answers.
//!
//! Fixed layouts, big endian, 32 bytes, but for one answer of 64; `docs/formats/agent.md` has the table. The messages travel
//! over a SEQPACKET socket of the agent's, a file in the directory that is the domain.
//!
//! Pure: bytes in, bytes out.

// The crate works with 64-bit words: the lengths of messages fit everywhere.
#![allow(clippy::cast_possible_truncation)]

/// Bytes of every message but [`Outcome::Across`].
pub const LEN: usize = 32;
/// Bytes of the longest message: [`Outcome::Across`].
pub const LONGEST: usize = 64;
/// First four bytes.
pub const EYECATCHER: [u8; 4] = *b"MLAG";
/// Version of this layout.
pub const VERSION: u8 = 1;
/// Name of the agent's socket in a domain's directory.
pub const SOCKET: &str = "agent.sock";

const ASK: u8 = 1;
const MEET: u8 = 2;
const REFUSE: u8 = 3;
const ACROSS: u8 = 4;
const PART: u8 = 5;

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

/// "I have let go of all memory that I share with this process of another machine."
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parting {
    /// The agent's name for that process.
    pub peer: u64,
    /// [`Across::serial`] of the newest answer about it that has come. The agent ignores a parting with an older one: an
    /// answer was under way, and with it the memory is in use again.
    pub serial: u32,
}

/// Where two processes of two machines meet: in a region that both machines have mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Across {
    /// The agent's name for that process, as in [`Outcome::Meet`].
    pub peer: u64,
    /// Where the chunk of the asker lies in the region, in bytes: a multiple of the page size. The agent has filled it with
    /// zeros before the first answer that names it.
    pub own: u64,
    /// Where the chunk of that process lies, likewise a multiple of the page size.
    pub theirs: u64,
    /// The size of each ring in the two chunks, in bytes. It tells how long they are.
    pub ring_size: u32,
    /// Grows with each answer about that process.
    pub serial: u32,
}

/// What became of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The message brings one end of a channel; the process with the other end of the connection has the other.
    Meet {
        /// The agent's name for that process, the same in all answers about it: random, never 0.
        peer: u64,
    },
    /// The process with the other end runs on another machine that shares a region with this one. The message brings
    /// one end of a channel, over which messages pass and descriptors do not; the region; and, with the first answer about
    /// that process, one end of a life line, which ends with the process, or when it has let go of both chunks.
    Across(Across),
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
    /// The other end is on another machine, and all memory that the two share is in use.
    NoMemory = 6,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Refusal; 6] = [
        Refusal::Nobody,
        Refusal::NotSeen,
        Refusal::Untrusted,
        Refusal::Forged,
        Refusal::Busy,
        Refusal::NoMemory,
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
        let (b, id) = head::<LEN>(b, ASK)?;
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

impl Parting {
    /// To bytes.
    pub fn encode(&self) -> [u8; LEN] {
        let mut b = empty(PART, 0);
        b[8..12].copy_from_slice(&self.serial.to_be_bytes());
        b[16..24].copy_from_slice(&self.peer.to_be_bytes());
        b
    }

    /// From bytes. `None`: it is not a parting of this version.
    pub fn decode(b: &[u8]) -> Option<Parting> {
        let (b, _) = head::<LEN>(b, PART)?;
        Some(Parting {
            peer: be64(b, 16),
            serial: be32(b, 8),
        })
    }
}

impl Answer {
    /// To bytes: the first of these, as many as are told beside them.
    pub fn encode(&self) -> ([u8; LONGEST], usize) {
        let mut bytes = [0; LONGEST];
        let (kind, len) = match self.outcome {
            Outcome::Meet { .. } => (MEET, LEN),
            Outcome::Refuse(_) => (REFUSE, LEN),
            Outcome::Across(_) => (ACROSS, LONGEST),
        };
        write_head(&mut bytes[..len], kind, self.id);
        match self.outcome {
            Outcome::Meet { peer } => bytes[16..24].copy_from_slice(&peer.to_be_bytes()),
            Outcome::Refuse(why) => bytes[8..12].copy_from_slice(&(why as u32).to_be_bytes()),
            Outcome::Across(a) => {
                bytes[8..12].copy_from_slice(&a.serial.to_be_bytes());
                bytes[12..16].copy_from_slice(&a.ring_size.to_be_bytes());
                bytes[16..24].copy_from_slice(&a.peer.to_be_bytes());
                bytes[32..40].copy_from_slice(&a.own.to_be_bytes());
                bytes[40..48].copy_from_slice(&a.theirs.to_be_bytes());
            }
        }
        (bytes, len)
    }

    /// From bytes. `None`: it is not an answer of this version.
    pub fn decode(b: &[u8]) -> Option<Answer> {
        let outcome = outcome(b)?;
        let id = be64(b, 24);
        Some(Answer { id, outcome })
    }
}

fn outcome(b: &[u8]) -> Option<Outcome> {
    if let Some((b, _)) = head::<LONGEST>(b, ACROSS) {
        return Some(Outcome::Across(Across {
            peer: be64(b, 16),
            own: be64(b, 32),
            theirs: be64(b, 40),
            ring_size: be32(b, 12),
            serial: be32(b, 8),
        }));
    }
    if let Some((b, _)) = head::<LEN>(b, MEET) {
        return Some(Outcome::Meet { peer: be64(b, 16) });
    }
    let (b, _) = head::<LEN>(b, REFUSE)?;
    let code = be32(b, 8);
    let why = Refusal::ALL.into_iter().find(|&why| why as u32 == code)?;
    Some(Outcome::Refuse(why))
}

fn empty(kind: u8, id: u64) -> [u8; LEN] {
    let mut b = [0; LEN];
    write_head(&mut b, kind, id);
    b
}

fn write_head(b: &mut [u8], kind: u8, id: u64) {
    let len = b.len() as u16;
    b[..4].copy_from_slice(&EYECATCHER);
    (b[4], b[5]) = (VERSION, kind);
    b[6..8].copy_from_slice(&len.to_be_bytes());
    b[24..32].copy_from_slice(&id.to_be_bytes());
}

/// The message, if it is one of this kind with this length, and its id.
fn head<const N: usize>(b: &[u8], kind: u8) -> Option<(&[u8; N], u64)> {
    let b: &[u8; N] = b.try_into().ok()?;
    let good = b[..4] == EYECATCHER
        && (b[4], b[5]) == (VERSION, kind)
        && usize::from(u16::from_be_bytes([b[6], b[7]])) == N;
    good.then(|| (b, be64(b, 24)))
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn be64(b: &[u8], at: usize) -> u64 {
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

    const ACROSS_ANSWER: Across = Across {
        peer: 0x0a0b_0c0d_0e0f_1011,
        own: 0x20_0000,
        theirs: 0x80_0000,
        ring_size: 65_536,
        serial: 5,
    };

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        assert_eq!(Question::decode(&QUESTION.encode()), Some(QUESTION));
        let outcomes = Refusal::ALL.map(Outcome::Refuse);
        let others = [Outcome::Meet { peer: 77 }, Outcome::Across(ACROSS_ANSWER)];
        for outcome in outcomes.into_iter().chain(others) {
            let answer = Answer { id: 9, outcome };
            let (bytes, len) = answer.encode();
            assert_eq!(Answer::decode(&bytes[..len]), Some(answer));
            assert_eq!(Answer::decode(&bytes[..len - 1]), None);
        }
        let parting = Parting { peer: 7, serial: 3 };
        assert_eq!(Parting::decode(&parting.encode()), Some(parting));
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
    fn an_answer_across_machines_is_byte_for_byte_as_its_page_shows_it() {
        let outcome = Outcome::Across(ACROSS_ANSWER);
        let (bytes, len) = Answer { id: 9, outcome }.encode();
        assert_eq!(len, LONGEST);
        assert_eq!(&bytes[..8], b"MLAG\x01\x04\x00\x40");
        assert_eq!(bytes[8..16], [0, 0, 0, 5, 0, 1, 0, 0]);
        assert_eq!(bytes[16..24], [10, 11, 12, 13, 14, 15, 16, 17]);
        assert_eq!(bytes[24..32], [0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(bytes[32..40], [0, 0, 0, 0, 0, 0x20, 0, 0]);
        assert_eq!(bytes[40..48], [0, 0, 0, 0, 0, 0x80, 0, 0]);
        assert_eq!(bytes[48..], [0; 16]);
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
