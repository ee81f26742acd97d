//! A queue with its doorbells: [`PacketPort`] at both ends.

use super::link::look;
use super::rings::{Counts, Rx, Tx};
use crate::peer_event::PeerEventFd;
use memlane_packet::Meta;
use memlane_packet::engine::chain::{Frame, Room};
use memlane_packet::error::Detach;
use memlane_packet::io::socket::errno;
use memlane_packet::port::{More, PacketPort, Sent, Sleep};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Calls in vain after which a queue that never sleeps looks whether the other process still is.
const LOOK_AFTER: u32 = 4096;
/// memif has no doorbell for room: how often to look.
const ROOM_EVERY: Duration = Duration::from_micros(100);
/// DPDK's sender does not order its index before its look at our wish for a doorbell, so that one doorbell can be missed just
/// when it is asked for: the first sleep is short.
const FIRST_SLEEP: Duration = Duration::from_millis(1);

/// A queue of a memif interface, at either side. A ring of it may be missing, if the two sides have different numbers
/// of them; then nothing comes, or nothing can be sent.
#[derive(Debug)]
pub struct MemifQueue {
    name: String,
    socket: Arc<OwnedFd>,
    rx: Option<(Rx, PeerEventFd)>,
    tx: Option<(Tx, PeerEventFd)>,
    counts: Counts,
    in_vain: u32,
    due: Option<Instant>,
    ended: Option<Detach>,
}

impl MemifQueue {
    pub(super) fn new(name: String, socket: &Arc<OwnedFd>) -> MemifQueue {
        MemifQueue {
            name,
            socket: Arc::clone(socket),
            rx: None,
            tx: None,
            counts: Counts::default(),
            in_vain: 0,
            due: None,
            ended: None,
        }
    }

    pub(super) fn set_rx(&mut self, rx: Rx, doorbell: PeerEventFd) {
        self.rx = Some((rx, doorbell));
    }

    pub(super) fn set_tx(&mut self, tx: Tx, doorbell: PeerEventFd) {
        self.tx = Some((tx, doorbell));
    }

    /// `memif:` and the socket.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Why the queue has ended.
    pub fn ended(&self) -> Option<Detach> {
        self.ended
    }

    /// Has the other side taken everything that was sent? Known to clients only.
    ///
    /// # Errors
    /// The queue has ended.
    pub fn is_quiet(&mut self) -> Result<bool, Detach> {
        self.alive()?;
        let quiet = self.tx.as_mut().map_or(Ok(true), |(tx, _)| tx.is_quiet());
        quiet.map_err(|why| self.end(why))
    }

    #[inline]
    fn alive(&self) -> Result<(), Detach> {
        self.ended.map_or(Ok(()), Err)
    }

    #[cold]
    fn end(&mut self, why: Detach) -> Detach {
        *self.ended.get_or_insert(why)
    }

    /// Who polls makes no system call that would show a death, so it looks now and then.
    #[inline]
    fn found(&mut self, something: bool) -> Result<(), Detach> {
        if something {
            self.in_vain = 0;
            return Ok(());
        }
        self.in_vain += 1;
        if self.in_vain >= LOOK_AFTER {
            self.in_vain = 0;
            return self.look_around();
        }
        Ok(())
    }

    /// The last frames of a process that went are still taken: its end is told when there are no more.
    fn look_around(&mut self) -> Result<(), Detach> {
        match look(&self.socket) {
            Some((why, _)) if !self.has_frames()? => Err(self.end(why)),
            _ => Ok(()),
        }
    }

    fn has_frames(&mut self) -> Result<bool, Detach> {
        let ready = self.rx.as_ref().map_or(Ok(false), |(rx, _)| rx.is_ready());
        ready.map_err(|why| self.end(why))
    }

    /// Asks to be woken. `false`: there is something already.
    ///
    /// # Errors
    /// The queue has ended.
    pub fn sleeps(&mut self, until: Sleep) -> Result<bool, Detach> {
        self.alive()?;
        let done = self.look_for(until);
        done.map_err(|why| self.end(why))
    }

    fn look_for(&mut self, until: Sleep) -> Result<bool, Detach> {
        self.due = None;
        let mut within = |limit| {
            let due = Instant::now() + limit;
            self.due = Some(self.due.map_or(due, |earlier: Instant| earlier.min(due)));
        };
        if until.frames
            && let Some((rx, _)) = &mut self.rx
        {
            let (nothing, now) = rx.sleeps()?;
            if !nothing {
                return Ok(false);
            }
            if now {
                within(FIRST_SLEEP);
            }
        }
        if until.room > 0
            && let Some((tx, _)) = &mut self.tx
        {
            if tx.has_room(until.room)? {
                return Ok(false);
            }
            within(ROOM_EVERY);
        }
        Ok(true)
    }

    /// When to look again without any doorbell.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// What to poll.
    pub fn watch<'a>(&'a self, until: Sleep, fds: &mut Vec<PollFd<'a>>) {
        fds.push(PollFd::new(&*self.socket, PollFlags::IN));
        if until.frames
            && let Some((_, doorbell)) = &self.rx
        {
            fds.push(PollFd::new(doorbell, PollFlags::IN));
        }
    }

    /// A poll is over: drains the doorbell, sees who is gone.
    ///
    /// # Errors
    /// The queue has ended.
    pub fn woken(&mut self) -> Result<(), Detach> {
        self.due = None;
        if let Some((_, doorbell)) = &self.rx {
            doorbell.drain();
        }
        self.look_around()
    }
}

impl PacketPort for MemifQueue {
    #[inline]
    fn receive_while(
        &mut self,
        most: usize,
        take: impl FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, Detach> {
        self.alive()?;
        let Some((rx, _)) = &mut self.rx else {
            return self.found(false).map(|()| 0);
        };
        let got = rx.receive(most, &mut self.counts, take);
        let got = got.map_err(|why| self.end(why))?;
        self.found(got > 0)?;
        Ok(got)
    }

    /// memif says nothing of frames: one with a blank checksum or segments to be cut is refused.
    #[inline]
    fn send(
        &mut self,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&Room<'_>),
    ) -> Result<Sent, Detach> {
        self.alive()?;
        let sent = match &mut self.tx {
            Some((tx, _)) if !meta.csum_blank && meta.gso.is_none() => {
                tx.send(len, &mut self.counts, fill)
            }
            _ => Ok(Sent::Refused),
        };
        let sent = sent.map_err(|why| self.end(why))?;
        self.counts.refused += u64::from(sent == Sent::Refused);
        self.found(!matches!(sent, Sent::Full(_)))?;
        Ok(sent)
    }

    #[inline]
    fn flush(&mut self) -> Result<(), Detach> {
        self.alive()?;
        if let Some((tx, doorbell)) = &mut self.tx
            && tx.is_behind()
        {
            if tx.flush() {
                self.counts.doorbells += 1;
                doorbell.signal();
            } else {
                self.counts.quiet += 1;
            }
        }
        Ok(())
    }

    fn wait(&mut self, until: Sleep, limit: Duration) -> Result<bool, Detach> {
        let end = Instant::now().checked_add(limit);
        loop {
            if !self.sleeps(until)? {
                return Ok(true);
            }
            let now = Instant::now();
            let left = end.map_or(limit, |end| end.saturating_duration_since(now));
            if left.is_zero() {
                return Ok(false);
            }
            let due = self.due.map(|due| due.saturating_duration_since(now));
            let polled = self.poll(until, due.map_or(left, |due| due.min(left)));
            polled.map_err(|why| self.end(why))?;
            self.woken()?;
        }
    }
}

impl MemifQueue {
    fn poll(&self, until: Sleep, limit: Duration) -> Result<(), Detach> {
        let limit =
            Timespec::try_from(limit).map_err(|_| Detach::Socket(memlane_sys::Errno::INVAL))?;
        let mut fds = Vec::new();
        self.watch(until, &mut fds);
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Detach::Socket(errno(error))),
        }
    }
}
