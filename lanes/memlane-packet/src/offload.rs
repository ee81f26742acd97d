//! What a frame leaves to a later station: its checksum, and its segmentation; and what two ends agree on about that.

use crate::layout::{EXTRA_GSO, ExtraGso};

/// What a frame says of itself beside its bytes (what a vnet header says to a TAP).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta {
    /// The transport checksum is not filled in; the receiver is to fill it in, or to pass that on.
    pub csum_blank: bool,
    /// The bytes were checked, or never left this machine: the receiver need not check.
    pub data_validated: bool,
    /// More than one segment: cut it up where it leaves for a wire.
    pub gso: Option<Gso>,
}

/// Segmentation that is still to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// What is to be cut.
    pub kind: GsoKind,
    /// Payload bytes of each segment, at most; not zero.
    pub size: u16,
}

/// `XEN_NETIF_GSO_TYPE_…`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4 = 1,
    /// TCP over IPv6.
    Tcp6 = 2,
}

/// Which offloads both ends have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offloads {
    /// `feature-gso-tcpv4`.
    pub gso4: bool,
    /// `feature-gso-tcpv6`.
    pub gso6: bool,
}

impl Offloads {
    /// All that there are.
    pub const ALL: Offloads = Offloads {
        gso4: true,
        gso6: true,
    };

    /// May a frame say this?
    pub fn allow(self, gso: Option<Gso>) -> bool {
        match gso {
            None => true,
            Some(gso) => {
                gso.size > 0
                    && match gso.kind {
                        GsoKind::Tcp4 => self.gso4,
                        GsoKind::Tcp6 => self.gso6,
                    }
            }
        }
    }

    /// What an extra slot says, or what is wrong with it.
    pub(crate) fn gso_of(self, extra: ExtraGso) -> Result<Option<Gso>, &'static str> {
        if extra.kind != EXTRA_GSO {
            return Err("extra info of a kind that was not agreed on");
        }
        let kind = match extra.gso {
            0 => return Ok(None),
            1 => GsoKind::Tcp4,
            2 => GsoKind::Tcp6,
            _ => return Err("segmentation of a kind that there is not"),
        };
        let gso = Some(Gso {
            kind,
            size: extra.size,
        });
        if !self.allow(gso) {
            return Err("segmentation that was not agreed on, or of no bytes");
        }
        Ok(gso)
    }
}

/// What a slot says of `gso`.
pub(crate) fn extra_of(gso: Gso) -> ExtraGso {
    ExtraGso {
        kind: EXTRA_GSO,
        flags: 0,
        size: gso.size,
        gso: gso.kind as u8,
        features: 0,
    }
}
