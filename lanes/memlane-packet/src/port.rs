//! What users of a queue see, whichever end it is.

use crate::engine::chain::{Frame, Room};
use crate::error::Detach;
use crate::offload::Meta;
use std::time::Duration;

/// What became of a frame that was to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It goes with the next flush.
    Queued,
    /// There is no room: flush, and try again when this many slots are free ([`Sleep::for_room`]).
    Full(u32),
    /// It never will: shorter than an Ethernet header, longer than 65535 bytes, or with what was not agreed on.
    Refused,
}

/// What became of room that was lent before it was known what would come to lie there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placed {
    /// A frame was put there. (Full: there was no room to lend, so that none was.)
    Sent(Sent),
    /// None was.
    Nothing,
    /// Here no room is lent: send what there is.
    NotHere,
}

/// What to sleep for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sleep {
    /// Frames to receive.
    pub frames: bool,
    /// Wake up when this many slots are free to send; 0: not for room.
    pub room: u32,
}

impl Sleep {
    /// Until a frame comes.
    pub const FOR_FRAMES: Sleep = Sleep {
        frames: true,
        room: 0,
    };

    /// Sleeps until this many slots are free to send, as [`Sent::Full`] said.
    pub fn for_room(slots: u32) -> Sleep {
        Sleep {
            frames: false,
            room: slots,
        }
    }
}

/// Does who takes frames want another one now?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum More {
    /// Go on.
    Yes,
    /// This one was taken; no more for now.
    No,
}

/// One queue of a network interface. Frames are Ethernet's, without the check sequence.
///
/// ```
/// use memlane_packet::{Meta, PacketPort, Sent, Sleep};
///
/// /// Carries what comes at one port to another: the one copy is from memory to memory.
/// fn carry(from: &mut impl PacketPort, to: &mut impl PacketPort) -> Result<usize, memlane_packet::Detach> {
///     let mut lost = 0;
///     let frames = from.receive(32, |frame| {
///         let sent = to.send(frame.len(), frame.meta(), |room| {
///             let mut at = 0;
///             let mut buffer = [0; 2048];
///             while at < frame.len() {
///                 let n = frame.copy_out(at, &mut buffer);
///                 room.copy_in(at, &buffer[..n]);
///                 at += n;
///             }
///         });
///         lost += usize::from(sent != Ok(Sent::Queued));
///     })?;
///     to.flush()?;
///     Ok(frames - lost)
/// }
/// ```
pub trait PacketPort {
    /// Lends up to `most` frames to `take`, one after another; how many. What lies in a frame can change while it is
    /// looked at: copy once what you are to believe.
    ///
    /// Slots go back to the sender when fewer than `most` were there, else 16 at a time: a receiver that takes a few at a
    /// time and then does something else for long calls again first, or waits.
    /// At a front, a buffer that the back says it could not use is one of the `most`, too, and is not lent.
    ///
    /// # Errors
    /// The queue has ended.
    #[inline]
    fn receive(&mut self, most: usize, mut take: impl FnMut(&Frame<'_>)) -> Result<usize, Detach> {
        self.receive_while(most, |frame| {
            take(frame);
            More::Yes
        })
    }

    /// Lends frames to `take` as long as it wants more. The frame at which it declines is consumed, too.
    ///
    /// # Errors
    /// The queue has ended.
    fn receive_while(
        &mut self,
        most: usize,
        take: impl FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, Detach>;

    /// Has `fill` write a frame of `len` bytes in its place. It goes with the next flush.
    ///
    /// # Errors
    /// The queue has ended.
    fn send(
        &mut self,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&Room<'_>),
    ) -> Result<Sent, Detach>;

    /// Lends room for the longest frame to `fill`, which says how much of it is a frame, and which: for who learns that
    /// only when the bytes are there (a read from a device). `None`: nothing is there, and nothing goes.
    ///
    /// # Errors
    /// The queue has ended.
    #[inline]
    fn place(
        &mut self,
        fill: impl FnOnce(&Room<'_>) -> Option<(usize, Meta)>,
    ) -> Result<Placed, Detach> {
        let _ = fill;
        Ok(Placed::NotHere)
    }

    /// Shows the other side what was sent.
    ///
    /// # Errors
    /// The queue has ended.
    fn flush(&mut self) -> Result<(), Detach>;

    /// Sleeps until there is what is asked for, or not longer than `limit`; `false`: that was it.
    ///
    /// # Errors
    /// The queue has ended.
    fn wait(&mut self, until: Sleep, limit: Duration) -> Result<bool, Detach>;
}
