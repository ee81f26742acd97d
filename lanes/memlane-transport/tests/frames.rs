//! docs/formats/tcp-device.md shows the bytes that the code makes; however a stream is cut into pieces, the same comes out.

use memlane_core::access::SharedBytes;
use memlane_fixtures::golden;
use memlane_transport::io::frame::{FrameError, HEADER, Header, MAX_TAIL, Step, WriteTarget};
use memlane_transport::io::inflow::{Granted, Inflow, Received};
use proptest::prelude::*;
use std::ptr::NonNull;

const WRITE: WriteTarget = WriteTarget {
    addr: 0x1122_3344_5566_7000,
    key: 0xaabb_ccdd,
    len: 4096,
    tail_at: 4096,
    tail: 36,
};

#[test]
fn headers_are_as_the_page_shows_them() {
    let imm = Some(0x0018_1020);
    let all = [
        ("connect", Header::Step(Step::Connect)),
        ("accept", Header::Step(Step::Accept)),
        ("reject", Header::Step(Step::Reject)),
        (
            "send",
            Header::Send {
                len: 272,
                imm: None,
            },
        ),
        ("send with immediate", Header::Send { len: 8, imm }),
        ("write", Header::Write { place: WRITE, imm }),
        ("immediate", Header::Immediate(0x8000_0000)),
        (
            "share",
            Header::Share {
                slots: 128,
                base: 0x1122_3344_5566_7000,
            },
        ),
        (
            "place",
            Header::Place {
                slots: 128,
                base: 0x1122_3344_5566_7000,
            },
        ),
    ];
    let page = golden::page("tcp-device");
    for (name, header) in all {
        let bytes = header.encode();
        let told = golden::dump(name, &bytes);
        assert!(page.contains(&told), "the page does not show\n{told}");
        assert_eq!(Header::decode(&bytes), Ok(header), "{name}");
    }
}

#[test]
fn a_bit_that_means_nothing_here_is_noticed() {
    let mut noticed = 0;
    for header in [Header::Immediate(7), Header::Step(Step::Connect)] {
        let whole = header.encode();
        for bit in 0..HEADER * 8 {
            let mut bytes = whole;
            bytes[bit / 8] ^= 1 << (bit % 8);
            noticed += usize::from(Header::decode(&bytes).is_err());
        }
    }
    // All but: 32 bits of the immediate, two of its kind that make it another step or nothing with another meaning.
    assert!(noticed > 2 * HEADER * 8 - 40, "{noticed}");
    let long = u16::try_from(MAX_TAIL + 1).expect("it fits");
    let place = WriteTarget {
        tail: long,
        ..WRITE
    };
    let bytes = Header::Write { place, imm: None }.encode();
    assert_eq!(
        Header::decode(&bytes),
        Err(FrameError::TooLong(u32::from(long)))
    );
}

/// Memory with one window in it, and what must stay as it is around it.
struct Window {
    bytes: Vec<u8>,
    asked: Vec<WriteTarget>,
}

const BASE: u64 = 0x10_0000;
const KEY: u32 = 5;
const GUARD: usize = 64;
const ROOM: usize = 200_000;

impl Window {
    fn new() -> Window {
        let bytes = vec![0; GUARD + ROOM + GUARD];
        let asked = Vec::new();
        Window { bytes, asked }
    }
}

impl Granted for Window {
    fn window(&mut self, place: &WriteTarget) -> Option<SharedBytes> {
        self.asked.push(*place);
        let base = NonNull::new(self.bytes[GUARD..].as_mut_ptr())?;
        // SAFETY: the vector is not touched while a stream is taken in.
        let all = unsafe { SharedBytes::new(base, ROOM) };
        let at = usize::try_from(place.addr.checked_sub(BASE)?).ok()?;
        let granted = all.part(at, usize::try_from(place.span()).ok()?);
        granted.filter(|_| place.key == KEY)
    }
}

/// Takes a stream in, in pieces of at most these lengths, as a socket would deliver it.
fn take_in(stream: &[u8], pieces: &[usize]) -> (Vec<Received>, Result<(), FrameError>, Vec<u8>) {
    let (mut inflow, mut window) = (Inflow::new(1000), Window::new());
    let (mut received, mut rest) = (Vec::new(), stream);
    let mut pieces = pieces.iter().cycle();
    loop {
        match inflow.next(&mut window) {
            Ok(Some(one)) => received.push(one),
            Err(error) => return (received, Err(error), window.bytes),
            Ok(None) if rest.is_empty() => return (received, Ok(()), window.bytes),
            Ok(None) => {
                let room = inflow.room();
                let total: usize = room.iter().map(|piece| piece.len).sum();
                assert!(total > 0);
                let mut count = total.min(rest.len()).min(*pieces.next().expect("a cycle"));
                inflow.came({
                    let all = count;
                    for piece in room {
                        let now = piece.len.min(count);
                        // SAFETY: the piece is writable for its length; a part of it, if any, is written.
                        unsafe { memlane_core::access::copy(piece.base, rest.as_ptr(), now) };
                        (rest, count) = (&rest[now..], count - now);
                    }
                    all
                });
            }
        }
    }
}

fn write(addr: u64, data: &[u8], tail_at: u32, tail: &[u8], imm: Option<u32>) -> Vec<u8> {
    let place = WriteTarget {
        addr,
        key: KEY,
        len: u32::try_from(data.len()).expect("it fits"),
        tail_at,
        tail: u16::try_from(tail.len()).expect("it fits"),
    };
    [&Header::Write { place, imm }.encode(), tail, data].concat()
}

fn send(bytes: &[u8], imm: Option<u32>) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).expect("it fits");
    [&Header::Send { len, imm }.encode(), bytes].concat()
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
    let imm = proptest::option::of(any::<u32>());
    prop_oneof![
        (
            0..1000_u64,
            bytes(100_000),
            0..50_000_u32,
            bytes(300),
            imm.clone()
        )
            .prop_map(|(at, data, tail_at, tail, imm)| write(
                BASE + at,
                &data,
                tail_at,
                &tail,
                imm
            )),
        (bytes(999), imm).prop_map(|(bytes, imm)| send(&bytes, imm)),
        any::<u32>().prop_map(|imm| Header::Immediate(imm).encode().to_vec()),
        any::<[u8; 56]>()
            .prop_map(|private| [&Header::Step(Step::Accept).encode()[..], &private].concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn however_a_stream_is_cut_the_same_comes_out(
        frames in proptest::collection::vec(frame(), 1..12),
        pieces in proptest::collection::vec(1..70_000_usize, 1..8),
    ) {
        let stream = frames.concat();
        let whole = take_in(&stream, &[usize::MAX]);
        prop_assert_eq!(&whole.1, &Ok(()));
        prop_assert!(take_in(&stream, &pieces) == whole);
        prop_assert!(take_in(&stream, &[1 + pieces[0] % 50, 7000]) == whole);
    }

    #[test]
    fn garbage_behind_good_frames_ends_the_stream_or_is_harmless(
        frames in proptest::collection::vec(frame(), 0..3),
        garbage in proptest::collection::vec(any::<u8>(), 0..300),
        pieces in proptest::collection::vec(1..5000_usize, 1..4),
    ) {
        let stream = [frames.concat(), garbage].concat();
        let (whole, result, memory) = take_in(&stream, &[usize::MAX]);
        let again = take_in(&stream, &pieces);
        prop_assert!(again.0 == whole && again.1 == result);
        let guards = memory[..GUARD].iter().chain(&memory[GUARD + ROOM..]);
        prop_assert!(guards.copied().all(|byte| byte == 0));
    }
}

#[test]
fn data_and_tail_are_in_place_before_the_immediate_is_told() {
    let data: Vec<u8> = (0..100_000_u32)
        .map(|n| n.to_le_bytes()[0] ^ 0x5a)
        .collect();
    let stream = write(BASE + 10, &data, 100_000, b"the tail", Some(9));
    let (received, result, memory) = take_in(&stream, &[33_333]);
    assert_eq!((received, result), (vec![Received::Immediate(9)], Ok(())));
    assert!(memory[GUARD + 10..GUARD + 100_010] == data[..]);
    assert_eq!(&memory[GUARD + 100_010..][..8], b"the tail");
}

#[test]
fn a_write_that_was_not_granted_places_nothing() {
    let outside = [
        write(BASE - 1, b"data", 4, b"tail", None),
        write(BASE + ROOM as u64 - 3, b"data", 0, b"", None),
        write(BASE, b"data", 199_997, b"tail", None),
        write(BASE, b"", u32::MAX, b"tail", None),
        write(u64::MAX, b"data", u32::MAX, b"tail", None),
    ];
    for stream in outside {
        let (received, result, memory) = take_in(&stream, &[usize::MAX]);
        assert_eq!((received.len(), result), (0, Err(FrameError::NotGranted)));
        assert!(memory.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_message_longer_than_is_taken_is_refused_before_it_comes() {
    let header = Header::Send {
        len: 1001,
        imm: None,
    };
    let (_, result, _) = take_in(&header.encode(), &[usize::MAX]);
    assert_eq!(result, Err(FrameError::TooLong(1001)));
}
