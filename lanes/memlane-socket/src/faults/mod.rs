//! Fault points: a process that dies, stops or dawdles at a named step, and one that speaks as another release does.
//!
//! Compiled in only with the feature `faults`, which only tests ask for; without it every function here is empty, and
//! a test sees that the library of a release has no trace of it.
//!
//! `MEMLANE_FAULT` is a list, separated by commas, of
//!
//! * `STEP:ACTION[:N]`: at the Nth time (1) that the process gets to this step of [`STEPS`]; `kill`: SIGKILL, `stop`:
//!   SIGSTOP, `delay`: 20 ms;
//! * `version:wire`, `version:chunk`: says another version of the handshake, of the chunk;
//! * `version:first`: knows nothing of what was added to version 1 of the handshake since;
//! * `groups:N`: has no more than N link groups.
//!
//! Such a build is also less patient: an answer is waited for 300 ms, and rings give their pages back after some ms, so
//! that what takes half a minute, or a second, can be seen.

mod steps;

pub use steps::{Part, STEPS, Side, Step};

/// What is true of this build only.
pub const ON: bool = cfg!(feature = "faults");

#[cfg(not(feature = "faults"))]
mod off {
    use super::Step;

    /// Nothing.
    #[inline(always)]
    pub fn at(_: Step) {}

    /// As many as they are: only a fault has half of them done first.
    #[inline(always)]
    pub fn half(_: Step, len: usize) -> usize {
        len
    }

    /// The version that is said.
    #[inline(always)]
    pub const fn wire_version(own: u8) -> u8 {
        own
    }

    /// The version of the chunk that this process claims.
    #[inline(always)]
    pub const fn chunk_version(own: u32) -> u32 {
        own
    }

    /// How many link groups there may be.
    #[inline(always)]
    pub const fn groups(own: usize) -> usize {
        own
    }

    /// What is said that this release can do.
    #[inline(always)]
    pub const fn features(own: u8) -> u8 {
        own
    }
}
#[cfg(not(feature = "faults"))]
pub use off::*;

#[cfg(feature = "faults")]
mod on;
#[cfg(feature = "faults")]
pub use on::*;
