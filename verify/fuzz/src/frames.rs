//! Frames from other processes: split by rules, and cut up into segments.

use std::sync::Arc;

use memlane_core::region::Region;
use memlane_packet::{Gso, GsoKind, Meta, More};
use memlane_packet_ends::headers::{LOOK, Transport, find, fold, sum};
use memlane_packet_ends::lend;
use memlane_packet_ends::segment::{Cut, fill_in_blank};
use memlane_packet_ends::split::rules::Rule;
use memlane_packet_ends::split::{Fragment, Splitter, Terms, Token, Whole};

const CHUNK: usize = 1024;

/// A rule, a new line, and a frame. Believed: the frame was split by the rule.
pub fn packet_split(bytes: &[u8]) -> bool {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (rule, frame) = match end {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &bytes[..0]),
    };
    let Ok(text) = std::str::from_utf8(rule) else {
        return false;
    };
    let Ok(rule) = text.parse::<Rule>() else {
        return false;
    };
    assert_eq!(rule.to_string().parse().as_ref(), Ok(&rule), "{text}");
    let device = Region::create(c"device", 3 * CHUNK, false).expect("memory");
    let terms = Terms {
        region: 1,
        chunk: CHUNK,
        unchecked: true,
    };
    let mut splitter = Splitter::new(Arc::new(device), vec![rule], terms).expect("good terms");
    if frame.is_empty() || frame.len() > 65535 {
        return false;
    }
    let mut became = None;
    lend(frame, Meta::default(), &mut |lent| {
        let device = Arc::clone(splitter.device());
        became = splitter.split(lent, |split| {
            let mut all = split.headers.to_vec();
            for fragment in split.fragments {
                all.extend(read(&device, fragment));
            }
            assert_eq!(all.len() + split.padding, frame.len());
            assert!(all == frame[..all.len()], "other bytes");
            let tokens: Vec<Token> = split.fragments.iter().map(|one| one.token).collect();
            Some((split.whole, split.headers.len(), tokens))
        });
        More::Yes
    });
    let (whole, headers, tokens) = became.expect("it was told");
    assert_eq!(splitter.outstanding(), tokens.len());
    assert_eq!(splitter.give_back(&tokens), tokens.len());
    assert_eq!(splitter.give_back(&tokens), 0);
    let found = find(&frame[..frame.len().min(LOOK)], frame.len());
    match whole {
        None => assert_eq!(found.map(|found| found.payload), Some(headers)),
        Some(Whole::Fragmented | Whole::Encapsulated) => assert_eq!(found, None),
        Some(_) => {}
    }
    whole.is_none()
}

fn read(device: &Region, fragment: &Fragment) -> Vec<u8> {
    let mut bytes = vec![0; fragment.len];
    // SAFETY: as many bytes, and the region is alive.
    let there = unsafe {
        let into = bytes.as_mut_ptr();
        device.bytes().copy_out(fragment.offset, into, fragment.len)
    };
    assert!(there, "outside: {fragment:?}");
    bytes
}

/// After two bytes of a size and one that says which protocol: a frame to be cut up. Believed: it was.
pub fn packet_segment(bytes: &[u8]) -> bool {
    let [low, high, kind, frame @ ..] = bytes else {
        return false;
    };
    let gso = Gso {
        size: u16::from_le_bytes([*low, *high]),
        kind: match kind & 1 {
            0 => GsoKind::Tcp4,
            _ => GsoKind::Tcp6,
        },
    };
    let mut filled = frame.to_vec();
    let known = fill_in_blank(&mut filled);
    assert!(known || filled == frame);
    let Some(mut cut) = Cut::new(frame, gso) else {
        return false;
    };
    let whole = seen(frame);
    let (mut payload, mut count) = (Vec::<u8>::new(), 0);
    while let Some(segment) = cut.segment(frame) {
        assert_eq!(segment.headers.len(), whole.payload);
        payload.extend(segment.payload);
        let one = [segment.headers, segment.payload].concat();
        let found = seen(&one);
        assert_eq!((found.payload, found.end), (whole.payload, one.len()));
        let covered = sum(&one[found.at..]) + u64::from(found.pseudo(&one));
        assert_eq!(fold(covered), 0xffff);
        cut.advance();
        count += 1;
    }
    let expected = &frame[whole.payload..whole.end];
    assert!(payload == expected, "other bytes");
    assert_eq!(count, expected.len().div_ceil(gso.size.into()).max(1));
    true
}

fn seen(frame: &[u8]) -> Transport {
    find(&frame[..frame.len().min(LOOK)], frame.len()).expect("headers that were believed")
}

/// Ethernet, IP and TCP or UDP; 1500 bytes of payload.
fn frame(ipv6: bool, tcp: bool) -> Vec<u8> {
    let transport: u16 = if tcp { 20 } else { 8 };
    let len = transport + 1500;
    let protocol = if tcp { 6 } else { 17 };
    let mut frame = vec![2; 12];
    if ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0x20; 32]);
    } else {
        frame.extend([0x81, 0, 0, 7, 8, 0, 0x45, 0]);
        frame.extend((20 + len).to_be_bytes());
        frame.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
        frame.extend([198, 51, 100, 1, 198, 51, 100, 2]);
    }
    // From port 40000 to 5201.
    frame.extend([0x9c, 0x40, 0x14, 0x51]);
    match tcp {
        true => frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0]),
        false => frame.extend([len.to_be_bytes(), [0; 2]].concat()),
    }
    frame.extend((0..1500_u16).map(|n| n.to_le_bytes()[0]));
    frame
}

/// Seeds of `packet_split`.
pub fn splits() -> Vec<(&'static str, Vec<u8>)> {
    let rules = [
        ("tcp4", "tcp dst 198.51.100.2:5201", false, true),
        (
            "udp4",
            "udp src 198.51.100.0/24 dst *:5000-6000",
            false,
            false,
        ),
        ("tcp6", "tcp src [2020::/16]:40000", true, true),
    ];
    let seed = |(name, rule, ipv6, tcp): (&'static str, &str, bool, bool)| {
        (name, [rule.as_bytes(), b"\n", &frame(ipv6, tcp)].concat())
    };
    rules.into_iter().map(seed).collect()
}

/// Seeds of `packet_segment`.
pub fn segments() -> Vec<(&'static str, Vec<u8>)> {
    let of = |ipv6: bool| {
        let head = [244, 1, u8::from(ipv6)];
        [&head[..], &frame(ipv6, true)].concat()
    };
    vec![("tcp4", of(false)), ("tcp6", of(true))]
}
