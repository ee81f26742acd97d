//! One queue of the volume, used by two threads: the one that takes the kernel's requests (and answers at once what
//! is done at once), and one that sleeps on the queue and answers the rest.
//!
//! A thread that releases the lock leaves the queue armed or empty, so a thread that sleeps on its descriptor misses
//! nothing.

use super::ranges::Hold;
use super::seek::{Seek, clear};
use fuser::{ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite};
use memlane_block::volume::{Done, Errno, Flags, Info, Io, Lease, Op, Queue, Volume};
use memlane_wait::event::{EventFd, poll};
use memlane_wait::mutex::{lock, wait};
use rustix::event::{PollFd, PollFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How long a thread works for the requests under way before it takes the kernel's next one.
const LINGER: Duration = Duration::from_micros(10);
/// With at most this many requests under way at once, programs wait for their answers, rather than ask for more meanwhile.
const FEW: usize = 10;
/// Of this many requests …
const PROBE_EVERY: u32 = 256;
/// … the first ones are sent without lingering, which shows how many come to be under way …
const PROBES: u32 = 16;
/// … unless these first ones had nothing beside them.
const PROBES_ALONE: u32 = 2;
/// A volume that answers none of this many lingers in a row is too slow: the thread does not linger until the next probes.
const IN_VAIN: u32 = 16;
/// Trims and the like of one request that are under way at once: it may have very many.
const WINDOW: usize = 8;

pub(super) struct Lane {
    state: Mutex<State>,
    /// Leases came back, or it is over.
    changed: Condvar,
    /// The queue's descriptor, to sleep on without the lock.
    ready: OwnedFd,
    stop: EventFd,
}

struct State {
    queue: Box<dyn Queue>,
    jobs: HashMap<u32, Job>,
    next: u32,
    done: Vec<Done>,
    /// To be answered when the lock is open.
    finished: Vec<Job>,
    load: Load,
    stopping: bool,
}

/// A request of the kernel's (or a step of one), as parts that the volume takes.
pub(super) struct Job {
    pub(super) answer: Answer,
    /// What was read.
    pub(super) data: Vec<u8>,
    /// Bytes between parts.
    step: u32,
    /// Parts under way, and one while parts are still being submitted.
    left: usize,
    rest: Rest,
    result: Result<(), Errno>,
    _hold: Option<Hold>,
}

/// The waiter for it.
pub(super) enum Answer {
    /// `len` bytes of the data, from `skip` on.
    Read(ReplyData, usize, usize),
    /// This many bytes are written.
    Write(ReplyWrite, u32),
    Empty(ReplyEmpty),
    Seek(ReplyLseek),
    /// A thread of ours.
    Thread(SyncSender<Result<Vec<u8>, Errno>>),
}

/// What is still to be submitted when a part is done.
enum Rest {
    Nothing,
    Range(Range),
    Seek(Seek),
}

/// Bytes to be trimmed or zeroed.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) op: Op,
    pub(super) at: u64,
    pub(super) end: u64,
    pub(super) step: u32,
    pub(super) flags: Flags,
}

impl Range {
    fn next(&mut self) -> Option<(u64, u32)> {
        let n = u32::try_from(self.end - self.at).unwrap_or(u32::MAX);
        let (at, n) = (self.at, n.min(self.step));
        self.at += u64::from(n);
        (n > 0).then_some((at, n))
    }
}

impl Lane {
    pub(super) fn new(volume: &dyn Volume) -> io::Result<Lane> {
        let queue = volume.queue()?;
        Ok(Lane {
            ready: queue.fd().try_clone_to_owned()?,
            stop: EventFd::new()?,
            changed: Condvar::new(),
            state: Mutex::new(State {
                queue,
                jobs: HashMap::new(),
                next: 0,
                done: Vec::new(),
                finished: Vec::new(),
                load: Load::default(),
                stopping: false,
            }),
        })
    }

    /// Reads whole blocks.
    pub(super) fn read(&self, answer: Answer, info: &Info, at: u64, len: usize) {
        let mut state = self.lock();
        let mut job = Job::new(answer, info.max_io / info.block * info.block, None);
        job.data = vec![0; len];
        let step = job.step;
        let id = state.open(job);
        let mut from = 0;
        while from < len {
            let n = step.min(u32::try_from(len - from).unwrap_or(u32::MAX));
            let (again, lease) = self.lease(state, n);
            state = again;
            match lease {
                Ok(lease) => {
                    let part = tag(id, from / step as usize);
                    state.part(id, Io::data(part, Op::Read, at + from as u64, n, lease));
                }
                Err(errno) => state.fail(id, errno),
            }
            from += n as usize;
        }
        self.submitted(state, id);
    }

    /// Writes whole blocks. Returns when the bytes have been taken over.
    pub(super) fn write(&self, answer: Answer, info: &Info, to: Target, data: &[u8]) {
        let mut state = self.lock();
        let step = info.max_io / info.block * info.block;
        let id = state.open(Job::new(answer, step, Some(to.hold)));
        for (number, part) in data.chunks(step as usize).enumerate() {
            let n = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let (again, lease) = self.lease(state, n);
            state = again;
            match lease {
                Ok(lease) if lease.fill(0, part) => {
                    let at = to.at + number as u64 * u64::from(step);
                    let io = Io::data(tag(id, number), Op::Write, at, n, lease);
                    state.part(id, io.with(to.flags));
                }
                Ok(_) => state.fail(id, Errno(libc::EIO)),
                Err(errno) => state.fail(id, errno),
            }
        }
        self.submitted(state, id);
    }

    /// Something without data; `None`: a flush.
    pub(super) fn bare(&self, answer: Answer, range: Option<Range>, hold: Option<Hold>) {
        let mut state = self.lock();
        let mut job = Job::new(answer, 0, hold);
        let Some(range) = range else {
            let id = state.open(job);
            state.part(id, Io::bare(tag(id, 0), Op::Flush, 0, 0));
            return self.submitted(state, id);
        };
        job.rest = Rest::Range(range);
        let id = state.open(job);
        for _ in 0..WINDOW {
            state.range_part(id);
        }
        self.submitted(state, id);
    }

    /// Looks for data or a hole.
    pub(super) fn seek(&self, answer: Answer, seek: Seek) {
        let (mut state, lease) = self.lease(self.lock(), seek.lease_len());
        let mut job = Job::new(answer, 0, None);
        let (at, len) = seek.asks();
        job.rest = Rest::Seek(seek);
        let id = state.open(job);
        match lease {
            Ok(lease) => {
                clear(&lease);
                state.part(id, Io::data(tag(id, 0), Op::Extents, at, len, lease));
            }
            Err(errno) => state.fail(id, errno),
        }
        self.submitted(state, id);
    }

    /// Answers what is done, until told to stop.
    pub(super) fn serve(&self) {
        let mut fds = [
            PollFd::new(&self.ready, PollFlags::IN),
            PollFd::new(&self.stop, PollFlags::IN),
        ];
        loop {
            let state = self.lock();
            if state.stopping {
                break;
            }
            self.settle(state);
            // A signal, and nothing else, ends it early; then nothing is readable.
            let _ = poll(&mut fds, None);
        }
        let jobs = std::mem::take(&mut self.lock().jobs);
        for mut job in jobs.into_values() {
            job.result = Err(Errno(libc::EIO));
            job.answer();
        }
    }

    /// Ends everything with `EIO`.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
        self.stop.signal();
    }

    fn submitted(&self, mut state: MutexGuard<'_, State>, id: u32) {
        state.part_done(id);
        self.settle(state);
    }

    /// Leaves the queue armed, and answers what is done.
    fn settle(&self, mut state: MutexGuard<'_, State>) {
        if state.turn(false) {
            self.changed.notify_all();
        }
        let finished = std::mem::take(&mut state.finished);
        drop(state);
        finished.into_iter().for_each(Job::answer);
    }

    /// Memory for data; waits for it if need be.
    fn lease<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        len: u32,
    ) -> (MutexGuard<'a, State>, Result<Lease, Errno>) {
        loop {
            if state.stopping {
                return (state, Err(Errno(libc::EIO)));
            }
            match state.queue.lease(len) {
                Ok(None) => {}
                Ok(Some(lease)) => return (state, Ok(lease)),
                Err(errno) => return (state, Err(errno)),
            }
            if state.turn(true) {
                self.changed.notify_all();
                let finished = std::mem::take(&mut state.finished);
                drop(state);
                finished.into_iter().for_each(Job::answer);
                state = self.lock();
                continue;
            }
            state = wait(&self.changed, state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Where a write goes, and how.
pub(super) struct Target {
    pub(super) at: u64,
    pub(super) flags: Flags,
    pub(super) hold: Hold,
}

/// Counts how many requests come to be under way at once, and whether lingering for them pays.
#[derive(Default)]
struct Load {
    /// Requests so far, of [`PROBE_EVERY`].
    asked: u32,
    /// The most requests under way since the last probes began.
    most: usize,
    /// Lingers in a row that found nothing.
    in_vain: u32,
}

impl Load {
    /// Counts a new request. `under_way` is the number of requests under way, with this one.
    fn one_more(&mut self, under_way: usize) {
        self.asked = (self.asked + 1) % PROBE_EVERY;
        if self.asked == 0 {
            (self.most, self.in_vain) = (0, 0);
        }
        self.most = self.most.max(under_way);
    }

    /// Do programs wait for their answers? If not, requests are taken first.
    fn lingers(&self) -> bool {
        let probes = if self.most <= 1 { PROBES_ALONE } else { PROBES };
        self.asked >= probes && self.most <= FEW && self.in_vain < IN_VAIN
    }

    fn lingered(&mut self, found: bool) {
        self.in_vain = if found { 0 } else { self.in_vain + 1 };
    }
}

impl State {
    fn open(&mut self, job: Job) -> u32 {
        self.load.one_more(self.jobs.len() + 1);
        while self.jobs.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.jobs.insert(id, job);
        id
    }

    fn part(&mut self, id: u32, io: Io) {
        if self.stopping {
            return self.fail(id, Errno(libc::EIO));
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.left += 1;
            self.queue.submit(io);
        }
    }

    fn range_part(&mut self, id: u32) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if let Rest::Range(range) = &mut job.rest
            && job.result.is_ok()
            && let Some((at, n)) = range.next()
        {
            let io = Io::bare(tag(id, 0), range.op, at, n).with(range.flags);
            self.part(id, io);
        }
    }

    fn fail(&mut self, id: u32, errno: Errno) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.result = job.result.and(Err(errno));
        }
    }

    fn part_done(&mut self, id: u32) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.left -= 1;
        if job.left == 0
            && let Some(job) = self.jobs.remove(&id)
        {
            self.finished.push(job);
        }
    }

    /// Sends, and takes what is done, until there is nothing left and the queue is armed; it need not be while nothing is
    /// under way, if nobody waits for a lease. Says whether leases may have come back.
    fn turn(&mut self, for_lease: bool) -> bool {
        let (mut changed, mut empty) = (false, 0);
        loop {
            self.queue.push();
            if !self.jobs.is_empty() && self.load.lingers() {
                // There is little to send until something is done: no other thread need wake up for its answer.
                let found = self.queue.linger(LINGER);
                self.load.lingered(found);
            }
            let mut done = std::mem::take(&mut self.done);
            let n = self.queue.reap(&mut done);
            for part in done.drain(..) {
                self.take(part);
            }
            self.done = done;
            changed |= n > 0;
            if self.jobs.is_empty() && !for_lease {
                return changed;
            }
            empty = if n == 0 { empty + 1 } else { 0 };
            if !self.queue.arm() {
                return changed;
            }
            if empty == 2 {
                // Nothing came between `reap` and `arm` either: a lease can be had. Who waits for it comes here again.
                return true;
            }
        }
    }

    fn take(&mut self, part: Done) {
        let id = u32::try_from(part.tag >> 32).unwrap_or(u32::MAX);
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        match (part.result, &mut job.rest) {
            (Err(errno), _) => job.result = job.result.and(Err(errno)),
            (Ok(()), Rest::Nothing) => job.keep(&part),
            (Ok(()), Rest::Range(_)) => self.range_part(id),
            (Ok(()), Rest::Seek(seek)) => {
                let next = part.lease.and_then(|lease| seek.step(lease));
                if let Some((at, len, lease)) = next {
                    self.part(id, Io::data(tag(id, 0), Op::Extents, at, len, lease));
                }
            }
        }
        self.part_done(id);
    }
}

impl Job {
    fn new(answer: Answer, step: u32, hold: Option<Hold>) -> Job {
        Job {
            answer,
            data: Vec::new(),
            step,
            left: 1,
            rest: Rest::Nothing,
            result: Ok(()),
            _hold: hold,
        }
    }

    /// Copies what was read out of the lease: the kernel takes it from memory that only we can write.
    fn keep(&mut self, part: &Done) {
        let number = usize::try_from(part.tag & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let from = number.saturating_mul(self.step as usize);
        let Some(into) = self.data.get_mut(from..) else {
            return;
        };
        let n = into.len().min(self.step as usize);
        let taken = part
            .lease
            .as_ref()
            .map(|lease| lease.take(0, &mut into[..n]));
        if n > 0 && taken != Some(true) {
            self.result = Err(Errno(libc::EIO));
        }
    }

    fn answer(self) {
        let Job {
            answer,
            data,
            result,
            rest,
            _hold: hold,
            ..
        } = self;
        // Before the kernel or a waiter learns of it, so that the next request finds its bytes free.
        drop(hold);
        let failed = |errno: Errno| fuser::Errno::from_i32(errno.0);
        match (answer, result) {
            (Answer::Read(reply, skip, len), Ok(())) => match data.get(skip..skip + len) {
                Some(data) => reply.data(data),
                None => reply.error(fuser::Errno::EIO),
            },
            (Answer::Read(reply, ..), Err(errno)) => reply.error(failed(errno)),
            (Answer::Write(reply, len), Ok(())) => reply.written(len),
            (Answer::Write(reply, _), Err(errno)) => reply.error(failed(errno)),
            (Answer::Empty(reply), Ok(())) => reply.ok(),
            (Answer::Empty(reply), Err(errno)) => reply.error(failed(errno)),
            (Answer::Seek(reply), Ok(())) => match &rest {
                Rest::Seek(seek) => match seek.found() {
                    Ok(at) => reply.offset(at),
                    Err(errno) => reply.error(failed(errno)),
                },
                _ => reply.error(fuser::Errno::EIO),
            },
            (Answer::Seek(reply), Err(errno)) => reply.error(failed(errno)),
            // Who waits may have gone.
            (Answer::Thread(thread), result) => drop(thread.send(result.map(|()| data))),
        }
    }
}

fn tag(job: u32, part: usize) -> u64 {
    u64::from(job) << 32 | part as u64 & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_block::volume::mem::MemVolume;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::sync_channel;

    /// What is done becomes known in `arm`, after `reap` has found nothing.
    struct Late(MemVolume);

    struct LateQueue {
        inner: Box<dyn Queue>,
        known: bool,
    }

    impl Volume for Late {
        fn info(&self) -> Info {
            self.0.info()
        }

        fn queue(&self) -> io::Result<Box<dyn Queue>> {
            let inner = self.0.queue()?;
            Ok(Box::new(LateQueue {
                inner,
                known: false,
            }))
        }
    }

    impl Queue for LateQueue {
        fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno> {
            self.inner.lease(len)
        }

        fn submit(&mut self, io: Io) {
            self.known = false;
            self.inner.submit(io);
        }

        fn push(&mut self) {}

        fn reap(&mut self, into: &mut Vec<Done>) -> usize {
            if self.known { self.inner.reap(into) } else { 0 }
        }

        fn arm(&mut self) -> bool {
            self.known = true;
            self.inner.arm()
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.inner.fd()
        }

        fn wait(&mut self, limit: Option<Duration>) {
            self.inner.wait(limit);
        }
    }

    #[test]
    fn what_is_done_between_a_look_and_the_sleep_is_answered() {
        let volume = Late(MemVolume::new(1 << 20).unwrap());
        let lane = Lane::new(&volume).unwrap();
        let (tell, told) = sync_channel(1);
        lane.read(Answer::Thread(tell), &volume.info(), 0, 4096);
        assert_eq!(
            told.try_recv().map(|read| read.map(|d| d.len())),
            Ok(Ok(4096))
        );
    }

    /// What is done becomes known in `linger`, which is counted.
    struct Lingering(MemVolume, Arc<AtomicU32>);

    struct LingeringQueue {
        late: LateQueue,
        count: Arc<AtomicU32>,
    }

    impl Volume for Lingering {
        fn info(&self) -> Info {
            self.0.info()
        }

        fn queue(&self) -> io::Result<Box<dyn Queue>> {
            let late = LateQueue {
                inner: self.0.queue()?,
                known: false,
            };
            let count = Arc::clone(&self.1);
            Ok(Box::new(LingeringQueue { late, count }))
        }
    }

    impl Queue for LingeringQueue {
        fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno> {
            self.late.lease(len)
        }

        fn submit(&mut self, io: Io) {
            self.late.submit(io);
        }

        fn push(&mut self) {}

        fn reap(&mut self, into: &mut Vec<Done>) -> usize {
            self.late.reap(into)
        }

        fn arm(&mut self) -> bool {
            false
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.late.fd()
        }

        fn wait(&mut self, limit: Option<Duration>) {
            self.late.wait(limit);
        }

        fn linger(&mut self, _: Duration) -> bool {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.late.known = true;
            true
        }
    }

    #[test]
    fn few_requests_are_answered_by_the_thread_that_took_them() {
        let count = Arc::new(AtomicU32::new(0));
        let volume = Lingering(MemVolume::new(1 << 20).unwrap(), Arc::clone(&count));
        let lane = Lane::new(&volume).unwrap();
        let ask = || {
            let (tell, told) = sync_channel(1);
            lane.read(Answer::Thread(tell), &volume.info(), 0, 4096);
            told.try_recv().is_ok()
        };
        let lingered = || count.swap(0, Ordering::Relaxed);
        let begin_probes = || lane.lock().load.asked = PROBE_EVERY - 1;
        // The first ones show that nothing else is under way.
        begin_probes();
        for _ in 0..PROBES_ALONE {
            assert!(!ask() && lingered() == 0);
            lane.lock().jobs.clear();
        }
        assert!(ask() && lingered() == 1);
        // Several at once, but few.
        begin_probes();
        for _ in 0..PROBES {
            assert!(!ask() && lingered() == 0);
            if lane.lock().jobs.len() == FEW {
                lane.lock().jobs.clear();
            }
        }
        assert!(ask() && lingered() == 1);
        // So many that they are taken first.
        begin_probes();
        for _ in 0..FEW + PROBES as usize {
            assert!(!ask() && lingered() == 0);
        }
    }

    #[test]
    fn lingers_in_vain_end_until_the_next_probes() {
        let mut load = Load::default();
        (0..PROBES_ALONE).for_each(|_| load.one_more(1));
        (0..IN_VAIN).for_each(|_| {
            assert!(load.lingers());
            load.lingered(false);
        });
        assert!(!load.lingers());
        (0..PROBE_EVERY).for_each(|_| load.one_more(1));
        assert!(load.lingers());
    }
}
