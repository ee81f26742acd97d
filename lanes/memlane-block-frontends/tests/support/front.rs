//! A virtio-blk driver over a vhost-user monitor that breaks the protocol when a test says so.
#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../../../../spine/memlane-virtio/tests/monitor/mod.rs"]
mod monitor;

use monitor::{GET_CONFIG, Monitor, Ring};
pub(crate) use monitor::{
    GET_VRING_BASE, INDIRECT, MEMORY, NEXT, RING, SET_CONFIG, SET_VRING_ADDR, SET_VRING_CALL,
    SET_VRING_KICK, SET_VRING_NUM, USER, WRITE, addresses, state,
};
use std::ops::{Deref, DerefMut};
use std::path::Path;

pub(crate) const F_FLUSH: u64 = 1 << 9;
pub(crate) const F_CONFIG_WCE: u64 = 1 << 11;
/// MQ, REPLY_ACK, CONFIG.
const PROTOCOL: u64 = 1 | 1 << 3 | 1 << 9;

/// From here on, memory is the test's.
pub(crate) const FREE: u64 = 0x4000;
const HEADER: u64 = 0x3000;
const STATUS: u64 = 0x3100;

/// Connection, memory, one ring.
pub(crate) struct Front {
    monitor: Monitor,
    ring: Ring,
}

impl Deref for Front {
    type Target = Monitor;

    fn deref(&self) -> &Monitor {
        &self.monitor
    }
}

impl DerefMut for Front {
    fn deref_mut(&mut self) -> &mut Monitor {
        &mut self.monitor
    }
}

impl Front {
    pub(crate) fn connect(path: &Path) -> Front {
        Front {
            monitor: Monitor::connect(path),
            ring: Ring::new(0, 0),
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
        self.monitor.negotiate(features, PROTOCOL);
    }

    pub(crate) fn start(&self) {
        self.ring.start(&self.monitor);
    }

    /// Writes a descriptor: address, length, flags, next.
    pub(crate) fn descriptor(&self, number: u64, at: u64, len: u32, flags: u16, next: u16) {
        let monitor = &self.monitor;
        self.ring
            .descriptor(monitor, number, (at, len, flags, next));
    }

    /// Gives a chain to the device.
    pub(crate) fn give(&mut self, head: u16) {
        self.ring.give(&self.monitor, head);
    }

    /// Writes the number of chains that were given, true or not.
    pub(crate) fn claim(&self, index: u16) {
        self.ring.claim(&self.monitor, index);
    }

    pub(crate) fn used(&self) -> u16 {
        self.ring.used(&self.monitor)
    }

    /// Waits until all that was given came back.
    pub(crate) fn wait(&self) {
        self.ring.wait(&self.monitor);
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
