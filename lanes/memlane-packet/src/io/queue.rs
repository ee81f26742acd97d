//! Queues with their doorbells: [`PacketPort`] at both ends.

use super::doorbell::Doorbell;
use super::memory::Regions;
use crate::engine::back::Back;
use crate::engine::cache::GrantCounts;
use crate::engine::chain::{Frame, Room};
use crate::engine::front::Front;
use crate::error::Detach;
use crate::offload::Meta;
use crate::port::{More, PacketPort, Placed, Sent, Sleep};
use crate::stats::QueueStats;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Calls in vain after which a queue that never sleeps looks whether the other process still is.
const LOOK_AFTER: u32 = 4096;

/// A front's queue.
#[derive(Debug)]
pub struct FrontQueue {
    engine: Front,
    doorbell: Doorbell,
    in_vain: u32,
}

/// A back's queue.
#[derive(Debug)]
pub struct BackQueue {
    engine: Back<Regions>,
    doorbell: Doorbell,
    in_vain: u32,
    started: Instant,
}

impl FrontQueue {
    pub(super) fn new(engine: Front, doorbell: Doorbell) -> FrontQueue {
        FrontQueue {
            engine,
            doorbell,
            in_vain: 0,
        }
    }

    /// What was counted.
    pub fn stats(&self) -> QueueStats {
        self.engine.stats()
    }

    /// Has the back answered everything that was sent?
    ///
    /// # Errors
    /// The queue has ended.
    pub fn is_quiet(&mut self) -> Result<bool, Detach> {
        self.engine.is_quiet()
    }
}

impl BackQueue {
    pub(super) fn new(engine: Back<Regions>, doorbell: Doorbell) -> BackQueue {
        BackQueue {
            engine,
            doorbell,
            in_vain: 0,
            started: Instant::now(),
        }
    }

    /// What was counted.
    pub fn stats(&self) -> QueueStats {
        self.engine.stats()
    }

    /// Of the tables of kept mappings: tx, rx.
    pub fn grants(&self) -> [GrantCounts; 2] {
        self.engine.grants()
    }

    /// From time to time (waiting does it too): gives up mappings that are idle.
    pub fn tick(&mut self) {
        let now = self.started.elapsed().as_millis();
        self.engine.tick(u64::try_from(now).unwrap_or(u64::MAX));
    }
}

macro_rules! port {
    ($queue:ty, $before_sleep:expr) => {
        impl $queue {
            /// Rings, if that was asked for. That nobody hears it is told by the next look, after the last frames of
            /// who went have been taken.
            #[inline]
            fn after(&self, ring: bool) {
                if ring {
                    self.doorbell.ring();
                }
            }

            /// Gives back what was received.
            #[inline]
            fn settle(&mut self) {
                let ring = self.engine.settle();
                self.after(ring);
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
                    return self.drain();
                }
                Ok(())
            }

            fn drain(&mut self) -> Result<(), Detach> {
                if self.doorbell.drain() {
                    return Ok(());
                }
                Err(self.engine.end(Detach::PeerGone))
            }

            /// For who sleeps on more than this queue: asks for a doorbell. `false`: there is something already. Then poll
            /// the queue's descriptor for reading, and tell [`woken`](Self::woken) of it.
            ///
            /// # Errors
            /// The queue has ended.
            pub fn sleeps(&mut self, until: Sleep) -> Result<bool, Detach> {
                self.settle();
                let quiet = self.engine.sleeps(until)?;
                if quiet {
                    $before_sleep(self);
                }
                Ok(quiet)
            }

            /// Slots to wait for before the largest frame finds room; 0: it does.
            ///
            /// # Errors
            /// The queue has ended.
            pub fn lacks(&mut self) -> Result<u32, Detach> {
                self.engine.lacks()
            }

            /// After such a sleep.
            ///
            /// # Errors
            /// The queue has ended.
            pub fn woken(&mut self) -> Result<(), Detach> {
                self.drain_after_a_look(Sleep::FOR_FRAMES)
            }

            /// Why the queue has ended.
            pub fn ended(&self) -> Option<Detach> {
                self.engine.ended()
            }
        }

        impl AsFd for $queue {
            /// The doorbell: readable when it was rung, and when the other process is gone.
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.doorbell.as_fd()
            }
        }

        impl PacketPort for $queue {
            #[inline]
            fn receive_while(
                &mut self,
                most: usize,
                take: impl FnMut(&Frame<'_>) -> More,
            ) -> Result<usize, Detach> {
                let burst = self.engine.receive_while(most, take)?;
                self.after(burst.ring);
                self.found(burst.frames > 0)?;
                Ok(burst.frames)
            }

            #[inline]
            fn send(
                &mut self,
                len: usize,
                meta: Meta,
                fill: impl FnOnce(&Room<'_>),
            ) -> Result<Sent, Detach> {
                let sent = self.engine.send(len, meta, fill)?;
                self.found(!matches!(sent, Sent::Full(_)))?;
                Ok(sent)
            }

            #[inline]
            fn place(
                &mut self,
                fill: impl FnOnce(&Room<'_>) -> Option<(usize, Meta)>,
            ) -> Result<Placed, Detach> {
                let placed = self.engine.place(fill)?;
                self.found(!matches!(placed, Placed::Sent(Sent::Full(_))))?;
                Ok(placed)
            }

            #[inline]
            fn flush(&mut self) -> Result<(), Detach> {
                let ring = self.engine.flush()?;
                self.after(ring);
                Ok(())
            }

            fn wait(&mut self, until: Sleep, limit: Duration) -> Result<bool, Detach> {
                self.settle();
                let end = Instant::now().checked_add(limit);
                loop {
                    if !self.engine.sleeps(until)? {
                        return Ok(true);
                    }
                    $before_sleep(self);
                    let left =
                        end.map_or(limit, |end| end.saturating_duration_since(Instant::now()));
                    let slept = self.doorbell.sleep(left);
                    let rung = slept.map_err(|errno| self.engine.end(Detach::Socket(errno)))?;
                    if !rung {
                        return Ok(!self.engine.sleeps(until)?);
                    }
                    self.drain_after_a_look(until)?;
                }
            }
        }

        impl $queue {
            /// The last frames of a process that went are still taken: its death is told when there are no more.
            fn drain_after_a_look(&mut self, until: Sleep) -> Result<(), Detach> {
                if self.doorbell.drain() || !self.engine.sleeps(until)? {
                    return Ok(());
                }
                Err(self.engine.end(Detach::PeerGone))
            }
        }
    };
}

port!(FrontQueue, |_: &mut FrontQueue| ());
port!(BackQueue, BackQueue::tick);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{BackTerms, FrontTerms, Listener, connect};

    #[test]
    fn frames_of_a_process_that_died_before_it_could_ring_are_taken() {
        let name = format!("@memlane-packet-no-doorbell-{}", std::process::id());
        let listener = Listener::bind(&name).unwrap();
        let front = std::thread::spawn(move || connect(&name, &FrontTerms::default()).unwrap());
        let limit = Duration::from_secs(30);
        let (_link, mut backs) = listener.accept(&BackTerms::default(), limit).unwrap();
        let (link, mut fronts) = front.join().unwrap();
        let dying = std::thread::spawn(move || {
            // Most often the other side sleeps by then; if it does not, the same must come out.
            std::thread::sleep(Duration::from_millis(100));
            fronts[0].send(64, Meta::default(), |_| ()).unwrap();
            // Published, and gone before the doorbell.
            let _ = fronts[0].engine.flush();
            drop((link, fronts));
        });
        assert_eq!(backs[0].wait(Sleep::FOR_FRAMES, limit), Ok(true));
        assert_eq!(backs[0].receive(8, |_| ()), Ok(1));
        let end = backs[0].wait(Sleep::FOR_FRAMES, limit);
        assert_eq!(end, Err(Detach::PeerGone));
        dying.join().unwrap();
    }
}
