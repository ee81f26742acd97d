//! The lane itself as an end: a queue of a link.

use super::tally::Tally;
use super::{End, EndCounts, EndError, Filled, More, Placed, Sent, Sleep, carry};
use memlane_packet::Offloads;
use memlane_packet::engine::cache::GrantCounts;
use memlane_packet::engine::chain::Frame;
use memlane_packet::error::Detach;
use memlane_packet::io::{BackQueue, FrontQueue, Link};
use memlane_packet::port::PacketPort;
use memlane_packet::stats::QueueStats;
use rustix::event::{PollFd, PollFlags};
use std::fmt::Debug;
use std::os::fd::AsFd;

/// What a queue can do beside what a [`PacketPort`] does.
pub trait Queue: PacketPort + AsFd + Send + Debug {
    /// See [`FrontQueue::sleeps`].
    ///
    /// # Errors
    /// The queue has ended.
    fn sleeps(&mut self, until: Sleep) -> Result<bool, Detach>;
    /// See [`FrontQueue::lacks`].
    ///
    /// # Errors
    /// The queue has ended.
    fn lacks(&mut self) -> Result<u32, Detach>;
    /// See [`FrontQueue::woken`].
    ///
    /// # Errors
    /// The queue has ended.
    fn woken(&mut self) -> Result<(), Detach>;
    /// What was counted.
    fn stats(&self) -> QueueStats;
    /// Of a back: its tables of kept mappings, tx and rx.
    fn grants(&self) -> Option<[GrantCounts; 2]>;
}

macro_rules! queue {
    ($queue:ty, $grants:expr) => {
        impl Queue for $queue {
            fn sleeps(&mut self, until: Sleep) -> Result<bool, Detach> {
                <$queue>::sleeps(self, until)
            }

            fn lacks(&mut self) -> Result<u32, Detach> {
                <$queue>::lacks(self)
            }

            fn woken(&mut self) -> Result<(), Detach> {
                <$queue>::woken(self)
            }

            fn stats(&self) -> QueueStats {
                <$queue>::stats(self)
            }

            fn grants(&self) -> Option<[GrantCounts; 2]> {
                $grants(self)
            }
        }
    };
}

queue!(FrontQueue, |_| None);
queue!(BackQueue, |back: &BackQueue| Some(back.grants()));

/// A queue of a link. The link itself stays with its owner, who drops it last.
#[derive(Debug)]
pub struct Port<Q> {
    queue: Q,
    name: String,
    offloads: Offloads,
    refused: u64,
}

impl<Q: Queue> Port<Q> {
    /// A queue of `link`.
    pub fn new(name: String, queue: Q, link: &Link) -> Port<Q> {
        Port {
            queue,
            name,
            offloads: link.offloads(),
            refused: 0,
        }
    }

    /// The queue.
    pub fn queue(&self) -> &Q {
        &self.queue
    }
}

impl<Q: Queue> End for Port<Q> {
    fn name(&self) -> &str {
        &self.name
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        Ok(self.queue.receive_while(most, take)?)
    }

    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        let fill = |room: &crate::Room<'_>| carry(frame, room);
        let sent = self.queue.send(frame.len(), frame.meta(), fill)?;
        self.refused += u64::from(sent == Sent::Refused);
        Ok(sent)
    }

    fn place(
        &mut self,
        fill: &mut dyn FnMut(&crate::Room<'_>) -> Filled,
    ) -> Result<Placed, EndError> {
        let placed = self.queue.place(fill)?;
        self.refused += u64::from(placed == Placed::Sent(Sent::Refused));
        Ok(placed)
    }

    fn lacks(&mut self) -> Result<u32, EndError> {
        Ok(self.queue.lacks()?)
    }

    fn flush(&mut self) -> Result<(), EndError> {
        Ok(self.queue.flush()?)
    }

    fn sleeps(&mut self, until: Sleep) -> Result<bool, EndError> {
        Ok(self.queue.sleeps(until)?)
    }

    fn watch<'a>(&'a self, _: Sleep, fds: &mut Vec<PollFd<'a>>) {
        fds.push(PollFd::new(&self.queue, PollFlags::IN));
    }

    fn woken(&mut self) -> Result<(), EndError> {
        Ok(self.queue.woken()?)
    }

    fn counts(&self) -> EndCounts {
        let stats = self.queue.stats();
        EndCounts {
            received: stats.received,
            received_bytes: stats.received_bytes,
            sent: stats.sent,
            sent_bytes: stats.sent_bytes,
            full: stats.full,
            failed: stats.failed + self.refused,
        }
    }

    fn tally(&self) -> Tally {
        let stats = self.queue.stats();
        Tally {
            counts: self.counts(),
            doorbells: stats.doorbells,
            quiet: stats.quiet,
            copied: stats.copied,
            grants: self.queue.grants(),
            verdict: None,
        }
    }
}
