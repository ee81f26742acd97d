//! One job's requests: from fio's buffers into a queue of the volume, and back.
//!
//! A buffer of fio's is, where possible, a lease that the job holds from its first request to its last: fio fills it
//! and looks at it where the session sends it from and puts it. Other buffers are copied, through leases of the
//! moment. A request that is longer than the server takes at a time goes in parts, in any order.

use crate::session::Shared;
use memlane_block::volume::{Done, Errno, Flags, Info, Io, Lease, Op, Queue};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a job that has nothing under way waits for a lease before it asks again.
const FOR_A_LEASE: Duration = Duration::from_millis(1);

/// A buffer of fio's, wherever it is: only the job's thread uses it, and only while the request is fio's no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Buffer(pub(crate) *mut u8);

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// No memory now: again when something was reaped.
    Busy,
    /// Not at all.
    Error(Errno),
}

/// What fio asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) flags: Flags,
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) buffer: Buffer,
}

/// A request of fio's that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    pub(crate) index: u32,
    /// 0: none.
    pub(crate) errno: i32,
    /// Where its buffer is from now on, if it is another one than before.
    pub(crate) moved: Option<Buffer>,
}

/// One of fio's requests.
#[derive(Debug, Default)]
struct Slot {
    /// The buffer that fio made, if a lease stands in for it.
    home: Option<Buffer>,
    /// That lease, while the request is not under way.
    held: Option<Lease>,
    /// Its memory is there.
    lent_at: Option<Buffer>,
    /// Parts under way.
    left: u32,
    errno: i32,
    /// Where what was read is copied to.
    into: Option<Buffer>,
}

/// One job's requests.
pub(crate) struct Job {
    queue: Box<dyn Queue>,
    info: Info,
    slots: Vec<Slot>,
    /// Parts under way, of all.
    flying: usize,
    done: Vec<Done>,
    events: VecDeque<Event>,
    handed: Vec<Event>,
    /// Leases that are held.
    holds: u32,
    shared: Arc<Shared>,
}

/// A part's tag: whose it is, and where it begins in the request.
fn tag(index: u32, offset: u32) -> u64 {
    (u64::from(index) << 32) | u64::from(offset)
}

fn untag(tag: u64) -> (u32, u32) {
    let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default();
    (low(tag >> 32), low(tag))
}

impl Job {
    pub(crate) fn new(
        queue: Box<dyn Queue>,
        info: Info,
        depth: u32,
        shared: Arc<Shared>,
    ) -> Job {
        let mut slots = Vec::new();
        slots.resize_with(depth as usize, Slot::default);
        Job {
            queue,
            info,
            slots,
            flying: 0,
            done: Vec::new(),
            events: VecDeque::new(),
            handed: Vec::new(),
            holds: 0,
            shared,
        }
    }

    /// A lease in the place of this buffer, with what is in that. `None`: the buffer stays where it is.
    ///
    /// # Safety
    /// `buffer` has `len` readable bytes, and is not used while the request is under way.
    pub(crate) unsafe fn hold(&mut self, index: u32, buffer: Buffer, len: u64) -> Option<Buffer> {
        let len = u32::try_from(len).ok().filter(|len| *len <= self.info.max_io)?;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.home.is_some() || !self.shared.may_hold() {
            return None;
        }
        let Ok(Some(lease)) = self.queue.lease(len) else {
            self.shared.holds_no_more(1);
            return None;
        };
        self.holds += 1;
        let bytes = lease.bytes();
        // SAFETY: the caller's `len` bytes; the window checks its own bounds.
        unsafe { bytes.copy_in(0, buffer.0, len as usize) };
        let place = Buffer(bytes.as_ptr());
        slot.home = Some(buffer);
        slot.lent_at = Some(place);
        slot.held = Some(lease);
        Some(place)
    }

    // ---- in ----

    /// Takes a request; its event comes later.
    ///
    /// # Safety
    /// The buffer of one with data has `len` bytes that may be read and written until its event was handed out.
    pub(crate) unsafe fn submit(&mut self, index: u32, request: Request) -> Result<(), Refusal> {
        const INVALID: Refusal = Refusal::Error(Errno(libc::EINVAL));
        let slot = self.slots.get(index as usize).ok_or(INVALID)?;
        if slot.left > 0 {
            return Err(INVALID);
        }
        let len = u32::try_from(request.len).map_err(|_| INVALID)?;
        match request.op {
            // SAFETY: the caller's buffer.
            Op::Read | Op::Write => unsafe { self.submit_data(index, len, &request) },
            Op::Flush => {
                self.send(index, &request, 0, 0, None);
                Ok(())
            }
            Op::Trim | Op::WriteZeroes => self.submit_bare(index, len, &request),
            Op::Extents => Err(INVALID),
        }
    }

    /// # Safety
    /// As for [`submit`](Self::submit).
    unsafe fn submit_data(&mut self, index: u32, len: u32, request: &Request) -> Result<(), Refusal> {
        let slot = &mut self.slots[index as usize];
        let in_place = slot.lent_at == Some(request.buffer) && len <= self.info.max_io;
        let lease = slot.held.take_if(|lease| in_place && lease.bytes().len() >= len as usize);
        if let Some(lease) = lease {
            self.send(index, request, 0, len, Some(lease));
            return Ok(());
        }
        let parts = self.lease_parts(len)?;
        if request.op == Op::Read {
            self.slots[index as usize].into = Some(request.buffer);
        }
        for (offset, len, lease) in parts {
            if request.op == Op::Write {
                // SAFETY: `offset + len` is no more than the caller's length; the window checks its own bounds.
                unsafe {
                    let from = request.buffer.0.add(offset as usize);
                    lease.bytes().copy_in(0, from, len as usize);
                }
            }
            self.send(index, request, offset, len, Some(lease));
        }
        Ok(())
    }

    /// Memory for all parts of a request, or for none: half a request would keep what another one waits for.
    fn lease_parts(&mut self, len: u32) -> Result<Vec<(u32, u32, Lease)>, Refusal> {
        let mut parts = Vec::new();
        for (offset, part) in split(len, self.info.max_io) {
            match self.queue.lease(part) {
                Ok(Some(lease)) => parts.push((offset, part, lease)),
                Ok(None) => return Err(Refusal::Busy),
                Err(errno) => return Err(Refusal::Error(errno)),
            }
        }
        Ok(parts)
    }

    fn submit_bare(&mut self, index: u32, len: u32, request: &Request) -> Result<(), Refusal> {
        if self.info.max_trim == 0 {
            return Err(Refusal::Error(Errno(libc::EOPNOTSUPP)));
        }
        let most = self.info.max_trim & !(self.info.block - 1);
        for (offset, part) in split(len, most) {
            self.send(index, request, offset, part, None);
        }
        Ok(())
    }

    fn send(&mut self, index: u32, request: &Request, offset: u32, len: u32, lease: Option<Lease>) {
        self.queue.submit(Io {
            tag: tag(index, offset),
            op: request.op,
            at: request.at.saturating_add(offset.into()),
            len,
            flags: request.flags,
            lease,
        });
        self.slots[index as usize].left += 1;
        self.flying += 1;
    }

    pub(crate) fn push(&mut self) {
        self.queue.push();
    }

    // ---- out ----

    /// Waits for `min` events, but not longer than `limit`; how many of them, up to `max`, are to be taken.
    pub(crate) fn wait(&mut self, min: u32, max: u32, limit: Option<Duration>) -> u32 {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        if self.flying == 0 && self.events.is_empty() && min > 0 {
            // Only a request that found no lease is waited for, and its lease comes with none of our results.
            self.queue.wait(Some(limit.unwrap_or(FOR_A_LEASE).min(FOR_A_LEASE)));
        }
        while self.events.len() < min as usize && self.flying > 0 {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            self.queue.wait(left);
            self.reap();
            if left == Some(Duration::ZERO) {
                break;
            }
        }
        if self.events.len() < max as usize && min == 0 {
            self.reap();
        }
        let count = self.events.len().min(max as usize);
        self.handed.clear();
        self.handed.extend(self.events.drain(..count));
        u32::try_from(count).unwrap_or(max)
    }

    /// One of those that the last `wait` counted.
    pub(crate) fn event(&self, number: u32) -> Option<Event> {
        self.handed.get(number as usize).copied()
    }

    fn reap(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.queue.reap(&mut done);
        for part in done.drain(..) {
            self.settle(part);
        }
        self.done = done;
    }

    fn settle(&mut self, done: Done) {
        let (index, offset) = untag(done.tag);
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        self.flying -= 1;
        slot.left = slot.left.saturating_sub(1);
        if let Err(errno) = done.result {
            slot.errno = errno.0;
        }
        match (slot.into, done.lease) {
            (Some(into), Some(lease)) if done.result.is_ok() => {
                let bytes = lease.bytes();
                // SAFETY: a lease is as long as its part, which is within the buffer that `submit` was given.
                unsafe { bytes.copy_out(0, into.0.add(offset as usize), bytes.len()) };
            }
            (None, lease) if slot.home.is_some() && slot.held.is_none() => slot.held = lease,
            _ => {}
        }
        if slot.left == 0 {
            let event = Event {
                index,
                errno: std::mem::take(&mut slot.errno),
                moved: slot.settled(),
            };
            slot.into = None;
            self.events.push_back(event);
        }
    }
}

impl Slot {
    /// Where the buffer is now, if the lease that stood in for it did not come back.
    fn settled(&mut self) -> Option<Buffer> {
        let now = self.held.as_ref().map(|lease| Buffer(lease.bytes().as_ptr()));
        if self.lent_at.is_none() || now == self.lent_at {
            return None;
        }
        self.lent_at = now;
        now.or(self.home)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.shared.holds_no_more(self.holds);
    }
}

/// Pieces of at most `most` bytes: where each begins, and its length. One of no bytes if there are none.
fn split(len: u32, most: u32) -> impl Iterator<Item = (u32, u32)> {
    let count = len.div_ceil(most.max(1)).max(1);
    (0..count).map(move |n| {
        let offset = n * most;
        (offset, most.min(len - offset))
    })
}
