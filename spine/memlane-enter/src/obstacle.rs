//! Why a program is not entered.

use core::fmt;

/// Why a program is not entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// It is no static program for amd64, or begins with other code than Go's.
    Other,
    /// It has no record of the release that built it.
    NoRecord,
    /// The library does not know the release.
    Release,
    /// The release's function for system calls is not there.
    NoFunction,
    /// It gains rights when it is executed.
    Privileged,
    /// The processor or the kernel has no instructions for FS and GS (`FSGSBASE`; Linux 5.9).
    NoBases,
    /// The library's path is too long.
    Library,
    /// The system does not allow this process to be traced, or the library to be executed, or has no memory or processes
    /// left. The error number.
    System(i32),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Other => f.write_str("statically linked"),
            Obstacle::NoRecord => f.write_str("a Go program without a record of its release"),
            Obstacle::Release => f.write_str("built by a Go release that memlane does not know"),
            Obstacle::NoFunction => {
                f.write_str("a Go program without its release's function for system calls")
            }
            Obstacle::Privileged => f.write_str("a static program that gains rights"),
            Obstacle::NoBases => f.write_str(
                "a static Go program, and this processor or kernel lacks FSGSBASE (Linux 5.9)",
            ),
            Obstacle::Library => {
                f.write_str("a static Go program, and the library's path is too long")
            }
            Obstacle::System(error) => write!(
                f,
                "a static Go program, and the system does not let memlane into it (error {error} of ptrace or mmap)"
            ),
        }
    }
}
