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

/// `ETHTOOL_MSG_RINGS_SET`.
pub const RINGS_SET: u8 = 16;

/// Asks how an interface's rings are set.
pub fn rings(ifindex: u32) -> Attributes {
    let header = Attributes::default().u32(DEV_INDEX, ifindex);
    Attributes::default().nested(HEADER, &header)
}

/// How headers are split off: what can be set, and set again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rings {
    /// `ETHTOOL_TCP_DATA_SPLIT_*`: 0 the driver's own choice, 1 off, 2 on. `None`: it is not told.
    pub split: Option<u8>,
    /// Size in bytes of the smallest packets that are split (Linux 6.14).
    pub from: Option<u32>,
}

/// What the answer says.
pub fn rings_of(told: &[u8]) -> Rings {
    Rings {
        split: find(told, DATA_SPLIT).and_then(|value| value.first().copied()),
        from: find_u32(told, SPLIT_FROM),
    }
}

/// Asks that they be set so; what is `None` stays as it is.
pub fn set_rings(ifindex: u32, to: Rings) -> Attributes {
    let request = rings(ifindex);
    let request = match to.split {
        Some(split) => request.bytes(DATA_SPLIT, &[split]),
        None => request,
    };
    match to.from {
        Some(bytes) => request.u32(SPLIT_FROM, bytes),
        None => request,
    }
}

/// Are headers and payload put into different memory?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// The driver does not say (`ETHTOOL_TCP_DATA_SPLIT_UNKNOWN`, or nothing at all).
    Unknown,
    /// No.
    Off,
    /// Yes, those of packets of at least this many bytes; device memory wants all (0).
    From(u32),
}

/// What the answer says.
pub fn split(told: &[u8]) -> Split {
    let rings = rings_of(told);
    match rings.split {
        Some(1) => Split::Off,
        Some(2) => Split::From(rings.from.unwrap_or(0)),
        _ => Split::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_what_is_read() {
        for rings in [
            Rings {
                split: Some(2),
                from: Some(0),
            },
            Rings {
                split: Some(0),
                from: None,
            },
        ] {
            assert_eq!(rings_of(set_rings(3, rings).as_bytes()), rings);
        }
    }

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
