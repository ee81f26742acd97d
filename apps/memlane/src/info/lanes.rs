//! What the other lanes need. Their ways are many, and each is there or not by itself.

use std::fs::{self, File};
use std::path::Path;

use memlane_block::store::{Engine, StoreKind};
use memlane_block_frontends::{fuse, loopdev, nbd_kernel, ublk};
use memlane_core::region::Region;
use memlane_devmem::probe;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{CapabilitySet, capabilities};

use super::finding::{Finding, Lack, lack, said};

type Found = Result<Option<String>, Lack>;

pub(super) fn packets() -> Vec<Finding> {
    vec![
        Finding::new(
            "memory",
            "frames by reference between two processes: front, back, gen, sink",
            memory(),
        ),
        Finding::new("tap", "TAP devices of the kernel: tap:NAME", tap()).optional(),
        Finding::new(
            "afpacket",
            "interfaces of the kernel: afpacket:NAME",
            afpacket(),
        )
        .optional(),
        Finding::new(
            "namespaces",
            "network namespaces of one's own, to be joined",
            namespaces(),
        )
        .optional(),
        Finding::new("memif", "VPP and DPDK: memif:SOCKET", unix_sockets()).optional(),
        Finding::new(
            "vhost-user",
            "virtual machines: vhost:SOCKET",
            unix_sockets(),
        )
        .optional(),
        Finding::new("kvm", "virtual machines that are not slow", kvm()).optional(),
    ]
}

pub(super) fn devmem() -> Vec<Finding> {
    let kinds = probe::memory()
        .into_iter()
        .map(|kind| from_probe(kind, "memory"));
    let ways = probe::paths(None)
        .into_iter()
        .map(|way| from_probe(way, "path"));
    let mut all: Vec<Finding> = kinds.chain(ways).collect();
    // Without memory there is nothing; every other kind and way is one more.
    if let Some(memfd) = all.first_mut() {
        memfd.optional = false;
    }
    all
}

fn from_probe(found: probe::Finding, kind: &str) -> Finding {
    Finding {
        here: found.is_here(),
        name: found.name,
        what: format!("{kind}: {}", found.what),
        optional: true,
        detail: None,
        lacks: found.lacks.into_iter().map(said).collect(),
    }
}

pub(super) fn blocks() -> Vec<Finding> {
    vec![
        Finding::new(
            "serve",
            "volumes for others, over TCP (with TLS) and within this host",
            memory(),
        ),
        Finding::new(
            "io-uring",
            "files straight from and into chunks; threads do it otherwise",
            ring(),
        )
        .optional(),
        Finding::new(
            "nbd",
            "an export for programs that speak NBD: --as nbd:…",
            unix_sockets(),
        )
        .optional(),
        Finding::new(
            "fuse",
            "a volume as a file: --as file:PATH",
            fuse::probe().map(|()| None).map_err(said),
        )
        .optional(),
        Finding::new(
            "loop",
            "a block device over that file",
            loopdev::probe().map(|()| None).map_err(said),
        )
        .optional(),
        Finding::new(
            "nbd-kernel",
            "a block device of the kernel's nbd driver",
            nbd_kernel::probe().map(|()| None).map_err(said),
        )
        .optional(),
        Finding::new(
            "ublk",
            "a block device of the kernel's ublk driver",
            ublk::probe().map(|()| None).map_err(said),
        )
        .optional(),
        Finding::new("vhost-user", "a virtual machine's disk", unix_sockets()).optional(),
    ]
}

fn memory() -> Found {
    let made = Region::create(c"memlane-info", 4096, false);
    made.map(|_| None).map_err(|errno| {
        let error = std::io::Error::from_raw_os_error(errno.0);
        lack(
            format!("no sealed memfd: {error}"),
            "a seccomp profile may forbid memfd_create; allow it",
        )
    })
}

fn unix_sockets() -> Found {
    let made = socket(AddressFamily::UNIX, SocketType::STREAM, None);
    made.map(|_| None).map_err(|errno| {
        lack(
            format!("no unix socket: {errno}"),
            "a seccomp profile may forbid AF_UNIX; allow it",
        )
    })
}

fn may(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

fn tap() -> Found {
    let opened = File::options().read(true).write(true).open("/dev/net/tun");
    opened.map_err(|error| {
        lack(
            format!("/dev/net/tun: {error}"),
            "modprobe tun; in a container, --device /dev/net/tun",
        )
    })?;
    match may(CapabilitySet::NET_ADMIN) {
        true => Ok(None),
        false => Err(lack(
            "CAP_NET_ADMIN is missing: only devices that belong to this user can be opened",
            "as root: ip tuntap add NAME mode tap user USER",
        )),
    }
}

fn afpacket() -> Found {
    let made = socket(AddressFamily::PACKET, SocketType::RAW, None);
    made.map(|_| None).map_err(|errno| {
        lack(
            format!("no packet socket: {errno}"),
            "CAP_NET_RAW (as root: setcap cap_net_raw+ep), CONFIG_PACKET",
        )
    })
}

fn namespaces() -> Found {
    if !fs::exists("/proc/self/ns/net").unwrap_or(false) {
        return Err(said(
            "this kernel has no network namespaces (CONFIG_NET_NS)",
        ));
    }
    if may(CapabilitySet::SYS_ADMIN) {
        return Ok(None);
    }
    let read = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let forbidden = read("/proc/sys/kernel/unprivileged_userns_clone") == Some(0)
        || read("/proc/sys/user/max_user_namespaces") == Some(0)
        || read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1);
    match forbidden {
        false => Ok(Some("in a user namespace".into())),
        true => Err(lack(
            "CAP_SYS_ADMIN is missing, and user namespaces are not permitted",
            "as root: ip netns add NAME",
        )),
    }
}

fn kvm() -> Found {
    let at = Path::new("/dev/kvm");
    let opened = File::options().read(true).write(true).open(at);
    opened.map(|_| None).map_err(|error| {
        lack(
            format!("{}: {error}", at.display()),
            "modprobe kvm_intel or kvm_amd; be in the group kvm",
        )
    })
}

fn ring() -> Found {
    let made = Engine::new(StoreKind::Ring);
    made.map(|_| None).map_err(|error| {
        lack(
            format!("io_uring: {error}"),
            "kernel.io_uring_disabled=0; a container's seccomp profile often forbids it",
        )
    })
}
