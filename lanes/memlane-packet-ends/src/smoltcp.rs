//! Ends as devices of [smoltcp](https://docs.rs/smoltcp), a TCP/IP stack in user space: TCP without the kernel's.
//!
//! The stack reads and writes memory of this process: a frame that comes is copied out of the lane once, and one that
//! goes is copied into it once. Checksums of TCP and UDP are the device's. Those of frames that come are summed up
//! here, unless the sender has left them blank or vouches for them; those of frames that go are left blank, as the end
//! takes that, and are filled in only where they are needed: not between two processes of one machine.
//!
//! Large TCP frames (of several segments) come as one. The stack sends none.
//!
//! ```
//! use memlane_packet_ends::generate::{Generator, Plan};
//! use memlane_packet_ends::smoltcp::EndDevice;
//! use smoltcp::iface::{Config, Interface, SocketSet};
//! use smoltcp::time::Instant;
//! use smoltcp::wire::EthernetAddress;
//! use std::time::Duration;
//!
//! # let plan = Plan { stream: 1, sizes: (64, 64), count: 3, rate: 0 };
//! // Any end: `Port::new("front".into(), queue, &link)` is a queue of the lane.
//! let end = Generator::new(plan.checked().ok_or("sizes")?);
//! let mut device = EndDevice::new(end, 1500)?;
//! let address = EthernetAddress([2, 0, 0, 0, 0, 1]);
//! let mut interface = Interface::new(Config::new(address.into()), &mut device, Instant::ZERO);
//! let mut sockets = SocketSet::new(vec![]);
//! let began = std::time::Instant::now();
//! let now = || Instant::from_micros_const(began.elapsed().as_micros() as i64);
//! // Until the end has ended, as this one does.
//! while device.ended().is_none() {
//!     interface.poll(now(), &mut device, &mut sockets);
//!     // Here the sockets' user has its turn.
//!     let delay = interface.poll_delay(now(), &sockets);
//!     let delay = delay.map_or(Duration::from_secs(1), |delay| delay.into());
//!     device.wait(delay)?;
//! }
//! assert_eq!(device.counts().received, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::headers::{self, LOOK};
use super::{End, EndError, More, Sent, Sleep, lend};
use ::smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use ::smoltcp::time::Instant;
use core::ops::Range;
use memlane_packet::engine::chain::Frame;
use memlane_packet::layout::{PACKET_MAX, PACKET_MIN};
use memlane_packet::{Meta, Offloads};
use memlane_sys::Errno;
use rustix::event::{Timespec, poll};
use std::collections::VecDeque;
use std::time::Duration;

/// Frames that are taken from the end at once, at most, and bytes after which no more are.
const BURST: usize = 32;
const ENOUGH: usize = 256 << 10;
/// Frames, and bytes, after which the other side is told in the middle of a burst.
const TELL_FRAMES: usize = 32;
const TELL_BYTES: usize = 64 << 10;

/// What a device counted, beside what its end counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounts {
    /// Frames that the stack got.
    pub received: u64,
    /// Those of them of several segments.
    pub large: u64,
    /// Frames whose checksum was wrong, or could not be looked at (pieces of IP packets): the stack did not get them.
    pub damaged: u64,
    /// Frames that the stack sent.
    pub sent: u64,
    /// Frames of the stack that were lost: no room, or of no use to the end. It sends them again.
    pub lost: u64,
}

/// An end as a device of smoltcp.
#[derive(Debug)]
pub struct EndDevice<E> {
    /// Frames that came, one behind the other, and where each is.
    arena: Vec<u8>,
    waiting: VecDeque<Range<usize>>,
    out: Out<E>,
    received: u64,
    large: u64,
    damaged: u64,
    ended: Option<EndError>,
}

/// What sending needs.
#[derive(Debug)]
struct Out<E> {
    end: E,
    mtu: usize,
    frame: Box<[u8]>,
    /// Not yet shown to the other side: frames, bytes.
    untold: (usize, usize),
    /// What there was no room for.
    room: u32,
    sent: u64,
    lost: u64,
    ended: Option<EndError>,
}

impl<E: End> EndDevice<E> {
    /// The device of an end; `mtu`: bytes of an IP packet, at most, that the stack sends: what the other side's
    /// interface has.
    ///
    /// # Errors
    /// The end has ended, or EINVAL: there is no such MTU (576 to 9216 bytes, as the stack has it).
    pub fn new(mut end: E, mtu: usize) -> Result<EndDevice<E>, EndError> {
        if !(576..=9216).contains(&mtu) {
            return Err(EndError::Device(Errno::INVAL));
        }
        end.limit(Offloads::ALL)?;
        Ok(EndDevice {
            arena: Vec::new(),
            waiting: VecDeque::new(),
            out: Out {
                end,
                mtu: mtu + PACKET_MIN,
                frame: vec![0; PACKET_MAX].into(),
                untold: (0, 0),
                room: 0,
                sent: 0,
                lost: 0,
                ended: None,
            },
            received: 0,
            large: 0,
            damaged: 0,
            ended: None,
        })
    }

    /// The end.
    pub fn end(&self) -> &E {
        &self.out.end
    }

    /// The end has ended: nothing comes any more, and nothing goes.
    pub fn ended(&self) -> Option<EndError> {
        let all_taken = self.waiting.is_empty();
        self.ended.filter(|_| all_taken).or(self.out.ended)
    }

    /// What was counted.
    pub fn counts(&self) -> DeviceCounts {
        DeviceCounts {
            received: self.received,
            large: self.large,
            damaged: self.damaged,
            sent: self.out.sent,
            lost: self.out.lost,
        }
    }

    /// What the stack has sent goes. [`wait`](Self::wait) does that too, and so does the stack's next look for frames.
    ///
    /// # Errors
    /// The end has ended.
    pub fn flush(&mut self) -> Result<(), EndError> {
        self.out.flush()
    }

    /// After a poll of the stack: what it has sent goes, and we sleep until a frame comes, or there is room again, but
    /// not longer than `limit` (the stack's `poll_delay`). Wakes early now and then.
    ///
    /// # Errors
    /// The end has ended.
    pub fn wait(&mut self, limit: Duration) -> Result<(), EndError> {
        self.flush()?;
        if !self.waiting.is_empty() || self.ended.is_some() || limit.is_zero() {
            return Ok(());
        }
        let until = Sleep {
            frames: true,
            room: self.out.room,
        };
        let end = &mut self.out.end;
        if !end.sleeps(until)? {
            return Ok(());
        }
        let mut fds = Vec::with_capacity(4);
        end.watch(until, &mut fds);
        let due = end.due();
        let due = due.map(|due| due.saturating_duration_since(std::time::Instant::now()));
        let limit = Timespec::try_from(due.map_or(limit, |due| limit.min(due))).ok();
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => end.woken(),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what has come.
    fn fill(&mut self) {
        self.arena.clear();
        let (arena, waiting) = (&mut self.arena, &mut self.waiting);
        let (received, large, damaged) = (&mut self.received, &mut self.large, &mut self.damaged);
        let came = self.out.end.receive(BURST, &mut |frame| {
            let at = arena.len();
            arena.resize(at + frame.len(), 0);
            let n = frame.copy_out(0, &mut arena[at..]);
            if is_good(&arena[at..at + n], frame.meta()) {
                waiting.push_back(at..at + n);
                *received += 1;
                *large += u64::from(frame.meta().gso.is_some());
            } else {
                arena.truncate(at);
                *damaged += 1;
            }
            match arena.len() < ENOUGH {
                true => More::Yes,
                false => More::No,
            }
        });
        if let Err(error) = came {
            self.ended = Some(error);
        }
    }
}

/// Is a frame's transport checksum right, or vouched for? A private copy.
fn is_good(frame: &[u8], meta: Meta) -> bool {
    if meta.csum_blank || meta.data_validated {
        return true;
    }
    let look = &frame[..frame.len().min(LOOK)];
    let Some(found) = headers::find(look, frame.len()) else {
        return !headers::may_be_summed(look);
    };
    let at = found.at + found.checksum;
    let covered = &frame[found.at..found.end];
    let sum = headers::sum(covered) + u64::from(found.pseudo(look));
    // UDP over IPv4 may go without (RFC 768).
    let none = !found.tcp && !found.ipv6 && frame[at..at + 2] == [0, 0];
    none || headers::fold(sum) == 0xffff
}

impl<E: End> Out<E> {
    fn flush(&mut self) -> Result<(), EndError> {
        if self.untold != (0, 0) {
            self.untold = (0, 0);
            self.end.flush()?;
        }
        Ok(())
    }

    /// Is there room for a frame?
    fn is_free(&mut self) -> bool {
        let lacks = match self.end.lacks() {
            Ok(0) => Ok(0),
            // What was sent makes room once it has gone.
            Ok(_) => self.flush().and_then(|()| self.end.lacks()),
            error => error,
        };
        match lacks {
            Ok(room) => self.room = room,
            Err(error) => self.ended = Some(error),
        }
        self.room == 0 && self.ended.is_none()
    }

    fn send(&mut self, len: usize) {
        let frame = &mut self.frame[..len];
        let meta = leave_blank(frame);
        let (end, mut sent) = (&mut self.end, Ok(Sent::Refused));
        lend(frame, meta, &mut |frame: &Frame<'_>| {
            sent = end.send(frame);
            More::No
        });
        match sent {
            Ok(Sent::Queued) => {
                self.sent += 1;
                self.untold = (self.untold.0 + 1, self.untold.1 + len);
            }
            Ok(Sent::Full(room)) => {
                self.room = room.max(1);
                self.lost += 1;
            }
            Ok(Sent::Refused) => self.lost += 1,
            Err(error) => self.ended = Some(error),
        }
        let (frames, bytes) = self.untold;
        if (frames >= TELL_FRAMES || bytes >= TELL_BYTES)
            && let Err(error) = self.flush()
        {
            self.ended = Some(error);
        }
    }
}

/// Leaves the checksum of a frame to who needs it, as the stack has done.
fn leave_blank(frame: &mut [u8]) -> Meta {
    let len = frame.len();
    let Some(found) = headers::find(&frame[..len.min(LOOK)], len) else {
        return Meta::default();
    };
    let pseudo = found.pseudo(frame);
    let at = found.at + found.checksum;
    frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
    Meta {
        csum_blank: true,
        data_validated: true,
        gso: None,
    }
}

/// A frame that came.
#[derive(Debug)]
pub struct Rx<'a>(&'a [u8]);

/// Room for one that goes.
#[derive(Debug)]
pub struct Tx<'a, E>(&'a mut Out<E>);

impl RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl<E: End> TxToken for Tx<'_, E> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        // Longer frames than the MTU are the stack's mistake; it must get its buffer all the same.
        if len > self.0.frame.len() {
            self.0.lost += 1;
            return f(&mut vec![0; len]);
        }
        let frame = &mut self.0.frame[..len];
        frame.fill(0);
        let result = f(frame);
        self.0.send(len);
        result
    }
}

impl<E: End> Device for EndDevice<E> {
    type RxToken<'a>
        = Rx<'a>
    where
        E: 'a;
    type TxToken<'a>
        = Tx<'a, E>
    where
        E: 'a;

    /// A frame, if there is one, whether or not there is room for what the stack answers: two stacks that both waited
    /// for that would wait for ever.
    fn receive(&mut self, _: Instant) -> Option<(Rx<'_>, Tx<'_, E>)> {
        if self.waiting.is_empty() {
            if let Err(error) = self.out.flush() {
                self.out.ended = Some(error);
            }
            if self.ended.is_none() {
                self.fill();
            }
        }
        let range = self.waiting.pop_front()?;
        Some((Rx(&self.arena[range]), Tx(&mut self.out)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_, E>> {
        self.out.is_free().then_some(Tx(&mut self.out))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.out.mtu;
        capabilities.checksum.tcp = Checksum::None;
        capabilities.checksum.udp = Checksum::None;
        capabilities
    }
}
