//! Peers that do not keep to the rules, over real sockets: they lose their connection, and nobody else loses anything.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod support;

use memlane_transport::engine::Direction;
use memlane_transport::engine::path::PathState;
use memlane_transport::error::PathError;
use memlane_transport::io::frame::{HEADER, Header, Step, WriteTarget};
use memlane_transport::io::{Address, Limits, Server, ServerConfig};
use memlane_transport::port::{News, Session, Submission};
use memlane_transport::wire::{
    CAPS, CONN_LEN, Caps, ConnReq, ConnRsp, Control, Geometry, Immediate, Request, RequestKind,
    SgDesc,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use support::{
    CHUNK, Disk, HEADER as HDR, MOST, Manners, PATIENCE, Rng, User, connect, hear, server_engine,
    start_patient, start_with, tcp, until, usr,
};

fn dial(server: &Server) -> TcpStream {
    let Address::Tcp(addr) = server.addresses()[0] else {
        panic!("it listens on TCP");
    };
    let stream = TcpStream::connect(addr).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream
}

fn say(stream: &mut TcpStream, parts: &[&[u8]]) {
    // A peer that has closed is what is looked for later.
    let _ = stream.write_all(&parts.concat());
}

/// A frame, and what follows its header.
fn listen(stream: &mut TcpStream) -> std::io::Result<(Header, Vec<u8>)> {
    let mut bytes = [0; HEADER];
    stream.read_exact(&mut bytes)?;
    let header = Header::decode(&bytes).expect("a frame");
    let behind = match header {
        Header::Step(_) | Header::Place { .. } => CONN_LEN,
        Header::Send { len, .. } => len as usize,
        Header::Write { place, .. } => place.len as usize + usize::from(place.tail),
        Header::Immediate(_) | Header::Share { .. } => 0,
    };
    let mut rest = vec![0; behind];
    stream.read_exact(&mut rest)?;
    Ok((header, rest))
}

fn wish(cid: u16, session: u8) -> [u8; CONN_LEN] {
    let caps = Some(Caps {
        bits: CAPS,
        number: 1,
    });
    ConnReq {
        cid,
        cid_num: 2,
        recon_cnt: 0,
        path: [session; 16],
        session: [session; 16],
        first_conn: true,
        caps,
    }
    .encode()
}

/// Connections 0 and 1 of a path that is up, and where its chunks are.
fn by_hand(server: &Server, session: u8) -> (TcpStream, TcpStream, SgDesc) {
    let mut conns = [0, 1].map(|cid| {
        let mut stream = dial(server);
        say(
            &mut stream,
            &[&Header::Step(Step::Connect).encode(), &wish(cid, session)],
        );
        let (header, _) = listen(&mut stream).expect("an answer");
        assert_eq!(header, Header::Step(Step::Accept));
        stream
    });
    let name = format!("by hand {session}");
    let info = Control::InfoReq { name }.encode();
    let len = info.len() as u32;
    say(
        &mut conns[0],
        &[&Header::Send { len, imm: None }.encode(), &info],
    );
    let (_, rsp) = listen(&mut conns[0]).expect("an answer");
    let Ok(Control::InfoRsp { chunks }) = Control::decode(&rsp) else {
        panic!("no chunks");
    };
    let [zero, one] = conns;
    (zero, one, chunks[0])
}

/// The server closes the connection, whatever else it says before.
#[track_caller]
fn is_closed(mut stream: TcpStream) {
    let mut sink = vec![0; 1 << 16];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("it is still open")
            }
            Err(_) => return,
        }
    }
}

#[test]
fn a_client_that_breaks_the_rules_loses_its_connection_and_nobody_else_does() {
    let disk = Arc::<Disk>::default();
    let server = start_patient(&disk, vec![tcp()]);
    let session = connect(&[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    user.work(20, 2);

    let write = |desc: SgDesc, at: i64, len: u32, tail_at: u32, tail: u16| {
        let place = WriteTarget {
            addr: desc.addr.wrapping_add_signed(at),
            key: desc.key,
            len,
            tail_at,
            tail,
        };
        Header::Write { place, imm: None }.encode().to_vec()
    };
    let all = i64::from(CHUNK) * 32;
    type Wrong<'a> = Box<dyn Fn(SgDesc) -> Vec<u8> + 'a>;
    let wrong: [Wrong<'_>; 12] = [
        Box::new(|desc| {
            write(
                SgDesc {
                    key: desc.key ^ 1,
                    ..desc
                },
                0,
                8,
                0,
                0,
            )
        }),
        Box::new(|desc| write(desc, -1, 8, 0, 0)),
        Box::new(|desc| write(desc, all - 7, 8, 0, 0)),
        Box::new(|desc| write(desc, 0, u32::MAX, 0, 0)),
        Box::new(|desc| [write(desc, 0, 0, u32::MAX, 8), vec![1; 8]].concat()),
        Box::new(|desc| [write(desc, i64::MAX, 8, 0, 8), vec![1; 8]].concat()),
        Box::new(|desc| write(desc, 0, 8, 0, u16::MAX)),
        Box::new(|_| {
            Header::Send {
                len: 513,
                imm: None,
            }
            .encode()
            .to_vec()
        }),
        Box::new(|_| vec![0; HEADER]),
        Box::new(|_| {
            [
                Header::Step(Step::Connect).encode().to_vec(),
                wish(0, 9).to_vec(),
            ]
            .concat()
        }),
        Box::new(|_| {
            Header::Immediate(Immediate::Request(31 << 23 | (CHUNK - 4)).encode())
                .encode()
                .to_vec()
        }),
        Box::new(|_| Header::Immediate(0xF000_0000).encode().to_vec()),
    ];
    for (number, wrong) in (10..).zip(wrong) {
        let (zero, mut one, desc) = by_hand(&server, number);
        say(&mut one, &[&wrong(desc)]);
        is_closed(one);
        // The other connection of the path goes, too.
        is_closed(zero);
        user.work(20, 4);
    }
    assert_eq!(session.paths()[0].stats.failed, 0);
}

#[test]
fn noise_and_half_frames_harm_nobody() {
    let disk = Arc::<Disk>::default();
    let server = start_patient(&disk, vec![tcp()]);
    let session = connect(&[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    let mut rng = Rng(4);
    for round in 0..60 {
        let (_zero, mut stream, desc) = match round % 2 {
            0 => {
                let stream = dial(&server);
                (None, stream, SgDesc::default())
            }
            _ => {
                let (zero, one, desc) = by_hand(&server, 100 + round);
                (Some(zero), one, desc)
            }
        };
        let mut noise: Vec<u8> = (0..rng.below(300)).map(|_| rng.next() as u8).collect();
        if round % 4 == 3 {
            // A frame that is right, but for its end, which never comes.
            let place = WriteTarget {
                addr: desc.addr,
                key: desc.key,
                len: 5000,
                tail_at: 5000,
                tail: 0,
            };
            noise = [
                &Header::Write {
                    place,
                    imm: Some(0),
                }
                .encode(),
                &noise[..],
            ]
            .concat();
        }
        say(&mut stream, &[&noise]);
        drop(stream);
        user.work(5, 2);
    }
    assert_eq!(session.paths()[0].stats.failed, 0);
}

#[test]
fn a_client_cannot_reach_the_chunks_of_another_session() {
    let disk = Arc::<Disk>::default();
    let server = start_patient(&disk, vec![tcp()]);
    let (_zero, mut victim, theirs) = by_hand(&server, 1);
    let (_zero, mut thief, _) = by_hand(&server, 2);
    let place = WriteTarget {
        addr: theirs.addr,
        key: theirs.key,
        len: 4,
        tail_at: 0,
        tail: 0,
    };
    say(
        &mut thief,
        &[&Header::Write { place, imm: None }.encode(), b"evil"],
    );
    is_closed(thief);
    say(
        &mut victim,
        &[&Header::Immediate(Immediate::Heartbeat.encode()).encode()],
    );
    let ack = Header::Immediate(Immediate::HeartbeatAck.encode());
    assert_eq!(listen(&mut victim).expect("it lives").0, ack);
}

#[test]
fn a_peer_that_asks_and_does_not_read_is_not_remembered_without_limit() {
    let disk = Arc::<Disk>::default();
    let server = start_patient(&disk, vec![tcp()]);
    let session = connect(&[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    let (_zero, mut deaf, _) = by_hand(&server, 3);
    deaf.set_write_timeout(Some(Duration::from_millis(500)))
        .expect("a limit");
    let question = Header::Immediate(Immediate::Heartbeat.encode()).encode();
    let many = question.repeat(2000);
    let mut sent = 0_usize;
    // What it takes before it stops reading: its own limit, and the kernel's buffers of both ends.
    while sent < 256 << 20 && deaf.write_all(&many).is_ok() {
        sent += many.len();
    }
    assert!(sent < 256 << 20, "it takes whatever comes");
    user.work(50, 4);
}

#[test]
fn a_flood_of_connections_is_bounded_and_ends() {
    let disk = Arc::<Disk>::default();
    let mut config = ServerConfig::new(vec![tcp()], server_engine(1));
    config.limits = Limits {
        half_open: 8,
        per_peer: 12,
        handshake: Duration::from_millis(300),
        ..Limits::default()
    };
    let server = start_with(&disk, config, Manners::default());
    let session = connect(&[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    user.work(20, 2);
    let flood: Vec<_> = (0..100).map(|_| dial(&server)).collect();
    user.work(50, 4);
    // All of them are closed in the end: most at once, some when they said nothing for too long.
    flood.into_iter().for_each(is_closed);
    let second = connect(&[&server.addresses()[0]]);
    User::new(&*second, 2).work(20, 2);
    // Sessions that were begun and never introduced count, too: 12 connections are all that this address gets.
    let third = connect(&[
        &server.addresses()[0],
        &server.addresses()[0],
        &server.addresses()[0],
    ]);
    let fourth = connect(&[&server.addresses()[0], &server.addresses()[0]]);
    let up = |session: &memlane_transport::io::ClientSession| {
        let paths = session.paths();
        paths
            .iter()
            .filter(|path| path.state == PathState::Connected)
            .count()
    };
    until("one more than is allowed fails", || {
        up(&third) + up(&fourth) == 4
    });
    user.work(50, 4);
}

/// A server by hand: takes one path of a client up, and hands over its connections. `None`: the client went away.
fn lure(listener: &TcpListener) -> Option<(TcpStream, TcpStream)> {
    let mut conns = Vec::new();
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().expect("a client");
        let (header, _) = listen(&mut stream).ok()?;
        assert_eq!(header, Header::Step(Step::Connect));
        let rsp = ConnRsp {
            errno: 0,
            queue_depth: 32,
            max_io_size: MOST,
            max_hdr_size: HDR,
            flags: 0,
            caps: Some(Caps {
                bits: CAPS,
                number: 1,
            }),
        };
        say(
            &mut stream,
            &[&Header::Step(Step::Accept).encode(), &rsp.encode()],
        );
        conns.push(stream);
    }
    let one = conns.pop()?;
    let mut zero = conns.pop()?;
    one.set_read_timeout(Some(PATIENCE)).expect("a limit");
    listen(&mut zero).ok()?;
    let chunks = vec![SgDesc {
        addr: 0,
        key: 1,
        len: 32 * CHUNK,
    }];
    let info = Control::InfoRsp { chunks }.encode();
    let len = info.len() as u32;
    say(
        &mut zero,
        &[&Header::Send { len, imm: None }.encode(), &info],
    );
    Some((zero, one))
}

/// Where the client wants what it reads, and which chunk it uses.
fn wanted(one: &mut TcpStream) -> (SgDesc, u32) {
    let (header, body) = listen(one).expect("a read");
    let Header::Write {
        imm: Some(imm),
        place,
    } = header
    else {
        panic!("not a request: {header:?}");
    };
    let Ok(Immediate::Request(payload)) = Immediate::decode(imm) else {
        panic!("not a request");
    };
    let geometry = Geometry::new(32, CHUNK, HDR).expect("a geometry");
    let (permit, offset) = geometry.split(payload).expect("a place");
    let header = &body[(offset - place.tail_at) as usize..];
    let Ok(Request {
        kind: RequestKind::Read {
            into: Some(into), ..
        },
        ..
    }) = Request::decode(header, true)
    else {
        panic!("not a read");
    };
    (into, u32::from(permit))
}

#[test]
fn a_server_that_writes_where_it_must_not_is_left_and_has_written_nothing() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = Address::Tcp(listener.local_addr().expect("an address"));
    let session = connect(&[&address]);
    let mut port = session.port().expect("a port");
    let answer = |permit| {
        Immediate::Response {
            id: permit,
            errno: 0,
            invalidated: false,
        }
        .encode()
    };
    // Into another lease, before its own, over its end, with another key; and right, by a connection that was not asked.
    type Evil = fn(SgDesc) -> (u64, u32, u32);
    let evil: [Evil; 6] = [
        |into| {
            (
                into.addr + u64::from(MOST).next_multiple_of(4096),
                into.key,
                16,
            )
        },
        |into| (into.addr - 1, into.key, 16),
        |into| (into.addr + 100 - 15, into.key, 16),
        |into| (into.addr, into.key ^ 1, 16),
        |into| (into.addr, into.key, u32::MAX),
        |into| (into.addr, into.key, 16),
    ];
    let mut read = 0;
    let mut kept = None;
    for (round, evil) in evil.iter().enumerate() {
        let Some((_zero, mut one)) = lure(&listener) else {
            panic!("it did not come back");
        };
        if kept.is_none() {
            hear(&session, |news| matches!(news, News::PathUp(_)));
            let lease = port
                .lease(100)
                .expect("not too long")
                .expect("there is one");
            kept = Some(
                port.lease(MOST)
                    .expect("not too long")
                    .expect("there is one"),
            );
            assert!(
                kept.as_ref()
                    .is_some_and(|lease| lease.fill(0, &vec![0x11; MOST as usize]))
            );
            port.submit(Submission {
                tag: 1,
                direction: Direction::Read,
                usr: usr(1, 1),
                len: 100,
                lease: Some(lease),
            });
            port.push();
        }
        // The first copy comes by connection 1, replays by connection 0.
        let mut zero = _zero;
        let by = if round == 0 {
            &mut one
        } else {
            loop {
                let mut peeked = [0; HEADER];
                let count = zero.peek(&mut peeked).expect("a frame");
                if count == HEADER && matches!(Header::decode(&peeked), Ok(Header::Write { .. })) {
                    break;
                }
                if count == HEADER {
                    listen(&mut zero).expect("a fence, or a heartbeat");
                }
            }
            &mut zero
        };
        let (into, permit) = wanted(by);
        read += 1;
        let (addr, key, len) = evil(into);
        let place = WriteTarget {
            addr,
            key,
            len,
            tail_at: 0,
            tail: 0,
        };
        let header = Header::Write {
            place,
            imm: Some(answer(permit)),
        }
        .encode();
        let by = if round == 5 { &mut one } else { by };
        say(by, &[&header, &[0xEE; 16]]);
        let what = PathError::Misbehaved("a write to memory that was not granted");
        hear(
            &session,
            |news| matches!(news, News::PathDown(_, why) if *why == what),
        );
    }
    assert_eq!(read, evil.len());
    // A good server, at last.
    let (mut zero, _one) = lure(&listener).expect("it came back");
    let (into, permit) = loop {
        let mut peeked = [0; HEADER];
        zero.peek(&mut peeked).expect("a frame");
        match Header::decode(&peeked) {
            Ok(Header::Write { .. }) => break wanted(&mut zero),
            _ => drop(listen(&mut zero)),
        }
    };
    let place = WriteTarget {
        addr: into.addr,
        key: into.key,
        len: 100,
        tail_at: 0,
        tail: 0,
    };
    say(
        &mut zero,
        &[
            &Header::Write {
                place,
                imm: Some(answer(permit)),
            }
            .encode(),
            &[0x77; 100],
        ],
    );
    let mut done = Vec::new();
    until("it is done", || port.reap(&mut done) == 1);
    let lease = done[0].lease.as_ref().expect("it comes back");
    let mut bytes = vec![0; 100];
    assert!(done[0].result.is_ok() && lease.take(0, &mut bytes));
    assert_eq!(bytes, vec![0x77; 100]);
    let mut untouched = vec![0; MOST as usize];
    assert!(kept.is_some_and(|lease| lease.take(0, &mut untouched)));
    assert!(untouched.iter().all(|byte| *byte == 0x11));
    // What is over is over: the same write once more ends the path.
    say(
        &mut zero,
        &[&Header::Write { place, imm: None }.encode(), &[0x99; 100]],
    );
    hear(&session, |news| {
        matches!(news, News::PathDown(_, PathError::Misbehaved(_)))
    });
    assert!(lease.take(0, &mut bytes));
    assert_eq!(bytes, vec![0x77; 100]);
}

#[test]
fn a_server_that_speaks_another_language_is_left_with_a_reason() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = Address::Tcp(listener.local_addr().expect("an address"));
    let session = connect(&[&address]);
    let said: [&[u8]; 4] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\nwhatever follows here",
        &[0; 64],
        &Header::Send {
            len: u32::MAX,
            imm: None,
        }
        .encode(),
        &[&Header::Step(Step::Accept).encode()[..], &[0xFF; CONN_LEN]].concat(),
    ];
    for said in said {
        let (mut stream, _) = listener.accept().expect("a client");
        say(&mut stream, &[said]);
        let bad = |news: &News| {
            matches!(
                news,
                News::PathDown(_, PathError::Misbehaved(_) | PathError::Wire(_))
            )
        };
        hear(&session, bad);
    }
}
