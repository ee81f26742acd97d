//! What the socket lane needs: each thing is tried as the library uses it.

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use memlane_core::region::Region;
use memlane_socket::config::DEFAULT_DOMAIN;
use memlane_socket::protocol::agent::SOCKET;
use memlane_sys::Errno;
use memlane_sys::diag;
use memlane_sys::sock::{self, Tuple};

use super::finding::{Finding, Lack, lack, said};
use super::host;
use crate::agent;
use crate::cli::device;
use crate::run;

/// The oldest kernel that the lane was made for.
const OLDEST: (u32, u32) = (6, 1);

pub(super) fn look() -> Vec<Finding> {
    let mut found = vec![
        Finding::new(
            "kernel",
            "a kernel that counts what a stream has carried",
            kernel(),
        ),
        Finding::new("library", "what programs are run with", library()),
        Finding::new("switch", "memlane is not switched off here", switch()),
        Finding::new(
            "memfd",
            "memory that travels as a descriptor, and keeps its size",
            memory(),
        ),
        Finding::new(
            "unix-sockets",
            "abstract names, where both ends meet",
            mailbox(),
        ),
        Finding::new(
            "proc",
            "descriptors below /proc: a handle that proves whose socket it is",
            proc(),
        ),
    ];
    match Pair::new() {
        Err(lack) => found.push(Finding::new("loopback", "TCP within this host", Err(lack))),
        Ok(pair) => {
            found.push(Finding::new("loopback", "TCP within this host", Ok(None)));
            found.push(Finding::new(
                "tcp-info",
                "the kernel's own counts of a stream",
                pair.counts(),
            ));
            found.push(Finding::new(
                "sock-diag",
                "the kernel's word on who holds the other end",
                pair.other_end(),
            ));
        }
    }
    found.push(
        Finding::new(
            "agent",
            "an introduction to programs of other network namespaces",
            introductions(),
        )
        .optional(),
    );
    found.push(
        Finding::new(
            "machines",
            "memory that virtual machines share, for programs of two machines",
            machines(),
        )
        .optional(),
    );
    found.push(Finding::new("cpus", "two CPUs: both ends at once", cpus()).optional());
    found
}

type Found = Result<Option<String>, Lack>;

fn kernel() -> Found {
    let release = host::kernel()
        .ok_or_else(|| said("/proc/sys/kernel/osrelease cannot be read: is /proc mounted?"))?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= OLDEST => Ok(Some(release)),
        _ => Err(lack(
            format!("Linux {release} is older than {}.{}", OLDEST.0, OLDEST.1),
            "everything was tested from 6.1 on; connections may stay on TCP",
        )),
    }
}

fn library() -> Found {
    match run::library::find(std::env::var_os("MEMLANE_PRELOAD")) {
        Ok(path) => Ok(Some(path.display().to_string())),
        Err(error) => Err(said(format!("{error:#}"))),
    }
}

fn switch() -> Found {
    match run::disabled() {
        false => Ok(None),
        true => Err(lack("MEMLANE_DISABLE is set", "unset MEMLANE_DISABLE")),
    }
}

fn memory() -> Found {
    let made = Region::create(c"memlane-info", 4096, false);
    made.map(|_| None).map_err(|errno| {
        lack(
            format!("no sealed memfd: {}", text(errno)),
            "a seccomp profile may forbid memfd_create; allow it",
        )
    })
}

fn mailbox() -> Found {
    let made = sock::unix_datagram(None);
    made.map(|_| None).map_err(|errno| {
        lack(
            format!("no abstract unix socket: {}", text(errno)),
            "a seccomp profile or a security module may forbid them; allow AF_UNIX",
        )
    })
}

fn proc() -> Found {
    match fs::read_dir("/proc/self/fd") {
        Ok(_) => Ok(None),
        Err(error) => Err(lack(
            format!("/proc/self/fd: {error}"),
            "mount /proc where the programs run",
        )),
    }
}

/// The agent of the domain that a program here would ask.
fn introductions() -> Found {
    let domain = std::env::var("MEMLANE_DOMAIN").unwrap_or_else(|_| DEFAULT_DOMAIN.to_owned());
    if domain == "off" {
        return Err(lack("MEMLANE_DOMAIN is off", "unset MEMLANE_DOMAIN"));
    }
    let path = format!("{domain}/{SOCKET}");
    match sock::unix_seqpacket_to(path.as_bytes()) {
        Ok(_) => Ok(Some(served(domain))),
        Err(errno @ Errno(libc::ENOENT | libc::ECONNREFUSED)) => Err(lack(
            format!("no agent listens at {path}: {}", text(errno)),
            "on the host: memlane agent; in a container: mount that directory (memlane agent install)",
        )),
        Err(errno @ Errno(libc::EACCES | libc::EPERM)) => Err(lack(
            format!("{path}: {}", text(errno)),
            "a security module forbids unix sockets (AppArmor's ABI 4, SELinux): its policy must allow this one",
        )),
        Err(errno) => Err(said(format!("{path}: {}", text(errno)))),
    }
}

/// The domain, and what its agent has done if it may be asked.
fn served(domain: String) -> String {
    match agent::of_domain(Path::new(&domain)) {
        Some(told) => format!(
            "{domain}; {} processes, {} connections introduced of {} questions",
            told.counts.processes, told.counts.met, told.counts.questions
        ),
        None => domain,
    }
}

/// The memory that this machine shares with others, as the agent tells of it or as the machine shows it.
fn machines() -> Found {
    let domain = std::env::var("MEMLANE_DOMAIN").unwrap_or_else(|_| DEFAULT_DOMAIN.to_owned());
    let told = agent::of_domain(Path::new(&domain));
    if let Some(told) = told
        && let (Some(region), Some(tally)) = (told.region, told.across)
    {
        let kind = region.uncached.map_or("cached".to_owned(), device::slow);
        return Ok(Some(format!(
            "{} of {domain}, {}; {} other machines, {} of {} extents used here; {}",
            region.path.display(),
            kind,
            tally.machines,
            tally.extents,
            tally.extents_of_region,
            device::TRUST
        )));
    }
    match memlane_agent::across::region::find() {
        Ok(path) => Err(lack(
            format!(
                "no agent uses {}, which other machines have, too",
                path.display()
            ),
            "memlane agent --device ivshmem:auto",
        )),
        Err(why) => Err(lack(
            why.to_string(),
            "in a guest: an ivshmem-plain device; on its host: memlane agent --device ivshmem:FILE",
        )),
    }
}

fn cpus() -> Found {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => Err(lack(
            "one CPU: nobody spins, and each exchange costs a switch of processes",
            "give the programs two CPUs (taskset, cgroup)",
        )),
        n => Ok(Some(n.to_string())),
    }
}

/// A connection with both ends here.
struct Pair {
    one: TcpStream,
    other: TcpStream,
}

impl Pair {
    fn new() -> Result<Pair, Lack> {
        let listener = TcpListener::bind("127.0.0.1:0");
        let made = listener.and_then(|listener| {
            let one = TcpStream::connect(listener.local_addr()?)?;
            let (other, _) = listener.accept()?;
            Ok(Pair { one, other })
        });
        made.map_err(|error| {
            lack(
                format!("no connection to 127.0.0.1: {error}"),
                "ip link set lo up, in this network namespace",
            )
        })
    }

    fn counts(&self) -> Found {
        let counts = sock::tcp_counts(self.one.as_raw_fd());
        counts.map(|_| None).map_err(|errno| {
            lack(
                format!("TCP_INFO: {}", text(errno)),
                "the kernel is too old, or a sandbox answers in its place (gVisor)",
            )
        })
    }

    /// The other end is looked up as the library does it, and must be the socket that it is.
    fn other_end(&self) -> Found {
        let to_do =
            "CONFIG_INET_DIAG and CONFIG_INET_TCP_DIAG (modprobe inet_diag tcp_diag, as root)";
        let fd = self.one.as_raw_fd();
        let ends = (sock::local_addr(fd), sock::remote_addr(fd));
        let (Ok(local), Ok(remote)) = ends else {
            return Err(lack("a socket's addresses cannot be asked for", to_do));
        };
        let tuple = Tuple { local, remote }.mirrored();
        let found = diag::lookup_tcp(&tuple, tuple.local.is_v4());
        let found = found.map_err(|errno| lack(format!("sock_diag: {}", text(errno)), to_do))?;
        match sock::socket_cookie(self.other.as_raw_fd()) {
            Ok(cookie) if cookie == found.cookie => Ok(None),
            _ => Err(lack(
                "sock_diag names another socket than the one that is there",
                to_do,
            )),
        }
    }
}

fn text(errno: memlane_sys::Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
