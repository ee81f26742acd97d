//! Frames that are cut up: the segments' payloads are the frame's, their checksums are right, and nothing else has
//! changed but what belongs to each.

mod frames;

use frames::{Recipe, recipes};
use memlane_packet::{Gso, GsoKind};
use memlane_packet_ends::headers::{find, fold, sum};
use memlane_packet_ends::segment::{Cut, fill_in_blank};
use proptest::prelude::*;

fn segments(frame: &[u8], gso: Gso) -> Option<Vec<Vec<u8>>> {
    let mut cut = Cut::new(frame, gso)?;
    let mut all = Vec::new();
    while let Some(segment) = cut.segment(frame) {
        all.push([segment.headers, segment.payload].concat());
        cut.advance();
        assert!(all.len() <= frame.len(), "it does not end");
    }
    assert!(!cut.is_left());
    Some(all)
}

/// As a receiver looks at it.
fn checksums_are_right(frame: &[u8]) -> bool {
    let found = find(&frame[..frame.len().min(256)], frame.len()).expect("a transport header");
    let covered = sum(&frame[found.at..found.end]) + u64::from(found.pseudo(frame));
    let ip = match found.ipv6 {
        true => 0xffff,
        false => fold(sum(
            &frame[found.ip..found.ip + usize::from(frame[found.ip] & 15) * 4]
        )),
    };
    fold(covered) == 0xffff && ip == 0xffff
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn segments_together_are_the_frame(recipe in recipes(20_000), size in 1..4000_u16) {
        let recipe = Recipe { tcp: true, padding: 0, ..recipe };
        let frame = recipe.bytes();
        let size = if recipe.payload / usize::from(size) > 500 { size + 200 } else { size };
        let gso = Gso { kind: recipe.kind(), size };
        let all = segments(&frame, gso).expect("it is TCP");
        let headers = find(&frame[..frame.len().min(256)], frame.len()).expect("TCP");
        let payload: Vec<u8> = all.iter().flat_map(|one| &one[headers.payload..]).copied().collect();
        prop_assert_eq!(&payload, &frame[headers.payload..]);
        for (n, one) in all.iter().enumerate() {
            prop_assert!(checksums_are_right(one), "segment {}", n);
            let full = one.len() - headers.payload == usize::from(size);
            prop_assert!(full || n + 1 == all.len());
            // Addresses, options, ports and the rest are the frame's.
            let mut same = one[..headers.payload].to_vec();
            let at = headers.at;
            let sequence = u32::from_be_bytes(same[at + 4..at + 8].try_into().expect("four"));
            let expected = recipe.sequence.wrapping_add(u32::try_from(n * usize::from(size)).expect("short"));
            prop_assert_eq!(sequence, expected);
            prop_assert_eq!(same[at + 13] & 0x01, if n + 1 == all.len() { recipe.flags & 1 } else { 0 });
            prop_assert_eq!(same[at + 13] & 0x80, if n == 0 { recipe.flags & 0x80 } else { 0 });
            let own = [headers.ip + 2..headers.ip + 6, headers.ip + 10..headers.ip + 12];
            let fields = if recipe.ipv6 { &own[..1] } else { &own[..] };
            for range in fields.iter().cloned().chain([at + 4..at + 8, at + 13..at + 14, at + 16..at + 18]) {
                same[range.clone()].copy_from_slice(&frame[range]);
            }
            prop_assert_eq!(&same[..], &frame[..headers.payload]);
        }
    }

    #[test]
    fn a_blank_checksum_is_filled_in_and_nothing_else(recipe in recipes(3000)) {
        let mut frame = recipe.bytes();
        let before = frame.clone();
        prop_assert!(fill_in_blank(&mut frame));
        let found = find(&frame[..frame.len().min(256)], frame.len()).expect("a transport header");
        let covered = sum(&frame[found.at..found.end]) + u64::from(found.pseudo(&frame));
        prop_assert_eq!(fold(covered), 0xffff);
        let at = found.at + found.checksum;
        frame[at..at + 2].copy_from_slice(&before[at..at + 2]);
        prop_assert_eq!(frame, before);
    }

    /// Whatever it is: no panic, and it ends.
    #[test]
    fn damaged_frames_are_cut_or_not(
        recipe in recipes(3000), size in 0..3000_u16, six in any::<bool>(),
        keep in 0..3100_usize, flips in proptest::collection::vec((0..200_usize, any::<u8>()), 0..6),
    ) {
        let mut frame = recipe.bytes();
        for (at, byte) in flips {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(keep);
        let kind = if six { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
        segments(&frame, Gso { kind, size });
        fill_in_blank(&mut frame);
    }
}
