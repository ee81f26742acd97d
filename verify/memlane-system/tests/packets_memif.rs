//! `memlane net link` with memif: a peer that lies is detached with a reason, and the next one is served. Peers,
//! among them DPDK's testpmd, are killed and come back.

use std::time::{Duration, Instant};

use memlane_system::blocks::Rng;
use memlane_system::packets::hostile::fire;
use memlane_system::packets::hostile::memif::{Desc, NEXT, Peer, REGION, SLOTS, disconnected};
use memlane_system::packets::hostile::victim::{Bystander, LINK_OVER, Victim, all_good};
use memlane_system::packets::hostile::{LIMIT, Socket};

type Lie = (&'static str, &'static str, fn(&Peer));

fn slot(peer: &Peer, desc: Desc) {
    peer.there.put(0, desc);
    peer.there.set_head(1);
}

/// Of a client that sends.
const CLIENT_LIES: [Lie; 8] = [
    ("an index beyond", "the other side says", |p| {
        p.there.set_head(SLOTS + 1)
    }),
    ("an index behind", "the other side says", |p| {
        p.there.set_head(u16::MAX)
    }),
    ("no bytes", "a buffer of no bytes", |p| {
        slot(p, Desc::default())
    }),
    ("outside", "does not lie in a region", |p| {
        slot(
            p,
            Desc {
                length: 64,
                offset: REGION - 63,
                ..Desc::default()
            },
        );
    }),
    ("far outside", "does not lie in a region", |p| {
        slot(
            p,
            Desc {
                length: u32::MAX,
                offset: u32::MAX,
                ..Desc::default()
            },
        );
    }),
    ("another region", "does not lie in a region", |p| {
        slot(
            p,
            Desc {
                region: 1,
                length: 64,
                ..Desc::default()
            },
        );
    }),
    ("a frame that is too long", "more than 65535 bytes", |p| {
        p.show(15, 5000, 0)
    }),
    (
        "a frame without end",
        "fills the ring and is not whole",
        |p| p.show(SLOTS, 64, NEXT),
    ),
];

#[test]
fn a_client_that_writes_what_it_must_not_is_let_go_of_and_the_next_one_served() {
    let bystander = Bystander::new();
    let mut victim = Victim::new("memif-lies", "sink:", "memif?role=server", &[]);
    for (what, reason, lie) in CLIENT_LIES {
        let told = victim.running.said(reason);
        let peer = Peer::connect(&victim.socket);
        lie(&peer);
        peer.ring();
        let why = disconnected(&peer.socket).unwrap_or_default();
        assert!(why.contains(reason), "{what}: {why}");
        victim.running.wait_until_said(reason, told + 1);
    }
    victim.takes_from("gen:count=3000,size=64-9000", "memif", &[]);
    all_good(&victim.end(), 3000);
    bystander.saw_nothing();
}

/// Of a client whose buffers are to be filled.
const ROOM_LIES: [Lie; 3] = [
    ("more buffers than slots", "the other side says", |p| {
        p.back.set_head(SLOTS * 3)
    }),
    ("a buffer outside", "does not lie in a region", |p| {
        for n in 0..SLOTS {
            p.back.put(
                n,
                Desc {
                    length: 2048,
                    offset: REGION - 2047,
                    ..Desc::default()
                },
            );
        }
        p.back.set_head(p.back.tail().wrapping_add(SLOTS));
    }),
    ("a buffer of no bytes", "a buffer of no bytes", |p| {
        for n in 0..SLOTS {
            p.back.put(n, Desc::default());
        }
        p.back.set_head(p.back.tail().wrapping_add(SLOTS));
    }),
];

#[test]
fn a_client_with_buffers_that_are_none_is_let_go_of_and_the_next_one_gets_frames() {
    let victim = Victim::new("memif-room", "gen:size=64-1500", "memif?role=server", &[]);
    for (what, reason, lie) in ROOM_LIES {
        let peer = Peer::connect(&victim.socket);
        let end = Instant::now() + LIMIT;
        while peer.back.tail() < SLOTS {
            assert!(Instant::now() < end, "{what}: honest buffers are filled");
        }
        lie(&peer);
        let why = disconnected(&peer.socket).unwrap_or_default();
        assert!(why.contains(reason), "{what}: {why}");
    }
    victim.gives_to("memif");
    victim.end();
}

#[test]
fn half_a_frame_keeps_nobody_busy_and_is_over_when_its_client_goes() {
    let mut victim = Victim::new("memif-half", "sink:", "memif?role=server", &[]);
    let peer = Peer::connect(&victim.socket);
    peer.show(3, 64, NEXT);
    std::thread::sleep(Duration::from_millis(300));
    let ticks = victim.ticks();
    std::thread::sleep(Duration::from_millis(500));
    let used = victim.ticks() - ticks;
    assert!(used < 15, "{used} ticks of 10 ms for half a frame");
    drop(peer);
    victim.says(LINK_OVER);
    let peer = Peer::connect(&victim.socket);
    peer.show(3, 64, NEXT);
    std::thread::sleep(Duration::from_millis(100));
    // It is to stop, whatever its client leaves undone.
    victim.end();
}

const SERVER_LIES: [Lie; 4] = [
    (
        "more given than there are buffers",
        "the other side says",
        |p| p.back.set_tail(SLOTS + 1),
    ),
    (
        "more than a buffer has",
        "more bytes than the buffer has",
        |p| {
            p.back.put(
                0,
                Desc {
                    length: 2049,
                    ..Desc::default()
                },
            );
            p.back.set_tail(1);
        },
    ),
    ("no bytes", "a buffer of no bytes", |p| {
        p.back.put(0, Desc::default());
        p.back.set_tail(1);
    }),
    (
        "a frame without end",
        "fills the ring and is not whole",
        |p| {
            for n in 0..SLOTS {
                p.back.put(
                    n,
                    Desc {
                        length: 64,
                        flags: NEXT,
                        ..Desc::default()
                    },
                );
            }
            p.back.set_tail(SLOTS);
        },
    ),
];

#[test]
fn a_server_that_writes_what_it_must_not_is_let_go_of_and_the_next_one_found() {
    let mut victim = Victim::new("memif-server", "sink:", "memif", &[]);
    let door = Socket::listen(&victim.socket);
    for (what, reason, lie) in SERVER_LIES {
        let peer = Peer::accept(&door);
        // It posts its buffers when it has heard that it is connected.
        let end = Instant::now() + LIMIT;
        while peer.back.head() != SLOTS {
            assert!(Instant::now() < end, "{what}: no buffers");
        }
        lie(&peer);
        peer.ring();
        let why = disconnected(&peer.socket).unwrap_or_default();
        assert!(why.contains(reason), "{what}: {why}");
    }
    drop(door);
    std::fs::remove_file(&victim.socket).expect("it was there");
    victim.takes_from("gen:count=3000,size=64-9000", "memif?role=server", &[]);
    all_good(&victim.end(), 3000);
}

#[test]
fn a_server_that_takes_more_than_it_was_shown_is_let_go_of() {
    let victim = Victim::new("memif-takes", "gen:", "memif", &[]);
    let door = Socket::listen(&victim.socket);
    for _ in 0..3 {
        let peer = Peer::accept(&door);
        let end = Instant::now() + LIMIT;
        while peer.there.head() < SLOTS {
            assert!(Instant::now() < end, "nothing is sent");
        }
        peer.there.set_tail(SLOTS + 1);
        let why = disconnected(&peer.socket).unwrap_or_default();
        assert!(why.contains("the other side says"), "{why}");
    }
    victim.end();
}

#[test]
fn a_peer_that_writes_anything_at_any_time_is_let_go_of_and_leaves_nothing_behind() {
    let bystander = Bystander::new();
    for (end, place, client) in [
        ("sink:", "memif?role=server", true),
        ("gen:size=64-1500", "memif?role=server", true),
        ("sink:", "memif", false),
        ("gen:size=64-1500", "memif", false),
    ] {
        let mut victim = Victim::new("memif-fire", end, place, &[]);
        let before = victim.idle();
        let door = (!client).then(|| Socket::listen(&victim.socket));
        fire::until_noticed(10, 1, |seed| {
            let peer = match &door {
                Some(door) => Peer::accept(door),
                None => Peer::connect(&victim.socket),
            };
            let (region, edges) = (
                peer.there.region(),
                [0, 1, 13, 64, 2048, 2049, 65536, u32::MAX],
            );
            let scribble = |random: &mut Rng| {
                // The rings far more often than their buffers.
                let end = if random.below(4) == 0 { REGION } else { 768 };
                let edge = edges[usize::try_from(random.below(8)).unwrap_or(0)];
                let word = u32::try_from(random.next() >> 40).unwrap_or(0);
                let word = if random.below(2) == 0 { edge } else { word };
                region.set(random.below(u64::from(end) / 4) * 4, word);
            };
            let mut len = 14;
            fire::attack(seed, &peer.socket, scribble, || {
                peer.work(client, len);
                len = len % 2000 + 13;
            })
        });
        drop(door);
        victim.holds_again(&before);
        victim.end();
    }
    bystander.saw_nothing();
}
