//! One virtqueue and one queue of the volume: takes requests, and puts answers back.

use super::request::{ID_LEN, Request, S_IOERR, S_OK, S_UNSUPP, What, parse, transfer};
use super::ring::Virtqueue;
use memlane_block::volume::{Done, Errno, Flags, Info, Io, Op, Queue, Volume};
use memlane_virtio::chain::pieces_of;
use memlane_virtio::memory::Snapshot;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vm_memory::{Bytes as _, GuestMemoryMmap};

/// Parts of one request that are under way at once: a discard may have very many.
const WINDOW: usize = 16;

pub(super) struct Worker {
    volume: Arc<dyn Volume>,
    queue: Box<dyn Queue>,
    serial: [u8; ID_LEN],
    active: HashMap<u32, Active>,
    next: u32,
    /// Requests for whose next part there was no lease.
    starved: VecDeque<u32>,
    /// Most requests under way: what the ring holds.
    limit: usize,
    done: Vec<Done>,
    finished: Vec<Active>,
}

/// A request under way.
struct Active {
    head: u16,
    memory: Snapshot,
    request: Request,
    /// Bytes (or, of ranges, which one and how much of it) that are submitted.
    cursor: u64,
    range: usize,
    parts: u32,
    step: u32,
    flags: Flags,
    left: usize,
    status: u8,
}

impl Worker {
    pub(super) fn new(
        volume: Arc<dyn Volume>,
        serial: [u8; ID_LEN],
        limit: usize,
    ) -> std::io::Result<Worker> {
        Ok(Worker {
            queue: volume.queue()?,
            volume,
            serial,
            active: HashMap::new(),
            next: 0,
            starved: VecDeque::new(),
            limit,
            done: Vec::new(),
            finished: Vec::new(),
        })
    }

    pub(super) fn queue(&self) -> &dyn Queue {
        &*self.queue
    }

    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Does what can be done now; `durable`, asked for each request: must writes be? Afterwards the ring's kick, or the queue's descriptor, tells of more.
    pub(super) fn turn(
        &mut self,
        ring: &Virtqueue,
        durable: &dyn Fn() -> bool,
        stopping: &AtomicBool,
    ) {
        let (mut tries, mut told) = (0, false);
        loop {
            // Looked at each time: a guest that never ends asking must not keep us here.
            let stopping = stopping.load(Ordering::SeqCst);
            let mut busy = !stopping && self.collect(ring, durable);
            busy |= self.reap();
            busy |= self.feed();
            self.answer(ring);
            if busy {
                (tries, told) = (0, false);
            } else if tries < 3 && self.queue.arm() {
                // A lease is free that no request wants any more: take it, so that it is not reported again.
                drop(self.queue.lease(self.volume.info().block));
                tries += 1;
            } else if stopping || self.is_full() || !ring.enable_notification().unwrap_or(false) {
                return;
            } else if std::mem::replace(&mut told, true) {
                // There should be something, and there was nothing: the ring's index cannot be (a guest that boots
                // again has wiped it, or lies). Its next kick has us look again.
                return;
            }
        }
    }

    /// Ends everything as failed; what the volume still does is forgotten.
    pub(super) fn give_up(&mut self, ring: &Virtqueue) {
        self.starved.clear();
        let failed = self.active.drain().map(|(_, active)| active);
        self.finished.extend(failed.map(|active| Active {
            status: S_IOERR,
            ..active
        }));
        self.answer(ring);
    }

    /// More waits for something to be done first.
    fn is_full(&self) -> bool {
        self.active.len() >= self.limit || !self.starved.is_empty()
    }

    /// Takes requests out of the ring.
    fn collect(&mut self, ring: &Virtqueue, durable: &dyn Fn() -> bool) -> bool {
        let _ = ring.disable_notification();
        let mut any = false;
        while !self.is_full() {
            let Some((chain, memory)) = ring.pop() else {
                break;
            };
            any = true;
            let info = self.volume.info();
            let head = chain.head_index();
            let mut pieces = Vec::new();
            let whole = pieces_of(chain, LONG, &mut pieces);
            let request = parse(&memory, pieces.into_iter(), || whole, &info);
            self.begin(head, memory, request, &info, durable());
        }
        any
    }

    fn begin(&mut self, head: u16, memory: Snapshot, request: Request, info: &Info, durable: bool) {
        while self.active.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let whole = |most: u32| most - most % info.block;
        let (flags, step) = match &request.what {
            What::Ranges { flags, .. } => (*flags, whole(info.max_trim)),
            _ => (Flags::NONE, whole(info.max_io)),
        };
        let writes = !matches!(&request.what, What::Data { op: Op::Read, .. } | What::Flush);
        let durable = durable && writes;
        let active = Active {
            head,
            memory,
            request,
            cursor: 0,
            range: 0,
            parts: 0,
            step: step.max(info.block),
            flags: if durable {
                flags.and(Flags::FUA)
            } else {
                flags
            },
            left: 0,
            status: S_OK,
        };
        self.active.insert(id, active);
        self.advance(id);
    }

    /// Submits what of a request can be submitted.
    fn advance(&mut self, id: u32) {
        let Some(active) = self.active.get_mut(&id) else {
            return;
        };
        while active.status == S_OK && active.left < WINDOW {
            let Some(next) = active.next(&self.serial) else {
                break;
            };
            let tag = u64::from(id) << 32 | u64::from(active.parts);
            let io = match next {
                Next::Bare(op, at, len) => Io::bare(tag, op, at, len),
                Next::Data(op, at, len) => match self.queue.lease(len) {
                    Ok(Some(lease)) => {
                        let window = lease.bytes().part(0, len as usize);
                        let filled = op == Op::Read
                            || window
                                .is_some_and(|window| active.copy(active.cursor, window, false));
                        if !filled {
                            active.status = S_IOERR;
                            break;
                        }
                        Io::data(tag, op, at, len, lease)
                    }
                    Ok(None) => {
                        self.starved.push_back(id);
                        return;
                    }
                    Err(_) => {
                        active.status = S_IOERR;
                        break;
                    }
                },
            };
            let flags = if io.op == Op::Flush {
                Flags::NONE
            } else {
                active.flags
            };
            active.submitted(io.len);
            self.queue.submit(io.with(flags));
        }
        if active.left == 0
            && let Some(active) = self.active.remove(&id)
        {
            self.finished.push(active);
        }
    }

    /// Takes what the volume has done.
    fn reap(&mut self) -> bool {
        self.queue.push();
        let mut done = std::mem::take(&mut self.done);
        let n = self.queue.reap(&mut done);
        for part in done.drain(..) {
            let id = u32::try_from(part.tag >> 32).unwrap_or(u32::MAX);
            if let Some(active) = self.active.get_mut(&id) {
                active.take(&part);
            }
            drop(part);
            if !self.starved.contains(&id) {
                self.advance(id);
            }
        }
        self.done = done;
        n > 0
    }

    /// Tries again those for whom there was no lease.
    fn feed(&mut self) -> bool {
        let waiting = self.starved.len();
        for _ in 0..waiting {
            let Some(id) = self.starved.pop_front() else {
                break;
            };
            self.advance(id);
            if self.starved.back() == Some(&id) {
                // Still none: the order stays.
                self.starved.rotate_right(1);
                break;
            }
        }
        self.starved.len() < waiting
    }

    /// Tells the guest what is done.
    fn answer(&mut self, ring: &Virtqueue) {
        if self.finished.is_empty() {
            return;
        }
        for active in self.finished.drain(..) {
            let written = active.tell();
            // A ring that lies outside of the memory is the guest's own loss.
            let _ = ring.add_used(active.head, written);
        }
        if ring.needs_notification().unwrap_or(true) {
            let _ = ring.signal();
        }
    }
}

/// Descriptors that are looked at; `parse` allows less.
pub(super) const LONG: usize = 1100;

enum Next {
    Bare(Op, u64, u32),
    Data(Op, u64, u32),
}

impl Active {
    /// The next part; none: all of them are submitted.
    fn next(&mut self, serial: &[u8; ID_LEN]) -> Option<Next> {
        let step = u64::from(self.step);
        match &self.request.what {
            What::Data { op, at, len } => {
                let n = u32::try_from(step.min(len - self.cursor)).ok()?;
                (n > 0).then(|| Next::Data(*op, at + self.cursor, n))
            }
            What::Ranges { op, each, .. } => {
                let (at, len) = each.get(self.range)?;
                let n = u32::try_from(step.min(len - self.cursor)).ok()?;
                Some(Next::Bare(*op, at + self.cursor, n))
            }
            What::Flush => (self.parts == 0).then_some(Next::Bare(Op::Flush, 0, 0)),
            What::Id => {
                self.status = self.identify(serial);
                None
            }
            What::Refused(how) => {
                self.status = *how;
                None
            }
        }
    }

    fn submitted(&mut self, len: u32) {
        self.left += 1;
        self.parts = self.parts.wrapping_add(1);
        self.cursor += u64::from(len);
        if let What::Ranges { each, .. } = &self.request.what
            && each
                .get(self.range)
                .is_some_and(|(_, len)| self.cursor >= *len)
        {
            self.range += 1;
            self.cursor = 0;
        }
    }

    fn take(&mut self, part: &Done) {
        self.left = self.left.saturating_sub(1);
        let good = match (part.result, &self.request.what) {
            (Err(Errno(libc::EOPNOTSUPP)), _) => {
                self.status = self.status.max(S_UNSUPP);
                return;
            }
            (Err(_), _) => false,
            (
                Ok(()),
                What::Data {
                    op: Op::Read, len, ..
                },
            ) => {
                let number = part.tag & u64::from(u32::MAX);
                let from = number * u64::from(self.step);
                let n = u64::from(self.step).min(len.saturating_sub(from));
                let window = part.lease.as_ref().map(memlane_block::volume::Lease::bytes);
                let window = usize::try_from(n).ok().and_then(|n| window?.part(0, n));
                window.is_some_and(|window| self.copy(from, window, true))
            }
            (Ok(()), _) => true,
        };
        if !good {
            self.status = S_IOERR;
        }
    }

    fn copy(&self, from: u64, window: memlane_core::access::SharedBytes, to_guest: bool) -> bool {
        transfer(&self.memory, &self.request.pieces, from, window, to_guest)
    }

    /// The answer to "who are you?".
    fn identify(&self, serial: &[u8; ID_LEN]) -> u8 {
        let mut rest = &serial[..];
        for piece in &self.request.pieces {
            let (now, later) = rest.split_at(rest.len().min(piece.len as usize));
            if self.memory.write_slice(now, piece.at).is_err() {
                return S_IOERR;
            }
            rest = later;
        }
        if rest.is_empty() { S_OK } else { S_IOERR }
    }

    /// Writes the status; how many bytes the guest may believe.
    fn tell(&self) -> u32 {
        let Some(status) = self.request.status else {
            return 0;
        };
        let memory: &GuestMemoryMmap = &self.memory;
        if memory.write_obj(self.status, status).is_err() {
            return 0;
        }
        let data = match &self.request.what {
            What::Data {
                op: Op::Read, len, ..
            } if self.status == S_OK => *len,
            What::Id if self.status == S_OK => ID_LEN as u64,
            _ => 0,
        };
        u32::try_from(data + 1).unwrap_or(u32::MAX)
    }
}
