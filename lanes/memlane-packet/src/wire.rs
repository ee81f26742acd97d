//! Messages of a link's socket: how front and back find out what they have in common, and hand memory over.
//!
//! Each is [`LEN`] bytes, little endian, one packet of a unix socket (`SOCK_SEQPACKET`); what a kind does not use is
//! zero. The back says [`Hello`], the front [`Attach`] with descriptors, the back [`Message::Attached`] or
//! [`Message::Refused`]; from then on the socket is quiet until one says [`Message::Detach`] or goes. See
//! `docs/formats/packet-link.md`.

use crate::engine::grant::Mode;
use crate::offload::Offloads;
use core::fmt;

/// "MLPACKET".
pub const MAGIC: u64 = u64::from_le_bytes(*b"MLPACKET");
/// Version of this file, of the layout and of what is done with both.
pub const VERSION: u16 = 1;
/// Bytes of every message.
pub const LEN: usize = 48;

const HELLO: u16 = 1;
const ATTACH: u16 = 2;
const ATTACHED: u16 = 3;
const REFUSED: u16 = 4;
const DETACH: u16 = 5;

/// Why bytes are no message of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// Another length than its kind has.
    Length(usize),
    /// It does not begin as messages of a link do.
    Magic(u64),
    /// Another version of the protocol.
    Version(u16),
    /// No such kind of message.
    Kind(u16),
    /// A field has a value that it must not have.
    Field(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Length(len) => write!(f, "{len} bytes are no message of a packet link"),
            WireError::Magic(magic) => write!(f, "magic {magic:#018x} is no packet link"),
            WireError::Version(version) => write!(
                f,
                "version {version} of the packet link, where {} is spoken here: update the older side",
                VERSION
            ),
            WireError::Kind(kind) => write!(f, "no message of kind {kind}"),
            WireError::Field(field) => write!(f, "field {field} is out of range"),
        }
    }
}

impl core::error::Error for WireError {}

/// Why a back refuses an attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Refusal {
    /// It was not offered, or numbers do not fit each other.
    Terms = 1,
    /// Descriptors: too few, too many, not sealed, of another length, no doorbell.
    Descriptors = 2,
    /// The back could not map it.
    Memory = 3,
    /// The back has more queues, and frames of all of them are to go somewhere.
    Queues = 4,
}

/// What a back offers (`multi-queue-max-queues`, `feature-persistent`, `feature-gso-tcpv4`, …).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// By `Mode as u8`: does it work like that?
    pub modes: [bool; 3],
    /// Segmentation that it takes.
    pub offloads: Offloads,
    /// Queues, at most.
    pub queues: u16,
    /// Slots of a ring, at most.
    pub ring_log2: u8,
    /// Bytes of the front's memory that it would map, at most.
    pub memory: u64,
}

/// What a front asks for; control memory, tx memory, rx memory and a doorbell for each queue come with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attach {
    /// One that was offered.
    pub mode: Mode,
    /// Those that were offered, and that the front wants.
    pub offloads: Offloads,
    /// Queues.
    pub queues: u16,
    /// Slots of each ring.
    pub ring_log2: u8,
    /// Entries of each queue's grant table.
    pub grants: u32,
    /// Bytes of the control memory.
    pub control: u64,
    /// Bytes of region 0, which the back reads.
    pub tx: u64,
    /// Bytes of region 1, which it writes.
    pub rx: u64,
}

/// Any message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Back, first.
    Hello(Hello),
    /// Front, then.
    Attach(Attach),
    /// Back: it runs.
    Attached,
    /// Back: it does not; a [`Refusal`]'s number.
    Refused(u16),
    /// Either: over, for this reason ([`crate::Detach::code`]).
    Detach(u16),
}

impl Message {
    /// As it goes.
    pub fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        let kind = match self {
            Message::Hello(_) => HELLO,
            Message::Attach(_) => ATTACH,
            Message::Attached => ATTACHED,
            Message::Refused(_) => REFUSED,
            Message::Detach(_) => DETACH,
        };
        put(&mut out, 0, MAGIC.to_le_bytes());
        put(&mut out, 8, VERSION.to_le_bytes());
        put(&mut out, 10, kind.to_le_bytes());
        match self {
            Message::Hello(hello) => hello.encode(&mut out),
            Message::Attach(attach) => attach.encode(&mut out),
            Message::Attached => {}
            Message::Refused(code) | Message::Detach(code) => put(&mut out, 12, code.to_le_bytes()),
        }
        out
    }

    /// Out of what came.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(bytes: &[u8]) -> Result<Message, WireError> {
        let bytes: &[u8; LEN] = bytes
            .try_into()
            .map_err(|_| WireError::Length(bytes.len()))?;
        let magic = u64::from_le_bytes(get(bytes, 0));
        if magic != MAGIC {
            return Err(WireError::Magic(magic));
        }
        let version = u16::from_le_bytes(get(bytes, 8));
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let code = u16::from_le_bytes(get(bytes, 12));
        let message = match u16::from_le_bytes(get(bytes, 10)) {
            HELLO => Message::Hello(Hello::decode(bytes)?),
            ATTACH => Message::Attach(Attach::decode(bytes)?),
            ATTACHED => Message::Attached,
            REFUSED => Message::Refused(code),
            DETACH => Message::Detach(code),
            kind => return Err(WireError::Kind(kind)),
        };
        // Whatever means nothing must be zero: nobody can put a meaning there without a new version.
        if message.encode() != *bytes {
            return Err(WireError::Field("reserved"));
        }
        Ok(message)
    }
}

impl Hello {
    fn encode(&self, out: &mut [u8; LEN]) {
        let modes = self.modes.iter().rev();
        out[12] = modes.fold(0, |bits, mode| bits << 1 | u8::from(*mode));
        out[13] = bits(self.offloads);
        put(out, 14, self.queues.to_le_bytes());
        out[16] = self.ring_log2;
        put(out, 24, self.memory.to_le_bytes());
    }

    fn decode(bytes: &[u8; LEN]) -> Result<Hello, WireError> {
        Ok(Hello {
            modes: [1, 2, 4].map(|bit| bytes[12] & bit != 0),
            offloads: offloads(bytes[13])?,
            queues: u16::from_le_bytes(get(bytes, 14)),
            ring_log2: bytes[16],
            memory: u64::from_le_bytes(get(bytes, 24)),
        })
    }
}

impl Attach {
    fn encode(&self, out: &mut [u8; LEN]) {
        out[12] = self.mode as u8;
        out[13] = bits(self.offloads);
        put(out, 14, self.queues.to_le_bytes());
        out[16] = self.ring_log2;
        put(out, 20, self.grants.to_le_bytes());
        put(out, 24, self.control.to_le_bytes());
        put(out, 32, self.tx.to_le_bytes());
        put(out, 40, self.rx.to_le_bytes());
    }

    fn decode(bytes: &[u8; LEN]) -> Result<Attach, WireError> {
        let mode = Mode::ALL.get(usize::from(bytes[12]));
        Ok(Attach {
            mode: *mode.ok_or(WireError::Field("mode"))?,
            offloads: offloads(bytes[13])?,
            queues: u16::from_le_bytes(get(bytes, 14)),
            ring_log2: bytes[16],
            grants: u32::from_le_bytes(get(bytes, 20)),
            control: u64::from_le_bytes(get(bytes, 24)),
            tx: u64::from_le_bytes(get(bytes, 32)),
            rx: u64::from_le_bytes(get(bytes, 40)),
        })
    }
}

fn bits(offloads: Offloads) -> u8 {
    u8::from(offloads.gso4) | u8::from(offloads.gso6) << 1
}

fn offloads(bits: u8) -> Result<Offloads, WireError> {
    if bits > 3 {
        return Err(WireError::Field("offloads"));
    }
    Ok(Offloads {
        gso4: bits & 1 != 0,
        gso6: bits & 2 != 0,
    })
}

fn put<const N: usize>(out: &mut [u8; LEN], at: usize, bytes: [u8; N]) {
    out[at..at + N].copy_from_slice(&bytes);
}

fn get<const N: usize>(bytes: &[u8; LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|n| bytes[at + n])
}
