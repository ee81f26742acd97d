//! A front end of vhost-user and a driver of virtio-blk, small and without manners: what QEMU would never send, too.
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

pub(crate) const F_FLUSH: u64 = 1 << 9;
pub(crate) const F_CONFIG_WCE: u64 = 1 << 11;
const F_PROTOCOL: u64 = 1 << 30;
const F_VERSION_1: u64 = 1 << 32;

/// The guest's memory, from its address 0 on.
pub(crate) const MEMORY: usize = 1 << 20;
/// Where it is in the front end, it says.
pub(crate) const USER: u64 = 0x7000_0000;
pub(crate) const RING: u16 = 64;
const AVAILABLE: usize = 0x1000;
const USED: usize = 0x2000;
/// From here on, memory is the test's.
pub(crate) const FREE: u64 = 0x4000;
const HEADER: u64 = 0x3000;
const STATUS: u64 = 0x3100;

/// Connection, memory, one ring.
pub(crate) struct Front {
    pub(crate) socket: UnixStream,
    pub(crate) file: OwnedFd,
    memory: *mut u8,
    kick: OwnedFd,
    call: OwnedFd,
    given: u16,
}

impl Front {
    pub(crate) fn connect(path: &Path) -> Front {
        let socket = UnixStream::connect(path).unwrap();
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
        Front {
            socket,
            file,
            memory: memory.unwrap().cast(),
            kick: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap(),
            call: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap(),
            given: 0,
        }
    }

    /// With everything set up as it should be, and these features besides.
    pub(crate) fn ready(path: &Path, features: u64) -> Front {
        let mut front = Front::connect(path);
        front.negotiate(features);
        front.share(&[(0, MEMORY as u64, USER, 0)]);
        front.start();
        front
    }

    pub(crate) fn negotiate(&mut self, features: u64) {
        self.send(SET_OWNER, &[], &[]);
        let offered = self.ask(GET_FEATURES, &[]);
        let offered = u64::from_le_bytes(offered.try_into().unwrap());
        let wanted = F_PROTOCOL | F_VERSION_1 | features;
        assert_eq!(offered & wanted, wanted, "{offered:x}");
        // MQ, REPLY_ACK, CONFIG.
        self.send(
            SET_PROTOCOL_FEATURES,
            &(1_u64 | 1 << 3 | 1 << 9).to_le_bytes(),
            &[],
        );
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

    pub(crate) fn start(&self) {
        self.send(SET_VRING_NUM, &state(0, u32::from(RING)), &[]);
        self.send(SET_VRING_BASE, &state(0, u32::from(self.given)), &[]);
        let (available, used) = (USER + AVAILABLE as u64, USER + USED as u64);
        self.send(SET_VRING_ADDR, &addresses(USER, used, available), &[]);
        self.send(SET_VRING_CALL, &0_u64.to_le_bytes(), &[self.call.as_fd()]);
        self.send(SET_VRING_KICK, &0_u64.to_le_bytes(), &[self.kick.as_fd()]);
        self.send(SET_VRING_ENABLE, &state(0, 1), &[]);
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

    /// Writes a descriptor: address, length, flags, next.
    pub(crate) fn descriptor(&self, number: u64, at: u64, len: u32, flags: u16, next: u16) {
        let bytes = [
            &at.to_le_bytes()[..],
            &len.to_le_bytes(),
            &flags.to_le_bytes(),
            &next.to_le_bytes(),
        ]
        .concat();
        self.poke(number * 16, &bytes);
    }

    /// Gives a chain to the device.
    pub(crate) fn give(&mut self, head: u16) {
        let slot = u64::from(self.given % RING);
        self.poke(AVAILABLE as u64 + 4 + slot * 2, &head.to_le_bytes());
        self.given = self.given.wrapping_add(1);
        self.claim(self.given);
    }

    /// Says that so many chains were given.
    pub(crate) fn claim(&self, index: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.poke(AVAILABLE as u64 + 2, &index.to_le_bytes());
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    pub(crate) fn used(&self) -> u16 {
        u16::from_le_bytes(self.peek(USED as u64 + 2, 2).try_into().unwrap())
    }

    /// Waits until all that was given came back.
    pub(crate) fn wait(&self) {
        for _ in 0..30 {
            if self.used() == self.given {
                return;
            }
            let mut fds = [PollFd::new(&self.call, PollFlags::IN)];
            let second = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            let _ = poll(&mut fds, Some(&second));
            let _ = rustix::io::read(&self.call, &mut [0; 8]);
        }
        panic!(
            "the device has not answered: {} of {}",
            self.used(),
            self.given
        );
    }

    /// Gives a request with data at `at`; `None`: it has none.
    pub(crate) fn begin(&mut self, kind: u32, sector: u64, data: Option<(u64, u32, bool)>) {
        let header = [
            &kind.to_le_bytes()[..],
            &0_u32.to_le_bytes(),
            &sector.to_le_bytes(),
        ];
        self.poke(HEADER, &header.concat());
        self.poke(STATUS, &[0xff]);
        self.descriptor(0, HEADER, 16, NEXT, if data.is_some() { 1 } else { 2 });
        if let Some((at, len, to_guest)) = data {
            self.descriptor(1, at, len, NEXT | if to_guest { WRITE } else { 0 }, 2);
        }
        self.descriptor(2, STATUS, 1, WRITE, 0);
        self.give(0);
    }

    pub(crate) fn status(&self) -> u8 {
        self.peek(STATUS, 1)[0]
    }

    pub(crate) fn request(&mut self, kind: u32, sector: u64, data: Option<(u64, u32, bool)>) -> u8 {
        self.begin(kind, sector, data);
        self.wait();
        self.status()
    }

    pub(crate) fn write(&mut self, sector: u64, bytes: &[u8]) -> u8 {
        self.poke(FREE, bytes);
        self.request(
            1,
            sector,
            Some((FREE, u32::try_from(bytes.len()).unwrap(), false)),
        )
    }

    pub(crate) fn read(&mut self, sector: u64, len: u32) -> (u8, Vec<u8>) {
        self.poke(FREE, &vec![0xee; len as usize]);
        let status = self.request(0, sector, Some((FREE, len, true)));
        (status, self.peek(FREE, len as usize))
    }

    /// Asks for the configuration space, or a part of it.
    pub(crate) fn config(&mut self, offset: u32, size: u32) -> Vec<u8> {
        let mut body = [offset.to_le_bytes(), size.to_le_bytes(), [0; 4]].concat();
        body.resize(12 + size as usize, 0);
        self.ask(GET_CONFIG, &body).split_off(12)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nobody has kept a pointer.
        let _ = unsafe { munmap(self.memory.cast(), MEMORY) };
    }
}

pub(crate) fn state(index: u32, value: u32) -> Vec<u8> {
    [index.to_le_bytes(), value.to_le_bytes()].concat()
}

pub(crate) fn addresses(descriptors: u64, used: u64, available: u64) -> Vec<u8> {
    let mut body = vec![0; 8];
    for address in [descriptors, used, available, 0] {
        body.extend_from_slice(&address.to_le_bytes());
    }
    body
}
