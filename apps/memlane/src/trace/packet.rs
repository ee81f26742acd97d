//! A TCP segment as an IP packet in an Ethernet frame, checksums and all.

use std::net::{IpAddr, Ipv6Addr};

/// SYN, FIN, RST, PSH, ACK: as in the header.
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const PSH: u8 = 8;
pub(super) const ACK: u8 = 16;

/// Announced by both ends, and how far it is shifted: nobody is ever told to stop.
const WINDOW: u16 = 65_535;
const SHIFT: u8 = 14;

/// One end of a connection.
pub(super) type End = (IpAddr, u16);

/// An address as the records have it: IPv4 as `::ffff:a.b.c.d`.
pub(super) fn end((ip, port): ([u8; 16], u16)) -> End {
    (Ipv6Addr::from(ip).to_canonical(), port)
}

/// What a segment says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) from: End,
    pub(super) to: End,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    /// Bytes of the stream; those that were not captured are not there.
    pub(super) bytes: usize,
}

/// Headers for it, to be followed by `payload` (the first of its bytes).
pub(super) fn headers(segment: &Segment, payload: &[u8], id: u16) -> Vec<u8> {
    let tcp = tcp(segment, payload);
    let length = tcp.len() + segment.bytes;
    // Nobody's addresses, as on the kernel's loopback interface; then the protocol.
    let mut packet = vec![0; 12];
    match (segment.from.0, segment.to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend_from_slice(&[0x08, 0x00]);
            packet.extend_from_slice(&ipv4(from.octets(), to.octets(), length, id));
        }
        (from, to) => {
            packet.extend_from_slice(&[0x86, 0xdd]);
            packet.extend_from_slice(&ipv6(wide(from).octets(), wide(to).octets(), length));
        }
    }
    packet.extend_from_slice(&tcp);
    packet
}

fn wide(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn ipv4(from: [u8; 4], to: [u8; 4], length: usize, id: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&short(20 + length).to_be_bytes());
    packet.extend_from_slice(&id.to_be_bytes());
    // Not to be fragmented; 64 hops; TCP; a checksum.
    packet.extend_from_slice(&[0x40, 0, 64, 6, 0, 0]);
    packet.extend_from_slice(&from);
    packet.extend_from_slice(&to);
    let sum = !fold(add(0, &packet));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn ipv6(from: [u8; 16], to: [u8; 16], length: usize) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend_from_slice(&short(length).to_be_bytes());
    packet.extend_from_slice(&[6, 64]);
    packet.extend_from_slice(&from);
    packet.extend_from_slice(&to);
    packet
}

fn tcp(segment: &Segment, payload: &[u8]) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(28);
    tcp.extend_from_slice(&segment.from.1.to_be_bytes());
    tcp.extend_from_slice(&segment.to.1.to_be_bytes());
    tcp.extend_from_slice(&segment.seq.to_be_bytes());
    let ack = if segment.flags & ACK == 0 {
        0
    } else {
        segment.ack
    };
    tcp.extend_from_slice(&ack.to_be_bytes());
    tcp.extend_from_slice(&[0, segment.flags]);
    tcp.extend_from_slice(&WINDOW.to_be_bytes());
    tcp.extend_from_slice(&[0; 4]);
    if segment.flags & SYN != 0 {
        let most = short(memlane_core::trace::SEGMENT).to_be_bytes();
        // MSS; nothing, window scale.
        tcp.extend_from_slice(&[2, 4, most[0], most[1], 1, 3, 3, SHIFT]);
    }
    tcp[12] = u8::try_from(tcp.len() / 4).unwrap_or(5) << 4;
    let length = tcp.len() + segment.bytes;
    let mut sum = pseudo(segment, length);
    sum = add(sum, &tcp);
    sum = add(sum, payload);
    tcp[16..18].copy_from_slice(&(!fold(sum)).to_be_bytes());
    tcp
}

fn pseudo(segment: &Segment, length: usize) -> u64 {
    let mut sum = 6 + length as u64;
    for (ip, _) in [segment.from, segment.to] {
        sum = match (ip, segment.from.0.is_ipv4() && segment.to.0.is_ipv4()) {
            (IpAddr::V4(ip), true) => add(sum, &ip.octets()),
            (ip, _) => add(sum, &wide(ip).octets()),
        };
    }
    sum
}

fn add(sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |b| u64::from(*b) << 8);
    words
        .iter()
        .fold(sum + last, |sum, w| sum + u64::from(u16::from_be_bytes(*w)))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}

/// A length that a record's bounds keep within 16 bits.
fn short(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(from: &str, to: &str, bytes: usize) -> Segment {
        Segment {
            from: (from.parse().unwrap(), 80),
            to: (to.parse().unwrap(), 40_000),
            seq: 1,
            ack: 2,
            flags: ACK | PSH,
            bytes,
        }
    }

    /// A sum over header and data that holds its own checksum comes to all ones.
    #[test]
    fn checksums_are_right_for_every_length_and_both_families() {
        for n in [0, 1, 2, 3, 1460, 65_495] {
            let payload: Vec<u8> = (0..n).map(|i: usize| (i * 3).to_le_bytes()[0]).collect();
            for (from, to, ip) in [("127.0.0.1", "10.1.2.3", 20), ("::1", "fe80::1", 40)] {
                let s = segment(from, to, n);
                let mut packet = headers(&s, &payload, 7);
                packet.extend_from_slice(&payload);
                let packet = &packet[14..];
                if ip == 20 {
                    assert_eq!(fold(add(0, &packet[..20])), 0xffff, "{n}");
                    let length = u16::from_be_bytes([packet[2], packet[3]]);
                    assert_eq!(usize::from(length), packet.len());
                }
                let tcp = &packet[ip..];
                assert_eq!(fold(add(pseudo(&s, tcp.len()), tcp)), 0xffff, "{from} {n}");
            }
        }
    }

    #[test]
    fn an_ipv4_address_in_ipv6_clothes_is_ipv4() {
        let raw = "::ffff:192.0.2.1".parse::<Ipv6Addr>().unwrap().octets();
        assert_eq!(end((raw, 5)), ("192.0.2.1".parse().unwrap(), 5));
    }
}
