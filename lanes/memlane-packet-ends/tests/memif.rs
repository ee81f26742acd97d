//! memif with both ends here: frames whole and in order, of all lengths, over the socket's whole story.

use memlane_fixtures::frames::{copied, frame};
use memlane_fixtures::random::Random;
use memlane_packet::{AttachError, Detach, Meta, PacketPort, Sent, Sleep};
use memlane_packet_ends::OpenError;
use memlane_packet_ends::memif::{
    ClientTerms, MemifLink, MemifListener, MemifQueue, ServerTerms, connect, connect_until,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

fn name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("@memlane-memif-{}-{n}", std::process::id())
}

type Side = (MemifLink, Vec<MemifQueue>);

fn pair(client: &ClientTerms, server: &ServerTerms) -> (Side, Side) {
    let name = name();
    let listener = MemifListener::bind(&name).unwrap();
    let client = client.clone();
    let there = std::thread::spawn(move || connect(&name, &client).unwrap());
    let served = listener.accept(server, LIMIT).unwrap();
    (there.join().unwrap(), served)
}

fn small() -> ClientTerms {
    ClientTerms {
        ring_log2: 5,
        buffer: 256,
        ..ClientTerms::default()
    }
}

/// Sends one of `len` bytes that can be told from all others.
fn send(queue: &mut MemifQueue, number: u64, len: usize) -> Sent {
    let bytes = frame(number, len).0;
    let fill = |room: &memlane_packet::Room<'_>| {
        assert_eq!(room.len(), len);
        assert_eq!(room.copy_in(0, &bytes), len);
    };
    queue.send(len, Meta::default(), fill).unwrap()
}

/// Carries frames of random lengths from one queue to the other, all in one thread; every one is compared.
fn carry(from: &mut MemifQueue, to: &mut MemifQueue, frames: u64, longest: u64, seed: u64) {
    let mut random = Random(seed);
    let mut lens = Vec::new();
    let mut arrived = 0;
    let end = Instant::now() + LIMIT;
    while arrived < frames {
        assert!(Instant::now() < end, "{arrived} of {frames}");
        for _ in 0..random.below(40) {
            let sent = lens.len() as u64;
            let len = 14 + usize::try_from(random.below(longest - 13)).unwrap();
            if sent < frames && send(from, sent, len) == Sent::Queued {
                lens.push(len);
            }
        }
        from.flush().unwrap();
        let most = usize::try_from(random.below(40)).unwrap();
        to.receive(most, |lent| {
            let number = usize::try_from(arrived).unwrap();
            assert_eq!(copied(lent).0, frame(arrived, lens[number]).0, "{arrived}");
            arrived += 1;
        })
        .unwrap();
        to.flush().unwrap();
    }
}

#[test]
fn frames_of_all_lengths_arrive_whole_and_in_order_both_ways() {
    let (client, server) = pair(&small(), &ServerTerms::default());
    let ((_client, mut clients), (_server, mut servers)) = (client, server);
    // More than the indices have numbers.
    carry(&mut clients[0], &mut servers[0], 70_000, 300, 1);
    carry(&mut servers[0], &mut clients[0], 70_000, 300, 2);
    // A ring of 32 buffers of 256 bytes takes no more.
    carry(&mut clients[0], &mut servers[0], 500, 8192, 3);
    carry(&mut servers[0], &mut clients[0], 500, 8192, 4);
    carry(&mut clients[0], &mut servers[0], 500, 64, 5);
    assert!(clients[0].is_quiet().unwrap());
    let (sent, received) = (clients[0].counts(), servers[0].counts());
    assert_eq!(sent.sent, 71_000);
    assert_eq!(sent.sent_bytes, received.received_bytes);
}

#[test]
fn jumbo_frames_go_with_the_usual_buffers() {
    let (client, server) = pair(&ClientTerms::default(), &ServerTerms::default());
    let ((_client, mut clients), (_server, mut servers)) = (client, server);
    carry(&mut clients[0], &mut servers[0], 2000, 65535, 6);
    carry(&mut servers[0], &mut clients[0], 2000, 65535, 7);
}

#[test]
fn what_cannot_go_is_refused_and_a_full_ring_says_what_it_lacks() {
    let (client, server) = pair(&small(), &ServerTerms::default());
    let ((_client, mut clients), (_server, mut servers)) = (client, server);
    for queue in [&mut clients[0], &mut servers[0]] {
        for len in [0, 13, 8193, 65535, 65536, usize::MAX] {
            let sent = queue.send(len, Meta::default(), |_| panic!("{len}"));
            assert_eq!(sent, Ok(Sent::Refused), "{len}");
        }
        let blank = Meta {
            csum_blank: true,
            ..Meta::default()
        };
        let sent = queue.send(64, blank, |_| panic!("a blank checksum"));
        assert_eq!(sent, Ok(Sent::Refused));
        assert_eq!(send(queue, 0, 31 * 256), Sent::Queued);
        // One slot is left, and two are needed.
        assert_eq!(send(queue, 1, 257), Sent::Full(2));
        assert_eq!(send(queue, 1, 256), Sent::Queued);
        queue.flush().unwrap();
        assert_eq!(queue.sleeps(Sleep::for_room(2)), Ok(true));
    }
    assert_eq!(servers[0].receive(9, |_| ()), Ok(2));
    assert_eq!(clients[0].receive(9, |_| ()), Ok(2));
    for queue in [&mut clients[0], &mut servers[0]] {
        assert_eq!(queue.wait(Sleep::for_room(32), LIMIT), Ok(true));
        assert_eq!(send(queue, 2, 8192), Sent::Queued);
        queue.flush().unwrap();
    }
}

#[test]
fn who_sleeps_is_woken_for_frames_and_for_room_and_by_the_end() {
    let (client, server) = pair(&small(), &ServerTerms::default());
    let ((client, mut clients), (_server, mut servers)) = (client, server);
    let rounds = 200;
    let echo = std::thread::spawn(move || {
        for _ in 0..rounds {
            assert_eq!(servers[0].wait(Sleep::FOR_FRAMES, LIMIT), Ok(true));
            let mut numbers = Vec::new();
            servers[0]
                .receive(32, |lent| {
                    let mut number = [0; 8];
                    lent.copy_out(0, &mut number);
                    numbers.push(u64::from_le_bytes(number));
                })
                .unwrap();
            assert_eq!(numbers.len(), 1);
            send(&mut servers[0], numbers[0], 100);
            servers[0].flush().unwrap();
        }
        // Their goodbye, and nothing else.
        let end = servers[0].wait(Sleep::FOR_FRAMES, LIMIT);
        (end, servers[0].counts().doorbells)
    });
    for n in 0..rounds {
        if n % 10 == 0 {
            // Long enough that the other side sleeps in its long sleep.
            std::thread::sleep(Duration::from_millis(5));
        }
        send(&mut clients[0], n, 100);
        clients[0].flush().unwrap();
        assert_eq!(clients[0].wait(Sleep::FOR_FRAMES, LIMIT), Ok(true));
        let got = clients[0].receive(32, |lent| {
            assert_eq!(copied(lent).0, frame(n, 100).0);
        });
        assert_eq!(got, Ok(1));
    }
    drop(client);
    let (end, doorbells) = echo.join().unwrap();
    assert_eq!(end, Err(Detach::PeerDetached(0)));
    assert!(doorbells > 0, "nobody was ever rung for");
    assert!(clients[0].counts().doorbells > 0);
}

#[test]
fn who_waits_without_anybody_gets_his_time_back() {
    let (client, server) = pair(&small(), &ServerTerms::default());
    let ((_client, mut clients), (_server, mut servers)) = (client, server);
    for queue in [&mut clients[0], &mut servers[0]] {
        let limit = Duration::from_millis(20);
        assert_eq!(queue.wait(Sleep::FOR_FRAMES, limit), Ok(false));
        assert_eq!(queue.wait(Sleep::for_room(33), limit), Ok(false));
    }
}

#[test]
fn queues_are_many_and_each_has_its_own() {
    let terms = ClientTerms {
        queues: 16,
        ..small()
    };
    let server = ServerTerms {
        queues: 3,
        ..ServerTerms::default()
    };
    let (client, served) = pair(&terms, &server);
    let ((client, mut clients), (link, mut servers)) = (client, served);
    assert_eq!((clients.len(), servers.len()), (3, 3));
    assert_eq!(
        (client.peer(), link.peer()),
        ("memlane".into(), "memlane".into())
    );
    for (n, (client, server)) in clients.iter_mut().zip(&mut servers).enumerate() {
        carry(client, server, 100 * (n as u64 + 1), 1500, 8);
        carry(server, client, 10 * (n as u64 + 1), 1500, 9);
        assert_eq!(server.counts().received, 100 * (n as u64 + 1));
    }
}

#[test]
fn a_client_without_the_word_or_at_another_interface_is_told_so() {
    let name = name();
    let listener = MemifListener::bind(&name).unwrap();
    let server = ServerTerms {
        id: 7,
        secret: "sesame".into(),
        ..ServerTerms::default()
    };
    let right = ClientTerms {
        id: 7,
        secret: "sesame".into(),
        ..small()
    };
    let attempts = [
        (
            ClientTerms {
                id: 8,
                ..right.clone()
            },
            "ID not found",
        ),
        (
            ClientTerms {
                secret: String::new(),
                ..right.clone()
            },
            "Incorrect secret",
        ),
        (
            ClientTerms {
                secret: "sesam".into(),
                ..right.clone()
            },
            "Incorrect secret",
        ),
    ];
    for (terms, why) in attempts {
        let name = name.clone();
        let client = std::thread::spawn(move || connect(&name, &terms).unwrap_err());
        let served = listener.accept(&server, LIMIT).unwrap_err();
        assert!(served.to_string().contains(why), "{served}");
        let told = client.join().unwrap().to_string();
        assert!(told.contains("refused") && told.contains(why), "{told}");
    }
    let client = std::thread::spawn(move || connect(&name, &right).unwrap());
    listener.accept(&server, LIMIT).unwrap();
    client.join().unwrap();
}

#[test]
fn either_side_comes_back_and_what_was_there_is_still_taken() {
    let name = name();
    let mut listener = MemifListener::bind(&name).unwrap();
    let terms = small();
    let until = || Instant::now() + LIMIT;
    let client = |name: &str| {
        let (name, terms) = (name.to_owned(), terms.clone());
        std::thread::spawn(move || connect_until(&name, &terms, until()).unwrap())
    };
    let there = client(&name);
    let (link, mut servers) = listener.accept(&ServerTerms::default(), LIMIT).unwrap();
    let (mine, mut clients) = there.join().unwrap();
    // The client goes; its last frame is taken, then it is gone.
    send(&mut clients[0], 1, 100);
    clients[0].flush().unwrap();
    drop((mine, clients));
    assert_eq!(servers[0].wait(Sleep::FOR_FRAMES, LIMIT), Ok(true));
    assert_eq!(servers[0].receive(8, |_| ()), Ok(1));
    let end = servers[0].wait(Sleep::FOR_FRAMES, LIMIT);
    assert_eq!(end, Err(Detach::PeerDetached(0)));
    assert_eq!(link.reason().as_deref(), Some("closed"));
    assert_eq!(servers[0].receive(8, |_| ()), Err(Detach::PeerDetached(0)));
    // It comes back.
    let there = client(&name);
    let (link, servers) = listener.accept(&ServerTerms::default(), LIMIT).unwrap();
    let (mine, mut clients) = there.join().unwrap();
    // The server goes, and its door; a client that only polls sees it too.
    drop((link, servers, listener));
    let end = Instant::now() + LIMIT;
    let why = loop {
        assert!(Instant::now() < end, "the end was never seen");
        if let Err(why) = clients[0].receive(8, |_| ()) {
            break why;
        }
    };
    assert_eq!(why, Detach::PeerDetached(0));
    drop((mine, clients));
    let there = client(&name);
    std::thread::sleep(Duration::from_millis(50));
    listener = MemifListener::bind(&name).unwrap();
    let (_link, mut servers) = listener.accept(&ServerTerms::default(), LIMIT).unwrap();
    let (_mine, mut clients) = there.join().unwrap();
    carry(&mut clients[0], &mut servers[0], 100, 300, 10);
    carry(&mut servers[0], &mut clients[0], 100, 300, 11);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let name = name();
    let listener = MemifListener::bind(&name).unwrap();
    let wrong = [
        ClientTerms {
            queues: 0,
            ..small()
        },
        ClientTerms {
            queues: 17,
            ..small()
        },
        ClientTerms {
            ring_log2: 0,
            ..small()
        },
        ClientTerms {
            ring_log2: 15,
            ..small()
        },
        ClientTerms {
            buffer: 63,
            ..small()
        },
        ClientTerms {
            buffer: 65537,
            ..small()
        },
        ClientTerms {
            queues: 16,
            ring_log2: 14,
            buffer: 65536,
            ..small()
        },
    ];
    for terms in wrong {
        let name = name.clone();
        let client = std::thread::spawn(move || connect(&name, &terms).unwrap_err());
        let served = listener.accept(&ServerTerms::default(), LIMIT).unwrap_err();
        assert!(matches!(client.join().unwrap(), OpenError::Memif(_)));
        assert!(
            matches!(served, OpenError::Attach(AttachError::Socket(_))),
            "{served}"
        );
    }
}
