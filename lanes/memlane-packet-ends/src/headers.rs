//! Ethernet, IP, TCP and UDP headers, as far as offloads need them: where the transport checksum is.
//!
//! netif says only that a checksum is blank; who passes that on to a kernel has to say where it is. All this works on
//! private copies of a frame's first bytes: the other side can change the frame at any time, so what was looked at is
//! what must be used.

use memlane_packet::GsoKind;

/// Bytes that are looked at, at most: Ethernet with two VLAN tags, IPv6 with some extension headers, TCP with options.
/// A frame whose headers are longer has no transport header as far as we know.
pub const LOOK: usize = 256;

const VLAN: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Where each header has its checksum (RFC 9293, section 3.1; RFC 768).
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// Extension headers that may precede a transport header, and have their length in their second byte (RFC 8200).
const OPTIONS: [u8; 3] = [0, 43, 60];

/// A transport header and what its checksum covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transport {
    /// Which: [`GsoKind`] is TCP's.
    pub tcp: bool,
    /// IPv6, not IPv4.
    pub ipv6: bool,
    /// First byte of the IP header.
    pub ip: usize,
    /// First byte of the transport header, in the frame.
    pub at: usize,
    /// First byte behind it: of the payload.
    pub payload: usize,
    /// First byte of the checksum, from `at` on.
    pub checksum: usize,
    /// First byte behind the IP packet: a short frame is padded.
    pub end: usize,
}

impl Transport {
    /// What segmentation of it is called; `None`: not TCP.
    pub fn gso(&self) -> Option<GsoKind> {
        match (self.tcp, self.ipv6) {
            (true, false) => Some(GsoKind::Tcp4),
            (true, true) => Some(GsoKind::Tcp6),
            (false, _) => None,
        }
    }

    /// The sum over the pseudo header, folded: what stands in a blank checksum's place.
    pub fn pseudo(&self, header: &[u8]) -> u16 {
        let addresses = if self.ipv6 {
            self.ip + 8..self.ip + 40
        } else {
            self.ip + 12..self.ip + 20
        };
        let protocol = if self.tcp { TCP } else { UDP };
        // Headers and lengths are inside of what `find` has seen, and an IP packet has at most 65535 bytes + 40.
        let len = u32::try_from(self.end - self.at).unwrap_or(0);
        let addresses = header.get(addresses).unwrap_or_default();
        fold(sum(addresses) + u64::from(protocol) + u64::from(len & 0xffff) + u64::from(len >> 16))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

/// The transport header of a frame of `len` bytes that begins with `header`. `None`: neither TCP nor UDP, a fragment,
/// or headers that are not whole.
pub fn find(header: &[u8], len: usize) -> Option<Transport> {
    let (mut kind, mut ip) = (word(header, 12)?, 14);
    for _ in 0..2 {
        if VLAN.contains(&kind) {
            kind = word(header, ip + 2)?;
            ip += 4;
        }
    }
    let (protocol, at, end) = match kind {
        IPV4 => ipv4(header, ip)?,
        IPV6 => ipv6(header, ip)?,
        _ => return None,
    };
    let (header_len, checksum) = match protocol {
        TCP => (usize::from(*header.get(at + 12)? >> 4) * 4, TCP_CHECKSUM),
        UDP => (8, UDP_CHECKSUM),
        _ => return None,
    };
    let payload = at + header_len;
    let whole = header_len >= checksum + 2 && payload <= end && end <= len;
    (whole && payload <= header.len()).then_some(Transport {
        tcp: protocol == TCP,
        ipv6: kind == IPV6,
        ip,
        at,
        payload,
        checksum,
        end,
    })
}

/// Of a frame without a transport header that we know of: may there be one all the same, as in pieces of packets, or
/// behind headers that are not whole?
pub fn may_be_summed(header: &[u8]) -> bool {
    match word(header, 12) {
        Some(IPV4) => header.get(23).is_none_or(|next| [TCP, UDP].contains(next)),
        // 44: a piece.
        Some(IPV6) => ipv6(header, 14).is_none_or(|(next, ..)| [TCP, UDP, 44].contains(&next)),
        // The stack behind a tag is another one's.
        Some(kind) => VLAN.contains(&kind),
        None => true,
    }
}

/// (protocol, its first byte, first byte behind the packet)
fn ipv4(header: &[u8], ip: usize) -> Option<(u8, usize, usize)> {
    let first = *header.get(ip)?;
    let len = usize::from(first & 15) * 4;
    // More fragments, or not the first one.
    let whole = word(header, ip + 6)? & 0x3fff == 0;
    let total = usize::from(word(header, ip + 2)?);
    (first >> 4 == 4 && len >= 20 && whole).then_some(())?;
    Some((*header.get(ip + 9)?, ip + len, ip + total))
}

fn ipv6(header: &[u8], ip: usize) -> Option<(u8, usize, usize)> {
    (*header.get(ip)? >> 4 == 6).then_some(())?;
    let end = ip + 40 + usize::from(word(header, ip + 4)?);
    let (mut next, mut at) = (*header.get(ip + 6)?, ip + 40);
    while OPTIONS.contains(&next) {
        next = *header.get(at)?;
        at += 8 * (usize::from(*header.get(at + 1)?) + 1);
    }
    Some((next, at, end))
}

/// The sum of 16-bit words, big endian; an odd byte counts as the first of its word (RFC 1071).
pub fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut total: u64 = 0;
    for eight in &mut words {
        let eight = u64::from_be_bytes(eight.try_into().unwrap_or_default());
        total += (eight >> 32) + (eight & 0xffff_ffff);
    }
    let rest = words.remainder().chunks(2);
    total
        + rest.fold(0, |total, pair| {
            let low = pair.get(1).copied().unwrap_or(0);
            total + u64::from(u16::from_be_bytes([pair[0], low]))
        })
}

/// A sum in 16 bits.
pub fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    u16::try_from(total).unwrap_or(0)
}

/// Fills in a checksum that is blank: over everything from `start` to `end`, to `start + offset`, where the pseudo
/// header's sum stands. `false`: there are no such bytes.
pub fn fill_in(frame: &mut [u8], start: usize, offset: usize, end: usize) -> bool {
    let Some(covered) = frame.get(start..end) else {
        return false;
    };
    if offset.checked_add(2).is_none_or(|n| n > covered.len()) {
        return false;
    }
    // UDP's 0 means that there is no checksum (RFC 768). TCP's stays: segmentation writes it so, too.
    let value = match !fold(sum(covered)) {
        0 if offset == UDP_CHECKSUM => 0xffff,
        value => value,
    };
    let at = start + offset;
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From RFC 1071, section 3.
    #[test]
    fn the_sum_is_the_one_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), 0xddf2);
        let long: Vec<u8> = (0..=255).cycle().take(1001).collect();
        let slow = long.chunks(2).map(|p| {
            let low = p.get(1).copied().unwrap_or(0);
            u64::from(u16::from_be_bytes([p[0], low]))
        });
        assert_eq!(fold(sum(&long)), fold(slow.sum()));
    }

    fn tcp4(tags: &[u16], options: usize, payload: usize) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for tag in tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 7]);
        }
        frame.extend(IPV4.to_be_bytes());
        let total = 20 + options + 20 + payload;
        frame.push(0x45 + u8::try_from(options / 4).unwrap());
        frame.push(0);
        frame.extend(u16::try_from(total).unwrap().to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(vec![1; options]);
        let mut tcp = [0; 20];
        tcp[12] = 0x50;
        frame.extend(tcp);
        frame.extend(vec![9; payload]);
        frame
    }

    #[test]
    fn a_checksum_is_found_behind_tags_and_options() {
        for (tags, options) in [(&[][..], 0), (&[0x8100], 4), (&[0x88a8, 0x8100], 8)] {
            let frame = tcp4(tags, options, 100);
            let found = find(&frame, frame.len()).unwrap();
            let ip = 14 + tags.len() * 4;
            assert_eq!((found.ip, found.at), (ip, ip + 20 + options));
            assert_eq!((found.checksum, found.payload), (16, found.at + 20));
            assert_eq!(found.end, frame.len());
            assert_eq!(found.gso(), Some(GsoKind::Tcp4));
        }
    }

    #[test]
    fn nothing_is_found_in_fragments_and_torsos() {
        let whole = tcp4(&[0x8100], 8, 30);
        let headers = whole.len() - 30;
        for n in 0..headers {
            assert_eq!(find(&whole[..n], whole.len()), None, "{n} bytes of headers");
        }
        assert!(find(&whole[..headers], whole.len()).is_some());
        assert_eq!(find(&whole, whole.len() - 1), None, "the packet is cut off");
        for bits in [0x20, 0x01] {
            let mut fragment = tcp4(&[], 0, 30);
            fragment[14 + 6] = bits;
            assert_eq!(find(&fragment, fragment.len()), None);
        }
        let mut short = tcp4(&[], 0, 30);
        short[14 + 20 + 12] = 0x40;
        assert_eq!(find(&short, short.len()), None, "a TCP header of 16 bytes");
    }

    fn udp6(options: bool) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(IPV6.to_be_bytes());
        let extra: u8 = if options { 16 } else { 0 };
        frame.extend([0x60, 0, 0, 0, 0, 8 + 4 + extra]);
        frame.push(if options { 0 } else { UDP });
        frame.push(64);
        frame.extend([0xfd; 32]);
        if options {
            frame.extend([UDP, 1]);
            frame.extend([0; 14]);
        }
        // Ports 1 and 2, 12 bytes, checksum blank.
        frame.extend([0, 1, 0, 2, 0, 12, 0, 0, b'a', b'b', b'c', b'd']);
        frame
    }

    #[test]
    fn a_blank_checksum_is_filled_in_so_that_a_receiver_finds_it_right() {
        for frame in [tcp4(&[], 0, 101), udp6(false), udp6(true)] {
            let mut frame = frame;
            frame.extend([0xee; 3]); // padding that is not summed up
            let found = find(&frame, frame.len()).unwrap();
            let at = found.at + found.checksum;
            let pseudo = found.pseudo(&frame);
            frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
            assert!(fill_in(&mut frame, found.at, found.checksum, found.end));
            let right = fold(sum(&frame[found.at..found.end]) + u64::from(pseudo));
            assert_eq!(right, 0xffff, "{found:?}");
        }
        assert!(!fill_in(&mut [0; 20], 10, 9, 20), "half of it is outside");
        assert!(!fill_in(&mut [0; 20], 10, 0, 21));
    }

    /// A frame whose checksum is blank, and adds up to 0 once its first word of payload is changed.
    fn adding_up_to_zero(mut frame: Vec<u8>) -> (Vec<u8>, Transport) {
        let found = find(&frame, frame.len()).unwrap();
        let (at, payload) = (found.at + found.checksum, found.payload);
        let pseudo = found.pseudo(&frame);
        frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        frame[payload..payload + 2].fill(0);
        let missing = !fold(sum(&frame[found.at..found.end]));
        frame[payload..payload + 2].copy_from_slice(&missing.to_be_bytes());
        (frame, found)
    }

    /// RFC 768: a UDP packet with a checksum of 0 has none.
    #[test]
    fn a_checksum_that_adds_up_to_zero_is_zero_for_tcp_and_all_ones_for_udp() {
        for (frame, expected) in [(tcp4(&[], 0, 100), 0), (udp6(false), 0xffff)] {
            let (mut frame, found) = adding_up_to_zero(frame);
            assert!(fill_in(&mut frame, found.at, found.checksum, found.end));
            let written = word(&frame, found.at + found.checksum);
            assert_eq!(written, Some(expected), "{found:?}");
        }
    }

    #[test]
    fn a_loop_of_extension_headers_ends() {
        let mut frame = vec![0; LOOK];
        frame[12..14].copy_from_slice(&IPV6.to_be_bytes());
        frame[14] = 0x60;
        assert_eq!(find(&frame, 65535), None);
    }
}
