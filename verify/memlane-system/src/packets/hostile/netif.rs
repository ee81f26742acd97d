//! The lane's own link, written from its documents (docs/formats/packet-link.md, netif.md): a front and a back with one
//! queue.
// A peer panics when the other side is silent, or says what no document has: the test fails then.
#![allow(clippy::missing_panics_doc)]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{Heard, LIMIT, Memory, Socket};

/// Slots of each ring.
pub const SLOTS: u32 = 32;
/// References in the grant table.
pub const GRANTS: u32 = 64;
/// Bytes of the control memory: grant table and two rings, a page each.
pub const CONTROL: u64 = 3 * 4096;
/// Bytes of each data region.
pub const REGION: u64 = 32 * 4096;

/// Where a ring lies in the control memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    /// From front to back.
    Tx = 4096,
    /// From back to front.
    Rx = 8192,
}

/// Offset of the index of requests in a ring's head.
pub const REQ_PROD: u64 = 0;
/// Offset of the index of responses.
pub const RSP_PROD: u64 = 8;
/// Offset of the index of the response that is rung for.
pub const RSP_EVENT: u64 = 12;

/// The flag of a slot whose packet goes on in the next one.
pub const MORE: u16 = 4;
/// The flag of a slot that an extra slot follows.
pub const EXTRA: u16 = 8;

/// The kind of a front's request to attach.
pub const ATTACH: u16 = 2;
/// The kind of a back's consent.
pub const ATTACHED: u16 = 3;
/// The kind of a back's refusal.
pub const REFUSED: u16 = 4;
/// The kind of a goodbye.
pub const DETACH: u16 = 5;

/// A message of the link: its kind, and fields by offset.
pub fn message(kind: u16, fields: &[(usize, &[u8])]) -> Vec<u8> {
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
pub fn attach(mode: u8) -> Vec<u8> {
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

/// The kind of a message.
pub fn kind(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[10], bytes[11]])
}

fn number(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[12], bytes[13]])
}

/// Waits until the other side has detached; the number that it says.
pub fn detached(socket: &Socket) -> Option<u16> {
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
pub struct Queue(pub Memory);

impl Queue {
    fn slot(ring: Ring, index: u32) -> u64 {
        let bytes = if ring == Ring::Tx { 12 } else { 8 };
        ring as u64 + 64 + u64::from(index % SLOTS) * bytes
    }

    /// Writes an entry of the grant table.
    pub fn grant(&self, gref: u32, flags: u16, region: u16, frame: u32) {
        let head = u32::from(flags) | u32::from(region) << 16;
        let word = u64::from(head) | u64::from(frame) << 32;
        self.0.put(u64::from(gref) * 8, &word.to_le_bytes());
    }

    /// Writes the first words of a slot.
    pub fn words(&self, ring: Ring, index: u32, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.put(Queue::slot(ring, index), &bytes);
    }

    /// Reads the first two words of a slot.
    pub fn read(&self, ring: Ring, index: u32) -> [u32; 2] {
        let at = Queue::slot(ring, index);
        [self.0.get(at), self.0.get(at + 4)]
    }

    /// Reads a word of a ring's head.
    pub fn header(&self, ring: Ring, word: u64) -> u32 {
        self.0.get(ring as u64 + word)
    }

    /// Writes a word of a ring's head.
    pub fn set_header(&self, ring: Ring, word: u64, to: u32) {
        self.0.set(ring as u64 + word, to);
    }

    /// A tx request.
    pub fn request(&self, index: u32, request: Request) {
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
pub struct Request {
    /// The grant that names the buffer.
    pub gref: u32,
    /// Where the bytes begin in it.
    pub offset: u16,
    /// [`MORE`], [`EXTRA`].
    pub flags: u16,
    /// What the response repeats.
    pub id: u16,
    /// Bytes: of the whole packet in its first slot, of the fragment in the others.
    pub size: u16,
}

/// A front that is attached.
#[derive(Debug)]
pub struct Front {
    /// The connection.
    pub socket: Socket,
    /// Rings and grants.
    pub queue: Queue,
    /// The region that the front sends from.
    pub tx: Memory,
    /// The region that the front receives into.
    pub rx: Memory,
    /// This side\'s end of the doorbell.
    pub doorbell: UnixStream,
    sent: u32,
    reposted: u32,
}

impl Front {
    /// Comes as an honest front does.
    pub fn attach(path: &Path, mode: u8) -> Front {
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
        let (doorbell, theirs) = UnixStream::pair().expect("a doorbell");
        doorbell.set_nonblocking(true).expect("a doorbell");
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
            doorbell,
            sent: 0,
            reposted: 0,
        }
    }

    /// Rings for the other side.
    pub fn ring(&self) {
        let _ = (&self.doorbell).write(&[1]);
    }

    /// Sends one request, the first of all.
    pub fn asks(&self, request: Request) {
        self.queue.request(0, request);
        self.publish(1);
    }

    /// Publishes this many requests, and notifies.
    pub fn publish(&self, count: u32) {
        self.queue.set_header(Ring::Tx, REQ_PROD, count);
        self.ring();
    }

    /// A packet of the first buffer with flags and an extra slot, if there is room for it.
    pub fn large(&mut self, size: u16, flags: u16, extra: [u32; 2]) -> bool {
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
    pub fn work(&mut self, len: u16) -> bool {
        while (&self.doorbell).read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
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
pub struct Back {
    /// The connection.
    pub socket: Socket,
    /// Rings and grants.
    pub queue: Queue,
    /// The region that the front sends from.
    pub tx: Memory,
    /// The region that the front receives into.
    pub rx: Memory,
    /// This side\'s end of the doorbell.
    pub doorbell: UnixStream,
    answered: u32,
    given: u32,
}

/// What an honest back offers: everything.
pub fn hello() -> Vec<u8> {
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
    pub fn accept(door: &Socket) -> Back {
        let socket = door.accept();
        assert!(socket.send(&hello(), &[]));
        let (asked, fds) = socket.expect();
        assert_eq!((kind(&asked), asked[16], fds.len()), (ATTACH, 5, 4));
        let mut fds = fds.into_iter();
        let mut next = || fds.next().expect("four");
        let [control, tx, rx] = [next(), next(), next()].map(|fd| Memory(File::from(fd)));
        let doorbell = UnixStream::from(next());
        doorbell.set_nonblocking(true).expect("a doorbell");
        assert!(socket.send(&message(ATTACHED, &[]), &[]));
        Back {
            socket,
            queue: Queue(control),
            tx,
            rx,
            doorbell,
            answered: 0,
            given: 0,
        }
    }

    /// Rings for the other side.
    pub fn ring(&self) {
        let _ = (&self.doorbell).write(&[1]);
    }

    /// An answer in the rx ring.
    pub fn response(&self, index: u32, id: u16, offset: u16, flags: u16, status: i16) {
        let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        let words = [pair(id, offset), pair(flags, status.cast_unsigned())];
        self.queue.words(Ring::Rx, index, &words);
    }

    /// Publishes this many responses of a ring, and notifies.
    pub fn publish(&self, ring: Ring, count: u32) {
        self.queue.set_header(ring, RSP_PROD, count);
        self.ring();
    }

    /// Takes what the front sends, and gives it a frame, honestly.
    pub fn work(&mut self, len: i16) {
        while (&self.doorbell).read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
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
