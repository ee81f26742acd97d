//! Room to fill and bytes to read in place: in shared memory, or in a buffer while TCP carries the bytes. No slice ever
//! points there, because a peer may write at any time.

use super::lane::Lane;
use super::{Spare, Stream, flush};
use crate::protocol::lane::place as ring;
use core::ffi::c_int;
use core::ptr::NonNull;
use memlane_core::access::SharedBytes;
use memlane_sys::{Errno, Result, syscall};

/// Where the bytes of a [`Slot`] go.
#[derive(Debug)]
pub(super) enum SlotRoom<'a> {
    /// Into the peer's ring.
    Ring(ring::Reservation<'a>),
    /// Into a buffer of the stream's.
    Spare(SharedBytes),
}

/// A view of `len` bytes of a stream's buffer.
///
/// # Safety
/// The bytes are in the buffer, and the stream is borrowed while the view is used.
pub(super) unsafe fn of_spare(base: NonNull<u8>, len: usize) -> SharedBytes {
    // SAFETY: the caller promises it: the buffer lives as long as its stream.
    unsafe { SharedBytes::new(base, len) }
}

/// Room for bytes to be sent. Dropped without a commit, it sends nothing.
#[derive(Debug)]
pub struct Slot<'a> {
    pub(super) place: SlotRoom<'a>,
    pub(super) lane: &'a Lane,
    pub(super) unsent: &'a mut Spare,
    pub(super) flags: c_int,
}

impl Slot<'_> {
    fn bytes(&self) -> SharedBytes {
        match &self.place {
            SlotRoom::Ring(place) => place.bytes(),
            SlotRoom::Spare(bytes) => *bytes,
        }
    }

    /// Size in bytes; never 0.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Always `false`.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Does the room lie in the peer's memory?
    pub fn is_shared(&self) -> bool {
        matches!(&self.place, SlotRoom::Ring(place) if place.is_in_ring())
    }

    /// Copies bytes into the room, from `at` on. `false`: they do not fit, and nothing is copied.
    pub fn fill(&self, at: usize, from: &[u8]) -> bool {
        // SAFETY: `from` is readable for its whole length.
        unsafe { self.bytes().copy_in(at, from.as_ptr(), from.len()) }
    }

    /// Lets the kernel read a file into the room, from `at` on: from `offset` of the file, or from its current
    /// position. Returns the number of bytes; 0 at the file's end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read_file(&self, at: usize, file: i32, offset: Option<u64>) -> Result<usize> {
        let bytes = self.bytes();
        let len = bytes.len().saturating_sub(at);
        let part = bytes.part(at, len).ok_or(Errno::INVAL)?;
        let (to, len) = (part.as_ptr(), part.len());
        // SAFETY: a part of the room, to which no reference exists.
        unsafe {
            match offset {
                Some(offset) => syscall!(libc::SYS_pread64, file, to, len, offset),
                None => syscall!(libc::SYS_read, file, to, len),
            }
        }
    }

    /// The address of the room, for system calls that write there. Valid as long as this value.
    pub fn as_ptr(&self) -> *mut u8 {
        self.bytes().as_ptr()
    }

    /// Sends the first `n` bytes. Through memory, the peer has them when this returns. By TCP, the kernel has them; on
    /// a non-blocking stream, call [`Stream::flush`] before anything else can be sent.
    ///
    /// # Errors
    /// The kernel's.
    pub fn commit(self, n: usize) -> Result<()> {
        let n = n.min(self.len());
        match self.place {
            SlotRoom::Ring(place) => {
                place.publish(n);
                self.lane.count_sent(n);
                if let Some(conn) = self.lane.conn() {
                    crate::state::stats::show_tx(conn, n.cast_signed());
                    crate::protocol::upgrade::after_call(conn, n.cast_signed());
                }
                Ok(())
            }
            SlotRoom::Spare(_) => {
                (self.unsent.from, self.unsent.to) = (0, n);
                match flush(self.lane, self.unsent, self.flags) {
                    Err(Errno::AGAIN) => Ok(()),
                    flushed => flushed,
                }
            }
        }
    }
}

/// Received bytes, where they lie. Dropped without [`consume`](Self::consume), they stay there.
#[derive(Debug)]
pub struct Here<'a> {
    stream: &'a mut Stream,
    bytes: SharedBytes,
    is_shared: bool,
}

impl<'a> Here<'a> {
    /// Bytes in shared memory, or in the stream's buffer.
    pub(super) fn new(stream: &'a mut Stream, bytes: SharedBytes, is_shared: bool) -> Here<'a> {
        Here {
            stream,
            bytes,
            is_shared,
        }
    }

    /// Number of bytes; 0 at the stream's end.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Is this the stream's end?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Do the bytes lie in shared memory?
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Copies bytes out, from `at` on. `false`: there are not that many, and nothing is copied. Check what the bytes
    /// say only in the copy: the peer may change the original until it is consumed.
    pub fn copy_to(&self, at: usize, into: &mut [u8]) -> bool {
        // SAFETY: `into` is writable for its whole length.
        unsafe { self.bytes.copy_out(at, into.as_mut_ptr(), into.len()) }
    }

    /// Lets the kernel write the bytes to a descriptor. Returns how many it took.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write_to(&self, file: i32) -> Result<usize> {
        let (from, len) = (self.bytes.as_ptr(), self.bytes.len());
        // SAFETY: the kernel copies from memory that stays mapped.
        unsafe { syscall!(libc::SYS_write, file, from, len) }
    }

    /// The address of the bytes, for system calls that read there. Valid as long as this value.
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// Releases the first `n` bytes.
    pub fn consume(self, n: usize) {
        let n = n.min(self.len());
        match self.stream.lane.conn() {
            Some(conn) if self.is_shared => {
                ring::took(conn, n);
                self.stream.lane.count_received(n);
            }
            _ => self.stream.unread.from += n,
        }
    }
}
