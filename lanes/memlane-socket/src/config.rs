//! Settings, from the `MEMLANE_*` variables that `memlane run` sets.
//!
//! A wrong value falls back to its default here: the launcher is where a person
//! is told of it.

use core::ffi::{CStr, c_char};
use memlane_core::layout::{RING_MIN, chunk_len, ring_size_ok};
use memlane_core::peer::Policy;
use memlane_sys::proc;

/// Default ring: 4 MiB, where bulk streams are fastest (decision 0020). A stream uses a window of it that grows with its
/// need.
pub const RING_DEFAULT: u32 = 4 << 20;
/// Default ring where the process's limits leave no room for a larger one, and of connections beyond the first 64 with
/// the same peer process.
pub const RING_OF_MANY: u32 = 256 * 1024;
/// The default takes at most this part of the process's limit on address space for one chunk of rings.
const RING_ADDRESSES_OF: u64 = 16;

/// Default longest spin: twice what a cross-CPU wake-up costs (~45 µs where
/// this was measured), so that spinning never costs more than it can save.
pub const SPIN_DEFAULT_US: u32 = 100;

/// The directory of the agent that is asked unless another is named.
pub const DEFAULT_DOMAIN: &str = "/run/memlane/default";

/// When connections are upgraded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Upgrade {
    /// Never.
    Off = 0,
    /// After 8 exchanges or 64 KiB.
    Auto = 1,
    /// At once.
    Eager = 2,
}

/// `--upgrade auto`: calls (8 exchanges of one send and one receive each).
pub const AUTO_OPS: u64 = 16;
/// `--upgrade auto`: or bytes.
pub const AUTO_BYTES: u64 = 64 * 1024;
/// … on the accepting side, which must be ready before the other side proposes.
pub const AUTO_OPS_ACCEPTING: u64 = 8;
/// `--upgrade eager`: calls.
pub const EAGER_OPS: u64 = 1;

/// How bytes get into the receiver's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mode {
    /// The sender writes them there.
    NoCopy = 0,
    /// The sender puts them into its own buffer, and a device takes them from there.
    Copy = 1,
}

/// Longest EID, as SMC's UEID.
pub const EID_LEN: usize = 32;
/// Most EIDs, as SMC.
pub const EIDS: usize = 8;

/// All settings.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// `MEMLANE_DISABLE`.
    pub disabled: bool,
    /// Ring bytes per direction.
    pub ring: u32,
    /// Has the user not set `ring`?
    pub ring_is_default: bool,
    /// Longest spin in µs; 0 = never.
    pub spin_us: u32,
    /// When to upgrade.
    pub upgrade: Upgrade,
    /// How bytes get into the receiver's memory.
    pub mode: Mode,
    /// Who may be a peer.
    pub peer: Policy,
    /// EIDs, space padded.
    pub eids: [[u8; EID_LEN]; EIDS],
    /// How many.
    pub eid_count: usize,
    /// Print a summary at exit.
    pub stats_on_exit: bool,
    /// Directory of the agent that introduces this process to processes of other network namespaces.
    pub domain: Domain,
}

/// The path of a directory; empty = none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domain {
    path: [u8; DOMAIN_LEN],
    len: usize,
}

/// Longest path of a domain's directory: with the name of the agent's socket, it fits into a socket's address.
pub const DOMAIN_LEN: usize = 96;

impl Domain {
    /// No directory: this process asks no agent.
    pub const OFF: Domain = Domain {
        path: [0; DOMAIN_LEN],
        len: 0,
    };

    /// A directory by its absolute path; `OFF` if that is too long or not absolute.
    pub const fn at(path: &[u8]) -> Domain {
        let mut domain = Domain::OFF;
        if path.len() > DOMAIN_LEN || path.is_empty() || path[0] != b'/' {
            return domain;
        }
        while domain.len < path.len() {
            domain.path[domain.len] = path[domain.len];
            domain.len += 1;
        }
        domain
    }

    /// The path.
    pub fn path(&self) -> &[u8] {
        &self.path[..self.len]
    }
}

impl Config {
    /// The defaults.
    pub const DEFAULT: Config = Config {
        disabled: false,
        ring: RING_DEFAULT,
        ring_is_default: true,
        spin_us: SPIN_DEFAULT_US,
        upgrade: Upgrade::Auto,
        mode: Mode::NoCopy,
        peer: Policy::Any,
        eids: [[b' '; EID_LEN]; EIDS],
        eid_count: 0,
        stats_on_exit: false,
        domain: Domain::at(DEFAULT_DOMAIN.as_bytes()),
    };

    /// The call of a connection after which its handshake takes its first step; `u64::MAX` = none does.
    pub fn first_step(&self, accepting: bool) -> u64 {
        match self.upgrade {
            Upgrade::Off => u64::MAX,
            Upgrade::Auto if accepting => AUTO_OPS_ACCEPTING,
            Upgrade::Auto => AUTO_OPS,
            Upgrade::Eager => EAGER_OPS,
        }
    }

    /// Reads the environment through `get` (`getenv`).
    pub fn read<'a>(get: impl Fn(&CStr) -> Option<&'a [u8]>) -> Config {
        let mut c = Config::DEFAULT;
        c.ring = default_ring(proc::limit);
        c.disabled = get(c"MEMLANE_DISABLE").is_some_and(|v| !v.is_empty() && v != b"0");
        c.stats_on_exit = get(c"MEMLANE_STATS_ON_EXIT").is_some_and(|v| v == b"1");
        if let Some(n) = get(c"MEMLANE_RING").and_then(decimal)
            && usize::try_from(n).is_ok_and(ring_size_ok)
            && n >= RING_MIN as u64
        {
            c.ring = u32::try_from(n).unwrap_or(RING_DEFAULT);
            c.ring_is_default = false;
        }
        match get(c"MEMLANE_SPIN") {
            Some(b"off") => c.spin_us = 0,
            Some(v) => {
                c.spin_us = decimal(v)
                    .and_then(|n| u32::try_from(n.min(1_000_000)).ok())
                    .unwrap_or(c.spin_us)
            }
            None => {}
        }
        match get(c"MEMLANE_UPGRADE") {
            Some(b"off") => c.upgrade = Upgrade::Off,
            Some(b"eager") => c.upgrade = Upgrade::Eager,
            _ => {}
        }
        if get(c"MEMLANE_MODE") == Some(b"copy") {
            c.mode = Mode::Copy;
        }
        if get(c"MEMLANE_PEER") == Some(b"same-uid") {
            c.peer = Policy::SameUid;
        }
        match get(c"MEMLANE_DOMAIN") {
            Some(b"off") => c.domain = Domain::OFF,
            Some(path) => c.domain = Domain::at(path),
            None => {}
        }
        if let Some(list) = get(c"MEMLANE_EID") {
            c.add_eids(list);
        }
        c
    }

    fn add_eids(&mut self, list: &[u8]) {
        for name in list.split(|&b| b == b',') {
            if self.eid_count == EIDS || name.is_empty() || name.len() > EID_LEN {
                continue;
            }
            for (dst, src) in self.eids[self.eid_count].iter_mut().zip(name) {
                *dst = src.to_ascii_uppercase();
            }
            self.eid_count += 1;
        }
    }
}

/// The default ring under the process's limits, which `limit` returns: the largest whose chunk may be a file and leaves
/// most of the address space to the program.
fn default_ring(limit: impl Fn(libc::__rlimit_resource_t) -> u64) -> u32 {
    let files = limit(libc::RLIMIT_FSIZE);
    let addresses = limit(libc::RLIMIT_AS) / RING_ADDRESSES_OF;
    let mut ring = RING_DEFAULT;
    while ring > RING_OF_MANY && chunk_len(ring as usize) as u64 > files.min(addresses) {
        ring /= 2;
    }
    ring
}

fn decimal(v: &[u8]) -> Option<u64> {
    if v.is_empty() || v.len() > 12 {
        return None;
    }
    let mut n = 0u64;
    for &b in v {
        if !b.is_ascii_digit() {
            return None;
        }
        n = n * 10 + u64::from(b - b'0');
    }
    Some(n)
}

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
}

/// `getenv`, as bytes.
pub fn env(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: `name` is NUL-terminated; the answer is NUL-terminated and lives
    // as long as the program leaves its environment alone (we read it at start).
    unsafe {
        let v = getenv(name.as_ptr());
        if v.is_null() {
            None
        } else {
            Some(CStr::from_ptr(v).to_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_ring_leaves_room_under_the_process_s_limits() {
        let files = |most: u64| {
            default_ring(move |what| {
                if what == libc::RLIMIT_FSIZE {
                    most
                } else {
                    u64::MAX
                }
            })
        };
        let addresses = |most: u64| {
            default_ring(move |what| {
                if what == libc::RLIMIT_AS {
                    most
                } else {
                    u64::MAX
                }
            })
        };
        assert_eq!(files(u64::MAX), RING_DEFAULT);
        assert_eq!(files(100 << 20), 1 << 20);
        assert_eq!(files(0), RING_OF_MANY);
        assert_eq!(addresses(8 << 30), RING_DEFAULT);
        assert_eq!(addresses(1 << 30), 512 * 1024);
    }

    #[test]
    fn wrong_values_fall_back_to_defaults_and_right_ones_count() {
        let wrong = Config::read(|n| match n.to_bytes() {
            b"MEMLANE_RING" => Some(b"100000"),
            b"MEMLANE_SPIN" => Some(b"fast"),
            b"MEMLANE_UPGRADE" => Some(b"always"),
            b"MEMLANE_MODE" => Some(b"COPY"),
            b"MEMLANE_DOMAIN" => Some(b"relative/path"),
            _ => None,
        });
        assert_eq!(
            (wrong.ring, wrong.spin_us, wrong.upgrade, wrong.mode),
            (RING_DEFAULT, SPIN_DEFAULT_US, Upgrade::Auto, Mode::NoCopy)
        );
        assert_eq!(wrong.domain, Domain::OFF);
        assert_eq!(Config::DEFAULT.domain.path(), DEFAULT_DOMAIN.as_bytes());
        let right = Config::read(|n| match n.to_bytes() {
            b"MEMLANE_RING" => Some(b"1048576"),
            b"MEMLANE_SPIN" => Some(b"20"),
            b"MEMLANE_UPGRADE" => Some(b"eager"),
            b"MEMLANE_PEER" => Some(b"same-uid"),
            b"MEMLANE_MODE" => Some(b"copy"),
            b"MEMLANE_DOMAIN" => Some(b"/run/memlane/shop"),
            b"MEMLANE_EID" => Some(b"blue,,TEAM-2"),
            _ => None,
        });
        assert_eq!(
            (right.ring, right.spin_us, right.upgrade),
            (1 << 20, 20, Upgrade::Eager)
        );
        assert_eq!(
            (right.peer, right.eid_count, right.mode),
            (Policy::SameUid, 2, Mode::Copy)
        );
        assert_eq!(&right.eids[1][..7], b"TEAM-2 ");
        assert_eq!(right.domain.path(), b"/run/memlane/shop");
    }
}
