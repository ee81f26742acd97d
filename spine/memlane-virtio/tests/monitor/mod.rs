//! A front end of vhost-user and a driver of virtqueues, small and rude: they also send what QEMU never would.
//! For the tests of the lanes that have devices.
//!
//! Messages: QEMU's `docs/interop/vhost-user.rst`. Rings: VIRTIO 1.2, 2.7 "Split Virtqueues".
#![allow(dead_code, reason = "each test program uses a part")]

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const GET_FEATURES: u32 = 1;
pub(crate) const SET_FEATURES: u32 = 2;
pub(crate) const SET_OWNER: u32 = 3;
pub(crate) const SET_MEM_TABLE: u32 = 5;
pub(crate) const SET_VRING_NUM: u32 = 8;
pub(crate) const SET_VRING_ADDR: u32 = 9;
pub(crate) const SET_VRING_BASE: u32 = 10;
pub(crate) const GET_VRING_BASE: u32 = 11;
pub(crate) const SET_VRING_KICK: u32 = 12;
pub(crate) const SET_VRING_CALL: u32 = 13;
pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
pub(crate) const SET_VRING_ENABLE: u32 = 18;
pub(crate) const GET_CONFIG: u32 = 24;
pub(crate) const SET_CONFIG: u32 = 25;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

pub(crate) const F_PROTOCOL: u64 = 1 << 30;
pub(crate) const F_VERSION_1: u64 = 1 << 32;

/// The guest's memory, from its address 0 on.
pub(crate) const MEMORY: usize = 1 << 20;
/// Where it is in the front end, it says.
pub(crate) const USER: u64 = 0x7000_0000;
/// Descriptors of a ring.
pub(crate) const RING: u16 = 64;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;

/// Connection and memory.
pub(crate) struct Monitor {
    pub(crate) socket: UnixStream,
    pub(crate) file: OwnedFd,
    memory: *mut u8,
}

// SAFETY: a mapping of its own, which is read and written by bytes.
unsafe impl Send for Monitor {}
// SAFETY: as above; who writes the same bytes at once reads some of them.
unsafe impl Sync for Monitor {}

impl Monitor {
    pub(crate) fn connect(path: &Path) -> Monitor {
        Monitor::over(UnixStream::connect(path).unwrap())
    }

    pub(crate) fn over(socket: UnixStream) -> Monitor {
        socket
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("guest", flags).unwrap();
        ftruncate(&file, MEMORY as u64).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which only `peek` and `poke` use, in its bounds.
        let memory = unsafe {
            mmap(
                std::ptr::null_mut(),
                MEMORY,
                both,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        Monitor {
            socket,
            file,
            memory: memory.unwrap().cast(),
        }
    }

    pub(crate) fn negotiate(&mut self, features: u64, protocol: u64) {
        self.send(SET_OWNER, &[], &[]);
        let offered = self.ask(GET_FEATURES, &[]);
        let offered = u64::from_le_bytes(offered.try_into().unwrap());
        let wanted = F_PROTOCOL | F_VERSION_1 | features;
        assert_eq!(offered & wanted, wanted, "{offered:x}");
        self.send(SET_PROTOCOL_FEATURES, &protocol.to_le_bytes(), &[]);
        self.send(SET_FEATURES, &wanted.to_le_bytes(), &[]);
    }

    /// Each region: guest address, length, our address, offset in the file.
    pub(crate) fn share(&self, regions: &[(u64, u64, u64, u64)]) {
        let count = u32::try_from(regions.len()).unwrap();
        let mut body = [count.to_le_bytes(), [0; 4]].concat();
        for (guest, len, user, offset) in regions {
            for value in [guest, len, user, offset] {
                body.extend_from_slice(&value.to_le_bytes());
            }
        }
        let files: Vec<_> = regions.iter().map(|_| self.file.as_fd()).collect();
        self.send(SET_MEM_TABLE, &body, &files);
    }

    pub(crate) fn send(&self, request: u32, body: &[u8], files: &[BorrowedFd<'_>]) {
        self.try_send(request, body, files).unwrap();
    }

    /// A message; the other side may have had enough of us.
    pub(crate) fn try_send(
        &self,
        request: u32,
        body: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<usize> {
        let size = u32::try_from(body.len()).unwrap();
        let header = [
            request.to_le_bytes(),
            1_u32.to_le_bytes(),
            size.to_le_bytes(),
        ]
        .concat();
        self.try_send_raw(&[&header[..], body].concat(), files)
    }

    pub(crate) fn try_send_raw(
        &self,
        bytes: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        sendmsg(
            &self.socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    }

    /// A message that is answered.
    pub(crate) fn ask(&mut self, request: u32, body: &[u8]) -> Vec<u8> {
        self.send(request, body, &[]);
        self.answer()
    }

    pub(crate) fn answer(&mut self) -> Vec<u8> {
        let mut header = [0; 12];
        self.socket.read_exact(&mut header).unwrap();
        let size = u32::from_le_bytes(header[8..].try_into().unwrap());
        let mut answer = vec![0; size as usize];
        self.socket.read_exact(&mut answer).unwrap();
        answer
    }

    /// Waits until the other side has hung up.
    pub(crate) fn is_hung_up_on(&mut self) {
        let mut bytes = [0; 256];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn poke(&self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        assert!(at + bytes.len() <= MEMORY);
        // SAFETY: in the mapping.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.memory.add(at), bytes.len()) };
    }

    pub(crate) fn peek(&self, at: u64, len: usize) -> Vec<u8> {
        let at = usize::try_from(at).unwrap();
        assert!(at + len <= MEMORY);
        let mut bytes = vec![0; len];
        // SAFETY: in the mapping.
        unsafe { std::ptr::copy(self.memory.add(at), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// A word of 16 bits.
    pub(crate) fn word(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.peek(at, 2).try_into().unwrap())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nobody has kept a pointer.
        let _ = unsafe { munmap(self.memory.cast(), MEMORY) };
    }
}

/// A virtqueue, as its driver has it: `0x3000` bytes of memory from `at` on.
pub(crate) struct Ring {
    index: u32,
    at: u64,
    pub(crate) kick: OwnedFd,
    pub(crate) call: OwnedFd,
    pub(crate) given: u16,
}

impl Ring {
    pub(crate) fn new(index: u32, at: u64) -> Ring {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ring {
            index,
            at,
            kick: eventfd(0, flags).unwrap(),
            call: eventfd(0, flags).unwrap(),
            given: 0,
        }
    }

    /// Has the device use it.
    pub(crate) fn start(&self, monitor: &Monitor) {
        let number = u64::from(self.index).to_le_bytes();
        let at = USER + self.at;
        monitor.send(SET_VRING_NUM, &state(self.index, u32::from(RING)), &[]);
        let base = state(self.index, u32::from(self.given));
        monitor.send(SET_VRING_BASE, &base, &[]);
        let mut addresses = addresses(at, at + USED, at + AVAILABLE);
        addresses[..4].copy_from_slice(&self.index.to_le_bytes());
        monitor.send(SET_VRING_ADDR, &addresses, &[]);
        monitor.send(SET_VRING_CALL, &number, &[self.call.as_fd()]);
        monitor.send(SET_VRING_KICK, &number, &[self.kick.as_fd()]);
        monitor.send(SET_VRING_ENABLE, &state(self.index, 1), &[]);
    }

    /// Writes a descriptor: address, length, flags, next.
    pub(crate) fn descriptor(
        &self,
        monitor: &Monitor,
        number: u64,
        (at, len, flags, next): (u64, u32, u16, u16),
    ) {
        monitor.poke(
            self.at + number * 16,
            &descriptor_bytes(at, len, flags, next),
        );
    }

    /// Gives a chain to the device.
    pub(crate) fn give(&mut self, monitor: &Monitor, head: u16) {
        let slot = u64::from(self.given % RING);
        monitor.poke(self.at + AVAILABLE + 4 + slot * 2, &head.to_le_bytes());
        self.given = self.given.wrapping_add(1);
        self.claim(monitor, self.given);
    }

    /// Writes the number of chains that were given, true or not.
    pub(crate) fn claim(&self, monitor: &Monitor, index: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        monitor.poke(self.at + AVAILABLE + 2, &index.to_le_bytes());
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Chains that came back.
    pub(crate) fn used(&self, monitor: &Monitor) -> u16 {
        monitor.word(self.at + USED + 2)
    }

    /// Says how many came back, as a driver never does.
    pub(crate) fn set_used(&self, monitor: &Monitor, index: u16) {
        monitor.poke(self.at + USED + 2, &index.to_le_bytes());
    }

    /// What is said of the one that came back as number `n`: head, bytes written.
    pub(crate) fn element(&self, monitor: &Monitor, n: u16) -> (u32, u32) {
        let bytes = monitor.peek(self.at + USED + 4 + u64::from(n % RING) * 8, 8);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        (word(0), word(4))
    }

    /// Waits for a call, or a second.
    pub(crate) fn sleep(&self) {
        let mut fds = [PollFd::new(&self.call, PollFlags::IN)];
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let _ = poll(&mut fds, Some(&second));
        let _ = rustix::io::read(&self.call, &mut [0; 8]);
    }

    /// Waits until all that was given came back.
    pub(crate) fn wait(&self, monitor: &Monitor) {
        for _ in 0..30 {
            if self.used(monitor) == self.given {
                return;
            }
            self.sleep();
        }
        panic!(
            "the device has not answered: {} of {}",
            self.used(monitor),
            self.given
        );
    }
}

pub(crate) fn descriptor_bytes(at: u64, len: u32, flags: u16, next: u16) -> Vec<u8> {
    [
        &at.to_le_bytes()[..],
        &len.to_le_bytes(),
        &flags.to_le_bytes(),
        &next.to_le_bytes(),
    ]
    .concat()
}

pub(crate) fn state(index: u32, value: u32) -> Vec<u8> {
    [index.to_le_bytes(), value.to_le_bytes()].concat()
}

/// Of ring 0.
pub(crate) fn addresses(descriptors: u64, used: u64, available: u64) -> Vec<u8> {
    let mut body = vec![0; 8];
    for address in [descriptors, used, available, 0] {
        body.extend_from_slice(&address.to_le_bytes());
    }
    body
}
