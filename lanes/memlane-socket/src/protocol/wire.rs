//! The messages of the handshake (SMC's CLC: Proposal, Accept, Confirm, Decline).
//!
//! All four have one fixed layout: big endian, 448 bytes. `docs/formats/clc.md` has the table and an example of each
//! message. They travel as AF_UNIX datagrams, never inside the TCP stream, so they need no padding or framing.
//!
//! This module only converts between values and bytes.

// Indices and descriptor numbers are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

use crate::config::{EID_LEN, EIDS};
use crate::faults;
use memlane_sys::sock::{Addr, Tuple};

/// The length of every message, in bytes.
pub const LEN: usize = 448;
/// The first four bytes (SMC has "SMCD" in EBCDIC).
pub const EYECATCHER: [u8; 4] = *b"MLNE";
/// The version of this layout.
pub const VERSION: u8 = 1;
/// SMC's channel id of loopback devices (`SMC_LO_RESERVED_CHID`, net/smc/smc_loopback.h).
pub const CHID: u16 = 0xFFFF;

/// The types of messages, numbered as SMC's (net/smc/smc_clc.h `SMC_CLC_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MessageKind {
    /// Client: offers to use memory.
    Proposal = 1,
    /// Server: agrees, and offers its DMB.
    Accept = 2,
    /// Client: offers its DMB; its side of the lane is open.
    Confirm = 3,
    /// Either side: refuses, with a reason.
    Decline = 4,
}

/// One message of the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The type.
    pub kind: MessageKind,
    /// Sender's process id (SMC's GID): random per process.
    pub gid: u64,
    /// Boot id of the sender's host.
    pub boot: [u64; 2],
    /// Decline: reason code.
    pub reason: u32,
    /// The connection as the sender sees it.
    pub tuple: Tuple,
    /// Accept, Confirm: token of the sender's DMB.
    pub token: u64,
    /// Accept, Confirm: the chunk that holds that DMB.
    pub chunk: u32,
    /// Accept, Confirm: the slot of that DMB in the chunk.
    pub slot: u16,
    /// Accept, Confirm: the size of the DMB's ring, in bytes.
    pub ring_size: u32,
    /// Sender's id of the connection.
    pub id: u64,
    /// The receiver's id of the connection, as the receiver sent it (0 in a Proposal).
    pub echo: u64,
    /// Number of `eids`.
    pub eid_count: u8,
    /// Proposal: sender's EIDs; Accept: the chosen one.
    pub eids: [[u8; EID_LEN]; EIDS],
    /// What the sender can do and wants: [`OWN_RINGS`], [`CAN_COPY`], [`WANTS_COPY`].
    pub features: u8,
    /// Accept, Confirm: the size of a ring that lies in a file of its own, in bytes; 0: the ring lies in the chunk.
    pub own_ring: u32,
    /// Accept, Confirm: the offset of that ring in its file, in bytes.
    pub own_ring_at: u64,
}

/// Bit of [`Message::features`]: can send into rings that lie in a file of their own.
pub const OWN_RINGS: u8 = 1;
/// Bit of [`Message::features`]: can send through a buffer of its own and a device (mode `copy`).
pub const CAN_COPY: u8 = 2;
/// Bit of [`Message::features`]: wants both directions of this connection to be sent in mode `copy`.
pub const WANTS_COPY: u8 = 4;
/// Bit of [`Message::features`]: takes Proposals at its mailbox too.
pub const TAKES_MAIL: u8 = 8;
/// Bit of [`Message::features`]: keeps the end of a life line that an Accept brings.
pub const KEEPS_LIFE_LINE: u8 = 16;
/// Bit of [`Message::features`], in an Accept: its last descriptor is one end of a life line between the two processes.
pub const LIFE_LINE_COMES: u8 = 32;

/// Bit of [`Message::features`]: hears what is said over the life line, too.
pub const HEARS_LIFE_LINE: u8 = 64;
/// Bit of [`Message::features`], in an Accept or Confirm: behind the descriptor of the chunk comes that of its bell.
pub const BELL_COMES: u8 = 128;

/// Why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Shorter or longer than `LEN`.
    Length,
    /// No eye catcher at the front or the end.
    EyeCatcher,
    /// Another version of the protocol.
    Version,
    /// Unknown type, channel or count.
    Field,
}

impl Message {
    /// A message of this type with all other fields empty.
    pub fn new(kind: MessageKind, tuple: Tuple) -> Message {
        Message {
            kind,
            gid: 0,
            boot: [0; 2],
            reason: 0,
            tuple,
            token: 0,
            chunk: 0,
            slot: 0,
            ring_size: 0,
            id: 0,
            echo: 0,
            eid_count: 0,
            eids: [[b' '; EID_LEN]; EIDS],
            features: 0,
            own_ring: 0,
            own_ring_at: 0,
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> [u8; LEN] {
        let mut b = [0u8; LEN];
        b[0..4].copy_from_slice(&EYECATCHER);
        b[4] = self.kind as u8;
        b[5] = faults::wire_version(VERSION);
        b[6..8].copy_from_slice(&(LEN as u16).to_be_bytes());
        b[8..16].copy_from_slice(&self.gid.to_be_bytes());
        b[16..24].copy_from_slice(&self.boot[0].to_be_bytes());
        b[24..32].copy_from_slice(&self.boot[1].to_be_bytes());
        b[32..34].copy_from_slice(&CHID.to_be_bytes());
        b[36..40].copy_from_slice(&self.reason.to_be_bytes());
        put_addr(&mut b[40..58], &self.tuple.local);
        put_addr(&mut b[58..76], &self.tuple.remote);
        b[80..88].copy_from_slice(&self.token.to_be_bytes());
        b[88..92].copy_from_slice(&self.chunk.to_be_bytes());
        b[92..94].copy_from_slice(&self.slot.to_be_bytes());
        b[96..100].copy_from_slice(&self.ring_size.to_be_bytes());
        b[104..112].copy_from_slice(&self.id.to_be_bytes());
        b[112..120].copy_from_slice(&self.echo.to_be_bytes());
        b[120] = self.eid_count;
        b[121] = self.features;
        b[384..388].copy_from_slice(&self.own_ring.to_be_bytes());
        b[392..400].copy_from_slice(&self.own_ring_at.to_be_bytes());
        for (i, eid) in self.eids.iter().enumerate() {
            b[128 + i * EID_LEN..128 + (i + 1) * EID_LEN].copy_from_slice(eid);
        }
        b[LEN - 4..].copy_from_slice(&EYECATCHER);
        b
    }

    /// Decodes a message.
    pub fn decode(b: &[u8]) -> Result<Message, Malformed> {
        let b: &[u8; LEN] = b.try_into().map_err(|_| Malformed::Length)?;
        if b[0..4] != EYECATCHER || b[LEN - 4..] != EYECATCHER {
            return Err(Malformed::EyeCatcher);
        }
        // The fields that a Decline needs have the same offsets in every version.
        if b[5] != faults::wire_version(VERSION) && b[4] != MessageKind::Decline as u8 {
            return Err(Malformed::Version);
        }
        let kind = match b[4] {
            1 => MessageKind::Proposal,
            2 => MessageKind::Accept,
            3 => MessageKind::Confirm,
            4 => MessageKind::Decline,
            _ => return Err(Malformed::Field),
        };
        if usize::from(be16(b, 6)) != LEN || be16(b, 32) != CHID || usize::from(b[120]) > EIDS {
            return Err(Malformed::Field);
        }
        let mut eids = [[b' '; EID_LEN]; EIDS];
        for (i, eid) in eids.iter_mut().enumerate() {
            eid.copy_from_slice(&b[128 + i * EID_LEN..128 + (i + 1) * EID_LEN]);
        }
        Ok(Message {
            kind,
            gid: be64(b, 8),
            boot: [be64(b, 16), be64(b, 24)],
            reason: be32(b, 36),
            tuple: Tuple {
                local: addr(b, 40),
                remote: addr(b, 58),
            },
            token: be64(b, 80),
            chunk: be32(b, 88),
            slot: be16(b, 92),
            ring_size: be32(b, 96),
            id: be64(b, 104),
            echo: be64(b, 112),
            eid_count: b[120],
            eids,
            features: b[121],
            own_ring: be32(b, 384),
            own_ring_at: be64(b, 392),
        })
    }

    /// Decodes what every version has in common: enough to decline the message.
    pub fn of_other_version(b: &[u8]) -> Result<Message, Malformed> {
        let mut b: [u8; LEN] = b.try_into().map_err(|_| Malformed::Length)?;
        b[5] = faults::wire_version(VERSION);
        Message::decode(&b)
    }

    /// The EIDs in use.
    pub fn eids(&self) -> &[[u8; EID_LEN]] {
        &self.eids[..usize::from(self.eid_count).min(EIDS)]
    }
}

fn put_addr(out: &mut [u8], a: &Addr) {
    out[..16].copy_from_slice(&a.ip);
    out[16..18].copy_from_slice(&a.port.to_be_bytes());
}

fn addr(b: &[u8; LEN], at: usize) -> Addr {
    let mut ip = [0u8; 16];
    ip.copy_from_slice(&b[at..at + 16]);
    Addr {
        ip,
        port: be16(b, at + 16),
    }
}

fn be16(b: &[u8; LEN], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn be32(b: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn be64(b: &[u8; LEN], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}

/// The abstract name at which the accepting side of a connection listens for a Proposal. It is made of the connection's
/// addresses as the *connecting* side sees them.
pub fn rendezvous_name(client_view: &Tuple) -> [u8; 36 + 10] {
    let mut n = [0u8; 46];
    n[..10].copy_from_slice(b"memlane/1/");
    put_addr(&mut n[10..28], &client_view.local);
    put_addr(&mut n[28..46], &client_view.remote);
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Message {
        let local = Addr {
            ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1],
            port: 40000,
        };
        let remote = Addr { port: 80, ..local };
        let mut m = Message::new(MessageKind::Accept, Tuple { local, remote });
        (m.gid, m.boot, m.token, m.chunk, m.slot) =
            (0x0102_0304_0506_0708, [1, 2], 0xdead_beef, 3, 63);
        (m.ring_size, m.id, m.echo, m.eid_count) = (1 << 18, 5, 6, 1);
        m.eids[0][..4].copy_from_slice(b"BLUE");
        m
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        let m = sample();
        assert_eq!(Message::decode(&m.encode()), Ok(m));
    }

    #[test]
    fn truncated_oversized_and_foreign_bytes_are_refused() {
        let good = sample().encode();
        assert_eq!(Message::decode(&good[..LEN - 1]), Err(Malformed::Length));
        assert_eq!(
            Message::decode(&[good.as_slice(), &[0]].concat()),
            Err(Malformed::Length)
        );
        let change = |at: usize, v: u8| {
            let mut b = good;
            b[at] = v;
            Message::decode(&b)
        };
        assert_eq!(change(0, 0), Err(Malformed::EyeCatcher));
        assert_eq!(change(LEN - 1, 0), Err(Malformed::EyeCatcher));
        assert_eq!(change(5, 9), Err(Malformed::Version));
        assert_eq!(change(4, 7), Err(Malformed::Field));
        assert_eq!(change(120, 9), Err(Malformed::Field));
        assert_eq!(change(32, 0), Err(Malformed::Field));
    }

    #[test]
    fn a_ring_of_its_own_is_told_with_its_place() {
        let mut m = sample();
        (m.features, m.own_ring, m.own_ring_at) = (OWN_RINGS, 1 << 21, 0x0102_0304_0506_0000);
        let bytes = m.encode();
        assert_eq!(bytes[121], 1);
        assert_eq!(bytes[384..388], [0, 0x20, 0, 0]);
        assert_eq!(bytes[392..400], [1, 2, 3, 4, 5, 6, 0, 0]);
        assert_eq!(Message::decode(&bytes), Ok(m));
    }

    const PAGE: &str = include_str!("../../../../docs/formats/clc.md");

    /// The bytes that the page shows in the block after `title`, laid over what the page says of the other bytes.
    fn vector<const N: usize>(title: &str, mut bytes: [u8; N]) -> [u8; N] {
        let (_, after) = PAGE.split_once(title).expect("a vector of this title");
        let block = after.split("```").nth(1).expect("a block");
        for line in block.trim().lines().filter(|l| !l.starts_with('…')) {
            let (at, hex) = line.split_once("  ").expect("an offset, two blanks, bytes");
            let at = usize::from_str_radix(at, 16).unwrap();
            for (i, byte) in hex.split(' ').enumerate() {
                bytes[at + i] = u8::from_str_radix(byte, 16).unwrap();
            }
        }
        bytes
    }

    /// "All bytes that are not shown between 0x0080 and 0x017f are blanks, all others zero."
    fn message(title: &str) -> [u8; LEN] {
        let mut rest = [0u8; LEN];
        rest[0x80..=0x17f].fill(b' ');
        vector(title, rest)
    }

    fn client_view() -> Tuple {
        sample().tuple
    }

    fn from_client(kind: MessageKind) -> Message {
        let mut m = Message::new(kind, client_view());
        m.gid = 0x0102_0304_0506_0708;
        m.boot = [0x1111_2222_3333_4444, 0x5555_6666_7777_8888];
        m.id = 0x0000_0001_0000_0005;
        m
    }

    fn from_server(kind: MessageKind) -> Message {
        let mut m = from_client(kind);
        m.tuple = client_view().mirrored();
        m.gid = 0x1112_1314_1516_1718;
        (m.id, m.echo) = (0x0000_0002_0000_0003, m.id);
        m
    }

    fn with_eid(mut m: Message) -> Message {
        m.eid_count = 1;
        m.eids[0][..4].copy_from_slice(b"BLUE");
        m
    }

    #[test]
    fn each_kind_of_message_is_byte_for_byte_as_its_page_shows_it() {
        let mut accept = with_eid(from_server(MessageKind::Accept));
        (accept.token, accept.chunk, accept.slot) = (0x0123_4567_89ab_cdef, 0, 63);
        accept.ring_size = 262_144;
        let mut confirm = from_client(MessageKind::Confirm);
        confirm.echo = 0x0000_0002_0000_0003;
        (confirm.token, confirm.chunk, confirm.slot) = (0xfedc_ba98_7654_3210, 2, 7);
        confirm.ring_size = 262_144;
        let mut decline = from_server(MessageKind::Decline);
        decline.reason = memlane_core::reason::Reason::NO_EID.0;
        for (title, m) in [
            ("\nProposal, ", with_eid(from_client(MessageKind::Proposal))),
            ("\nAccept, ", accept),
            ("\nConfirm, ", confirm),
            ("\nDecline by ", decline),
        ] {
            let shown = message(title);
            assert_eq!(m.encode(), shown, "{title}");
            assert_eq!(Message::decode(&shown), Ok(m), "{title}");
        }
    }

    #[test]
    fn the_rendezvous_name_is_as_its_page_shows_it() {
        let shown = vector("\nRendezvous name of", [0xEEu8; 46]);
        assert_eq!(rendezvous_name(&client_view()), shown);
    }
}
