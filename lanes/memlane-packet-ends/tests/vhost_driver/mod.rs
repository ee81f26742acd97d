//! A driver of virtio-net over a front end of vhost-user that breaks the rules, and a door for it to come to.
#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../../../../spine/memlane-virtio/tests/monitor/mod.rs"]
mod monitor;

#[allow(unused_imports, reason = "each test program uses a part")]
pub(crate) use monitor::{
    GET_VRING_BASE, INDIRECT, MEMORY, NEXT, RING, SET_VRING_ADDR, SET_VRING_CALL, SET_VRING_ENABLE,
    SET_VRING_KICK, SET_VRING_NUM, USER, WRITE, addresses, descriptor_bytes, state,
};
use monitor::{Monitor, Ring};

use memlane_packet::{Frame, Meta};
use memlane_packet_ends::OpenError;
use memlane_packet_ends::vhost::{Role, VhostDoor, VhostLink, VhostQueue, VhostTerms};
use memlane_packet_ends::{End, More};
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);
pub(crate) const CSUM: u64 = 1;
pub(crate) const GUEST_CSUM: u64 = 1 << 1;
pub(crate) const GUEST_TSO4: u64 = 1 << 7;
pub(crate) const HOST_TSO4: u64 = 1 << 11;
pub(crate) const MERGES: u64 = 1 << 15;
pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
pub(crate) const EVENT_IDX: u64 = 1 << 29;
pub(crate) const ALL: u64 =
    CSUM | GUEST_CSUM | GUEST_TSO4 | HOST_TSO4 | MERGES | INDIRECT_DESC | EVENT_IDX;
/// REPLY_ACK.
const PROTOCOL: u64 = 1 << 3;
/// From here on, memory is the test's.
pub(crate) const FREE: u64 = 0x10000;
/// Bytes of `virtio_net_hdr_v1`.
pub(crate) const HEADER: usize = 12;

/// A folder of its own, and a door in it.
pub(crate) struct House {
    folder: PathBuf,
    pub(crate) door: VhostDoor,
}

impl House {
    pub(crate) fn new() -> House {
        House::with(&VhostTerms::default())
    }

    pub(crate) fn with(terms: &VhostTerms) -> House {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("memlane-vhost-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("socket");
        let door = VhostDoor::open(socket.to_str().unwrap(), Role::Server, terms).unwrap();
        House { folder, door }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    pub(crate) fn accept(&self) -> (VhostLink, VhostQueue) {
        let (link, mut queues) = self.door.accept(LIMIT).unwrap();
        (link, queues.remove(0))
    }

    /// What the monitor that came last did wrong.
    pub(crate) fn trouble(&self) -> String {
        match self.door.accept(LIMIT) {
            Err(OpenError::VhostUser(what)) => what,
            other => panic!("{other:?}"),
        }
    }

    /// A guest that behaves finds all well.
    pub(crate) fn works(&self) {
        let mut guest = Guest::ready(self, ALL);
        let (_link, mut queue) = self.accept();
        guest.send(&[0; HEADER], &[9; 60]);
        assert_eq!(
            frames(&mut queue).unwrap(),
            [(vec![9; 60], Meta::default())]
        );
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Connection, memory, a pair of rings.
pub(crate) struct Guest {
    monitor: Monitor,
    /// What it receives by, and sends by.
    pub(crate) rings: [Ring; 2],
    /// Buffers that came back.
    seen: u16,
    /// Where buffers are, and how long.
    buffers: (u64, u32),
}

impl Deref for Guest {
    type Target = Monitor;

    fn deref(&self) -> &Monitor {
        &self.monitor
    }
}

impl DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut Monitor {
        &mut self.monitor
    }
}

impl Guest {
    pub(crate) fn connect(house: &House) -> Guest {
        Guest::over(UnixStream::connect(house.socket()).unwrap())
    }

    pub(crate) fn over(socket: UnixStream) -> Guest {
        Guest {
            monitor: Monitor::over(socket),
            rings: [Ring::new(0, 0), Ring::new(1, 0x4000)],
            seen: 0,
            buffers: (0x40000, 2048),
        }
    }

    /// With everything set up as it should be, and these features besides.
    pub(crate) fn ready(house: &House, features: u64) -> Guest {
        let mut guest = Guest::connect(house);
        guest.monitor.negotiate(features, PROTOCOL);
        guest.share(&[(0, MEMORY as u64, USER, 0)]);
        guest.start();
        guest
    }

    pub(crate) fn negotiate(&mut self, features: u64) {
        self.monitor.negotiate(features, PROTOCOL);
    }

    pub(crate) fn start(&self) {
        self.rings.iter().for_each(|ring| ring.start(&self.monitor));
    }

    /// Both rings stop, as when a driver ends; where they were.
    pub(crate) fn stop(&mut self) -> [u16; 2] {
        [0, 1].map(|index| {
            let answer = self.ask(GET_VRING_BASE, &state(index, 0));
            u16::from_le_bytes(answer[4..6].try_into().unwrap())
        })
    }

    /// A chain of these for the device to read (or with WRITE, to write), given to ring `n`: address, length, flags.
    pub(crate) fn chain(&mut self, n: usize, pieces: &[(u64, u32, u16)]) {
        for (number, (at, len, flags)) in pieces.iter().enumerate() {
            let number = u64::try_from(number).unwrap();
            let more = number + 1 < pieces.len() as u64;
            let flags = flags | if more { NEXT } else { 0 };
            let next = u16::try_from(number + 1).unwrap();
            self.rings[n].descriptor(&self.monitor, number, (*at, *len, flags, next));
        }
        self.give(n, 0);
    }

    pub(crate) fn descriptor(&self, n: usize, number: u64, words: (u64, u32, u16, u16)) {
        self.rings[n].descriptor(&self.monitor, number, words);
    }

    pub(crate) fn give(&mut self, n: usize, head: u16) {
        self.rings[n].give(&self.monitor, head);
    }

    pub(crate) fn claim(&self, n: usize, index: u16) {
        self.rings[n].claim(&self.monitor, index);
    }

    /// Says this to the device.
    pub(crate) fn say(&self, request: u32, body: &[u8], files: &[BorrowedFd<'_>]) {
        self.monitor.send(request, body, files);
    }

    /// Sends a frame in one piece.
    pub(crate) fn send(&mut self, header: &[u8; HEADER], frame: &[u8]) {
        self.poke(FREE, header);
        self.poke(FREE + HEADER as u64, frame);
        let len = u32::try_from(HEADER + frame.len()).unwrap();
        self.chain(1, &[(FREE, len, 0)]);
    }

    /// Posts `count` buffers of `len` bytes each. Not more than a ring in all.
    pub(crate) fn post(&mut self, count: u16, len: u32) {
        self.buffers.1 = len;
        for _ in 0..count {
            let head = self.rings[0].given % RING;
            let at = self.buffers.0 + u64::from(head) * u64::from(len);
            self.descriptor(0, head.into(), (at, len, WRITE, 0));
            self.give(0, head);
        }
    }

    /// The next frame that came: its header and its bytes. All its buffers must be there.
    pub(crate) fn take(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let there = self.rings[0].used(&self.monitor);
        if there == self.seen {
            return None;
        }
        let (mut bytes, mut left) = (Vec::new(), 1);
        while left > 0 {
            assert_ne!(there, self.seen, "a frame that is not whole");
            let (head, len) = self.rings[0].element(&self.monitor, self.seen);
            let at = self.buffers.0 + u64::from(head) * u64::from(self.buffers.1);
            let part = self.peek(at, len as usize);
            if bytes.is_empty() {
                left = u16::from_le_bytes([part[10], part[11]]);
                assert!(left > 0, "no buffers");
            }
            bytes.extend(part);
            self.seen = self.seen.wrapping_add(1);
            left -= 1;
        }
        let frame = bytes.split_off(HEADER);
        Some((bytes, frame))
    }
}

/// All frames that come now.
pub(crate) fn frames(
    queue: &mut VhostQueue,
) -> Result<Vec<(Vec<u8>, Meta)>, memlane_packet_ends::EndError> {
    let mut all = Vec::new();
    queue.receive(usize::from(RING), &mut |frame: &Frame<'_>| {
        let mut bytes = vec![0; frame.len()];
        assert_eq!(frame.copy_out(0, &mut bytes), bytes.len());
        all.push((bytes, frame.meta()));
        More::Yes
    })?;
    Ok(all)
}
