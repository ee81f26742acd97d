//! Why an end ends, and why one could not be opened.

use crate::memif::MemifError;
use core::fmt;
use memlane_packet::{AttachError, Detach};
use memlane_sys::Errno;

/// Why an end gives and takes no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndError {
    /// The link, or what is like one (a loan, memif, vhost-user): another attach may mend it.
    Detached(Detach),
    /// The kernel refuses: the interface is gone, the disk is full.
    Device(Errno),
    /// What lies in a file, or what a peer says, is not what it must be.
    Malformed(&'static str),
    /// Everything that there was to receive has come.
    Finished,
}

impl fmt::Display for EndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndError::Detached(why) => write!(f, "{why}"),
            EndError::Device(Errno(19)) => f.write_str(
                "the interface is gone (errno 19): start this command again when it is back",
            ),
            EndError::Device(errno) => write!(f, "device: {errno}"),
            EndError::Malformed(what) => f.write_str(what),
            EndError::Finished => f.write_str("finished"),
        }
    }
}

impl core::error::Error for EndError {}

impl From<Detach> for EndError {
    fn from(why: Detach) -> EndError {
        EndError::Detached(why)
    }
}

impl From<rustix::io::Errno> for EndError {
    fn from(errno: rustix::io::Errno) -> EndError {
        EndError::Device(Errno(errno.raw_os_error()))
    }
}

/// Why an end that another process must open with us (a loan, memif, vhost-user) was not opened.
#[derive(Debug)]
pub enum OpenError {
    /// The socket, the descriptors, the memory or the settings: all that a link of the lane can fail with too.
    Attach(AttachError),
    /// The memif handshake failed.
    Memif(MemifError),
    /// Nobody lends a device there, or not to us.
    Loan(LoanError),
    /// The machine monitor broke the vhost-user protocol.
    VhostUser(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Attach(error) => write!(f, "{error}"),
            OpenError::Memif(error) => write!(f, "memif: {error}"),
            OpenError::Loan(error) => write!(f, "{error}"),
            OpenError::VhostUser(what) => write!(f, "vhost-user: {what}"),
        }
    }
}

impl core::error::Error for OpenError {}

impl From<AttachError> for OpenError {
    fn from(error: AttachError) -> Self {
        OpenError::Attach(error)
    }
}

impl From<LoanError> for OpenError {
    fn from(error: LoanError) -> Self {
        OpenError::Loan(error)
    }
}

impl From<MemifError> for OpenError {
    fn from(error: MemifError) -> Self {
        OpenError::Memif(error)
    }
}

/// Why whoever listens there lends no device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoanError {
    /// It says something else than lenders do.
    NoLender,
    /// It speaks another version of the protocol.
    Version {
        /// The lender's.
        theirs: u16,
        /// Ours.
        ours: u16,
    },
    /// Its message is not valid.
    Malformed,
    /// Another process has the device.
    Taken,
    /// The device has this many queues.
    Queues(u16),
    /// What it handed over cannot be used.
    Unusable(&'static str),
}

impl fmt::Display for LoanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoanError::NoLender => f.write_str(
                "no lender of a device listens there: use the socket of memlane net lend",
            ),
            LoanError::Version { theirs, ours } => write!(
                f,
                "version {theirs} of the loan protocol, where {ours} is spoken here: update the older side"
            ),
            LoanError::Malformed => f.write_str("an invalid message"),
            LoanError::Taken => f.write_str("another process has borrowed the device"),
            LoanError::Queues(queues) => write!(
                f,
                "the device has {queues} queue(s): start both sides with the same --queues"
            ),
            LoanError::Unusable(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for LoanError {}
