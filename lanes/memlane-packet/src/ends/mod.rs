//! What a link's queue is joined to: interfaces of the kernel, files, other protocols.
//!
//! All of them are an [`End`]: frames come in bursts, lent; frames go one by one, copied once; and there are
//! descriptors to sleep on. An end is one queue and has one thread; [`join`] joins two.

pub mod afpacket;
mod bell;
pub mod generate;
pub mod headers;
pub mod join;
pub mod kernel;
pub mod memif;
pub mod pcap;
pub mod port;
pub mod segment;
#[cfg(feature = "smoltcp")]
pub mod smoltcp;
pub mod split;
pub mod tally;
pub mod tap;
#[cfg(feature = "vhost")]
pub mod vhost;
pub mod vnet;

use crate::engine::Meta;
pub use crate::engine::chain::Frame;
use crate::engine::chain::Offloads;
use crate::engine::chain::Room;
use crate::error::Detach;
pub use crate::port::{More, Placed, Sent, Sleep};
use core::fmt;
use memlane_core::access::SharedBytes;
use memlane_sys::Errno;
use rustix::event::PollFd;
use std::ptr::NonNull;
use std::time::Instant;
use tally::Tally;

/// Why an end gives and takes no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndError {
    /// The link, or what is like one (memif, vhost-user): another attach may mend it.
    Detached(Detach),
    /// The kernel refuses: the interface is gone, the disk is full.
    Device(Errno),
    /// What lies in a file, or what a peer says, is not what it must be.
    Malformed(&'static str),
    /// Everything that there was to receive has come.
    Finished,
}

impl fmt::Display for EndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndError::Detached(why) => write!(f, "{why}"),
            EndError::Device(Errno(19)) => f.write_str(
                "the interface is gone (errno 19): start this command again when it is back",
            ),
            EndError::Device(errno) => write!(f, "device: {errno}"),
            EndError::Malformed(what) => f.write_str(what),
            EndError::Finished => f.write_str("finished"),
        }
    }
}

impl core::error::Error for EndError {}

impl From<Detach> for EndError {
    fn from(why: Detach) -> EndError {
        EndError::Detached(why)
    }
}

impl From<rustix::io::Errno> for EndError {
    fn from(errno: rustix::io::Errno) -> EndError {
        EndError::Device(Errno(errno.raw_os_error()))
    }
}

/// What an end counts, whatever it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndCounts {
    /// Frames that came.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames that went.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that were not sent for want of room; whoever sends may have tried again.
    pub full: u64,
    /// Frames that it could not use, in either direction.
    pub failed: u64,
}

/// What a frame that was put into lent room is: bytes, and what it says of itself.
pub type Filled = Option<(usize, Meta)>;

/// Who takes the frames that come from an end.
pub trait Taker {
    /// Takes one that is lent.
    fn take(&mut self, frame: &Frame<'_>) -> More;

    /// Lends room for the longest frame to `fill`, which says what it has put there. `None`: here no room is lent, and
    /// `fill` was not called; `take` does it.
    fn place(&mut self, fill: &mut dyn FnMut(&Room<'_>) -> Filled) -> Option<More>;
}

/// Who only takes.
struct Taking<'a>(&'a mut dyn FnMut(&Frame<'_>) -> More);

impl Taker for Taking<'_> {
    fn take(&mut self, frame: &Frame<'_>) -> More {
        (self.0)(frame)
    }

    fn place(&mut self, _: &mut dyn FnMut(&Room<'_>) -> Filled) -> Option<More> {
        None
    }
}

/// One queue of something that frames come from and go to.
///
/// The order of calls, as [`join`] has them: `receive` and `send` as long as there is something; then `sleeps`, which
/// asks for a bell and looks once more; then a poll of what `watch` names; then `woken`.
pub trait End: Send + fmt::Debug {
    /// What its user calls it: `tap:a`.
    fn name(&self) -> &str;

    /// What frames given to [`send`](End::send) may ask for. All ends take blank checksums (those that cannot pass
    /// them on fill them in).
    fn offloads(&self) -> Offloads;

    /// From now on, frames that come from it may ask for this, and for no more. An end that cannot be told so gives what
    /// it has all the same. A [join](self::join) asks for everything, and cuts up what the other end does not take.
    ///
    /// # Errors
    /// The end has ended.
    fn limit(&mut self, takes: Offloads) -> Result<(), EndError> {
        let _ = takes;
        Ok(())
    }

    /// Lends up to `most` frames to `take`, one after another; how many. What lies in a frame can change while it is
    /// looked at: copy once what you are to believe. A frame that was lent is over, whatever `take` says of more.
    ///
    /// # Errors
    /// The end has ended: for good, or until its owner makes a new one.
    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError>;

    /// Likewise, and may put frames into room that `taker` lends: an end that has to copy them anyway.
    ///
    /// # Errors
    /// The end has ended.
    fn receive_for(&mut self, most: usize, taker: &mut dyn Taker) -> Result<usize, EndError> {
        self.receive(most, &mut |frame| taker.take(frame))
    }

    /// Sends a frame, which may be another end's: copies it. It goes with the next flush, if not before.
    ///
    /// # Errors
    /// The end has ended.
    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError>;

    /// Lends room for the longest frame to `fill`, which says what it has put there ([`PacketPort::place`]); that goes as
    /// a frame that was sent. An end without such room does not call it.
    ///
    /// [`PacketPort::place`]: crate::PacketPort::place
    ///
    /// # Errors
    /// The end has ended.
    fn place(&mut self, fill: &mut dyn FnMut(&Room<'_>) -> Filled) -> Result<Placed, EndError> {
        let _ = fill;
        Ok(Placed::NotHere)
    }

    /// Is there room for any frame? 0: yes; else what to wait for ([`Sleep::room`]). Who asks before it receives need
    /// not keep what does not fit. An end that cannot tell says yes.
    ///
    /// # Errors
    /// The end has ended.
    fn lacks(&mut self) -> Result<u32, EndError> {
        Ok(0)
    }

    /// What was sent goes.
    ///
    /// # Errors
    /// The end has ended.
    fn flush(&mut self) -> Result<(), EndError> {
        Ok(())
    }

    /// Does each [`receive`](End::receive) cost a system call, also in vain? Then it is not asked that often. What it has
    /// got meanwhile must show at the descriptors that [`watch`](End::watch) names, before a sleep.
    fn asks_the_kernel(&self) -> bool {
        false
    }

    /// Asks to be woken. `false`: there is something already.
    ///
    /// # Errors
    /// The end has ended.
    fn sleeps(&mut self, until: Sleep) -> Result<bool, EndError>;

    /// What to poll for that.
    fn watch<'a>(&'a self, until: Sleep, fds: &mut Vec<PollFd<'a>>);

    /// A poll of what was watched is over, however it ended: bells are hushed.
    ///
    /// # Errors
    /// The end has ended.
    fn woken(&mut self) -> Result<(), EndError> {
        Ok(())
    }

    /// When there will be something without any descriptor's help (paced frames).
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Of a sink: what it has seen.
    fn verdict(&self) -> Option<generate::Verdict> {
        None
    }

    /// What was counted.
    fn counts(&self) -> EndCounts;

    /// Likewise, with all that only some kinds have.
    fn tally(&self) -> Tally {
        Tally {
            counts: self.counts(),
            verdict: self.verdict(),
            ..Tally::default()
        }
    }
}

/// Lends bytes of our own as a frame: to [`End::send`], say. Frames have 14 to 65535 bytes.
pub fn lend(bytes: &[u8], meta: Meta, take: &mut dyn FnMut(&Frame<'_>) -> More) -> More {
    take(&Frame::new(&[window(bytes)], bytes.len(), meta))
}

/// Likewise, of two stretches.
fn lend_both(parts: [&[u8]; 2], meta: Meta, take: &mut dyn FnMut(&Frame<'_>) -> More) -> More {
    let len = parts[0].len() + parts[1].len();
    let windows = parts.map(window);
    // There is no empty stretch in a frame.
    let used = if parts[1].is_empty() { 1 } else { 2 };
    take(&Frame::new(&windows[..used], len, meta))
}

/// Copies a frame into room of its size, stretch by stretch: from shared memory to shared memory.
fn carry(frame: &Frame<'_>, room: &Room<'_>) {
    let mut at = 0;
    for part in frame.parts() {
        room.copy_from(at, &part);
        at += part.len();
    }
}

/// A window on bytes of our own, to be used while they are borrowed.
fn window(bytes: &[u8]) -> SharedBytes {
    // SAFETY: who calls lends it for the time of a call, in which the bytes stay borrowed; for reading only.
    unsafe { SharedBytes::read_only(NonNull::from(bytes).cast(), bytes.len()) }
}
