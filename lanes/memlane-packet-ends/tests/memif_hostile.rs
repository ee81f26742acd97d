//! memif with a peer that says and writes what it must not: an end with a reason, bounded work, and the next one is
//! served.

use memlane_core::region::Region;
use memlane_fixtures::random::Random;
use memlane_packet::error::Ring;
use memlane_packet::port::More;
use memlane_packet::{AttachError, Sent};
use memlane_packet_ends::OpenError;
use memlane_packet_ends::memif::handshake::{
    BUFFER, QUEUES_MAX, REGIONS_MAX, Server, ServerTerms, Step,
};
use memlane_packet_ends::memif::layout::{Desc, MASK_INT, Memory, NEXT, RingMemory, ring_len};
use memlane_packet_ends::memif::rings::{Buffers, Counts, FRAME_MIN, Rx, Tx};
use memlane_packet_ends::memif::wire::{AddRing, Init, LEN, MODE_ETHERNET, Message, Text, VERSION};
use memlane_packet_ends::memif::{ClientTerms, MemifListener, connect};
use memlane_sys::mem;
use proptest::prelude::*;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, recv, sendmsg, socket_with,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const LOG2: u8 = 4;
const SIZE: u16 = 1 << LOG2;

/// A ring and room for buffers, as a client has them.
struct World {
    memory: Arc<Memory>,
    ring: RingMemory,
    own: Buffers,
}

impl World {
    fn new(direction: Ring) -> World {
        let offset = u32::try_from(ring_len(LOG2)).unwrap();
        let len = ring_len(LOG2) + usize::from(SIZE) * 4096;
        let region = Region::create(c"hostile", len, false).unwrap();
        let memory = Arc::new(Memory::new(vec![Arc::new(region)]));
        let ring = memory.ring(direction, 0, 0, LOG2).unwrap();
        ring.init();
        World {
            memory,
            ring,
            own: Buffers {
                region: 0,
                offset,
                stride: 4096,
                len: BUFFER,
            },
        }
    }

    /// What lies where the other side can write: anything, mostly near to what is right.
    fn scribble(&self, random: &mut Random, client_is_us: bool) {
        match random.below(8) {
            0 => self
                .ring
                .set_head(u16::try_from(random.below(65536)).unwrap()),
            1 => self
                .ring
                .set_tail(u16::try_from(random.below(65536)).unwrap()),
            2 => self.ring.set_flags(u16::try_from(random.below(4)).unwrap()),
            3 | 4 => {
                let step = u16::try_from(random.below(u64::from(SIZE) + 2)).unwrap();
                if client_is_us {
                    self.ring.set_tail(self.ring.tail().wrapping_add(step));
                } else {
                    self.ring.set_head(self.ring.head().wrapping_add(step));
                }
            }
            _ => {
                let near = [
                    0,
                    1,
                    13,
                    14,
                    64,
                    2047,
                    2048,
                    2049,
                    4096,
                    65535,
                    65536,
                    u32::MAX,
                ];
                let pick = |random: &mut Random| near[usize::try_from(random.below(12)).unwrap()];
                let desc = Desc {
                    flags: u16::try_from(random.below(2)).unwrap() * NEXT,
                    region: u16::try_from(random.below(8) / 7).unwrap(),
                    length: pick(random),
                    offset: match random.below(3) {
                        0 => pick(random),
                        _ => self.own.offset + u32::try_from(random.below(16)).unwrap() * 4096,
                    },
                    metadata: random.word(),
                };
                let slot = u16::try_from(random.below(SIZE.into())).unwrap();
                self.ring.store(slot, desc);
            }
        }
    }
}

/// One step of an engine: frames are within bounds and so is their number.
fn step(rx: &mut Rx, tx: &mut Tx, random: &mut Random) -> Result<(), memlane_packet::Detach> {
    let mut counts = Counts::default();
    let most = usize::try_from(random.below(40)).unwrap();
    let mut frames = 0;
    let got = rx.receive(most, &mut counts, |frame| {
        frames += 1;
        assert!((FRAME_MIN..=65535).contains(&frame.len()));
        let mut bytes = vec![0; frame.len()];
        assert_eq!(frame.copy_out(0, &mut bytes), bytes.len());
        More::Yes
    })?;
    assert!(got == frames && got <= most && got <= usize::from(SIZE));
    rx.sleeps()?;
    let len = usize::try_from(random.below(70_000)).unwrap();
    let sent = tx.send(len, &mut counts, |room| {
        assert_eq!(room.len(), len);
        assert_eq!(room.copy_in(0, &vec![7; len]), len);
    })?;
    if let Sent::Full(slots) = sent {
        assert!((1..=u32::from(SIZE)).contains(&slots));
        tx.has_room(slots)?;
    }
    tx.flush();
    Ok(())
}

/// Both roles, against a peer that scribbles between the steps.
fn engines(seed: u64, own: bool) -> bool {
    let (one, other) = (World::new(Ring::Tx), World::new(Ring::Rx));
    let (rx_world, tx_world) = if own { (other, one) } else { (one, other) };
    let buffers = |world: &World| own.then_some(world.own);
    let mut rx = Rx::new(rx_world.ring.clone(), buffers(&rx_world)).unwrap();
    let mut tx = Tx::new(tx_world.ring.clone(), buffers(&tx_world)).unwrap();
    rx.start();
    tx.start();
    let mut random = Random(seed | 1);
    for _ in 0..200 {
        for _ in 0..random.below(4) {
            rx_world.scribble(&mut random, own);
            tx_world.scribble(&mut random, own);
        }
        if let Err(why) = step(&mut rx, &mut tx, &mut random) {
            assert!(why.is_hostile(), "{why}");
            return true;
        }
    }
    false
}

#[test]
fn whatever_lies_in_a_ring_frames_stay_within_bounds_and_the_queue_ends_with_a_reason() {
    let mut ended = 0;
    for seed in 0..2000 {
        for own in [false, true] {
            ended += u32::from(engines(seed, own));
        }
    }
    assert!(ended > 2000, "only {ended} of 4000 found something wrong");
}

#[test]
fn bytes_that_change_while_they_are_read_are_what_one_look_saw() {
    for own in [false, true] {
        let world = World::new(if own { Ring::Rx } else { Ring::Tx });
        let stop = Arc::new(AtomicBool::new(false));
        let flipper = {
            let (ring, memory) = (world.ring.clone(), Arc::clone(&world.memory));
            let (stop, own) = (Arc::clone(&stop), world.own);
            std::thread::spawn(move || {
                let world = World { memory, ring, own };
                let mut random = Random(99);
                while !stop.load(Ordering::Relaxed) {
                    world.scribble(&mut random, true);
                    world.scribble(&mut random, false);
                }
            })
        };
        for seed in 1..300 {
            world.ring.init();
            let buffers = own.then_some(world.own);
            let mut rx = Rx::new(world.ring.clone(), buffers).unwrap();
            let mut tx = Tx::new(world.ring.clone(), buffers).unwrap();
            rx.start();
            tx.start();
            let mut random = Random(seed);
            for _ in 0..50 {
                if let Err(why) = step(&mut rx, &mut tx, &mut random) {
                    assert!(why.is_hostile(), "{why}");
                    break;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        flipper.join().unwrap();
    }
}

#[test]
fn a_ring_or_a_buffer_that_does_not_lie_in_its_region_is_none() {
    let world = World::new(Ring::Tx);
    let end = u32::try_from(ring_len(LOG2) + usize::from(SIZE) * 4096).unwrap();
    let ring = |region, offset, log2| world.memory.ring(Ring::Tx, region, offset, log2);
    assert!(ring(1, 0, LOG2).is_none() && ring(0, 0, 15).is_none() && ring(0, 0, 255).is_none());
    assert!(ring(0, end, LOG2).is_none() && ring(0, u32::MAX, LOG2).is_none());
    assert!(ring(0, 4, LOG2).is_none(), "not aligned");
    assert!(ring(0, 8, LOG2).is_some());
    let fits = |own: Buffers| Tx::new(world.ring.clone(), Some(own)).is_some();
    assert!(fits(world.own));
    for wrong in [
        Buffers {
            region: 1,
            ..world.own
        },
        Buffers {
            offset: world.own.offset + 2049,
            ..world.own
        },
        Buffers {
            len: 4097,
            ..world.own
        },
        Buffers {
            len: 0,
            ..world.own
        },
        Buffers {
            stride: u32::MAX,
            ..world.own
        },
    ] {
        assert!(!fits(wrong), "{wrong:?}");
    }
}

#[test]
fn a_flag_that_a_client_never_takes_back_does_not_make_two_frames_one() {
    let world = World::new(Ring::Tx);
    let mut rx = Rx::new(world.ring.clone(), None).unwrap();
    rx.start();
    let put = |slot: u16, flags| {
        let desc = Desc {
            flags,
            region: 0,
            length: 64,
            offset: world.own.offset,
            metadata: 0,
        };
        world.ring.store(slot, desc);
    };
    // One frame of two slots; then, as DPDK's client does, only the length of a slot is written again.
    put(0, NEXT);
    put(1, 0);
    world.ring.set_head(2);
    let mut lens = Vec::new();
    let receive = |rx: &mut Rx, lens: &mut Vec<usize>| {
        rx.receive(8, &mut Counts::default(), |frame| {
            lens.push(frame.len());
            More::Yes
        })
        .unwrap()
    };
    assert_eq!(receive(&mut rx, &mut lens), 1);
    assert_eq!(world.ring.load(0).flags, 0);
    for slot in 2..SIZE {
        put(slot, 0);
    }
    world.ring.set_head(SIZE + 2);
    assert_eq!(receive(&mut rx, &mut lens), 8);
    assert_eq!(receive(&mut rx, &mut lens), 8);
    assert_eq!(lens, [&[128][..], &[64; 16]].concat());
    // Half a frame is waited for, unless it fills the ring.
    for slot in 0..SIZE {
        put(slot, NEXT);
    }
    world.ring.set_head(SIZE + 12);
    assert_eq!(receive(&mut rx, &mut lens), 0);
    world.ring.set_head(2 * SIZE + 2);
    let never = rx.receive(8, &mut Counts::default(), |_| More::Yes);
    assert!(never.unwrap_err().is_hostile());
}

#[test]
fn a_server_that_says_it_put_more_into_a_buffer_than_it_has_is_not_believed() {
    for (length, right) in [(BUFFER, true), (BUFFER + 1, false)] {
        let world = World::new(Ring::Rx);
        let mut rx = Rx::new(world.ring.clone(), Some(world.own)).unwrap();
        rx.start();
        let desc = world.ring.load(0);
        world.ring.store(0, Desc { length, ..desc });
        world.ring.set_tail(1);
        let mut lens = Vec::new();
        let got = rx.receive(8, &mut Counts::default(), |frame| {
            lens.push(frame.len());
            More::Yes
        });
        assert_eq!(got.is_ok(), right, "{length}: {got:?}");
        assert_eq!(lens.len(), usize::from(right));
    }
}

#[test]
fn half_a_frame_is_slept_on_until_more_of_it_comes() {
    let world = World::new(Ring::Tx);
    let mut rx = Rx::new(world.ring.clone(), None).unwrap();
    rx.start();
    for slot in 0..4 {
        let desc = Desc {
            flags: if slot < 3 { NEXT } else { 0 },
            region: 0,
            length: 64,
            offset: world.own.offset,
            metadata: 0,
        };
        world.ring.store(slot, desc);
    }
    let mut lens = Vec::new();
    for shown in 1..4 {
        world.ring.set_head(shown);
        assert!(!rx.sleeps().unwrap().0, "{shown}: it is new");
        let got = rx.receive(8, &mut Counts::default(), |_| More::Yes);
        assert_eq!(got, Ok(0));
        // Who is told that there is something looks again and again, and never at anything else.
        assert_eq!(rx.is_ready(), Ok(false), "{shown} slots of a frame of 4");
        assert!(rx.sleeps().unwrap().0);
    }
    world.ring.set_head(4);
    assert_eq!(rx.is_ready(), Ok(true));
    let got = rx.receive(8, &mut Counts::default(), |frame| {
        lens.push(frame.len());
        More::Yes
    });
    assert_eq!((got, lens), (Ok(1), vec![256]));
}

fn message() -> impl Strategy<Value = (Message, bool)> {
    let ring = (
        any::<bool>(),
        0..4_u16,
        0..3_u16,
        any::<u32>(),
        0..17_u8,
        0..2_u16,
    );
    let ring = ring.prop_map(|(s2m, index, region, offset, log2, private)| AddRing {
        s2m,
        index,
        region,
        offset: if offset % 2 == 0 {
            (offset % 65536) & !63
        } else {
            offset
        },
        log2,
        private,
    });
    let init = (any::<bool>(), 0..2_u32, 0..2_u8).prop_map(|(right, id, mode)| Init {
        version: if right { VERSION } else { 1 },
        id,
        mode,
        secret: Text::new(""),
        name: Text::new("x"),
    });
    let region = (0..4_u16, prop_oneof![Just(0), 0..1_u64 << 21, any::<u64>()]);
    let messages = prop_oneof![
        1 => Just(Message::Ack),
        3 => init.prop_map(Message::Init),
        4 => region.prop_map(|(index, size)| Message::AddRegion { index, size }),
        8 => ring.prop_map(Message::AddRing),
        1 => Just(Message::Connect(Text::new("x"))),
        1 => Just(Message::Connected(Text::new("x"))),
    ];
    (messages, prop_oneof![1 => Just(false), 9 => Just(true)])
}

proptest! {
    #[test]
    fn messages_read_back_and_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), LEN), kind in 0..10_u8) {
        let mut bytes = bytes;
        bytes[..2].copy_from_slice(&[kind, 0]);
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        } else {
            prop_assert!(kind == 0 || kind == 9);
        }
        prop_assert!(Message::decode(&bytes[1..]).is_err());
    }

    /// Whatever is said, in whatever order: a server connects only what lies in regions that were handed over.
    #[test]
    fn a_server_believes_nothing_that_does_not_fit(script in prop::collection::vec(message(), 0..60)) {
        let terms = ServerTerms { memory: 1 << 20, queues: 2, ring_log2: 10, ..ServerTerms::default() };
        let mut server = Server::new(&terms);
        for (message, descriptor) in script {
            let step = server.take(&message, descriptor);
            let (regions, rings) = (server.regions(), server.rings());
            prop_assert!(regions.iter().sum::<u64>() <= 1 << 20);
            prop_assert!(regions.len() <= usize::from(REGIONS_MAX));
            prop_assert!(rings.len() <= 2 * usize::from(QUEUES_MAX.min(2)));
            for ring in rings {
                let end = u64::from(ring.offset) + ring_len(ring.log2) as u64;
                prop_assert!(end <= regions[usize::from(ring.region)]);
                prop_assert!((1..=10).contains(&ring.log2) && ring.private == 0);
            }
            if step == Ok(Step::Connect) {
                prop_assert!(!rings.is_empty());
            }
        }
    }
}

/// A client that says what the test wants.
struct Raw(OwnedFd);

impl Raw {
    fn connect(name: &str) -> Raw {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(&name.as_bytes()[1..]).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        Raw(socket)
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let flags = SendFlags::NOSIGNAL;
        // A server that has closed already is what the test may want.
        let _ = sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags);
    }

    /// What the server says until it closes.
    fn told(&self) -> Option<String> {
        let mut reason = None;
        let mut buffer = [0; LEN];
        while let Ok((n, _)) = recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
            if n == 0 {
                break;
            }
            if let Ok(Message::Disconnect { reason: why, .. }) = Message::decode(&buffer[..n]) {
                reason = Some(why.to_string());
            }
        }
        reason
    }
}

fn memfd(len: usize, seals: i32) -> OwnedFd {
    let fd = mem::memfd(c"hostile", len, false).unwrap();
    mem::add_seals(fd.raw(), seals).unwrap();
    // SAFETY: given away.
    unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
}

fn eventfd() -> OwnedFd {
    // SAFETY: given away.
    unsafe { OwnedFd::from_raw_fd(memlane_sys::fd::event().unwrap().into_raw()) }
}

fn init() -> Message {
    Message::Init(Init {
        version: VERSION,
        id: 0,
        mode: MODE_ETHERNET,
        secret: Text::new(""),
        name: Text::new("raw"),
    })
}

fn ring() -> Message {
    Message::AddRing(AddRing {
        s2m: true,
        index: 0,
        region: 0,
        offset: 0,
        log2: LOG2,
        private: 0,
    })
}

#[test]
fn a_client_without_manners_is_told_so_and_the_next_one_is_served() {
    const SHRINK: i32 = libc_seal_shrink();
    let region = |size| Message::AddRegion { index: 0, size };
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let connect_now = Message::Connect(Text::new("x"));
    type Said = (Vec<u8>, Vec<OwnedFd>);
    let say = |message: Message, fds: Vec<OwnedFd>| -> Said { (message.encode().to_vec(), fds) };
    let good = || memfd(8192, SHRINK);
    let stories: Vec<(&str, Vec<Said>)> = vec![
        ("Unexpected message", vec![say(Message::Ack, vec![])]),
        ("are no message", vec![(vec![3; 127], vec![])]),
        ("are no message", vec![(vec![3; 129], vec![])]),
        (
            "no message of kind 9",
            vec![(vec![9, 0].into_iter().chain([0; 126]).collect(), vec![])],
        ),
        (
            "Missing region fd",
            vec![say(init(), vec![]), say(region(8192), vec![])],
        ),
        (
            "more than one",
            vec![say(init(), vec![]), say(region(8192), vec![good(), good()])],
        ),
        (
            "No rings",
            vec![say(init(), vec![]), say(connect_now, vec![])],
        ),
        (
            "is no eventfd",
            vec![
                say(init(), vec![]),
                say(region(8192), vec![good()]),
                say(ring(), vec![file()]),
            ],
        ),
        (
            "could be made so",
            vec![
                say(init(), vec![]),
                say(region(8192), vec![memfd(8192, 0)]),
                say(ring(), vec![eventfd()]),
                say(connect_now, vec![]),
            ],
        ),
        (
            "shorter than said",
            vec![
                say(init(), vec![]),
                say(region(8193), vec![good()]),
                say(ring(), vec![eventfd()]),
                say(connect_now, vec![]),
            ],
        ),
        (
            "shorter than said",
            vec![
                say(init(), vec![]),
                say(region(8192), vec![file()]),
                say(ring(), vec![eventfd()]),
                say(connect_now, vec![]),
            ],
        ),
        (
            "Wrong ring",
            vec![
                say(init(), vec![]),
                say(region(8192), vec![good()]),
                say(ring(), vec![eventfd()]),
                say(connect_now, vec![]),
            ],
        ),
    ];
    let name = format!("@memlane-memif-hostile-{}", std::process::id());
    let listener = MemifListener::bind(&name).unwrap();
    for (why, story) in stories {
        let raw = Raw::connect(&name);
        for (bytes, fds) in &story {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            raw.send(bytes, &fds);
        }
        let error = listener.accept(&ServerTerms::default(), LIMIT).unwrap_err();
        assert!(error.to_string().contains(why), "{error}, not {why}");
        let told = raw.told().expect("the server says why");
        assert!(told.contains(why), "{told}, not {why}");
    }
    // One that closes in the middle.
    let raw = Raw::connect(&name);
    raw.send(&init().encode(), &[]);
    drop(raw);
    let error = listener.accept(&ServerTerms::default(), LIMIT).unwrap_err();
    assert!(
        matches!(error, OpenError::Attach(AttachError::Socket(_))),
        "{error}"
    );
    let there = std::thread::spawn(move || connect(&name, &ClientTerms::default()).unwrap());
    listener.accept(&ServerTerms::default(), LIMIT).unwrap();
    there.join().unwrap();
}

/// `F_SEAL_SHRINK` of fcntl(2).
const fn libc_seal_shrink() -> i32 {
    2
}

#[test]
fn a_peer_that_asks_for_bells_without_end_gets_one_for_each_flush_at_most() {
    let world = World::new(Ring::Tx);
    let mut tx = Tx::new(world.ring.clone(), Some(world.own)).unwrap();
    tx.start();
    world.ring.set_flags(0);
    let mut counts = Counts::default();
    assert!(!tx.flush(), "nothing was sent");
    for _ in 0..3 {
        assert_eq!(tx.send(64, &mut counts, |_| ()), Ok(Sent::Queued));
    }
    assert!(tx.flush());
    assert!(!tx.flush());
    world.ring.set_flags(MASK_INT);
    assert_eq!(tx.send(64, &mut counts, |_| ()), Ok(Sent::Queued));
    assert!(!tx.flush(), "nobody wants a doorbell");
}
