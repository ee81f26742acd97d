//! The header before everything that goes over a stream (`docs/formats/tcp-device.md`). Pure.

use crate::wire::CONN_LEN;
use core::fmt;

/// Bytes of a header.
pub const HEADER: usize = 32;
/// "memlane" and a zero, little endian: in the frames that begin a connection.
pub const MAGIC: u64 = u64::from_le_bytes(*b"memlane\0");
/// The version of this format, beside the magic.
pub const VERSION: u32 = 1;
/// Most bytes of a tail: it must fit into the receiver's buffer as a whole.
pub const MAX_TAIL: usize = 16 << 10;
/// Most bytes of a message to a client: an `rtrs_msg_info_rsp` with a descriptor for each of 65535 chunks.
pub const MAX_MESSAGE: usize = 8 + 16 * 65535;
/// Most bytes of a message to a server: its longest is an `rtrs_msg_info_req` of 272.
pub const MAX_MESSAGE_TO_SERVER: usize = 512;

// Kinds. 0 is none, so that zeros are no frame.
const CONNECT: u8 = 1;
const ACCEPT: u8 = 2;
const REJECT: u8 = 3;
const SEND: u8 = 4;
const WRITE: u8 = 5;
const IMMEDIATE: u8 = 6;
const SHARE: u8 = 7;
const PLACE: u8 = 8;

/// Flag: the immediate counts.
const HAS_IMMEDIATE: u8 = 1;

/// Why bytes are not a frame, or not one for here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// No such kind of frame.
    Kind(u8),
    /// A field that must be zero here is not, or flags that nobody knows.
    Field(&'static str),
    /// The first frame is not of this protocol.
    Magic,
    /// Another version of it.
    Version(u32),
    /// Longer than it may be.
    TooLong(u32),
    /// A write to a place that was not granted.
    NotGranted,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Kind(kind) => write!(f, "no frame of kind {kind}"),
            FrameError::Field(field) => write!(f, "{field} of a frame is out of range"),
            FrameError::Magic => f.write_str("not memlane's protocol"),
            FrameError::Version(version) => write!(f, "frames of version {version}"),
            FrameError::TooLong(len) => write!(f, "a frame of {len} bytes"),
            FrameError::NotGranted => f.write_str("a write to memory that was not granted"),
        }
    }
}

impl core::error::Error for FrameError {}

/// Which step of making a connection a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The client asks.
    Connect,
    /// The server says yes.
    Accept,
    /// The server says no.
    Reject,
}

/// Where a write goes, in the receiver's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteTarget {
    /// Where the data begins, as the receiver counts.
    pub addr: u64,
    /// What opens it.
    pub key: u32,
    /// Bytes of data.
    pub len: u32,
    /// Where the tail goes, from `addr`.
    pub tail_at: u32,
    /// Bytes of the tail.
    pub tail: u16,
}

impl WriteTarget {
    /// Bytes from `addr` to the end of whichever ends last.
    #[must_use]
    pub fn span(&self) -> u64 {
        let tail_end = u64::from(self.tail_at) + u64::from(self.tail);
        let tail_end = if self.tail == 0 { 0 } else { tail_end };
        tail_end.max(u64::from(self.len))
    }
}

/// What a header announces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// Private data follows: [`CONN_LEN`] bytes.
    Step(Step),
    /// A message follows.
    Send {
        /// Its bytes.
        len: u32,
        /// What comes with it.
        imm: Option<u32>,
    },
    /// A tail follows, then data.
    Write {
        /// Where they go.
        place: WriteTarget,
        /// What is said when both are there.
        imm: Option<u32>,
    },
    /// Nothing follows.
    Immediate(u32),
    /// From a server of the same host, before it accepts: two descriptors come with it, queues and chunks.
    Share {
        /// Slots of each queue.
        slots: u32,
        /// How the server counts the first byte of the chunks.
        base: u64,
    },
    /// From a server of another machine, before it accepts. [`CONN_LEN`] bytes follow: where queues and chunks lie in
    /// the region that both machines have.
    Place {
        /// Slots of each queue.
        slots: u32,
        /// How the server counts the first byte of the chunks.
        base: u64,
    },
}

impl Header {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        match *self {
            Header::Step(step) => {
                bytes[0] = match step {
                    Step::Connect => CONNECT,
                    Step::Accept => ACCEPT,
                    Step::Reject => REJECT,
                };
                put(&mut bytes, 8, &(CONN_LEN as u64).to_le_bytes()[..4]);
                put(&mut bytes, 12, &VERSION.to_le_bytes());
                put(&mut bytes, 16, &MAGIC.to_le_bytes());
            }
            Header::Send { len, imm } => {
                bytes[0] = SEND;
                put_immediate(&mut bytes, imm);
                put(&mut bytes, 8, &len.to_le_bytes());
            }
            Header::Write { place, imm } => {
                bytes[0] = WRITE;
                put_immediate(&mut bytes, imm);
                put(&mut bytes, 2, &place.tail.to_le_bytes());
                put(&mut bytes, 8, &place.len.to_le_bytes());
                put(&mut bytes, 12, &place.key.to_le_bytes());
                put(&mut bytes, 16, &place.addr.to_le_bytes());
                put(&mut bytes, 24, &place.tail_at.to_le_bytes());
            }
            Header::Immediate(imm) => {
                bytes[0] = IMMEDIATE;
                put_immediate(&mut bytes, Some(imm));
            }
            Header::Share { slots, base } => {
                bytes[0] = SHARE;
                put(&mut bytes, 8, &slots.to_le_bytes());
                put(&mut bytes, 16, &base.to_le_bytes());
            }
            Header::Place { slots, base } => {
                bytes[0] = PLACE;
                put(&mut bytes, 8, &slots.to_le_bytes());
                put(&mut bytes, 16, &base.to_le_bytes());
            }
        }
        bytes
    }

    /// What the bytes say. Every bit is looked at: what means nothing must be zero, so that a stream that lost its
    /// place is noticed.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Header, FrameError> {
        let [kind, flags, ..] = *bytes;
        let (tail, imm) = (u16_at(bytes, 2), u32_at(bytes, 4));
        let (len, key) = (u32_at(bytes, 8), u32_at(bytes, 12));
        let (addr, tail_at) = (u64_at(bytes, 16), u32_at(bytes, 24));
        if flags & !HAS_IMMEDIATE != 0 {
            return Err(FrameError::Field("flags"));
        }
        let has_imm = flags & HAS_IMMEDIATE != 0;
        if !has_imm && imm != 0 {
            return Err(FrameError::Field("immediate"));
        }
        if u32_at(bytes, 28) != 0 {
            return Err(FrameError::Field("reserved"));
        }
        if kind != WRITE && (tail != 0 || tail_at != 0) {
            return Err(FrameError::Field("tail"));
        }
        let imm = has_imm.then_some(imm);
        let step = |step| {
            if addr != MAGIC {
                return Err(FrameError::Magic);
            }
            if key != VERSION {
                return Err(FrameError::Version(key));
            }
            if len as usize != CONN_LEN || has_imm {
                return Err(FrameError::Field("private data"));
            }
            Ok(Header::Step(step))
        };
        match kind {
            CONNECT => step(Step::Connect),
            ACCEPT => step(Step::Accept),
            REJECT => step(Step::Reject),
            SEND if addr == 0 && key == 0 => Ok(Header::Send { len, imm }),
            WRITE => {
                if usize::from(tail) > MAX_TAIL {
                    return Err(FrameError::TooLong(u32::from(tail)));
                }
                let place = WriteTarget {
                    addr,
                    key,
                    len,
                    tail_at,
                    tail,
                };
                Ok(Header::Write { place, imm })
            }
            IMMEDIATE if addr == 0 && key == 0 && len == 0 => {
                let imm = imm.ok_or(FrameError::Field("immediate"))?;
                Ok(Header::Immediate(imm))
            }
            SHARE if key == 0 && imm.is_none() => Ok(Header::Share {
                slots: len,
                base: addr,
            }),
            PLACE if key == 0 && imm.is_none() => Ok(Header::Place {
                slots: len,
                base: addr,
            }),
            SEND | IMMEDIATE | SHARE | PLACE => Err(FrameError::Field("address")),
            other => Err(FrameError::Kind(other)),
        }
    }
}

fn put(bytes: &mut [u8; HEADER], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn put_immediate(bytes: &mut [u8; HEADER], imm: Option<u32>) {
    if let Some(imm) = imm {
        bytes[1] = HAS_IMMEDIATE;
        put(bytes, 4, &imm.to_le_bytes());
    }
}

fn u16_at(bytes: &[u8; HEADER], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEADER], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8; HEADER], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
