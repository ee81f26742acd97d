//! What is asked of an interface, and what is changed there. Behind a trait, so that the order of changes and their way
//! back can be run against an interface that is a test.

use super::bound::Bound;
use super::interface::Interface;
use crate::error::KernelError;
use crate::wire::ethtool::{self, Rings};
use crate::wire::netdev::RxQueue;
use crate::wire::steer::{self, Context, Flow, Target};
use memlane_netlink::{Family, Refused};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::os::fd::BorrowedFd;

/// An interface, to be prepared.
pub trait Nic {
    /// Its name.
    fn name(&self) -> &str;

    /// Its receive queues.
    ///
    /// # Errors
    /// The kernel's, here and below.
    fn queues(&mut self) -> Result<Vec<RxQueue>, Refused>;

    /// How headers are split off.
    ///
    /// # Errors
    /// The kernel refuses.
    fn rings(&mut self) -> Result<Rings, Refused>;

    /// Sets that.
    ///
    /// # Errors
    /// The kernel refuses.
    fn set_rings(&mut self, to: Rings) -> Result<(), Refused>;

    /// Are rules for flows looked at?
    ///
    /// # Errors
    /// The kernel refuses.
    fn rules(&mut self) -> Result<bool, Refused>;

    /// Sets that.
    ///
    /// # Errors
    /// The kernel refuses.
    fn set_rules(&mut self, on: bool) -> Result<(), Refused>;

    /// The queues that packets without a rule go to, by their hash.
    ///
    /// # Errors
    /// The kernel refuses.
    fn spread(&mut self) -> Result<Vec<u32>, Refused>;

    /// Sets that; an empty table: as the driver has it by itself.
    ///
    /// # Errors
    /// The kernel refuses.
    fn set_spread(&mut self, table: &[u32]) -> Result<(), Refused>;

    /// A table of its own for some flows; its number.
    ///
    /// # Errors
    /// The kernel refuses.
    fn add_context(&mut self, table: &[u32]) -> Result<u32, Refused>;

    /// Takes it away.
    ///
    /// # Errors
    /// The kernel refuses.
    fn drop_context(&mut self, context: u32) -> Result<(), Refused>;

    /// A rule; its place.
    ///
    /// # Errors
    /// The kernel refuses.
    fn add_rule(&mut self, flow: &Flow, target: Target) -> Result<u32, Refused>;

    /// Takes it away.
    ///
    /// # Errors
    /// The kernel refuses.
    fn drop_rule(&mut self, place: u32) -> Result<(), Refused>;

    /// Binds a dma-buf to receive queues; the binding's number.
    ///
    /// # Errors
    /// As [`Bound::receive`].
    fn bind(&mut self, dma_buf: BorrowedFd<'_>, queues: &[u32]) -> Result<u32, KernelError>;

    /// Unbinds it.
    fn unbind(&mut self);
}

/// The kernel's.
#[derive(Debug)]
pub struct RealNic {
    interface: Interface,
    bound: Option<Bound>,
}

impl RealNic {
    /// Of this network namespace.
    pub fn new(interface: Interface) -> RealNic {
        RealNic {
            interface,
            bound: None,
        }
    }

    fn by_netlink(
        &self,
        command: u8,
        request: &memlane_netlink::Attributes,
    ) -> Result<Vec<u8>, Refused> {
        let (name, version) = ethtool::FAMILY;
        Family::open(name, version)?.ask(command, request)
    }

    /// `SIOCETHTOOL`; the kernel writes its answer into `value`.
    fn ethtool(&self, value: &mut [u64]) -> Result<(), Refused> {
        let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
        let any: OwnedFd = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        let mut name = [0; 16];
        let text = self.interface.name.as_bytes();
        let room = name.get_mut(..text.len()).filter(|_| text.len() < 16);
        room.ok_or(Errno::NODEV)?.copy_from_slice(text);
        let request = Request {
            name,
            value: value.as_mut_ptr(),
            rest: [0; 2],
        };
        // SAFETY: `value` is as long as the structure of its command is: `wire::steer` makes both.
        unsafe { ioctl(&any, request) }.map_err(Refused::from)
    }
}

/// `struct ifreq` with a pointer.
#[repr(C)]
struct Request {
    name: [u8; 16],
    value: *mut u64,
    rest: [u64; 2],
}

/// `SIOCETHTOOL`.
const ETHTOOL: Opcode = 0x8946;

// SAFETY: the kernel reads this structure, and reads and writes what it points to, which its maker vouches for.
unsafe impl Ioctl for Request {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        ETHTOOL
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        (&raw mut *self).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut core::ffi::c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

impl Nic for RealNic {
    fn name(&self) -> &str {
        &self.interface.name
    }

    fn queues(&mut self) -> Result<Vec<RxQueue>, Refused> {
        self.interface.queues()
    }

    fn rings(&mut self) -> Result<Rings, Refused> {
        let told = self.by_netlink(ethtool::RINGS_GET, &ethtool::rings(self.interface.index))?;
        Ok(ethtool::rings_of(&told))
    }

    fn set_rings(&mut self, to: Rings) -> Result<(), Refused> {
        let request = ethtool::set_rings(self.interface.index, to);
        self.by_netlink(ethtool::RINGS_SET, &request).map(|_| ())
    }

    fn rules(&mut self) -> Result<bool, Refused> {
        let mut value = steer::flags(steer::command::GET_FLAGS, 0);
        self.ethtool(&mut value)?;
        Ok(steer::flags_of(&value) & steer::NTUPLE != 0)
    }

    fn set_rules(&mut self, on: bool) -> Result<(), Refused> {
        let mut value = steer::flags(steer::command::GET_FLAGS, 0);
        self.ethtool(&mut value)?;
        let others = steer::flags_of(&value) & !steer::NTUPLE;
        let flags = if on { others | steer::NTUPLE } else { others };
        self.ethtool(&mut steer::flags(steer::command::SET_FLAGS, flags))
    }

    fn spread(&mut self) -> Result<Vec<u32>, Refused> {
        let mut size = steer::spread(0);
        self.ethtool(&mut size)?;
        let mut table = steer::spread(steer::entries_of(&size));
        self.ethtool(&mut table)?;
        Ok(steer::spread_of(&table))
    }

    fn set_spread(&mut self, table: &[u32]) -> Result<(), Refused> {
        self.ethtool(&mut steer::set_spread(Context::Interface, table))
    }

    fn add_context(&mut self, table: &[u32]) -> Result<u32, Refused> {
        let mut value = steer::set_spread(Context::New, table);
        self.ethtool(&mut value)?;
        Ok(steer::context_of(&value))
    }

    fn drop_context(&mut self, context: u32) -> Result<(), Refused> {
        self.ethtool(&mut steer::set_spread(Context::Is(context), &[]))
    }

    fn add_rule(&mut self, flow: &Flow, target: Target) -> Result<u32, Refused> {
        let mut value = steer::insert(flow, target);
        self.ethtool(&mut value)?;
        Ok(steer::place_of(&value))
    }

    fn drop_rule(&mut self, place: u32) -> Result<(), Refused> {
        self.ethtool(&mut steer::delete(place))
    }

    fn bind(&mut self, dma_buf: BorrowedFd<'_>, queues: &[u32]) -> Result<u32, KernelError> {
        let bound = Bound::receive(dma_buf, &self.interface, queues)?;
        Ok(self.bound.insert(bound).id())
    }

    fn unbind(&mut self) {
        self.bound = None;
    }
}
