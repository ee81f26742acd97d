//! One of a device's queues: a thread that takes the kernel's requests and has the volume do them.
//!
//! Each request has a tag. A command of `io_uring` for each tag brings the kernel's next request, and takes the
//! result of the last one with it. Data goes straight between the kernel's pages and the volume's lease, by a
//! system call for each request (`UBLK_F_USER_COPY`).

use super::abi::{self, F_FUA, F_NOUNMAP, IoCommand, WANTED_LEN, Wanted, op};
use io_uring::{IoUring, opcode, types};
use memlane_block::volume::{Done, Errno, Flags, Io, Lease, Op, Queue};
use memlane_core::access::SharedBytes;
use memlane_wait::event::EventFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `include/uapi/linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
/// Among the numbers of tags: the volume's queue has something.
const VOLUME: u64 = 1 << 32;
/// Among the numbers of tags: another thread has signalled.
const EVENT: u64 = 1 << 33;

/// What other threads signal to a queue.
#[derive(Debug)]
pub(super) struct QueueSignals {
    pub(super) event: EventFd,
    /// Everything ends with `EIO`, now.
    pub(super) give_up: AtomicBool,
}

/// The kernel's descriptors of what it wants, mapped.
struct Descriptors {
    base: NonNull<c_void>,
    len: usize,
}

impl Descriptors {
    fn map(device: &OwnedFd, number: u16, depth: u16) -> io::Result<Descriptors> {
        let page = rustix::param::page_size();
        let len = (usize::from(depth) * WANTED_LEN).next_multiple_of(page);
        let at = abi::descriptors_at(number, page);
        let (read, shared) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), len, read, shared, device, at)? };
        let base = NonNull::new(base).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Descriptors { base, len })
    }

    fn of(&self, tag: u16) -> Option<Wanted> {
        // SAFETY: mapped, readable and so long, until `self` is dropped, which is after this call.
        let bytes = unsafe { SharedBytes::read_only(self.base.cast(), self.len) };
        let mut wanted = [0; WANTED_LEN];
        // SAFETY: `wanted` is writable and so long.
        let whole = unsafe {
            bytes.copy_out(
                usize::from(tag) * WANTED_LEN,
                wanted.as_mut_ptr(),
                WANTED_LEN,
            )
        };
        whole.then(|| Wanted::decode(&wanted))
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody has its address any more.
        let _ = unsafe { munmap(self.base.as_ptr(), self.len) };
    }
}

/// What a tag is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The kernel has it.
    Waits,
    /// The volume has it, or will have it when there is a lease.
    Busy(Wanted),
    /// The kernel wants nothing more.
    Over,
}

pub(super) struct Worker {
    number: u16,
    ring: IoUring,
    descriptors: Descriptors,
    device: Arc<OwnedFd>,
    told: Arc<QueueSignals>,
    tags: Vec<State>,
    queue: Box<dyn Queue>,
    /// Tags for whose data there was no lease.
    starved: VecDeque<u16>,
    /// One for each request, so that what comes back late, for one that was given up, is not mistaken.
    turn: u64,
    turns: Vec<u64>,
    done: Vec<Done>,
    watched: u64,
}

impl Worker {
    /// One that has asked for its first requests. The thread that makes it must be the one that runs it.
    pub(super) fn start(
        number: u16,
        depth: u16,
        device: Arc<OwnedFd>,
        told: Arc<QueueSignals>,
        queue: Box<dyn Queue>,
    ) -> io::Result<Worker> {
        let entries = u32::from(depth).next_power_of_two() * 2;
        let ring = IoUring::builder().dontfork().build(entries.max(8))?;
        let mut worker = Worker {
            number,
            ring,
            descriptors: Descriptors::map(&device, number, depth)?,
            device,
            told,
            tags: vec![State::Waits; depth.into()],
            queue,
            starved: VecDeque::new(),
            turn: 0,
            turns: vec![0; depth.into()],
            done: Vec::new(),
            watched: 0,
        };
        for tag in 0..depth {
            worker.command(abi::FETCH_REQ, tag, 0);
        }
        worker.ring.submit()?;
        // One that is refused is answered at once.
        let refused = worker.ring.completion().find(|answer| answer.result() < 0);
        match refused {
            Some(refused) => Err(io::Error::from_raw_os_error(-refused.result())),
            None => Ok(worker),
        }
    }

    /// Serves until the kernel wants nothing more; gives back the volume's queue, which may have to wait for what it
    /// still does.
    pub(super) fn run(mut self) -> Box<dyn Queue> {
        // The kernel may need us to get memory: then our own requests for memory must not wait for the device.
        // SAFETY: takes numbers only. Without CAP_SYS_RESOURCE it fails, and is not needed to work.
        unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
        while self.tags.iter().any(|tag| *tag != State::Over) {
            let mut busy = self.take_in();
            if self.told.give_up.load(Ordering::SeqCst) {
                self.give_up();
            } else {
                busy |= self.feed();
                self.queue.push();
                busy |= self.reap();
            }
            if !busy && !self.sleep() {
                break;
            }
        }
        self.queue
    }

    fn command(&mut self, number: u32, tag: u16, result: i32) {
        let fd = types::Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, number)
            .cmd(IoCommand::bytes(self.number, tag, result))
            .build()
            .user_data(tag.into());
        self.push(&entry);
    }

    /// There is room for one command of each tag, and for what is watched.
    fn push(&mut self, entry: &io_uring::squeue::Entry) {
        // SAFETY: the entry has no addresses; its descriptors live as long as the ring.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            if self.ring.submit().is_err() {
                return;
            }
        }
    }

    /// Takes what the kernel has for us.
    fn take_in(&mut self) -> bool {
        let answers: Vec<(u64, i32)> = self
            .ring
            .completion()
            .map(|answer| (answer.user_data(), answer.result()))
            .collect();
        let any = !answers.is_empty();
        for (of, result) in answers {
            match (u16::try_from(of), result) {
                (Ok(tag), abi::RES_OK) => self.begin(tag),
                // `UBLK_IO_RES_ABORT` is the usual one.
                (Ok(tag), _) => self.set(tag, State::Over),
                (Err(_), _) => {
                    self.watched &= !of;
                    if of == EVENT {
                        self.told.event.drain();
                    }
                }
            }
        }
        any
    }

    fn set(&mut self, tag: u16, state: State) {
        if let Some(place) = self.tags.get_mut(usize::from(tag)) {
            *place = state;
        }
    }

    fn begin(&mut self, tag: u16) {
        let Some(wanted) = self.descriptors.of(tag) else {
            return self.finish(tag, -libc::EIO);
        };
        self.set(tag, State::Busy(wanted));
        self.turn += 1;
        if let Some(turn) = self.turns.get_mut(usize::from(tag)) {
            *turn = self.turn;
        }
        self.starved.push_back(tag);
    }

    /// Gives the volume what it can take.
    fn feed(&mut self) -> bool {
        let mut any = false;
        while let Some(tag) = self.starved.front().copied() {
            match self.submit(tag) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => self.finish(tag, -error.0),
            }
            self.starved.pop_front();
            any = true;
        }
        any
    }

    /// `false`: there is no lease now.
    fn submit(&mut self, tag: u16) -> Result<bool, Errno> {
        let Some(State::Busy(wanted)) = self.tags.get(usize::from(tag)).copied() else {
            return Ok(true);
        };
        let len = u32::try_from(wanted.len).map_err(|_| Errno(libc::EINVAL))?;
        let ticket = self.turns[usize::from(tag)] << 16 | u64::from(tag);
        let mut flags = match wanted.flags & F_FUA != 0 && wanted.op != op::FLUSH {
            true => Flags::FUA,
            false => Flags::NONE,
        };
        let io = match wanted.op {
            op::READ | op::WRITE => {
                let Some(lease) = self.queue.lease(len)? else {
                    return Ok(false);
                };
                if wanted.op == op::READ {
                    flags = Flags::NONE;
                    Io::data(ticket, Op::Read, wanted.at, len, lease)
                } else {
                    self.copy(tag, &lease, len, false)?;
                    Io::data(ticket, Op::Write, wanted.at, len, lease)
                }
            }
            op::FLUSH => Io::bare(ticket, Op::Flush, 0, 0),
            op::DISCARD => Io::bare(ticket, Op::Trim, wanted.at, len),
            op::WRITE_ZEROES => {
                if wanted.flags & F_NOUNMAP != 0 {
                    flags = flags.and(Flags::NO_HOLE);
                }
                Io::bare(ticket, Op::WriteZeroes, wanted.at, len)
            }
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        self.queue.submit(io.with(flags));
        Ok(true)
    }

    /// Takes what the volume has done.
    fn reap(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.done);
        let any = self.queue.reap(&mut done) > 0;
        for part in done.drain(..) {
            let tag = u16::try_from(part.tag & 0xffff).unwrap_or(u16::MAX);
            let turn = self.turns.get(usize::from(tag)).copied();
            let Some(State::Busy(wanted)) = self.tags.get(usize::from(tag)).copied() else {
                continue;
            };
            if turn == Some(part.tag >> 16) {
                let result = self.result(tag, &wanted, &part);
                self.finish(tag, result);
            }
        }
        self.done = done;
        any
    }

    /// The result for the kernel: bytes, or an error.
    fn result(&self, tag: u16, wanted: &Wanted, part: &Done) -> i32 {
        let len = u32::try_from(wanted.len).unwrap_or(0);
        let bytes = i32::try_from(len).unwrap_or(i32::MAX);
        match (part.result, wanted.op) {
            (Err(error), _) => -error.0,
            (Ok(()), op::WRITE) => bytes,
            (Ok(()), op::READ) => {
                let lease = part.lease.as_ref();
                let copied = lease.is_some_and(|lease| self.copy(tag, lease, len, true).is_ok());
                if copied { bytes } else { -libc::EIO }
            }
            (Ok(()), _) => 0,
        }
    }

    /// Copies between the kernel's pages and a lease.
    fn copy(&self, tag: u16, lease: &Lease, len: u32, to_kernel: bool) -> Result<(), Errno> {
        let bytes = lease.bytes().part(0, len as usize);
        let bytes = bytes.ok_or(Errno(libc::EINVAL))?;
        let fd = self.device.as_raw_fd();
        let at = i64::try_from(abi::data_at(self.number, tag)).map_err(|_| Errno(libc::EINVAL))?;
        let address = bytes.as_ptr().cast::<c_void>();
        // SAFETY: the lease's memory is mapped, and so long; others may write it at the same time, which is nothing
        // to the kernel.
        let copied = unsafe {
            match to_kernel {
                true => libc::pwrite(fd, address, bytes.len(), at),
                false => libc::pread(fd, address, bytes.len(), at),
            }
        };
        match usize::try_from(copied) {
            Ok(copied) if copied == bytes.len() => Ok(()),
            _ => Err(Errno(libc::EIO)),
        }
    }

    fn finish(&mut self, tag: u16, result: i32) {
        self.set(tag, State::Waits);
        self.command(abi::COMMIT_AND_FETCH_REQ, tag, result);
    }

    /// Ends everything; what the volume still does is forgotten.
    fn give_up(&mut self) {
        self.starved.clear();
        for tag in 0..u16::try_from(self.tags.len()).unwrap_or(u16::MAX) {
            if matches!(self.tags[usize::from(tag)], State::Busy(_)) {
                self.finish(tag, -libc::EIO);
            }
        }
    }

    /// Until there is something; `false`: that cannot be waited for.
    fn sleep(&mut self) -> bool {
        let given_up = self.told.give_up.load(Ordering::SeqCst);
        if !given_up && self.queue.arm() {
            return self.ring.submit().is_ok();
        }
        let event = self.told.event.as_fd().as_raw_fd();
        self.watch(EVENT, event);
        if !given_up {
            let volume = self.queue.fd().as_raw_fd();
            self.watch(VOLUME, volume);
        }
        match self.ring.submit_and_wait(1) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        }
    }

    fn watch(&mut self, which: u64, fd: RawFd) {
        if self.watched & which == 0 {
            self.watched |= which;
            let readable = u32::from(libc::POLLIN.unsigned_abs());
            let entry = opcode::PollAdd::new(types::Fd(fd), readable).build();
            self.push(&entry.user_data(which));
        }
    }
}
