//! Descriptors: regions that are bound, streams, and the paths by which payload comes.

mod binding;
mod coming;
pub mod copy;
pub mod kernel;
mod mapped;
pub mod stage;
mod staged;
mod stream;

pub use binding::{Binding, BindingCounts};
pub use stream::{Path, Stream, StreamCounts, Terms, Wait};

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

    /// Bytes that came are in the region only some time later: how to follow that.
    fn late(&self) -> Option<&dyn Late> {
        None
    }

    /// From now on it touches no region: the stream's chunks are somebody else's.
    fn stop(&mut self) {}
}

/// What a source says of bytes that came and may not be in the region yet.
trait Late {
    /// So many are, counted from the first.
    fn done(&self) -> u64;

    /// Why those behind them will never be.
    fn failed(&self) -> Option<ReceiveError>;

    /// Has [`bell`](Self::bell) become readable at the next change; ask again behind it.
    fn want(&self);

    /// Readable at a change that was wanted.
    fn bell(&self) -> Option<BorrowedFd<'_>>;

    /// Nothing can come before something is in the region.
    fn is_full(&self) -> bool;
}

/// What came, and what it cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Came {
    /// Bytes of payload.
    bytes: u64,
    /// Of these, copied by the CPU between two places of host memory before they were in the region.
    bounced: u64,
}
