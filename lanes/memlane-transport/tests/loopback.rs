//! The loopback device from outside: a client and a server by hand, who hand over what they should not, or write into
//! shared queues what cannot be.
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod support;

use memlane_core::queue::{Consumer, Producer, QueueWords};
use memlane_core::region::Region;
use memlane_core::sync::Cpu;
use memlane_sys::fd::Fd;
use memlane_sys::mem;
use memlane_transport::engine::path::PathState;
use memlane_transport::engine::pulse::Heartbeat;
use memlane_transport::error::PathError;
use memlane_transport::io::frame::{HEADER, Header, Step};
use memlane_transport::io::{
    Address, ClientConfig, PathAddr, Server, ServerConfig, SteppedServer, open,
};
use memlane_transport::port::{News, Session};
use memlane_transport::wire::{
    CAPS, CONN_LEN, Caps, ConnReq, ConnRsp, Control, Geometry, Immediate, Request, RequestKind,
    SgDesc,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::{
    CHUNK, Disk, DiskService, HEADER as HDR, MOST, Manners, PATIENCE, User, client_engine, connect,
    hear, local, server_engine, start_patient, until,
};

fn dial(server: &Server) -> UnixStream {
    let Address::Local(name) = &server.addresses()[0] else {
        panic!("it is local");
    };
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    let stream = UnixStream::connect_addr(&address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream
}

fn read<const N: usize>(stream: &mut UnixStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).expect("bytes");
    bytes
}

/// A header, and the descriptors that come with it.
fn header_with_descriptors(stream: &UnixStream) -> (Header, Vec<OwnedFd>) {
    let mut bytes = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(stream, &mut pieces, &mut control, flags).expect("a frame");
    assert_eq!(got.bytes, HEADER);
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    (Header::decode(&bytes).expect("a header"), descriptors)
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

/// Slots of a queue for 32 chunks: see docs/formats/loopback-device.md.
const SLOTS: usize = 128;

fn queues_len(slots: usize) -> usize {
    (4096 + 8 * slots).next_multiple_of(4096)
}

fn spine(fd: OwnedFd) -> Fd {
    // SAFETY: it was owned, and is given away.
    unsafe { Fd::from_raw(fd.into_raw_fd()) }
}

/// Queues as an end sees them.
struct Queues(Region);

impl Queues {
    fn words(&self, at: usize) -> &QueueWords<Cpu> {
        // SAFETY: atomics only; the region is borrowed as long.
        unsafe {
            self.0
                .words::<QueueWords<Cpu>>(at)
                .expect("inside")
                .as_ref()
        }
    }

    fn slots(&self, at: usize) -> &[AtomicU32] {
        // SAFETY: likewise, and all of them are inside.
        unsafe {
            let first = self.0.words::<AtomicU32>(at).expect("inside");
            std::slice::from_raw_parts(first.as_ptr(), SLOTS)
        }
    }

    fn to_server(&self) -> (&QueueWords<Cpu>, &[AtomicU32]) {
        (self.words(0), self.slots(4096))
    }

    fn to_client(&self) -> (&QueueWords<Cpu>, &[AtomicU32]) {
        (self.words(512), self.slots(4096 + 4 * SLOTS))
    }
}

/// A path that is up, by hand.
struct ByHand {
    zero: UnixStream,
    one: UnixStream,
    queues: Queues,
    chunks: Region,
}

fn by_hand(server: &Server, session: u8) -> ByHand {
    let mut zero = dial(server);
    zero.write_all(&[&Header::Step(Step::Connect).encode()[..], &wish(0, session)].concat())
        .expect("sent");
    let accept = Header::decode(&read::<HEADER>(&mut zero));
    assert_eq!(accept, Ok(Header::Step(Step::Accept)));
    let _: [u8; CONN_LEN] = read(&mut zero);
    let mut one = dial(server);
    one.write_all(&[&Header::Step(Step::Connect).encode()[..], &wish(1, session)].concat())
        .expect("sent");
    let (share, descriptors) = header_with_descriptors(&one);
    let Header::Share { slots, .. } = share else {
        panic!("nothing is shared: {share:?}");
    };
    assert_eq!((slots as usize, descriptors.len()), (SLOTS, 2));
    let mut descriptors = descriptors.into_iter().map(spine);
    let queues = descriptors.next().expect("two");
    let queues = Queues(Region::attach(queues, queues_len(SLOTS)).expect("sealed"));
    let chunks = descriptors.next().expect("two");
    let chunks = Region::attach(chunks, CHUNK as usize * 32).expect("sealed");
    let accept = Header::decode(&read::<HEADER>(&mut one));
    assert_eq!(accept, Ok(Header::Step(Step::Accept)));
    let _: [u8; CONN_LEN] = read(&mut one);
    let name = format!("by hand {session}");
    let info = Control::InfoReq { name }.encode();
    let len = info.len() as u32;
    zero.write_all(&[&Header::Send { len, imm: None }.encode()[..], &info].concat())
        .expect("sent");
    let _: [u8; HEADER + 24] = read(&mut zero);
    ByHand {
        zero,
        one,
        queues,
        chunks,
    }
}

#[track_caller]
fn is_closed(mut stream: UnixStream) {
    let mut sink = [0; 4096];
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
fn a_request_by_hand_is_answered_in_its_chunk_and_by_the_queue() {
    let disk = Arc::<Disk>::default();
    let server = start_patient(&disk, vec![local()]);
    let mut hand = by_hand(&server, 1);
    let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
    let geometry = Geometry::new(32, CHUNK, HDR).expect("a geometry");
    let mut ask = |kind, data: &[u8], generation| {
        let usr = support::usr(5, 1000 + generation);
        let replay = Some(memlane_transport::wire::Replay {
            generation,
            flags: 0,
        });
        let header = Request {
            usr_len: 16,
            kind,
            replay,
        }
        .encode();
        let image = [data, &usr, &header].concat();
        // SAFETY: `image` is readable for its length.
        assert!(unsafe {
            hand.chunks
                .bytes()
                .copy_in(3 * CHUNK as usize, image.as_ptr(), image.len())
        });
        let imm = geometry.request(3, data.len() as u32 + 16).encode();
        let (words, slots) = hand.queues.to_server();
        assert_eq!(producer.put(words, slots, imm), Ok(true));
        if producer.publish(words) {
            hand.one.write_all(&[1]).expect("rung");
        }
        let (words, slots) = hand.queues.to_client();
        let mut told = None;
        until("the answer", || {
            told = consumer.take(words, slots).expect("honest");
            told.is_some()
        });
        assert_eq!(
            told,
            Some(
                Immediate::Response {
                    id: 3,
                    errno: 0,
                    invalidated: false
                }
                .encode()
            )
        );
    };
    ask(RequestKind::Write, b"hello", 1);
    let into = Some(SgDesc {
        addr: 0,
        key: 0,
        len: 5,
    });
    ask(RequestKind::Read { flags: 0, into }, b"-----", 2);
    let mut read = [0; 5];
    // SAFETY: five bytes are writable.
    assert!(unsafe {
        hand.chunks
            .bytes()
            .copy_out(3 * CHUNK as usize, read.as_mut_ptr(), 5)
    });
    assert_eq!(&read, b"hello");
}

#[test]
fn a_client_that_writes_nonsense_into_its_queues_is_left_and_nobody_else_is() {
    let disk = Arc::<Disk>::default();
    let server = start_patient(&disk, vec![local()]);
    let session = connect(&[&server.addresses()[0]]);
    let mut user = User::new(&*session, 1);
    user.work(20, 2);
    let heartbeat = Immediate::Heartbeat.encode();
    // More than it takes answers for, in any case.
    let asks_on = move |queues: &Queues, bell: &mut UnixStream| {
        let (words, slots) = queues.to_server();
        let mut producer = Producer::default();
        for _ in 0..20 {
            while producer.put(words, slots, heartbeat) == Ok(true) {}
            let _ = producer.publish(words);
            // If the server has closed it already, this fails, and that is right.
            let _ = bell.write_all(&[1]);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    type Nonsense = Box<dyn Fn(&Queues, &mut UnixStream)>;
    let nonsense: [Nonsense; 5] = [
        Box::new(|queues, _| {
            let words = queues.to_server().0;
            words.published.0.store(u64::MAX, Ordering::Release);
        }),
        Box::new(|queues, _| {
            let words = queues.to_server().0;
            words.published.0.store(SLOTS as u64 + 1, Ordering::Release);
        }),
        Box::new(asks_on),
        // Says that it has taken what was never said.
        Box::new(move |queues, bell| {
            let words = queues.to_client().0;
            words.consumed.0.store(1 << 40, Ordering::Release);
            asks_on(queues, bell);
        }),
        // A request whose header is noise.
        Box::new(|queues, _| {
            let (words, slots) = queues.to_server();
            let mut producer = Producer::default();
            let imm = Immediate::Request(31 << 23 | 777).encode();
            let _ = producer.put(words, slots, imm);
            let _ = producer.publish(words);
        }),
    ];
    for (number, nonsense) in (10..).zip(nonsense) {
        let mut hand = by_hand(&server, number);
        nonsense(&hand.queues, &mut hand.one);
        let _ = hand.one.write_all(&[1; 100]);
        is_closed(hand.one);
        is_closed(hand.zero);
        user.work(20, 4);
    }
    assert_eq!(session.paths()[0].stats.failed, 0);
}

#[test]
fn bytes_on_the_life_line_only_ring_and_its_end_is_the_connections() {
    let disk = Arc::<Disk>::default();
    let server = start_patient(&disk, vec![local()]);
    let mut hand = by_hand(&server, 1);
    hand.one.write_all(&[0xFF; 10_000]).expect("sent");
    let question = Header::Immediate(Immediate::Heartbeat.encode()).encode();
    hand.zero.write_all(&question).expect("sent");
    let ack = Header::Immediate(Immediate::HeartbeatAck.encode());
    assert_eq!(Header::decode(&read::<HEADER>(&mut hand.zero)), Ok(ack));
    drop(hand.one);
    is_closed(hand.zero);
}

/// Sends a header with descriptors.
fn hand_over(stream: &UnixStream, header: Header, descriptors: &[i32]) {
    // SAFETY: they are open until this is back.
    let borrowed: Vec<_> = descriptors
        .iter()
        .map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) })
        .collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    }
    let bytes = header.encode();
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    assert_eq!(sent, Ok(HEADER));
}

fn accept(stream: &mut UnixStream) {
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
    let bytes = [&Header::Step(Step::Accept).encode()[..], &rsp.encode()].concat();
    stream.write_all(&bytes).expect("sent");
}

/// What a client that is about to be betrayed has connected: 0, accepted, and 1, which waits.
fn lure(listener: &UnixListener) -> (UnixStream, UnixStream) {
    let next = || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let _: [u8; HEADER + CONN_LEN] = read(&mut stream);
        stream
    };
    let mut zero = next();
    accept(&mut zero);
    (zero, next())
}

#[test]
fn a_client_takes_no_memory_that_could_hurt_it() {
    let Address::Local(name) = local() else {
        panic!("it is local");
    };
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("a name that is free");
    let session = connect(&[&Address::Local(name)]);
    let region = |len| Region::create(c"test", len, false).expect("memory");
    let (good, chunks) = (region(queues_len(SLOTS)), region(CHUNK as usize * 32));
    let (short, long) = (region(4096), region(CHUNK as usize * 64));
    let unsealed = mem::memfd(c"test", CHUNK as usize * 32, false).expect("memory");
    let fd = |region: &Region| region.fd().expect("its own");
    let slots = SLOTS as u32;
    let betrayals: [(u32, Vec<i32>); 10] = [
        (slots, vec![]),
        (slots, vec![fd(&good)]),
        (slots, vec![fd(&good), unsealed.raw()]),
        (slots, vec![fd(&good), fd(&short)]),
        (slots, vec![fd(&good), fd(&long)]),
        (slots, vec![fd(&short), fd(&chunks)]),
        (slots - 1, vec![fd(&good), fd(&chunks)]),
        (0, vec![fd(&good), fd(&chunks)]),
        (1 << 30, vec![fd(&good), fd(&chunks)]),
        // So many that some are cut off.
        (slots, [[fd(&good), fd(&chunks)]; 10].concat()),
    ];
    for (slots, descriptors) in betrayals {
        let (_zero, one) = lure(&listener);
        hand_over(&one, Header::Share { slots, base: 0 }, &descriptors);
        let down = hear(&session, |news| matches!(news, News::PathDown(..)));
        // It is noticed, not waited for.
        let waited = [PathError::Silent, PathError::ConnectTimeout];
        assert!(
            !matches!(down, News::PathDown(_, why) if waited.contains(&why)),
            "{slots}, {descriptors:?}"
        );
        is_closed(one);
    }
    // Good memory, with nonsense in it as soon as it is used.
    let (mut zero, mut one) = lure(&listener);
    hand_over(
        &one,
        Header::Share { slots, base: 0 },
        &[fd(&good), fd(&chunks), 0, 1],
    );
    accept(&mut one);
    let _: [u8; HEADER + 272] = read(&mut zero);
    let told = Control::InfoRsp {
        chunks: vec![SgDesc {
            addr: 0,
            key: 1,
            len: 32 * CHUNK,
        }],
    }
    .encode();
    let len = told.len() as u32;
    zero.write_all(&[&Header::Send { len, imm: None }.encode()[..], &told].concat())
        .expect("sent");
    hear(&session, |news| matches!(news, News::PathUp(_)));
    assert_eq!(session.paths()[0].state, PathState::Connected);
    let queues = Queues(good);
    queues
        .to_client()
        .0
        .published
        .0
        .store(u64::MAX / 2, Ordering::Release);
    one.write_all(&[1]).expect("rung");
    let wrong = PathError::Misbehaved("shared queues are not as they must be");
    hear(
        &session,
        |news| matches!(news, News::PathDown(_, why) if *why == wrong),
    );
    drop(session.port());
}

/// Others may keep a server busy, so that it never sleeps. The first request of a new connection is heard even so, and
/// not only with the next heartbeat.
#[test]
fn a_server_that_never_sleeps_hears_the_first_request_of_a_connection() {
    let never = Heartbeat {
        interval: Duration::from_secs(1000),
        patience: Duration::from_secs(1000),
    };
    let mut config = ServerConfig::new(vec![local()], server_engine(1));
    config.engine.heartbeat = never;
    let service = DiskService::new(Arc::new(Disk::default()), Manners::default());
    let mut server = SteppedServer::new(config, service).expect("a server");
    let paths = vec![PathAddr::to(server.addresses()[0].clone())];
    let mut engine = client_engine("new");
    engine.heartbeat = never;
    let session = open(ClientConfig { engine, paths }).expect("a session");
    let started = Instant::now();
    let mut step = || {
        assert!(started.elapsed() < PATIENCE / 6, "nobody hears it");
        server.step();
    };
    while session.paths()[0].state != PathState::Connected {
        step();
    }
    let mut user = User::new(&*session, 1);
    user.ask();
    while user.reap() == 0 {
        step();
    }
}
