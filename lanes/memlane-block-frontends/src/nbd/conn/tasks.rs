//! What the volume is asked for, and what is said about it.

use super::{Conn, EXTENTS_LEN, Kind, Pending, Task};
use crate::nbd::lock::HeldRange;
use crate::nbd::outbox::{Body, Leased};
use crate::nbd::request::Span;
use crate::nbd::stats::add;
use crate::nbd::wire::{self, Request, cmd};
use memlane_block::volume::{Done, EXTENT_LEN, Flags, Io, Lease, Op};

impl Conn<'_> {
    /// Bytes that change are held while they do.
    pub(super) fn change(&mut self, pending: u32, kind: Kind, io: Io) {
        let alone = matches!(kind, Kind::Patch { .. });
        let range = (io.at, io.at + u64::from(io.len));
        let key = self.tasks.next_key();
        let held = self
            .around
            .lock
            .acquire(range, alone, self.around.wakeup, key);
        match held {
            Some(held) => self.submit(pending, kind, io, Some(held)),
            None => self.park(pending, kind, io, key),
        }
    }

    fn park(&mut self, pending: u32, kind: Kind, io: Io, key: u32) {
        if let Some(waiting) = self.pending.get_mut(pending) {
            waiting.open += 1;
        }
        let task = Task {
            pending,
            held: None,
            parked: Some(io),
            kind,
        };
        let at = self.tasks.insert(task);
        debug_assert_eq!(at, key, "the range is granted to this task");
    }

    /// A part of a block: read it first.
    pub(super) fn patch(
        &mut self,
        pending: u32,
        lease: Lease,
        block: u64,
        from: u32,
        bytes: Vec<u8>,
        flags: Flags,
    ) {
        let kind = Kind::Patch {
            block,
            from,
            bytes,
            flags,
        };
        let io = Io::data(0, Op::Read, block, self.terms.info.block, lease);
        self.change(pending, kind, io);
    }

    pub(super) fn submit(&mut self, pending: u32, kind: Kind, io: Io, held: Option<HeldRange>) {
        if let Some(waiting) = self.pending.get_mut(pending) {
            waiting.open += 1;
        }
        let tag = self.tasks.insert(Task {
            pending,
            held,
            parked: None,
            kind,
        });
        self.queue.submit(Io {
            tag: u64::from(tag),
            ..io
        });
    }

    /// Takes back what is done, and gives out what waited for the range lock.
    pub(super) fn reap(&mut self) -> bool {
        let granted = self.around.wakeup.granted();
        let mut progress = !granted.is_empty();
        for (key, held) in granted {
            let Some(task) = self.tasks.get_mut(key) else {
                self.around.lock.release(held);
                continue;
            };
            task.held = Some(held);
            if let Some(io) = task.parked.take() {
                let tag = u64::from(key);
                self.queue.submit(Io { tag, ..io });
            }
        }
        if self.tasks.is_empty() && !std::mem::take(&mut self.woken) {
            // Nothing can come, and to ask may cost system calls.
            return progress;
        }
        let mut done = std::mem::take(&mut self.done);
        self.queue.reap(&mut done);
        progress |= !done.is_empty();
        for done in done.drain(..) {
            self.finished(done);
        }
        self.done = done;
        progress
    }

    fn finished(&mut self, mut done: Done) {
        let Ok(key) = u32::try_from(done.tag) else {
            return;
        };
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        if let Some(io) = write_back(task, key, &mut done) {
            return self.queue.submit(io);
        }
        let Some(mut task) = self.tasks.remove(key) else {
            return;
        };
        if let Some(held) = task.held.take() {
            self.around.lock.release(held);
        }
        if let Kind::Fetch(span) = task.kind {
            return self.fetched(span, done);
        }
        if let Some(waiting) = self.pending.get_mut(task.pending) {
            waiting.open -= 1;
            match done.result {
                Ok(()) => self.succeeded(&task, done.lease),
                Err(errno) => self.fail(task.pending, wire::error_of(errno.0)),
            }
        }
        self.finish_if_done(task.pending);
    }

    /// A piece is done: what it brought goes out, or is kept until the rest is there.
    fn succeeded(&mut self, task: &Task, lease: Option<Lease>) {
        let Some(waiting) = self.pending.get_mut(task.pending) else {
            return;
        };
        let Some(lease) = lease else {
            return;
        };
        match task.kind {
            Kind::Plain | Kind::Patch { .. } | Kind::Fetch(_) => {}
            Kind::Read(_) if waiting.error != 0 => {}
            Kind::Read(span) if waiting.in_place > 0 => {
                let (cookie, at, len) =
                    (waiting.request.cookie, waiting.request.at, waiting.in_place);
                waiting.told = true;
                let rest = leased(lease, span);
                let all = len + rest.len;
                let body = Body::InPlace { at, len, rest };
                match self.terms.structured {
                    true => self.outbox.data(true, cookie, at, all, body),
                    false => self.outbox.simple(0, cookie, body),
                }
            }
            Kind::Read(span) => {
                let (cookie, at) = (waiting.request.cookie, span.at + u64::from(span.skip));
                if let Some(gathered) = &mut waiting.gathered {
                    let from = usize::try_from(at - waiting.request.at).unwrap_or(usize::MAX);
                    let into = gathered
                        .get_mut(from..)
                        .and_then(|g| g.get_mut(..span.take as usize));
                    if let Some(into) = into {
                        lease.take(span.skip as usize, into);
                    }
                    return;
                }
                let last = waiting.open == 0 && !waiting.more;
                waiting.told = last;
                let (len, body) = (span.take, Body::Lease(leased(lease, span)));
                match self.terms.structured {
                    true => self.outbox.data(last, cookie, at, len, body),
                    false => self.outbox.simple(0, cookie, body),
                }
            }
            Kind::Extents => {
                waiting.told = true;
                let request = waiting.request;
                let extents = extents(&request, &lease, self.terms.info.block);
                self.outbox.status(request.cookie, &extents);
            }
        }
    }

    /// The first error of a request counts.
    pub(super) fn fail(&mut self, pending: u32, error: u32) {
        if let Some(waiting) = self.pending.get_mut(pending)
            && waiting.error == 0
        {
            waiting.error = error;
        }
    }

    /// Says how a request ended, if it has.
    pub(super) fn finish_if_done(&mut self, pending: u32) {
        let over = |waiting: &mut Pending| waiting.open == 0 && !waiting.more;
        if !self.pending.get_mut(pending).is_some_and(over) {
            return;
        }
        let Some(waiting) = self.pending.remove(pending) else {
            return;
        };
        let request = waiting.request;
        self.count(&request, waiting.error);
        self.gathered -= waiting.gathered.as_ref().map_or(0, Vec::len);
        if waiting.told {
            return;
        }
        match waiting.gathered {
            Some(bytes) if waiting.error == 0 => {
                let body = Body::Bytes(bytes);
                match self.terms.structured {
                    true => self
                        .outbox
                        .data(true, request.cookie, request.at, request.len, body),
                    false => self.outbox.simple(0, request.cookie, body),
                }
            }
            _ => self.say(&request, waiting.error),
        }
    }

    /// A reply without data.
    pub(super) fn answer(&mut self, request: &Request, error: u32) {
        self.count(request, error);
        self.say(request, error);
    }

    fn say(&mut self, request: &Request, error: u32) {
        let chunks = matches!(request.command, cmd::READ | cmd::BLOCK_STATUS);
        match self.terms.structured && chunks {
            true => self.outbox.end(error, request.cookie),
            false => self.outbox.simple(error, request.cookie, Body::Empty),
        }
    }

    fn count(&self, request: &Request, error: u32) {
        let stats = self.around.stats;
        if error != 0 {
            return add(&stats.errors, 1);
        }
        match request.command {
            cmd::READ => add(&stats.read_bytes, request.len.into()),
            cmd::WRITE => add(&stats.written_bytes, request.len.into()),
            _ => {}
        }
    }
}

/// What is wanted of a span that was read.
pub(super) fn leased(lease: Lease, span: Span) -> Leased {
    Leased {
        lease,
        at: span.skip,
        len: span.take,
    }
}

/// A block that was read to be changed in part: the part goes in, and it is written, still held.
fn write_back(task: &mut Task, key: u32, done: &mut Done) -> Option<Io> {
    let Kind::Patch {
        block,
        from,
        bytes,
        flags,
    } = &task.kind
    else {
        return None;
    };
    if done.result.is_err() {
        return None;
    }
    let lease = done.lease.take()?;
    let (at, flags) = (*block, *flags);
    if !lease.fill(*from as usize, bytes) {
        done.result = Err(memlane_block::volume::Errno(libc::EIO));
        return None;
    }
    let len = u32::try_from(lease.bytes().len()).ok()?;
    task.kind = Kind::Plain;
    Some(Io::data(key.into(), Op::Write, at, len, lease).with(flags))
}

/// What the volume says about the bytes, as `(length, state)`, from the request's first byte to its last at most.
fn extents(request: &Request, lease: &Lease, block: u32) -> Vec<(u32, u32)> {
    let most = lease.bytes().len().min(EXTENTS_LEN as usize) / EXTENT_LEN;
    let only_one = request.flags & wire::cmd_flag::REQ_ONE != 0;
    // The volume was asked from the beginning of a block on.
    let mut skip = request.at % u64::from(block);
    let mut left = u64::from(request.len);
    let mut extents: Vec<(u32, u32)> = Vec::new();
    for i in 0..most {
        let mut record = [0; EXTENT_LEN];
        let (len, state) = match lease.take(i * EXTENT_LEN, &mut record) {
            true => extent(&record),
            false => (0, 0),
        };
        if len == 0 || left == 0 {
            break;
        }
        let covered = len.saturating_sub(skip).min(left);
        skip = skip.saturating_sub(len);
        left -= covered;
        let covered = u32::try_from(covered).unwrap_or(u32::MAX);
        match extents.last_mut() {
            _ if covered == 0 => {}
            Some((before, same)) if *same == state => *before += covered,
            _ => extents.push((covered, state)),
        }
    }
    extents.truncate(if only_one { 1 } else { most });
    if extents.is_empty() {
        extents.push((request.len, 0));
    }
    extents
}

fn extent(record: &[u8; EXTENT_LEN]) -> (u64, u32) {
    let mut len = [0; 8];
    let mut state = [0; 4];
    len.copy_from_slice(&record[..8]);
    state.copy_from_slice(&record[8..12]);
    (
        u64::from_le_bytes(len),
        u32::from_le_bytes(state) & wire::STATE_BITS,
    )
}
