//! The device that the guest sees: features, configuration space, one worker to each virtqueue.
//!
//! Numbers and layouts: VIRTIO 1.2, 5.2 "Block Device"; vhost-user protocol features: QEMU's `docs/interop/vhost-user.rst`.

use super::request::{ID_LEN, MAX_RANGES, SECTOR};
use super::ring::{Ring, Virtqueue};
use super::worker::Worker;
use memlane_block::volume::Volume;
use memlane_virtio::memory::{Memory, check};
use memlane_wait::event::EventFd;
use memlane_wait::mutex::{lock, wait_timeout};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::VhostUserBackend;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use vm_memory::GuestAddressSpace as _;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventNotifier};

/// Most descriptors of a ring.
pub(super) const RING: u16 = 256;
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const F_PROTOCOL: u64 = 1 << 30;
/// Bytes of `struct virtio_blk_config`, up to and with what write-zeroes needs.
const CONFIG: usize = 60;
/// Where `writeback` is in it.
const CONFIG_WCE: usize = 32;
/// What a front end may ask for: `VHOST_USER_MAX_CONFIG_SIZE`.
const CONFIG_MAX: usize = 256;

/// `SEALED`: see [`check`].
pub(super) struct Device<const SEALED: bool> {
    volume: Arc<dyn Volume>,
    workers: Vec<Slot>,
    acked: AtomicU64,
    /// The guest wants a cache that is written back later.
    writeback: AtomicBool,
    drain: Duration,
}

/// One virtqueue's.
struct Slot {
    worker: Mutex<Worker>,
    changed: Condvar,
    ring: Mutex<Option<Virtqueue>>,
    stopping: AtomicBool,
    exit: EventFd,
    /// The crate adds its copy to its epoll set and never closes it; we do.
    exit_copy: Mutex<Option<RawFd>>,
}

impl<const SEALED: bool> Device<SEALED> {
    pub(super) fn new(
        volume: &Arc<dyn Volume>,
        queues: usize,
        serial: [u8; ID_LEN],
        drain: Duration,
    ) -> io::Result<Self> {
        let slot = |_| {
            let limit = usize::from(RING);
            let worker = Worker::new(Arc::clone(volume), serial, limit)?;
            Ok(Slot {
                worker: Mutex::new(worker),
                changed: Condvar::new(),
                ring: Mutex::default(),
                stopping: AtomicBool::new(false),
                exit: EventFd::new()?,
                exit_copy: Mutex::default(),
            })
        };
        Ok(Device {
            volume: Arc::clone(volume),
            workers: (0..queues).map(slot).collect::<io::Result<_>>()?,
            acked: AtomicU64::new(0),
            writeback: AtomicBool::new(true),
            drain,
        })
    }

    /// Each queue's descriptor, in order.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        let fd = |slot: &Slot| lock(&slot.worker).queue().fd().as_raw_fd();
        self.workers.iter().map(fd).collect()
    }

    /// The front end is gone: what is under way ends, late or as failed, before the next one comes.
    pub(super) fn end(&self) {
        for slot in &self.workers {
            slot.stopping.store(true, Ordering::SeqCst);
        }
        for index in 0..self.workers.len() {
            self.finish(index);
        }
    }

    /// Closes what the crate has left open. To be called when its threads have ended.
    pub(super) fn close(&self) {
        for slot in &self.workers {
            if let Some(fd) = lock(&slot.exit_copy).take() {
                // SAFETY: it was made by `exit_event` for the crate, which has given up what it made of it
                // (`into_raw_fd`), and its threads have ended.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }

    fn turn(&self, slot: &Slot, ring: &Virtqueue) {
        let mut worker = lock(&slot.worker);
        worker.turn(ring, &|| self.is_durable(), &slot.stopping);
        if worker.is_idle() {
            slot.changed.notify_all();
        }
    }

    /// Waits for what is under way on a ring.
    fn finish(&self, index: usize) {
        let Some(slot) = self.workers.get(index) else {
            return;
        };
        let ring = lock(&slot.ring).clone();
        let until = Instant::now() + self.drain;
        let mut worker = lock(&slot.worker);
        while !worker.is_idle() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                if let Some(ring) = &ring {
                    worker.give_up(ring);
                }
                return;
            }
            worker = wait_timeout(&slot.changed, worker, left);
        }
    }

    /// Without a cache that the guest knows of, done must mean durable.
    fn is_durable(&self) -> bool {
        let acked = self.acked.load(Ordering::SeqCst);
        let has = |feature: u32| acked & 1 << feature != 0;
        let chosen = !has(VIRTIO_BLK_F_CONFIG_WCE) || self.writeback.load(Ordering::SeqCst);
        self.volume.info().cached && !(has(VIRTIO_BLK_F_FLUSH) && chosen)
    }

    /// `struct virtio_blk_config`, little-endian.
    fn config(&self) -> [u8; CONFIG] {
        let info = self.volume.info();
        let mut config = [0; CONFIG];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(info.size / SECTOR).to_le_bytes());
        // seg_max: with header and status it fits the smallest ring that front ends make.
        put(12, &(u32::from(RING) / 2 - 2).to_le_bytes());
        put(20, &info.block.to_le_bytes());
        let exponent = (info.preferred / info.block).max(1).ilog2();
        put(24, &[u8::try_from(exponent).unwrap_or(0)]);
        let smallest = info.preferred / info.block;
        put(
            26,
            &u16::try_from(smallest).unwrap_or(u16::MAX).to_le_bytes(),
        );
        put(28, &(info.max_io / info.block).to_le_bytes());
        put(
            CONFIG_WCE,
            &[u8::from(self.writeback.load(Ordering::SeqCst))],
        );
        let queues = u16::try_from(self.workers.len()).unwrap_or(1);
        put(34, &queues.to_le_bytes());
        let most = info.max_trim - info.max_trim % info.block;
        let sectors = u32::try_from(u64::from(most) / SECTOR).unwrap_or(u32::MAX);
        put(36, &sectors.to_le_bytes());
        put(40, &MAX_RANGES.to_le_bytes());
        put(
            44,
            &u32::try_from(u64::from(info.block) / SECTOR)
                .unwrap_or(1)
                .to_le_bytes(),
        );
        put(48, &sectors.to_le_bytes());
        put(52, &MAX_RANGES.to_le_bytes());
        put(56, &[1]);
        config
    }
}

impl<const SEALED: bool> VhostUserBackend for Device<SEALED> {
    type Bitmap = ();
    type Vring = Ring<SEALED>;

    fn num_queues(&self) -> usize {
        self.workers.len()
    }

    fn max_queue_size(&self) -> usize {
        usize::from(RING)
    }

    fn features(&self) -> u64 {
        let info = self.volume.info();
        let can_trim = info.max_trim >= info.block && !info.read_only;
        let features = [
            (VIRTIO_F_VERSION_1, true),
            (VIRTIO_RING_F_EVENT_IDX, true),
            (VIRTIO_RING_F_INDIRECT_DESC, true),
            (VIRTIO_BLK_F_SEG_MAX, true),
            (VIRTIO_BLK_F_BLK_SIZE, true),
            (VIRTIO_BLK_F_TOPOLOGY, true),
            (VIRTIO_BLK_F_MQ, true),
            (VIRTIO_BLK_F_FLUSH, info.cached),
            (VIRTIO_BLK_F_CONFIG_WCE, info.cached),
            (VIRTIO_BLK_F_RO, info.read_only),
            (VIRTIO_BLK_F_DISCARD, info.trim && can_trim),
            (VIRTIO_BLK_F_WRITE_ZEROES, info.zeroes && can_trim),
        ];
        let bit = |(feature, on): &(u32, bool)| u64::from(*on) << feature;
        features
            .iter()
            .map(bit)
            .fold(F_PROTOCOL, |all, one| all | one)
    }

    fn acked_features(&self, features: u64) {
        self.acked.store(features, Ordering::SeqCst);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE
    }

    fn reset_device(&self) {
        self.acked.store(0, Ordering::SeqCst);
        self.writeback.store(true, Ordering::SeqCst);
    }

    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let mut whole = [0; CONFIG_MAX];
        whole[..CONFIG].copy_from_slice(&self.config());
        let start = offset as usize;
        // An answer that is too short is the crate's word for "no".
        let asked = start
            .checked_add(size as usize)
            .and_then(|end| whole.get(start..end));
        asked.unwrap_or_default().to_vec()
    }

    fn set_config(&self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        match bytes {
            [value @ 0..=1] if offset as usize == CONFIG_WCE => {
                self.writeback.store(*value == 1, Ordering::SeqCst);
                Ok(())
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Says what is wrong with it. Who uses it looks for himself: it is in use already.
    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        check(&memory.memory(), SEALED).map_err(|error| io::Error::other(error.to_string()))
    }

    /// One thread to each virtqueue.
    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.workers.len()).map(|index| 1 << index).collect()
    }

    fn exit_event(&self, thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        let slot = self.workers.get(thread)?;
        let consumer = slot.exit.as_fd().try_clone_to_owned().ok()?.into_raw_fd();
        let notifier = slot.exit.as_fd().try_clone_to_owned().ok()?.into_raw_fd();
        *lock(&slot.exit_copy) = Some(consumer);
        // SAFETY: both are new, and eventfds.
        Some(unsafe {
            (
                EventConsumer::from_raw_fd(consumer),
                EventNotifier::from_raw_fd(notifier),
            )
        })
    }

    fn stop_vring(&self, index: u32) -> io::Result<()> {
        self.finish(index as usize);
        Ok(())
    }

    fn handle_event(
        &self,
        _event: u16,
        _set: EventSet,
        rings: &[Ring<SEALED>],
        thread: usize,
    ) -> io::Result<()> {
        if let (Some(slot), Some(ring)) =
            (self.workers.get(thread), rings.first().map(|ring| &ring.0))
        {
            lock(&slot.ring).get_or_insert_with(|| ring.clone());
            self.turn(slot, ring);
        }
        Ok(())
    }
}
