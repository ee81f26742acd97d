//! Why there is no ublk device, or why it stays.

use rustix::io::Errno;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why there is no device, or why it stays.
#[derive(Debug)]
pub enum UblkError {
    /// The kernel has no ublk driver, or has not loaded it.
    NoDriver,
    /// Not root.
    NotPermitted,
    /// No `io_uring`, or none for us.
    NoRing(io::Error),
    /// The driver lacks what we need.
    TooOld,
    /// The driver of this kernel is known to be broken: the kernel, and how.
    Broken(String, &'static str),
    /// The kernel has made a device, but its file is not here.
    NoFile(PathBuf),
    /// The volume cannot be such a device.
    Volume(&'static str),
    /// Something has it mounted, or open for itself alone.
    InUse(PathBuf),
    /// The device to be recovered does not wait for a server: it has a process, is gone, or belongs to another user.
    NotWaiting(u32),
    /// This kernel cannot change a device's size.
    CannotResize,
    /// Threads, descriptors or memory are used up.
    Server(io::Error),
    /// The kernel refuses; at which step.
    Kernel(&'static str, io::Error),
}

impl fmt::Display for UblkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UblkError::NoDriver => {
                f.write_str("the kernel's ublk driver is not loaded (`modprobe ublk_drv`)")
            }
            UblkError::NotPermitted => f.write_str("ublk devices are for root only"),
            UblkError::NoRing(error) => write!(f, "ublk needs io_uring: {error}"),
            UblkError::TooOld => f.write_str("this kernel's ublk driver is too old: Linux 6.5"),
            UblkError::Broken(kernel, how) => {
                write!(f, "the ublk driver of Linux {kernel} is broken: {how}")
            }
            UblkError::NoFile(path) => write!(
                f,
                "the kernel has {}, but there is no such file here (a container without the host's /dev?)",
                path.display()
            ),
            UblkError::Volume(why) => f.write_str(why),
            UblkError::InUse(path) => write!(f, "{} is in use", path.display()),
            UblkError::NotWaiting(id) => {
                write!(
                    f,
                    "/dev/ublkb{id} is not a device that waits for its process"
                )
            }
            UblkError::CannotResize => {
                f.write_str("this kernel cannot change the size of a ublk device: Linux 6.16")
            }
            UblkError::Server(error) => write!(f, "ublk: {error}"),
            UblkError::Kernel(step, error) => write!(f, "ublk, {step}: {error}"),
        }
    }
}

impl std::error::Error for UblkError {}

/// For `map_err`: what the kernel refuses at `step`.
pub(super) fn refused(step: &'static str) -> impl FnOnce(Errno) -> UblkError {
    move |error| match error {
        Errno::PERM | Errno::ACCESS => UblkError::NotPermitted,
        error => UblkError::Kernel(step, error.into()),
    }
}
