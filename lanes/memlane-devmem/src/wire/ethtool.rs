//! As much of the kernel's netlink family `ethtool` as says whether headers are split off
//! (`include/uapi/linux/ethtool_netlink.h`, `ethtool_netlink_generated.h`).

use memlane_netlink::{Attributes, find, find_u32};

/// The family's name and version.
pub const FAMILY: (&str, u8) = ("ethtool", 1);
/// `ETHTOOL_MSG_RINGS_GET`.
pub const RINGS_GET: u8 = 15;
/// `ETHTOOL_A_RINGS_HEADER`, `ETHTOOL_A_HEADER_DEV_INDEX`.
const HEADER: u16 = 1;
const DEV_INDEX: u16 = 1;
/// `ETHTOOL_A_RINGS_TCP_DATA_SPLIT`, `ETHTOOL_A_RINGS_HDS_THRESH` (6.14).
const DATA_SPLIT: u16 = 11;
const SPLIT_FROM: u16 = 17;

/// Asks how an interface's rings are set.
pub fn rings(ifindex: u32) -> Attributes {
    let header = Attributes::default().u32(DEV_INDEX, ifindex);
    Attributes::default().nested(HEADER, &header)
}

/// Are headers and payload put into different memory?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// The driver does not say (`ETHTOOL_TCP_DATA_SPLIT_UNKNOWN`, or nothing at all).
    Unknown,
    /// No.
    Off,
    /// Yes, of packets from so many bytes on; device memory wants all (0).
    From(u32),
}

/// What the answer says.
pub fn split(told: &[u8]) -> Split {
    match find(told, DATA_SPLIT) {
        Some([1, ..]) => Split::Off,
        Some([2, ..]) => Split::From(find_u32(told, SPLIT_FROM).unwrap_or(0)),
        _ => Split::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let of = |value: u8| Attributes::default().bytes(DATA_SPLIT, &[value]);
        assert_eq!(split(&[]), Split::Unknown);
        assert_eq!(split(of(0).as_bytes()), Split::Unknown);
        assert_eq!(split(of(1).as_bytes()), Split::Off);
        assert_eq!(split(of(2).as_bytes()), Split::From(0));
        assert_eq!(
            split(of(2).u32(SPLIT_FROM, 256).as_bytes()),
            Split::From(256)
        );
    }
}
