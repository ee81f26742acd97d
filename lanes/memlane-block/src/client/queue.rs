//! One thread's way to a volume: one port, and the requests that wait until the volume is open again.

use super::handle::Handle;
use super::lent::Share;
use super::remote::{Alarm, Remote, State};
use super::request::{PendingRequest, check, result_of};
use crate::volume::stats::Shard;
use crate::volume::{ChunkFile, Done, Errno, Io, Lease, Memory, Op, Queue};
use memlane_core::access::SharedBytes;
use memlane_transport::engine::Time;
use memlane_transport::engine::client::AllDown as Patience;
use memlane_transport::error::RequestError;
use memlane_transport::port::{Completion, LeaseError, Port};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const EIO: Errno = Errno(libc::EIO);
const CLOSED: Errno = Errno(libc::ENODEV);

pub(super) struct RemoteQueue {
    port: Box<dyn Port>,
    /// Which shard of the counters.
    number: usize,
    alarm: Arc<Alarm>,
    /// What this queue can do without the server.
    share: Arc<Share>,
    /// The port's descriptor and the alarm's.
    both: OwnedFd,
    /// A request's place is its tag at the port.
    requests: Vec<Option<PendingRequest>>,
    free: Vec<u32>,
    /// Places of requests that wait for the volume to be open again, oldest first.
    waiting: Vec<u32>,
    /// Done, and not reaped yet.
    ready: Vec<Done>,
    completions: Vec<Completion>,
    /// Something was given to the port that has not been pushed yet.
    unsent: bool,
    /// The losses that this queue's user knows of.
    losses: u32,
    /// Last: a volume is closed when its last queue's port is gone.
    handle: Arc<Handle>,
}

/// What is to become of a request that waits.
enum Fate {
    Send,
    Fail(Errno),
    Wait,
}

impl RemoteQueue {
    pub(super) fn new(handle: Arc<Handle>, port: Box<dyn Port>) -> io::Result<RemoteQueue> {
        let (number, alarm, share) = handle.remote().enter()?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, data) in [(port.fd(), 0), (alarm.event.as_fd(), 1)] {
            let data = epoll::EventData::new_u64(data);
            epoll::add(&both, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(RemoteQueue {
            losses: handle.remote().durable.losses_told(),
            port,
            number,
            alarm,
            share,
            both,
            requests: Vec::new(),
            free: Vec::new(),
            waiting: Vec::new(),
            ready: Vec::new(),
            completions: Vec::new(),
            unsent: false,
            handle,
        })
    }

    fn remote(&self) -> &Remote {
        self.handle.remote()
    }

    fn shard(&self) -> &Shard {
        self.remote().counters.shard(self.number)
    }

    /// Takes in what the port has, sends again what can be.
    fn turn(&mut self) {
        self.alarm.drain();
        let mut completions = std::mem::take(&mut self.completions);
        self.port.reap(&mut completions);
        self.unsent = false;
        for completion in completions.drain(..) {
            self.settle(completion);
        }
        self.completions = completions;
        if !self.waiting.is_empty() {
            self.look_after();
        }
        if std::mem::take(&mut self.unsent) {
            self.port.push();
        }
    }

    /// A request's way to the server, or to where it waits; or it is done here at once, in memory that the server lends.
    fn send(&mut self, place: u32) {
        // Boots before the generation: if the server's machine starts anew in between, a needless copy is sent, and
        // nothing is taken for safe that is not.
        let boots = self.remote().durable.boots();
        let gate = self.remote().gate();
        match gate.state {
            State::Open => {}
            State::Waiting => return self.wait_for(place, gate.generation),
            State::Refused => return self.finish(place, Err(EIO)),
            State::Closed => return self.finish(place, Err(CLOSED)),
        }
        let steps = self.remote().steps();
        let dirtied = || self.handle.remote().counters.dirtied();
        let Some(request) = self.requests[place as usize].as_mut() else {
            return;
        };
        if request.flushes() {
            request.covers = dirtied();
        }
        if request.tries > 0 {
            let counters = &self.handle.remote().counters;
            counters.shard(self.number).replayed();
        }
        request.tries = request.tries.saturating_add(1);
        request.unknown = false;
        if request.boots != boots {
            // A part that is done may be lost.
            (request.boots, request.done) = (boots, 0);
        }
        request.generation = gate.generation;
        if self.share.perform(request) {
            request.part = request.len;
            return self.succeeded(place);
        }
        let submission = request.submission(u64::from(place), gate.device_id, &steps);
        self.port.submit(submission);
        self.unsent = true;
    }

    /// Lets a request wait for a later generation than this.
    fn wait_for(&mut self, place: u32, generation: u32) {
        let Patience::Queue(limit) = self.handle.patience() else {
            return self.finish(place, Err(EIO));
        };
        let now = self.handle.clock().now();
        let Some(request) = self.requests[place as usize].as_mut() else {
            return;
        };
        request.generation = generation;
        request.since = Some(now);
        let due = *request.due.get_or_insert(now.saturating_add(limit));
        self.shard().waits();
        self.waiting.push(place);
        if self.alarm.expect_also(due) {
            // The reopener, which signals when it is late, does not know of it yet.
            self.handle.kick();
        }
    }

    fn expect(&self) {
        let waiting = self.waiting.iter();
        let requests = waiting.filter_map(|place| self.requests[*place as usize].as_ref());
        self.alarm.expect(requests.filter_map(|r| r.due).min());
    }

    fn fate(&self, request: &PendingRequest, now: Option<Time>) -> Fate {
        let gate = self.remote().gate();
        let overdue = now.is_some_and(|now| request.due.is_some_and(|due| now >= due));
        match gate.state {
            State::Closed => Fate::Fail(CLOSED),
            State::Refused => Fate::Fail(EIO),
            // Also when it is late: perhaps it was this process that did not run.
            State::Open if gate.generation > request.generation => Fate::Send,
            _ if overdue => Fate::Fail(EIO),
            State::Open if request.unknown && self.remote().is_denied(request.generation) => {
                Fate::Fail(EIO)
            }
            _ => Fate::Wait,
        }
    }

    /// Each request that waits: sent, failed, or left waiting.
    fn look_after(&mut self) {
        let now = self.handle.clock().now();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|place| {
            let Some(request) = self.requests[*place as usize].as_ref() else {
                return false;
            };
            let fate = self.fate(request, Some(now));
            let since = request.since.unwrap_or(now);
            match fate {
                Fate::Wait => return true,
                Fate::Send => self.send(*place),
                Fate::Fail(errno) => self.finish(*place, Err(errno)),
            }
            self.shard().waited(now.saturating_sub(since));
            false
        });
        // What began to wait again while it was sent.
        waiting.append(&mut self.waiting);
        self.waiting = waiting;
        self.expect();
    }

    /// The port is done with a request: is its user?
    fn settle(&mut self, completion: Completion) {
        let Ok(place) = u32::try_from(completion.tag) else {
            return;
        };
        let slot = self.requests.get_mut(place as usize);
        let Some(request) = slot.and_then(Option::as_mut) else {
            return;
        };
        if completion.lease.is_some() {
            request.lease = completion.lease;
        }
        match result_of(completion.result) {
            Some(Ok(())) => self.succeeded(place),
            Some(Err(errno)) => self.finish(place, Err(errno)),
            None => {
                request.unknown = matches!(completion.result, Err(RequestError::Remote(_)));
                self.unanswered(place);
            }
        }
    }

    /// The server restarted before it answered, or does not know the volume: the request waits for a later generation.
    fn unanswered(&mut self, place: u32) {
        let Some(request) = self.requests[place as usize].as_ref() else {
            return;
        };
        let (generation, unknown) = (request.generation, request.unknown);
        let gate = self.remote().gate();
        if gate.state == State::Open
            && gate.generation == generation
            && unknown
            && self.remote().doubt(generation)
        {
            self.handle.kick();
        }
        self.wait_for(place, generation);
    }

    fn succeeded(&mut self, place: u32) {
        let Some(request) = self.requests[place as usize].as_mut() else {
            return;
        };
        request.done += request.part;
        let more = request.len > request.done && request.part < request.len;
        if more && request.part > 0 {
            request.tries = 0;
            return self.send(place);
        }
        let (boots, covers) = (request.boots, request.covers);
        let (dirties, flushes) = (request.dirties(), request.flushes());
        let remote = self.handle.remote();
        if dirties && remote.info().cached {
            remote.counters.shard(self.number).dirtied();
            // Done by a machine that has lost its memory since: not done, for all that its user knows.
            if remote.durable.boots() != boots {
                return self.send(place);
            }
        }
        if flushes {
            if remote.durable.tell(&mut self.losses) {
                return self.finish(place, Err(EIO));
            }
            remote.durable.covers(covers);
        }
        self.finish(place, Ok(()));
    }

    fn finish(&mut self, place: u32, result: Result<(), Errno>) {
        let Some(request) = self.requests[place as usize].take() else {
            return;
        };
        self.free.push(place);
        match result {
            Ok(()) => self.shard().done(request.op, request.len),
            Err(_) => self.shard().failed(),
        }
        self.ready.push(Done {
            tag: request.tag,
            result,
            lease: request.lease,
        });
    }

    /// Can a request that waits be sent, or must it fail?
    fn can_move(&self) -> bool {
        let waiting = self.waiting.iter();
        let mut requests = waiting.filter_map(|place| self.requests[*place as usize].as_ref());
        requests.any(|request| !matches!(self.fate(request, None), Fate::Wait))
    }

    fn sleep(&self, limit: Option<Duration>) {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // A signal, or another reason: the caller looks again.
        let _ = poll(
            &mut [PollFd::new(&self.both, PollFlags::IN)],
            limit.as_ref(),
        );
    }
}

fn errno_of(error: LeaseError) -> Errno {
    match error {
        LeaseError::TooLong | LeaseError::Outside => Errno(libc::EINVAL),
        LeaseError::TooManyMemories => Errno(libc::ENOSPC),
        LeaseError::Elsewhere => Errno(libc::EOPNOTSUPP),
        LeaseError::Closed => CLOSED,
    }
}

impl Queue for RemoteQueue {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno> {
        if len > self.remote().info().max_io {
            return Err(Errno(libc::EINVAL));
        }
        self.port.lease(len).map_err(errno_of)
    }

    fn lease_in(
        &mut self,
        memory: &Arc<dyn Memory>,
        place: (usize, u32),
    ) -> Result<Option<Lease>, Errno> {
        if place.1 > self.remote().info().max_io {
            return Err(Errno(libc::EINVAL));
        }
        self.port.lease_in(memory, place).map_err(errno_of)
    }

    fn in_place(
        &mut self,
        op: Op,
        place: (u64, u32),
        moves: &mut dyn FnMut(SharedBytes) -> usize,
    ) -> Result<Option<usize>, Errno> {
        if !matches!(self.remote().gate().state, State::Open) {
            return Ok(None);
        }
        let moved = self.share.in_place(op, place, moves);
        match moved {
            Ok(bytes) => self.shard().moved(op, bytes.unwrap_or(0)),
            Err(_) => self.shard().failed(),
        }
        moved
    }

    fn chunk_file(&self) -> io::Result<Option<ChunkFile>> {
        self.port.chunk_file()
    }

    fn submit(&mut self, io: Io) {
        let allowed = check(&io, &self.remote().info(), &self.remote().steps());
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.requests.push(None);
                // As many as a user has under way: memory ends before the number does.
                u32::try_from(self.requests.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let request = PendingRequest::new(io);
        let empty = request.is_empty();
        self.requests[place as usize] = Some(request);
        match allowed {
            Ok(()) if empty => self.finish(place, Ok(())),
            Ok(()) => self.send(place),
            Err(errno) => self.finish(place, Err(errno)),
        }
    }

    fn push(&mut self) {
        self.unsent = false;
        self.port.push();
    }

    fn reap(&mut self, into: &mut Vec<Done>) -> usize {
        self.turn();
        let n = self.ready.len();
        into.append(&mut self.ready);
        n
    }

    fn arm(&mut self) -> bool {
        if std::mem::take(&mut self.unsent) {
            self.port.push();
        }
        !self.ready.is_empty() || self.can_move() || self.port.arm()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        self.turn();
        while self.ready.is_empty() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            if self.waiting.is_empty() {
                // The port drives the session while it waits, and wakes for a lease too.
                self.port.wait(left);
                self.turn();
                if self.waiting.is_empty() {
                    return;
                }
            } else if self.arm() {
                return self.turn();
            } else {
                self.sleep(left);
                self.turn();
            }
        }
    }

    fn linger(&mut self, limit: Duration) -> bool {
        self.unsent = false;
        !self.ready.is_empty() || (self.waiting.is_empty() && self.port.linger(limit))
    }
}
