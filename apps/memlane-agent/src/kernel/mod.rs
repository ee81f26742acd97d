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
use std::io;

/// Where the kernel shows its own type information.
pub const BTF_FILE: &str = "/sys/kernel/btf/vmlinux";
/// The iterator's function, by which a program says that it is one (kernel/bpf/task_iter.c).
const ITERATOR: &str = "bpf_iter_task_file";
/// The inode of the initial user namespace (`PROC_USER_INIT_INO`, include/linux/proc_ns.h).
pub const INITIAL_USER_NAMESPACE: u32 = 0xefff_fffd;
/// `TCP_ESTABLISHED` (include/net/tcp_states.h).
pub const ESTABLISHED: u8 = 1;
/// Records that are read at a time.
const AT_ONCE: usize = 64;

/// Why no sockets can be looked at.
#[derive(Debug)]
pub enum LookError {
    /// The kernel shows no type information.
    NoTypes(io::Error),
    /// Its type information lacks something.
    Types(BtfError),
    /// It does not let this process load the program: CAP_BPF and CAP_PERFMON in the initial user namespace are needed.
    NotAllowed,
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
            LookError::NotAllowed => write!(
                f,
                "the kernel does not let this process load a BPF program (CAP_BPF and CAP_PERFMON are needed, outside of \
                 containers, and no lockdown)"
            ),
            LookError::Refused(e) => write!(f, "the kernel refuses the BPF program: {e}"),
        }
    }
}

impl std::error::Error for LookError {}

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
        Ok(Looker { program, window })
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
        Some(libc::EPERM | libc::EACCES) => LookError::NotAllowed,
        _ => LookError::Refused(e),
    }
}
