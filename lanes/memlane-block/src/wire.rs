//! Bytes between a volume's user and its server: the messages of mainline RNBD 2.2, and ours in their reserved bytes.
//!
//! Names in comments (`rnbd_msg_…`, `RNBD_…`) are those of Linux: `drivers/block/rnbd/rnbd-proto.h`. Little endian.
//! `docs/formats/rnbd.md` has the tables and a vector for each message. They travel as the user message of a request
//! of the transport lane (`Job::usr`), answers as its data.
//!
//! Pure: bytes in, bytes out. Any bytes give a message or a [`WireError`]. Bytes that are reserved are sent as zero
//! and not looked at, as in Linux.

use crate::loan::LoanToken;
use crate::volume::{Flags, Info, Op};
use core::fmt;

/// `RNBD_PROTO_VER_MAJOR`. The minor version (2: PREFLUSH and NOUNMAP have bits of their own) does not travel.
pub const VERSION: u8 = 2;
/// `sizeof(struct rnbd_msg_sess_info)` and of its response.
pub const SESS_INFO_LEN: usize = 36;
/// `sizeof(struct rnbd_msg_open)`.
pub const OPEN_LEN: usize = 264;
/// `sizeof(struct rnbd_msg_open_rsp)`.
pub const OPEN_RSP_LEN: usize = 56;
/// `sizeof(struct rnbd_msg_io)` on 64-bit machines: 26 bytes of fields, and padding.
pub const IO_LEN: usize = 32;
/// The size of its fields in bytes. A receiver requires only these, since the padding is the compiler's.
const IO_FIELDS: usize = 26;
/// `sizeof(struct rnbd_msg_close)`.
pub const CLOSE_LEN: usize = 8;
/// `NAME_MAX`: bytes of the name's field, with its NUL.
pub const NAME_FIELD: usize = 255;
/// `SECTOR_SIZE`.
pub const SECTOR: u32 = 512;

// `enum rnbd_msg_type`.
const SESS_INFO: u16 = 0;
const SESS_INFO_RSP: u16 = 1;
const OPEN: u16 = 2;
const OPEN_RSP: u16 = 3;
const IO: u16 = 4;
const CLOSE: u16 = 5;
/// Ours, with [`CAP_TAKE_OVER`]: far from what Linux may come to use.
const BUSY: u16 = 0x4d01;

// `enum rnbd_io_flags`: the low 8 bits are the operation.
const OP_MASK: u32 = 0xff;
const OP_READ: u32 = 0;
const OP_WRITE: u32 = 1;
const OP_FLUSH: u32 = 2;
const OP_DISCARD: u32 = 3;
const OP_WRITE_ZEROES: u32 = 5;
/// Ours, with [`CAP_EXTENTS`]: far from what Linux may come to use.
const OP_EXTENTS: u32 = 0x80;
const F_FUA: u32 = 1 << 9;
const F_PREFLUSH: u32 = 1 << 10;
const F_NOUNMAP: u32 = 1 << 11;
/// Ours, with [`CAP_FAST_ZERO`]: the highest bit.
const F_FAST: u32 = 1 << 31;

// `enum rnbd_cache_policy`.
const CACHE_FUA: u8 = 1;
const CACHE_WRITEBACK: u8 = 2;

/// Our additions' version, in reserved byte 5 of both session messages; mainline has 0 there.
const CAPS_VERSION: u8 = 1;
/// Capability: [`Op::Extents`] has an operation.
pub const CAP_EXTENTS: u16 = 1;
/// Capability: [`Flags::FAST`] has a bit.
pub const CAP_FAST_ZERO: u16 = 1 << 1;
/// Capability: an open's response carries [`VolumeFlags`].
pub const CAP_VOLUME_FLAGS: u16 = 1 << 2;
/// Capability: the server tells when a volume has changed (see [`notice`]).
pub const CAP_NOTICE: u16 = 1 << 3;
/// Capability: the session's response carries the boot id of the server's machine.
pub const CAP_BOOT_ID: u16 = 1 << 4;
/// Capability: an open may carry more ([`Wish`]), and its refusal names the session that has the volume ([`Busy`]).
pub const CAP_TAKE_OVER: u16 = 1 << 5;
/// Capability: an open's response may offer the volume's memory ([`OpenRsp::loan`]). Only a client of the server's host says it.
pub const CAP_LOAN: u16 = 1 << 6;
/// All that this version knows.
pub const CAPS: u16 = CAP_EXTENTS
    | CAP_FAST_ZERO
    | CAP_VOLUME_FLAGS
    | CAP_NOTICE
    | CAP_BOOT_ID
    | CAP_TAKE_OVER
    | CAP_LOAN;

/// Bits of a notice that name a device: a transport's immediate has 28 for its payload.
pub const NOTICE_MASK: u32 = (1 << 28) - 1;

/// Why bytes are no message, or not one that belongs here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// Fewer bytes than the layout has.
    Short {
        /// The number of bytes that arrived.
        have: usize,
        /// The number of bytes required.
        need: usize,
    },
    /// No such message here.
    Type(u16),
    /// Another major version of the protocol.
    Version(u8),
    /// No such operation.
    Op(u8),
    /// A field has a value that it must not have.
    Field(&'static str),
    /// A volume's name that is empty, unended, or not text.
    Name,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Short { have, need } => write!(f, "{have} bytes where {need} belong"),
            WireError::Type(kind) => write!(f, "no message of type {kind} belongs here"),
            WireError::Version(version) => write!(f, "RNBD version {version} is not {VERSION}"),
            WireError::Op(op) => write!(f, "no operation has the number {op}"),
            WireError::Field(field) => write!(f, "field {field} is out of range"),
            WireError::Name => f.write_str("not a volume's name"),
        }
    }
}

impl core::error::Error for WireError {}

// ---- reading and writing fields ---------------------------------------------

fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], WireError> {
    let (have, need) = (bytes.len(), at + N);
    let found = bytes.get(at..need).and_then(|slice| slice.try_into().ok());
    found.ok_or(WireError::Short { have, need })
}

fn u8_at(bytes: &[u8], at: usize) -> Result<u8, WireError> {
    field::<1>(bytes, at).map(|[byte]| byte)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, WireError> {
    field(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, WireError> {
    field(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, WireError> {
    field(bytes, at).map(u64::from_le_bytes)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// At least `need` bytes, of a message of this type.
fn expect(bytes: &[u8], kind: u16, need: usize) -> Result<(), WireError> {
    let found = u16_at(bytes, 0)?;
    if found != kind {
        return Err(WireError::Type(found));
    }
    let have = bytes.len();
    if have < need {
        return Err(WireError::Short { have, need });
    }
    Ok(())
}

// ---- sessions ---------------------------------------------------------------

/// `struct rnbd_msg_sess_info`: what the client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessInfo {
    /// Major version.
    pub version: u8,
    /// Ours: what the client can do beyond mainline; 0: nothing.
    pub caps: u16,
}

impl SessInfo {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SESS_INFO_LEN] {
        let mut bytes = [0; SESS_INFO_LEN];
        put(&mut bytes, 0, &SESS_INFO.to_le_bytes());
        put_caps(&mut bytes, self.version, self.caps);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        expect(bytes, SESS_INFO, SESS_INFO_LEN)?;
        let (version, caps) = caps(bytes)?;
        Ok(SessInfo { version, caps })
    }
}

/// `struct rnbd_msg_sess_info_rsp`: what the two will speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessInfoRsp {
    /// The lower of both major versions.
    pub version: u8,
    /// Ours: what both can do.
    pub caps: u16,
    /// Ours, with [`CAP_BOOT_ID`]: another one after the server's machine has lost its memory.
    pub boot: [u8; 16],
}

impl SessInfoRsp {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SESS_INFO_LEN] {
        let mut bytes = [0; SESS_INFO_LEN];
        put(&mut bytes, 0, &SESS_INFO_RSP.to_le_bytes());
        put_caps(&mut bytes, self.version, self.caps);
        if self.caps & CAP_BOOT_ID != 0 {
            put(&mut bytes, 8, &self.boot);
        }
        bytes
    }

    /// What a server answered.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        expect(bytes, SESS_INFO_RSP, SESS_INFO_LEN)?;
        let (version, caps) = caps(bytes)?;
        let told = caps & CAP_BOOT_ID != 0;
        let boot = if told { field(bytes, 8)? } else { [0; 16] };
        Ok(SessInfoRsp {
            version,
            caps,
            boot,
        })
    }
}

fn put_caps(bytes: &mut [u8; SESS_INFO_LEN], version: u8, caps: u16) {
    bytes[4] = version;
    if caps != 0 {
        bytes[5] = CAPS_VERSION;
        put(bytes, 6, &caps.to_le_bytes());
    }
}

fn caps(bytes: &[u8]) -> Result<(u8, u16), WireError> {
    let version = u8_at(bytes, 4)?;
    if version < VERSION {
        return Err(WireError::Version(version));
    }
    let ours = u8_at(bytes, 5)? == CAPS_VERSION;
    Ok((version, if ours { u16_at(bytes, 6)? } else { 0 }))
}

// ---- opening ----------------------------------------------------------------

/// `enum rnbd_access_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Reads only.
    ReadOnly,
    /// The one writer.
    ReadWrite,
    /// One of two writers, while a machine moves.
    Migration,
}

/// `struct rnbd_msg_open`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// How.
    pub access: Access,
    /// Which volume.
    pub name: String,
    /// Ours, with [`CAP_TAKE_OVER`].
    pub wish: Wish,
}

/// Ours, with [`CAP_TAKE_OVER`]: what mainline has no words for, in the reserved bytes of an open.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Wish {
    /// Take the volume from sessions that write it and are not there.
    pub take_over: bool,
    /// It was open before, under this id (its low 24 bits): refused if it was taken from its session meanwhile.
    pub again: Option<u32>,
}

const WISH_TAKE_OVER: u8 = 1;
const WISH_AGAIN: u8 = 1 << 1;
/// Bits of a device id that an open has room for.
pub const AGAIN_MASK: u32 = (1 << 24) - 1;

impl Wish {
    fn put(self, bytes: &mut [u8; OPEN_LEN]) {
        let again = if self.again.is_some() { WISH_AGAIN } else { 0 };
        bytes[5] = again | (u8::from(self.take_over) * WISH_TAKE_OVER);
        let id = self.again.unwrap_or(0) & AGAIN_MASK;
        put(bytes, 261, &id.to_le_bytes()[..3]);
    }

    fn of(bytes: &[u8]) -> Result<Wish, WireError> {
        let flags = u8_at(bytes, 5)?;
        let [a, b, c] = field(bytes, 261)?;
        Ok(Wish {
            take_over: flags & WISH_TAKE_OVER != 0,
            again: (flags & WISH_AGAIN != 0).then(|| u32::from_le_bytes([a, b, c, 0])),
        })
    }
}

impl Open {
    /// Without a wish.
    #[must_use]
    pub fn new(access: Access, name: &str) -> Open {
        Open {
            access,
            name: name.to_owned(),
            wish: Wish::default(),
        }
    }

    /// The bytes.
    pub fn encode(&self) -> Result<[u8; OPEN_LEN], WireError> {
        let name = self.name.as_bytes();
        if name.is_empty() || name.len() >= NAME_FIELD || name.contains(&0) {
            return Err(WireError::Name);
        }
        let mut bytes = [0; OPEN_LEN];
        put(&mut bytes, 0, &OPEN.to_le_bytes());
        bytes[4] = match self.access {
            Access::ReadOnly => 0,
            Access::ReadWrite => 1,
            Access::Migration => 2,
        };
        put(&mut bytes, 6, name);
        self.wish.put(&mut bytes);
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        expect(bytes, OPEN, OPEN_LEN)?;
        let access = match u8_at(bytes, 4)? {
            0 => Access::ReadOnly,
            1 => Access::ReadWrite,
            2 => Access::Migration,
            _ => return Err(WireError::Field("access_mode")),
        };
        let name: [u8; NAME_FIELD] = field(bytes, 6)?;
        let end = name.iter().position(|byte| *byte == 0);
        let end = end.filter(|end| *end > 0).ok_or(WireError::Name)?;
        let name = core::str::from_utf8(&name[..end]).map_err(|_| WireError::Name)?;
        Ok(Open {
            access,
            name: name.to_owned(),
            wish: Wish::of(bytes)?,
        })
    }
}

/// A message of memlane, with [`CAP_TAKE_OVER`], in place of an [`OpenRsp`]: it names the session that has the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy {
    /// The session's name, cut off and filled with zeros.
    name: [u8; BUSY_NAME],
    /// It has a path.
    pub alive: bool,
    /// Seconds without one.
    pub silent: u32,
}

/// Room for the name, in bytes.
const BUSY_NAME: usize = 44;

impl Busy {
    /// The session with this name has the volume; if it has no path, since how many seconds.
    #[must_use]
    pub fn new(name: &str, silent: Option<u32>) -> Busy {
        let mut end = name.len().min(BUSY_NAME);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; BUSY_NAME];
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        Busy {
            name: bytes,
            alive: silent.is_none(),
            silent: silent.unwrap_or(0),
        }
    }

    /// The session's name, or how it begins.
    #[must_use]
    pub fn name(&self) -> &str {
        let end = self.name.iter().position(|byte| *byte == 0);
        let text = core::str::from_utf8(&self.name[..end.unwrap_or(BUSY_NAME)]);
        text.unwrap_or_default()
    }

    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; OPEN_RSP_LEN] {
        let mut bytes = [0; OPEN_RSP_LEN];
        put(&mut bytes, 0, &BUSY.to_le_bytes());
        bytes[4] = u8::from(self.alive);
        put(&mut bytes, 8, &self.silent.to_le_bytes());
        put(&mut bytes, 12, &self.name);
        bytes
    }

    /// What a server answered. Its name is shown to people: text without control characters.
    pub fn decode(bytes: &[u8]) -> Result<Busy, WireError> {
        expect(bytes, BUSY, OPEN_RSP_LEN)?;
        let busy = Busy {
            name: field(bytes, 12)?,
            alive: u8_at(bytes, 4)? & 1 != 0,
            silent: u32_at(bytes, 8)?,
        };
        let name = busy.name();
        let fits = !name.is_empty() && !name.chars().any(char::is_control);
        fits.then_some(busy).ok_or(WireError::Field("name"))
    }

    /// Is it one?
    #[must_use]
    pub fn is_meant(bytes: &[u8]) -> bool {
        u16_at(bytes, 0) == Ok(BUSY)
    }
}

/// Ours, with [`CAP_VOLUME_FLAGS`]: what mainline leaves to be guessed from limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeFlags {
    /// Nothing can be written.
    pub read_only: bool,
    /// [`Op::Trim`].
    pub trim: bool,
    /// [`Op::WriteZeroes`].
    pub zeroes: bool,
    /// [`Op::Extents`].
    pub extents: bool,
}

const VOLUME_READ_ONLY: u8 = 1;
const VOLUME_TRIM: u8 = 1 << 1;
const VOLUME_ZEROES: u8 = 1 << 2;
const VOLUME_EXTENTS: u8 = 1 << 3;
/// The byte counts.
const VOLUME_TOLD: u8 = 1 << 7;

impl VolumeFlags {
    fn encode(self) -> u8 {
        let bit = |on, bit| if on { bit } else { 0 };
        VOLUME_TOLD
            | bit(self.read_only, VOLUME_READ_ONLY)
            | bit(self.trim, VOLUME_TRIM)
            | bit(self.zeroes, VOLUME_ZEROES)
            | bit(self.extents, VOLUME_EXTENTS)
    }

    fn decode(byte: u8) -> Option<VolumeFlags> {
        (byte & VOLUME_TOLD != 0).then_some(VolumeFlags {
            read_only: byte & VOLUME_READ_ONLY != 0,
            trim: byte & VOLUME_TRIM != 0,
            zeroes: byte & VOLUME_ZEROES != 0,
            extents: byte & VOLUME_EXTENTS != 0,
        })
    }
}

/// `struct rnbd_msg_open_rsp`, as far as it means something here: `discard_alignment`, `secure_discard` and
/// `obsolete_rotational` are sent as zero and not looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenRsp {
    /// Names the volume in requests, in this session, until the server restarts.
    pub device_id: u32,
    /// Size in sectors of 512 bytes.
    pub sectors: u64,
    /// `max_hw_sectors`: most of one read or write.
    pub max_io_sectors: u32,
    /// Most of one write-zeroes; 0: none.
    pub max_write_zeroes_sectors: u32,
    /// Most of one trim; 0: none.
    pub max_discard_sectors: u32,
    /// Less than this is not given back by a trim.
    pub discard_granularity: u32,
    /// What is done at once.
    pub physical_block: u16,
    /// What offsets and lengths are multiples of.
    pub logical_block: u16,
    /// `max_segments`.
    pub max_segments: u16,
    /// `RNBD_FUA`: knows forced unit access.
    pub fua: bool,
    /// `RNBD_WRITEBACK`: has a volatile cache.
    pub writeback: bool,
    /// Ours.
    pub flags: Option<VolumeFlags>,
    /// Ours, with [`CAP_LOAN`]: names an offer of the volume's memory.
    pub loan: Option<LoanToken>,
}

impl OpenRsp {
    /// The description of a volume for a client with the capabilities `caps`.
    #[must_use]
    pub fn of(device_id: u32, info: &Info, caps: u16) -> OpenRsp {
        let most = |able| {
            if able { info.max_trim / SECTOR } else { 0 }
        };
        let flags = VolumeFlags {
            read_only: info.read_only,
            trim: info.trim,
            zeroes: info.zeroes,
            extents: info.extents && caps & CAP_EXTENTS != 0,
        };
        OpenRsp {
            device_id,
            sectors: info.size / u64::from(SECTOR),
            max_io_sectors: info.max_io / SECTOR,
            max_write_zeroes_sectors: most(info.zeroes),
            max_discard_sectors: most(info.trim),
            discard_granularity: info.preferred,
            physical_block: u16::try_from(info.preferred).unwrap_or(1 << 15),
            logical_block: u16::try_from(info.block).unwrap_or(1 << 15),
            max_segments: u16::try_from(info.max_io / 4096).unwrap_or(u16::MAX).max(1),
            fua: true,
            writeback: info.cached,
            flags: (caps & CAP_VOLUME_FLAGS != 0).then_some(flags),
            loan: None,
        }
    }

    /// What the volume is. Of a server without our additions nobody can tell whether it is read-only.
    #[must_use]
    pub fn info(&self) -> Info {
        let block = u32::from(self.logical_block);
        let (trim, zeroes) = (
            self.max_discard_sectors > 0,
            self.max_write_zeroes_sectors > 0,
        );
        let flags = self.flags.unwrap_or(VolumeFlags {
            read_only: false,
            trim,
            zeroes,
            extents: false,
        });
        let (trim, zeroes) = (flags.trim && trim, flags.zeroes && zeroes);
        let most = |able, sectors: u32| if able { sectors } else { u32::MAX };
        let least =
            most(trim, self.max_discard_sectors).min(most(zeroes, self.max_write_zeroes_sectors));
        let able = trim || zeroes;
        Info {
            size: self.sectors.saturating_mul(u64::from(SECTOR)),
            block,
            preferred: u32::from(self.physical_block).max(block),
            max_io: blocks_of(self.max_io_sectors, block),
            max_trim: if able { blocks_of(least, block) } else { 0 },
            read_only: flags.read_only,
            cached: self.writeback,
            trim,
            zeroes,
            extents: flags.extents,
        }
    }

    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; OPEN_RSP_LEN] {
        let mut bytes = [0; OPEN_RSP_LEN];
        put(&mut bytes, 0, &OPEN_RSP.to_le_bytes());
        put(&mut bytes, 4, &self.device_id.to_le_bytes());
        put(&mut bytes, 8, &self.sectors.to_le_bytes());
        put(&mut bytes, 16, &self.max_io_sectors.to_le_bytes());
        put(&mut bytes, 20, &self.max_write_zeroes_sectors.to_le_bytes());
        put(&mut bytes, 24, &self.max_discard_sectors.to_le_bytes());
        put(&mut bytes, 28, &self.discard_granularity.to_le_bytes());
        put(&mut bytes, 36, &self.physical_block.to_le_bytes());
        put(&mut bytes, 38, &self.logical_block.to_le_bytes());
        put(&mut bytes, 40, &self.max_segments.to_le_bytes());
        bytes[45] = u8::from(self.fua) * CACHE_FUA + u8::from(self.writeback) * CACHE_WRITEBACK;
        bytes[46] = self.flags.map_or(0, VolumeFlags::encode);
        put(
            &mut bytes,
            48,
            &self.loan.map_or(0, LoanToken::get).to_le_bytes(),
        );
        bytes
    }

    /// What a server answered. A size that is not in blocks or too large for a file, block sizes that are none and
    /// requests of no length are refused.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        expect(bytes, OPEN_RSP, OPEN_RSP_LEN)?;
        let cache = u8_at(bytes, 45)?;
        let rsp = OpenRsp {
            device_id: u32_at(bytes, 4)?,
            sectors: u64_at(bytes, 8)?,
            max_io_sectors: u32_at(bytes, 16)?,
            max_write_zeroes_sectors: u32_at(bytes, 20)?,
            max_discard_sectors: u32_at(bytes, 24)?,
            discard_granularity: u32_at(bytes, 28)?,
            physical_block: u16_at(bytes, 36)?,
            logical_block: u16_at(bytes, 38)?,
            max_segments: u16_at(bytes, 40)?,
            fua: cache & CACHE_FUA != 0,
            writeback: cache & CACHE_WRITEBACK != 0,
            flags: VolumeFlags::decode(u8_at(bytes, 46)?),
            loan: LoanToken::new(u64_at(bytes, 48)?),
        };
        rsp.check()?;
        Ok(rsp)
    }

    fn check(&self) -> Result<(), WireError> {
        let block = self.logical_block;
        if !block.is_power_of_two() || u32::from(block) < SECTOR {
            return Err(WireError::Field("logical_block_size"));
        }
        if !self.physical_block.is_power_of_two() || self.physical_block < block {
            return Err(WireError::Field("physical_block_size"));
        }
        let each = u64::from(block) / u64::from(SECTOR);
        let longest = i64::MAX.unsigned_abs() / u64::from(SECTOR);
        if self.sectors > longest || !self.sectors.is_multiple_of(each) {
            return Err(WireError::Field("nsectors"));
        }
        if u64::from(self.max_io_sectors) < each {
            return Err(WireError::Field("max_hw_sectors"));
        }
        // Less than a block is nothing that could be asked for.
        let some = |sectors: u32| sectors == 0 || u64::from(sectors) >= each;
        if !some(self.max_discard_sectors) {
            return Err(WireError::Field("max_discard_sectors"));
        }
        if !some(self.max_write_zeroes_sectors) {
            return Err(WireError::Field("max_write_zeroes_sectors"));
        }
        Ok(())
    }
}

/// Bytes, in whole blocks, that fit into 32 bits.
fn blocks_of(sectors: u32, block: u32) -> u32 {
    sectors.saturating_mul(SECTOR) & !(block - 1)
}

// ---- requests ---------------------------------------------------------------

/// `struct rnbd_msg_io`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoMsg {
    /// From [`OpenRsp`].
    pub device_id: u32,
    /// First sector of 512 bytes.
    pub sector: u64,
    /// What.
    pub op: Op,
    /// How.
    pub flags: Flags,
    /// `bi_size`: bytes of the volume that are meant; for read and write as many as there are data.
    pub len: u32,
    /// `prio`: not used.
    pub prio: u16,
}

impl IoMsg {
    /// The bytes. [`Op::Extents`] and [`Flags::FAST`] go only to a server that announces them.
    #[must_use]
    pub fn encode(&self) -> [u8; IO_LEN] {
        let op = match self.op {
            Op::Read => OP_READ,
            Op::Write => OP_WRITE,
            Op::Flush => OP_FLUSH,
            Op::Trim => OP_DISCARD,
            Op::WriteZeroes => OP_WRITE_ZEROES,
            Op::Extents => OP_EXTENTS,
        };
        let rw = FLAGS.iter().fold(
            op,
            |rw, (flag, bit)| {
                if self.flags.has(*flag) { rw | bit } else { rw }
            },
        );
        let mut bytes = [0; IO_LEN];
        put(&mut bytes, 0, &IO.to_le_bytes());
        put(&mut bytes, 4, &self.device_id.to_le_bytes());
        put(&mut bytes, 8, &self.sector.to_le_bytes());
        put(&mut bytes, 16, &rw.to_le_bytes());
        put(&mut bytes, 20, &self.len.to_le_bytes());
        put(&mut bytes, 24, &self.prio.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        expect(bytes, IO, IO_FIELDS)?;
        let rw = u32_at(bytes, 16)?;
        let op = match rw & OP_MASK {
            OP_READ => Op::Read,
            OP_WRITE => Op::Write,
            OP_FLUSH => Op::Flush,
            OP_DISCARD => Op::Trim,
            OP_WRITE_ZEROES => Op::WriteZeroes,
            OP_EXTENTS => Op::Extents,
            _ => return Err(WireError::Op(rw.to_le_bytes()[0])),
        };
        let flags = FLAGS.iter().filter(|(_, bit)| rw & bit != 0);
        Ok(IoMsg {
            device_id: u32_at(bytes, 4)?,
            sector: u64_at(bytes, 8)?,
            op,
            flags: flags.fold(Flags::NONE, |all, (flag, _)| all.and(*flag)),
            len: u32_at(bytes, 20)?,
            prio: u16_at(bytes, 24)?,
        })
    }
}

const FLAGS: [(Flags, u32); 4] = [
    (Flags::FUA, F_FUA),
    (Flags::PREFLUSH, F_PREFLUSH),
    (Flags::NO_HOLE, F_NOUNMAP),
    (Flags::FAST, F_FAST),
];

/// `struct rnbd_msg_close`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Close {
    /// Which.
    pub device_id: u32,
}

impl Close {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; CLOSE_LEN] {
        let mut bytes = [0; CLOSE_LEN];
        put(&mut bytes, 0, &CLOSE.to_le_bytes());
        put(&mut bytes, 4, &self.device_id.to_le_bytes());
        bytes
    }
}

/// What a client asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// As a read of [`SESS_INFO_LEN`] bytes.
    SessInfo(SessInfo),
    /// As a read of [`OPEN_RSP_LEN`] bytes.
    Open(Open),
    /// As a read or a write of as many bytes as there are data.
    Io(IoMsg),
    /// As a write of none.
    Close(Close),
}

impl Message {
    /// What the bytes say.
    pub fn decode(bytes: &[u8]) -> Result<Message, WireError> {
        match u16_at(bytes, 0)? {
            SESS_INFO => SessInfo::decode(bytes).map(Message::SessInfo),
            OPEN => Open::decode(bytes).map(Message::Open),
            IO => IoMsg::decode(bytes).map(Message::Io),
            CLOSE => {
                expect(bytes, CLOSE, CLOSE_LEN)?;
                let device_id = u32_at(bytes, 4)?;
                Ok(Message::Close(Close { device_id }))
            }
            kind => Err(WireError::Type(kind)),
        }
    }
}

/// What a notice says about this device: "it has changed; open it again, and look". Device ids differ in these bits.
#[must_use]
pub fn notice(device_id: u32) -> u32 {
    device_id & NOTICE_MASK
}
