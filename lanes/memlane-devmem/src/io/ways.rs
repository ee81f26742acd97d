//! What a path is made of: ways into a region, and a way out of it.

use super::path::Path;
use crate::engine::Span;
use crate::engine::inflow::Room;
use crate::error::ReceiveError;
use crate::region::DeviceRegion;
use core::fmt::Debug;
use memlane_sys::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Bytes to receive, or the stream's end.
    Payload,
    /// Chunks that come back, after [`ReceiveError::NoRoom`].
    Room,
    /// Room in the socket, to send.
    Socket,
    /// That nothing is sent any more: the region's bytes may change.
    Sent,
}

/// One way for payload into a region, into places that the stream chooses.
pub(in crate::io) trait Source: Send + Debug {
    /// Which.
    fn path(&self) -> Path;

    /// Puts the next bytes of the stream into `rooms`, the first one first; how many, and never waits. 0: its end.
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        region: &DeviceRegion,
        rooms: &[Room],
    ) -> Result<Came, ReceiveError>;

    /// As [`receive`](Self::receive), but waits for the first byte as long as the socket's own call does.
    /// `None`: it cannot wait.
    fn receive_waiting(
        &mut self,
        socket: BorrowedFd<'_>,
        region: &DeviceRegion,
        rooms: &[Room],
    ) -> Option<Result<Came, ReceiveError>> {
        let _ = (socket, region, rooms);
        None
    }

    /// Bytes that came are in the region only some time later: how to follow that.
    fn late(&self) -> Option<&dyn Late> {
        None
    }

    /// From now on it touches no region: the stream's chunks are somebody else's.
    fn stop(&mut self) {}
}

/// What a source says of bytes that came and may not be in the region yet.
pub(in crate::io) trait Late {
    /// How many bytes are in the region, counted from the first.
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
pub(in crate::io) struct Came {
    /// Bytes of payload.
    pub(in crate::io) bytes: u64,
    /// Of these, copied by the CPU between two places of host memory before they were in the region.
    pub(in crate::io) bounced: u64,
}

/// One way for payload into a region, into places that somebody else chooses: the kernel, a peer.
pub(in crate::io) trait Placer: Send + Debug {
    /// Which.
    fn path(&self) -> Path;

    /// Can bytes come beside the device? Then they are copied into chunks, and there must be room for them.
    fn comes_beside(&self) -> bool;

    /// Finds what has come, within `most`, in the order of the stream; its bytes. Never waits. 0: the end.
    fn receive(&mut self, most: Most, found: &mut Vec<Placed>) -> Result<u64, ReceiveError>;

    /// What came beside the device with the last receive, in order.
    fn beside(&self) -> &[u8];

    /// Who hears that fragments are not needed any more.
    fn giver(&self) -> Arc<dyn Giver>;

    /// Readable when something may have come, if it is not the socket that is.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// How much one receive may find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::io) struct Most {
    /// Bytes.
    pub(in crate::io) bytes: u32,
    /// Stretches of them.
    pub(in crate::io) stretches: usize,
}

/// A stretch that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::io) enum Placed {
    /// It lies in the region.
    There {
        /// Where.
        span: Span,
        /// What the path calls it.
        name: u64,
    },
    /// This many bytes are beside the device.
    Beside(u32),
}

/// Who is told that bytes are not needed any more which he had put into the region.
pub(in crate::io) trait Giver: Send + Sync + Debug {
    /// These come back, by the names that the path gave them. From any thread; never waits.
    fn give(&self, names: &[u64]);

    /// The stream is over; owners may still have fragments.
    fn ended(&self) {}
}

/// A way out of a region that is not the plain one.
pub(in crate::io) trait Sink: Send + Sync + Debug {
    /// Gives some bytes to be sent; how many of them, the first ones first. Never waits. They must stay as they are
    /// until [`done`](Self::done) has told of this send, by its number.
    fn send(&self, spans: &[Span]) -> Result<u64, Errno>;

    /// Tells which sends are over: the first and last of their numbers, and whether they were copied.
    fn done(&self, told: &mut dyn FnMut(u32, u32, bool)) -> Result<(), Errno>;

    /// The stream ends now, with sends that are not over: nothing more of them may be read.
    fn abort(&self);
}
