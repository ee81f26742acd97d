//! The bells that a poll or select relies on while it sleeps: its connections stay awake, and their senders ring.
//!
//! How a bell is asked for and rung is in [`memlane_core::bell`]. The chunk of such a connection has this thread as its
//! sleeper ([`Sleeper`](crate::state::sets::Sleeper)), so its senders ring for nobody else, and only this thread says that it
//! is asleep.

use super::strangers::Strangers;
use crate::protocol::board::{self, polled::Ear};
use crate::state::process::PROCESS;
use crate::state::sets::Bell;
use crate::state::thread;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use libc::pollfd;
use memlane_core::bell::Ring;
use memlane_core::layout::ReadyWords;
use memlane_core::sync::{Cpu, Words as _};
use memlane_sys::time::ticks;

/// The most bells of one call. The connections of further chunks are parked.
pub(super) const MOST: usize = 32;
/// A thread that relies on bells looks at its rings by itself after this many ms. Then it parks its connections.
pub(super) const LOOK_MS: u64 = 500;
/// After this many sleeps on bells, a call parks its connections: its peers always have news, or ring for others.
const TRIES: u32 = 64;

/// The bells of one sleep.
pub(super) struct Relied {
    /// The first `len` are set. To fill in all of them before each call would take twenty cache lines.
    ears: [MaybeUninit<Ear>; MOST],
    len: usize,
    /// How often this call may still rely on bells.
    tries: u32,
    /// The sleep is a nap, so short that it says nothing about the connections.
    pub(super) naps: bool,
    /// What else it waits for.
    pub(super) strangers: Strangers,
}

impl Relied {
    /// For a call that may rely on bells if `may`.
    pub(super) fn new(may: bool) -> Relied {
        let is_nested = thread::current().relies.load(Ordering::Relaxed) != 0;
        Relied {
            ears: [const { MaybeUninit::uninit() }; MOST],
            len: 0,
            tries: if may && !is_nested { TRIES } else { 0 },
            naps: false,
            strangers: Strangers::Unknown,
        }
    }

    /// Begins another sleep, without any bell so far.
    pub(super) fn begin(&mut self) {
        self.len = 0;
        self.tries = self.tries.saturating_sub(1);
    }

    /// This call does not rely on bells any more.
    pub(super) fn give_up(&mut self) {
        self.tries = 0;
    }

    /// A sleep has ended without news. If it was no nap, the next one is on TCP.
    pub(super) fn were_idle(&mut self) {
        self.tries = if self.naps { self.tries + 1 } else { 0 };
    }

    /// Relies on this bell too. `false`: the connection must be parked.
    pub(super) fn add(&mut self, bell: &Bell) -> bool {
        if self.tries == 0 {
            return false;
        }
        if self.each().any(|ear| ear.bell.chunk == bell.chunk) {
            return true;
        }
        let Some(place) = self.ears.get_mut(self.len) else {
            return false;
        };
        place.write(board::polled::ear_of(bell));
        self.len += 1;
        true
    }

    /// May this call add bells?
    pub(super) fn may(&self) -> bool {
        self.tries != 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn each(&self) -> impl Iterator<Item = &Ear> {
        let ears = &self.ears[..self.len];
        // SAFETY: `add` has written the first `len`.
        ears.iter().map(|ear| unsafe { ear.assume_init_ref() })
    }

    /// The ready words of the chunks, and how their bells are to be rung.
    fn words(&self) -> impl Iterator<Item = (&'static ReadyWords, Ring)> {
        self.each()
            .filter_map(|ear| Some((board::of_this_thread(&ear.bell)?, ear.ring)))
    }

    /// Asks the senders to ring. The caller looks at the rings before it sleeps.
    pub(super) fn lie_down(&self) {
        thread::current().relies.store(1, Ordering::Relaxed);
        self.words().for_each(|(ready, ring)| ready.lie_down(ring));
        Cpu::full_fence();
    }

    /// Tells the senders that they need not ring.
    pub(super) fn get_up(&self) {
        self.words().for_each(|(ready, _)| ready.get_up());
        thread::current().relies.store(0, Ordering::Relaxed);
    }

    /// What to ask the kernel about, beside the program's own list.
    pub(super) fn entries(&self) -> impl Iterator<Item = pollfd> {
        self.each().map(|ear| pollfd {
            fd: ear.fd,
            events: libc::POLLIN,
            revents: 0,
        })
    }

    /// Takes what has been heard of the bells, as the kernel has answered for [`entries`](Self::entries). Does not rely on
    /// bells any more if the sender of one has closed it: the kernel would report that at once, for ever.
    pub(super) fn silence(&mut self, answers: &[pollfd]) {
        let heard = |(_, answer): &(&Ear, &pollfd)| answer.revents != 0;
        let can_ring =
            |(ear, answer): (&Ear, &pollfd)| ear.take() && answer.revents == libc::POLLIN;
        // All of them are taken, whatever they say.
        let silent = self.each().zip(answers).filter(heard).map(can_ring);
        if silent.fold(false, |gone, can_ring| gone | !can_ring) {
            self.give_up();
        }
    }
}

/// Is it time for this thread to park those of its connections that have been idle?
pub(super) fn is_sweep_due() -> bool {
    let swept = &thread::current().swept;
    let every = LOOK_MS * 1000 * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let now = ticks();
    let is_due = now.wrapping_sub(swept.load(Ordering::Relaxed)) >= every;
    if is_due {
        swept.store(now, Ordering::Relaxed);
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::sets::Sleeper;
    use memlane_core::layout::{ASLEEP_AT_EDGE, AWAKE};
    use memlane_sys::sock;

    #[test]
    fn a_poll_asks_for_edges_and_relies_on_no_bell_whose_sender_has_closed_it() {
        thread::tests::set_own_locator();
        let sleeper = Sleeper::this_thread();
        let (ready, chunk) = board::tests::chunk_of_zeros(1951, sleeper);
        let (ours, theirs) = sock::unix_stream().expect("a pair");
        let fd = ours.raw();
        let mut relied = Relied::new(true);
        relied.begin();
        assert!(relied.add(&Bell { chunk, fd, sleeper }));
        relied.lie_down();
        assert_eq!(ready.asleep.load(Ordering::Relaxed), ASLEEP_AT_EDGE);
        relied.get_up();
        assert_eq!(ready.asleep.load(Ordering::Relaxed), AWAKE);
        let heard = |entry| pollfd {
            revents: libc::POLLIN,
            ..entry
        };
        let rung: Vec<pollfd> = relied.entries().map(heard).collect();
        assert!(rung.len() == 1 && rung[0].fd != fd, "the bell's set");
        sock::make_edge(theirs.raw()).expect("an edge");
        relied.silence(&rung);
        assert!(relied.may());
        drop(theirs);
        relied.silence(&rung);
        assert!(!relied.may());
        board::polled::close(1951);
    }
    #[test]
    fn naps_without_news_cost_no_try_and_one_longer_sleep_costs_all() {
        let mut relied = Relied::new(true);
        relied.naps = true;
        for _ in 0..2 * TRIES {
            relied.begin();
            relied.were_idle();
            assert!(relied.may());
        }
        relied.naps = false;
        relied.begin();
        relied.were_idle();
        assert!(!relied.may());
    }
}
