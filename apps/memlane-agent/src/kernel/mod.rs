//! What the kernel knows of another process's TCP sockets.
//!
//! A small BPF program runs for each descriptor of one process and writes out the numbers of those that are TCP sockets. It
//! changes nothing, takes no lock of the socket, and the process does not notice. It needs CAP_BPF and CAP_PERFMON in the
//! initial user namespace, and a kernel of 6.1 or newer with type information (BTF).

mod btf;
mod call;
mod program;

pub use btf::{Btf, BtfError};
pub use program::Record;

use core::fmt;
use program::{Offsets, RECORD};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::thread::CapabilitySet;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// Where the kernel shows its own type information.
pub const BTF_FILE: &str = "/sys/kernel/btf/vmlinux";
/// The iterator's function, by which a program says that it is one (kernel/bpf/task_iter.c).
const ITERATOR: &str = "bpf_iter_task_file";
/// The inode of the initial user namespace (`PROC_USER_INIT_INO`, include/linux/proc_ns.h).
pub const INITIAL_USER_NAMESPACE: u32 = 0xefff_fffd;
/// The inode of the initial pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u32 = 0xefff_fffc;
/// `TCP_ESTABLISHED` (include/net/tcp_states.h).
pub const ESTABLISHED: u8 = 1;
/// Records that are read at a time.
const AT_ONCE: usize = 64;

/// What keeps a process from loading a BPF program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forbidden {
    /// It has no `CAP_BPF` or no `CAP_PERFMON`.
    NoCapability,
    /// Its user namespace is not the initial one, in which the capabilities are asked for.
    UserNamespace,
    /// A filter of calls, or a security module.
    Filtered,
}

/// Why no sockets can be looked at.
#[derive(Debug)]
pub enum LookError {
    /// The kernel shows no type information.
    NoTypes(io::Error),
    /// Its type information lacks something.
    Types(BtfError),
    /// It does not let this process load the program, and why, as far as can be told.
    NotAllowed(Forbidden),
    /// It cannot limit the iterator to one process: it is older than Linux 6.1.
    TooOld,
    /// The iterator finds nothing from within a pid namespace of its own.
    OtherPids,
    /// It refuses the program.
    Refused(io::Error),
}

impl fmt::Display for LookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LookError::NoTypes(e) => write!(
                f,
                "{BTF_FILE} cannot be read: {e} (the kernel needs CONFIG_DEBUG_INFO_BTF)"
            ),
            LookError::Types(e) => write!(f, "{e}"),
            LookError::NotAllowed(why) => write!(f, "this process may not load a BPF program: {why}"),
            LookError::TooOld => f.write_str(
                "this kernel cannot look at the sockets of one process: Linux 6.1 or later is needed",
            ),
            LookError::OtherPids => f.write_str(
                "this process is in a pid namespace of its own, from which the kernel shows no other process's sockets: \
                 run the agent in the host's (--pid host)",
            ),
            LookError::Refused(e) => write!(f, "the kernel refuses the BPF program: {e}"),
        }
    }
}

impl std::error::Error for LookError {}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Forbidden::NoCapability => {
                "it lacks CAP_BPF or CAP_PERFMON (run it as root, or give a container --cap-add BPF --cap-add PERFMON)"
            }
            Forbidden::UserNamespace => {
                "it is in a user namespace of its own, and CAP_BPF counts only in the initial one (run it outside of rootless \
                 engines)"
            }
            Forbidden::Filtered => {
                "a filter of calls (seccomp) or a security module forbids bpf(2) (for a container: --security-opt \
                 seccomp=unconfined)"
            }
        })
    }
}

impl Forbidden {
    /// What keeps this process from it, by what /proc and /sys tell.
    fn here() -> Forbidden {
        let needed = CapabilitySet::BPF | CapabilitySet::PERFMON;
        // CAP_SYS_ADMIN stands for both (bpf_capable and perfmon_capable, include/linux/capability.h).
        let enough =
            |has: CapabilitySet| has.contains(needed) || has.contains(CapabilitySet::SYS_ADMIN);
        if !rustix::thread::capabilities(None).is_ok_and(|c| enough(c.effective)) {
            return Forbidden::NoCapability;
        }
        match namespace("user") {
            Some(INITIAL_USER_NAMESPACE) | None => Forbidden::Filtered,
            Some(_) => Forbidden::UserNamespace,
        }
    }
}

/// The inode of this process's namespace of a kind.
fn namespace(kind: &str) -> Option<u32> {
    let ino = std::fs::metadata(format!("/proc/self/ns/{kind}"))
        .ok()?
        .ino();
    u32::try_from(ino).ok()
}

/// Looks at other processes' sockets.
pub struct Looker {
    program: OwnedFd,
    window: OwnedFd,
}

impl Looker {
    /// Loads the program.
    ///
    /// # Errors
    /// What keeps the kernel from it.
    pub fn open() -> Result<Looker, LookError> {
        let types = std::fs::read(BTF_FILE).map_err(LookError::NoTypes)?;
        let types = Btf::parse(types).map_err(LookError::Types)?;
        let offsets = Offsets::find(&types).map_err(LookError::Types)?;
        let iterator = types.function(ITERATOR).map_err(LookError::Types)?;
        let window = call::make_window().map_err(refused)?;
        let code = program::assemble(&offsets, rustix::fd::AsRawFd::as_raw_fd(&window));
        let program = call::load_program(&code, iterator).map_err(refused)?;
        let looker = Looker { program, window };
        looker.try_it()?;
        if namespace("pid").is_some_and(|ino| ino != INITIAL_PID_NAMESPACE) {
            return Err(LookError::OtherPids);
        }
        Ok(looker)
    }

    /// Looks at this process: a kernel that cannot limit the iterator to one process is noticed now.
    fn try_it(&self) -> Result<(), LookError> {
        let own = rustix::process::getpid();
        let own = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
        let looked = own
            .map_err(Into::into)
            .and_then(|own| self.look(own.as_fd(), (0, 0), drop));
        looked.map_err(|e| match e.raw_os_error() {
            Some(libc::EINVAL | libc::E2BIG | libc::ENOSYS) => LookError::TooOld,
            _ => refused(e),
        })
    }

    /// Hands `each` what is to be seen of the TCP sockets with descriptors from `from` to `to`, of the process that a
    /// pidfd names.
    ///
    /// # Errors
    /// The kernel's: `ESRCH` if the process is gone.
    pub fn look(
        &self,
        process: BorrowedFd<'_>,
        (from, to): (i32, i32),
        mut each: impl FnMut(Record),
    ) -> io::Result<()> {
        let window = [from, to].map(|n| u32::try_from(n).unwrap_or(0));
        call::set_window(self.window.as_fd(), window)?;
        let link = call::link(self.program.as_fd(), process)?;
        let run = call::iterate(link.as_fd())?;
        let mut bytes = [0u8; AT_ONCE * RECORD];
        let mut have = 0;
        loop {
            let n = rustix::io::read(&run, &mut bytes[have..])?;
            if n == 0 {
                return Ok(());
            }
            have += n;
            let mut rest = &bytes[..have];
            while let Some((record, behind)) = Record::from_bytes(rest) {
                each(record);
                rest = behind;
            }
            let (left, whole) = (rest.len(), have - rest.len());
            bytes.copy_within(whole..have, 0);
            have = left;
        }
    }
}

fn refused(e: io::Error) -> LookError {
    match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => LookError::NotAllowed(Forbidden::here()),
        _ => LookError::Refused(e),
    }
}
