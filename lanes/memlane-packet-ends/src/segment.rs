//! Large TCP frames, cut up for ends that take none: what a network interface's segmentation does, and the kernel's.
//!
//! Each segment has the frame's headers, and as much of its payload as [`Gso::size`] says. Its own are: the lengths,
//! IPv4's identification (one more each time) and checksum, TCP's sequence number and checksum. FIN and PSH belong to
//! the last segment, CWR (RFC 3168, section 6.1.2) to the first.
//!
//! ```
//! use memlane_packet_ends::segment::Cut;
//! use memlane_packet::{Gso, GsoKind};
//!
//! # let mut frame = vec![2; 12];
//! # frame.extend([8, 0, 0x45, 0]);
//! # frame.extend(3040_u16.to_be_bytes());
//! # frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
//! # frame.extend([0; 12]);
//! # frame.extend([0x50, 0x10, 0, 0, 0, 0, 0, 0]);
//! # frame.extend([7; 3000]);
//! // A private copy: 54 bytes of Ethernet, IPv4 and TCP headers, 3000 of payload.
//! let gso = Gso { kind: GsoKind::Tcp4, size: 1448 };
//! let mut cut = Cut::new(&frame, gso).ok_or("no TCP over IPv4")?;
//! let mut sizes = Vec::new();
//! while let Some(segment) = cut.segment(&frame) {
//!     sizes.push((segment.headers.len(), segment.payload.len()));
//!     cut.advance();
//! }
//! assert_eq!(sizes, [(54, 1448), (54, 1448), (54, 104)]);
//! # Ok::<(), &str>(())
//! ```

use super::headers::{self, LOOK, Transport, fold, sum};
use memlane_packet::Gso;

/// TCP flags, in byte 13 of its header.
const FLAGS: usize = 13;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// A frame of several segments, and how far it is cut up. The frame itself stays with its owner: a private copy, the
/// same for each call.
#[derive(Clone, Debug)]
pub struct Cut {
    found: Transport,
    size: usize,
    /// First byte of the payload that has not gone, and which segment begins there.
    next: usize,
    number: u16,
    /// Those of the segment that was asked for last.
    headers: [u8; LOOK],
}

/// One of its segments: complete, with its checksums.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// From the Ethernet header to TCP's options.
    pub headers: &'a [u8],
    /// Behind them.
    pub payload: &'a [u8],
}

impl Cut {
    /// Looks at a frame. `None`: it is not what `gso` says, or its headers are longer than [`LOOK`].
    pub fn new(frame: &[u8], gso: Gso) -> Option<Cut> {
        let look = &frame[..frame.len().min(LOOK)];
        let found = headers::find(look, frame.len())?;
        if found.gso() != Some(gso.kind) || gso.size == 0 {
            return None;
        }
        Some(Cut {
            found,
            size: gso.size.into(),
            next: found.payload,
            number: 0,
            headers: [0; LOOK],
        })
    }

    /// The segment that is to go; `None`: all have gone. The same one until [`advance`](Self::advance).
    pub fn segment<'a>(&'a mut self, frame: &'a [u8]) -> Option<Segment<'a>> {
        let (from, to) = self.payload()?;
        let (headers, payload) = (frame.get(..self.found.payload)?, frame.get(from..to)?);
        self.headers[..headers.len()].copy_from_slice(headers);
        self.write_headers(payload);
        Some(Segment {
            headers: &self.headers[..self.found.payload],
            payload,
        })
    }

    /// That one has gone.
    pub fn advance(&mut self) {
        if let Some((_, to)) = self.payload() {
            // Behind the last one; a frame without payload is one segment.
            self.next = to.max(self.found.payload + 1);
            self.number = self.number.wrapping_add(1);
        }
    }

    /// Is there a segment that has not gone?
    pub fn is_left(&self) -> bool {
        self.payload().is_some()
    }

    /// From where to where; `None`: there is no more.
    fn payload(&self) -> Option<(usize, usize)> {
        let Transport { payload, end, .. } = self.found;
        let left = end.checked_sub(self.next)?;
        // Nothing is left, unless there was nothing to begin with.
        (left > 0 || self.next == payload).then(|| (self.next, self.next + left.min(self.size)))
    }

    fn write_headers(&mut self, payload: &[u8]) {
        let Transport { ip, at, ipv6, .. } = self.found;
        let last = self.next + payload.len() == self.found.end;
        // Behind the IP header (the first 40 bytes of IPv6's), to the segment's end.
        let end = self.found.payload + payload.len();
        let headers = &mut self.headers[..self.found.payload];
        if ipv6 {
            put(headers, ip + 4, end - ip - 40);
        } else {
            put(headers, ip + 2, end - ip);
            let id = u16::from_be_bytes([headers[ip + 4], headers[ip + 5]]);
            headers[ip + 4..ip + 6].copy_from_slice(&id.wrapping_add(self.number).to_be_bytes());
            let len = usize::from(headers[ip] & 15) * 4;
            headers[ip + 10..ip + 12].fill(0);
            let check = !fold(sum(&headers[ip..ip + len]));
            headers[ip + 10..ip + 12].copy_from_slice(&check.to_be_bytes());
        }
        let tcp = &mut headers[at..];
        // A frame has at most 65535 bytes.
        let offset = u32::try_from(self.next - self.found.payload).unwrap_or(0);
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        tcp[4..8].copy_from_slice(&sequence.wrapping_add(offset).to_be_bytes());
        if self.number > 0 {
            tcp[FLAGS] &= !CWR;
        }
        if !last {
            tcp[FLAGS] &= !(FIN | PSH);
        }
        // Both are in whole words: header lengths are multiples of four.
        let pseudo = Transport { end, ..self.found }.pseudo(headers);
        let tcp = &mut headers[at..];
        tcp[16..18].fill(0);
        let check = !fold(sum(tcp) + sum(payload) + u64::from(pseudo));
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
    }
}

/// A length inside of a frame, big endian.
fn put(headers: &mut [u8], at: usize, len: usize) {
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    headers[at..at + 2].copy_from_slice(&len.to_be_bytes());
}

/// Fills in a checksum that is [blank](memlane_packet::Meta::csum_blank), for ends that cannot pass that on. `false`: the frame
/// has no checksum that we know of, and is as it was.
pub fn fill_in_blank(frame: &mut [u8]) -> bool {
    let len = frame.len();
    let Some(found) = headers::find(&frame[..len.min(LOOK)], len) else {
        return false;
    };
    let pseudo = found.pseudo(&frame[..found.payload]);
    let at = found.at + found.checksum;
    frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
    headers::fill_in(frame, found.at, found.checksum, found.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_packet::GsoKind;

    fn frame(payload: usize, flags: u8) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend(u16::try_from(40 + payload).unwrap().to_be_bytes());
        frame.extend([0xff, 0xfe, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([192, 0, 2, 1, 192, 0, 2, 2, 0x12, 0x34, 0, 80]);
        frame.extend(0xffff_ff00_u32.to_be_bytes());
        frame.extend([0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
        frame.extend((0..payload).map(|n| n.to_le_bytes()[0]));
        frame
    }

    const GSO: Gso = Gso {
        kind: GsoKind::Tcp4,
        size: 1000,
    };

    fn segments(frame: &[u8], gso: Gso) -> Vec<Vec<u8>> {
        let mut cut = Cut::new(frame, gso).unwrap();
        let mut all = Vec::new();
        while let Some(segment) = cut.segment(frame) {
            let bytes = [segment.headers, segment.payload].concat();
            let again = cut.segment(frame).unwrap();
            assert_eq!(bytes, [again.headers, again.payload].concat());
            all.push(bytes);
            cut.advance();
        }
        all
    }

    #[test]
    fn numbers_run_over_their_ends_and_flags_stand_where_they_belong() {
        let all = segments(&frame(2500, CWR | PSH | FIN | 0x10), GSO);
        let lens: Vec<_> = all.iter().map(Vec::len).collect();
        assert_eq!(lens, [1054, 1054, 554]);
        let ids = [0, 1, 2].map(|n| u16::from_be_bytes([all[n][18], all[n][19]]));
        assert_eq!(ids, [0xfffe, 0xffff, 0]);
        let sequence = |n: usize| u32::from_be_bytes(all[n][38..42].try_into().unwrap());
        assert_eq!([0, 1, 2].map(sequence), [0xffff_ff00, 744, 1744]);
        let flags = [0, 1, 2].map(|n| all[n][34 + FLAGS]);
        assert_eq!(flags, [CWR | 0x10, 0x10, PSH | FIN | 0x10]);
    }

    #[test]
    fn a_frame_that_fits_is_one_segment_and_one_without_payload_too() {
        for payload in [0, 1, 1000] {
            let mut whole = frame(payload, PSH | 0x10);
            let all = segments(&whole, GSO);
            assert!(fill_in_blank(&mut whole));
            let check = !fold(sum(&whole[14..34]));
            whole[24..26].copy_from_slice(&check.to_be_bytes());
            assert_eq!(all, [whole], "{payload}");
        }
    }

    #[test]
    fn what_is_not_what_it_says_is_not_cut() {
        let six = Gso {
            kind: GsoKind::Tcp6,
            ..GSO
        };
        let none = Gso { size: 0, ..GSO };
        assert!(Cut::new(&frame(3000, 0), six).is_none());
        assert!(Cut::new(&frame(3000, 0), none).is_none());
        assert!(Cut::new(&frame(3000, 0)[..2000], GSO).is_none());
        assert!(Cut::new(&[0; 14], GSO).is_none());
        assert!(!fill_in_blank(&mut [0; 64]));
    }
}
