//! [`End`]: one queue of something that frames come from and go to.

use crate::error::EndError;
use crate::tally::{EndCounts, Tally, Verdict};
use core::fmt;
use memlane_core::access::SharedBytes;
use memlane_packet::{Frame, Meta, More, Offloads, Placed, Room, Sent, Sleep};
use rustix::event::PollFd;
use std::ptr::NonNull;
use std::time::Instant;

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
pub(crate) struct Taking<'a>(pub(crate) &'a mut dyn FnMut(&Frame<'_>) -> More);

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
/// The order of calls, as [`join`](crate::join) has them: `receive` and `send` as long as there is something; then `sleeps`, which
/// asks for a doorbell and looks once more; then a poll of what `watch` names; then `woken`.
pub trait End: Send + fmt::Debug {
    /// What its user calls it: `tap:a`.
    fn name(&self) -> &str;

    /// What frames given to [`send`](End::send) may ask for: everything, unless an end says otherwise. All ends take
    /// blank checksums (those that cannot pass them on fill them in).
    fn offloads(&self) -> Offloads {
        Offloads::ALL
    }

    /// From now on, frames that come from it may ask for this, and for no more. An end that cannot be told so gives what
    /// it has all the same. A [join](crate::join) asks for everything, and cuts up what the other end does not take.
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

    /// Lends up to `most` frames to `taker`, or copies them into room that `taker` lends: for an end that has to copy them anyway.
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
    /// [`PacketPort::place`]: memlane_packet::PacketPort::place
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

    /// A poll of what was watched is over, however it ended: doorbells are drained.
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
    fn verdict(&self) -> Option<Verdict> {
        None
    }

    /// What was counted.
    fn counts(&self) -> EndCounts;

    /// What was counted, including the counts that only some kinds of ends have.
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

/// Lends two stretches of our own bytes as one frame.
pub(crate) fn lend_both(
    parts: [&[u8]; 2],
    meta: Meta,
    take: &mut dyn FnMut(&Frame<'_>) -> More,
) -> More {
    let len = parts[0].len() + parts[1].len();
    let windows = parts.map(window);
    // There is no empty stretch in a frame.
    let used = if parts[1].is_empty() { 1 } else { 2 };
    take(&Frame::new(&windows[..used], len, meta))
}

/// Copies a frame into room of its size, stretch by stretch: from shared memory to shared memory.
pub(crate) fn carry(frame: &Frame<'_>, room: &Room<'_>) {
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
