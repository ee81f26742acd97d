//! Peers that speak a protocol of the packet lane by its document alone and then break it, and the command that must
//! survive them. Memory is read and written through its file, so that nothing here is mapped.
//!
//! - [`netif`]: a front and a back of the lane's own link.
//! - [`memif`]: a client and a server of memif.
//! - [`fire`]: a second thread that writes anything at any time.
//! - [`victim`]: the command under attack, and another link beside it that must not notice.

// A peer panics when the other side is silent, or says what no document has: the test fails then.
#![allow(clippy::missing_panics_doc)]

pub mod fire;
pub mod memif;
pub mod netif;
pub mod victim;

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
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
pub const LIMIT: Duration = Duration::from_secs(60);

/// A socket of packets.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// What came from the other side.
#[derive(Debug)]
pub enum Heard {
    /// Nothing in time.
    Nothing,
    /// The other side has closed.
    Closed,
    /// A message, and the descriptors with it.
    Said(Vec<u8>, Vec<OwnedFd>),
}

fn new_socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

impl Socket {
    /// Connects to who listens there, as soon as somebody does.
    pub fn connect(path: &Path) -> Socket {
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
    pub fn listen(path: &Path) -> Socket {
        let socket = new_socket();
        let _ = std::fs::remove_file(path);
        let address = SocketAddrUnix::new(path).expect("a short path");
        rustix::net::bind(&socket, &address).expect("a name");
        rustix::net::listen(&socket, 16).expect("a listener");
        Socket(socket)
    }

    /// The next one that comes.
    pub fn accept(&self) -> Socket {
        assert!(self.is_readable(LIMIT), "nobody comes");
        Socket(rustix::net::accept(&self.0).expect("somebody came"))
    }

    /// Another number of it.
    pub fn again(&self) -> Socket {
        Socket(self.0.try_clone().expect("a number"))
    }

    fn is_readable(&self, within: Duration) -> bool {
        let limit = Timespec::try_from(within).expect("short");
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&limit)).is_ok_and(|n| n > 0)
    }

    /// `false`: the other side has closed.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
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

    /// Waits for what comes next, not longer than `within`.
    pub fn hear(&self, within: Duration) -> Heard {
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
    pub fn expect(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        match self.hear(LIMIT) {
            Heard::Said(bytes, fds) => (bytes, fds),
            other => panic!("a message was expected: {other:?}"),
        }
    }

    /// Has the other side closed? Waits for it.
    pub fn is_closed(&self, within: Duration) -> bool {
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
pub struct Memory(pub File);

impl Memory {
    /// Sealed as the link wants it, or otherwise.
    pub fn new(len: u64, seals: SealFlags) -> Memory {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(c"liar", flags).expect("memory");
        ftruncate(&fd, len).expect("memory");
        fcntl_add_seals(&fd, seals).expect("seals");
        Memory(fd.into())
    }

    /// Memory sealed as the packet link demands it.
    pub fn sealed(len: u64) -> Memory {
        Memory::new(len, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
    }

    /// Another number of it.
    pub fn again(&self) -> Memory {
        Memory(self.0.try_clone().expect("a number"))
    }

    /// Writes bytes at an offset.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).expect("inside");
    }

    /// Writes a word at an offset.
    pub fn set(&self, at: u64, word: u32) {
        self.put(at, &word.to_le_bytes());
    }

    /// Reads the word at an offset.
    pub fn get(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.0.read_exact_at(&mut word, at).expect("inside");
        u32::from_le_bytes(word)
    }
}
