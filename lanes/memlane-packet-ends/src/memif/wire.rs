//! Messages of memif's control channel: 128 bytes each, little endian (docs/formats/memif.md).
//!
//! Layouts and numbers: libmemif's `memif.h` (`FDio/vpp`, `extras/libmemif/src`, version 2.0) and DPDK's
//! (`drivers/net/memif/memif.h`), which agree.

use core::fmt;

/// Bytes of each message.
pub const LEN: usize = 128;
/// `MEMIF_VERSION`: 2.0.
pub const VERSION: u16 = 0x0200;
/// `MEMIF_INTERFACE_MODE_ETHERNET`.
pub const MODE_ETHERNET: u8 = 0;
/// `MEMIF_MSG_ADD_RING_FLAG_S2M`.
pub const RING_S2M: u16 = 1;

/// Bytes of an interface's name (`memif.h`).
pub const NAME: usize = 32;
/// Bytes of a secret.
pub const SECRET: usize = 24;
/// Bytes of a reason.
pub const REASON: usize = 96;

/// Text in a field of fixed length, which ends with the first zero, if there is one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// As much of `text` as leaves room for a zero, which other implementations need.
    pub fn new(text: &str) -> Text<N> {
        let mut bytes = [0; N];
        let mut n = text.len().min(N.saturating_sub(1));
        while !text.is_char_boundary(n) {
            n -= 1;
        }
        bytes[..n].copy_from_slice(&text.as_bytes()[..n]);
        Text(bytes)
    }

    /// Without what follows the first zero.
    pub fn bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(N);
        &self.0[..end]
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    /// What another process wrote: nothing that a terminal would obey.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes()
            .iter()
            .map(|byte| match byte {
                0x20..=0x7e => char::from(*byte),
                _ => '?',
            })
            .try_for_each(|c| fmt::Write::write_char(f, c))
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// `memif_msg_hello_t`, from the server: what it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its program.
    pub name: Text<NAME>,
    /// The versions that it speaks: from this …
    pub min_version: u16,
    /// … to this one.
    pub max_version: u16,
    /// The highest number of a region.
    pub max_region: u16,
    /// The highest number of a ring from server to client.
    pub max_m2s: u16,
    /// The highest number of a ring from client to server.
    pub max_s2m: u16,
    /// Rings have at most 2^this slots.
    pub max_log2: u8,
}

/// `memif_msg_init_t`, from the client: to whom it wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    /// The version that is spoken from now on.
    pub version: u16,
    /// The interface, of those at this socket.
    pub id: u32,
    /// [`MODE_ETHERNET`], or what we don't speak.
    pub mode: u8,
    /// A word that lets one in; nothing: none.
    pub secret: Text<SECRET>,
    /// Its program.
    pub name: Text<NAME>,
}

/// `memif_msg_add_ring_t`, with an eventfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddRing {
    /// From client to server?
    pub s2m: bool,
    /// Its number, in its direction.
    pub index: u16,
    /// Where it lies.
    pub region: u16,
    /// From which byte on.
    pub offset: u32,
    /// It has 2^this slots.
    pub log2: u8,
    /// Bytes before each buffer that are the client's own.
    pub private: u16,
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// The last one was taken.
    Ack,
    /// The server's first.
    Hello(Hello),
    /// The client's first.
    Init(Init),
    /// A region and, beside the message, its descriptor.
    AddRegion {
        /// Counted from 0.
        index: u16,
        /// Bytes.
        size: u64,
    },
    /// A ring and, beside the message, its doorbell.
    AddRing(AddRing),
    /// All is there: the client's interface.
    Connect(Text<NAME>),
    /// Frames may go: the server's interface.
    Connected(Text<NAME>),
    /// It is over.
    Disconnect {
        /// A number, which has no meaning that both would know.
        code: u32,
        /// Why.
        reason: Text<REASON>,
    },
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// Another length.
    Length(usize),
    /// No such kind.
    Kind(u16),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Length(len) => write!(f, "{len} bytes are no message of memif"),
            WireError::Kind(kind) => write!(f, "memif has no message of kind {kind}"),
        }
    }
}

impl core::error::Error for WireError {}

/// Writes fields one after another: the structures are packed.
struct Writer {
    bytes: [u8; LEN],
    at: usize,
}

impl Writer {
    fn put(&mut self, field: &[u8]) -> &mut Writer {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
        self
    }
}

/// Reads them. All structures are shorter than a message.
struct Reader<'a>(&'a [u8; LEN], usize);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.0[self.1..self.1 + N]);
        self.1 += N;
        field
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn text<const N: usize>(&mut self) -> Text<N> {
        Text(self.take())
    }
}

impl Message {
    fn kind(&self) -> u16 {
        match self {
            Message::Ack => 1,
            Message::Hello(_) => 2,
            Message::Init(_) => 3,
            Message::AddRegion { .. } => 4,
            Message::AddRing(_) => 5,
            Message::Connect(_) => 6,
            Message::Connected(_) => 7,
            Message::Disconnect { .. } => 8,
        }
    }

    /// As it goes over the socket; what a kind does not use is zero.
    pub fn encode(&self) -> [u8; LEN] {
        let mut out = Writer {
            bytes: [0; LEN],
            at: 0,
        };
        out.put(&self.kind().to_le_bytes());
        match self {
            Message::Ack => {}
            Message::Hello(hello) => {
                out.put(&hello.name.0)
                    .put(&hello.min_version.to_le_bytes())
                    .put(&hello.max_version.to_le_bytes())
                    .put(&hello.max_region.to_le_bytes())
                    .put(&hello.max_m2s.to_le_bytes())
                    .put(&hello.max_s2m.to_le_bytes())
                    .put(&[hello.max_log2]);
            }
            Message::Init(init) => {
                out.put(&init.version.to_le_bytes())
                    .put(&init.id.to_le_bytes())
                    .put(&[init.mode])
                    .put(&init.secret.0)
                    .put(&init.name.0);
            }
            Message::AddRegion { index, size } => {
                out.put(&index.to_le_bytes()).put(&size.to_le_bytes());
            }
            Message::AddRing(ring) => {
                let flags = if ring.s2m { RING_S2M } else { 0 };
                out.put(&flags.to_le_bytes())
                    .put(&ring.index.to_le_bytes())
                    .put(&ring.region.to_le_bytes())
                    .put(&ring.offset.to_le_bytes())
                    .put(&[ring.log2])
                    .put(&ring.private.to_le_bytes());
            }
            Message::Connect(name) | Message::Connected(name) => {
                out.put(&name.0);
            }
            Message::Disconnect { code, reason } => {
                out.put(&code.to_le_bytes()).put(&reason.0);
            }
        }
        out.bytes
    }

    /// Reads a message. What a kind does not use may be anything: others leave there what lay on their stack.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(bytes: &[u8]) -> Result<Message, WireError> {
        let bytes: &[u8; LEN] = bytes
            .try_into()
            .map_err(|_| WireError::Length(bytes.len()))?;
        let mut from = Reader(bytes, 0);
        Ok(match from.u16() {
            1 => Message::Ack,
            2 => Message::Hello(Hello {
                name: from.text(),
                min_version: from.u16(),
                max_version: from.u16(),
                max_region: from.u16(),
                max_m2s: from.u16(),
                max_s2m: from.u16(),
                max_log2: from.u8(),
            }),
            3 => Message::Init(Init {
                version: from.u16(),
                id: from.u32(),
                mode: from.u8(),
                secret: from.text(),
                name: from.text(),
            }),
            4 => Message::AddRegion {
                index: from.u16(),
                size: u64::from_le_bytes(from.take()),
            },
            5 => Message::AddRing(AddRing {
                s2m: from.u16() & RING_S2M != 0,
                index: from.u16(),
                region: from.u16(),
                offset: from.u32(),
                log2: from.u8(),
                private: from.u16(),
            }),
            6 => Message::Connect(from.text()),
            7 => Message::Connected(from.text()),
            8 => Message::Disconnect {
                code: from.u32(),
                reason: from.text(),
            },
            kind => return Err(WireError::Kind(kind)),
        })
    }
}
