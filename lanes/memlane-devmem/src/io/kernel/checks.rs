//! What an interface and this kernel lack for device-memory TCP, found before anybody tries.

use super::bound::Bound;
use super::interface::Interface;
use super::nic::{Nic, RealNic};
use crate::error::KernelError;
use crate::wire::ethtool::Split;
use crate::wire::netdev::{self, command};
use core::fmt;
use memlane_netlink::{Family, Refused};
use std::os::fd::{AsFd, BorrowedFd};

/// Something that device-memory TCP needs and that is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Missing {
    /// The kernel does not know the command: it is too old.
    Command(&'static str, &'static str),
    /// Nothing can be asked.
    Family(Refused),
    /// Who asks may not.
    Permission,
    /// The driver does not do it: the kernel's words.
    Driver(String, Refused),
    /// The interface shows no receive queue: its driver has not what it takes.
    Queues(String),
    /// One queue alone: the others' traffic would go to the device, too.
    OneQueue(String),
    /// Header split: the driver has none that can be set.
    NoSplit(String),
    /// It is off.
    SplitOff(String),
    /// It is for long packets only.
    SplitFrom(String, u32),
    /// Packets without a rule cannot be kept off a queue.
    NoSpread(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Command(name, version) => {
                write!(f, "this kernel has no {name}: Linux {version} has")
            }
            Missing::Family(why) => write!(f, "the kernel cannot be asked: {why}"),
            Missing::Permission => f.write_str("binding takes CAP_NET_ADMIN"),
            Missing::Driver(name, why) => write!(f, "{name}'s driver cannot: {why}"),
            Missing::Queues(name) => write!(
                f,
                "{name} shows no receive queue that could be bound (is it up? ip link show {name})"
            ),
            Missing::OneQueue(name) => write!(
                f,
                "{name} has one receive queue, and one must stay for everything else: ethtool -L {name}"
            ),
            Missing::NoSplit(name) => write!(f, "{name}'s driver does not split headers off"),
            Missing::SplitOff(name) => write!(
                f,
                "{name} does not split headers off: ethtool -G {name} tcp-data-split on"
            ),
            Missing::SplitFrom(name, bytes) => write!(
                f,
                "{name} splits headers off packets of {bytes} bytes and more, and it must be all: ethtool -G {name} hds-thresh 0"
            ),
            Missing::NoSpread(name) => write!(
                f,
                "{name}'s driver has no table of queues (ethtool -x {name}): other packets would go to the device, too"
            ),
        }
    }
}

/// What device-memory TCP lacks to receive by an interface; nothing: try it.
pub fn missing(interface: &Interface) -> Vec<Missing> {
    if let Some(missing) = no_command(command::BIND_RX, "bind-rx", "6.12") {
        return vec![missing];
    }
    let name = || interface.name.clone();
    let mut missing = Vec::new();
    missing.extend(no_driver(interface, |nothing| {
        Bound::receive(nothing, interface, &[0])
    }));
    match interface.queues() {
        Ok(queues) if queues.is_empty() => missing.push(Missing::Queues(name())),
        Ok(queues) if queues.len() == 1 => missing.push(Missing::OneQueue(name())),
        Ok(_) => {}
        Err(why) => missing.push(Missing::Family(why)),
    }
    missing.extend(match interface.split() {
        Err(_) | Ok(Split::Unknown) => Some(Missing::NoSplit(name())),
        Ok(Split::Off) => Some(Missing::SplitOff(name())),
        Ok(Split::From(0)) => None,
        Ok(Split::From(bytes)) => Some(Missing::SplitFrom(name(), bytes)),
    });
    let spread = RealNic::new(interface.clone()).spread();
    missing.extend(spread.is_err().then(|| Missing::NoSpread(name())));
    missing
}

/// What it lacks to send by an interface.
pub fn missing_to_send(interface: &Interface) -> Vec<Missing> {
    let missing = no_command(command::BIND_TX, "bind-tx", "6.16");
    let driver = || no_driver(interface, |nothing| Bound::send(nothing, interface));
    missing.or_else(driver).into_iter().collect()
}

/// Asks for something that is no dma-buf to be bound, which the kernel refuses in any case: but before that, if the
/// driver cannot do it at all.
fn no_driver(
    interface: &Interface,
    bind: impl FnOnce(BorrowedFd<'_>) -> Result<Bound, KernelError>,
) -> Option<Missing> {
    use rustix::io::Errno;
    let nothing = std::fs::File::open("/dev/null").ok()?;
    match bind(nothing.as_fd()) {
        Err(KernelError::Refused(why)) if why.errno == Errno::PERM => Some(Missing::Permission),
        Err(KernelError::Refused(why)) if why.errno == Errno::OPNOTSUPP => {
            Some(Missing::Driver(interface.name.clone(), why))
        }
        Err(KernelError::NoFamily(why)) => Some(Missing::Family(why)),
        _ => None,
    }
}

/// Why a command of the family `netdev` is not there.
fn no_command(id: u8, name: &'static str, version: &'static str) -> Option<Missing> {
    let (control, number) = netdev::control::FAMILY;
    let told = Family::open(control, number).and_then(|mut family| {
        let request = netdev::control::request(netdev::FAMILY.0);
        family.ask(netdev::control::GET_FAMILY, &request)
    });
    match told {
        Err(why) if why.errno == rustix::io::Errno::NOENT => Some(Missing::Command(name, version)),
        Err(why) => Some(Missing::Family(why)),
        Ok(told) => {
            let known = netdev::control::commands(&told).contains(&u32::from(id));
            (!known).then_some(Missing::Command(name, version))
        }
    }
}
