//! memif, written from its document (docs/formats/memif.md): a client and a server with one queue and rings of 16
//! slots.
// A peer panics when the other side is silent, or says what no document has: the test fails then.
#![allow(clippy::missing_panics_doc)]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::SealFlags;

use super::{Heard, LIMIT, Memory, Socket};

/// Slots of a ring.
pub const SLOTS: u16 = 16;
const LOG2: u8 = 4;
/// Bytes of a ring.
const EACH: u32 = 128 + 16 * 16;
const BUFFER: u32 = 2048;
const BUFFERS: u32 = 4096;
/// Bytes of a client's region: two rings, and buffers for each slot.
pub const REGION: u32 = BUFFERS + 32 * BUFFER;
/// The flag of a slot whose frame goes on in the next one.
pub const NEXT: u16 = 1;

const ACK: u16 = 1;
const CONNECTED: u16 = 7;
const DISCONNECT: u16 = 8;

/// A message: its kind, and its fields packed.
fn message(kind: u16, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(fields.concat());
    bytes.resize(128, 0);
    bytes
}

fn kind(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// Waits until the other side has disconnected; why.
pub fn disconnected(socket: &Socket) -> Option<String> {
    let mut said = None;
    loop {
        match socket.hear(LIMIT) {
            Heard::Closed => return said,
            Heard::Nothing => panic!("it does not disconnect"),
            Heard::Said(bytes, _) => {
                assert_eq!(kind(&bytes), DISCONNECT, "{bytes:x?}");
                let text = bytes[6..].split(|byte| *byte == 0).next();
                said = text.map(|text| String::from_utf8_lossy(text).into_owned());
            }
        }
    }
}

/// A slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Desc {
    /// [`NEXT`], or nothing.
    pub flags: u16,
    /// The region that the buffer lies in.
    pub region: u16,
    /// Bytes of the buffer.
    pub length: u32,
    /// Where the buffer begins in the region.
    pub offset: u32,
}

/// A ring in the region.
#[derive(Debug)]
pub struct Ring {
    memory: Memory,
    at: u64,
}

impl Ring {
    /// All of the region.
    pub fn region(&self) -> Memory {
        self.memory.again()
    }

    /// The client's index.
    pub fn head(&self) -> u16 {
        u16::try_from(self.memory.get(self.at + 4) >> 16).unwrap_or(0)
    }

    /// The server's index.
    pub fn tail(&self) -> u16 {
        u16::try_from(self.memory.get(self.at + 64) & 0xffff).unwrap_or(0)
    }

    /// Writes the client's index.
    pub fn set_head(&self, to: u16) {
        self.memory.put(self.at + 6, &to.to_le_bytes());
    }

    /// Writes the server's index.
    pub fn set_tail(&self, to: u16) {
        self.memory.put(self.at + 64, &to.to_le_bytes());
    }

    /// Writes a slot.
    pub fn put(&self, slot: u16, desc: Desc) {
        let mut bytes = [desc.flags, desc.region].map(u16::to_le_bytes).concat();
        bytes.extend(desc.length.to_le_bytes());
        bytes.extend(desc.offset.to_le_bytes());
        let at = self.at + 128 + u64::from(slot % SLOTS) * 16;
        self.memory.put(at, &bytes);
    }
}

/// One that is connected, of either role.
#[derive(Debug)]
pub struct Peer {
    /// The connection.
    pub socket: Socket,
    /// From client to server.
    pub there: Ring,
    /// From server to client.
    pub back: Ring,
    doorbells: Vec<OwnedFd>,
}

impl Peer {
    /// Rings both rings' doorbells.
    pub fn ring(&self) {
        for doorbell in &self.doorbells {
            let _ = rustix::io::write(doorbell, &1_u64.to_ne_bytes());
        }
    }

    /// Connects as a client, as an honest one does: all buffers are posted.
    pub fn connect(path: &Path) -> Peer {
        let socket = Socket::connect(path);
        assert_eq!(kind(&socket.expect().0), 2);
        let memory = Memory::new(REGION.into(), SealFlags::SHRINK);
        for ring in 0..2 {
            memory.set(u64::from(ring * EACH), 0x3E3_1F20);
        }
        let doorbells: Vec<OwnedFd> = (0..2)
            .map(|_| eventfd(0, EventfdFlags::NONBLOCK).expect("a doorbell"))
            .collect();
        let say = |words: &[u8], fd: Option<BorrowedFd<'_>>| {
            assert!(socket.send(words, fd.as_slice()));
            let (answer, _) = socket.expect();
            assert_eq!(kind(&answer), ACK, "{answer:x?}");
        };
        let init = [&0x0200_u16.to_le_bytes()[..], &[0; 5]];
        say(&message(3, &init), None);
        let region = [&[0, 0][..], &u64::from(REGION).to_le_bytes()];
        say(&message(4, &region), Some(memory.0.as_fd()));
        for (flags, doorbell) in [1_u8, 0].into_iter().zip(&doorbells) {
            let offset = u32::from(1 - flags) * EACH;
            let ring = [&[flags, 0, 0, 0, 0, 0][..], &offset.to_le_bytes(), &[LOG2]];
            say(&message(5, &ring), Some(doorbell.as_fd()));
        }
        let rings = [0, EACH].map(|at| Ring {
            memory: memory.again(),
            at: at.into(),
        });
        let [there, back] = rings;
        for slot in 0..SLOTS {
            let offset = BUFFERS + (16 + u32::from(slot)) * BUFFER;
            let desc = Desc {
                length: BUFFER,
                offset,
                ..Desc::default()
            };
            back.put(slot, desc);
        }
        back.set_head(SLOTS);
        assert!(socket.send(&message(6, &[]), &[]));
        assert_eq!(kind(&socket.expect().0), CONNECTED);
        Peer {
            socket,
            there,
            back,
            doorbells,
        }
    }

    /// Lets a client in, as an honest server does.
    pub fn accept(door: &Socket) -> Peer {
        let socket = door.accept();
        let versions = [0x0200_u16.to_le_bytes(), 0x0200_u16.to_le_bytes()].concat();
        let hello = [&[0; 32][..], &versions, &[0; 6], &[LOG2]];
        assert!(socket.send(&message(2, &hello), &[]));
        let (mut memory, mut doorbells, mut places) = (None, Vec::new(), Vec::new());
        loop {
            let (said, fds) = socket.expect();
            let fd = fds.into_iter().next();
            match kind(&said) {
                4 => memory = fd.map(|fd| Memory(File::from(fd))),
                5 => {
                    let at = u32::from_le_bytes([said[8], said[9], said[10], said[11]]);
                    assert_eq!(said[12], LOG2);
                    places.push((said[2] & 1, at));
                    doorbells.extend(fd);
                }
                6 => break,
                _ => {}
            }
            assert!(socket.send(&message(ACK, &[]), &[]));
        }
        assert!(socket.send(&message(CONNECTED, &[]), &[]));
        let memory = memory.expect("a region");
        let ring = |s2m: u8| {
            let (_, at) = places
                .iter()
                .find(|(flags, _)| *flags == s2m)
                .expect("both");
            Ring {
                memory: memory.again(),
                at: u64::from(*at),
            }
        };
        Peer {
            there: ring(1),
            back: ring(0),
            socket,
            doorbells,
        }
    }

    /// As an honest one would, as far as that goes: takes what came, and sends a frame, as a client or as a server.
    pub fn work(&self, client: bool, len: u32) {
        if client {
            self.back.set_head(self.back.tail().wrapping_add(SLOTS));
            if self.there.head().wrapping_sub(self.there.tail()) < SLOTS {
                self.show(1, len, 0);
            }
            return;
        }
        self.there.set_tail(self.there.head());
        let at = self.back.tail();
        if at != self.back.head() {
            let desc = Desc {
                length: len,
                ..Desc::default()
            };
            self.back.put(at, desc);
            self.back.set_tail(at.wrapping_add(1));
        }
        self.ring();
    }

    /// As a client: a frame of these slots, each of this many bytes.
    pub fn show(&self, slots: u16, each: u32, last: u16) {
        let from = self.there.head();
        for n in 0..slots {
            let desc = Desc {
                flags: if n + 1 < slots { NEXT } else { last },
                length: each,
                offset: BUFFERS,
                ..Desc::default()
            };
            self.there.put(from.wrapping_add(n), desc);
        }
        self.there.set_head(from.wrapping_add(slots));
        self.ring();
    }
}
