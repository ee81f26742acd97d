//! The header that a TAP or packet socket puts before each frame (`struct virtio_net_hdr`, `linux/virtio_net.h`).
//!
//! 10 bytes, in the CPU's order: flags u8, gso_type u8, hdr_len u16, gso_size u16, csum_start u16, csum_offset u16.

use super::headers::{self, Transport};
use memlane_packet::{Gso, GsoKind, Meta};

/// Bytes of it, without `num_buffers`: what both have unless told otherwise.
pub const LEN: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_F_DATA_VALID`.
const DATA_VALID: u8 = 2;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
const TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
const TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_ECN`: the first segment has CWR. netif has no word for it; who cuts sees it in the frame.
const ECN: u8 = 0x80;
/// CWR, in byte 13 of a TCP header.
const CWR: u8 = 0x80;

/// What became of a frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// As netif can say it.
    Said(Meta),
    /// A checksum where netif has none: to be filled in before the frame goes on (start, offset).
    FillIn(usize, usize),
    /// Segmentation that nobody asked for.
    Unusable,
}

fn word(bytes: &[u8; LEN], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

/// What the kernel says of a frame that begins with `header` and has `len` bytes.
pub fn read(bytes: &[u8; LEN], header: &[u8], len: usize) -> Read {
    let (start, offset) = (usize::from(word(bytes, 6)), usize::from(word(bytes, 8)));
    let blank = bytes[0] & NEEDS_CSUM != 0;
    let found = if blank {
        headers::find(header, len).filter(|t| t.at == start && t.checksum == offset)
    } else {
        None
    };
    let gso = match (bytes[1] & !ECN, found) {
        (0, _) => None,
        (TCPV4 | TCPV6, Some(transport)) => {
            let gso = transport.gso().map(|kind| Gso {
                kind,
                size: word(bytes, 4),
            });
            match gso.filter(|gso| gso.size > 0) {
                None => return Read::Unusable,
                gso => gso,
            }
        }
        _ => return Read::Unusable,
    };
    if blank && found.is_none() {
        return Read::FillIn(start, offset);
    }
    Read::Said(Meta {
        csum_blank: blank,
        data_validated: blank || bytes[0] & DATA_VALID != 0,
        gso,
    })
}

/// What to tell the kernel of a frame that begins with `header` and has `len` bytes. `None`: `meta` says what its
/// headers do not bear out.
///
/// That its data is valid is not passed on: whether to believe that is for the receiving kernel, which sums up for
/// itself. A blank checksum it must believe, as on any wire of one machine.
pub fn write(meta: Meta, header: &[u8], len: usize) -> Option<[u8; LEN]> {
    let mut bytes = [0; LEN];
    if !meta.csum_blank {
        // The kernel's segmentation wants one, too.
        return meta.gso.is_none().then_some(bytes);
    }
    let transport = headers::find(header, len)?;
    bytes[0] = NEEDS_CSUM;
    if let Some(gso) = meta.gso {
        if transport.gso() != Some(gso.kind) || gso.size == 0 {
            return None;
        }
        bytes[1] = match gso.kind {
            GsoKind::Tcp4 => TCPV4,
            GsoKind::Tcp6 => TCPV6,
        };
        if header[transport.at + 13] & CWR != 0 {
            bytes[1] |= ECN;
        }
        put(&mut bytes, 2, transport.payload);
        bytes[4..6].copy_from_slice(&gso.size.to_ne_bytes());
    }
    let Transport { at, checksum, .. } = transport;
    put(&mut bytes, 6, at);
    put(&mut bytes, 8, checksum);
    Some(bytes)
}

/// `by` bytes have been put into the frame before what the header points at.
pub fn shift(bytes: &mut [u8; LEN], by: usize) {
    if bytes[0] & NEEDS_CSUM != 0 {
        let start = usize::from(word(bytes, 6)) + by;
        put(bytes, 6, start);
    }
}

fn put(bytes: &mut [u8; LEN], at: usize, value: usize) {
    // Inside of `headers::LOOK`.
    let value = u16::try_from(value).unwrap_or(u16::MAX);
    bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, IPv4 and TCP; the payload is 3000 bytes.
    fn header() -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend(3040_u16.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let mut tcp = [0; 20];
        tcp[12] = 0x50;
        frame.extend(tcp);
        frame
    }

    const LONG: usize = 14 + 3040;

    fn gso(kind: GsoKind, size: u16) -> Meta {
        Meta {
            csum_blank: true,
            data_validated: true,
            gso: Some(Gso { kind, size }),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let plain = Meta::default();
        let blank = Meta {
            csum_blank: true,
            data_validated: true,
            gso: None,
        };
        for meta in [plain, blank, gso(GsoKind::Tcp4, 1448)] {
            let bytes = write(meta, &header(), LONG).unwrap();
            assert_eq!(read(&bytes, &header(), LONG), Read::Said(meta));
        }
    }

    /// Written out by hand from `linux/virtio_net.h`.
    #[test]
    fn the_bytes_are_the_kernel_s() {
        let bytes = write(gso(GsoKind::Tcp4, 1448), &header(), LONG).unwrap();
        let [hdr_len, size, start, offset] = [54_u16, 1448, 34, 16].map(u16::to_ne_bytes);
        let mut expected = vec![1, 1];
        for field in [hdr_len, size, start, offset] {
            expected.extend(field);
        }
        assert_eq!(bytes[..], expected[..]);
    }

    #[test]
    fn a_frame_whose_first_segment_has_cwr_is_used_and_said_to_have_it() {
        let (meta, mut congested) = (gso(GsoKind::Tcp4, 1448), header());
        congested[34 + 13] = CWR | 0x10;
        let bytes = write(meta, &congested, LONG).unwrap();
        assert_eq!(bytes[1], TCPV4 | ECN);
        assert_eq!(read(&bytes, &congested, LONG), Read::Said(meta));
        let bytes = write(meta, &header(), LONG).unwrap();
        assert_eq!(bytes[1], TCPV4);
    }

    #[test]
    fn what_headers_do_not_bear_out_is_not_told_to_the_kernel() {
        assert_eq!(write(gso(GsoKind::Tcp6, 1448), &header(), LONG), None);
        assert_eq!(write(gso(GsoKind::Tcp4, 0), &header(), LONG), None);
        let mut udp = header();
        udp[23] = 17;
        assert_eq!(write(gso(GsoKind::Tcp4, 1448), &udp, LONG), None);
        let mut arp = header();
        arp[13] = 6;
        assert_eq!(write(gso(GsoKind::Tcp4, 1448), &arp, LONG), None);
        let unsummed = Meta {
            csum_blank: false,
            ..gso(GsoKind::Tcp4, 1448)
        };
        assert_eq!(write(unsummed, &header(), LONG), None);
    }

    #[test]
    fn a_checksum_elsewhere_is_filled_in_and_other_segmentation_not_used() {
        let mut bytes = write(
            Meta {
                csum_blank: true,
                ..Meta::default()
            },
            &header(),
            LONG,
        );
        let bytes = bytes.as_mut().unwrap();
        bytes[6..8].copy_from_slice(&54_u16.to_ne_bytes());
        assert_eq!(read(bytes, &header(), LONG), Read::FillIn(54, 16));
        // UDP segmentation (5), which is not offered.
        bytes[1] = 5;
        assert_eq!(read(bytes, &header(), LONG), Read::Unusable);
        let mut none = write(gso(GsoKind::Tcp4, 1), &header(), LONG).unwrap();
        none[4] = 0;
        assert_eq!(read(&none, &header(), LONG), Read::Unusable);
    }
}
