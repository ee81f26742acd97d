//! `memlane net link` with a lying front or back at the other end: it detaches the liar with a reason, keeps its
//! other end, does bounded work, and serves the next honest peer. Nobody else on the machine notices.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::SealFlags;

use memlane_system::packets::hostile::netif::{
    Back, CONTROL, EXTRA, Front, GRANTS, MORE, REFUSED, REGION, REQ_PROD, RSP_PROD, Request, Ring,
    SLOTS, attach, detached, hello, kind, message,
};
use memlane_system::packets::hostile::victim::{Bystander, Victim, all_good};
use memlane_system::packets::hostile::{Heard, LIMIT, Memory, Socket};

/// Numbers of the modes on the wire.
const MODES: [u8; 3] = [0, 1, 2];

/// What a front says instead of what it should, and what comes with it.
type Words = (&'static str, Vec<u8>, Vec<OwnedFd>);

fn right() -> Vec<OwnedFd> {
    let mut fds: Vec<OwnedFd> = [CONTROL, REGION, REGION]
        .map(|len| Memory::sealed(len).0.into())
        .into();
    let (doorbell, other) = std::os::unix::net::UnixStream::pair().expect("a doorbell");
    // Nobody is to ring it: all of these are refused before.
    drop(other);
    fds.push(doorbell.into());
    fds
}

fn with(at: usize, fd: OwnedFd) -> Vec<OwnedFd> {
    let mut fds = right();
    fds[at] = fd;
    fds
}

fn wrong_words() -> Vec<Words> {
    let good = attach(0);
    let but = |at: usize, bytes: &[u8]| {
        let mut words = attach(0);
        words[at..at + bytes.len()].copy_from_slice(bytes);
        words
    };
    let none = SealFlags::SHRINK | SealFlags::GROW;
    let short = Memory::sealed(REGION - 4096).0;
    let file = File::open("/dev/zero").expect("a file");
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an event");
    vec![
        ("another protocol", vec![0; 48], vec![]),
        ("another version", but(8, &[2]), right()),
        ("half a message", good[..47].to_vec(), right()),
        ("more than a message", [&good[..], &[0]].concat(), right()),
        ("a long message", vec![b'M'; 4000], right()),
        ("no such kind", but(10, &[9]), right()),
        ("a field that means nothing", but(17, &[1]), right()),
        ("no such mode", but(12, &[3]), right()),
        ("no queue", but(14, &[0]), right()),
        ("17 queues", but(14, &[17]), right()),
        ("small rings", but(16, &[4]), right()),
        ("few grants", but(20, &[63]), right()),
        (
            "more control memory",
            but(24, &(CONTROL + 1).to_le_bytes()),
            right(),
        ),
        (
            "all memory that there is",
            but(32, &u64::MAX.to_le_bytes()),
            right(),
        ),
        ("no descriptors", good.clone(), vec![]),
        (
            "too few",
            good.clone(),
            right().into_iter().skip(1).collect(),
        ),
        (
            "too many",
            good.clone(),
            right().into_iter().chain(right()).collect(),
        ),
        (
            "memory without a seal",
            good.clone(),
            with(1, Memory::new(REGION, none).0.into()),
        ),
        (
            "memory that is shorter",
            good.clone(),
            with(2, short.into()),
        ),
        ("no memory", good.clone(), with(0, file.into())),
        ("no doorbell", good, with(3, event)),
        ("the end before the beginning", message(5, &[]), vec![]),
        ("nothing", vec![], vec![]),
    ]
}

#[test]
fn whatever_a_front_says_instead_of_attach_the_next_one_is_let_in() {
    let bystander = Bystander::new();
    let mut stories = wrong_words();
    // Each failed one makes the command wait a little longer for the next, so they are shared out.
    std::thread::scope(|s| {
        while !stories.is_empty() {
            let some: Vec<Words> = stories.split_off(stories.len().saturating_sub(6));
            s.spawn(move || {
                let mut victim = Victim::new("lie-attach", "sink:", "back", &[]);
                for (what, bytes, fds) in &some {
                    let socket = Socket::connect(&victim.socket);
                    let (hello, _) = socket.expect();
                    assert_eq!((kind(&hello), hello.len()), (1, 48));
                    if bytes.is_empty() {
                        continue;
                    }
                    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                    assert!(socket.send(bytes, &fds), "{what}");
                    match socket.hear(LIMIT) {
                        Heard::Closed => {}
                        Heard::Said(bytes, _) => assert_eq!(kind(&bytes), REFUSED, "{what}"),
                        Heard::Nothing => panic!("{what}: no answer"),
                    }
                }
                victim.says("no link yet: ");
                victim.takes_from("gen:count=1000", "front", &[]);
                all_good(&victim.end(), 1000);
            });
        }
    });
    bystander.saw_nothing();
}

type Lie = (&'static str, &'static str, fn(&Front));

/// Lies in the rings, and a part of the reason that is to be given.
const FRONT_LIES: [Lie; 13] = [
    ("an index beyond", "tx ring: the other side says", |f| {
        f.publish(SLOTS + 1)
    }),
    ("an index behind", "tx ring: the other side says", |f| {
        f.publish(u32::MAX)
    }),
    ("no such grant", "no such reference", |f| {
        f.asks(Request {
            gref: GRANTS,
            size: 64,
            ..Request::default()
        });
    }),
    ("what was not granted", "not granted", |f| {
        f.queue.grant(3, 0, 0, 3);
        f.asks(Request {
            gref: 3,
            size: 64,
            ..Request::default()
        });
    }),
    ("pages outside", "outside of the memory", |f| {
        f.queue.grant(3, 5, 0, 32);
        f.asks(Request {
            gref: 3,
            size: 64,
            ..Request::default()
        });
    }),
    ("another region", "outside of the memory", |f| {
        f.queue.grant(3, 5, 2, 0);
        f.asks(Request {
            gref: 3,
            size: 64,
            ..Request::default()
        });
    }),
    ("a large order", "too many pages", |f| {
        f.queue.grant(3, 5 | 15 << 12, 0, 0);
        f.asks(Request {
            gref: 3,
            size: 64,
            ..Request::default()
        });
    }),
    ("beyond the buffer", "beyond its grant", |f| {
        f.asks(Request {
            offset: 4090,
            size: 64,
            ..Request::default()
        });
    }),
    ("no bytes", "less than an Ethernet header", |f| {
        f.asks(Request {
            size: 13,
            ..Request::default()
        });
    }),
    ("half a packet", "last slots are not there", |f| {
        f.asks(Request {
            size: 9000,
            flags: MORE,
            ..Request::default()
        });
    }),
    ("a packet without end", "too many fragments", |f| {
        f.queue.request(
            0,
            Request {
                size: 9000,
                flags: MORE,
                ..Request::default()
            },
        );
        for n in 1..SLOTS {
            f.queue.request(
                n,
                Request {
                    gref: n,
                    size: 1,
                    flags: MORE,
                    ..Request::default()
                },
            );
        }
        f.publish(SLOTS);
    }),
    (
        "extra info that nobody knows",
        "a kind that was not agreed on",
        |f| {
            f.queue.request(
                0,
                Request {
                    size: 64,
                    flags: EXTRA,
                    ..Request::default()
                },
            );
            f.queue.words(Ring::Tx, 1, &[7, 0, 0]);
            f.publish(2);
        },
    ),
    ("fragments longer than all", "longer than the packet", |f| {
        f.queue.request(
            0,
            Request {
                size: 64,
                flags: MORE,
                ..Request::default()
            },
        );
        f.queue.request(
            1,
            Request {
                size: 65,
                ..Request::default()
            },
        );
        f.publish(2);
    }),
];

#[test]
fn a_front_that_writes_what_it_must_not_is_let_go_of_with_a_reason_and_the_next_one_served() {
    let bystander = Bystander::new();
    let mut victim = Victim::new("lie-front", "sink:", "back", &[]);
    for mode in MODES {
        for (what, reason, lie) in FRONT_LIES {
            let mut front = Front::attach(&victim.socket, mode);
            // It has been honest before.
            assert!(front.work(64));
            let end = Instant::now() + LIMIT;
            while front.queue.header(Ring::Tx, RSP_PROD) == 0 {
                assert!(
                    Instant::now() < end,
                    "{what}: the honest frame is not taken"
                );
            }
            let told = victim.running.said(reason);
            drop(front);
            let front = Front::attach(&victim.socket, mode);
            lie(&front);
            assert_eq!(detached(&front.socket), Some(1), "{what}: a reason is told");
            victim.running.wait_until_said(reason, told + 1);
        }
    }
    victim.takes_from("gen:count=3000,size=64-9000", "front", &[]);
    all_good(&victim.end(), 3000);
    bystander.saw_nothing();
}

/// Buffers to receive into that are none: what a back that sends finds.
const ROOM_LIES: [Lie; 4] = [
    (
        "more buffers than slots",
        "rx ring: the other side says",
        |f| {
            f.queue.set_header(Ring::Rx, REQ_PROD, SLOTS + 1);
        },
    ),
    (
        "a buffer that is the front's alone",
        "for reading only",
        |f| f.queue.grant(SLOTS, 5, 1, 0),
    ),
    ("a buffer outside", "outside of the memory", |f| {
        f.queue.grant(SLOTS, 1, 1, u32::MAX)
    }),
    ("a buffer by no reference", "no such reference", |f| {
        f.queue.words(Ring::Rx, 0, &[0, u32::MAX]);
    }),
];

#[test]
fn a_front_with_buffers_that_are_none_is_let_go_of_and_the_next_one_gets_frames() {
    let mut victim = Victim::new("lie-room", "gen:size=64-1500", "back", &[]);
    for mode in MODES {
        for (what, reason, lie) in ROOM_LIES {
            let told = victim.running.said(reason);
            // What it lies about may have been used honestly before: it posts what it got again and again.
            let mut front = Front::attach(&victim.socket, mode);
            lie(&front);
            let end = Instant::now() + LIMIT;
            let mut closed = false;
            while !closed {
                assert!(Instant::now() < end, "{what}: it does not detach");
                let forged = front.queue.header(Ring::Rx, REQ_PROD);
                front.work(64);
                if what == "more buffers than slots" {
                    front
                        .queue
                        .set_header(Ring::Rx, REQ_PROD, forged.wrapping_add(99));
                    front.ring();
                }
                lie(&front);
                closed = matches!(front.socket.hear(Duration::from_millis(1)), Heard::Said(..));
            }
            victim.running.wait_until_said(reason, told + 1);
        }
    }
    victim.gives_to("front");
    let said = victim.end();
    assert!(said["ends"][0]["received"].as_u64() > Some(100), "{said:#}");
}

type BackLie = (&'static str, &'static str, fn(&Back));

const BACK_LIES: [BackLie; 9] = [
    (
        "more answers than were asked for",
        "tx ring: the other side says",
        |b| {
            b.publish(
                Ring::Tx,
                b.queue.header(Ring::Tx, REQ_PROD).wrapping_add(SLOTS + 1),
            );
        },
    ),
    ("an index behind", "rx ring: the other side says", |b| {
        b.publish(Ring::Rx, u32::MAX)
    }),
    (
        "more packets than buffers",
        "rx ring: the other side says",
        |b| {
            b.publish(Ring::Rx, SLOTS + 1);
        },
    ),
    ("an answer to nobody", "an answer to another request", |b| {
        b.response(0, 31, 0, 0, 64);
        b.publish(Ring::Rx, 1);
    }),
    ("beyond the buffer", "beyond its buffer", |b| {
        b.response(0, 0, 4090, 0, 64);
        b.publish(Ring::Rx, 1);
    }),
    (
        "of more bytes than a buffer has",
        "beyond its buffer",
        |b| {
            b.response(0, 0, 0, 0, i16::MAX);
            b.publish(Ring::Rx, 1);
        },
    ),
    ("half a packet", "last slots are not there", |b| {
        b.response(0, 0, 0, MORE, 64);
        b.publish(Ring::Rx, 1);
    }),
    ("a packet without end", "too many fragments", |b| {
        for n in 0..SLOTS {
            b.response(n, u16::try_from(n).unwrap_or(0), 0, MORE, 64);
        }
        b.publish(Ring::Rx, SLOTS);
    }),
    ("no packet", "a length that there is not", |b| {
        b.response(0, 0, 0, 0, 13);
        b.publish(Ring::Rx, 1);
    }),
];

#[test]
fn a_back_that_writes_what_it_must_not_is_let_go_of_with_a_reason_and_the_next_one_found() {
    let bystander = Bystander::new();
    let mut victim = Victim::new("lie-back", "sink:", "front", &["--ring", "32"]);
    let door = Socket::listen(&victim.socket);
    for (what, reason, lie) in BACK_LIES {
        let back = Back::accept(&door);
        lie(&back);
        assert_eq!(detached(&back.socket), Some(1), "{what}: a reason is told");
        victim.says(reason);
    }
    drop(door);
    std::fs::remove_file(&victim.socket).expect("it was there");
    victim.takes_from("gen:count=3000,size=64-9000", "back", &[]);
    all_good(&victim.end(), 3000);
    bystander.saw_nothing();
}

#[test]
fn a_front_that_nobody_talks_sense_to_says_so_and_ends() {
    let but = |at: usize, byte: u8| {
        let mut words = hello();
        words[at] = byte;
        words
    };
    for (bytes, reason) in [
        (vec![0; 48], "is no packet link"),
        (but(8, 2), "update the older side"),
        (but(12, 0), "does not offer that mode"),
        (message(3, &[]), "is no hello"),
    ] {
        let victim = Victim::new("lie-hello", "sink:", "front", &[]);
        let door = Socket::listen(&victim.socket);
        let socket = door.accept();
        socket.send(&bytes, &[]);
        let said = victim.running.finish(LIMIT);
        assert_eq!(said.ending(), "exit 4", "{reason}: {}", said.report());
        assert!(said.stderr.contains(reason), "{reason}: {}", said.report());
    }
}

#[test]
fn a_front_that_says_nothing_keeps_the_next_one_waiting_for_some_seconds_at_most() {
    let mut victim = Victim::new("silent", "sink:", "back", &[]);
    let silent = Socket::connect(&victim.socket);
    let (hello, _) = silent.expect();
    assert_eq!(kind(&hello), 1);
    victim.takes_from("gen:count=1000", "front", &[]);
    assert!(silent.is_closed(LIMIT));
    all_good(&victim.end(), 1000);
}

#[test]
fn a_back_that_says_nothing_is_given_up_and_the_next_one_found() {
    let mut victim = Victim::new("silent-back", "sink:", "front", &[]);
    let door = Socket::listen(&victim.socket);
    let silent = door.accept();
    assert!(silent.is_closed(LIMIT));
    drop((silent, door));
    std::fs::remove_file(&victim.socket).expect("it was there");
    victim.takes_from("gen:count=1000", "back", &[]);
    all_good(&victim.end(), 1000);
}
