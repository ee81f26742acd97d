//! A guest, or its monitor, that writes and says what it must not: the link ends with a reason, work is bounded, and
//! the next guest is served.
#![cfg(feature = "vhost")]

mod vhost_driver;

use memlane_fixtures::random::Random;
use memlane_packet::{Detach, Sleep};
use memlane_packet_ends::vhost::VhostQueue;
use memlane_packet_ends::{End, EndError, More};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use vhost_driver::{
    ALL, FREE, Guest, HEADER, House, INDIRECT, MEMORY, MERGES, NEXT, RING, SET_VRING_ADDR,
    SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_KICK, SET_VRING_NUM, USER, WRITE, addresses,
    frames, state,
};

const OUTSIDE: u64 = 1 << 40;

/// The session ends by this guest's fault, and it is hung up on; the next one is served.
fn ends(house: &House, mut guest: Guest, error: EndError) -> Detach {
    let EndError::Detached(why) = error else {
        panic!("{error}");
    };
    assert!(why.is_hostile(), "{why}");
    guest.is_hung_up_on();
    drop(guest);
    house.works();
    why
}

#[test]
fn a_frame_that_is_none_ends_the_session_with_a_reason() {
    let end = MEMORY as u64;
    let most = u32::MAX;
    let chains: [&[(u64, u32, u16, u16)]; 12] = [
        &[(OUTSIDE, 100, 0, 0)],
        &[(end - 50, 100, 0, 0)],
        &[(FREE, 100, NEXT, 0)],
        &[(FREE, 100, NEXT, 1), (FREE, 0, NEXT, 0)],
        &[(FREE, 100, NEXT, 40_000)],
        &[(FREE, 100, WRITE, 0)],
        &[(FREE, 100, NEXT, 1), (FREE, 100, WRITE, 0)],
        &[(FREE, 70_000, 0, 0)],
        &[
            (FREE, most, NEXT, 1),
            (FREE, most, NEXT, 2),
            (FREE, 64, 0, 0),
        ],
        &[(OUTSIDE, 64, INDIRECT, 0)],
        &[(0, 0xffff_fff0, INDIRECT, 0)],
        // A table that lists itself.
        &[(0, 16, INDIRECT, 0)],
    ];
    let house = House::new();
    for chain in chains {
        let mut guest = Guest::ready(&house, ALL);
        let (link, mut queue) = house.accept();
        // One that is right comes before it.
        guest.poke(FREE, &[0; 200]);
        for (number, words) in chain.iter().enumerate() {
            guest.descriptor(1, number as u64, *words);
        }
        if chain[0].2 & INDIRECT != 0 && chain[0].0 == 0 {
            // The guest's address 0 is in its first ring.
            guest.descriptor(0, 0, (0, 16, INDIRECT, 0));
        }
        guest.give(1, 0);
        let error = frames(&mut queue).unwrap_err();
        assert_eq!(frames(&mut queue), Err(error), "{chain:?}: it stays so");
        assert!(link.ended() || link.reason().is_some(), "{chain:?}");
        let why = ends(&house, guest, error);
        assert_eq!(link.reason(), Some(why.to_string()), "{chain:?}");
    }
}

#[test]
fn a_buffer_that_is_none_ends_the_session_with_a_reason() {
    let buffers: [(u64, u32, u16); 5] = [
        (OUTSIDE, 2048, WRITE),
        (MEMORY as u64 - 100, 2048, WRITE),
        (FREE, 2048, 0),
        (FREE, 0, WRITE),
        (OUTSIDE, u32::MAX, WRITE),
    ];
    let (one, house) = (House::new(), House::new());
    let mut from = Guest::ready(&one, ALL);
    let (_a, mut a) = one.accept();
    for buffer in buffers {
        let mut guest = Guest::ready(&house, ALL);
        let (_link, mut queue) = house.accept();
        guest.chain(0, &[buffer]);
        from.send(&[0; HEADER], &[9; 1000]);
        let mut sent = None;
        let one = &mut |frame: &memlane_packet::Frame<'_>| {
            sent = Some(queue.send(frame));
            More::Yes
        };
        a.receive(1, one).unwrap();
        ends(&house, guest, sent.unwrap().unwrap_err());
    }
}

#[test]
fn indices_and_heads_that_cannot_be_end_the_session() {
    let house = House::new();
    for (head, index) in [
        (RING, 1),
        (65_535, 1),
        (0, RING + 1),
        (0, 65_535),
        (0, 30_000),
    ] {
        let mut guest = Guest::ready(&house, ALL);
        let (_link, mut queue) = house.accept();
        guest.give(1, head);
        guest.claim(1, index);
        let why = ends(&house, guest, frames(&mut queue).unwrap_err());
        assert_eq!(matches!(why, Detach::Index(..)), index > 1, "{why}");
    }
    // Also in sleep, and where frames are to go.
    for n in [0, 1] {
        let guest = Guest::ready(&house, ALL);
        let (_link, mut queue) = house.accept();
        guest.claim(n, 10_000);
        let until = if n == 1 {
            Sleep::FOR_FRAMES
        } else {
            Sleep::for_room(3)
        };
        let error = queue.sleeps(until).unwrap_err();
        ends(&house, guest, error);
    }
}

#[test]
fn a_poll_does_no_more_than_it_was_asked_for() {
    let house = House::new();
    let mut guest = Guest::ready(&house, ALL);
    let (_link, mut queue) = house.accept();
    // One frame of as many pieces as there are, given as often as the ring holds it; nothing in most of them.
    for n in 0..RING {
        let last = n + 1 == RING;
        let len = if last { 60 + 12 } else { 0 };
        let flags = if last { 0 } else { NEXT };
        guest.descriptor(1, n.into(), (FREE, len, flags, n + 1));
    }
    for _ in 0..RING {
        guest.give(1, 0);
    }
    let mut came = 0;
    let took = queue.receive(10, &mut |_| {
        came += 1;
        More::Yes
    });
    assert_eq!((took, came), (Ok(10), 10));
    let took = queue.receive(10, &mut |_| More::No);
    assert_eq!(took, Ok(1));
    assert_eq!(frames(&mut queue).unwrap().len(), usize::from(RING) - 11);
}

/// What lies where a guest can write: anything, mostly near to what is right.
fn scribble(guest: &mut Guest, random: &mut Random) {
    let near = [
        0,
        1,
        11,
        12,
        26,
        72,
        2048,
        4096,
        65_547,
        65_548,
        1 << 20,
        u32::MAX,
    ];
    let places = [
        0,
        FREE,
        FREE + 5,
        0x40000,
        MEMORY as u64 - 60,
        OUTSIDE,
        u64::MAX - 10,
    ];
    let mut pick = |n: usize| usize::try_from(random.below(n as u64)).unwrap();
    let (n, slot) = (pick(2), pick(80) as u64);
    match pick(8) {
        0 => guest.claim(n, u16::try_from(pick(65_536)).unwrap()),
        1 | 2 => {
            let head = u16::try_from(pick(usize::from(RING) + 1)).unwrap();
            guest.give(n, head);
        }
        3 => {
            let (at, byte) = (pick(0x7000) as u64, pick(256).to_le_bytes()[0]);
            guest.poke(at, &[byte]);
        }
        _ => {
            let flags = [0, NEXT, WRITE, NEXT | WRITE, INDIRECT, INDIRECT | NEXT][pick(6)];
            let words = (
                places[pick(7)],
                near[pick(12)],
                flags,
                u16::try_from(pick(66)).unwrap(),
            );
            guest.descriptor(n, slot % u64::from(RING), words);
        }
    }
}

/// One round of what a join does; `Err`: the session is over.
fn step(queue: &mut VhostQueue, from: &mut (Guest, VhostQueue)) -> Result<(), EndError> {
    let mut came = 0;
    let took = queue.receive(8, &mut |frame| {
        came += 1;
        assert!((14..=65_535).contains(&frame.len()));
        let mut bytes = vec![0; frame.len()];
        assert_eq!(frame.copy_out(0, &mut bytes), bytes.len());
        More::Yes
    })?;
    assert!(took <= 8 && came <= took);
    let (other, source) = from;
    other.send(&[0; HEADER], &[9; 3000]);
    let mut sent = Ok(memlane_packet::Sent::Refused);
    source
        .receive(1, &mut |frame| {
            sent = queue.send(frame);
            More::Yes
        })
        .unwrap();
    sent?;
    queue.flush()?;
    queue.lacks()?;
    queue.sleeps(Sleep {
        frames: true,
        room: 2,
    })?;
    queue.woken()
}

#[test]
fn garbage_in_the_rings_is_survived_also_while_it_changes() {
    let (other, house) = (House::new(), House::new());
    let source = Guest::ready(&other, ALL);
    let (_a, queue) = other.accept();
    let mut from = (source, queue);
    let mut over = 0;
    for seed in 1..120 {
        let mut random = Random(seed);
        let features = if seed % 2 == 0 { ALL } else { MERGES };
        let mut guest = Guest::ready(&house, features);
        let (_link, mut queue) = house.accept();
        for _ in 0..30 {
            scribble(&mut guest, &mut random);
        }
        let stop = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            let (guest, stop) = (&guest, &stop);
            scope.spawn(move || {
                let mut random = Random(seed * 1000 + 1);
                while !stop.load(Ordering::Relaxed) {
                    // Rings and tables, by bytes.
                    let at = random.below(0x7000);
                    let byte = guest.peek(at, 1)[0] ^ 1 << random.below(8);
                    guest.poke(at, &[byte]);
                }
            });
            let ended = (0..50).any(|_| step(&mut queue, &mut from).is_err());
            stop.store(true, Ordering::Relaxed);
            ended
        });
        over += u32::from(ended);
    }
    assert!(over > 50, "hardly anything was wrong: {over}");
    house.works();
}

#[test]
fn memory_that_could_be_taken_away_is_not_touched() {
    let house = House::new();
    let open = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&open, MEMORY as u64).unwrap();
    let short = memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&short, 4096).unwrap();
    fcntl_add_seals(&short, SealFlags::SHRINK).unwrap();
    for (file, why) in [(open, "seal"), (short, "end of its file")] {
        // While it is in use …
        let mut guest = Guest::ready(&house, ALL);
        let (link, mut queue) = house.accept();
        guest.send(&[0; HEADER], &[9; 60]);
        assert_eq!(frames(&mut queue).unwrap().len(), 1);
        let good = std::mem::replace(&mut guest.file, file);
        guest.share(&[(0, MEMORY as u64, USER, 0)]);
        guest.is_hung_up_on();
        while !link.ended() {
            std::thread::yield_now();
        }
        assert!(link.reason().unwrap().contains(why), "{:?}", link.reason());
        // … and from the beginning.
        let file = std::mem::replace(&mut guest.file, good);
        let mut next = Guest::connect(&house);
        next.negotiate(ALL);
        next.file = file;
        next.share(&[(0, MEMORY as u64, USER, 0)]);
        assert!(house.trouble().contains(why));
    }
    house.works();
}

#[test]
fn what_a_monitor_must_not_say_is_refused_with_a_reason() {
    let house = House::new();
    let big = u64::MAX;
    let tables: [&[(u64, u64, u64, u64)]; 4] = [
        &[(0, 0, USER, 0)],
        &[(big, 4096, USER, 0)],
        &[(0, 1 << 40, USER, 0)],
        &[(0, 8192, USER, 0), (4096, 8192, USER + 8192, 0)],
    ];
    for table in tables {
        let mut guest = Guest::connect(&house);
        guest.negotiate(ALL);
        guest.share(table);
        guest.is_hung_up_on();
        assert!(!house.trouble().is_empty(), "{table:?}");
    }
    let messages: [(u32, Vec<u8>); 9] = [
        (SET_VRING_ADDR, addresses(0, 0, 0)),
        (
            SET_VRING_ADDR,
            addresses(USER + 1, USER + 0x2000, USER + 0x1000),
        ),
        (SET_VRING_ADDR, addresses(USER + MEMORY as u64, USER, USER)),
        (SET_VRING_NUM, state(0, 0)),
        (SET_VRING_NUM, state(0, 63)),
        (SET_VRING_NUM, state(0, 100_000)),
        (SET_VRING_NUM, state(2, 64)),
        (SET_VRING_ENABLE, state(7, 1)),
        (SET_VRING_ENABLE, state(0, 2)),
    ];
    for (request, body) in messages {
        let mut guest = Guest::connect(&house);
        guest.negotiate(ALL);
        guest.share(&[(0, MEMORY as u64, USER, 0)]);
        guest.say(request, &body, &[]);
        guest.is_hung_up_on();
        assert!(!house.trouble().is_empty(), "{request} {body:?}");
    }
    // Doorbells that are no eventfds, a ring that lies nowhere, one that ends outside.
    for request in [SET_VRING_KICK, SET_VRING_CALL] {
        let mut guest = Guest::connect(&house);
        guest.negotiate(ALL);
        guest.say(request, &[0; 8], &[guest.file.as_fd()]);
        guest.is_hung_up_on();
        assert!(house.trouble().contains("eventfd"));
    }
    for placed in [false, true] {
        let mut guest = Guest::connect(&house);
        guest.negotiate(ALL);
        guest.share(&[(0, MEMORY as u64, USER, 0)]);
        if placed {
            let last = USER + MEMORY as u64 - 64;
            guest.say(SET_VRING_ADDR, &addresses(last, USER, USER + 0x1000), &[]);
        }
        let kick = guest.rings[0].kick.as_fd();
        guest.say(SET_VRING_KICK, &[0; 8], &[kick]);
        guest.is_hung_up_on();
        assert!(house.trouble().contains("outside"));
    }
    house.works();
}

#[test]
fn garbage_on_the_socket_is_survived() {
    let house = House::new();
    for seed in 1..80 {
        let mut random = Random(seed);
        let guest = Guest::connect(&house);
        for _ in 0..=random.below(6) {
            let n = usize::try_from(random.below(80)).unwrap();
            let body: Vec<u8> = (0..n).map(|_| random.word().to_le_bytes()[0]).collect();
            let request = random.word() % 45;
            let files = [guest.file.as_fd(), guest.socket.as_fd()];
            let files = &files[..usize::try_from(random.below(3)).unwrap()];
            let sent = match random.below(3) {
                0 => guest.try_send_raw(&[&body[..], &[1]].concat(), files),
                1 => guest.try_send(request, &random.below(3).to_le_bytes(), files),
                _ => guest.try_send(request, &body, files),
            };
            if sent.is_err() {
                break;
            }
        }
        drop(guest);
    }
    // Reasons of some of them may still be there.
    while house
        .door
        .accept(std::time::Duration::from_millis(50))
        .is_err_and(|error| matches!(error, memlane_packet_ends::OpenError::VhostUser(_)))
    {}
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for _ in 0..100 {
        drop(Guest::connect(&house));
    }
    house.works();
    // Other tests run in this process, too: a leak of some per connection shows through them.
    assert!(open() < before + 100, "{before} then {}", open());
}
