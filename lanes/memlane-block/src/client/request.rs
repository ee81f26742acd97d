//! One request of a volume's user: checked, split where it must be, and what became of it.

use super::answer::Steps;
use crate::volume::{EXTENT_LEN, Errno, Flags, Info, Io, Op};
use crate::wire::{IoMsg, SECTOR};
use memlane_transport::engine::{Direction, Time};
use memlane_transport::error::RequestError;
use memlane_transport::lease::Lease;
use memlane_transport::port::Submission;

/// A request between its submission and its result.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) tag: u64,
    pub(super) op: Op,
    pub(super) flags: Flags,
    pub(super) at: u64,
    pub(super) len: u32,
    /// For a trim that is split: the bytes that are done.
    pub(super) done: u32,
    /// The bytes of the request in flight.
    pub(super) part: u32,
    /// The volume's generation in which it was sent.
    pub(super) generation: u32,
    /// The server's boot in which it was sent.
    pub(super) boots: u32,
    /// For a flush: the writes that it covers.
    pub(super) covers: u64,
    /// The server did not know the volume.
    pub(super) unknown: bool,
    /// How often it was sent.
    pub(super) tries: u32,
    /// When it fails if it still waits; set when it waits for the first time.
    pub(super) due: Option<Time>,
    /// Since when it waits, if it does.
    pub(super) since: Option<Time>,
    pub(super) lease: Option<Lease>,
}

impl PendingRequest {
    pub(super) fn new(io: Io) -> PendingRequest {
        // A write of nothing behind a flush is a flush, as in Linux.
        let flush = io.op == Op::Flush || (io.len == 0 && io.flags.has(Flags::PREFLUSH));
        let op = if flush { Op::Flush } else { io.op };
        let (at, len, flags) = match op {
            Op::Flush => (0, 0, Flags::NONE),
            _ => (io.at, io.len, io.flags),
        };
        PendingRequest {
            tag: io.tag,
            op,
            flags,
            at,
            len,
            done: 0,
            part: 0,
            generation: 0,
            boots: 0,
            covers: 0,
            unknown: false,
            tries: 0,
            due: None,
            since: None,
            lease: io.lease,
        }
    }

    /// There is nothing to be done.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.op != Op::Flush
    }

    /// It changes bytes, and its result does not mean that they are safe.
    pub(super) fn dirties(&self) -> bool {
        matches!(self.op, Op::Write | Op::WriteZeroes) && !self.flags.has(Flags::FUA)
    }

    /// It makes durable what was done before.
    pub(super) fn flushes(&self) -> bool {
        self.op == Op::Flush || self.flags.has(Flags::PREFLUSH)
    }

    /// Its next part, for a server that takes `steps`, as the port takes it.
    pub(super) fn submission(&mut self, index: u64, device_id: u32, steps: &Steps) -> Submission {
        let rest = self.len - self.done;
        // A limit that is gone since the request was checked: the server says no.
        self.part = match steps.of(self.op) {
            0 => rest,
            step => rest.min(step),
        };
        let message = IoMsg {
            device_id,
            sector: (self.at + u64::from(self.done)) / u64::from(SECTOR),
            op: self.op,
            flags: self.flags,
            len: self.part,
            prio: 0,
        };
        let (direction, len) = match self.op {
            Op::Read => (Direction::Read, self.len),
            Op::Write => (Direction::Write, self.len),
            Op::Extents => (Direction::Read, self.room()),
            Op::Flush | Op::Trim | Op::WriteZeroes => (Direction::Write, 0),
        };
        Submission {
            tag: index,
            direction,
            usr: message.encode().into(),
            len,
            // A lease without data stays here: the port has no use for it.
            lease: if len > 0 { self.lease.take() } else { None },
        }
    }

    /// Bytes of whole records that its lease takes.
    fn room(&self) -> u32 {
        let bytes = self.lease.as_ref().map_or(0, |lease| lease.bytes().len());
        let records = bytes / EXTENT_LEN * EXTENT_LEN;
        u32::try_from(records).unwrap_or_default()
    }
}

/// May this volume be asked for that?
pub(super) fn check(io: &Io, info: &Info, steps: &Steps) -> Result<(), Errno> {
    let invalid = Err(Errno(libc::EINVAL));
    if io.op == Op::Flush {
        return Ok(());
    }
    let writes = matches!(io.op, Op::Write | Op::Trim | Op::WriteZeroes);
    if writes && info.read_only {
        return Err(Errno(libc::EROFS));
    }
    if !steps.allow(io.op, io.flags) || (io.op == Op::Extents && !info.extents) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let block = u64::from(info.block);
    if !io.at.is_multiple_of(block) || !u64::from(io.len).is_multiple_of(block) {
        return invalid;
    }
    let end = io.at.checked_add(u64::from(io.len));
    if end.is_none_or(|end| end > info.size) {
        return invalid;
    }
    let lease = io.lease.as_ref().map_or(0, |lease| lease.bytes().len());
    let fits = match io.op {
        Op::Read | Op::Write => io.len <= info.max_io && lease >= io.len as usize,
        Op::Extents => lease >= EXTENT_LEN && lease <= info.max_io as usize,
        Op::Trim | Op::WriteZeroes => io.len <= info.max_trim,
        Op::Flush => true,
    };
    if fits { Ok(()) } else { invalid }
}

/// A result as a disk would give it. `None`: nobody knows, or the server does not know the volume: it may be sent
/// again in a later generation.
pub(super) fn result_of(result: Result<(), RequestError>) -> Option<Result<(), Errno>> {
    let errno = match result {
        Ok(()) => return Some(Ok(())),
        Err(RequestError::OutcomeUnknown) => return None,
        Err(RequestError::Remote(errno)) => match i32::from(errno) {
            libc::ENODEV => return None,
            errno @ (libc::ENOSPC | libc::EROFS | libc::EINVAL | libc::EOPNOTSUPP) => errno,
            libc::EDQUOT | libc::EFBIG => libc::ENOSPC,
            _ => libc::EIO,
        },
        Err(RequestError::TooLong) => libc::EINVAL,
        Err(RequestError::BeyondCpu) => libc::EOPNOTSUPP,
        Err(RequestError::Closed) => libc::ENODEV,
        Err(RequestError::TimedOut | RequestError::NoPath | RequestError::Aborted) => libc::EIO,
    };
    Some(Err(Errno(errno)))
}
