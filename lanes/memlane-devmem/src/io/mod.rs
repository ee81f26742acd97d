//! Descriptors: regions that are bound, streams, and the paths by which payload comes.

mod binding;
pub mod kernel;
mod mapped;
mod staged;
mod stream;

pub use binding::{Binding, BindingCounts};
pub use stream::{Owned, Path, Stream, StreamCounts, Terms, Wait};

use crate::engine::inflow::Room;
use crate::error::ReceiveError;
use crate::region::DeviceRegion;
use std::os::fd::BorrowedFd;

/// One way for payload into a region.
trait Source: Send + core::fmt::Debug {
    /// Which.
    fn path(&self) -> Path;

    /// Puts the next bytes of the stream into `rooms`, the first one first; how many, and never waits. 0: its end.
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        region: &DeviceRegion,
        rooms: &[Room],
    ) -> Result<Came, ReceiveError>;
}

/// What came, and what it cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Came {
    /// Bytes of payload.
    bytes: u64,
    /// Of these, copied by the CPU between two places of host memory before they were in the region.
    bounced: u64,
}
