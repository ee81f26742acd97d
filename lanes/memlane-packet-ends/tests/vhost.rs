//! A virtual machine's network device: a guest that behaves, and what becomes of its frames.
#![cfg(feature = "vhost")]

mod vhost_driver;

use memlane_packet::Offloads;
use memlane_packet::{AttachError, Detach, Gso, GsoKind, Meta, Sleep};
use memlane_packet_ends::OpenError;
use memlane_packet_ends::generate::{Generator, Plan, Sink};
use memlane_packet_ends::join::{Join, Over, Side, Terms};
use memlane_packet_ends::vhost::{Role, VhostDoor, VhostQueue, VhostTerms};
use memlane_packet_ends::{End, EndError, More, Sent};
use rustix::event::{EventfdFlags, Timespec, eventfd, poll};
use std::os::fd::AsFd as _;
use std::time::Duration;
use vhost_driver::{
    ALL, CSUM, EVENT_IDX, FREE, GUEST_CSUM, Guest, HEADER, House, INDIRECT, LIMIT, MERGES, NEXT,
    USER, descriptor_bytes, frames,
};

/// Ethernet, IPv4, TCP with a blank checksum (the pseudo header's sum in its place), and `payload` bytes.
fn tcp(payload: usize) -> Vec<u8> {
    let total = u16::try_from(40 + payload).unwrap();
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let mut header = [0; 20];
    header[12] = 0x50;
    let sum = 0x0a00 * 2 + 1 + 2 + 6 + 20 + u32::try_from(payload).unwrap();
    let sum = (sum >> 16) + (sum & 0xffff);
    header[16..18].copy_from_slice(&u16::try_from(sum).unwrap().to_be_bytes());
    frame.extend(header);
    frame.extend((0..payload).map(|n| (n * 7).to_le_bytes()[0]));
    frame
}

/// `virtio_net_hdr_v1`, field by field (VIRTIO 1.2, 5.1.6).
fn header(
    flags: u8,
    gso: u8,
    hdr_len: u16,
    gso_size: u16,
    start: u16,
    offset: u16,
) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    (bytes[0], bytes[1]) = (flags, gso);
    for (n, field) in [hdr_len, gso_size, start, offset].into_iter().enumerate() {
        bytes[2 + n * 2..4 + n * 2].copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

/// Carries what one guest has sent to another.
fn carry(from: &mut VhostQueue, to: &mut VhostQueue) -> Vec<Sent> {
    let mut all = Vec::new();
    from.receive(64, &mut |frame| {
        all.push(to.send(frame).unwrap());
        More::Yes
    })
    .unwrap();
    to.flush().unwrap();
    all
}

#[test]
fn a_frame_is_the_same_however_it_is_cut() {
    let house = House::new();
    let mut guest = Guest::ready(&house, ALL);
    let (_link, mut queue) = house.accept();
    let bytes: Vec<u8> = (0..9012_u32)
        .map(|n| (n * 7 / 3).to_le_bytes()[0])
        .collect();
    guest.poke(FREE, &bytes);
    let frame = &bytes[HEADER..];
    guest.poke(FREE, &[0; HEADER]);
    let piece = |from: u64, to: u64| (FREE + from, u32::try_from(to - from).unwrap(), 0);
    let cuts: [&[u64]; 5] = [&[], &[12], &[5, 12, 13], &[1, 2, 11, 4096], &[10, 10, 26]];
    for cut in cuts {
        let edges = [&[0], cut, &[9012]].concat();
        let pieces: Vec<_> = edges
            .windows(2)
            .map(|pair| piece(pair[0], pair[1]))
            .collect();
        guest.chain(1, &pieces);
        let got = frames(&mut queue).unwrap();
        assert_eq!(got.len(), 1, "{cut:?}");
        assert!(got[0].0 == frame, "{cut:?}");
    }
    // In more pieces than an interface of the kernel is given, and by a table that lies elsewhere.
    let pieces: Vec<_> = (0..40).map(|n| piece(n * 30, n * 30 + 30)).collect();
    guest.chain(1, &pieces);
    assert!(frames(&mut queue).unwrap()[0].0 == bytes[HEADER..1200]);
    for (n, (at, len, _)) in pieces.iter().enumerate() {
        let (flags, next) = if n < 39 { (NEXT, n + 1) } else { (0, 0) };
        let entry = descriptor_bytes(*at, *len, flags, u16::try_from(next).unwrap());
        guest.poke(0x30000 + n as u64 * 16, &entry);
    }
    guest.chain(1, &[(0x30000, 40 * 16, INDIRECT)]);
    assert!(frames(&mut queue).unwrap()[0].0 == bytes[HEADER..1200]);
    guest.rings[1].wait(&guest);
    let counts = queue.counts();
    assert_eq!((counts.received, counts.failed), (7, 0));
}

#[test]
fn long_frames_lie_in_several_buffers_and_come_whole() {
    let (one, other) = (House::new(), House::new());
    let mut from = Guest::ready(&one, ALL);
    let mut to = Guest::ready(&other, ALL);
    let (_a, mut a) = one.accept();
    let (_b, mut b) = other.accept();
    for (len, buffer, count) in [
        (9000, 2048, 5),
        (65535, 2048, 33),
        (14, 64, 1),
        (500, 100, 6),
    ] {
        let frame: Vec<u8> = (0..len)
            .map(|n: usize| (n * 7 / 3).to_le_bytes()[0])
            .collect();
        let posted = to.rings[0].given;
        to.post(count, buffer);
        from.send(&[0; HEADER], &frame);
        // What was posted, and nothing more, was needed.
        assert_eq!(carry(&mut a, &mut b), [Sent::Queued], "{len}");
        to.rings[0].wait(&to);
        let (header, came) = to.take().unwrap();
        assert!(came == frame, "{len}");
        assert_eq!(header[..10], [0; 10]);
        assert_eq!(header[10..], count.to_le_bytes());
        assert_eq!(to.rings[0].given.wrapping_sub(posted), count);
    }
}

#[test]
fn a_frame_that_finds_too_few_buffers_waits_for_as_many_as_it_needs() {
    let (one, other) = (House::new(), House::new());
    let mut from = Guest::ready(&one, ALL);
    let mut to = Guest::ready(&other, ALL);
    let (_a, mut a) = one.accept();
    let (_b, mut b) = other.accept();
    to.post(3, 1000);
    from.send(&[0; HEADER], &[7; 5000]);
    assert_eq!(carry(&mut a, &mut b), [Sent::Full(6)]);
    assert!(to.take().is_none());
    let sleep = Sleep::for_room(6);
    assert_eq!(b.sleeps(sleep), Ok(true));
    let rung = |queue: &VhostQueue| {
        let mut fds = Vec::new();
        queue.watch(sleep, &mut fds);
        poll(&mut fds, Some(&Timespec::default())) == Ok(1)
    };
    b.woken().unwrap();
    assert_eq!(b.sleeps(sleep), Ok(true));
    // The driver rings at the buffer that was asked for.
    let event = to.word(0x2000 + 4 + 64 * 8);
    assert_eq!(event, 5, "the last of six");
    assert!(!rung(&b));
    to.post(3, 1000);
    assert!(rung(&b));
    b.woken().unwrap();
    assert_eq!(b.sleeps(sleep), Ok(false));
    assert_eq!(b.lacks(), Ok(0));
    from.send(&[0; HEADER], &[7; 5000]);
    assert_eq!(carry(&mut a, &mut b), [Sent::Queued]);
    assert!(to.take().unwrap().1 == [7; 5000]);
    // Nothing is left, and it is known.
    assert_eq!(b.lacks(), Ok(6));
}

#[test]
fn what_a_frame_says_of_itself_comes_with_it() {
    let (one, other) = (House::new(), House::new());
    let mut from = Guest::ready(&one, ALL);
    let mut to = Guest::ready(&other, ALL);
    let (_a, mut a) = one.accept();
    let (_b, mut b) = other.accept();
    to.post(40, 2048);
    let frame = tcp(9000);
    let segments = header(1, 1, 54, 1448, 34, 16);
    let gso = Meta {
        csum_blank: true,
        data_validated: true,
        gso: Some(Gso {
            kind: GsoKind::Tcp4,
            size: 1448,
        }),
    };
    from.send(&segments, &frame);
    assert_eq!(frames(&mut a).unwrap(), [(frame.clone(), gso)]);
    for sent in [
        segments,
        header(1, 0, 0, 0, 34, 16),
        header(0, 0, 0, 0, 0, 0),
    ] {
        from.send(&sent, &frame);
        assert_eq!(carry(&mut a, &mut b), [Sent::Queued]);
        let (header, came) = to.take().unwrap();
        assert_eq!(header[..10], sent[..10]);
        assert!(came == frame);
    }
    // A checksum elsewhere is filled in: netif cannot say where it is.
    from.send(&header(1, 0, 0, 0, 50, 8), &frame);
    carry(&mut a, &mut b);
    let (header_, came) = to.take().unwrap();
    assert_eq!(header_[..10], [0; 10]);
    assert_ne!(came[58..60], frame[58..60]);
    assert!(came[60..] == frame[60..]);
    // Segmentation that was not offered, or without a blank checksum, is of no use.
    for wrong in [header(1, 3, 42, 1448, 34, 6), header(0, 1, 54, 1448, 0, 0)] {
        from.send(&wrong, &frame);
        assert_eq!(carry(&mut a, &mut b), [], "{wrong:?}");
    }
    assert_eq!(a.counts().failed, 2);
    // Nor what whoever takes it cannot cut.
    a.limit(Offloads::default()).unwrap();
    from.send(&segments, &frame);
    assert_eq!(carry(&mut a, &mut b), []);
    assert_eq!(a.counts().failed, 3);
}

#[test]
fn a_guest_that_takes_no_offloads_gets_none() {
    let (one, other) = (House::new(), House::new());
    let mut from = Guest::ready(&one, ALL);
    let mut to = Guest::ready(&other, 0);
    let (_a, mut a) = one.accept();
    let (_b, mut b) = other.accept();
    assert_eq!(b.offloads(), Offloads::default());
    to.post(4, 2048);
    let frame = tcp(1000);
    from.send(&header(1, 0, 0, 0, 34, 16), &frame);
    assert_eq!(carry(&mut a, &mut b), [Sent::Queued]);
    let (said, came) = to.take().unwrap();
    assert_eq!(said, [[0; 10].as_slice(), &[1, 0]].concat());
    // The sum over it all, with its pseudo header, is right.
    let words = came[34..]
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum::<u32>() + 0x0a00 * 2 + 1 + 2 + 6 + 1020;
    sum = (sum >> 16) + (sum & 0xffff);
    assert_eq!((sum >> 16) + (sum & 0xffff), 0xffff);
    assert!(came[54..] == frame[54..]);
    // More segments than one, or more than a buffer: never.
    from.send(&header(1, 1, 54, 500, 34, 16), &frame);
    assert_eq!(carry(&mut a, &mut b), [Sent::Refused]);
    from.send(&[0; HEADER], &[7; 3000]);
    assert_eq!(carry(&mut a, &mut b), [Sent::Refused]);
    // The buffer that was too short is still there for others.
    from.send(&[0; HEADER], &[8; 60]);
    assert_eq!(carry(&mut a, &mut b), [Sent::Queued]);
    assert!(to.take().unwrap().1 == [8; 60]);
}

#[test]
fn a_guest_is_rung_for_when_it_wants_that() {
    for features in [ALL, ALL & !EVENT_IDX] {
        let house = House::new();
        let mut guest = Guest::ready(&house, features);
        let (_link, mut queue) = house.accept();
        // It does not want to be: event far away, or the flag.
        let available = 0x4000 + 0x1000;
        let wants = |guest: &Guest, wants: bool, at: u16| {
            guest.poke(available, &u16::from(!wants).to_le_bytes());
            let event = if wants { at } else { at.wrapping_add(30000) };
            guest.poke(available + 4 + 64 * 2, &event.to_le_bytes());
        };
        let rung = |guest: &Guest| rustix::io::read(&guest.rings[1].call, &mut [0; 8]).is_ok();
        for (n, wanted) in [false, true, false, true].into_iter().enumerate() {
            wants(&guest, wanted, u16::try_from(n).unwrap());
            guest.send(&[0; HEADER], &[9; 60]);
            assert_eq!(frames(&mut queue).unwrap().len(), 1);
            assert_eq!(rung(&guest), wanted, "{features:x} {n}");
        }
        // We sleep: the next frame rings.
        assert_eq!(queue.sleeps(Sleep::FOR_FRAMES), Ok(true));
        if features & EVENT_IDX == 0 {
            assert_eq!(guest.word(0x4000 + 0x2000), 0, "kicks are wanted");
            queue.woken().unwrap();
            assert_eq!(guest.word(0x4000 + 0x2000), 1, "and not wanted");
        } else {
            assert_eq!(guest.word(0x4000 + 0x2000 + 4 + 64 * 8), 4);
        }
    }
}

#[test]
fn a_driver_that_stops_and_starts_is_another_session() {
    let house = House::new();
    let mut guest = Guest::ready(&house, ALL);
    let (link, mut queue) = house.accept();
    guest.send(&[0; HEADER], &[9; 60]);
    assert_eq!(frames(&mut queue).unwrap().len(), 1);
    // One that is taken is not there for others.
    let again = house.door.accept(Duration::ZERO);
    assert!(
        matches!(again, Err(OpenError::Attach(AttachError::Timeout))),
        "{again:?}"
    );
    assert_eq!(guest.stop(), [0, 1]);
    let closed = Err(EndError::Detached(Detach::PeerDetached(0)));
    assert_eq!(frames(&mut queue), closed);
    assert!(link.ended() && link.reason().is_none());
    guest.start();
    let (link, mut second) = house.accept();
    assert_eq!(frames(&mut queue), closed, "the old one stays ended");
    guest.send(&[0; HEADER], &[8; 60]);
    assert_eq!(
        frames(&mut second).unwrap(),
        [(vec![8; 60], Meta::default())]
    );
    // Given back, it can be taken again, and goes on where it was.
    drop((link, second));
    let (_link, mut third) = house.accept();
    guest.send(&[0; HEADER], &[7; 60]);
    assert_eq!(
        frames(&mut third).unwrap(),
        [(vec![7; 60], Meta::default())]
    );
    drop(guest);
    house.works();
}

#[test]
fn a_process_that_comes_back_goes_on_where_the_killed_one_was() {
    let house = House::new();
    let mut guest = Guest::ready(&house, ALL);
    let (_link, mut queue) = house.accept();
    guest.send(&[0; HEADER], &[9; 60]);
    assert_eq!(frames(&mut queue).unwrap().len(), 1);
    drop(guest);
    // Its used index is what the guest has seen, and its available index is not trusted to be the same.
    let mut guest = Guest::connect(&house);
    guest.negotiate(ALL);
    guest.share(&[(0, vhost_driver::MEMORY as u64, USER, 0)]);
    for ring in &mut guest.rings {
        ring.given = 65_530;
    }
    guest.rings[1].set_used(&guest, 65_530);
    guest.start();
    let (_link, mut queue) = house.accept();
    for n in 0..12 {
        guest.send(&[0; HEADER], &[n; 60]);
        assert_eq!(
            frames(&mut queue).unwrap(),
            [(vec![n; 60], Meta::default())]
        );
    }
    guest.rings[1].wait(&guest);
    assert_eq!(guest.rings[1].used(&guest), 6);
}

#[test]
fn a_pair_that_the_guest_does_not_use_sends_by_the_first() {
    let terms = VhostTerms {
        queues: 2,
        ..VhostTerms::default()
    };
    let (one, other) = (House::new(), House::with(&terms));
    let mut from = Guest::ready(&one, ALL);
    let mut to = Guest::ready(&other, ALL);
    let (_a, mut a) = one.accept();
    let (_link, mut pairs) = other.door.accept(LIMIT).unwrap();
    assert_eq!(pairs.len(), 2);
    to.post(2, 2048);
    from.send(&[0; HEADER], &[5; 60]);
    assert_eq!(carry(&mut a, &mut pairs[1]), [Sent::Queued]);
    assert!(to.take().unwrap().1 == [5; 60]);
    assert_eq!(frames(&mut pairs[1]), Ok(Vec::new()));
}

#[test]
fn a_join_sleeps_and_wakes_for_a_guest_and_ends_with_it() {
    let house = House::new();
    let mut guest = Guest::ready(&house, MERGES | CSUM | GUEST_CSUM);
    let (_link, queue) = house.accept();
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let thread = std::thread::spawn(move || {
        let plan = Plan {
            stream: 3,
            sizes: (60, 4000),
            count: 500,
            rate: 0,
        };
        let generator = Box::new(Generator::new(plan.checked().unwrap()));
        let terms = Terms {
            spin: Duration::ZERO,
            ..Terms::default()
        };
        let mut join = Join::new(Box::new(queue), generator, terms).unwrap();
        let over = join.run(&[stop.as_fd()]);
        (over, join)
    });
    // Five buffers at a time: the join has to wait for each five.
    let mut sink = Checking::new();
    let mut came = 0;
    while came < 500 {
        let there = guest.rings[0]
            .given
            .wrapping_sub(guest.rings[0].used(&guest));
        guest.post(5 - there, 2048);
        guest.rings[0].sleep();
        while let Some((_, bytes)) = guest.take() {
            came += 1;
            sink.look(&bytes);
        }
    }
    let verdict = sink.sink.verdict().unwrap();
    assert_eq!(
        (verdict.good, verdict.missing, verdict.changed),
        (500, 0, 0),
        "{verdict:?}"
    );
    // It looks whether there are more frames only while there is room for one.
    while !thread.is_finished() {
        let there = guest.rings[0]
            .given
            .wrapping_sub(guest.rings[0].used(&guest));
        guest.post(50 - there, 2048);
        std::thread::sleep(Duration::from_millis(1));
    }
    let (over, join) = thread.join().unwrap();
    assert_eq!(over, Over::Ended(Side::B, EndError::Finished));
    assert_eq!(join.ends()[0].counts().sent, 500);
}

/// A sink that looks at bytes, which come to it by another guest.
struct Checking {
    sink: Sink,
    guest: Guest,
    queue: VhostQueue,
    _house: House,
}

impl Checking {
    fn new() -> Checking {
        let house = House::new();
        let guest = Guest::ready(&house, ALL);
        let (_, queue) = house.accept();
        Checking {
            sink: Sink::new(),
            guest,
            queue,
            _house: house,
        }
    }

    fn look(&mut self, bytes: &[u8]) {
        self.guest.send(&[0; HEADER], bytes);
        let sink = &mut self.sink;
        let seen = self.queue.receive(1, &mut |frame| {
            sink.send(frame).unwrap();
            More::Yes
        });
        assert_eq!(seen, Ok(1));
    }
}

#[test]
fn as_a_client_it_finds_a_monitor_that_comes_later() {
    let house = House::new();
    let path = house.socket().with_extension("other");
    let door = VhostDoor::open(path.to_str().unwrap(), Role::Client, &VhostTerms::default());
    let door = door.unwrap();
    std::thread::sleep(Duration::from_millis(30));
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    for _ in 0..2 {
        let (socket, _) = listener.accept().unwrap();
        let mut guest = Guest::over(socket);
        guest.negotiate(ALL);
        guest.share(&[(0, vhost_driver::MEMORY as u64, USER, 0)]);
        guest.start();
        let (_link, mut queues) = door.accept(LIMIT).unwrap();
        guest.send(&[0; HEADER], &[9; 60]);
        assert_eq!(frames(&mut queues[0]).unwrap().len(), 1);
    }
}

#[test]
fn frames_without_a_header_of_their_own_are_counted_and_come_back() {
    let house = House::new();
    let mut guest = Guest::ready(&house, ALL);
    let (_link, mut queue) = house.accept();
    for len in [0, 1, 11, 12, 25] {
        guest.chain(1, &[(FREE, len, 0)]);
        assert_eq!(frames(&mut queue), Ok(Vec::new()));
    }
    guest.rings[1].wait(&guest);
    assert_eq!((queue.counts().failed, queue.counts().received), (5, 0));
}
