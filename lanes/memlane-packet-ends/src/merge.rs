//! TCP segments that follow each other, made one large frame again: what a network interface's receive offload does.
//!
//! For an end that asks the kernel for each frame and takes large ones (a TAP device): one system call and one walk through
//! the kernel's stack for 44 segments of 1,448 bytes. [`Cut`](super::segment::Cut) is the reverse: it makes exactly those
//! segments of the large frame, byte for byte. What that could not bring back is not merged:
//!
//! - A segment follows another one if their headers are the same but for lengths, checksums, PSH, IPv4's identification,
//!   which is one more, and the sequence number, at which the other one ends. That includes addresses and tags, type of
//!   service (ECN), TTL, window, acknowledgement and all TCP options (timestamps).
//! - All have as much payload as the first one; only the last one may have less.
//! - Only ACK, ECE and PSH may be set. PSH ends a large frame.
//! - No IPv4 options, no IPv6 extension headers, no padding.
//!
//! The large frame's checksum is blank, so a segment's must be right before that: it is summed up here, unless it is blank
//! itself. A damaged segment is not merged; it goes as it came, and its receiver drops it. Nor is one whose checksum is
//! 0xffff: to a receiver that is the same as 0, which segmentation writes.
//!
//! One flow at a time: a frame that does not follow has what is held go first, so that no frame overtakes another.

use super::headers::{self, LOOK, Transport, fold, sum};
use memlane_packet::engine::chain::Frame;
use memlane_packet::layout::PACKET_MAX;
use memlane_packet::{Gso, Meta};

/// Bytes of payload with which a large frame may begin: a copy must be worth it. Bulk has more: TCP's smallest usual segment size is 536 (RFC 9293).
const LEAST: usize = 256;

/// TCP flags, in byte 13 of its header.
const FLAGS: usize = 13;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const ECE: u8 = 0x40;

/// What became of a frame that was offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offered {
    /// It is held, with what was held before.
    Joined,
    /// It is held, and nothing can follow it.
    Complete,
    /// It does not follow what is held; nothing has changed.
    Apart,
}

/// What is held, as one frame.
#[derive(Debug)]
pub struct Merged<'a> {
    /// A frame: the only segment as it came, or a large one.
    pub bytes: &'a [u8],
    /// What it says of itself.
    pub meta: Meta,
    /// Frames in it.
    pub frames: u64,
    /// Bytes of those frames.
    pub frame_bytes: u64,
}

/// Segments of one flow.
#[derive(Debug)]
pub struct Merge {
    /// The first segment's headers, then the payload of all.
    bytes: Box<[u8]>,
    group: Option<Group>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    first: Segment,
    meta: Meta,
    /// Bytes in the buffer.
    len: usize,
    frames: u32,
    /// The first segment's checksum is known to be right, or blank.
    summed: bool,
    /// Nothing can follow.
    closed: bool,
}

/// A segment that may be merged.
#[derive(Clone, Copy, Debug)]
struct Segment {
    found: Transport,
    sequence: u32,
    /// IPv4's identification.
    id: u16,
    flags: u8,
}

impl Segment {
    /// Of a frame of `len` bytes that begins with `look`. `None`: it goes by itself.
    fn find(look: &[u8], len: usize) -> Option<Segment> {
        let found = headers::find(look, len)?;
        let Transport { ip, at, ipv6, .. } = found;
        let plain = found.tcp && found.end == len && at - ip == if ipv6 { 40 } else { 20 };
        if !plain || found.end == found.payload {
            return None;
        }
        // DF or nothing; and what is to be replaced must have been right.
        if !ipv6 && (!matches!(look[ip + 6], 0 | 0x40) || fold(sum(&look[ip..at])) != 0xffff) {
            return None;
        }
        let tcp = &look[at..];
        let usual = tcp[FLAGS] & !(PSH | ECE) == ACK && tcp[FLAGS - 1] & 15 == 0;
        usual.then(|| Segment {
            found,
            sequence: u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
            id: if ipv6 {
                0
            } else {
                u16::from_be_bytes([look[ip + 4], look[ip + 5]])
            },
            flags: tcp[FLAGS],
        })
    }

    fn payload(&self) -> usize {
        self.found.end - self.found.payload
    }

    /// Are the headers the same, as far as they must be?
    fn is_like(&self, own: &[u8], other: &Segment, others: &[u8]) -> bool {
        let Transport {
            ip,
            at,
            payload,
            ipv6,
            ..
        } = self.found;
        if (ip, at, payload, ipv6)
            != (
                other.found.ip,
                other.found.at,
                other.found.payload,
                other.found.ipv6,
            )
        {
            return false;
        }
        let internet = if ipv6 {
            [0..ip + 4, ip + 6..at]
        } else {
            // All but the length, the identification and the checksum.
            [0..ip + 2, ip + 6..ip + 10]
        };
        let addresses = if ipv6 { at..at } else { ip + 12..at };
        // All but the sequence number, the flags and the checksum.
        let transport = [
            at..at + 4,
            at + 8..at + FLAGS,
            at + 14..at + 16,
            at + 18..payload,
        ];
        (self.flags | PSH) == (other.flags | PSH)
            && internet
                .into_iter()
                .chain([addresses])
                .chain(transport)
                .all(|range| own[range.clone()] == others[range])
    }

    /// Is its checksum right, and what segmentation would write? `headers` and `payload` are private copies.
    fn is_right(&self, headers: &[u8], payload: &[u8]) -> bool {
        let pseudo = self.found.pseudo(headers);
        let tcp = &headers[self.found.at..self.found.payload];
        // 0xffff is right where 0 is, but segmentation writes 0.
        tcp[self.found.checksum..][..2] != [0xff; 2]
            && fold(sum(tcp) + sum(payload) + u64::from(pseudo)) == 0xffff
    }
}

impl Default for Merge {
    fn default() -> Merge {
        Merge {
            bytes: vec![0; PACKET_MAX].into(),
            group: None,
        }
    }
}

impl Merge {
    /// Is anything held?
    pub fn is_empty(&self) -> bool {
        self.group.is_none()
    }

    /// Is something held that nothing can follow?
    pub fn is_closed(&self) -> bool {
        self.group.is_some_and(|group| group.closed)
    }

    /// Adds a frame to what is held, if it follows.
    pub fn offer(&mut self, frame: &Frame<'_>) -> Offered {
        let Some(mut group) = self.group.filter(|group| !group.closed) else {
            return Offered::Apart;
        };
        let mut look = [0; LOOK];
        let Some(next) = find(frame, &mut look) else {
            return Offered::Apart;
        };
        let first = group.first;
        let (size, payload) = (first.payload(), next.payload());
        // At most a frame's bytes, and less than 2^16 segments.
        let done = u32::try_from(group.len - first.found.payload).unwrap_or(u32::MAX);
        let id = first
            .id
            .wrapping_add(u16::try_from(group.frames).unwrap_or(u16::MAX));
        let follows = next.sequence == first.sequence.wrapping_add(done)
            && (first.found.ipv6 || next.id == id)
            && payload <= size
            && group.len + payload <= PACKET_MAX
            && first.is_like(&self.bytes, &next, &look);
        if !follows || !self.is_first_right(&mut group) {
            return Offered::Apart;
        }
        let room = &mut self.bytes[group.len..group.len + payload];
        if frame.copy_out(next.found.payload, room) != payload
            || !(frame.meta().csum_blank || next.is_right(&look, room))
        {
            return Offered::Apart;
        }
        group.len += payload;
        group.frames += 1;
        group.closed = next.flags & PSH != 0 || payload < size || group.len + size > PACKET_MAX;
        self.bytes[first.found.at + FLAGS] |= next.flags & PSH;
        self.group = Some(group);
        if group.closed {
            Offered::Complete
        } else {
            Offered::Joined
        }
    }

    /// Nothing is held: holds a frame, if others may follow it. `false`: it goes by itself.
    pub fn begin(&mut self, frame: &Frame<'_>) -> bool {
        debug_assert!(self.is_empty());
        let mut look = [0; LOOK];
        let begins = |first: &Segment| first.flags & PSH == 0 && first.payload() >= LEAST;
        let Some(first) = find(frame, &mut look).filter(begins) else {
            return false;
        };
        let at = first.found.payload;
        self.bytes[..at].copy_from_slice(&look[..at]);
        if frame.copy_out(at, &mut self.bytes[at..first.found.end]) != first.payload() {
            return false;
        }
        self.group = Some(Group {
            first,
            meta: frame.meta(),
            len: first.found.end,
            frames: 1,
            summed: frame.meta().csum_blank,
            closed: false,
        });
        true
    }

    /// Sums the first segment up, when a second one is there.
    fn is_first_right(&self, group: &mut Group) -> bool {
        if !group.summed {
            let (headers, payload) = self.bytes[..group.len].split_at(group.first.found.payload);
            group.summed = group.first.is_right(headers, payload);
        }
        group.summed
    }

    /// What is held, which stays. Nothing follows it any more.
    pub fn close(&mut self) -> Option<Merged<'_>> {
        let group = self.group.as_mut()?;
        group.closed = true;
        let group = *group;
        let first = &group.first;
        let headers = (first.found.payload * (group.frames as usize - 1)) as u64;
        let mut meta = group.meta;
        if group.frames > 1 {
            meta = Meta {
                csum_blank: true,
                data_validated: true,
                // At most a frame's bytes.
                gso: first
                    .found
                    .gso()
                    .zip(u16::try_from(first.payload()).ok())
                    .map(|(kind, size)| Gso { kind, size }),
            };
            rewrite(
                &mut self.bytes,
                Transport {
                    end: group.len,
                    ..first.found
                },
            );
        }
        Some(Merged {
            bytes: &self.bytes[..group.len],
            meta,
            frames: group.frames.into(),
            frame_bytes: group.len as u64 + headers,
        })
    }

    /// What was held has gone.
    pub fn clear(&mut self) {
        self.group = None;
    }
}

/// A private copy of a frame's first bytes, and what they say. `None`: it goes by itself.
fn find(frame: &Frame<'_>, look: &mut [u8; LOOK]) -> Option<Segment> {
    if frame.meta().gso.is_some() {
        return None;
    }
    let n = frame.copy_out(0, look);
    Segment::find(&look[..n], frame.len())
}

/// The headers of a large frame: lengths, IPv4's checksum, and the pseudo header's sum where TCP's will be.
fn rewrite(bytes: &mut [u8], found: Transport) {
    let Transport {
        ip, at, end, ipv6, ..
    } = found;
    let (field, len) = if ipv6 {
        (ip + 4, end - at)
    } else {
        (ip + 2, end - ip)
    };
    // A frame has at most 65535 bytes.
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    bytes[field..field + 2].copy_from_slice(&len.to_be_bytes());
    if !ipv6 {
        bytes[ip + 10..ip + 12].fill(0);
        let check = !fold(sum(&bytes[ip..at]));
        bytes[ip + 10..ip + 12].copy_from_slice(&check.to_be_bytes());
    }
    let pseudo = found.pseudo(&bytes[..found.payload]);
    bytes[at + found.checksum..at + found.checksum + 2].copy_from_slice(&pseudo.to_be_bytes());
}
