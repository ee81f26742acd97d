//! Places to fill and to look at: in shared memory, or in a buffer while TCP
//! carries the bytes. No slice ever points there: a peer may write at any time.

use super::Stream;
use crate::conn::Use;
use crate::lane::place as ring;
use core::ptr::NonNull;
use memlane_core::access::SharedBytes;
use memlane_sys::{Errno, Result, syscall};

#[derive(Debug)]
pub(super) enum Place {
    /// In the peer's ring.
    Ring(ring::Place),
    /// In ours.
    Shown { bytes: SharedBytes, conn: Use },
    /// In a buffer of the stream's.
    Spare { base: NonNull<u8>, len: usize },
}

impl Place {
    fn bytes(&self) -> SharedBytes {
        match self {
            Place::Ring(place) => place.bytes(),
            Place::Shown { bytes, .. } => *bytes,
            // SAFETY: a part of the stream's buffer, which lives as long as the stream that is borrowed.
            Place::Spare { base, len } => unsafe { SharedBytes::new(*base, *len) },
        }
    }
}

/// A place for bytes to be sent. Dropped without a commit, nothing is sent.
#[derive(Debug)]
pub struct Slot<'a> {
    stream: &'a mut Stream,
    place: Place,
}

impl<'a> Slot<'a> {
    pub(super) fn new(stream: &'a mut Stream, place: Place) -> Slot<'a> {
        Slot { stream, place }
    }

    /// Bytes; never 0.
    pub fn len(&self) -> usize {
        self.place.bytes().len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Is it in the peer's memory?
    pub fn is_shared(&self) -> bool {
        matches!(&self.place, Place::Ring(place) if place.is_in_ring())
    }

    /// Puts bytes there, from `at` on; `false`: they do not fit, and nothing is put.
    pub fn fill(&self, at: usize, from: &[u8]) -> bool {
        // SAFETY: `from` is readable for its whole length.
        unsafe { self.place.bytes().copy_in(at, from.as_ptr(), from.len()) }
    }

    /// Has the kernel read a file straight to `at`: from `offset`, or from where it stands. How many bytes came; 0 at the
    /// file's end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read_file(&self, at: usize, file: i32, offset: Option<u64>) -> Result<usize> {
        let bytes = self.place.bytes();
        let len = bytes.len().saturating_sub(at);
        let part = bytes.part(at, len).ok_or(Errno::INVAL)?;
        let (to, len) = (part.as_ptr(), part.len());
        // SAFETY: a part of the place, of which nobody has a reference.
        unsafe {
            match offset {
                Some(offset) => syscall!(libc::SYS_pread64, file, to, len, offset),
                None => syscall!(libc::SYS_read, file, to, len),
            }
        }
    }

    /// Where it is, for system calls that write there. Valid as long as this is.
    pub fn as_ptr(&self) -> *mut u8 {
        self.place.bytes().as_ptr()
    }

    /// Sends the first `n` bytes. In memory, the peer has them when this returns; by TCP, the kernel has, or, of a stream
    /// that must not wait, [`Stream::flush`] has to be called before anything else can be sent.
    ///
    /// # Errors
    /// The kernel's.
    pub fn commit(self, n: usize) -> Result<()> {
        let n = n.min(self.len());
        match self.place {
            Place::Ring(place) => {
                place.publish(n);
                self.stream.lane.count_sent(n);
                if let Some(conn) = self.stream.lane.conn() {
                    ring::sent(&conn, n);
                }
                Ok(())
            }
            Place::Spare { .. } | Place::Shown { .. } => {
                (self.stream.unsent.from, self.stream.unsent.to) = (0, n);
                match self.stream.flush() {
                    Err(Errno::AGAIN) => Ok(()),
                    flushed => flushed,
                }
            }
        }
    }
}

/// Bytes that have come, where they lie. Dropped without [`consume`](Self::consume), they stay.
#[derive(Debug)]
pub struct Here<'a> {
    stream: &'a mut Stream,
    place: Place,
}

impl<'a> Here<'a> {
    pub(super) fn new(stream: &'a mut Stream, place: Place) -> Here<'a> {
        Here { stream, place }
    }

    /// Bytes; 0 at the stream's end.
    pub fn len(&self) -> usize {
        self.place.bytes().len()
    }

    /// Is this the stream's end?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Do they lie in shared memory?
    pub fn is_shared(&self) -> bool {
        matches!(self.place, Place::Shown { .. })
    }

    /// Copies bytes out, from `at` on; `false`: there are not so many, and nothing is copied. To believe what they say,
    /// copy first, then look: the peer may write there until they are consumed.
    pub fn copy_to(&self, at: usize, into: &mut [u8]) -> bool {
        // SAFETY: `into` is writable for its whole length.
        unsafe {
            self.place
                .bytes()
                .copy_out(at, into.as_mut_ptr(), into.len())
        }
    }

    /// Has the kernel write them straight to a descriptor; how many it took.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write_to(&self, file: i32) -> Result<usize> {
        let bytes = self.place.bytes();
        // SAFETY: the kernel copies from a place that lives.
        unsafe { syscall!(libc::SYS_write, file, bytes.as_ptr(), bytes.len()) }
    }

    /// Where they are, for system calls that read there. Valid as long as this is.
    pub fn as_ptr(&self) -> *const u8 {
        self.place.bytes().as_ptr()
    }

    /// The first `n` are done with.
    pub fn consume(self, n: usize) {
        let n = n.min(self.len());
        match &self.place {
            Place::Shown { conn, .. } => {
                ring::took(conn, n);
                self.stream.lane.count_received(n);
            }
            Place::Spare { .. } | Place::Ring(_) => self.stream.unread.from += n,
        }
    }
}
