//! One connection, whatever device carries it.

use super::across::{Lent, Place, SharedMemory};
use super::chunks::Chunks;
use super::frame::{Step, WriteTarget};
use super::inflow::{Granted, Received};
use super::link_error::LinkError;
use super::stream::StreamLink;
use super::verbs::{Reach, VerbsLink};
use crate::wire::CONN_LEN;
use memlane_core::access::SharedBytes;
use memlane_sys::fd::Fd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// One connection.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "almost all are streams, and each look goes through this"
)]
pub(super) enum Link {
    /// Over a socket: TCP, or within a host.
    Stream(StreamLink),
    /// Over a queue pair.
    Verbs(Box<VerbsLink>),
}

macro_rules! by_either {
    ($link:expr, $one:ident => $does:expr) => {
        match $link {
            Link::Stream($one) => $does,
            Link::Verbs($one) => $does,
        }
    };
}

impl From<StreamLink> for Link {
    fn from(link: StreamLink) -> Link {
        Link::Stream(link)
    }
}

impl From<VerbsLink> for Link {
    fn from(link: VerbsLink) -> Link {
        Link::Verbs(Box::new(link))
    }
}

impl Link {
    #[inline]
    pub(super) fn as_stream(&self) -> Option<&StreamLink> {
        match self {
            Link::Stream(link) => Some(link),
            Link::Verbs(_) => None,
        }
    }

    #[inline]
    fn as_stream_mut(&mut self) -> Option<&mut StreamLink> {
        match self {
            Link::Stream(link) => Some(link),
            Link::Verbs(_) => None,
        }
    }

    /// What the device of a connection over RDMA reaches.
    #[inline]
    pub(super) fn reach(&self) -> Option<&Reach> {
        match self {
            Link::Stream(_) => None,
            Link::Verbs(link) => link.reach().map(|reach| &**reach),
        }
    }

    // ---- receiving ----

    /// Begins a turn: something may have come. `readable`: the kernel says so.
    #[inline]
    pub(super) fn turn(&mut self, readable: bool) {
        by_either!(self, link => link.turn(readable));
    }

    /// Has something come in this turn, if only a part?
    #[inline]
    pub(super) fn has_moved(&self) -> bool {
        by_either!(self, link => link.has_moved())
    }

    /// The next thing that has come. `None`: nothing more is there, or this turn is over.
    #[inline]
    pub(super) fn next(
        &mut self,
        granted: &mut impl Granted,
    ) -> Result<Option<Received>, LinkError> {
        match self {
            Link::Stream(link) => link.next(granted),
            Link::Verbs(link) => link.next(),
        }
    }

    /// Has something come? `None`: only the kernel knows.
    #[inline]
    pub(super) fn has_ready(&mut self) -> Option<bool> {
        match self {
            Link::Stream(link) => link.has_ready(),
            Link::Verbs(link) => link.has_ready(),
        }
    }

    /// Does a look cost no system call? Then it is looked at in every pass.
    #[inline]
    pub(super) fn is_looked_at(&self) -> bool {
        match self {
            Link::Stream(link) => link.is_shared(),
            Link::Verbs(link) => link.is_up(),
        }
    }

    /// It will not be looked at until the kernel says so. `false`: there is something.
    #[inline]
    pub(super) fn park(&mut self) -> bool {
        by_either!(self, link => link.park())
    }

    /// Has reading left something to be sent?
    #[inline]
    pub(super) fn owes(&self) -> bool {
        self.as_stream().is_some_and(StreamLink::owes)
    }

    /// Data that comes goes straight to its place.
    pub(super) fn narrows(&mut self) {
        if let Some(link) = self.as_stream_mut() {
            link.narrows();
        }
    }

    /// Bytes of data that did not, since this was asked last.
    pub(super) fn take_copied(&mut self) -> u64 {
        self.as_stream_mut().map_or(0, StreamLink::take_copied)
    }

    // ---- memory that both ends have ----

    /// At the server, before it accepts: shares the chunks behind this descriptor.
    pub(super) fn share(&mut self, depth: u16, chunks: i32, base: u64) -> Result<(), LinkError> {
        match self.as_stream_mut() {
            Some(link) => link.share(depth, chunks, base),
            None => Ok(()),
        }
    }

    /// At the server, before it accepts: shares chunks that lie in memory of both machines.
    pub(super) fn place(&mut self, depth: u16, chunks: &Lent, base: u64) -> Result<(), LinkError> {
        match self.as_stream_mut() {
            Some(link) => link.place(depth, chunks, base),
            None => Err(LinkError::Queue),
        }
    }

    /// At the client: takes what the server has told the places of.
    pub(super) fn join_at(
        &mut self,
        queues: (u32, u64),
        places: &[u8; CONN_LEN],
        memory: &Arc<SharedMemory>,
        attach: impl FnOnce(Place) -> Result<Arc<Chunks>, LinkError>,
    ) -> Result<(), LinkError> {
        match self.as_stream_mut() {
            Some(link) => link.join_at(queues, places, memory, attach),
            None => Err(LinkError::Queue),
        }
    }

    /// At the client: was it accepted without the place in shared memory that it asked for?
    pub(super) fn misses_its_place(&self) -> bool {
        self.as_stream().is_some_and(StreamLink::misses_its_place)
    }

    /// At the client: takes what came with the frame that said so.
    pub(super) fn join(
        &mut self,
        slots: u32,
        base: u64,
        attach: impl FnOnce(Fd) -> memlane_sys::Result<Arc<Chunks>>,
    ) -> Result<(), LinkError> {
        match self.as_stream_mut() {
            Some(link) => link.join(slots, base, attach),
            None => Err(LinkError::Queue),
        }
    }

    /// At the client: what it shares, once it was accepted.
    #[inline]
    pub(super) fn chunks(&self) -> Option<&Arc<Chunks>> {
        self.as_stream().and_then(StreamLink::chunks)
    }

    /// At the client: does what it shares have the chunk of this permit at that address?
    #[inline]
    pub(super) fn has_chunk(&self, addr: u64, permit: u16) -> bool {
        self.as_stream()
            .is_some_and(|link| link.has_chunk(addr, permit))
    }

    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.as_stream().is_some_and(StreamLink::is_shared)
    }

    /// At the client: what a read has brought, if it did not come by the stream.
    pub(super) fn pull(&self, at: usize, into: &SharedBytes) -> bool {
        self.as_stream().is_none_or(|link| link.pull(at, into))
    }

    // ---- sending ----

    /// A step of making the connection.
    pub(super) fn step(&mut self, step: Step, private: &[u8; CONN_LEN]) {
        by_either!(self, link => link.step(step, private));
    }

    /// A message.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        by_either!(self, link => link.send(bytes));
    }

    /// An immediate alone.
    #[inline]
    pub(super) fn immediate(&mut self, imm: u32) {
        by_either!(self, link => link.immediate(imm));
    }

    /// At a client: a request into its chunk.
    #[inline]
    pub(super) fn post(
        &mut self,
        place: WriteTarget,
        data: Option<SharedBytes>,
        tail: &[u8],
        imm: u32,
    ) {
        by_either!(self, link => link.post(place, data, tail, imm));
    }

    /// At a server: what was read, to where it is wanted.
    #[inline]
    pub(super) fn reply(&mut self, place: WriteTarget, data: Option<SharedBytes>, imm: u32) {
        by_either!(self, link => link.reply(place, data, imm));
    }

    /// Does the peer not read?
    #[inline]
    pub(super) fn is_clogged(&self) -> bool {
        self.as_stream().is_some_and(StreamLink::is_clogged)
    }

    /// Sends what the device takes. Is nothing left that waits for the socket?
    #[inline]
    pub(super) fn flush(&mut self) -> Result<bool, LinkError> {
        by_either!(self, link => link.flush())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        by_either!(self, link => link.as_fd())
    }
}
