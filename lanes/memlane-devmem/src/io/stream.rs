//! A TCP stream whose payload lands in a region.

use super::binding::Binding;
use super::coming::Coming;
use super::copy::CopyEngine;
use super::desk::Desk;
use super::laned::{Landed, Laned};
use super::mapped::{Mapped, PIECES};
use super::path::Path;
use super::shared::{Owned, Shared};
use super::stage::Stage;
use super::staged::Staged;
use super::ways::{Came, Late, Most, Placed, Placer, Sink, Source, Wait};
use crate::engine::inflow::Room;
use crate::engine::tokens::{RANGES_MAX, ranges_of};
use crate::engine::{Fragment, Inflow, Origin, Range, Span};
use crate::error::{AccessError, ReceiveError, ReleaseError};
use crate::region::DeviceRegion;
use memlane_sys::Errno;
use memlane_sys::iov::{self, Piece};
use memlane_wait::event::poll;
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a stream's user asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// This path and no other; `None`: the best that there is.
    pub require: Option<Path>,
    /// Fragments that may be out at a time; beyond that nothing is received.
    pub fragments: u32,
    /// Bytes of one receive, at most.
    pub burst: u32,
}

impl Default for Terms {
    /// The best path; 65536 fragments; 1 MiB.
    fn default() -> Terms {
        Terms {
            require: None,
            fragments: 1 << 16,
            burst: 1 << 20,
        }
    }
}

/// What a stream has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamCounts {
    /// Bytes that came.
    pub received: u64,
    /// Fragments in which they came.
    pub fragments: u64,
    /// Of these, given back.
    pub released: u64,
    /// And still out.
    pub out: u32,
    /// Bytes that were copied between two places of host memory on their way.
    pub bounced: u64,
    /// Bytes that an interface did not put on the device, for which the CPU did.
    pub beside: u64,
    /// Bytes that a peer on this host put into the region.
    pub by_lane: u64,
    /// Receives that found no free chunk, or no token.
    pub no_room: u64,
    /// Bytes that were sent out of the region.
    pub sent: u64,
    /// Sends whose bytes the interface may still read.
    pub flying: usize,
    /// Sends that were to go without a copy, and were copied by the kernel.
    pub sent_copied: u64,
}

/// One TCP stream. Closing it gives back what is out, but for fragments that are [`Owned`].
#[derive(Debug)]
pub struct Stream {
    /// The path may need it longer, for fragments that have an owner.
    socket: Arc<OwnedFd>,
    shared: Arc<Shared>,
    way: Way,
    sink: Option<Box<dyn Sink>>,
    inflow: Inflow,
    rooms: Vec<Room>,
    ranges: Vec<Range>,
    burst: u32,
    /// Bytes of this receive, if it is asked for fewer than a burst.
    limit: u64,
    counts: StreamCounts,
    coming: Coming,
    /// Nothing is to be had from the socket before some of `coming` is in the region.
    full: bool,
    /// The socket's own call waits for [`NAP`], once that is known.
    naps: Option<bool>,
    /// What is on its way out of memory that the CPU cannot reach.
    out: Vec<u8>,
}

/// How long the socket's own call waits, and keeps chunks meanwhile.
const NAP: Duration = Duration::from_millis(10);

/// Bytes that are copied out to be sent at a time, at most.
const COPIED_OUT: u32 = 1 << 18;

/// Who chooses places for payload.
#[derive(Debug)]
enum Way {
    /// We do.
    Poured(Box<dyn Source>),
    /// Another one does.
    Placed(Box<dyn Placer>, Vec<Placed>),
    /// A peer on this host does, or we do for what comes by TCP.
    Laned(Box<Laned>),
}

impl Way {
    /// Bytes that came are in the region only some time later: how to follow that.
    fn late(&self) -> Option<&dyn Late> {
        match self {
            Way::Poured(source) => source.late(),
            Way::Placed(..) | Way::Laned(_) => None,
        }
    }
}

impl Stream {
    /// Of a connected TCP (or unix stream) socket, by a path that needs nothing else. If another one is required, a
    /// receive says that it is not there; [`kernel::Link::stream`](super::kernel::Link::stream) is one.
    pub fn new(socket: OwnedFd, binding: &Arc<Binding>, terms: &Terms) -> Stream {
        let source: Box<dyn Source> = match terms.require {
            None if !binding.region().is_mapped() => Staged::open(binding),
            None | Some(Path::Mapped) => Box::new(Mapped),
            Some(Path::Staged) => Staged::open(binding),
            Some(other) => Box::new(Unprepared(other)),
        };
        let shared = Shared::new(binding, terms.fragments, None);
        Stream::over(Arc::new(socket), shared, Way::Poured(source), None, terms)
    }

    /// By the path `staged`, with an engine and staging memory of the caller's.
    pub fn staged(
        socket: OwnedFd,
        binding: &Arc<Binding>,
        terms: &Terms,
        stage: Stage,
        engine: Box<dyn CopyEngine>,
    ) -> Stream {
        let source = Box::new(Staged::new(stage, engine));
        let shared = Shared::new(binding, terms.fragments, None);
        Stream::over(Arc::new(socket), shared, Way::Poured(source), None, terms)
    }

    /// Of a path on which others choose the places.
    pub(super) fn placed(
        socket: Arc<OwnedFd>,
        binding: &Arc<Binding>,
        placer: Box<dyn Placer>,
        sink: Option<Box<dyn Sink>>,
        terms: &Terms,
    ) -> Stream {
        // One for what comes beside the device, one for what does not.
        let fragments = terms.fragments.max(2);
        let shared = Shared::new(binding, fragments, Some(placer.giver()));
        Stream::over(socket, shared, Way::Placed(placer, Vec::new()), sink, terms)
    }

    /// Of a path on which a peer on this host chooses the places.
    pub(super) fn laned(
        socket: OwnedFd,
        binding: &Arc<Binding>,
        laned: Box<Laned>,
        terms: &Terms,
    ) -> Stream {
        let shared = Shared::new(binding, terms.fragments, Some(laned.giver()));
        Stream::over(Arc::new(socket), shared, Way::Laned(laned), None, terms)
    }

    fn over(
        socket: Arc<OwnedFd>,
        shared: Arc<Shared>,
        way: Way,
        sink: Option<Box<dyn Sink>>,
        terms: &Terms,
    ) -> Stream {
        Stream {
            socket,
            shared,
            way,
            sink,
            inflow: Inflow::new(),
            rooms: Vec::new(),
            ranges: Vec::new(),
            burst: terms.burst.max(1),
            limit: 1,
            counts: StreamCounts::default(),
            coming: Coming::default(),
            full: false,
            naps: None,
            out: Vec::new(),
        }
    }

    /// How payload comes.
    pub fn path(&self) -> Path {
        match &self.way {
            Way::Poured(source) => source.path(),
            Way::Placed(placer, _) => placer.path(),
            Way::Laned(laned) => laned.path(),
        }
    }

    /// Of a stream whose other end was to put payload into the region: why it did not, so far, or does not any more.
    pub fn passed(&self) -> Option<super::path::Passed> {
        match &self.way {
            Way::Laned(laned) => laned.passed(),
            Way::Poured(_) | Way::Placed(..) => None,
        }
    }

    /// Appends what has come to `fragments`; its bytes, 0 at the stream's end. Never waits.
    ///
    /// # Errors
    /// [`ReceiveError::WouldBlock`]: nothing has come; [`ReceiveError::NoRoom`]: release fragments first.
    pub fn receive(&mut self, fragments: &mut Vec<Fragment>) -> Result<u64, ReceiveError> {
        self.receive_some(u64::MAX, fragments)
    }

    /// As [`receive`](Self::receive), but not more than `limit` bytes (1 or more), as far as the path can stop there.
    ///
    /// # Errors
    /// As there.
    pub fn receive_some(
        &mut self,
        limit: u64,
        fragments: &mut Vec<Fragment>,
    ) -> Result<u64, ReceiveError> {
        self.limit = limit.max(1);
        let before = fragments.len();
        let bytes = match &self.way {
            way if way.late().is_some() => self.receive_late(fragments),
            Way::Poured(_) => self.pour(false, fragments),
            Way::Placed(..) => self.take_placed(fragments),
            Way::Laned(_) => self.take_laned(fragments),
        };
        self.count(bytes, fragments.len() - before);
        bytes
    }

    /// As [`receive`](Self::receive), but waits until something comes, or not longer than `limit`.
    ///
    /// On the path `mapped`, the socket's own call waits first: that is one system call, where a look, a sleep and another
    /// look are three. For this it sets the socket's `SO_RCVTIMEO` to 10 ms; and for as long, the stream keeps the chunks into
    /// which bytes would come.
    ///
    /// # Errors
    /// [`ReceiveError::WouldBlock`]: nothing has come by then; else as there.
    pub fn receive_within(
        &mut self,
        limit: Duration,
        fragments: &mut Vec<Fragment>,
    ) -> Result<u64, ReceiveError> {
        let end = Instant::now() + limit;
        if limit >= NAP && self.naps() {
            let before = fragments.len();
            self.limit = u64::MAX;
            let bytes = self.pour(true, fragments);
            self.count(bytes, fragments.len() - before);
            if bytes != Err(ReceiveError::WouldBlock) {
                return bytes;
            }
        }
        loop {
            let bytes = self.receive(fragments);
            let left = end.saturating_duration_since(Instant::now());
            if bytes != Err(ReceiveError::WouldBlock) || left.is_zero() {
                return bytes;
            }
            self.wait(Wait::Payload, left)
                .map_err(ReceiveError::Kernel)?;
        }
    }

    /// Does the socket's own call wait for a while, and no longer?
    fn naps(&mut self) -> bool {
        let (way, socket) = (&self.way, &self.socket);
        *self.naps.get_or_insert_with(|| {
            let mapped = matches!(way, Way::Poured(source) if source.path() == Path::Mapped);
            let blocks = || {
                let flags = rustix::fs::fcntl_getfl(socket);
                flags.is_ok_and(|flags| !flags.contains(rustix::fs::OFlags::NONBLOCK))
            };
            mapped && blocks() && set_socket_timeout(socket, Timeout::Recv, Some(NAP)).is_ok()
        })
    }

    fn count(&mut self, came: Result<u64, ReceiveError>, fragments: usize) {
        self.counts.received += came.unwrap_or(0);
        self.counts.fragments += fragments as u64;
    }

    /// Has the next bytes put where there is room; if asked to, waits for them as long as the socket does.
    fn pour(&mut self, waits: bool, fragments: &mut Vec<Fragment>) -> Result<u64, ReceiveError> {
        self.find_room(PIECES)?;
        let region = self.shared.binding.region();
        let Way::Poured(source) = &mut self.way else {
            return Err(ReceiveError::Kernel(Errno::INVAL));
        };
        let socket = self.socket.as_fd();
        let waited = match waits {
            true => source.receive_waiting(socket, region, &self.rooms),
            false => None,
        };
        let came = waited.unwrap_or_else(|| source.receive(socket, region, &self.rooms));
        let (bytes, bounced) = came
            .as_ref()
            .map_or((0, 0), |came| (came.bytes, came.bounced));
        // Also of a receive that failed: what was taken for it goes back.
        let mut given = self.shared.given();
        let mut pool = self.shared.binding.pool();
        self.inflow
            .landed(bytes, &mut pool.chunks, &mut given.tokens, fragments);
        if pool.chunks.free() > 0 {
            // Another stream may have found no room because of what this one did not use.
            pool.tell(self.shared.binding.freed());
        }
        drop((given, pool));
        self.counts.bounced += bounced;
        came.map(|came| came.bytes)
    }

    /// Hands out what has got into the region by now, and has the next bytes come meanwhile.
    fn receive_late(&mut self, fragments: &mut Vec<Fragment>) -> Result<u64, ReceiveError> {
        let mut whole = self.hand_out(fragments);
        // What is handed out, and what is under way, count for what was asked for.
        self.limit = self.limit.saturating_sub(whole + self.coming.bytes());
        let came = self.take_late();
        // Whoever waits next is woken by what gets there from here on.
        if let Some(late) = self.way.late() {
            late.want();
        }
        whole += self.hand_out(fragments);
        let failed = self.way.late().and_then(|late| late.failed());
        match (whole, failed) {
            (1.., _) => Ok(whole),
            (0, Some(why)) => Err(why),
            (0, None) if self.coming.is_empty() => came,
            (0, None) => Err(ReceiveError::WouldBlock),
        }
    }

    fn hand_out(&mut self, fragments: &mut Vec<Fragment>) -> u64 {
        let done = self.way.late().map_or(0, |late| late.done());
        self.counts.bounced = done;
        let mut given = self.shared.given();
        let bytes = self.coming.hand_out(done, &mut given.tokens, fragments);
        given.coming = self.coming.len();
        bytes
    }

    fn take_late(&mut self) -> Result<u64, ReceiveError> {
        if let Some(end) = self.coming.end() {
            return end;
        }
        let is_full = |late: &dyn Late| late.is_full() || late.failed().is_some();
        self.full = self.limit == 0 || self.way.late().is_some_and(is_full);
        if self.full {
            return Err(ReceiveError::WouldBlock);
        }
        let mut named = Vec::new();
        let came = self.pour(false, &mut named);
        match came {
            Ok(1..) | Err(ReceiveError::WouldBlock) => {}
            // Some chunk comes back when what is under way has been handed out.
            Err(ReceiveError::NoRoom) => self.full = true,
            Ok(0) | Err(_) => {
                self.full = true;
                self.coming.ends(came);
            }
        }
        let mut given = self.shared.given();
        self.coming.add(named.into_iter(), &mut given.tokens);
        given.coming = self.coming.len();
        drop(given);
        came
    }

    /// The stream is over: what was not handed out is as if it had been.
    fn abandon_coming(&mut self) {
        let mut given = self.shared.given();
        self.coming.abandon(&mut given.tokens);
        given.coming = 0;
    }

    /// Takes what others have put into the region, and copies what came beside it.
    fn take_placed(&mut self, fragments: &mut Vec<Fragment>) -> Result<u64, ReceiveError> {
        let most = self.most()?;
        let Way::Placed(placer, found) = &mut self.way else {
            return Err(ReceiveError::Kernel(Errno::INVAL));
        };
        found.clear();
        let came = placer.receive(most, found);
        let copied = came.and_then(|bytes| self.copy_beside().map(|copied| (bytes, copied)));
        let Way::Placed(placer, found) = &mut self.way else {
            return Err(ReceiveError::Kernel(Errno::INVAL));
        };
        if copied.is_err() {
            // What has no name is nobody's to release.
            give_back(placer.as_ref(), found);
        }
        let mut given = self.shared.given();
        let mut pool = self.shared.binding.pool();
        for placed in found.drain(..) {
            match placed {
                Placed::There { span, name } => {
                    let origin = Origin::Path(name);
                    let named = given.tokens.name_of(span.offset, span.len, origin);
                    fragments.push(named.expect("a stretch without a token"));
                }
                Placed::Beside(bytes) => {
                    let (chunks, tokens) = (&mut pool.chunks, &mut given.tokens);
                    self.inflow.name(bytes.into(), chunks, tokens, fragments);
                }
            }
        }
        self.inflow.settle(&mut pool.chunks);
        drop((given, pool));
        let (bytes, copied) = copied?;
        self.counts.beside += copied;
        self.counts.bounced += copied;
        Ok(bytes)
    }

    /// Takes what a peer put into the region, for which no chunk is needed, or has what came by TCP put where there is
    /// room.
    fn take_laned(&mut self, fragments: &mut Vec<Fragment>) -> Result<u64, ReceiveError> {
        self.rooms.clear();
        let tokens = self.shared.given().tokens.room();
        let mut came = match tokens {
            0 => Err(ReceiveError::NoRoom),
            _ => self.next_of_lane(),
        };
        if came == Err(ReceiveError::NoRoom) {
            self.find_room(PIECES)?;
            came = self.next_of_lane();
        }
        let mut given = self.shared.given();
        let mut pool = self.shared.binding.pool();
        let bytes = came.map(|landed| match landed {
            Landed::There { span, name } => {
                let origin = Origin::Path(name);
                let named = given.tokens.name_of(span.offset, span.len, origin);
                fragments.push(named.expect("a stretch without a token"));
                self.counts.by_lane += u64::from(span.len);
                u64::from(span.len)
            }
            Landed::Poured(bytes) => {
                let (chunks, tokens) = (&mut pool.chunks, &mut given.tokens);
                self.inflow.name(bytes, chunks, tokens, fragments);
                bytes
            }
        });
        self.inflow.settle(&mut pool.chunks);
        bytes
    }

    fn next_of_lane(&self) -> Result<Landed, ReceiveError> {
        let Way::Laned(laned) = &self.way else {
            return Err(ReceiveError::Kernel(Errno::INVAL));
        };
        let most = self.limit.min(u64::from(self.burst));
        // At most a burst.
        let most = u32::try_from(most).unwrap_or(self.burst);
        laned.receive(self.shared.binding.region(), &self.rooms, most)
    }

    /// How much may be found: as many stretches as there are tokens for, and as many bytes as there is room for, should
    /// they come beside the device.
    fn most(&mut self) -> Result<Most, ReceiveError> {
        let beside = match &self.way {
            Way::Placed(placer, _) => placer.comes_beside(),
            Way::Poured(_) | Way::Laned(_) => true,
        };
        let tokens = self.shared.given().tokens.room() as usize;
        // Each room that is begun may cost a token more than the stretches do.
        let pieces = if beside { PIECES.min(tokens / 2) } else { 0 };
        if beside || tokens == 0 {
            self.find_room(pieces)?;
        } else {
            self.rooms.clear();
        }
        let room = self.rooms.iter().map(|room| u64::from(room.len)).sum();
        let most = self.limit.min(u64::from(self.burst));
        let bytes = most.min(if beside { room } else { u64::MAX });
        Ok(Most {
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            stretches: tokens - self.rooms.len(),
        })
    }

    /// Copies what came beside the device into the room that there is; how many bytes.
    fn copy_beside(&self) -> Result<u64, ReceiveError> {
        let Way::Placed(placer, _) = &self.way else {
            return Ok(0);
        };
        let region = self.shared.binding.region();
        let mut left = placer.beside();
        let bytes = left.len() as u64;
        for room in &self.rooms {
            let (now, later) = left.split_at(left.len().min(room.len as usize));
            let written = region.write(room.offset, now);
            written.map_err(|error| match error {
                AccessError::Device(errno) => ReceiveError::Kernel(errno),
                _ => ReceiveError::Kernel(Errno::INVAL),
            })?;
            left = later;
        }
        Ok(bytes)
    }

    /// From the next byte on, each `unit` of them lie in one piece, as far as it is we who choose where they lie: the
    /// first at a multiple of 64, the others behind it. `false`, and nothing is changed: no chunk has `unit` bytes, or bytes
    /// are under way into the region (path `staged`), whose places, and those of what comes behind them, were chosen before.
    pub fn whole(&mut self, unit: u32) -> bool {
        if !self.coming.is_empty() {
            return false;
        }
        let mut pool = self.shared.binding.pool();
        self.inflow.whole(unit, &mut pool.chunks)
    }

    fn find_room(&mut self, pieces: usize) -> Result<(), ReceiveError> {
        let given = self.shared.given();
        let mut pool = self.shared.binding.pool();
        let limits = (pieces, self.limit.min(u64::from(self.burst)));
        self.inflow
            .room(&mut pool.chunks, &given.tokens, limits, &mut self.rooms);
        if self.rooms.is_empty() {
            pool.want(self.shared.binding.freed());
            self.counts.no_room += 1;
            return Err(ReceiveError::NoRoom);
        }
        Ok(())
    }

    /// Waits until there is what is asked for, or not longer than `limit`; `false`: that was it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, until: Wait, limit: Duration) -> Result<bool, Errno> {
        if let Way::Laned(laned) = &self.way
            && let Some(ready) = laned.wait(until, limit)
        {
            return ready;
        }
        let bell = self.bell().filter(|_| until == Wait::Payload);
        let fd = match until {
            Wait::Payload if bell.is_some() && self.is_deaf() => None,
            Wait::Payload => Some(PollFd::new(&self.socket, PollFlags::IN)),
            Wait::Socket => Some(PollFd::new(&self.socket, PollFlags::OUT)),
            // What is told of sends is an error, to poll(2).
            Wait::Sent => Some(PollFd::new(&self.socket, PollFlags::empty())),
            Wait::Room => {
                let freed = self.shared.binding.freed();
                Some(PollFd::new(freed, PollFlags::IN))
            }
        };
        let bell = bell.map(|bell| PollFd::from_borrowed_fd(bell, PollFlags::IN));
        let end = Instant::now() + limit;
        loop {
            let flying = self.reap()?;
            if until == Wait::Sent && !flying {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            let mut fds: Vec<_> = fd.iter().chain(&bell).cloned().collect();
            match poll(&mut fds, Some(left)) {
                Err(error) => return Err(Errno(error.raw_os_error())),
                Ok(0) if left.is_zero() => return Ok(false),
                // The time is over, or a signal handler ran: the next turn tells.
                Ok(0) => {}
                // It may be no more than what is told of sends.
                Ok(_) if flying && fds[0].revents() == PollFlags::ERR && bell.is_none() => {}
                // The connection is gone, and poll(2) waits for nothing more: the interface has the last bytes yet.
                Ok(_) if until == Wait::Sent && left.is_zero() => {
                    return self.reap().map(|flying| !flying);
                }
                Ok(_) if until == Wait::Sent => std::thread::sleep(Duration::from_millis(1)),
                Ok(_) => return Ok(true),
            }
        }
    }

    /// What becomes readable when more of what came is in the region; `None`: it is the socket, or nothing is under way.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        if let Way::Placed(placer, _) = &self.way {
            return placer.bell();
        }
        let late = self.way.late().filter(|_| !self.coming.is_empty());
        late.and_then(|late| late.bell())
    }

    /// Does the socket have nothing to say, as far as receiving goes?
    fn is_deaf(&self) -> bool {
        self.full || matches!(self.way, Way::Placed(..))
    }

    /// Hears which sends are over; are there some that are not?
    fn reap(&self) -> Result<bool, Errno> {
        let Some(sink) = &self.sink else {
            return Ok(false);
        };
        if self.shared.given().flights.out() == 0 {
            return Ok(false);
        }
        self.shared.reap(sink.as_ref())?;
        Ok(self.shared.given().flights.out() > 0)
    }

    /// Gives fragments back, in ranges of tokens: at most 128, of which 1024 tokens are looked at. How many were out.
    ///
    /// # Errors
    /// Too many ranges: nothing was given back.
    pub fn release(&self, ranges: &[Range]) -> Result<u32, ReleaseError> {
        self.shared.release(ranges)
    }

    /// Gives all of these back, in as many calls as it takes; those that are not out are passed over.
    pub fn release_all(&mut self, fragments: &[Fragment]) -> u32 {
        let mut given = 0;
        // No call has more than it may look at, nor more ranges than it takes.
        for fragments in fragments.chunks(RANGES_MAX) {
            ranges_of(fragments, &mut self.ranges);
            given += self.shared.release(&self.ranges).unwrap_or(0);
        }
        given
    }

    /// From now on, this fragment gives itself back, and nothing else does. `None`: it is not out, or has an owner.
    pub fn own(&self, fragment: Fragment) -> Option<Owned> {
        self.desk().own(fragment)
    }

    /// Copies bytes of a fragment out, from `at` of it. For who looks, not for who computes on the device.
    ///
    /// # Errors
    /// Nothing of that token is out; beyond its end.
    pub fn read(&self, token: u32, at: u32, into: &mut [u8]) -> Result<(), AccessError> {
        self.desk().read(token, at, into)
    }

    /// The part of it that other threads may use while this one receives or waits.
    pub fn desk(&self) -> Desk {
        Desk::new(&self.shared)
    }

    /// Sends bytes of the region; how many went. Never waits. On the kernel's own path they must stay as they are until
    /// [`Wait::Sent`] is over; fragments among them that are released meanwhile come back then.
    ///
    /// # Errors
    /// Beyond its end; the kernel's, EAGAIN if the socket is full.
    pub fn send(&mut self, offset: u64, len: u32) -> Result<u32, AccessError> {
        let region = self.shared.binding.region();
        let end = offset.checked_add(u64::from(len));
        if end.is_none_or(|end| end > region.len() as u64) {
            return Err(AccessError::Outside);
        }
        let span = Span { offset, len };
        let sent = match (&self.sink, &self.way) {
            (Some(sink), _) => self.give_to(sink.as_ref(), span)?,
            (None, Way::Laned(laned)) => laned.send(region, span)?,
            (None, _) if region.is_mapped() => self.copy_out(span)?,
            (None, _) => self.copy_out_twice(span)?,
        };
        self.counts.sent += sent;
        // At most `len`.
        Ok(u32::try_from(sent).unwrap_or(len))
    }

    fn give_to(&self, sink: &dyn Sink, span: Span) -> Result<u64, AccessError> {
        self.reap().map_err(AccessError::Device)?;
        let mut given = self.shared.given();
        match sink.send(&[span]) {
            Ok(bytes) => {
                given.flights.sent(&[span], bytes);
                Ok(bytes)
            }
            // No memory to tell of more sends: there is some when others are over.
            Err(Errno(ENOBUFS)) if given.flights.out() > 0 => {
                Err(AccessError::Device(Errno::AGAIN))
            }
            Err(Errno::AGAIN) => Err(AccessError::Device(Errno::AGAIN)),
            Err(errno) => Err(AccessError::Interface(errno)),
        }
    }

    fn copy_out(&self, span: Span) -> Result<u64, AccessError> {
        let at = usize::try_from(span.offset).map_err(|_| AccessError::Outside)?;
        let region = self.shared.binding.region();
        let sent = region.cpu(crate::region::Access::Read, |bytes| {
            let window = bytes.part(at, span.len as usize);
            let window = window.ok_or(AccessError::Outside)?;
            let piece = Piece {
                base: window.as_ptr(),
                len: window.len(),
            };
            // SAFETY: a window of the region, which lives; the kernel copies its bytes.
            let sent = unsafe { iov::send(self.socket.as_raw_fd(), &[piece]) };
            sent.map_err(AccessError::Device)
        });
        Ok(sent.map_err(AccessError::Device)?? as u64)
    }

    /// Sends bytes of memory that the CPU cannot reach: they are copied into host memory first.
    fn copy_out_twice(&mut self, span: Span) -> Result<u64, AccessError> {
        self.out.resize(span.len.min(COPIED_OUT) as usize, 0);
        let region = self.shared.binding.region();
        region.read(span.offset, &mut self.out)?;
        let piece = Piece {
            base: self.out.as_mut_ptr(),
            len: self.out.len(),
        };
        // SAFETY: memory of ours, of which the kernel copies its bytes.
        let sent = unsafe { iov::send(self.socket.as_raw_fd(), &[piece]) };
        Ok(sent.map_err(AccessError::Device)? as u64)
    }

    /// Where payload lands.
    pub fn binding(&self) -> &Arc<Binding> {
        &self.shared.binding
    }

    /// What was counted.
    pub fn counts(&self) -> StreamCounts {
        let given = self.shared.given();
        StreamCounts {
            released: given.released,
            out: given.out(),
            flying: given.flights.out(),
            sent_copied: given.sent_copied,
            ..self.counts
        }
    }
}

/// The socket. What it tells poll(2) is not all: by the paths `staged` and `zcrx`, payload comes also when it is silent.
/// [`Stream::wait`] knows.
impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        match &mut self.way {
            Way::Poured(source) => source.stop(),
            // Before the socket is closed.
            Way::Laned(laned) => laned.close(),
            Way::Placed(..) => {}
        }
        self.abandon_coming();
        self.inflow.close(&mut self.shared.binding.pool().chunks);
        if let Some(sink) = &self.sink
            && self.reap() != Ok(false)
        {
            sink.abort();
        }
        self.shared.end();
    }
}

/// Gives all back that a receive found.
fn give_back(placer: &dyn Placer, found: &mut Vec<Placed>) {
    let name = |placed: Placed| match placed {
        Placed::There { name, .. } => Some(name),
        Placed::Beside(_) => None,
    };
    let names: Vec<u64> = found.drain(..).filter_map(name).collect();
    if !names.is_empty() {
        placer.giver().give(&names);
    }
}

/// `ENOBUFS`.
const ENOBUFS: i32 = 105;

/// A path that takes more than a socket.
#[derive(Debug)]
struct Unprepared(Path);

impl Source for Unprepared {
    fn path(&self) -> Path {
        self.0
    }

    fn receive(
        &mut self,
        _: BorrowedFd<'_>,
        _: &DeviceRegion,
        _: &[Room],
    ) -> Result<Came, ReceiveError> {
        Err(ReceiveError::Unprepared(self.0))
    }
}
