//! A server by hand that tells a client wrong places in memory that both have, or none at all.
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod support;

use memlane_transport::error::{EOPNOTSUPP, PathError};
use memlane_transport::io::frame::{HEADER, Header, Step};
use memlane_transport::io::{
    Address, ClientConfig, ClientSession, Holder, Means, PathAddr, SharedMemory, open_with,
};
use memlane_transport::port::News;
use memlane_transport::wire::{
    CAP_BY_MEMORY, CAP_SHARED_MEMORY, CAPS, CONN_LEN, Caps, ConnReq, ConnRsp, Control, SgDesc,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use support::{CHUNK, HEADER as HDR, MOST, PATIENCE, client_engine, hear};

/// See docs/formats/ivshmem-volumes.md.
const MEMORY_AT: u64 = 0x21000;
const SLOTS: u32 = 128;
const QUEUES: u64 = 8192;
const CHUNKS: u64 = 32 * CHUNK as u64;
const REGION: u64 = MEMORY_AT + CHUNKS + QUEUES;
/// Offers that the entries 0 (chunks) and 1 (queues) make.
const OFFERS: [u64; 2] = [76, 98];

/// What the server tells behind the header.
type Words = [u64; 7];

const GOOD: Words = [
    REGION,
    1,
    MEMORY_AT + CHUNKS,
    OFFERS[1],
    0,
    MEMORY_AT,
    OFFERS[0],
];

struct Scene {
    listener: TcpListener,
    memory: File,
    session: Arc<ClientSession>,
}

impl Scene {
    /// A client that goes to a server by hand, by memory or by TCP.
    fn new(by_memory: bool) -> Scene {
        let file = memfd_create("memlane-test", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, REGION).expect("memory");
        let memory: File = file.into();
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let at = listener.local_addr().expect("an address");
        let address = match by_memory {
            true => Address::Ivshmem(at),
            false => Address::Tcp(at),
        };
        let holder = Holder {
            machine: 2,
            boot: 1,
        };
        let own = memory.try_clone().expect("a descriptor");
        let shares = SharedMemory::map(own.into(), holder).expect("memory");
        let config = ClientConfig {
            engine: client_engine("test"),
            paths: vec![PathAddr::to(address)],
        };
        let means = Means {
            shares: Some(Arc::new(shares)),
            ..Means::default()
        };
        Scene {
            listener,
            memory,
            session: open_with(config, means).expect("a session"),
        }
    }

    fn claim_at(entry: usize) -> u64 {
        0x1000 + entry as u64 * 128 + 24
    }

    fn claims(&self) -> [u64; 2] {
        [0, 1].map(|entry| {
            let mut word = [0; 8];
            let read = self.memory.read_exact_at(&mut word, Self::claim_at(entry));
            read.expect("memory");
            u64::from_le_bytes(word)
        })
    }

    fn offer(&self) {
        for (entry, offer) in OFFERS.iter().enumerate() {
            let at = Self::claim_at(entry);
            let written = self.memory.write_all_at(&offer.to_le_bytes(), at);
            written.expect("memory");
        }
    }

    /// Connections 0, accepted, and 1, which has said what it wants.
    fn lure(&self, wishes: u16) -> (TcpStream, TcpStream) {
        self.offer();
        let zero = self.next(wishes);
        accept(&zero);
        (zero, self.next(wishes))
    }

    fn next(&self, wishes: u16) -> TcpStream {
        let (mut stream, _) = self.listener.accept().expect("a client");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let mut bytes = [0; HEADER + CONN_LEN];
        stream.read_exact(&mut bytes).expect("a wish");
        let request = ConnReq::decode(&bytes[HEADER..]).expect("a wish");
        let caps = request.caps.expect("ours").bits;
        assert_eq!(caps, CAPS | wishes);
        stream
    }

    /// Why the path went down; nothing is held any more.
    fn why(&self) -> PathError {
        let news = hear(&self.session, |news| matches!(news, News::PathDown(..)));
        let News::PathDown(_, why) = news else {
            unreachable!("that was asked for");
        };
        why
    }
}

fn say(mut stream: &TcpStream, parts: &[&[u8]]) {
    // A client that has gone is what is looked for later.
    let _ = stream.write_all(&parts.concat());
}

fn accept(stream: &TcpStream) {
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
        stream,
        &[&Header::Step(Step::Accept).encode(), &rsp.encode()],
    );
}

fn place(stream: &TcpStream, slots: u32, words: &Words) {
    let header = Header::Place { slots, base: 0 }.encode();
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    say(stream, &[&header, &words]);
}

const BY_MEMORY: u16 = CAP_SHARED_MEMORY | CAP_BY_MEMORY;
const QUEUE: PathError = PathError::Misbehaved("shared queues are not as they must be");

#[test]
fn a_client_uses_no_place_that_it_was_not_offered() {
    let scene = Scene::new(true);
    let with = |at: usize, word: u64| {
        let mut words = GOOD;
        words[at] = word;
        words
    };
    let other = PathError::OtherMemory;
    let invalid = PathError::Os(libc::EINVAL);
    let wrong = [
        // A region of another length; entries that there are not; places before, beside and behind the memory.
        (SLOTS, with(0, REGION + 4096), other),
        (SLOTS, with(1, 1024), QUEUE),
        (SLOTS, with(4, u64::MAX), QUEUE),
        (SLOTS, with(5, 0), QUEUE),
        (SLOTS, with(5, MEMORY_AT + 8), QUEUE),
        (SLOTS, with(5, MEMORY_AT + QUEUES + 4096), other),
        (SLOTS, with(2, REGION), other),
        // What nobody offers, and what somebody else may have.
        (SLOTS, with(3, OFFERS[1] + 1), other),
        (SLOTS, with(6, OFFERS[1]), other),
        (SLOTS, with(4, 1), other),
        (SLOTS, with(6, 0), QUEUE),
        // Queues that are too long, and no queues at all.
        (SLOTS * 2048, GOOD, invalid),
        (SLOTS * 512, GOOD, other),
        (SLOTS - 1, GOOD, invalid),
        (0, GOOD, invalid),
    ];
    for (slots, words, why) in wrong {
        let (_zero, one) = scene.lure(BY_MEMORY);
        place(&one, slots, &words);
        accept(&one);
        assert_eq!(scene.why(), why, "{slots} {words:x?}");
    }
    // Twice is once too often.
    let (_zero, one) = scene.lure(BY_MEMORY);
    place(&one, SLOTS, &GOOD);
    place(&one, SLOTS, &GOOD);
    assert_eq!(scene.why(), QUEUE);
}

#[test]
fn a_server_that_does_not_know_of_such_memory_is_not_taken_for_one_that_does() {
    let scene = Scene::new(true);
    let (_zero, one) = scene.lure(BY_MEMORY);
    accept(&one);
    assert_eq!(scene.why(), PathError::Refused(EOPNOTSUPP));
    assert_eq!(scene.claims(), OFFERS);
}

#[test]
fn a_path_over_tcp_is_given_no_memory() {
    let scene = Scene::new(false);
    let (_zero, one) = scene.lure(CAP_SHARED_MEMORY);
    place(&one, SLOTS, &GOOD);
    accept(&one);
    assert_eq!(scene.why(), QUEUE);
    assert_eq!(scene.claims(), OFFERS);
}

#[test]
fn a_client_leaves_queues_that_cannot_be_and_lets_go_of_what_it_held() {
    let scene = Scene::new(true);
    let (mut zero, mut one) = scene.lure(BY_MEMORY);
    place(&one, SLOTS, &GOOD);
    accept(&one);
    let _asks: [u8; HEADER + 272] = {
        let mut bytes = [0; HEADER + 272];
        zero.read_exact(&mut bytes).expect("who it is");
        bytes
    };
    let chunks = vec![SgDesc {
        addr: 0,
        key: 1,
        len: 32 * CHUNK,
    }];
    let info = Control::InfoRsp { chunks }.encode();
    let len = info.len() as u32;
    say(&zero, &[&Header::Send { len, imm: None }.encode(), &info]);
    hear(&scene.session, |news| matches!(news, News::PathUp(_)));
    let held = scene.claims();
    assert!(held[0] != OFFERS[0] && held[1] != OFFERS[1], "{held:?}");
    // More was put in than there is room for.
    let published = (u64::MAX / 2).to_le_bytes();
    let queues = MEMORY_AT + CHUNKS;
    let written = scene.memory.write_all_at(&published, queues + 512);
    written.expect("memory");
    one.write_all(&[1]).expect("rung");
    assert_eq!(scene.why(), QUEUE);
    // The chunks are kept for the session's next connection, and no longer than the session.
    support::until("the queues are let go of", || scene.claims()[1] == 0);
    assert_eq!(scene.claims()[0], held[0]);
    scene.session.close();
    support::until("the client departs", || scene.claims()[0] == 1);
}
