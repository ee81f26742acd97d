//! Programs that speak the packet link, written from its documents (docs/formats/packet-link.md, netif.md), and then
//! lie: a front and a back. They read and write memory through its file, so nothing here is mapped or trusted.
#![allow(dead_code)] // each test uses a part

pub(crate) mod memif;
pub(crate) mod victim;

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with,
};

/// No wait is longer, on however loaded a machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A socket of packets.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

/// What came.
#[derive(Debug)]
pub(crate) enum Heard {
    Nothing,
    Closed,
    Said(Vec<u8>, Vec<OwnedFd>),
}

fn new_socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

impl Socket {
    /// Connects to who listens there, as soon as somebody does.
    pub(crate) fn connect(path: &Path) -> Socket {
        let address = SocketAddrUnix::new(path).expect("a short path");
        let end = Instant::now() + LIMIT;
        loop {
            let socket = new_socket();
            match rustix::net::connect(&socket, &address) {
                Ok(()) => return Socket(socket),
                Err(error) => assert!(Instant::now() < end, "{}: {error}", path.display()),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Listens there.
    pub(crate) fn listen(path: &Path) -> Socket {
        let socket = new_socket();
        let _ = std::fs::remove_file(path);
        let address = SocketAddrUnix::new(path).expect("a short path");
        rustix::net::bind(&socket, &address).expect("a name");
        rustix::net::listen(&socket, 16).expect("a listener");
        Socket(socket)
    }

    /// The next one that comes.
    pub(crate) fn accept(&self) -> Socket {
        assert!(self.is_readable(LIMIT), "nobody comes");
        Socket(rustix::net::accept(&self.0).expect("somebody came"))
    }

    /// Another number of it.
    pub(crate) fn again(&self) -> Socket {
        Socket(self.0.try_clone().expect("a number"))
    }

    fn is_readable(&self, within: Duration) -> bool {
        let limit = Timespec::try_from(within).expect("short");
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&limit)).is_ok_and(|n| n > 0)
    }

    /// `false`: the other side has closed.
    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(
            &self.0,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .is_ok()
    }

    pub(crate) fn hear(&self, within: Duration) -> Heard {
        if !self.is_readable(within) {
            return Heard::Nothing;
        }
        let mut bytes = vec![0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let Ok(got) = recvmsg(&self.0, &mut parts, &mut control, flags) else {
            return Heard::Closed;
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                fds.extend(some);
            }
        }
        bytes.truncate(got.bytes);
        match got.bytes {
            0 => Heard::Closed,
            _ => Heard::Said(bytes, fds),
        }
    }

    /// A message; whoever is silent or closes instead fails the test.
    pub(crate) fn expect(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        match self.hear(LIMIT) {
            Heard::Said(bytes, fds) => (bytes, fds),
            other => panic!("a message was expected: {other:?}"),
        }
    }

    /// Has the other side closed? Waits for it.
    pub(crate) fn is_closed(&self, within: Duration) -> bool {
        let end = Instant::now() + within;
        loop {
            match self.hear(end.saturating_duration_since(Instant::now())) {
                Heard::Closed => return true,
                Heard::Nothing => return false,
                Heard::Said(..) => {}
            }
        }
    }
}

/// A memory file, by its words.
#[derive(Debug)]
pub(crate) struct Memory(pub(crate) File);

impl Memory {
    /// Sealed as the link wants it, or otherwise.
    pub(crate) fn new(len: u64, seals: SealFlags) -> Memory {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(c"liar", flags).expect("memory");
        ftruncate(&fd, len).expect("memory");
        fcntl_add_seals(&fd, seals).expect("seals");
        Memory(fd.into())
    }

    pub(crate) fn sealed(len: u64) -> Memory {
        Memory::new(len, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
    }

    /// Another number of it.
    pub(crate) fn again(&self) -> Memory {
        Memory(self.0.try_clone().expect("a number"))
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).expect("inside");
    }

    pub(crate) fn set(&self, at: u64, word: u32) {
        self.put(at, &word.to_le_bytes());
    }

    pub(crate) fn get(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.0.read_exact_at(&mut word, at).expect("inside");
        u32::from_le_bytes(word)
    }
}

/// Of each ring.
pub(crate) const SLOTS: u32 = 32;
pub(crate) const GRANTS: u32 = 64;
pub(crate) const CONTROL: u64 = 3 * 4096;
pub(crate) const REGION: u64 = 32 * 4096;

/// Where a ring lies in the control memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ring {
    Tx = 4096,
    Rx = 8192,
}

/// Words of a ring's head.
pub(crate) const REQ_PROD: u64 = 0;
pub(crate) const RSP_PROD: u64 = 8;
pub(crate) const RSP_EVENT: u64 = 12;

/// Flags of slots.
pub(crate) const MORE: u16 = 4;
pub(crate) const EXTRA: u16 = 8;

pub(crate) const ATTACH: u16 = 2;
pub(crate) const ATTACHED: u16 = 3;
pub(crate) const REFUSED: u16 = 4;
pub(crate) const DETACH: u16 = 5;

/// A message of the link: its kind, and fields by offset.
pub(crate) fn message(kind: u16, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[..8].copy_from_slice(b"MLPACKET");
    bytes[8] = 1;
    bytes[10..12].copy_from_slice(&kind.to_le_bytes());
    for (at, field) in fields {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes
}

/// What an honest front would say, of one queue.
pub(crate) fn attach(mode: u8) -> Vec<u8> {
    message(
        ATTACH,
        &[
            (12, &[mode]),
            (13, &[3]),
            (14, &[1]),
            (16, &[5]),
            (20, &GRANTS.to_le_bytes()),
            (24, &CONTROL.to_le_bytes()),
            (32, &REGION.to_le_bytes()),
            (40, &REGION.to_le_bytes()),
        ],
    )
}

pub(crate) fn kind(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[10], bytes[11]])
}

fn number(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[12], bytes[13]])
}

/// Waits until the other side has detached; the number that it says.
pub(crate) fn detached(socket: &Socket) -> Option<u16> {
    let mut said = None;
    loop {
        match socket.hear(LIMIT) {
            Heard::Closed => return said,
            Heard::Nothing => panic!("it does not detach"),
            Heard::Said(bytes, _) if kind(&bytes) == DETACH => said = Some(number(&bytes)),
            Heard::Said(bytes, _) => panic!("{bytes:x?}"),
        }
    }
}

/// Both sides' view of a queue: slots and indices.
#[derive(Debug)]
pub(crate) struct Queue(pub(crate) Memory);

impl Queue {
    fn slot(ring: Ring, index: u32) -> u64 {
        let bytes = if ring == Ring::Tx { 12 } else { 8 };
        ring as u64 + 64 + u64::from(index % SLOTS) * bytes
    }

    pub(crate) fn grant(&self, gref: u32, flags: u16, region: u16, frame: u32) {
        let head = u32::from(flags) | u32::from(region) << 16;
        let word = u64::from(head) | u64::from(frame) << 32;
        self.0.put(u64::from(gref) * 8, &word.to_le_bytes());
    }

    pub(crate) fn words(&self, ring: Ring, index: u32, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.put(Queue::slot(ring, index), &bytes);
    }

    pub(crate) fn read(&self, ring: Ring, index: u32) -> [u32; 2] {
        let at = Queue::slot(ring, index);
        [self.0.get(at), self.0.get(at + 4)]
    }

    pub(crate) fn header(&self, ring: Ring, word: u64) -> u32 {
        self.0.get(ring as u64 + word)
    }

    pub(crate) fn set_header(&self, ring: Ring, word: u64, to: u32) {
        self.0.set(ring as u64 + word, to);
    }

    /// A tx request.
    pub(crate) fn request(&self, index: u32, request: Request) {
        let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        let Request {
            gref,
            offset,
            flags,
            id,
            size,
        } = request;
        let words = [gref, pair(offset, flags), pair(id, size)];
        self.words(Ring::Tx, index, &words);
    }
}

/// `netif_tx_request`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) gref: u32,
    pub(crate) offset: u16,
    pub(crate) flags: u16,
    pub(crate) id: u16,
    pub(crate) size: u16,
}

/// A front that is attached.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) socket: Socket,
    pub(crate) queue: Queue,
    pub(crate) tx: Memory,
    pub(crate) rx: Memory,
    pub(crate) bell: UnixStream,
    sent: u32,
    reposted: u32,
}

impl Front {
    /// Comes as an honest front does.
    pub(crate) fn attach(path: &Path, mode: u8) -> Front {
        let socket = Socket::connect(path);
        let (hello, _) = socket.expect();
        assert_eq!((kind(&hello), hello.len()), (1, 48));
        let queue = Queue(Memory::sealed(CONTROL));
        let [tx, rx] = [REGION; 2].map(Memory::sealed);
        for ring in [Ring::Tx, Ring::Rx] {
            queue.set_header(ring, 4, 1);
            queue.set_header(ring, RSP_EVENT, 1);
        }
        for n in 0..SLOTS {
            queue.grant(n, 5, 0, n);
            queue.grant(SLOTS + n, 1, 1, n);
            queue.words(Ring::Rx, n, &[n, SLOTS + n]);
        }
        queue.set_header(Ring::Rx, REQ_PROD, SLOTS);
        let (bell, theirs) = UnixStream::pair().expect("a bell");
        bell.set_nonblocking(true).expect("a bell");
        let fds = [
            queue.0.0.as_fd(),
            tx.0.as_fd(),
            rx.0.as_fd(),
            theirs.as_fd(),
        ];
        assert!(socket.send(&attach(mode), &fds));
        let (answer, _) = socket.expect();
        assert_eq!(kind(&answer), ATTACHED, "{answer:x?}");
        Front {
            socket,
            queue,
            tx,
            rx,
            bell,
            sent: 0,
            reposted: 0,
        }
    }

    pub(crate) fn ring(&self) {
        let _ = (&self.bell).write(&[1]);
    }

    /// Publishes this many requests, and notifies.
    pub(crate) fn publish(&self, count: u32) {
        self.queue.set_header(Ring::Tx, REQ_PROD, count);
        self.ring();
    }

    /// A packet of the first buffer with flags and an extra slot, if there is room for it.
    pub(crate) fn large(&mut self, size: u16, flags: u16, extra: [u32; 2]) -> bool {
        let done = self.queue.header(Ring::Tx, RSP_PROD);
        if self.sent.wrapping_sub(done) > SLOTS - 2 {
            return false;
        }
        self.queue.request(
            self.sent,
            Request {
                size,
                flags,
                ..Request::default()
            },
        );
        self.queue
            .words(Ring::Tx, self.sent.wrapping_add(1), &extra);
        self.sent = self.sent.wrapping_add(2);
        self.publish(self.sent);
        true
    }

    /// One honest frame, if there is room for it; posts again what came.
    pub(crate) fn work(&mut self, len: u16) -> bool {
        while (&self.bell).read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
        let came = self.queue.header(Ring::Rx, RSP_PROD);
        for n in 0..SLOTS.min(came.wrapping_sub(self.reposted)) {
            let index = came.wrapping_sub(n + 1);
            let id = index % SLOTS;
            self.queue.words(Ring::Rx, index, &[id, SLOTS + id]);
        }
        self.reposted = came;
        self.queue
            .set_header(Ring::Rx, REQ_PROD, came.wrapping_add(SLOTS));
        self.queue
            .set_header(Ring::Rx, RSP_EVENT, came.wrapping_add(1));
        let done = self.queue.header(Ring::Tx, RSP_PROD);
        if self.sent.wrapping_sub(done) >= SLOTS {
            return false;
        }
        let gref = self.sent % SLOTS;
        let id = u16::try_from(gref).unwrap_or(0);
        self.queue.request(
            self.sent,
            Request {
                gref,
                id,
                size: len,
                ..Request::default()
            },
        );
        self.sent = self.sent.wrapping_add(1);
        self.publish(self.sent);
        true
    }
}

/// A back, and the front that it has let in.
#[derive(Debug)]
pub(crate) struct Back {
    pub(crate) socket: Socket,
    pub(crate) queue: Queue,
    pub(crate) tx: Memory,
    pub(crate) rx: Memory,
    pub(crate) bell: UnixStream,
    answered: u32,
    given: u32,
}

/// What an honest back offers: everything.
pub(crate) fn hello() -> Vec<u8> {
    message(
        1,
        &[
            (12, &[7]),
            (13, &[3]),
            (14, &[16]),
            (16, &[12]),
            (24, &(1_u64 << 30).to_le_bytes()),
        ],
    )
}

impl Back {
    /// Lets the next one in, as an honest back does; it must ask for one queue of 32 slots (`--ring 32`).
    pub(crate) fn accept(door: &Socket) -> Back {
        let socket = door.accept();
        assert!(socket.send(&hello(), &[]));
        let (asked, fds) = socket.expect();
        assert_eq!((kind(&asked), asked[16], fds.len()), (ATTACH, 5, 4));
        let mut fds = fds.into_iter();
        let mut next = || fds.next().expect("four");
        let [control, tx, rx] = [next(), next(), next()].map(|fd| Memory(File::from(fd)));
        let bell = UnixStream::from(next());
        bell.set_nonblocking(true).expect("a bell");
        assert!(socket.send(&message(ATTACHED, &[]), &[]));
        Back {
            socket,
            queue: Queue(control),
            tx,
            rx,
            bell,
            answered: 0,
            given: 0,
        }
    }

    pub(crate) fn ring(&self) {
        let _ = (&self.bell).write(&[1]);
    }

    /// An answer in the rx ring.
    pub(crate) fn response(&self, index: u32, id: u16, offset: u16, flags: u16, status: i16) {
        let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        let words = [pair(id, offset), pair(flags, status.cast_unsigned())];
        self.queue.words(Ring::Rx, index, &words);
    }

    pub(crate) fn publish(&self, ring: Ring, count: u32) {
        self.queue.set_header(ring, RSP_PROD, count);
        self.ring();
    }

    /// Takes what the front sends, and gives it a frame, honestly.
    pub(crate) fn work(&mut self, len: i16) {
        while (&self.bell).read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
        let asked = self.queue.header(Ring::Tx, REQ_PROD);
        let mut budget = 2 * SLOTS;
        while self.answered != asked && budget > 0 {
            let at = Queue::slot(Ring::Tx, self.answered);
            let id = self.queue.0.get(at + 8) & 0xffff;
            self.queue.words(Ring::Tx, self.answered, &[id]);
            self.answered = self.answered.wrapping_add(1);
            budget -= 1;
        }
        self.queue
            .set_header(Ring::Tx, 4, self.answered.wrapping_add(1));
        self.publish(Ring::Tx, self.answered);
        let posted = self.queue.header(Ring::Rx, REQ_PROD);
        if self.given != posted {
            let [id, _] = self.queue.read(Ring::Rx, self.given);
            let id = u16::try_from(id & 0xffff).unwrap_or(0);
            self.response(self.given, id, 0, 0, len);
            self.given = self.given.wrapping_add(1);
            self.publish(Ring::Rx, self.given);
        }
    }
}
