//! Files by `io_uring`: reads and writes straight from and into a session's chunks, one system call for many.

use super::plain;
use super::pool::Pool;
use super::request::{Store, StoreRequest};
use super::wakeup::{Completion, Wakeup};
use crate::volume::{Errno, Flags, Op};
use io_uring::{IoUring, opcode, squeue, types};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::Arc;

/// Requests that one system call begins.
const ENTRIES: u32 = 256;
/// Results that fit before the kernel must keep them for us.
const RESULTS: u32 = 4096;
/// Among the numbers of slots: the wake-up's descriptor is readable.
const WAKEUP: u64 = u64::MAX;

/// What the kernel is doing for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The flush, or the one before a write.
    Flush,
    /// Reading or writing; this many bytes are done.
    Data(u32),
}

#[derive(Debug)]
struct Slot {
    request: StoreRequest,
    step: Step,
}

/// An `io_uring` of one thread's.
pub struct Ring {
    ring: IoUring,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// For what the ring cannot do. Its wake-up is this store's.
    slow: Pool,
    wakeup_watched: bool,
    /// Entries for which there was no room.
    waiting: Vec<squeue::Entry>,
}

impl Ring {
    /// One.
    ///
    /// # Errors
    /// `EPERM`, `ENOSYS`: not permitted here.
    pub fn new() -> io::Result<Ring> {
        // Results come when we enter the kernel anyway, not by an interrupt (Linux 5.19).
        let quiet = IoUring::builder()
            .setup_cqsize(RESULTS)
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .dontfork()
            .build(ENTRIES);
        let plain = || {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(RESULTS).dontfork().build(ENTRIES)
        };
        let ring = quiet.or_else(|_| plain())?;
        if !ring.params().is_feature_nodrop() {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        let mut ring = Ring {
            ring,
            slots: Vec::new(),
            free: Vec::new(),
            slow: Pool::new()?,
            wakeup_watched: false,
            waiting: Vec::new(),
        };
        ring.watch_wakeup();
        ring.enter(0)?;
        Ok(ring)
    }

    fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn take_slot(&mut self, slot: Slot) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.slots[at] = Some(slot);
                at
            }
            None => {
                self.slots.push(Some(slot));
                self.slots.len() - 1
            }
        }
    }

    /// The next step of a slot, as the kernel wants it.
    fn entry(&self, at: usize) -> Option<squeue::Entry> {
        let slot = self.slots.get(at)?.as_ref()?;
        let request = &slot.request;
        let entry = match slot.step {
            Step::Flush => {
                let fd = types::Fd(request.backing.file()?.fd().as_raw_fd());
                let how = types::FsyncFlags::DATASYNC;
                opcode::Fsync::new(fd).flags(how).build()
            }
            Step::Data(done) => {
                let (fd, bytes, offset) = plain::rest(request, done)?;
                let (fd, len) = (types::Fd(fd), u32::try_from(bytes.len()).ok()?);
                match request.op {
                    Op::Write => opcode::Write::new(fd, bytes.as_ptr(), len)
                        .offset(offset)
                        .rw_flags(plain::write_flags(request.flags))
                        .build(),
                    _ => opcode::Read::new(fd, bytes.as_ptr(), len)
                        .offset(offset)
                        .build(),
                }
            }
        };
        Some(entry.user_data(at as u64))
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the memory that the entry names stays mapped until its request is done (Request::data), the
        // descriptors stay open as long (the slot has the backing), and `drop` waits for all.
        if unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        // Full: what is there goes first.
        let _ = self.enter(0);
        // SAFETY: as above.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.waiting.push(entry);
        }
    }

    /// Begins (or goes on with) what a slot wants; what cannot even be described is over.
    fn go(&mut self, at: usize, into: &mut Vec<Completion>) {
        match self.entry(at) {
            Some(entry) => self.push(entry),
            None => self.end(at, Err(Errno::INVAL), into),
        }
    }

    fn end(&mut self, at: usize, result: Result<(), Errno>, into: &mut Vec<Completion>) {
        if let Some(slot) = self.slots.get_mut(at).and_then(Option::take) {
            self.free.push(at);
            into.push(Completion {
                id: slot.request.id,
                result: result.map_err(|errno| plain::as_disk(&slot.request, errno)),
            });
        }
    }

    fn by_thread(&mut self, at: usize) {
        if let Some(slot) = self.slots.get_mut(at).and_then(Option::take) {
            self.free.push(at);
            self.slow.submit(slot.request);
        }
    }

    fn watch_wakeup(&mut self) {
        if !self.wakeup_watched {
            self.wakeup_watched = true;
            let fd = types::Fd(self.slow.fd().as_raw_fd());
            let readable = u32::try_from(libc::POLLIN).unwrap_or(1);
            let entry = opcode::PollAdd::new(fd, readable).build().user_data(WAKEUP);
            self.push(entry);
        }
    }

    /// Tells the kernel what is new, and takes what it has for us. Without need there is no system call.
    fn enter(&mut self, wait: usize) -> io::Result<()> {
        let queue = self.ring.submission();
        let need = !queue.is_empty() || queue.taskrun() || queue.cq_overflow() || wait > 0;
        drop(queue);
        if need {
            self.ring.submit_and_wait(wait)?;
        }
        Ok(())
    }

    /// Takes results, and begins what follows from them. How many.
    fn reap(&mut self, into: &mut Vec<Completion>) -> usize {
        let mut taken = 0;
        loop {
            let next = self.ring.completion().next();
            let Some(result) = next else {
                return taken;
            };
            taken += 1;
            let (number, value) = (result.user_data(), result.result());
            if number == WAKEUP {
                self.wakeup_watched = false;
                continue;
            }
            if let Ok(at) = usize::try_from(number) {
                self.on_result(at, value, into);
            }
        }
    }

    fn on_result(&mut self, at: usize, value: i32, into: &mut Vec<Completion>) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        if value < 0 {
            match -value {
                // The ring will not wait for something: a thread does, from the first step on.
                libc::EINTR | libc::EAGAIN => self.by_thread(at),
                errno => self.end(at, Err(Errno(errno)), into),
            }
            return;
        }
        let data = matches!(slot.request.op, Op::Read | Op::Write);
        match slot.step {
            Step::Flush if data => {
                slot.step = Step::Data(0);
                self.go(at, into);
            }
            Step::Flush => self.end(at, Ok(()), into),
            // A read found the end, where there was none before.
            Step::Data(_) if value == 0 => {
                slot.request.backing.look();
                self.end(at, Err(Errno(libc::EIO)), into);
            }
            Step::Data(done) => {
                let done = done.saturating_add(value.unsigned_abs());
                slot.step = Step::Data(done);
                if done < slot.request.len {
                    self.go(at, into);
                } else {
                    self.end(at, Ok(()), into);
                }
            }
        }
    }
}

impl Store for Ring {
    fn submit(&mut self, request: StoreRequest) {
        let preflush = request.op == Op::Write && request.flags.has(Flags::PREFLUSH);
        let step = match request.op {
            Op::Read | Op::Write if !preflush => Step::Data(0),
            Op::Write | Op::Flush => Step::Flush,
            _ => {
                self.slow.submit(request);
                return;
            }
        };
        let at = self.take_slot(Slot { request, step });
        match self.entry(at) {
            Some(entry) => self.push(entry),
            // A request that nobody has checked: the thread says so.
            None => self.by_thread(at),
        }
    }

    fn complete(&mut self, into: &mut Vec<Completion>) {
        loop {
            for entry in std::mem::take(&mut self.waiting) {
                self.push(entry);
            }
            let entered = self.enter(0);
            if self.reap(into) == 0 {
                // The kernel has no memory for it at the moment: it must be tried again.
                if entered.is_err() || !self.waiting.is_empty() {
                    self.slow.wakeup().signal();
                }
                break;
            }
            let done = self.waiting.is_empty() && self.ring.submission().is_empty();
            if done {
                break;
            }
        }
        self.slow.complete(into);
        if !self.wakeup_watched {
            self.watch_wakeup();
            let _ = self.enter(0);
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has its descriptor as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    fn wakeup(&self) -> Arc<Wakeup> {
        self.slow.wakeup()
    }
}

impl Drop for Ring {
    /// The kernel has addresses of memory that may go after this: nothing is left under way.
    fn drop(&mut self) {
        let mut over = Vec::new();
        while self.under_way() > 0 {
            for entry in std::mem::take(&mut self.waiting) {
                self.push(entry);
            }
            if self.enter(1).is_err() {
                std::thread::yield_now();
            }
            self.reap(&mut over);
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("under_way", &self.under_way())
            .finish_non_exhaustive()
    }
}
