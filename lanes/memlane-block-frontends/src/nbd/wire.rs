//! The protocol's numbers and layouts: everything that stands in a message. Big endian.
//!
//! Source of each constant: `doc/proto.md` of NetworkBlockDevice/nbd, under the name that stands beside it.

/// First eight bytes of a server: `NBDMAGIC`.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Then, and before each option of a client: `IHAVEOPT`.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// `NBD_REQUEST_MAGIC`.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// `NBD_SIMPLE_REPLY_MAGIC`.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// `NBD_STRUCTURED_REPLY_MAGIC`.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags: `NBD_FLAG_FIXED_NEWSTYLE` (server), `NBD_FLAG_C_FIXED_NEWSTYLE` (client).
pub const FIXED_NEWSTYLE: u16 = 1;
/// `NBD_FLAG_NO_ZEROES`, `NBD_FLAG_C_NO_ZEROES`.
pub const NO_ZEROES: u16 = 2;

/// Longest string of the protocol ("Values": 4096 bytes).
pub const MAX_STRING: usize = 4096;
/// Most bytes of a READ or WRITE ("Size constraints": 2^25).
pub const MAX_PAYLOAD: u32 = 1 << 25;

/// `NBD_OPT_*`.
pub mod opt {
    /// Name an export and begin; no errors, no details.
    pub const EXPORT_NAME: u32 = 1;
    /// End.
    pub const ABORT: u32 = 2;
    /// Which exports are there?
    pub const LIST: u32 = 3;
    /// From here on TLS.
    pub const STARTTLS: u32 = 5;
    /// Details of an export.
    pub const INFO: u32 = 6;
    /// Details of an export, and begin.
    pub const GO: u32 = 7;
    /// Replies in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Which kinds of block status are there?
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Which kinds of block status are wanted.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// `NBD_REP_*`.
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// A detail of an export.
    pub const INFO: u32 = 3;
    /// A kind of block status.
    pub const META_CONTEXT: u32 = 4;
    /// Bit 31: an error.
    const ERR: u32 = 1 << 31;
    /// Option not known.
    pub const ERR_UNSUP: u32 = ERR + 1;
    /// Option known, but not with these bytes or not now.
    pub const ERR_INVALID: u32 = ERR + 3;
    /// TLS first.
    pub const ERR_TLS_REQD: u32 = ERR + 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERR + 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = ERR + 7;
    /// More than the server reads.
    pub const ERR_TOO_BIG: u32 = ERR + 9;
}

/// `NBD_INFO_*`.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's own name.
    pub const NAME: u16 = 1;
    /// Words for a person.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, best, largest.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: `NBD_FLAG_*`.
pub mod flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Nothing can be written.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Reads in one chunk.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush is about what all connections wrote.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// WRITE_ZEROES that fails if it would be slow.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// `NBD_CMD_*`.
pub mod cmd {
    /// Bytes wanted.
    pub const READ: u16 = 0;
    /// Bytes follow.
    pub const WRITE: u16 = 1;
    /// The end.
    pub const DISC: u16 = 2;
    /// What was answered becomes durable.
    pub const FLUSH: u16 = 3;
    /// Not needed any more.
    pub const TRIM: u16 = 4;
    /// Will be needed.
    pub const CACHE: u16 = 5;
    /// Becomes zero.
    pub const WRITE_ZEROES: u16 = 6;
    /// Which of it is there?
    pub const BLOCK_STATUS: u16 = 7;
}

/// `NBD_CMD_FLAG_*`.
pub mod cmd_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1;
    /// Zeroes, but no hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Quickly or not at all.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// `NBD_REPLY_FLAG_DONE`: the last chunk of a reply.
pub const REPLY_FLAG_DONE: u16 = 1;

/// `NBD_REPLY_TYPE_*`.
pub mod chunk {
    /// Nothing but the end.
    pub const NONE: u16 = 0;
    /// Bytes, and where they are from.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// "Error values": the only ones that may be sent.
pub mod error {
    /// Read-only.
    pub const EPERM: u32 = 1;
    /// The disk's.
    pub const EIO: u32 = 5;
    /// No memory.
    pub const ENOMEM: u32 = 12;
    /// Not a request that can be served.
    pub const EINVAL: u32 = 22;
    /// Full, or behind the end.
    pub const ENOSPC: u32 = 28;
    /// Too long.
    pub const EOVERFLOW: u32 = 75;
    /// Not quickly.
    pub const ENOTSUP: u32 = 95;
    /// The server is stopping.
    pub const ESHUTDOWN: u32 = 108;
}

/// The one kind of block status that is here ("base:allocation metadata context").
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// Its number on the wire: ours to choose.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// `NBD_STATE_HOLE` and `NBD_STATE_ZERO`: bits 0 and 1, as in records of [`memlane_block::volume::Op::Extents`].
pub const STATE_BITS: u32 = 3;

/// Bytes of a request's header.
pub const REQUEST_LEN: usize = 28;
/// Bytes of a simple reply.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes of a chunk's header.
pub const CHUNK_LEN: usize = 20;

/// A request, as it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// [`cmd_flag`]s.
    pub flags: u16,
    /// A [`cmd`].
    pub command: u16,
    /// Comes back with the reply.
    pub cookie: u64,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u32,
}

impl Request {
    /// `None`: this is not a request; the client speaks another protocol.
    #[must_use]
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<Request> {
        let request = Request {
            flags: u16_at(bytes, 4)?,
            command: u16_at(bytes, 6)?,
            cookie: u64_at(bytes, 8)?,
            at: u64_at(bytes, 16)?,
            len: u32_at(bytes, 24)?,
        };
        (u32_at(bytes, 0)? == REQUEST_MAGIC).then_some(request)
    }

    /// For clients.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.at.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// A reply without chunks: its data, if it has some, follows.
#[must_use]
pub fn simple_reply(error: u32, cookie: u64) -> [u8; SIMPLE_REPLY_LEN] {
    let mut bytes = [0; SIMPLE_REPLY_LEN];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// A chunk's header.
#[must_use]
pub fn chunk_header(flags: u16, kind: u16, cookie: u64, len: u32) -> [u8; CHUNK_LEN] {
    let mut bytes = [0; CHUNK_LEN];
    bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// What a disk says, in the protocol's words.
#[must_use]
pub fn error_of(errno: i32) -> u32 {
    match errno {
        libc::EPERM | libc::EROFS | libc::EACCES => error::EPERM,
        libc::ENOMEM => error::ENOMEM,
        libc::EINVAL => error::EINVAL,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => error::ENOSPC,
        libc::EOVERFLOW => error::EOVERFLOW,
        libc::EOPNOTSUPP => error::ENOTSUP,
        libc::ESHUTDOWN => error::ESHUTDOWN,
        _ => error::EIO,
    }
}

/// The number at `at`, if it is there.
#[must_use]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

/// The number at `at`, if it is there.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// The number at `at`, if it is there.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_encoding_and_another_magic_is_none() {
        let request = Request {
            flags: cmd_flag::FUA,
            command: cmd::WRITE,
            cookie: 0x0102_0304_0506_0708,
            at: 0x1122_3344_5566_7788,
            len: 0xdead_beef,
        };
        let mut bytes = request.encode();
        assert_eq!(Request::decode(&bytes), Some(request));
        bytes[0] ^= 1;
        assert_eq!(Request::decode(&bytes), None);
    }

    #[test]
    fn each_error_of_a_disk_becomes_one_that_the_protocol_has() {
        let known = [1, 5, 12, 22, 28, 75, 95, 108];
        for errno in -200..200 {
            assert!(known.contains(&error_of(errno)), "{errno}");
        }
        assert_eq!(error_of(libc::EROFS), error::EPERM);
        assert_eq!(error_of(libc::EDQUOT), error::ENOSPC);
        assert_eq!(error_of(libc::ENODEV), error::EIO);
    }
}
