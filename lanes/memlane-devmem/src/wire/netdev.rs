//! The kernel's netlink family `netdev`: a dma-buf is bound to an interface's queues (`include/uapi/linux/netdev.h`,
//! `Documentation/netlink/specs/netdev.yaml`).

use memlane_netlink::{Attributes, each, find, find_u32};

/// The family's name and version.
pub const FAMILY: (&str, u8) = ("netdev", 1);

/// Commands.
pub mod command {
    /// `NETDEV_CMD_QUEUE_GET`: a list of queues.
    pub const QUEUE_GET: u8 = 10;
    /// `NETDEV_CMD_BIND_RX` (6.12).
    pub const BIND_RX: u8 = 13;
    /// `NETDEV_CMD_BIND_TX` (6.16).
    pub const BIND_TX: u8 = 15;
}

/// `NETDEV_A_DMABUF_IFINDEX`, `_QUEUES`, `_FD`, `_ID`.
mod dmabuf {
    pub(super) const IFINDEX: u16 = 1;
    pub(super) const QUEUES: u16 = 2;
    pub(super) const FD: u16 = 3;
    pub(super) const ID: u16 = 4;
}

/// `NETDEV_A_QUEUE_ID`, `_IFINDEX`, `_TYPE`, `_DMABUF`; `NETDEV_QUEUE_TYPE_RX`.
mod queue {
    pub(super) const ID: u16 = 1;
    pub(super) const IFINDEX: u16 = 2;
    pub(super) const TYPE: u16 = 3;
    pub(super) const DMABUF: u16 = 5;
    pub(super) const RX: u32 = 0;
}

/// `CTRL_CMD_GETFAMILY` of the family `nlctrl`: what a family can do.
pub mod control {
    use super::{Attributes, each, find, find_u32};

    /// The family's name and version.
    pub const FAMILY: (&str, u8) = ("nlctrl", 2);
    /// The command.
    pub const GET_FAMILY: u8 = 3;
    /// `CTRL_ATTR_FAMILY_NAME`, `CTRL_ATTR_OPS`, `CTRL_ATTR_OP_ID`.
    const NAME: u16 = 2;
    const OPS: u16 = 6;
    const OP_ID: u16 = 1;

    /// Asks for a family.
    pub fn request(name: &str) -> Attributes {
        Attributes::default().text(NAME, name)
    }

    /// The commands that it has.
    pub fn commands(told: &[u8]) -> Vec<u32> {
        let ops = find(told, OPS).unwrap_or_default();
        each(ops)
            .filter_map(|(_, op)| find_u32(op, OP_ID))
            .collect()
    }
}

/// Asks for an interface's queues.
pub fn queues(ifindex: u32) -> Attributes {
    Attributes::default().u32(queue::IFINDEX, ifindex)
}

/// A receive queue of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxQueue {
    /// Its number.
    pub id: u32,
    /// The binding that it has, if any.
    pub bound: Option<u32>,
}

/// One part of that list; `None`: it is about a queue of another kind.
pub fn rx_queue(told: &[u8]) -> Option<RxQueue> {
    (find_u32(told, queue::TYPE)? == queue::RX).then_some(())?;
    Some(RxQueue {
        id: find_u32(told, queue::ID)?,
        bound: find_u32(told, queue::DMABUF),
    })
}

/// Asks that a dma-buf be bound to receive queues.
pub fn bind_rx(ifindex: u32, dma_buf: u32, queues: &[u32]) -> Attributes {
    let request = Attributes::default()
        .u32(dmabuf::IFINDEX, ifindex)
        .u32(dmabuf::FD, dma_buf);
    queues.iter().fold(request, |request, id| {
        let queue = Attributes::default()
            .u32(queue::ID, *id)
            .u32(queue::TYPE, queue::RX);
        request.nested(dmabuf::QUEUES, &queue)
    })
}

/// Asks that a dma-buf can be sent from.
pub fn bind_tx(ifindex: u32, dma_buf: u32) -> Attributes {
    Attributes::default()
        .u32(dmabuf::IFINDEX, ifindex)
        .u32(dmabuf::FD, dma_buf)
}

/// The binding's number, as both are answered.
pub fn bound(told: &[u8]) -> Option<u32> {
    find_u32(told, dmabuf::ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let told = |kind: u32| {
            Attributes::default()
                .u32(queue::ID, 4)
                .u32(queue::TYPE, kind)
                .u32(queue::DMABUF, 9)
        };
        let bytes = |list: Attributes| {
            let outer = Attributes::default().nested(1, &list);
            find(outer.as_bytes(), 1).unwrap().to_vec()
        };
        let queue = RxQueue {
            id: 4,
            bound: Some(9),
        };
        assert_eq!(rx_queue(&bytes(told(queue::RX))), Some(queue));
        assert_eq!(rx_queue(&bytes(told(1))), None, "one to send");
        assert_eq!(rx_queue(&[]), None);
        assert_eq!(
            bound(&bytes(Attributes::default().u32(dmabuf::ID, 77))),
            Some(77)
        );
    }

    #[test]
    fn a_request_names_each_queue() {
        let request = bind_rx(3, 8, &[14, 15]);
        let parts: Vec<_> = each(request.as_bytes()).collect();
        let kinds: Vec<_> = parts.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(
            kinds,
            [dmabuf::IFINDEX, dmabuf::FD, dmabuf::QUEUES, dmabuf::QUEUES]
        );
        assert_eq!(find_u32(parts[3].1, queue::ID), Some(15));
        assert_eq!(find_u32(parts[3].1, queue::TYPE), Some(queue::RX));
    }
}
