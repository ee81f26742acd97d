//! The receiving half of a stream: what has come, what is wanted, what there is to wait for. Nothing here waits, and
//! nothing knows of Python.

use crate::memory::{Lent, Memory};
use crate::pending::Pending;
use memlane_devmem::Fragment;
use memlane_devmem::error::{AccessError, ReceiveError};
use memlane_devmem::io::{Path, Stream, StreamCounts, Wait};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// What somebody wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// This many bytes, all of them. Nothing behind them is received, so that the next ones can have another length.
    All(u32),
    /// This many bytes, and as many again afterwards: what is there is received at once.
    Record(u32),
    /// Whatever comes, but not more.
    Some(u64),
    /// What is left of a stream that has ended: fewer than a record.
    Rest,
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum Got {
    Bytes(Memory),
    /// The stream has ended; this many bytes are left, fewer than were wanted.
    Ended(u64),
    /// Not now.
    Wait(Wait),
}

/// Why there will be none.
#[derive(Debug)]
pub(crate) enum Failed {
    Closed,
    Receive(ReceiveError),
    Access(AccessError),
    /// No chunk is that large: the bytes that a chunk has.
    Chunk(u32),
}

#[derive(Debug)]
pub(crate) struct Receiver {
    stream: Stream,
    pending: Pending<Arc<Lent>>,
    fragments: Vec<Fragment>,
    ended: bool,
    /// What the kernel says once, and then never again: that must not look like an end.
    failed: Option<ReceiveError>,
    /// Bytes that the stream keeps together.
    unit: u32,
    /// Bytes that were copied because they did not lie in one piece.
    gathered: u64,
}

impl Receiver {
    pub(crate) fn new(stream: Stream) -> Receiver {
        Receiver {
            stream,
            pending: Pending::new(),
            fragments: Vec::new(),
            ended: false,
            failed: None,
            unit: 1,
            gathered: 0,
        }
    }

    /// What is wanted, if it is there or comes at once. `out` counts fragments that are here.
    pub(crate) fn next(&mut self, want: Want, out: &Arc<AtomicU32>) -> Result<Got, Failed> {
        self.keep_together(want)?;
        loop {
            if let Some(memory) = self.take(want)? {
                return Ok(Got::Bytes(memory));
            }
            if let Some(error) = self.failed {
                return Err(Failed::Receive(error));
            }
            if self.ended {
                return Ok(Got::Ended(self.pending.bytes()));
            }
            let limit = match want {
                Want::All(bytes) => u64::from(bytes) - self.pending.bytes(),
                Want::Record(_) => u64::MAX,
                Want::Some(most) => most,
                Want::Rest => 1,
            };
            match self.stream.receive_some(limit, &mut self.fragments) {
                Ok(0) => self.ended = true,
                Ok(_) => self.own(out),
                Err(ReceiveError::WouldBlock) => return Ok(Got::Wait(Wait::Payload)),
                Err(ReceiveError::NoRoom) => return Ok(Got::Wait(Wait::Room)),
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Has the stream put what comes next into one piece.
    fn keep_together(&mut self, want: Want) -> Result<(), Failed> {
        let unit = match want {
            Want::All(bytes) | Want::Record(bytes) => bytes.max(1),
            Want::Some(_) => 1,
            Want::Rest => return Ok(()),
        };
        let chunk = self.stream.binding().counts().chunk;
        if unit > chunk {
            return Err(Failed::Chunk(chunk));
        }
        // One that has begun goes on as it began. The first of another length is aligned, and so is each that stands alone.
        let alone = matches!(want, Want::All(_)) || self.unit != unit;
        if alone && self.pending.bytes() == 0 && self.stream.whole(unit) {
            self.unit = unit;
        }
        Ok(())
    }

    fn take(&mut self, want: Want) -> Result<Option<Memory>, Failed> {
        let piece = match want {
            Want::All(bytes) | Want::Record(bytes) => self.pending.take(u64::from(bytes)),
            Want::Some(most) => self.pending.take_first(most),
            Want::Rest => match self.pending.bytes() {
                0 => None,
                bytes => self.pending.take(bytes),
            },
        };
        let Some(piece) = piece else { return Ok(None) };
        let bytes: u64 = piece.stretches.iter().map(|stretch| stretch.len).sum();
        let pieces = piece.stretches.len();
        let bytes = usize::try_from(bytes).map_err(|_| Failed::Access(AccessError::Outside))?;
        let memory = Memory::of(piece, bytes).map_err(Failed::Access)?;
        if pieces > 1 {
            self.gathered += bytes as u64;
        }
        Ok(Some(memory))
    }

    fn own(&mut self, out: &Arc<AtomicU32>) {
        for fragment in self.fragments.drain(..) {
            // It is out, and had no owner: it has just been handed out.
            let owned = self.stream.own(fragment).map(|owned| Lent::new(owned, out));
            if let Some(owned) = owned {
                self.pending.push(owned, fragment.offset, fragment.len);
            }
        }
    }

    /// Waits until there is what is asked for, or not longer than `limit`.
    pub(crate) fn wait(&self, until: Wait, limit: Duration) -> Result<(), Failed> {
        let waited = self.stream.wait(until, limit);
        let failed = |errno| Failed::Receive(ReceiveError::Kernel(errno));
        waited.map(|_| ()).map_err(failed)
    }

    /// Can one wait for payload by the socket alone? Others have more to wait for, and do it under the stream's lock.
    pub(crate) fn waits_by_socket(&self) -> bool {
        self.stream.path() == Path::Mapped
    }

    pub(crate) fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    pub(crate) fn path(&self) -> Path {
        self.stream.path()
    }

    /// What was counted, and what was copied here.
    pub(crate) fn counts(&self) -> (StreamCounts, u64) {
        (self.stream.counts(), self.gathered)
    }
}
