//! The kernel's SMC with its loopback device: programs get its sockets from a library (`bench/peers/smc`); this machine
//! must have a name, and the kernel tells what SMC has carried, both by generic netlink.
//!
//! Numbers: the kernel's `include/uapi/linux/smc.h`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use memlane_netlink::{Attributes, Family, find};

use super::lane::Usage;

/// `SMC_GENL_FAMILY_NAME`, `SMC_GENL_FAMILY_VERSION`.
const FAMILY: (&str, u8) = ("SMC_GEN_NETLINK", 1);
/// `SMC_NETLINK_GET_STATS`, `SMC_NETLINK_ADD_UEID`.
const GET_STATS: u8 = 7;
const ADD_UEID: u8 = 10;
/// `SMC_NLA_EID_TABLE_ENTRY`.
const ENTRY: u16 = 1;
/// `SMC_GEN_STATS`, in it `SMC_NLA_STATS_SMCD_TECH`, in it `SMC_NLA_STATS_T_TX_BYTES`.
const STATS: u16 = 7;
const SMCD: u16 = 1;
const SENT: u16 = 17;
/// Capitals, digits, points and hyphens, filled up to 32 with spaces.
const NAME: &str = "MEMLANE-BENCH                   ";

/// What went another way than by SMC, on a machine where nobody else uses the loopback interface.
const ELSEWHERE: &str = "/sys/class/net/lo/statistics/tx_bytes";

/// A machine whose programs can have SMC sockets.
#[derive(Debug)]
pub(crate) struct Smc {
    library: PathBuf,
}

impl Smc {
    /// Gives this machine a name (UEID): without one, SMC-D's second version, and so the loopback device, is not used on
    /// x86.
    ///
    /// # Errors
    /// The module is not loaded, or this is not root.
    pub(crate) fn new(library: PathBuf) -> anyhow::Result<Smc> {
        let name = Attributes::default().text(ENTRY, NAME);
        let told = family()?.ask(ADD_UEID, &name);
        told.context("SMC takes no name")?;
        Ok(Smc { library })
    }

    /// Makes a program have SMC sockets where it asks for TCP's.
    pub(crate) fn gives_sockets(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
    }

    /// Bytes of all connections until now, as far as the kernel tells.
    pub(crate) fn usage() -> Usage {
        let elsewhere = std::fs::read_to_string(ELSEWHERE).unwrap_or_default();
        let sent = sent();
        Usage {
            pages: usize::from(sent.is_ok()),
            ring: sent.unwrap_or_default(),
            tcp: elsewhere.trim().parse().unwrap_or_default(),
            reasons: BTreeMap::new(),
        }
    }
}

fn family() -> anyhow::Result<Family> {
    let (name, version) = FAMILY;
    Family::open(name, version).context("no SMC in this kernel")
}

/// Bytes that all sockets of this network namespace have sent over SMC-D until now.
fn sent() -> anyhow::Result<u64> {
    let told = family()?.list(GET_STATS, &Attributes::default());
    let told = told.context("SMC tells no statistics")?;
    let mut parts = told.iter().map(Vec::as_slice);
    parts.find_map(sent_in).context("SMC tells no bytes")
}

fn sent_in(stats: &[u8]) -> Option<u64> {
    let smcd = find(find(stats, STATS)?, SMCD)?;
    Some(u64::from_ne_bytes(find(smcd, SENT)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_as_many_characters_as_the_kernel_wants() {
        assert_eq!(NAME.len(), 32);
    }

    #[test]
    fn bytes_are_found_where_the_kernel_puts_them() {
        let tech = Attributes::default().u64(16, 5).u64(SENT, 7);
        let stats = Attributes::default().nested(SMCD, &tech).nested(2, &tech);
        let told = Attributes::default().nested(STATS, &stats);
        assert_eq!(sent_in(told.as_bytes()), Some(7));
        assert_eq!(
            sent_in(Attributes::default().u32(STATS, 1).as_bytes()),
            None
        );
    }
}
