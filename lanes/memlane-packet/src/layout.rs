//! Everything that lies in memory which both ends have mapped: ring pages, slots, grant entries, and where they are.
//!
//! Layouts and numbers are Xen's public headers', so that a reader of netif knows them: `io/ring.h` (ring page),
//! `io/netif.h` (slots, flags, status), `grant_table.h` (version 1 entries). memlane's own additions lie in bits that
//! these leave unused, and say so. See `docs/formats/netif.md`.
//!
//! | word | written by | read by | ordering |
//! |---|---|---|---|
//! | `req_prod` | front | back | release/acquire: request slots below it can be read |
//! | `rsp_prod` | back | front | release/acquire: response slots below it can be read, and their requests are over |
//! | `req_event`, `rsp_event` | back; front | the other | full fence on both sides against the producer index |
//! | slots | front (requests), back (responses, after it has copied the request) | the other | by the indices |
//! | grant entries | front | back, once per use | acquire: what the entry names was ready before it |
//!
//! Both ends can write all of it. Neither believes a word that it wrote itself.

use memlane_core::sync::{Cpu, Words};

#[cfg(not(target_endian = "little"))]
compile_error!("slots are little endian, and are read as words of the CPU");

/// Bytes of a page: what a grant of order 0 names.
pub const PAGE: usize = 4096;
/// Bytes before the slots of a ring: 16 + 4 + 44 (`struct name##_sring`, `io/ring.h`).
pub const RING_HEADER: usize = 64;
/// Words of a slot of the tx ring: 12 octets (`netif_tx_request`).
pub const TX_WORDS: usize = 3;
/// Words of a slot of the rx ring: 8 octets (`netif_rx_request`, `netif_rx_response`).
pub const RX_WORDS: usize = 2;

/// Fewest slots, as a power of two: more than a packet of [`SLOTS_MAX`] fragments and an extra slot takes.
pub const RING_LOG2_MIN: u8 = 5;
/// netif's own: the largest power of two of tx slots in a page.
pub const RING_LOG2_DEFAULT: u8 = 8;
/// Most: memlane's limit, a sixteenth of what 16-bit ids allow.
pub const RING_LOG2_MAX: u8 = 12;
/// Fragments of one packet, at most (`XEN_NETIF_NR_SLOTS_MIN`: what each back must accept, and ours does no more).
pub const SLOTS_MAX: usize = 18;
/// Bytes of one packet, at most (`XEN_NETIF_MAX_TX_SIZE`).
pub const PACKET_MAX: usize = 0xFFFF;
/// Bytes of one packet, at least: an Ethernet header (netback's rule: `ETH_HLEN`).
pub const PACKET_MIN: usize = 14;
/// Largest order of a grant: 2^4 pages are what a 16-bit offset reaches.
pub const ORDER_MAX: u8 = 4;
/// Queues of one link, at most: memlane's limit, so that all descriptors go in one message.
pub const QUEUES_MAX: u16 = 16;

/// The head of a ring page.
#[repr(C)]
pub struct RingWords<W: Words> {
    /// Requests published, ever.
    pub req_prod: W::U32,
    /// The back wants a doorbell when this request comes.
    pub req_event: W::U32,
    /// Responses published, ever.
    pub rsp_prod: W::U32,
    /// The front wants a doorbell when this response comes.
    pub rsp_event: W::U32,
    /// `pvt` and `__pad`: zero, and not read.
    pub unused: [W::U32; 12],
}

/// `NETTXF_csum_blank`, `NETRXF_csum_blank` are 1 and 2: the two directions differ.
pub const TX_CSUM_BLANK: u16 = 1;
/// `NETTXF_data_validated`.
pub const TX_DATA_VALIDATED: u16 = 2;
/// `NETTXF_more_data`, `NETRXF_more_data`: the packet goes on in the next slot.
pub const MORE_DATA: u16 = 4;
/// `NETTXF_extra_info`, `NETRXF_extra_info`: an extra slot follows.
pub const EXTRA_INFO: u16 = 8;
/// `NETRXF_data_validated`.
pub const RX_DATA_VALIDATED: u16 = 1;
/// `NETRXF_csum_blank`.
pub const RX_CSUM_BLANK: u16 = 2;

/// `NETIF_RSP_OKAY`.
pub const RSP_OKAY: i16 = 0;
/// `NETIF_RSP_NULL`: the answer to a slot that held extra info.
pub const RSP_NULL: i16 = 1;
/// `NETIF_RSP_ERROR`.
pub const RSP_ERROR: i16 = -1;
/// `NETIF_RSP_DROPPED`.
pub const RSP_DROPPED: i16 = -2;

/// `XEN_NETIF_EXTRA_TYPE_GSO`, the only one that is ours.
pub const EXTRA_GSO: u8 = 1;
/// `XEN_NETIF_EXTRA_FLAG_MORE`.
pub const EXTRA_MORE: u8 = 1;

/// `netif_tx_request`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxRequest {
    /// Which grant.
    pub gref: u32,
    /// First byte in it.
    pub offset: u16,
    /// `TX_…`, `MORE_DATA`, `EXTRA_INFO`.
    pub flags: u16,
    /// Comes back in the response.
    pub id: u16,
    /// First slot: bytes of the packet. Later ones: bytes of this fragment.
    pub size: u16,
}

impl TxRequest {
    /// As it lies in the slot.
    #[inline]
    pub fn words(self) -> [u32; TX_WORDS] {
        [
            self.gref,
            pair(self.offset, self.flags),
            pair(self.id, self.size),
        ]
    }

    /// Out of a slot.
    #[inline]
    pub fn from_words(words: [u32; TX_WORDS]) -> TxRequest {
        TxRequest {
            gref: words[0],
            offset: low(words[1]),
            flags: high(words[1]),
            id: low(words[2]),
            size: high(words[2]),
        }
    }
}

/// `netif_tx_response`; the rest of its slot is left as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxResponse {
    /// The request's.
    pub id: u16,
    /// `RSP_…`.
    pub status: i16,
}

impl TxResponse {
    /// As it lies in the slot.
    #[inline]
    pub fn words(self) -> [u32; 1] {
        [pair(self.id, self.status.cast_unsigned())]
    }

    /// Out of a slot.
    #[inline]
    pub fn from_words(words: [u32; 1]) -> TxResponse {
        TxResponse {
            id: low(words[0]),
            status: high(words[0]).cast_signed(),
        }
    }
}

/// `netif_rx_request`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxRequest {
    /// Comes back in the response, unless that holds extra info.
    pub id: u16,
    /// Which grant.
    pub gref: u32,
}

impl RxRequest {
    /// As it lies in the slot.
    #[inline]
    pub fn words(self) -> [u32; RX_WORDS] {
        [pair(self.id, 0), self.gref]
    }

    /// Out of a slot.
    #[inline]
    pub fn from_words(words: [u32; RX_WORDS]) -> RxRequest {
        RxRequest {
            id: low(words[0]),
            gref: words[1],
        }
    }
}

/// `netif_rx_response`: in the slot of the request that it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxResponse {
    /// The request's.
    pub id: u16,
    /// First byte in the granted buffer.
    pub offset: u16,
    /// `RX_…`, `MORE_DATA`, `EXTRA_INFO`.
    pub flags: u16,
    /// Negative: `RSP_…`. Else bytes of this fragment: up to 32767, so a larger buffer is not filled further.
    pub status: i16,
}

impl RxResponse {
    /// As it lies in the slot.
    #[inline]
    pub fn words(self) -> [u32; RX_WORDS] {
        [
            pair(self.id, self.offset),
            pair(self.flags, self.status.cast_unsigned()),
        ]
    }

    /// Out of a slot.
    #[inline]
    pub fn from_words(words: [u32; RX_WORDS]) -> RxResponse {
        RxResponse {
            id: low(words[0]),
            offset: high(words[0]),
            flags: low(words[1]),
            status: high(words[1]).cast_signed(),
        }
    }
}

/// `netif_extra_info` with `u.gso`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtraGso {
    /// `EXTRA_GSO`; other types are not negotiated here.
    pub kind: u8,
    /// `EXTRA_MORE`.
    pub flags: u8,
    /// Bytes of each segment's payload, at most.
    pub size: u16,
    /// `XEN_NETIF_GSO_TYPE_…`: 0 none, 1 TCP over IPv4, 2 TCP over IPv6.
    pub gso: u8,
    /// `XEN_NETIF_GSO_FEAT_…`: none is defined.
    pub features: u16,
}

impl ExtraGso {
    /// As it lies in the first eight octets of a slot.
    #[inline]
    pub fn words(self) -> [u32; 2] {
        let head = u16::from_le_bytes([self.kind, self.flags]);
        [
            pair(head, self.size),
            pair(u16::from(self.gso), self.features),
        ]
    }

    /// Out of a slot.
    #[inline]
    pub fn from_words(words: [u32; 2]) -> ExtraGso {
        let [kind, flags] = low(words[0]).to_le_bytes();
        let [gso, _] = low(words[1]).to_le_bytes();
        ExtraGso {
            kind,
            flags,
            size: high(words[0]),
            gso,
            features: high(words[1]),
        }
    }
}

/// `GTF_type_mask`.
pub const GTF_TYPE: u16 = 3;
/// `GTF_permit_access`.
pub const GTF_PERMIT_ACCESS: u16 = 1;
/// `GTF_readonly`.
pub const GTF_READONLY: u16 = 1 << 2;
/// memlane's, in bits that Xen leaves unused: 12 to 15 hold the order, for a grant of 2^order pages.
pub const GTF_ORDER_SHIFT: u32 = 12;

/// `grant_entry_v1`: eight octets, read and written as one word, so that it is never torn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantEntry {
    /// `GTF_…`.
    pub flags: u16,
    /// Xen: the domain that may. Here, where there is one other: the region that the frame lies in.
    pub region: u16,
    /// Number of the first page in the region.
    pub frame: u32,
}

impl GrantEntry {
    /// As it lies in the table.
    #[inline]
    pub fn word(self) -> u64 {
        u64::from(pair(self.flags, self.region)) | u64::from(self.frame) << 32
    }

    /// Out of the table.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // that is meant: the low and the high half
    pub fn from_word(word: u64) -> GrantEntry {
        let head = word as u32;
        GrantEntry {
            flags: low(head),
            region: high(head),
            frame: (word >> 32) as u32,
        }
    }

    /// Bytes that a grant of this order has.
    #[inline]
    pub fn bytes(self) -> usize {
        PAGE << (self.flags >> GTF_ORDER_SHIFT)
    }
}

/// Where the parts of a queue lie in the control memory: the same sum at both ends, of numbers that were negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLayout {
    /// Slots of each ring.
    pub slots: u32,
    /// Entries of the grant table.
    pub grants: u32,
    /// The tx ring, from the queue's beginning (which has the grant table).
    pub tx_at: usize,
    /// The rx ring.
    pub rx_at: usize,
    /// Bytes of a queue.
    pub len: usize,
}

impl QueueLayout {
    /// `None`: no such ring, or a table of a size that there is not.
    pub fn new(ring_log2: u8, grants: u32) -> Option<QueueLayout> {
        let sizes = RING_LOG2_MIN..=RING_LOG2_MAX;
        if !sizes.contains(&ring_log2) || grants < 2 << ring_log2 || grants > GRANTS_MAX {
            return None;
        }
        let slots = 1_u32 << ring_log2;
        let tx_at = (grants as usize * 8).next_multiple_of(PAGE);
        let ring = |words: usize| (RING_HEADER + slots as usize * words * 4).next_multiple_of(PAGE);
        let rx_at = tx_at + ring(TX_WORDS);
        Some(QueueLayout {
            slots,
            grants,
            tx_at,
            rx_at,
            len: rx_at + ring(RX_WORDS),
        })
    }
}

/// Entries of a queue's grant table, at most: as many as Xen's default 32 frames of 512 (`gnttab_max_frames`).
pub const GRANTS_MAX: u32 = 32 * 512;

#[inline]
fn pair(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // that is meant
fn low(word: u32) -> u16 {
    word as u16
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // that is meant
fn high(word: u32) -> u16 {
    (word >> 16) as u16
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<RingWords<Cpu>>() == RING_HEADER);
    assert!(align_of::<RingWords<Cpu>>() == 4);
    assert!(offset_of!(RingWords<Cpu>, req_prod) == 0);
    assert!(offset_of!(RingWords<Cpu>, req_event) == 4);
    assert!(offset_of!(RingWords<Cpu>, rsp_prod) == 8);
    assert!(offset_of!(RingWords<Cpu>, rsp_event) == 12);
    // A page holds as many slots as netif's rings have.
    assert!(RING_HEADER + (TX_WORDS * 4) * (1 << RING_LOG2_DEFAULT) <= PAGE);
    assert!((PAGE - RING_HEADER) / (TX_WORDS * 4) < 2 << RING_LOG2_DEFAULT);
    // A packet and its extra slot fit into the smallest ring.
    assert!(SLOTS_MAX + 1 < 1 << RING_LOG2_MIN);
    // The longest packet fits into its fragments of one page.
    assert!(SLOTS_MAX * PAGE > PACKET_MAX);
    assert!(PAGE << ORDER_MAX == 0x10000);
};
