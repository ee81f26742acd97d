//! What the driver's numbers mean.

use core::ffi::c_int;
use core::fmt;

/// A number of the driver that is not 0 (`CUresult`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Refused(pub c_int);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            1 => "an invalid value",
            2 => "out of memory",
            3 => "not initialized",
            4 => "the driver is shutting down",
            34 => "only a stub of the library is installed",
            100 => "no device",
            101 => "no such device",
            201 => "an invalid context",
            700 => "an illegal address",
            712 => "that memory is registered already",
            719 => "a launch failed",
            800 => "not permitted",
            801 => "not supported",
            802 => "the system is not ready",
            803 => "library and kernel module are of different versions",
            804 => "not supported on this device by this version",
            999 => "an unknown error",
            _ => return write!(f, "CUDA error {}", self.0),
        };
        write!(f, "CUDA error {}, {name}", self.0)
    }
}

impl core::error::Error for Refused {}
