//! Bytes that leave the process: the messages of mainline RTRS 2.x, and ours in its reserved bytes.
//!
//! Names in comments (`rtrs_msg_…`, `RTRS_…`) are those of Linux: `drivers/infiniband/ulp/rtrs/rtrs-pri.h`
//! unless another file is named. Little endian throughout, but for the immediate, which the device sends big
//! endian. `docs/formats/rtrs.md` has the tables and a vector for each message.
//!
//! Pure: bytes in, bytes out. Any bytes give a message or a [`WireError`]. Bytes that are reserved are sent as
//! zero and not looked at, as in Linux.

use crate::error::WireError;

/// `RTRS_MAGIC`.
pub const MAGIC: u16 = 0x1BBD;
/// `RTRS_PROTO_VER`: major 2 in the high byte, minor 0 in the low one.
pub const VERSION: u16 = 0x0200;
/// `MAX_IMM_TYPE_BITS`: the immediate's type is in its upper 4 bits.
pub const IMM_TYPE_BITS: u32 = 4;
/// `MAX_IMM_PAYL_BITS`.
pub const IMM_PAYLOAD_BITS: u32 = 28;
/// Of a response's payload, the lower 19 bits are the message id and 9 bits the error number (`rtrs_to_io_rsp_imm`).
pub const MSG_ID_BITS: u32 = 19;
/// `MIN_CHUNK_SIZE`.
pub const MIN_CHUNK_SIZE: u32 = 8192;
/// `MAX_SESS_QUEUE_DEPTH`.
pub const MAX_QUEUE_DEPTH: u16 = 65535;
/// `DEFAULT_SESS_QUEUE_DEPTH` (rtrs-srv.c).
pub const DEFAULT_QUEUE_DEPTH: u16 = 512;
/// `DEFAULT_MAX_CHUNK_SIZE` (rtrs-srv.c).
pub const DEFAULT_CHUNK_SIZE: u32 = 128 << 10;
/// `MAX_HDR_SIZE` (rtrs-srv.c): a page; what a chunk holds beside the data.
pub const MAX_HDR_SIZE: u32 = 4096;
/// `MAX_PATHS_NUM`.
pub const MAX_PATHS: usize = 128;
/// Most connections of a path that a server accepts (rtrs-srv.c, `rtrs_rdma_connect`).
pub const MAX_CONNECTIONS: u16 = 4096;
/// `NAME_MAX`: bytes of the name's field, with its NUL.
pub const NAME_FIELD: usize = 255;
/// `RTRS_MSG_NEW_RKEY_F` in a connection response's flags: each response brings the chunk's next key.
pub const NEW_RKEY: u32 = 1 << 1;
/// `RTRS_MSG_NEED_INVAL_F` in a read's flags: the server is to invalidate the client's key.
pub const NEED_INVAL: u16 = 1;

/// `sizeof(struct rtrs_msg_conn_req)` and of `rtrs_msg_conn_rsp`.
pub const CONN_LEN: usize = 56;
/// `sizeof(struct rtrs_msg_info_req)`.
pub const INFO_REQ_LEN: usize = 272;
/// `sizeof(struct rtrs_msg_rdma_write)`.
pub const WRITE_LEN: usize = 4;
/// `sizeof(struct rtrs_msg_rdma_read)`, less its descriptors.
pub const READ_LEN: usize = 8;
/// `sizeof(struct rtrs_sg_desc)`.
pub const DESC_LEN: usize = 16;
/// `sizeof(struct rtrs_msg_rkey_rsp)`.
pub const RKEY_RSP_LEN: usize = 8;
/// Ours: what follows the header of each request between two ends that can replay.
pub const REPLAY_LEN: usize = 16;
/// Ours: bytes of a fence and of its acknowledgement.
pub const FENCE_LEN: usize = 16;
/// The longest header of a request: a read with its one descriptor, and ours.
pub const MAX_REQUEST_HEADER: usize = READ_LEN + DESC_LEN + REPLAY_LEN;

// `enum rtrs_msg_types`.
const INFO_REQ: u16 = 0;
const INFO_RSP: u16 = 1;
const WRITE: u16 = 2;
const READ: u16 = 3;
const RKEY_RSP: u16 = 4;
// Ours; a peer that does not have `CAP_REPLAY` never sees them.
const FENCE: u16 = 0x4D01;
const FENCE_ACK: u16 = 0x4D02;
const REFUSED: u16 = 0x4D03;

/// The version of our additions, in reserved byte 45 of a request and 20 of a response; mainline has 0 there.
const CAPS_VERSION: u8 = 1;
/// Capability: generations, replays, fences.
pub const CAP_REPLAY: u16 = 1;
/// Capability: notices, and refusals with a reason.
pub const CAP_NOTICE: u16 = 2;
/// In a request: the client has memory that it may share with the server's machine. Another of its paths, if not this one,
/// goes by it.
pub const CAP_SHARED_MEMORY: u16 = 4;
/// In a request: this connection is to go by that memory.
pub const CAP_BY_MEMORY: u16 = 8;
/// All that this version can do.
pub const CAPS: u16 = CAP_REPLAY | CAP_NOTICE;

/// Replay flag: a copy of this request may have come before.
pub const REPLAYED: u32 = 1;
/// Replay flag: do not begin; tell how the first copy ended, or see to it that it never begins.
pub const SETTLE: u32 = 2;

/// 16 bytes that name a session or a path.
pub type Uuid = [u8; 16];

// ---- reading and writing fields ---------------------------------------------

/// The first `N` bytes at `at`; `Short` tells how long the whole must be.
fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], WireError> {
    let need = at + N;
    let have = bytes.len();
    let found = bytes.get(at..need).and_then(|slice| slice.try_into().ok());
    found.ok_or(WireError::Short { have, need })
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

fn at_least(bytes: &[u8], need: usize) -> Result<(), WireError> {
    let have = bytes.len();
    if have < need {
        return Err(WireError::Short { have, need });
    }
    Ok(())
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

// ---- immediates -------------------------------------------------------------

/// What a 32-bit immediate says: 4 bits of type (`enum rtrs_imm_type`), 28 bits of payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Immediate {
    /// `RTRS_IO_REQ_IMM` 0: a request lies in a chunk; see [`Geometry::split`].
    Request(u32),
    /// `RTRS_IO_RSP_IMM` 1, `RTRS_IO_RSP_W_INV_IMM` 2: a request is done.
    Response {
        /// Which: the number of its chunk.
        id: u32,
        /// 0, or what went wrong, positive.
        errno: u16,
        /// The server has invalidated the client's key.
        invalidated: bool,
    },
    /// `RTRS_HB_MSG_IMM` 8: are you there?
    Heartbeat,
    /// `RTRS_HB_ACK_IMM` 9: I am.
    HeartbeatAck,
    /// Ours, 12: the server's service calls; what for is between it and its client. 28 bits.
    Notice(u32),
}

impl Immediate {
    /// The 32 bits. An error number of more than 9 bits becomes `EIO`.
    #[must_use]
    pub fn encode(self) -> u32 {
        let (kind, payload) = match self {
            Immediate::Request(payload) => (0, payload),
            Immediate::Response {
                id,
                errno,
                invalidated,
            } => {
                let errno = if errno < 512 { u32::from(errno) } else { 5 };
                let id = id & ((1 << MSG_ID_BITS) - 1);
                (1 + u32::from(invalidated), (errno << MSG_ID_BITS) | id)
            }
            Immediate::Heartbeat => (8, 0),
            Immediate::HeartbeatAck => (9, 0),
            Immediate::Notice(what) => (12, what),
        };
        (kind << IMM_PAYLOAD_BITS) | (payload & ((1 << IMM_PAYLOAD_BITS) - 1))
    }

    /// What the 32 bits say.
    pub fn decode(imm: u32) -> Result<Self, WireError> {
        let payload = imm & ((1 << IMM_PAYLOAD_BITS) - 1);
        let response = |invalidated| Immediate::Response {
            id: payload & ((1 << MSG_ID_BITS) - 1),
            // 9 bits.
            errno: u16::try_from(payload >> MSG_ID_BITS).unwrap_or(u16::MAX),
            invalidated,
        };
        match imm >> IMM_PAYLOAD_BITS {
            0 => Ok(Immediate::Request(payload)),
            1 => Ok(response(false)),
            2 => Ok(response(true)),
            8 => Ok(Immediate::Heartbeat),
            9 => Ok(Immediate::HeartbeatAck),
            12 => Ok(Immediate::Notice(payload)),
            kind => Err(WireError::ImmediateType(kind)),
        }
    }
}

// ---- chunks -----------------------------------------------------------------

/// How many chunks a session has, how long they are, and how an immediate names a place in one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    depth: u16,
    chunk: u32,
    header: u32,
}

impl Geometry {
    /// `depth` chunks of `chunk` bytes, of which `header` are not for data.
    pub fn new(depth: u16, chunk: u32, header: u32) -> Result<Self, WireError> {
        let geometry = Geometry {
            depth,
            chunk,
            header,
        };
        if depth == 0 {
            return Err(WireError::Field("queue_depth"));
        }
        if chunk < MIN_CHUNK_SIZE || chunk > 1 << geometry.offset_bits() {
            return Err(WireError::Field("max_io_size"));
        }
        let least = u32::try_from(MAX_REQUEST_HEADER).unwrap_or(u32::MAX);
        if header < least || header >= chunk {
            return Err(WireError::Field("max_hdr_size"));
        }
        Ok(geometry)
    }

    /// What a connection response says (rtrs-clt.c `rtrs_rdma_conn_established`: chunk = io + header).
    pub fn of(rsp: &ConnRsp) -> Result<Self, WireError> {
        let chunk = rsp.max_io_size.checked_add(rsp.max_hdr_size);
        let chunk = chunk.ok_or(WireError::Field("max_io_size"))?;
        Self::new(rsp.queue_depth, chunk, rsp.max_hdr_size)
    }

    /// Chunks, which are permits.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk(&self) -> u32 {
        self.chunk
    }

    /// Bytes of a chunk that are not for data.
    #[must_use]
    pub fn header(&self) -> u32 {
        self.header
    }

    /// Most bytes of data in one request.
    #[must_use]
    pub fn max_io(&self) -> u32 {
        self.chunk - self.header
    }

    /// Bits of the payload below the chunk's number: 28 − `ilog2(depth − 1) + 1` (rtrs-clt.c `alloc_permits`).
    fn offset_bits(&self) -> u32 {
        IMM_PAYLOAD_BITS - u32::from(self.depth).next_power_of_two().trailing_zeros()
    }

    /// The payload of a request's immediate: the header lies at `offset` of chunk `id`.
    #[must_use]
    pub fn request(&self, id: u16, offset: u32) -> Immediate {
        Immediate::Request((u32::from(id) << self.offset_bits()) | offset)
    }

    /// Which chunk, and where in it (rtrs-srv.c `rtrs_srv_rdma_done`).
    pub fn split(&self, payload: u32) -> Result<(u16, u32), WireError> {
        let bits = self.offset_bits();
        let offset = payload & ((1 << bits) - 1);
        let id = u16::try_from(payload >> bits).ok();
        let id = id.filter(|id| *id < self.depth);
        let id = id.ok_or(WireError::Field("msg_id"))?;
        if offset >= self.chunk {
            return Err(WireError::Field("off"));
        }
        Ok((id, offset))
    }
}

// ---- connection messages: private data of connect, accept and reject --------

/// What an end can do beyond mainline. `None` in a message means: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// [`CAP_REPLAY`].
    pub bits: u16,
    /// In a request: the epoch of this incarnation of the path. In a response: the instance of the session,
    /// which is another one when the server has forgotten what it knew.
    pub number: u64,
}

impl Caps {
    fn put(caps: Option<Caps>, bytes: &mut [u8], version: usize, bits: usize, number: usize) {
        if let Some(caps) = caps {
            bytes[version] = CAPS_VERSION;
            put(bytes, bits, &caps.bits.to_le_bytes());
            put(bytes, number, &caps.number.to_le_bytes());
        }
    }

    fn get(
        bytes: &[u8],
        version: usize,
        bits: usize,
        number: usize,
    ) -> Result<Option<Caps>, WireError> {
        if bytes[version] != CAPS_VERSION {
            return Ok(None);
        }
        Ok(Some(Caps {
            bits: u16_at(bytes, bits)?,
            number: u64_at(bytes, number)?,
        }))
    }
}

/// `struct rtrs_msg_conn_req`: one connection of a path asks to be accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnReq {
    /// Number of this connection in its path.
    pub cid: u16,
    /// How many the path will have.
    pub cid_num: u16,
    /// How often this path has reconnected.
    pub recon_cnt: u16,
    /// The path (`sess_uuid` in Linux).
    pub path: Uuid,
    /// The session (`paths_uuid` in Linux).
    pub session: Uuid,
    /// The session may be created.
    pub first_conn: bool,
    /// What the client can do, and the path's epoch.
    pub caps: Option<Caps>,
}

impl ConnReq {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; CONN_LEN] {
        let mut bytes = [0; CONN_LEN];
        put(&mut bytes, 2, &MAGIC.to_le_bytes());
        put(&mut bytes, 4, &VERSION.to_le_bytes());
        put(&mut bytes, 6, &self.cid.to_le_bytes());
        put(&mut bytes, 8, &self.cid_num.to_le_bytes());
        put(&mut bytes, 10, &self.recon_cnt.to_le_bytes());
        put(&mut bytes, 12, &self.path);
        put(&mut bytes, 28, &self.session);
        bytes[44] = u8::from(self.first_conn);
        Caps::put(self.caps, &mut bytes, 45, 46, 48);
        bytes
    }

    /// What the bytes say.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        at_least(bytes, CONN_LEN)?;
        check_magic(u16_at(bytes, 2)?, u16_at(bytes, 4)?)?;
        let (cid, cid_num) = (u16_at(bytes, 6)?, u16_at(bytes, 8)?);
        if cid_num > MAX_CONNECTIONS || cid >= cid_num {
            return Err(WireError::Field("cid"));
        }
        Ok(ConnReq {
            cid,
            cid_num,
            recon_cnt: u16_at(bytes, 10)?,
            path: field(bytes, 12)?,
            session: field(bytes, 28)?,
            first_conn: bytes[44] & 1 != 0,
            caps: Caps::get(bytes, 45, 46, 48)?,
        })
    }
}

/// Adds to what an encoded request says that its client can do.
pub fn add_caps(request: &mut [u8; CONN_LEN], bits: u16) {
    let known = u16::from_le_bytes([request[46], request[47]]);
    put(request, 46, &(known | bits).to_le_bytes());
}

/// Only the major version counts (rtrs-srv.c, rtrs-clt.c).
fn check_magic(magic: u16, version: u16) -> Result<(), WireError> {
    if magic != MAGIC {
        return Err(WireError::Magic(magic));
    }
    if version >> 8 != VERSION >> 8 {
        return Err(WireError::Version(version));
    }
    Ok(())
}

/// `struct rtrs_msg_conn_rsp`: accepted, or refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnRsp {
    /// 0, or why not: Linux sends it negative, here it is positive.
    pub errno: u16,
    /// Chunks.
    pub queue_depth: u16,
    /// Most bytes of data in a request.
    pub max_io_size: u32,
    /// Bytes of a chunk beyond that.
    pub max_hdr_size: u32,
    /// [`NEW_RKEY`].
    pub flags: u32,
    /// What the server can do, and the session's instance.
    pub caps: Option<Caps>,
}

impl ConnRsp {
    /// The bytes of a refusal with this error number.
    #[must_use]
    pub fn refusal(errno: u16) -> [u8; CONN_LEN] {
        let rsp = ConnRsp {
            errno,
            ..ConnRsp::default()
        };
        rsp.encode()
    }

    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; CONN_LEN] {
        let mut bytes = [0; CONN_LEN];
        put(&mut bytes, 0, &MAGIC.to_le_bytes());
        put(&mut bytes, 2, &VERSION.to_le_bytes());
        put(&mut bytes, 4, &self.errno.wrapping_neg().to_le_bytes());
        put(&mut bytes, 6, &self.queue_depth.to_le_bytes());
        put(&mut bytes, 8, &self.max_io_size.to_le_bytes());
        put(&mut bytes, 12, &self.max_hdr_size.to_le_bytes());
        put(&mut bytes, 16, &self.flags.to_le_bytes());
        Caps::put(self.caps, &mut bytes, 20, 22, 24);
        bytes
    }

    /// What the bytes say.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        at_least(bytes, CONN_LEN)?;
        check_magic(u16_at(bytes, 0)?, u16_at(bytes, 2)?)?;
        Ok(ConnRsp {
            errno: u16_at(bytes, 4)?.wrapping_neg(),
            queue_depth: u16_at(bytes, 6)?,
            max_io_size: u32_at(bytes, 8)?,
            max_hdr_size: u32_at(bytes, 12)?,
            flags: u32_at(bytes, 16)?,
            caps: Caps::get(bytes, 20, 22, 24)?,
        })
    }
}

// ---- messages that are sent -------------------------------------------------

/// `struct rtrs_sg_desc`: memory of the sender that the receiver may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SgDesc {
    /// Where it begins, as its owner counts.
    pub addr: u64,
    /// The key (rkey, token) that opens it.
    pub key: u32,
    /// Bytes.
    pub len: u32,
}

impl SgDesc {
    fn encode(&self, into: &mut Vec<u8>) {
        into.extend(self.addr.to_le_bytes());
        into.extend(self.key.to_le_bytes());
        into.extend(self.len.to_le_bytes());
    }

    fn decode(bytes: &[u8], at: usize) -> Result<Self, WireError> {
        Ok(SgDesc {
            addr: u64_at(bytes, at)?,
            key: u32_at(bytes, at + 8)?,
            len: u32_at(bytes, at + 12)?,
        })
    }
}

/// What is sent on connection 0, or, for a key, with a response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// `struct rtrs_msg_info_req`: all connections are there, this is my name; where are the chunks?
    InfoReq {
        /// The session's name.
        name: String,
    },
    /// `struct rtrs_msg_info_rsp`: there.
    InfoRsp {
        /// Their memory, in order, some chunks in each.
        chunks: Vec<SgDesc>,
    },
    /// `struct rtrs_msg_rkey_rsp`: the next request in this chunk needs this key.
    RkeyRsp {
        /// The chunk.
        id: u16,
        /// Its key.
        key: u32,
    },
    /// Ours: let nothing more come by the incarnation of a path that has this epoch.
    Fence {
        /// Which.
        epoch: u64,
    },
    /// Ours: nothing will.
    FenceAck {
        /// Which.
        epoch: u64,
    },
    /// Ours, instead of [`Control::InfoRsp`]: this client may not have this session. The path is closed next.
    Refused {
        /// Why: a Linux error number.
        errno: u16,
    },
}

/// Is it a name that a session can have? (rtrs-clt.c `rtrs_clt_open` refuses `/` and `.`)
#[must_use]
pub fn is_session_name(name: &str) -> bool {
    let bad = |c: char| c == '/' || c == '.' || c.is_control();
    !name.is_empty() && name.len() < NAME_FIELD && !name.contains(bad)
}

impl Control {
    /// The bytes. A name is cut to what its field holds; more than 65535 descriptors are not told.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Control::InfoReq { name } => {
                bytes.extend(INFO_REQ.to_le_bytes());
                let cut = name.len().min(NAME_FIELD - 1);
                bytes.extend(&name.as_bytes()[..cut]);
                bytes.resize(INFO_REQ_LEN, 0);
            }
            Control::InfoRsp { chunks } => {
                let count = u16::try_from(chunks.len()).unwrap_or(u16::MAX);
                bytes.extend(INFO_RSP.to_le_bytes());
                bytes.extend(count.to_le_bytes());
                bytes.extend([0; 4]);
                let told = chunks.iter().take(usize::from(count));
                told.for_each(|desc| desc.encode(&mut bytes));
            }
            Control::RkeyRsp { id, key } => {
                bytes.extend(RKEY_RSP.to_le_bytes());
                bytes.extend(id.to_le_bytes());
                bytes.extend(key.to_le_bytes());
            }
            Control::Fence { epoch } => put_fence(&mut bytes, FENCE, *epoch),
            Control::FenceAck { epoch } => put_fence(&mut bytes, FENCE_ACK, *epoch),
            Control::Refused { errno } => put_fence(&mut bytes, REFUSED, u64::from(*errno)),
        }
        bytes
    }

    /// What the bytes say.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        match u16_at(bytes, 0)? {
            INFO_REQ => {
                at_least(bytes, INFO_REQ_LEN)?;
                let told = &bytes[2..2 + NAME_FIELD];
                let end = told.iter().position(|b| *b == 0).ok_or(WireError::Name)?;
                let name = std::str::from_utf8(&told[..end]).map_err(|_| WireError::Name)?;
                if !is_session_name(name) {
                    return Err(WireError::Name);
                }
                Ok(Control::InfoReq { name: name.into() })
            }
            INFO_RSP => {
                let count = usize::from(u16_at(bytes, 2)?);
                at_least(bytes, 8 + count * DESC_LEN)?;
                let descs = (0..count).map(|n| SgDesc::decode(bytes, 8 + n * DESC_LEN));
                let chunks = descs.collect::<Result<_, _>>()?;
                Ok(Control::InfoRsp { chunks })
            }
            RKEY_RSP => Ok(Control::RkeyRsp {
                id: u16_at(bytes, 2)?,
                key: u32_at(bytes, 4)?,
            }),
            FENCE => u64_at(bytes, 8).map(|epoch| Control::Fence { epoch }),
            FENCE_ACK => u64_at(bytes, 8).map(|epoch| Control::FenceAck { epoch }),
            REFUSED => u64_at(bytes, 8).map(|errno| Control::Refused {
                errno: u16::try_from(errno).unwrap_or(u16::MAX),
            }),
            kind => Err(WireError::Type(kind)),
        }
    }
}

fn put_fence(bytes: &mut Vec<u8>, kind: u16, epoch: u64) {
    bytes.extend(kind.to_le_bytes());
    bytes.extend([0; 6]);
    bytes.extend(epoch.to_le_bytes());
}

// ---- requests: headers that lie in a chunk ----------------------------------

/// Ours: which use of its permit a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replay {
    /// Counts the uses of the permit, from 1.
    pub generation: u64,
    /// [`REPLAYED`], [`SETTLE`].
    pub flags: u32,
}

/// The header of a request. In the chunk: data, user message, header; the immediate names where the header begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Bytes of the user message before the header.
    pub usr_len: u16,
    /// Read or write.
    pub kind: RequestKind,
    /// Between two ends that can replay.
    pub replay: Option<Replay>,
}

/// What a request wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// `struct rtrs_msg_rdma_write`: the data lies at the chunk's beginning.
    Write,
    /// `struct rtrs_msg_rdma_read`: as many bytes are wanted as lie before the user message.
    Read {
        /// [`NEED_INVAL`].
        flags: u16,
        /// Where to put them: none or one (rtrs-srv.c takes no more).
        into: Option<SgDesc>,
    },
}

impl Request {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAX_REQUEST_HEADER);
        self.append(&mut bytes);
        bytes
    }

    /// Appends the bytes.
    pub fn append(&self, bytes: &mut Vec<u8>) {
        match self.kind {
            RequestKind::Write => {
                bytes.extend(WRITE.to_le_bytes());
                bytes.extend(self.usr_len.to_le_bytes());
            }
            RequestKind::Read { flags, into } => {
                bytes.extend(READ.to_le_bytes());
                bytes.extend(self.usr_len.to_le_bytes());
                bytes.extend(flags.to_le_bytes());
                bytes.extend(u16::from(into.is_some()).to_le_bytes());
                if let Some(desc) = into {
                    desc.encode(bytes);
                }
            }
        }
        if let Some(replay) = self.replay {
            bytes.extend(replay.generation.to_le_bytes());
            bytes.extend(replay.flags.to_le_bytes());
            bytes.extend([0; 4]);
        }
    }

    /// What the bytes say, which may go on behind the header. `can_replay`: is our part there?
    pub fn decode(bytes: &[u8], can_replay: bool) -> Result<Self, WireError> {
        let (kind, end) = match u16_at(bytes, 0)? {
            WRITE => (RequestKind::Write, WRITE_LEN),
            READ => {
                let flags = u16_at(bytes, 4)?;
                let into = match u16_at(bytes, 6)? {
                    0 => None,
                    1 => Some(SgDesc::decode(bytes, READ_LEN)?),
                    _ => return Err(WireError::Field("sg_cnt")),
                };
                let end = READ_LEN + into.map_or(0, |_| DESC_LEN);
                (RequestKind::Read { flags, into }, end)
            }
            other => return Err(WireError::Type(other)),
        };
        let replay = if can_replay {
            at_least(bytes, end + REPLAY_LEN)?;
            let generation = u64_at(bytes, end)?;
            if generation == 0 {
                return Err(WireError::Field("generation"));
            }
            let flags = u32_at(bytes, end + 8)?;
            Some(Replay { generation, flags })
        } else {
            None
        };
        Ok(Request {
            usr_len: u16_at(bytes, 2)?,
            kind,
            replay,
        })
    }
}
