//! Somebody who is no agent listens where the programs of a domain ask: he says nothing, or too much, or what is not true,
//! and hands over what nobody wants. The programs stay on TCP, wait for nothing, lose not a byte, and keep nothing of his.
//!
//! Needs root for the namespaces.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memlane_socket::protocol::agent::{Across, Answer, LEN, Outcome, Question, Refusal, SOCKET};
use memlane_socket::protocol::wire;
use memlane_sys::sock;
use memlane_system::blocks::skip;
use memlane_system::containers::{Between, Networks};
use memlane_system::harness::{TempDir, plain_only};
use memlane_system::pair::Pair;
use memlane_system::real::held::{Held, channels_of};
use memlane_system::real::wait_until;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// What he does with a question, given the connection that it came over. `false`: he closes that.
type Does = dyn FnMut(&OwnedFd, &Question) -> bool + Send;

/// Somebody who listens at `agent.sock`. Gone when dropped.
struct FalseAgent {
    dir: TempDir,
    asked: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FalseAgent {
    fn start(name: &str, mut does: Box<Does>) -> FalseAgent {
        let dir = TempDir::new(&format!("false-{name}"));
        let listener = listen(&dir.path().join(SOCKET));
        let (asked, stop) = (
            Arc::new(AtomicU32::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (its_asked, its_stop) = (Arc::clone(&asked), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut connected = Vec::new();
            while !its_stop.load(Ordering::Relaxed) {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                connected.extend(rustix::net::accept_with(&listener, flags));
                connected.retain(|conn: &OwnedFd| {
                    let mut bytes = [0; LEN];
                    let Ok(got) = sock::recv_with_fds(conn.as_raw_fd(), &mut bytes) else {
                        return true;
                    };
                    its_asked.fetch_add(1, Ordering::Relaxed);
                    let question = got.len.and_then(|n| Question::decode(&bytes[..n]));
                    question.is_some_and(|question| does(conn, &question))
                });
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        FalseAgent {
            dir,
            asked,
            stop,
            thread: Some(thread),
        }
    }

    fn directory(&self) -> String {
        self.dir.path().display().to_string()
    }
}

impl Drop for FalseAgent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, flags, None).expect("a socket");
    let name = SocketAddrUnix::new(path).expect("short");
    rustix::net::bind(&socket, &name).expect("a new directory");
    rustix::net::listen(&socket, 64).expect("a socket");
    socket
}

fn says(conn: &OwnedFd, bytes: &[u8], fds: &[i32]) {
    let _ = sock::send_to_peer(conn.as_raw_fd(), bytes, fds);
}

fn answer(id: u64, outcome: Outcome) -> [u8; LEN] {
    let (bytes, len) = Answer { id, outcome }.encode();
    assert_eq!(len, LEN);
    bytes[..LEN].try_into().expect("as long")
}

const MEET: Outcome = Outcome::Meet { peer: 77 };

/// What each of the two holds when it has asked him and stayed on TCP: all descriptors, and sockets as channels are.
fn held_after(networks: &Networks, name: &str, does: Box<Does>) -> [(usize, usize); 2] {
    let agent = FalseAgent::start(name, does);
    let mut pair = Pair::in_domain(networks, &agent.directory());
    let begin = Instant::now();
    for _ in 0..100 {
        pair.exchange();
    }
    let took = begin.elapsed();
    assert!(
        took < Duration::from_secs(2),
        "{name}: 100 exchanges took {took:?}"
    );
    pair.flood(1 << 20);
    for _ in 0..20 {
        pair.exchange();
    }
    assert!(
        agent.asked.load(Ordering::Relaxed) >= 2,
        "{name}: not asked"
    );
    let both = [&pair.client, &pair.server];
    for end in both {
        wait_until("a page", Duration::from_secs(5), || end.conn().is_some());
        let conn = end.conn().expect("a page");
        assert!(
            !conn.on_lane() && conn.bytes[..2] == [0, 0],
            "{name}: {conn:?}"
        );
    }
    both.map(|end| {
        let held = Held::by(end.pid()).expect("it lives");
        (held.fds, channels_of(end.pid()))
    })
}

/// Runs one false agent after the other, and compares what programs keep with what they keep of one that refuses.
fn keeps_nothing_of(test: &'static str, all: Vec<(&str, Box<Does>)>) {
    if plain_only() {
        return;
    }
    let Ok(networks) = Networks::new(Between::Cable).map_err(|why| skip(test, &why)) else {
        return;
    };
    let refuses: Box<Does> = Box::new(|conn, question| {
        let no = Outcome::Refuse(Refusal::Untrusted);
        says(conn, &answer(question.id, no), &[]);
        true
    });
    let usual = held_after(&networks, "refuses", refuses);
    for (name, does) in all {
        let held = held_after(&networks, name, does);
        for ((fds, channels), usual) in held.into_iter().zip(usual) {
            assert!(
                fds <= usual.0 && channels <= usual.1,
                "{name}: {fds} descriptors, {channels} channels; usually {usual:?}"
            );
        }
    }
}

#[test]
fn who_says_nothing_or_nonsense_delays_nobody() {
    keeps_nothing_of(
        "nonsense",
        vec![
            ("silent", Box::new(|_, _| true)),
            ("closes", Box::new(|_, _| false)),
            (
                "short",
                Box::new(|conn, _| {
                    says(conn, b"x", &[]);
                    true
                }),
            ),
            (
                "long",
                Box::new(|conn, _| {
                    says(conn, &[0xff; 4096], &[]);
                    true
                }),
            ),
            (
                "empty",
                Box::new(|conn, _| {
                    says(conn, b"", &[]);
                    true
                }),
            ),
            (
                "asks-back",
                Box::new(|conn, question| {
                    says(conn, &question.encode(), &[]);
                    true
                }),
            ),
            (
                "floods",
                Box::new(|conn, _| {
                    for id in 0..5000 {
                        says(conn, &answer(id << 32 | 1, MEET), &[]);
                    }
                    true
                }),
            ),
        ],
    );
}

#[test]
fn who_refuses_every_question_delays_nobody() {
    let each = Refusal::ALL.into_iter().map(|why| {
        let does: Box<Does> = Box::new(move |conn, question| {
            says(conn, &answer(question.id, Outcome::Refuse(why)), &[]);
            true
        });
        (name_of(why), does)
    });
    keeps_nothing_of("refusals", each.collect());
}

fn name_of(why: Refusal) -> &'static str {
    match why {
        Refusal::Nobody => "nobody",
        Refusal::NotSeen => "not-seen",
        Refusal::Untrusted => "untrusted",
        Refusal::Forged => "forged",
        Refusal::Busy => "busy",
        Refusal::NoMemory => "no-memory",
    }
}

/// One who says that the other end is on another machine, and hands over this as the memory that both share.
fn shows_a_region(across: Across, region: impl Fn() -> OwnedFd + Send + 'static) -> Box<Does> {
    Box::new(move |conn, question| {
        let outcome = Outcome::Across(across);
        let (bytes, len) = Answer {
            id: question.id,
            outcome,
        }
        .encode();
        let (channel, _) = sock::unix_channel().expect("a pair");
        let region = region();
        says(conn, &bytes[..len], &[channel.raw(), region.as_raw_fd()]);
        true
    })
}

/// A file of this many bytes, all holes.
fn file_of(bytes: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("region", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    rustix::fs::ftruncate(&file, bytes).expect("room");
    file
}

#[test]
fn who_shows_regions_that_are_none_is_not_believed() {
    let fits = Across {
        peer: 77,
        own: 0,
        theirs: 32 << 20,
        ring_size: 65_536,
        serial: 1,
    };
    let region = || file_of(64 << 20);
    let cases = [
        ("fits-but-nobody-is-there", fits),
        (
            "outside",
            Across {
                own: 64 << 20,
                ..fits
            },
        ),
        (
            "at-the-end",
            Across {
                theirs: u64::MAX - 4095,
                ..fits
            },
        ),
        ("between-pages", Across { own: 100, ..fits }),
        (
            "both-at-one-place",
            Across {
                theirs: 4096,
                ..fits
            },
        ),
        (
            "no-ring",
            Across {
                ring_size: 0,
                ..fits
            },
        ),
        (
            "odd-ring",
            Across {
                ring_size: 65_537,
                ..fits
            },
        ),
        (
            "huge-ring",
            Across {
                ring_size: 1 << 31,
                ..fits
            },
        ),
        ("unnamed", Across { peer: 0, ..fits }),
    ];
    let shown = cases.map(|(name, across)| (name, shows_a_region(across, region)));
    let no_memory = [
        ("tiny", shows_a_region(fits, || file_of(4096))),
        (
            "socket",
            shows_a_region(fits, || {
                UdpSocket::bind("127.0.0.1:0").expect("a port").into()
            }),
        ),
    ];
    keeps_nothing_of("regions", shown.into_iter().chain(no_memory).collect());
}

/// One who introduces programs by way of this descriptor.
fn hands_over(what: impl Fn() -> OwnedFd + Send + 'static) -> Box<Does> {
    Box::new(move |conn, question| {
        let end = what();
        says(conn, &answer(question.id, MEET), &[end.as_raw_fd()]);
        true
    })
}

#[test]
fn who_hands_over_descriptors_that_are_no_channels_has_them_closed() {
    keeps_nothing_of(
        "descriptors",
        vec![
            (
                "none",
                Box::new(|conn, question| {
                    says(conn, &answer(question.id, MEET), &[]);
                    true
                }),
            ),
            (
                "file",
                hands_over(|| std::fs::File::open("/dev/zero").expect("a file").into()),
            ),
            (
                "pipe-to-read",
                hands_over(|| {
                    let (from, to) = rustix::pipe::pipe().expect("a pipe");
                    rustix::io::write(&to, &[0; wire::LEN]).expect("room");
                    from
                }),
            ),
            (
                "pipe-to-write",
                hands_over(|| rustix::pipe::pipe().expect("a pipe").1),
            ),
            (
                "stream",
                hands_over(|| UnixStream::pair().expect("a pair").0.into()),
            ),
            (
                "listener",
                hands_over(|| TcpListener::bind("127.0.0.1:0").expect("a port").into()),
            ),
            (
                "datagrams",
                hands_over(|| UdpSocket::bind("127.0.0.1:0").expect("a port").into()),
            ),
            (
                "connection",
                hands_over(|| {
                    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
                    let at = listener.local_addr().expect("bound");
                    TcpStream::connect(at).expect("it listens").into()
                }),
            ),
            (
                "four",
                Box::new(|conn, question| {
                    let file = std::fs::File::open("/dev/null").expect("a file");
                    let fds = [file.as_raw_fd(); 4];
                    says(conn, &answer(question.id, MEET), &fds);
                    true
                }),
            ),
            (
                "for-nobody",
                Box::new(|conn, _| {
                    let file = std::fs::File::open("/dev/null").expect("a file");
                    says(conn, &answer(u64::MAX, MEET), &[file.as_raw_fd()]);
                    true
                }),
            ),
            (
                "unnamed",
                Box::new(|conn, question| {
                    let (end, _) = sock::unix_channel().expect("a pair");
                    let meet = Outcome::Meet { peer: 0 };
                    says(conn, &answer(question.id, meet), &[end.raw()]);
                    true
                }),
            ),
            (
                "twice",
                Box::new(|conn, question| {
                    for _ in 0..2 {
                        let (end, _) = sock::unix_channel().expect("a pair");
                        says(conn, &answer(question.id, MEET), &[end.raw()]);
                    }
                    true
                }),
            ),
        ],
    );
}

#[test]
fn who_stands_between_two_programs_and_lies_to_both_gets_neither_onto_a_lane() {
    // He keeps the other end of each channel, and says what no peer says.
    let mut kept = Vec::new();
    let lies: Box<Does> = Box::new(move |conn, question| {
        let (end, other) = sock::unix_channel().expect("a pair");
        says(conn, &answer(question.id, MEET), &[end.raw()]);
        let _ = sock::send_to_peer(other.raw(), &[0x5a; wire::LEN], &[]);
        kept.push(other);
        true
    });
    keeps_nothing_of("between", vec![("lies", lies)]);
}

#[test]
fn who_gives_a_channel_and_says_nothing_over_it_keeps_nobody_from_talking() {
    if plain_only() {
        return;
    }
    let Ok(networks) = Networks::new(Between::Cable).map_err(|why| skip("dumb", &why)) else {
        return;
    };
    let mut kept = Vec::new();
    let dumb: Box<Does> = Box::new(move |conn, question| {
        let (end, other) = sock::unix_channel().expect("a pair");
        says(conn, &answer(question.id, MEET), &[end.raw()]);
        kept.push(other);
        true
    });
    // Each still waits for the other, by one channel.
    for (_, channels) in held_after(&networks, "dumb", dumb) {
        assert_eq!(channels, 2);
    }
}
