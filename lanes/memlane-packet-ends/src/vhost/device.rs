//! What the machine monitor says of the device, message by message.
//!
//! The crate's own backend (`vhost-user-backend`) has a thread of its own wait for kicks, and gives the rings to nobody
//! else. Here the thread that carries frames waits for them itself, together with whatever is at its other end: so this
//! is the layer below.
//!
//! Numbers: VIRTIO 1.2, 5.1 "Network Device"; vhost-user: QEMU's `docs/interop/vhost-user.rst`.

use super::shared::{Driver, Shared};
use super::vring::{Addresses, Vring};
use crate::peer_event::PeerEventFd;
use memlane_packet::Offloads;
use memlane_virtio::memory::check;
use std::fs::File;
use std::io;
use std::sync::{Arc, MutexGuard};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF,
};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const F_PROTOCOL: u64 = 1 << 30;
/// Bytes of `struct virtio_net_hdr_v1`, and of the one of drivers from before 1.0 that merge no buffers.
const HEADER: usize = 12;
const OLD_HEADER: usize = 10;
/// Pieces of memory, at most: what KVM has, less three of its own.
const SLOTS: usize = 509;

/// Where a piece of the guest's memory is for the monitor: its messages have addresses of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mapping {
    user: u64,
    len: u64,
    guest: u64,
}

pub(super) struct Device {
    shared: Arc<Shared>,
    /// Only memory that its owner cannot take away.
    sealed: bool,
    /// The offloads that frames may ask for at this end.
    takes: Offloads,
    owned: bool,
    /// What was agreed on: bits of VIRTIO, and of vhost-user.
    features: u64,
    protocol: u64,
    memory: GuestMemoryMmap,
    mappings: Vec<Mapping>,
}

fn refuse<T>(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Result<T> {
    Err(Error::ReqHandlerError(io::Error::other(what)))
}

const fn bit(feature: u32) -> u64 {
    1 << feature
}

impl Device {
    pub(super) fn new(shared: Arc<Shared>, sealed: bool, takes: Offloads) -> Device {
        Device {
            shared,
            sealed,
            takes,
            owned: false,
            features: 0,
            protocol: 0,
            memory: GuestMemoryMmap::new(),
            mappings: Vec::new(),
        }
    }

    /// Are rings enabled one by one?
    pub(super) fn has_features(&self) -> bool {
        self.features & F_PROTOCOL != 0
    }

    /// Is each message answered that wants it?
    pub(super) fn replies(&self) -> bool {
        self.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0
    }

    fn features(&self) -> u64 {
        let fixed = [
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_NET_F_MRG_RXBUF,
            VIRTIO_NET_F_CSUM,
            VIRTIO_NET_F_GUEST_CSUM,
            VIRTIO_NET_F_GUEST_TSO4,
            VIRTIO_NET_F_GUEST_TSO6,
        ];
        let more = [
            (VIRTIO_NET_F_HOST_TSO4, self.takes.gso4),
            (VIRTIO_NET_F_HOST_TSO6, self.takes.gso6),
            (VIRTIO_NET_F_MQ, self.shared.pairs() > 1),
        ];
        let more = more.into_iter().filter_map(|(bit, on)| on.then_some(bit));
        fixed.into_iter().chain(more).map(bit).sum::<u64>() | F_PROTOCOL
    }

    fn ring(&self, index: u32) -> Result<MutexGuard<'_, Vring>> {
        let ring = self.shared.ring(index as usize);
        ring.ok_or(Error::InvalidParam)
    }

    /// An address of the monitor's, as the guest's.
    fn guest(&self, user: u64) -> Result<u64> {
        let found = self.mappings.iter().find_map(|mapping| {
            let offset = user.checked_sub(mapping.user)?;
            // The crate has seen that a region's end is no overflow.
            (offset < mapping.len).then_some(mapping.guest + offset)
        });
        found.ok_or(Error::InvalidParam)
    }

    /// From when this is over, nobody touches the memory as it was.
    fn exchange(&mut self, memory: GuestMemoryMmap) -> Result<()> {
        if let Err(why) = check(&memory, self.sealed) {
            return refuse(why);
        }
        self.memory = memory;
        let shown = Arc::new(self.memory.clone());
        let rings = self.shared.rings();
        rings.for_each(|mut ring| ring.set_memory(&shown));
        Ok(())
    }

    fn stop_all(&self) {
        self.shared.rings().for_each(|mut ring| {
            ring.stop();
            ring.set_enabled(false);
        });
        self.shared.look();
    }
}

/// An eventfd; other descriptors could make us wait.
fn doorbell(file: Option<File>) -> Result<Option<PeerEventFd>> {
    match file.map(|file| PeerEventFd::of(file.into())) {
        None => Ok(None),
        Some(Ok(doorbell)) => Ok(Some(doorbell)),
        Some(Err(why)) => refuse(why.to_string()),
    }
}

fn region(what: &VhostUserMemoryRegion, file: File) -> Result<GuestRegionMmap> {
    let at = GuestAddress(what.guest_phys_addr);
    GuestRegionMmap::new(what.mmap_region(file)?, at).ok_or(Error::InvalidParam)
}

impl From<&VhostUserMemoryRegion> for Mapping {
    fn from(what: &VhostUserMemoryRegion) -> Mapping {
        Mapping {
            user: what.user_addr,
            len: what.memory_size,
            guest: what.guest_phys_addr,
        }
    }
}

fn wrong<E: std::fmt::Display>(error: E) -> Error {
    Error::ReqHandlerError(io::Error::other(error.to_string()))
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.owned, true) {
            return Err(Error::InvalidOperation("already claimed"));
        }
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.owned = false;
        self.stop_all();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.features() != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        let has = |feature| features & bit(feature) != 0;
        let merges = has(VIRTIO_NET_F_MRG_RXBUF);
        let sums = has(VIRTIO_NET_F_GUEST_CSUM);
        let long = merges || has(VIRTIO_F_VERSION_1);
        self.shared.state().driver = Driver {
            header: if long { HEADER } else { OLD_HEADER },
            merges,
            sums,
            takes: Offloads {
                gso4: sums && has(VIRTIO_NET_F_GUEST_TSO4),
                gso6: sums && has(VIRTIO_NET_F_GUEST_TSO6),
            },
        };
        let enabled = features & F_PROTOCOL == 0;
        for mut ring in self.shared.rings() {
            ring.set_event_idx(has(VIRTIO_RING_F_EVENT_IDX));
            if enabled {
                // Who cannot say so has all rings enabled.
                ring.set_enabled(true);
            }
        }
        if enabled {
            self.shared.look();
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let all = regions.iter().zip(files);
        let mapped: Vec<_> = all
            .map(|(what, file)| region(what, file))
            .collect::<Result<_>>()?;
        self.exchange(GuestMemoryMmap::from_regions(mapped).map_err(wrong)?)?;
        self.mappings = regions.iter().map(Mapping::from).collect();
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let fits = self.ring(index)?.set_size(num);
        fits.then_some(()).ok_or(Error::InvalidParam)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        let at = Addresses {
            descriptors: self.guest(descriptor)?,
            available: self.guest(available)?,
            used: self.guest(used)?,
        };
        let placed = self.ring(index)?.place(at);
        placed.then_some(()).ok_or(Error::InvalidParam)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let set = self.ring(index)?.set_base(base);
        set.then_some(()).ok_or(Error::InvalidParam)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let next = self.ring(index)?.stop();
        self.shared.look();
        Ok(VhostUserVringState::new(index, next.into()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let doorbell = doorbell(file)?;
        if !self.ring(index.into())?.start(doorbell) {
            return refuse("a ring that lies nowhere, or outside of the guest's memory");
        }
        self.shared.look();
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let doorbell = doorbell(file)?;
        self.ring(index.into())?.set_call(doorbell);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        // Who detaches hangs up, which says more.
        drop(doorbell(file)?);
        self.ring(index.into()).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        let mut features = VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE;
        features.set(VhostUserProtocolFeatures::MQ, self.shared.pairs() > 1);
        Ok(features)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let offered = self.get_protocol_features()?.bits();
        self.protocol = features;
        let known = features & !offered == 0;
        known.then_some(()).ok_or(Error::InvalidParam)
    }

    /// Of network devices: pairs, as QEMU and DPDK have it.
    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.shared.pairs() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.set_enabled(enable);
        self.shared.look();
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(SLOTS as u64)
    }

    /// QEMU before 8.1 says so once for each pair, and so once too often; the same holds for the message below.
    fn add_mem_region(
        &mut self,
        what: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let mapping = Mapping::from(&**what);
        if self.mappings.contains(&mapping) {
            return Ok(None);
        }
        if self.mappings.len() >= SLOTS {
            return Err(Error::InvalidParam);
        }
        let mapped = region(what, file)?;
        let more = self.memory.insert_region(Arc::new(mapped)).map_err(wrong)?;
        self.exchange(more)?;
        self.mappings.push(mapping);
        Ok(None)
    }

    fn remove_mem_region(&mut self, what: &VhostUserSingleMemoryRegion) -> Result<()> {
        let at = what.guest_phys_addr;
        if !self.mappings.iter().any(|mapping| mapping.guest == at) {
            return Ok(());
        }
        let fewer = self
            .memory
            .remove_region(GuestAddress(at), what.memory_size);
        let (fewer, _) = fewer.map_err(wrong)?;
        self.exchange(fewer)?;
        self.mappings.retain(|mapping| mapping.guest != at);
        Ok(())
    }

    // What was not offered.

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(Error::InvalidOperation("no configuration"))
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidOperation("no configuration"))
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("no graphics"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("no shared objects"))
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("nothing is in flight"))
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(Error::InvalidOperation("nothing is in flight"))
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("no state"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("no state"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("no shared memory of ours"))
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(Error::InvalidOperation("no migration"))
    }
}
