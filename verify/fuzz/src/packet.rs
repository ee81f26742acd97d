//! The packet lane: a link's messages, rings that the other side has written, headers of frames, capture files.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use memlane_fixtures::frames::copied;
use memlane_fixtures::script::{self, EXTRA, Image, MORE, SLOTS, TxOracle, Wrong};
use memlane_fixtures::world::World;
use memlane_packet::Offloads;
use memlane_packet::wire::{Attach, Hello, LEN, Message};
use memlane_packet::{Detach, Meta, Mode, More, Sent, Sleep};
use memlane_packet_ends::headers::{self, LOOK};
use memlane_packet_ends::pcap::{Capture, Replay};
use memlane_packet_ends::{End, EndError, vnet};

/// A message of a front or a back: refused, or the same after encoding it again.
pub fn packet_link(bytes: &[u8]) -> bool {
    let Ok(message) = Message::decode(bytes) else {
        return false;
    };
    assert_eq!(message.encode(), bytes);
    true
}

/// Seeds of it.
pub fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let offloads = Offloads {
        gso4: true,
        gso6: false,
    };
    let hello = Hello {
        modes: [true, false, true],
        offloads,
        queues: 4,
        ring_log2: 8,
        memory: 1 << 30,
    };
    let attach = Attach {
        mode: Mode::Map,
        offloads,
        queues: 2,
        ring_log2: 5,
        grants: 64,
        control: 24576,
        tx: 1 << 18,
        rx: 1 << 18,
    };
    let all = [
        ("hello", Message::Hello(hello)),
        ("attach", Message::Attach(attach)),
        ("attached", Message::Attached),
        ("refused", Message::Refused(2)),
        ("detach", Message::Detach(1)),
    ];
    all.map(|(name, message)| (name, message.encode().to_vec()))
        .into()
}

const _: () = assert!(LEN == 48);

/// What the other side does to a queue's memory between our steps, each in 8 bytes; the first byte of all says who we
/// are. A back must lend exactly the frames that the document says lie there. Believed: a frame came.
pub fn packet_rings(bytes: &[u8]) -> bool {
    let Some((role, acts)) = bytes.split_first() else {
        return false;
    };
    let world = World::new(5, script::GRANTS, 0);
    match Mode::ALL.get(usize::from(role % 4)) {
        Some(mode) => {
            drop(world.front());
            back(&world, *mode, acts)
        }
        None => front(&world, acts),
    }
}

struct Act {
    what: u8,
    small: u8,
    short: u16,
    word: u32,
}

fn acts(bytes: &[u8]) -> impl Iterator<Item = Act> {
    bytes.chunks_exact(8).take(256).map(|act| Act {
        what: act[0],
        small: act[1],
        short: u16::from_le_bytes([act[2], act[3]]),
        word: u32::from_le_bytes([act[4], act[5], act[6], act[7]]),
    })
}

/// One word anywhere in the control memory.
fn anywhere(world: &World, image: &Image<'_>, act: &Act) {
    let words = world.memory.control().len() / 4;
    image.set(usize::from(act.short) % words * 4, act.word);
}

/// What went wrong is the other side's doing, as nobody else was there.
fn blamed(why: Detach) -> bool {
    assert!(why.is_hostile(), "{why}");
    false
}

fn back(world: &World, mode: Mode, bytes: &[u8]) -> bool {
    let (image, mut back) = (Image(world), world.back(mode, 8));
    let mut oracle = TxOracle {
        taken: 0,
        seen: 0,
        shown: 0,
        answers: Vec::new(),
    };
    let mut frames = 0;
    for act in acts(bytes) {
        let slot = u32::from(act.small);
        match act.what % 8 {
            0 => image.set_requests(0, oracle.taken.wrapping_add(act.word)),
            // A request: the offset's high bits hold the flags.
            1 => {
                let (gref, flags) = (act.word & 0xff, u32::from(act.what >> 3) & 15);
                let pair = act.word >> 8 & 0x1fff | flags << 16;
                let size = u32::from(act.short);
                image.put(0, slot, &[gref, pair, slot | size << 16]);
            }
            2 => image.put(0, slot, &[act.word, u32::from(act.short)]),
            3 => {
                let [region, frame, ..] = act.word.to_le_bytes();
                image.grant(
                    slot % script::GRANTS,
                    act.short,
                    region.into(),
                    frame.into(),
                );
            }
            4 => anywhere(world, &image, &act),
            5 => {
                image.set_requests(1, act.word);
                let len = usize::from(act.short);
                let sent = back.send(len, Meta::default(), |room| assert_eq!(room.len(), len));
                if let Err(why) = sent.and_then(|_| back.flush()) {
                    return blamed(why);
                }
            }
            6 => {
                let until = Sleep {
                    frames: true,
                    room: u32::from(act.short),
                };
                if let Err(why) = back.sleeps(until) {
                    return blamed(why);
                }
                // It has looked.
                oracle.seen = image.requests(0);
            }
            _ => {
                let most = 1 + usize::from(act.small % 8);
                match compare(&image, &mut back, &mut oracle, most) {
                    Ok(n) => frames += n,
                    Err(why) => return blamed(why),
                }
            }
        }
    }
    frames > 0
}

/// A burst, and what the oracle says of it.
fn compare(
    image: &Image<'_>,
    back: &mut memlane_packet::engine::back::Back<memlane_packet::io::Regions>,
    oracle: &mut TxOracle,
    most: usize,
) -> Result<usize, Detach> {
    oracle.begins(image);
    let (mut expected, mut ends) = (Vec::new(), false);
    while expected.len() < most && !ends {
        match oracle.next(image) {
            Ok(Some(packet)) => expected.push(packet),
            Ok(None) => break,
            Err(Wrong) => ends = true,
        }
    }
    let mut got = Vec::new();
    let burst = back.receive(most, |frame| got.push(copied(frame)));
    assert!(
        got == expected,
        "{} frames, not {}",
        got.len(),
        expected.len()
    );
    assert_eq!(burst.is_err(), ends, "{burst:?}");
    burst?;
    oracle.ended(image, got.len(), most);
    Ok(got.len())
}

fn front(world: &World, bytes: &[u8]) -> bool {
    let (mut front, image) = (world.front(), Image(world));
    let mut frames = 0;
    for act in acts(bytes) {
        let slot = u32::from(act.small);
        let done = match act.what % 6 {
            0 => {
                image.set_responses(usize::from(act.small & 1), act.word);
                Ok(0)
            }
            1 => {
                // An answer of the slot's own id, more often than not.
                let id = if act.small & 0x80 == 0 {
                    slot % SLOTS
                } else {
                    slot
                };
                let flags = (u32::from(act.what) / 6) & 15;
                let words = [
                    id | act.word & 0xffff_0000,
                    flags | u32::from(act.short) << 16,
                ];
                image.put(1, slot, &words);
                Ok(0)
            }
            2 => {
                image.put(0, slot, &[act.word]);
                Ok(0)
            }
            3 => {
                anywhere(world, &image, &act);
                Ok(0)
            }
            4 => {
                let len = usize::from(act.short);
                let sent = front.send(len, Meta::default(), |room| assert_eq!(room.len(), len));
                sent.and_then(|_| front.flush()).map(|_| 0)
            }
            _ => {
                let most = 1 + usize::from(act.small);
                let mut n = 0;
                let burst = front.receive(most, |frame| {
                    n += 1;
                    assert!((14..=65535).contains(&frame.len()));
                    copied(frame);
                });
                assert!(n <= most && n <= SLOTS as usize);
                burst.map(|_| n)
            }
        };
        match done {
            Ok(n) => frames += n,
            Err(why) => return blamed(why),
        }
    }
    frames > 0
}

fn act(what: u8, small: u8, short: u16, word: u32) -> Vec<u8> {
    let [low, high] = short.to_le_bytes();
    [&[what, small, low, high][..], &word.to_le_bytes()].concat()
}

/// Seeds of it.
pub fn rings() -> Vec<(&'static str, Vec<u8>)> {
    let flags = |flags: u16| u8::try_from(flags).unwrap_or(0) << 3 | 1;
    let receive = act(7, 7, 0, 0);
    let one = [
        act(flags(0), 0, 64, 3),
        act(0, 0, 0, 1),
        receive.clone(),
        act(flags(0), 1, 1500, 4),
        act(0, 0, 0, 1),
        receive.clone(),
    ]
    .concat();
    let chain = [
        act(flags(MORE), 0, 3000, 1),
        act(flags(MORE), 1, 1000, 2),
        act(flags(0), 2, 500, 3 | 64 << 8),
        act(0, 0, 0, 3),
        receive.clone(),
        act(6, 0, 1, 0),
    ];
    let extra = [
        act(flags(EXTRA | 1), 0, 100, 5),
        act(2, 1, 1, 1 | 1448 << 16),
        act(0, 0, 0, 2),
        receive,
    ];
    let sends = [act(5, 0, 1500, 32), act(5, 0, 9000, 32), act(3, 33, 5, 0)];
    let back = |mode: u8, acts: &[Vec<u8>]| [vec![mode], acts.concat()].concat();
    let front = [
        vec![3],
        act(1, 0, 64, 0),
        act(1, 1, 1500, 64 << 16),
        act(0, 1, 0, 2),
        act(5, 7, 0, 0),
        act(4, 0, 9000, 0),
        act(2, 0, 0, 0),
        act(0, 0, 0, 1),
        act(5, 7, 0, 0),
    ];
    vec![
        ("one", [vec![0], one].concat()),
        ("chain", back(1, &chain)),
        ("extra", back(2, &extra)),
        ("sends", back(0, &[&sends[..], &chain[..]].concat())),
        ("front", front.concat()),
    ]
}

/// A TAP device's header and its frame. What is found lies inside the frame, the header is written as it was read, and a
/// checksum that is filled in is right. Believed if there is a transport header.
pub fn packet_headers(bytes: &[u8]) -> bool {
    let Some((header, frame)) = bytes.split_first_chunk::<{ vnet::LEN }>() else {
        return false;
    };
    let (look, len) = (&frame[..frame.len().min(LOOK)], frame.len());
    let found = headers::find(look, len);
    if let Some(found) = found {
        assert!(found.ip + 20 <= found.at && found.at + found.checksum + 2 <= found.payload);
        assert!(found.payload <= found.end && found.end <= len && found.payload <= look.len());
        let mut filled = frame.to_vec();
        let at = found.at + found.checksum;
        filled[at..at + 2].copy_from_slice(&found.pseudo(look).to_be_bytes());
        assert!(headers::fill_in(
            &mut filled,
            found.at,
            found.checksum,
            found.end
        ));
        let sum = headers::sum(&filled[found.at..found.end]) + u64::from(found.pseudo(look));
        assert_eq!(headers::fold(sum), 0xffff);
    }
    match vnet::read(header, look, len) {
        vnet::Read::Said(meta) => {
            let told = vnet::write(meta, look, len).expect("its headers bear it out");
            if meta.csum_blank {
                assert_eq!((told[0], &told[6..]), (1, &header[6..]), "checksum");
            }
            assert_eq!(meta.gso.is_some(), told[1] != 0);
            if let Some(gso) = meta.gso {
                assert!(gso.size > 0 && told[4..6] == header[4..6]);
            }
        }
        vnet::Read::FillIn(start, offset) => {
            let mut filled = frame.to_vec();
            let inside = start + offset + 2 <= len;
            assert_eq!(headers::fill_in(&mut filled, start, offset, len), inside);
        }
        vnet::Read::Unusable => {}
    }
    found.is_some()
}

/// Seeds of it.
pub fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let vnet = |flags, gso, size: u16, start: u16, offset: u16| {
        let words = [size, start, offset].map(u16::to_ne_bytes).concat();
        [&[flags, gso, 0, 0][..], &words].concat()
    };
    let tcp = |tags: &[u8], payload: u8| {
        let mut frame = [
            &[2; 12][..],
            tags,
            &[8, 0, 0x45, 0, 0, 40 + payload, 0, 0, 0x40, 0, 64, 6, 0, 0],
        ]
        .concat();
        frame.extend([
            10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10,
        ]);
        frame.extend([0; 6]);
        frame.extend(vec![7; payload.into()]);
        frame
    };
    let mut udp6 = [
        &[2; 12][..],
        &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 0, 64],
        &[0xfd; 32],
    ]
    .concat();
    udp6.extend([17, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 12, 0, 0, 1, 2, 3, 4]);
    vec![
        ("plain", [vnet(0, 0, 0, 0, 0), tcp(&[], 9)].concat()),
        ("blank", [vnet(1, 0, 0, 34, 16), tcp(&[], 9)].concat()),
        (
            "large",
            [vnet(1, 1, 100, 38, 16), tcp(&[0x81, 0, 0, 7], 200)].concat(),
        ),
        ("elsewhere", [vnet(1, 0, 0, 20, 4), tcp(&[], 30)].concat()),
        ("options", [vnet(1, 0, 0, 62, 6), udp6].concat()),
    ]
}

/// A capture file: what comes out is frames, and the same again out of a file of ours. Believed: a frame came.
pub fn capture(bytes: &[u8]) -> bool {
    let file = memory_file();
    (&file).write_all(bytes).expect("memory");
    let (frames, error) = replayed(&path_of(&file));
    let whole: usize = frames.iter().map(Vec::len).sum();
    assert!(whole + 24 <= bytes.len() || frames.is_empty());
    assert!(
        matches!(error, EndError::Finished | EndError::Malformed(_)),
        "{error:?}"
    );
    if frames.is_empty() {
        return false;
    }
    let copy = memory_file();
    let mut capture = Capture::create(Path::new(&path_of(&copy))).expect("memory");
    let mut again = Replay::open(Path::new(&path_of(&file)), false).expect("it was one");
    let written = again.receive(frames.len(), &mut |frame| {
        assert_eq!(capture.send(frame), Ok(Sent::Queued));
        More::Yes
    });
    assert_eq!(written, Ok(frames.len()));
    assert_eq!(capture.sleeps(Sleep::FOR_FRAMES), Ok(true));
    assert!(replayed(&path_of(&copy)) == (frames, EndError::Finished));
    true
}

fn memory_file() -> std::fs::File {
    let fd = memlane_sys::mem::memfd(c"capture", 0, false).expect("memory");
    let path = format!("/proc/self/fd/{}", fd.raw());
    std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("it is ours")
}

fn path_of(file: &std::fs::File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// All frames, and why there are no more.
fn replayed(path: &str) -> (Vec<Vec<u8>>, EndError) {
    let mut replay = match Replay::open(Path::new(path), false) {
        Ok(replay) => replay,
        Err(error) => return (Vec::new(), error),
    };
    let mut frames = Vec::new();
    loop {
        let received = replay.receive(32, &mut |frame| {
            assert!((14..=65535).contains(&frame.len()));
            frames.push(copied(frame).0);
            More::Yes
        });
        if let Err(error) = received {
            return (frames, error);
        }
    }
}

/// Seeds of it.
pub fn captures() -> Vec<(&'static str, Vec<u8>)> {
    let file = |order: fn(u32) -> [u8; 4], magic: u32, frames: &[(u32, u32)]| {
        let mut bytes = order(magic).to_vec();
        bytes.extend([0; 12]);
        bytes.extend(order(65535));
        bytes.extend(order(1));
        for (len, whole) in frames {
            bytes.extend([9, 1, *len, *whole].map(order).concat());
            bytes.extend((0..*len).map(|n| n.to_le_bytes()[0]));
        }
        bytes
    };
    let [little, big]: [fn(u32) -> [u8; 4]; 2] = [u32::to_le_bytes, u32::to_be_bytes];
    vec![
        (
            "nanos",
            file(little, 0xa1b2_3c4d, &[(64, 64), (14, 14), (100, 100)]),
        ),
        (
            "micros",
            file(
                big,
                0xa1b2_c3d4,
                &[(60, 60), (10, 10), (20, 1500), (61, 61)],
            ),
        ),
        (
            "torn",
            file(little, 0xa1b2_c3d4, &[(60, 60), (70, 70)])[..140].to_vec(),
        ),
    ]
}
