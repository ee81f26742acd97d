//! An interface of the kernel, with a pair of sockets for a device.

use super::*;
use memlane_core::access::SharedBytes;
use memlane_packet::{Gso, GsoKind};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::ptr::NonNull;

/// What comes, and how: by `take`, or by `place` into room of its own.
struct Store {
    room: Vec<u8>,
    lends: bool,
    came: Vec<(bool, Vec<u8>, Meta)>,
}

impl Store {
    fn new(lends: bool) -> Store {
        Store {
            room: vec![0xee; PACKET_MAX],
            lends,
            came: Vec::new(),
        }
    }
}

fn whole(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    assert_eq!(frame.copy_out(0, &mut bytes), frame.len());
    bytes
}

impl Taker for Store {
    fn take(&mut self, frame: &Frame<'_>) -> More {
        self.came.push((false, whole(frame), frame.meta()));
        More::Yes
    }

    fn place(&mut self, fill: &mut dyn FnMut(&Room<'_>) -> Filled) -> Option<More> {
        if !self.lends {
            return None;
        }
        let base = NonNull::from(&mut self.room[..]).cast();
        // SAFETY: ours, and used by nobody else while the window is.
        let window = unsafe { SharedBytes::new(base, PACKET_MAX) };
        let parts: Vec<_> = (0..PACKET_MAX)
            .step_by(4096)
            .filter_map(|at| window.part(at, (PACKET_MAX - at).min(4096)))
            .collect();
        if let Some((len, meta)) = fill(&Room::new(&parts, PACKET_MAX)) {
            self.came.push((true, self.room[..len].to_vec(), meta));
        }
        Some(More::Yes)
    }
}

/// A device that a test has the other side of: whole frames, as a TAP's.
fn device() -> (Interface, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (ours, theirs) = pair.unwrap();
    let interface = Interface::new(ours, DescriptorKind::Device, "test".into());
    (interface, theirs)
}

fn comes(theirs: &OwnedFd, header: [u8; vnet::LEN], frame: &[u8]) {
    let bytes = [&header[..], frame].concat();
    assert_eq!(rustix::io::write(theirs, &bytes), Ok(bytes.len()));
}

/// IPv4 and TCP, or SCTP (whose checksum is elsewhere).
fn packet(protocol: u8, payload: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    let total = u16::try_from(40 + payload).unwrap();
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let mut tcp = [0; 20];
    tcp[12] = 0x50;
    frame.extend(tcp);
    frame.extend((0..payload).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]));
    frame
}

const BLANK: Meta = Meta {
    csum_blank: true,
    data_validated: true,
    gso: None,
};

#[test]
fn large_frames_are_read_to_where_they_are_to_lie_and_small_ones_are_copied() {
    let (mut interface, theirs) = device();
    let gso = Meta {
        gso: Some(Gso {
            kind: GsoKind::Tcp4,
            size: 1448,
        }),
        ..BLANK
    };
    // (payload, is it known by the frame before that it will be large?)
    let frames = [
        (40_000, gso, false),
        (60_000, gso, true),
        (100, BLANK, true),
        (100, BLANK, false),
        (5000, BLANK, false),
        (65_000, gso, true),
    ];
    let mut store = Store::new(true);
    for (payload, meta, _) in frames {
        let frame = packet(6, payload);
        comes(
            &theirs,
            vnet::write(meta, &frame[..54], frame.len()).unwrap(),
            &frame,
        );
        // One more call than there is something to read.
        assert_eq!(interface.receive_for(8, &mut store), Ok(1));
    }
    let expected: Vec<_> = frames
        .into_iter()
        .map(|(payload, meta, large)| (large, packet(6, payload), meta))
        .collect();
    assert!(store.came == expected);
    let counts = interface.counts();
    assert_eq!((counts.received, counts.failed), (6, 0));
}

#[test]
fn who_lends_no_room_gets_large_frames_all_the_same() {
    let (mut interface, theirs) = device();
    let mut store = Store::new(false);
    for _ in 0..3 {
        comes(&theirs, [0; vnet::LEN], &packet(6, 20_000));
    }
    assert_eq!(interface.receive_for(8, &mut store), Ok(3));
    assert!(store.came.iter().all(|came| came.1 == packet(6, 20_000)));
}

#[test]
fn a_checksum_that_netif_cannot_say_is_filled_in_in_lent_room_too() {
    let (mut interface, theirs) = device();
    let mut stores = [Store::new(false), Store::new(true)];
    // SCTP, as far as the kernel's header goes: somewhere else than TCP's and UDP's.
    let mut header = [0; vnet::LEN];
    header[0] = 1;
    header[6..8].copy_from_slice(&34_u16.to_ne_bytes());
    header[8..10].copy_from_slice(&8_u16.to_ne_bytes());
    for store in &mut stores {
        for _ in 0..2 {
            comes(&theirs, header, &packet(132, 9000));
        }
        assert_eq!(interface.receive_for(8, store), Ok(2));
    }
    let [copied, placed] = stores.map(|store| store.came);
    assert_eq!([copied[1].0, placed[1].0], [false, true]);
    assert!(copied[1].1 == placed[1].1 && copied[1].2 == placed[1].2);
    assert_ne!(copied[1].1, packet(132, 9000));
}

#[test]
fn what_is_no_frame_is_counted_and_the_next_one_comes() {
    let (mut interface, theirs) = device();
    let mut store = Store::new(true);
    comes(&theirs, [0; vnet::LEN], &packet(6, 20_000));
    comes(&theirs, [0; vnet::LEN], &[7; PACKET_MAX + 1]);
    // UDP segmentation, which nobody asked for.
    let mut header = [0; vnet::LEN];
    header[1] = 5;
    comes(&theirs, header, &packet(6, 30_000));
    comes(&theirs, [0; vnet::LEN], &[7; 13]);
    comes(&theirs, [0; vnet::LEN], &packet(6, 50));
    assert_eq!(interface.receive_for(16, &mut store), Ok(5));
    let lens: Vec<_> = store.came.iter().map(|came| came.1.len()).collect();
    assert_eq!(lens, [20_054, 104]);
    assert_eq!(interface.counts().failed, 3);
}

#[test]
fn a_frame_of_more_stretches_than_the_lane_has_is_written_whole() {
    let (mut interface, theirs) = device();
    let bytes = packet(6, 60_000);
    // Every other stretch of 2 KiB, so that none lie beside each other.
    let memory: Vec<[u8; 2048]> = bytes
        .chunks(2048)
        .flat_map(|chunk| {
            let mut page = [0; 2048];
            page[..chunk.len()].copy_from_slice(chunk);
            [page, [0; 2048]]
        })
        .collect();
    let parts: Vec<_> = memory
        .iter()
        .step_by(2)
        .zip(bytes.chunks(2048))
        // SAFETY: ours, and there until the end.
        .map(|(page, chunk)| unsafe {
            SharedBytes::read_only(NonNull::from(page).cast(), chunk.len())
        })
        .collect();
    assert!(parts.len() > SLOTS_MAX);
    let frame = Frame::new(&parts, bytes.len(), Meta::default());
    assert_eq!(interface.send(&frame), Ok(Sent::Queued));
    let mut came = vec![0; 70_000];
    let n = rustix::io::read(&theirs, &mut came[..]).unwrap();
    assert!(came[vnet::LEN..n] == bytes[..]);
}

/// The segments of a large frame, complete.
fn segments(payload: usize) -> Vec<Vec<u8>> {
    let frame = packet(6, payload);
    let gso = Gso {
        kind: GsoKind::Tcp4,
        size: 1448,
    };
    let mut frame = frame;
    frame[34 + 13] = 0x10;
    let mut cut = crate::segment::Cut::new(&frame, gso).unwrap();
    let mut all = Vec::new();
    while let Some(one) = cut.segment(&frame) {
        all.push([one.headers, one.payload].concat());
        cut.advance();
    }
    all
}

fn goes(interface: &mut Interface, bytes: &[u8]) -> Sent {
    let mut sent = None;
    lend(bytes, Meta::default(), &mut |frame| {
        sent = Some(interface.send(frame).unwrap());
        More::Yes
    });
    sent.unwrap()
}

/// What the device was written, frame by frame: what it says of itself, and its bytes.
fn written(theirs: &OwnedFd) -> Vec<(Meta, usize)> {
    let mut all = Vec::new();
    let mut bytes = vec![0; 70_000];
    while let Ok(n) = rustix::io::read(theirs, &mut bytes[..]) {
        let (header, frame) = bytes[..n].split_at(vnet::LEN);
        let header = header.try_into().unwrap();
        let vnet::Read::Said(meta) =
            vnet::read(header, &frame[..frame.len().min(LOOK)], frame.len())
        else {
            panic!("the kernel would not take this frame");
        };
        all.push((meta, frame.len()));
    }
    all
}

#[test]
fn segments_that_follow_each_other_are_one_write_with_the_next_flush() {
    let (mut interface, theirs) = device();
    let all = segments(20_000);
    for bytes in &all {
        assert_eq!(goes(&mut interface, bytes), Sent::Queued);
    }
    // The last one is shorter than the others: nothing can follow it.
    let [(meta, len)] = written(&theirs)[..] else {
        panic!("one frame");
    };
    assert_eq!((meta.gso.map(|gso| gso.size), len), (Some(1448), 20_054));
    let counts = interface.counts();
    let bytes: usize = all.iter().map(Vec::len).sum();
    assert_eq!((counts.sent, counts.sent_bytes), (14, bytes as u64));
    // Of two whole ones nobody knows whether a third one comes, until the flush; another frame does not overtake them.
    assert_eq!(goes(&mut interface, &all[0]), Sent::Queued);
    assert_eq!(goes(&mut interface, &all[1]), Sent::Queued);
    assert_eq!(written(&theirs), []);
    assert_eq!(interface.flush(), Ok(()));
    assert_eq!(written(&theirs).len(), 1);
    assert_eq!(goes(&mut interface, &all[0]), Sent::Queued);
    assert_eq!(goes(&mut interface, &packet(17, 40)), Sent::Queued);
    let lens: Vec<_> = written(&theirs).iter().map(|(_, len)| *len).collect();
    assert_eq!(lens, [1502, 94]);
    assert_eq!(interface.flush(), Ok(()));
    assert_eq!(written(&theirs), []);
}

#[test]
fn what_was_merged_stays_while_there_is_no_room() {
    let (mut interface, theirs) = device();
    let filler = packet(17, 40);
    while goes(&mut interface, &filler) == Sent::Queued {}
    let all = segments(20_000);
    for bytes in &all[..4] {
        assert_eq!(goes(&mut interface, bytes), Sent::Queued);
    }
    assert_eq!(interface.lacks(), Ok(0));
    assert_eq!(interface.flush(), Ok(()));
    assert_eq!(interface.lacks(), Ok(1));
    // Not even a frame that would have followed: what is held has been shown as it is.
    assert_eq!(goes(&mut interface, &all[4]), Sent::Full(1));
    let before = written(&theirs).len();
    assert!(before > 0);
    assert_eq!(interface.lacks(), Ok(0));
    let [(_, len)] = written(&theirs)[..] else {
        panic!("one frame");
    };
    assert_eq!(len, 54 + 4 * 1448);
    assert_eq!(interface.counts().sent, before as u64 + 4);
}
