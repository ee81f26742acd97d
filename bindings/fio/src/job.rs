//! One job's requests: from fio's buffers into a queue of the volume, and back.
//!
//! A buffer of fio's is, where possible, a lease that the job holds from its first request to its last: fio fills it
//! and looks at it where the session sends it from and puts it. A request that is longer than the server takes at a time goes in
//! parts, in any order, whose leases are pieces of the [job's memory](crate::memory). What is in neither is copied, through
//! leases of the moment.

use crate::memory::Buffers;
use crate::session::Shared;
use memlane_block::volume::{Done, Errno, Flags, Info, Io, Lease, Op, Queue};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a job that has nothing under way waits for a lease before it asks again.
const FOR_A_LEASE: Duration = Duration::from_millis(1);
/// Requests that are sent together at most: the server is not to run dry meanwhile.
const MOST_UNPUSHED: u32 = 8;

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
    /// What it is used for now.
    current: Option<Current>,
}

/// A request that was taken.
#[derive(Debug)]
struct Current {
    request: Request,
    len: u32,
    /// What is not sent yet begins here.
    next: u32,
    /// There is such.
    more: bool,
    /// Parts under way.
    flying: u32,
    errno: i32,
    /// Its buffer is its lease.
    in_place: bool,
}

/// One job's requests.
pub(crate) struct Job {
    queue: Box<dyn Queue>,
    info: Info,
    slots: Vec<Slot>,
    /// Parts under way, of all.
    flying: usize,
    /// Requests with parts that found no lease, oldest first.
    unsent: VecDeque<u32>,
    done: Vec<Done>,
    events: VecDeque<Event>,
    handed: Vec<Event>,
    /// Requests that were taken, and whose events were not handed out.
    with_us: usize,
    /// Requests since the last push.
    unpushed: u32,
    /// Leases that are held.
    holds: u32,
    /// What fio's buffers lie in.
    buffers: Option<Buffers>,
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
    pub(crate) fn new(queue: Box<dyn Queue>, info: Info, depth: u32, shared: Arc<Shared>) -> Job {
        let mut slots = Vec::new();
        slots.resize_with(depth as usize, Slot::default);
        Job {
            queue,
            info,
            slots,
            flying: 0,
            unsent: VecDeque::new(),
            done: Vec::new(),
            events: VecDeque::new(),
            handed: Vec::new(),
            with_us: 0,
            unpushed: 0,
            holds: 0,
            buffers: None,
            shared,
        }
    }

    /// Memory for all of fio's buffers; where it begins.
    pub(crate) fn make_buffers(&mut self, len: usize) -> memlane_sys::Result<Buffer> {
        // To a chunk of a server of this host, the job's own copy is faster than the session's.
        let lends = !matches!(self.queue.chunk_file(), Ok(Some(_)));
        let buffers = Buffers::new(len, lends)?;
        let start = buffers.start();
        self.buffers = Some(buffers);
        Ok(start)
    }

    /// A lease in the place of this buffer, with what is in that. `None`: the buffer stays where it is.
    ///
    /// # Safety
    /// `buffer` has `len` readable bytes, and is not used while the request is under way.
    pub(crate) unsafe fn hold(&mut self, index: u32, buffer: Buffer, len: u64) -> Option<Buffer> {
        let len = u32::try_from(len)
            .ok()
            .filter(|len| *len <= self.info.max_io)?;
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
        // SAFETY: as here.
        let taken = unsafe { self.take(index, request) };
        if taken.is_ok() {
            self.with_us += 1;
            self.unpushed += 1;
        }
        taken
    }

    /// # Safety
    /// See [`submit`](Self::submit).
    unsafe fn take(&mut self, index: u32, request: Request) -> Result<(), Refusal> {
        const INVALID: Refusal = Refusal::Error(Errno(libc::EINVAL));
        let slot = self.slots.get_mut(index as usize).ok_or(INVALID)?;
        let len = u32::try_from(request.len).map_err(|_| INVALID)?;
        if slot.current.is_some() || request.op == Op::Extents {
            return Err(INVALID);
        }
        if request.has_data() && !self.unsent.is_empty() {
            // What comes back is for those.
            return Err(Refusal::Busy);
        }
        let held = slot.held.as_ref().map_or(0, |lease| lease.bytes().len());
        slot.current = Some(Current {
            request,
            len,
            next: 0,
            more: true,
            flying: 0,
            errno: 0,
            in_place: slot.lent_at == Some(request.buffer) && held >= len as usize,
        });
        let sent = self.advance(index);
        let begun = self.flies(index);
        match sent {
            Ok(true) => return Ok(()),
            Ok(false) if begun => {
                self.unsent.push_back(index);
                return Ok(());
            }
            Err(errno) if begun => {
                self.fail_rest(index, errno);
                return Ok(());
            }
            _ => self.slots[index as usize].current = None,
        }
        Err(sent.err().map_or(Refusal::Busy, Refusal::Error))
    }

    fn flies(&self, index: u32) -> bool {
        let current = self.slots[index as usize].current.as_ref();
        current.is_some_and(|current| current.flying > 0)
    }

    /// Sends the parts of a request for which there is memory; was that all?
    fn advance(&mut self, index: u32) -> Result<bool, Errno> {
        loop {
            let Some(slot) = self.slots.get_mut(index as usize) else {
                return Ok(true);
            };
            let Some(current) = slot.current.as_mut().filter(|current| current.more) else {
                return Ok(true);
            };
            let most = current.request.most(&self.info)?;
            let (at, len) = (current.next, most.min(current.len - current.next));
            let lease = match current.request.has_data() {
                false => None,
                true if current.in_place => slot.held.take(),
                true => match current.lease_part(&mut *self.queue, self.buffers.as_mut(), len)? {
                    Some(lease) => Some(lease),
                    None => return Ok(false),
                },
            };
            self.queue.submit(Io {
                tag: tag(index, at),
                op: current.request.op,
                at: current.request.at.saturating_add(at.into()),
                len,
                flags: current.request.flags,
                lease,
            });
            current.next += len;
            current.more = current.next < current.len;
            current.flying += 1;
            self.flying += 1;
        }
    }

    /// What is not sent of a request never will be.
    fn fail_rest(&mut self, index: u32, errno: Errno) {
        if let Some(current) = self.slots[index as usize].current.as_mut() {
            (current.errno, current.more) = (errno.0, false);
        }
        self.finish_if_over(index);
    }

    /// What found no lease before.
    fn send_unsent(&mut self) {
        while let Some(index) = self.unsent.front().copied() {
            match self.advance(index) {
                Ok(true) => {}
                Ok(false) => break,
                Err(errno) => self.fail_rest(index, errno),
            }
            self.unsent.pop_front();
        }
        self.push();
    }

    /// Sends what was taken; several at once if fio is certain to come back for an event that is there: it takes one
    /// event and hands in one request at a time, and each would be a system call of its own.
    pub(crate) fn commit(&mut self) {
        let comes_back = self.with_us == self.slots.len() && !self.events.is_empty();
        if !comes_back || self.unpushed >= MOST_UNPUSHED {
            self.push();
        }
    }

    fn push(&mut self) {
        self.unpushed = 0;
        self.queue.push();
    }

    // ---- out ----

    /// Waits for `min` events, but not longer than `limit`; how many of them, up to `max`, are to be taken.
    pub(crate) fn wait(&mut self, min: u32, max: u32, limit: Option<Duration>) -> u32 {
        if self.unpushed > 0 && self.events.len() <= min.max(1) as usize {
            self.push();
        }
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        if min > 0 && self.events.is_empty() && !self.is_busy() {
            // Only a request that found no lease is waited for, and its lease comes with none of our results.
            self.queue
                .wait(Some(limit.unwrap_or(FOR_A_LEASE).min(FOR_A_LEASE)));
        }
        while self.events.len() < min as usize && self.is_busy() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let limit = match self.flying {
                0 => Some(left.unwrap_or(FOR_A_LEASE).min(FOR_A_LEASE)),
                _ => left,
            };
            self.queue.wait(limit);
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
        self.with_us -= count;
        u32::try_from(count).unwrap_or(max)
    }

    /// One of those that the last `wait` counted.
    pub(crate) fn event(&self, number: u32) -> Option<Event> {
        self.handed.get(number as usize).copied()
    }

    fn is_busy(&self) -> bool {
        self.flying > 0 || !self.unsent.is_empty()
    }

    fn reap(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.queue.reap(&mut done);
        for part in done.drain(..) {
            self.settle(part);
        }
        self.done = done;
        if !self.unsent.is_empty() {
            self.send_unsent();
        }
    }

    fn settle(&mut self, done: Done) {
        let (index, offset) = untag(done.tag);
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        let Some(current) = slot.current.as_mut() else {
            return;
        };
        self.flying -= 1;
        current.flying -= 1;
        match (done.result, done.lease) {
            (Err(errno), _) if !current.in_place => current.errno = errno.0,
            (result, lease) if current.in_place => {
                slot.held = lease;
                current.errno = result.err().map_or(0, |errno| errno.0);
            }
            (_, Some(lease)) if current.request.op == Op::Read => current.empty(&lease, offset),
            _ => {}
        }
        self.finish_if_over(index);
    }

    fn finish_if_over(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let over = |current: &mut Current| current.flying == 0 && !current.more;
        if let Some(current) = slot.current.take_if(over) {
            let event = Event {
                index,
                errno: current.errno,
                moved: slot.moved(),
            };
            self.events.push_back(event);
        }
    }
}

impl Request {
    fn has_data(&self) -> bool {
        matches!(self.op, Op::Read | Op::Write)
    }

    /// Most bytes of a part.
    fn most(&self, info: &Info) -> Result<u32, Errno> {
        match self.op {
            Op::Read | Op::Write => Ok(info.max_io),
            Op::Trim | Op::WriteZeroes => match info.max_trim & !(info.block - 1) {
                0 => Err(Errno(libc::EOPNOTSUPP)),
                most => Ok(most),
            },
            Op::Flush | Op::Extents => Ok(u32::MAX),
        }
    }
}

impl Current {
    /// A lease for the next `len` bytes: a piece of the job's memory if they lie there, else one with a copy of what is written.
    /// `None`: there is none now.
    fn lease_part(
        &self,
        queue: &mut dyn Queue,
        buffers: Option<&mut Buffers>,
        len: u32,
    ) -> Result<Option<Lease>, Errno> {
        let part = self.part(self.next);
        if let Some(buffers) = buffers
            && let Some((memory, at)) = buffers.place(part, len)
        {
            match queue.lease_in(memory, (at, len)) {
                Err(Errno(libc::ENOSPC | libc::EOPNOTSUPP)) => buffers.lend_no_more(),
                found => return found,
            }
        }
        let lease = queue.lease(len)?;
        if let Some(lease) = lease.as_ref().filter(|_| self.request.op == Op::Write) {
            // SAFETY: `submit` was given `self.len` bytes, of which these are a part; the window checks its own bounds.
            unsafe { lease.bytes().copy_in(0, part.0, len as usize) };
        }
        Ok(lease)
    }

    /// Where the part of the buffer from `offset` on begins.
    fn part(&self, offset: u32) -> Buffer {
        Buffer(self.request.buffer.0.wrapping_add(offset as usize))
    }

    /// What was read, out of its lease, unless the lease is that part of the buffer.
    fn empty(&self, lease: &Lease, offset: u32) {
        let (bytes, part) = (lease.bytes(), self.part(offset));
        if bytes.as_ptr() == part.0 {
            return;
        }
        let len = bytes.len().min((self.len.saturating_sub(offset)) as usize);
        // SAFETY: `submit` was given `self.len` bytes, of which these are a part; the window checks its own bounds.
        unsafe { bytes.copy_out(0, part.0, len) };
    }
}

impl Slot {
    /// Where the buffer is now, if the lease that stood in for it did not come back.
    fn moved(&mut self) -> Option<Buffer> {
        let now = self
            .held
            .as_ref()
            .map(|lease| Buffer(lease.bytes().as_ptr()));
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
