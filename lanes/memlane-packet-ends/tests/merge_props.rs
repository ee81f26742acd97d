//! Segments that are merged: cut up again they are what they were, byte for byte and in their order, whatever came.

mod frames;

use frames::Recipe;
use memlane_packet::Meta;
use memlane_packet_ends::headers::{find, fold, sum};
use memlane_packet_ends::merge::{Merge, Offered};
use memlane_packet_ends::segment::{Cut, fill_in_blank};
use memlane_packet_ends::{More, lend};
use proptest::prelude::*;

/// A frame as it comes, and what it says of itself.
type Came = (Vec<u8>, Meta);

const BLANK: Meta = Meta {
    csum_blank: true,
    data_validated: true,
    gso: None,
};

/// The segments of a large frame, complete.
fn segments(recipe: &Recipe, size: u16) -> Vec<Vec<u8>> {
    let frame = recipe.bytes();
    let gso = recipe.gso(size).gso.expect("it is large");
    let mut cut = Cut::new(&frame, gso).expect("TCP");
    let mut all = Vec::new();
    while let Some(one) = cut.segment(&frame) {
        all.push([one.headers, one.payload].concat());
        cut.advance();
    }
    all
}

/// What comes out if all of it is offered, as an end does it.
fn merged(frames: &[Came]) -> Vec<Came> {
    let (mut merge, mut out) = (Merge::default(), Vec::new());
    for (bytes, meta) in frames {
        lend(bytes, *meta, &mut |frame| {
            match merge.offer(frame) {
                Offered::Joined => {}
                Offered::Complete => take(&mut merge, &mut out),
                Offered::Apart => {
                    take(&mut merge, &mut out);
                    if !merge.begin(frame) {
                        out.push((bytes.clone(), *meta));
                    }
                }
            }
            More::Yes
        });
    }
    take(&mut merge, &mut out);
    let frames_in: u64 = frames.len() as u64;
    assert!(out.len() as u64 <= frames_in);
    out
}

fn take(merge: &mut Merge, out: &mut Vec<Came>) {
    if let Some(held) = merge.close() {
        assert!(held.frames > 0 && held.frame_bytes >= held.bytes.len() as u64);
        out.push((held.bytes.to_vec(), held.meta));
    }
    merge.clear();
}

/// What a receiver sees: large frames cut up, blank checksums filled in.
fn received(frames: &[Came]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (bytes, meta) in frames {
        let Some(gso) = meta.gso else {
            let mut bytes = bytes.clone();
            if meta.csum_blank {
                assert!(fill_in_blank(&mut bytes));
            }
            all.push(bytes);
            continue;
        };
        assert!(meta.csum_blank, "the kernel wants that of a large frame");
        // As the kernel wants it: the pseudo header's sum stands where the checksum will be, IPv4's own is right.
        let found = find(&bytes[..bytes.len().min(256)], bytes.len()).expect("TCP");
        let at = found.at + found.checksum;
        assert_eq!(bytes[at..at + 2], found.pseudo(bytes).to_be_bytes());
        assert!(found.ipv6 || fold(sum(&bytes[found.ip..found.at])) == 0xffff);
        assert_eq!(found.end, bytes.len());
        let mut cut = Cut::new(bytes, gso).expect("TCP");
        while let Some(one) = cut.segment(bytes) {
            all.push([one.headers, one.payload].concat());
            cut.advance();
        }
    }
    all
}

/// Where two lists of frames differ first: which frame, and which byte of it. `None`: nowhere.
fn first_difference(received: &[Vec<u8>], sent: &[Vec<u8>]) -> Option<(usize, usize)> {
    let frames = received.len().max(sent.len());
    let which = (0..frames).find(|&n| received.get(n) != sent.get(n))?;
    let frame = |all: &[Vec<u8>]| all.get(which).cloned().unwrap_or_default();
    let (left, right) = (frame(received), frame(sent));
    let bytes = left.len().max(right.len());
    let byte = (0..bytes).find(|&n| left.get(n) != right.get(n));
    Some((which, byte.unwrap_or(0)))
}

fn plain(frames: &[Vec<u8>]) -> Vec<Came> {
    frames
        .iter()
        .map(|bytes| (bytes.clone(), Meta::default()))
        .collect()
}

/// Ten segments of one flow.
fn ten(recipe: Recipe) -> Vec<Vec<u8>> {
    let all = segments(
        &Recipe {
            payload: 14_000,
            ..recipe
        },
        1400,
    );
    assert_eq!(all.len(), 10);
    all
}

/// Changes a segment, and sums it up again.
fn changed(segment: &[u8], change: impl Fn(&mut [u8], usize, usize)) -> Vec<u8> {
    let mut bytes = segment.to_vec();
    let found = find(&bytes[..256], bytes.len()).expect("TCP");
    change(&mut bytes, found.ip, found.at);
    if !found.ipv6 {
        bytes[found.ip + 10..found.ip + 12].fill(0);
        let check = !fold(sum(&bytes[found.ip..found.at]));
        bytes[found.ip + 10..found.ip + 12].copy_from_slice(&check.to_be_bytes());
    }
    if find(&bytes[..256], bytes.len()).is_some() {
        assert!(fill_in_blank(&mut bytes));
    }
    bytes
}

#[test]
fn segments_of_a_flow_are_one_frame() {
    for ipv6 in [false, true] {
        let came = plain(&ten(Recipe {
            ipv6,
            ..Recipe::default()
        }));
        let out = merged(&came);
        assert_eq!(out.len(), 1, "ipv6 {ipv6}");
        let gso = out[0].1.gso.expect("it is large");
        assert_eq!((gso.size, out[0].1.csum_blank), (1400, true));
    }
}

#[test]
fn blank_checksums_are_believed_and_others_looked_at() {
    let mut all = ten(Recipe::default());
    let mut blank: Vec<Came> = all.iter().map(|bytes| (bytes.clone(), BLANK)).collect();
    // Nothing is summed up: whatever stands there is no checksum.
    for (bytes, _) in &mut blank {
        bytes[50..52].fill(0xaa);
    }
    assert_eq!(merged(&blank).len(), 1);
    // The fourth one is damaged: it goes as it came, in its place.
    let last = all[3].len() - 1;
    all[3][last] ^= 1;
    let out = merged(&plain(&all));
    assert_eq!(out.len(), 3);
    assert!(out[1].0 == all[3] && out[1].1 == Meta::default());
    assert_eq!(received(&out), all);
    // The first one: it is not known as damaged before the second one comes.
    let mut all = ten(Recipe::default());
    let last = all[0].len() - 1;
    all[0][last] ^= 1;
    let out = merged(&plain(&all));
    assert!(out.len() == 2 && out[0].0 == all[0] && out[0].1.gso.is_none());
    // That a peer calls it checked does not count.
    let checked = Meta {
        data_validated: true,
        ..Meta::default()
    };
    let told: Vec<Came> = all.iter().map(|bytes| (bytes.clone(), checked)).collect();
    assert!(merged(&told)[0].1.gso.is_none());
}

/// What makes a segment another one's stranger, and how many frames are left of ten if it is the sixth.
#[test]
fn what_differs_is_not_merged() {
    type Change = fn(&mut [u8], usize, usize);
    let both: [(&str, Change); 14] = [
        ("destination address, Ethernet", |b, _, _| b[0] ^= 4),
        ("source port", |b, _, at| b[at] ^= 1),
        ("destination port", |b, _, at| b[at + 3] ^= 1),
        ("sequence number: a gap", |b, _, at| b[at + 7] ^= 1),
        ("acknowledgement", |b, _, at| b[at + 11] ^= 1),
        ("window", |b, _, at| b[at + 15] ^= 1),
        ("urgent pointer", |b, _, at| b[at + 19] ^= 1),
        ("option", |b, _, at| b[at + 22] ^= 2),
        ("ECE", |b, _, at| b[at + 13] ^= 0x40),
        ("CWR", |b, _, at| b[at + 13] |= 0x80),
        ("URG", |b, _, at| b[at + 13] |= 0x20),
        ("RST", |b, _, at| b[at + 13] |= 0x04),
        ("SYN", |b, _, at| b[at + 13] |= 0x02),
        ("no ACK", |b, _, at| b[at + 13] &= !0x10),
    ];
    let four: [(&str, Change); 7] = [
        ("type of service", |b, ip, _| b[ip + 1] ^= 0x10),
        ("ECN: congestion experienced", |b, ip, _| b[ip + 1] |= 3),
        ("identification", |b, ip, _| b[ip + 5] ^= 0x80),
        ("may be fragmented", |b, ip, _| b[ip + 6] ^= 0x40),
        ("the reserved flag", |b, ip, _| b[ip + 6] |= 0x80),
        ("TTL", |b, ip, _| b[ip + 8] -= 1),
        ("source address", |b, ip, _| b[ip + 15] ^= 1),
    ];
    let six: [(&str, Change); 4] = [
        ("traffic class", |b, ip, _| b[ip + 1] ^= 0x30),
        ("flow label", |b, ip, _| b[ip + 3] ^= 1),
        ("hop limit", |b, ip, _| b[ip + 7] -= 1),
        ("destination address", |b, ip, _| b[ip + 39] ^= 1),
    ];
    let cases = both.iter().flat_map(|case| [(false, case), (true, case)]);
    let cases = cases.chain(four.iter().map(|case| (false, case)));
    for (ipv6, (name, change)) in cases.chain(six.iter().map(|case| (true, case))) {
        let mut all = ten(Recipe {
            ipv6,
            ..Recipe::default()
        });
        all[5] = changed(&all[5], change);
        let out = merged(&plain(&all));
        assert_eq!(received(&out), all, "{name}, ipv6 {ipv6}");
        assert_eq!(out.len(), 3, "{name}, ipv6 {ipv6}");
        assert_eq!(out[1].0, all[5], "{name}, ipv6 {ipv6}");
    }
}

#[test]
fn a_push_and_a_short_segment_end_a_frame() {
    let mut all = ten(Recipe {
        payload: 0,
        ..Recipe::default()
    });
    all[5] = changed(&all[5], |bytes, _, at| bytes[at + 13] |= 0x08);
    let out = merged(&plain(&all));
    assert_eq!((out.len(), received(&out)), (2, all.clone()));
    let flags = |frame: &Came| frame.0[34 + 13];
    assert_eq!([flags(&out[0]), flags(&out[1])], [0x18, 0x10]);
    // One that begins with a push is alone: nothing may follow it.
    all[0] = changed(&all[0], |bytes, _, at| bytes[at + 13] |= 0x08);
    let out = merged(&plain(&all));
    assert_eq!((out.len(), received(&out)), (3, all));
    let short = segments(
        &Recipe {
            payload: 3000,
            ..Recipe::default()
        },
        1400,
    );
    let mut twice = short.clone();
    // The same again: it comes before what is expected.
    twice.extend(short);
    let out = merged(&plain(&twice));
    assert_eq!((out.len(), received(&out)), (2, twice));
}

/// A segment whose checksum is 0, or 0xffff (`ones`), which is the same number to a receiver: the first word of its
/// payload is changed so that everything adds up to that. One without such a word stays as it is.
fn summed_to_zero(segment: &[u8], ones: bool) -> Vec<u8> {
    let mut bytes = segment.to_vec();
    let found = find(&bytes[..bytes.len().min(256)], bytes.len());
    let Some(found) = found.filter(|found| found.payload + 2 <= found.end) else {
        return bytes;
    };
    let word = |at: usize| u64::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let (first, checksum) = (word(found.payload), word(found.at + found.checksum));
    let first = fold(first + checksum);
    bytes[found.payload..found.payload + 2].copy_from_slice(&first.to_be_bytes());
    let at = found.at + found.checksum;
    bytes[at..at + 2].fill(if ones { 0xff } else { 0 });
    bytes
}

#[test]
fn a_checksum_of_zero_comes_back_as_zero_and_its_other_form_is_not_merged() {
    for ipv6 in [false, true] {
        let mut all = ten(Recipe {
            ipv6,
            ..Recipe::default()
        });
        let [zero, ones] = [false, true].map(|ones| summed_to_zero(&all[5], ones));
        all[5] = zero;
        assert_eq!(merged(&plain(&all)).len(), 1, "ipv6 {ipv6}: it is right");
        assert_eq!(received(&merged(&plain(&all))), all, "ipv6 {ipv6}");
        let alone = vec![(all[5].clone(), BLANK)];
        assert_eq!(received(&merged(&alone)), all[5..6], "ipv6 {ipv6}");
        all[5] = ones;
        let out = merged(&plain(&all));
        assert_eq!(received(&out), all, "ipv6 {ipv6}");
        assert_eq!((out.len(), &out[1].0), (3, &all[5]), "ipv6 {ipv6}");
        // As the first of a flow, too.
        assert_eq!(
            received(&merged(&plain(&all[5..]))),
            all[5..],
            "ipv6 {ipv6}"
        );
    }
}

#[test]
fn fins_fragments_options_and_padding_go_by_themselves() {
    let fin = segments(
        &Recipe {
            flags: 0x11,
            payload: 2800,
            ..Recipe::default()
        },
        1400,
    );
    let out = merged(&plain(&fin));
    assert_eq!((out.len(), received(&out)), (2, fin));
    for recipe in [
        Recipe {
            options: 1,
            ..Recipe::default()
        },
        Recipe {
            options: 1,
            ipv6: true,
            ..Recipe::default()
        },
    ] {
        let all = ten(recipe);
        assert_eq!(merged(&plain(&all)).len(), 10);
    }
    let mut padded = ten(Recipe::default());
    padded.iter_mut().for_each(|bytes| bytes.push(0));
    assert_eq!(merged(&plain(&padded)).len(), 10);
    let fragments: Vec<_> = ten(Recipe::default())
        .iter()
        .map(|one| {
            let mut one = one.clone();
            one[14 + 6] |= 0x20;
            one
        })
        .collect();
    assert_eq!(merged(&plain(&fragments)), plain(&fragments));
    // A wrong checksum of IPv4's header is not made right.
    let mut wrong = ten(Recipe::default());
    wrong[4][14 + 10] ^= 1;
    assert_eq!(received(&merged(&plain(&wrong))), wrong);
}

#[test]
fn a_frame_has_at_most_65535_bytes() {
    let mut all = Vec::new();
    for n in 0..3_u32 {
        let recipe = Recipe {
            payload: 60_000,
            sequence: 60_000_u32.wrapping_mul(n).wrapping_sub(90_000),
            id: 40_u16
                .wrapping_mul(u16::try_from(n).expect("small"))
                .wrapping_sub(50),
            ..Recipe::default()
        };
        all.extend(segments(&recipe, 1500));
    }
    assert_eq!(all.len(), 120);
    let out = merged(&plain(&all));
    assert!(out.len() == 3 && out.iter().all(|(bytes, _)| bytes.len() <= 65_535));
    assert!(out[0].0.len() > 64_000);
    // Payload depends on the sequence number of each large frame alone, so all of it can be compared.
    assert_eq!(received(&out), all);
}

/// What a hostile sender makes of a segment.
#[derive(Clone, Copy, Debug)]
enum Hurt {
    Not,
    Bit(usize),
    Cut(usize),
    Longer(usize),
    Noise(u64),
    Resummed(usize),
    /// Its checksum is 0, or the other form of that.
    ZeroSum {
        ones: bool,
    },
    Gone,
    Twice,
}

fn hurts() -> impl Strategy<Value = Hurt> {
    prop_oneof![
        12 => Just(Hurt::Not),
        2 => (0..1000_usize).prop_map(Hurt::Bit),
        1 => (14..400_usize).prop_map(Hurt::Cut),
        1 => (1..100_usize).prop_map(Hurt::Longer),
        1 => any::<u64>().prop_map(Hurt::Noise),
        3 => (0..80_usize * 8).prop_map(Hurt::Resummed),
        1 => any::<bool>().prop_map(|ones| Hurt::ZeroSum { ones }),
        1 => Just(Hurt::Gone),
        1 => Just(Hurt::Twice),
    ]
}

fn hurt(segment: &[u8], how: Hurt) -> Vec<Vec<u8>> {
    let flip = |bit: usize| {
        let mut bytes = segment.to_vec();
        let at = bit / 8 % bytes.len();
        bytes[at] ^= 1 << (bit % 8);
        bytes
    };
    match how {
        Hurt::Not => vec![segment.to_vec()],
        Hurt::Bit(bit) => vec![flip(bit)],
        Hurt::Cut(len) => vec![segment[..len.min(segment.len())].to_vec()],
        Hurt::Longer(more) => vec![[segment, &vec![0; more]].concat()],
        Hurt::Noise(seed) => vec![
            (0..segment.len() as u64)
                .map(|n| (n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0])
                .collect(),
        ],
        // A header that differs, with right checksums: where it can be parsed.
        Hurt::Resummed(bit) => {
            let flipped = flip(bit);
            match find(&flipped[..flipped.len().min(256)], flipped.len()) {
                Some(_) if flipped.len() > 256 => vec![changed(&flipped, |_, _, _| ())],
                _ => vec![flipped],
            }
        }
        Hurt::ZeroSum { ones } => vec![summed_to_zero(segment, ones)],
        Hurt::Gone => vec![],
        Hurt::Twice => vec![segment.to_vec(), segment.to_vec()],
    }
}

fn flows() -> impl Strategy<Value = (Recipe, u16)> {
    let net = (
        any::<bool>(),
        0..2_u8,
        any::<u16>(),
        proptest::collection::vec(Just(0x8100_u16), 0..2),
    );
    let transport = (
        0..=10_u8,
        any::<u32>(),
        prop_oneof![Just(0x10), Just(0x18), Just(0x50), any::<u8>()],
    );
    (net, transport, 200..9000_u16, 0..40_usize).prop_map(|(net, transport, size, count)| {
        let (ipv6, options, id, tags) = net;
        let (tcp_options, sequence, flags) = transport;
        let payload = (usize::from(size) * count + usize::from(id) % usize::from(size)).min(64_000);
        let recipe = Recipe {
            tags,
            ipv6,
            options: options.saturating_sub(u8::from(id % 4 > 0)),
            tcp_options,
            flags,
            id,
            sequence,
            payload,
            ..Recipe::default()
        };
        (recipe, size)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_received_is_what_was_sent(
        flows in proptest::collection::vec(flows(), 1..4),
        hurts in proptest::collection::vec(hurts(), 1..60),
        turns in 1..50_usize,
        blank in any::<bool>(),
    ) {
        let all: Vec<Vec<Vec<u8>>> = flows.iter().map(|(recipe, size)| segments(recipe, *size)).collect();
        // Flows take turns; each segment is hurt, or not.
        let mut came = Vec::new();
        let longest = all.iter().map(Vec::len).max().unwrap_or(0);
        let mut how = hurts.iter().cycle();
        for from in (0..longest).step_by(turns) {
            for flow in &all {
                for segment in flow.iter().skip(from).take(turns) {
                    came.extend(hurt(segment, *how.next().expect("endless")));
                }
            }
        }
        let came = plain(&came);
        let sent: Vec<Vec<u8>> = came.iter().map(|(bytes, _)| bytes.clone()).collect();
        prop_assert_eq!(first_difference(&received(&merged(&came)), &sent), None);
        if blank {
            // Blank checksums, of frames that have one: whole and unhurt ones.
            let whole: Vec<Came> = all.concat().into_iter().map(|bytes| (bytes, BLANK)).collect();
            prop_assert_eq!(first_difference(&received(&merged(&whole)), &all.concat()), None);
        }
    }
}
