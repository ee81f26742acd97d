//! One direction of one stream over two lanes.
//!
//! A stream is a sequence of bytes, each with its **stream offset**. Every byte
//! goes either through the ring (at `offset % ring size`) or through TCP. The
//! sender chooses for each stretch; the receiver follows the sender's map: all
//! bytes below `published` are in the ring, except those in a declared TCP
//! **run**. A run is declared before its first byte is written to TCP, so the
//! receiver always knows how many bytes it may take from TCP at its place; what
//! the kernel did not take of a declared run is a **debt**, paid by TCP first.
//!
//! # Parking
//!
//! The ring cannot wake anybody; TCP can. So a receiver that goes to sleep says
//! so first, and the sender looks first:
//!
//! ```text
//! receiver: flags |= PARKED   ── fence P ──  writing == 0?  published unchanged?  sleep on TCP
//! sender:   writing  = 1      ── fence W ──  flags & PARKED? → TCP   else copy, publish; writing = 0
//! ```
//!
//! Whichever fence comes first in the single order of the two: if P, the sender
//! sees `PARKED` and its bytes go by TCP, which wakes the receiver; if W, the
//! receiver sees `writing` and waits it out (bounded: the peer may be
//! descheduled, dead or hostile), then sees the new `published`. There is no
//! order in which bytes lie in the ring while the receiver sleeps.
//!
//! Checked with loom on a shrunken ring (`tests/loom_ring.rs`).
//!
//! # Trust
//!
//! [`Tx`] and [`Rx`] live in private memory. What they read of the other side's
//! words is loaded once and checked against private state; an impossible value
//! is [`Misbehaved`], which ends this peer's memory lane and nothing else.

use crate::layout::{ACTIVE, DETACHED, DmbWords, PARKED, RUNS, TCP_ONLY};
use crate::sync::{Word, Words};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The peer wrote an impossible value into the shared words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misbehaved {
    /// `consumed` went backwards or beyond what was sent.
    Consumed,
    /// `published` went backwards, claims more than the ring holds, or less than was taken.
    Published,
    /// A TCP run overlaps its predecessor or ends before it starts.
    Run,
}

impl core::fmt::Display for Misbehaved {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Misbehaved::Consumed => "peer's consumed offset is impossible",
            Misbehaved::Published => "peer's published offset is impossible",
            Misbehaved::Run => "peer declared an impossible TCP run",
        })
    }
}

/// Where a ring stretch lies: `len` bytes from ring position `at`, without wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Position in the ring.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// Why the next bytes must go by TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MustTcp {
    /// The receiver is parked: only TCP can wake it.
    Parked,
    /// The receiver asked for TCP only: time for [`Tx::go_tcp_only`].
    TcpOnly,
    /// Bytes promised to TCP are still unpaid.
    Debt,
    /// No slot is free in which a later run could be declared.
    RunsFull,
    /// This side has ended the memory lane.
    Ended,
}

/// A new run is needed only after ring bytes, so it is enough that ring bytes
/// are written while at most this many runs are outstanding: one slot for the
/// run after them, and one because the receiver may still be looking at the
/// last run that it has finished (that run could have grown).
const RUNS_FOR_RING: usize = RUNS - 2;

/// The sender's answer to "may I put bytes into the ring?".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Yes, up to this many bytes. `writing` is set: [`Tx::commit`] must follow.
    Ring(usize),
    /// The ring is full.
    Full,
    /// No: by TCP.
    Tcp(MustTcp),
}

/// Sender's private state of one direction. All-zero bytes are a valid,
/// inactive value.
#[derive(Debug, Default, Clone, Copy)]
#[repr(C)]
pub struct Tx {
    head: u64,
    consumed: u64,
    debt: u64,
    run_start: u64,
    ring_head: u64,
    run_ends: [u64; RUNS],
    declared: u32,
    freed: u32,
    ended: u32,
    reserved: u32,
}

impl Tx {
    /// Stream offset of the next byte from the application.
    pub fn offset(&self) -> u64 {
        self.head - self.debt
    }

    /// Bytes in flight as last seen: sent (by either lane) and not yet consumed.
    pub fn in_flight(&self) -> u64 {
        // A peer may have acknowledged promised bytes that `go_tcp_only` took back.
        self.head.saturating_sub(self.consumed)
    }

    /// Has [`Tx::go_tcp_only`] been called?
    pub fn is_ended(&self) -> bool {
        self.ended != 0
    }

    /// Opens the lane at stream offset `head`: everything below went by TCP.
    pub fn activate<W: Words>(&mut self, w: &DmbWords<W>, head: u64) {
        *self = Tx {
            head,
            ..Tx::default()
        };
        if head > 0 {
            self.write_run(w, 0, head);
        }
        w.published.0.store(head, Release);
        w.tx.0.active.store(ACTIVE, Release);
    }

    /// May up to `want` bytes go into the ring of `size` bytes? On
    /// `Room::Ring(n)`, `writing` is set; copy to the stretches of
    /// [`Tx::stretches`] and call [`Tx::commit`] soon.
    #[inline]
    pub fn reserve<W: Words>(
        &mut self,
        w: &DmbWords<W>,
        size: usize,
        want: usize,
    ) -> Result<Room, Misbehaved> {
        if self.ended != 0 {
            return Ok(Room::Tcp(MustTcp::Ended));
        }
        if self.debt != 0 {
            return Ok(Room::Tcp(MustTcp::Debt));
        }
        if let Some(why) = must_tcp(w.rx.0.flags.load(Relaxed)) {
            return Ok(Room::Tcp(why));
        }
        let mut room = self.room(size);
        if room < want {
            self.refresh(w)?;
            room = self.room(size);
        }
        if self.outstanding() > RUNS_FOR_RING {
            self.refresh(w)?;
            if self.outstanding() > RUNS_FOR_RING {
                return Ok(Room::Tcp(MustTcp::RunsFull));
            }
        }
        if room == 0 {
            return Ok(Room::Full);
        }
        w.tx.0.writing.store(1, Relaxed);
        W::full_fence(); // fence W
        if let Some(why) = must_tcp(w.rx.0.flags.load(Relaxed)) {
            w.tx.0.writing.store(0, Release);
            return Ok(Room::Tcp(why));
        }
        Ok(Room::Ring(room.min(want)))
    }

    /// The one or two stretches of a ring of `size` bytes for the next `n` bytes.
    #[inline]
    pub fn stretches(&self, size: usize, n: usize) -> (Stretch, Stretch) {
        split(self.head, size, n)
    }

    /// Publishes `n` bytes copied after [`Tx::reserve`] (0 = nothing came of it).
    #[inline]
    pub fn commit<W: Words>(&mut self, w: &DmbWords<W>, n: usize) {
        if n > 0 {
            self.head += n as u64;
            self.ring_head = self.head;
            w.published.0.store(self.head, Release);
        }
        w.tx.0.writing.store(0, Release);
    }

    /// Declares that the next `want` bytes go by TCP; call before writing them.
    /// [`Tx::paid`] says afterwards how many the kernel took.
    pub fn promise_tcp<W: Words>(&mut self, w: &DmbWords<W>, want: usize) {
        let want = want as u64;
        if self.ended != 0 || want <= self.debt {
            return;
        }
        let more = want - self.debt;
        self.declare_to(w, self.head + more);
        self.head += more;
        self.debt += more;
        w.published.0.store(self.head, Release);
    }

    /// The kernel took `n` bytes of what was promised.
    pub fn paid(&mut self, n: usize) {
        if self.ended == 0 {
            self.debt = self.debt.saturating_sub(n as u64);
        } else {
            self.head = self.head.wrapping_add(n as u64);
        }
    }

    /// Declares that everything from here on goes by TCP.
    pub fn go_tcp_only<W: Words>(&mut self, w: &DmbWords<W>) {
        if self.ended != 0 {
            return;
        }
        self.declare_to(w, u64::MAX);
        self.head -= self.debt;
        self.debt = 0;
        self.ended = 1;
    }

    /// Tells the receiver that this side will never touch the DMB again.
    pub fn detach<W: Words>(w: &DmbWords<W>) {
        w.tx.0.active.store(DETACHED, Release);
    }

    /// Has the receiver taken everything?
    pub fn drained<W: Words>(&mut self, w: &DmbWords<W>) -> Result<bool, Misbehaved> {
        self.refresh(w)?;
        Ok(self.consumed == self.head)
    }

    /// Are there bytes in the ring that the receiver has not taken?
    pub fn ring_unread<W: Words>(&mut self, w: &DmbWords<W>) -> Result<bool, Misbehaved> {
        self.refresh(w)?;
        Ok(self.consumed < self.ring_head)
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // at most size
    fn room(&self, size: usize) -> usize {
        (size as u64).saturating_sub(self.head - self.consumed) as usize
    }

    /// Looks at the receiver's progress.
    fn refresh<W: Words>(&mut self, w: &DmbWords<W>) -> Result<(), Misbehaved> {
        let consumed = w.consumed.0.load(Acquire);
        if consumed < self.consumed || consumed > self.head {
            return Err(Misbehaved::Consumed);
        }
        self.consumed = consumed;
        while self.freed != self.declared && self.run_ends[self.freed as usize % RUNS] <= consumed {
            self.freed = self.freed.wrapping_add(1);
        }
        Ok(())
    }

    fn outstanding(&self) -> usize {
        self.declared.wrapping_sub(self.freed) as usize
    }

    /// Declares the bytes from `head` up to `end` as a TCP run: the last run
    /// grows if it ends here, else there is a new one. A slot is always free:
    /// see `RUNS_FOR_RING`.
    fn declare_to<W: Words>(&mut self, w: &DmbWords<W>, end: u64) {
        // Not `declared != 0`: that counter wraps. Before the first run `run_ends` is all 0.
        if self.head != 0 && self.last_end() == self.head {
            self.extend_run(w, end);
        } else {
            self.write_run(w, self.head, end);
        }
    }

    fn last_end(&self) -> u64 {
        self.run_ends[self.declared.wrapping_sub(1) as usize % RUNS]
    }

    fn write_run<W: Words>(&mut self, w: &DmbWords<W>, start: u64, end: u64) {
        let slot = self.declared as usize % RUNS;
        w.runs[slot].start.store(start, Relaxed);
        w.runs[slot].end.store(end, Relaxed);
        self.run_ends[slot] = end;
        self.run_start = start;
        self.declared = self.declared.wrapping_add(1);
        w.tx.0.runs_declared.store(self.declared, Release);
    }

    /// The last run grows. It may have been consumed and freed already: then it
    /// counts as outstanding again.
    fn extend_run<W: Words>(&mut self, w: &DmbWords<W>, end: u64) {
        let slot = self.declared.wrapping_sub(1) as usize % RUNS;
        w.runs[slot].end.store(end, Release);
        self.run_ends[slot] = end;
        if self.freed == self.declared {
            self.freed = self.freed.wrapping_sub(1);
        }
    }
}

#[inline]
fn must_tcp(flags: u32) -> Option<MustTcp> {
    if flags & (PARKED | TCP_ONLY) == 0 {
        None
    } else if flags & TCP_ONLY != 0 {
        Some(MustTcp::TcpOnly)
    } else {
        Some(MustTcp::Parked)
    }
}

#[inline]
fn split(offset: u64, size: usize, n: usize) -> (Stretch, Stretch) {
    #[allow(clippy::cast_possible_truncation)] // masked by size
    let at = (offset & (size as u64 - 1)) as usize;
    let first = n.min(size - at);
    (
        Stretch { at, len: first },
        Stretch {
            at: 0,
            len: n - first,
        },
    )
}

/// What comes next in the stream, at the receiver's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// This many bytes lie in the ring.
    Ring(usize),
    /// Exactly this many bytes come by TCP (they may not have arrived yet).
    Tcp(u64),
    /// Everything from here on comes by TCP, for ever.
    TcpForever,
    /// Nothing has been published beyond this place.
    Empty,
}

/// What a parking receiver found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParkCheck {
    /// Parked: nothing in the ring, and the next bytes come by TCP.
    Parked,
    /// Something is published: look at [`Rx::next`].
    Data,
    /// The sender may be writing this very moment: look again.
    WriterBusy,
}

/// Receiver's private state of one direction. All-zero bytes are a valid value
/// (at the start of a stream, not parked).
#[derive(Debug, Default, Clone, Copy)]
#[repr(C)]
pub struct Rx {
    taken: u64,
    /// The last so many bytes below `taken` are still in use: the sender is not told of them.
    held: u64,
    published: u64,
    run_start: u64,
    run_end: u64,
    last_end: u64,
    flags: u32,
    walked: u32,
    have_run: u32,
    reserved: u32,
}

impl Rx {
    /// Stream offset of the next byte for the application.
    pub fn offset(&self) -> u64 {
        self.taken
    }

    /// The flags as this side set them last.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Prepares a fresh DMB before the sender is told of it: parked, at stream
    /// offset 0 (the sender's first run says how far TCP has come).
    pub fn prepare<W: Words>(&mut self, w: &DmbWords<W>) {
        *self = Rx {
            flags: PARKED,
            ..Rx::default()
        };
        w.consumed.0.store(0, Relaxed);
        w.published.0.store(0, Relaxed);
        w.tx.0.writing.store(0, Relaxed);
        w.tx.0.runs_declared.store(0, Relaxed);
        w.tx.0.active.store(0, Relaxed);
        w.rx.0.flags.store(PARKED, Release);
    }

    /// Has the sender declared where its stream stands?
    pub fn sender_active<W: Words>(w: &DmbWords<W>) -> bool {
        w.tx.0.active.load(Acquire) == ACTIVE
    }

    /// Has the sender said that it will never touch the DMB again?
    pub fn sender_detached<W: Words>(w: &DmbWords<W>) -> bool {
        w.tx.0.active.load(Acquire) == DETACHED
    }

    /// What comes next?
    #[inline]
    pub fn next<W: Words>(&mut self, w: &DmbWords<W>, size: usize) -> Result<Next, Misbehaved> {
        let published = w.published.0.load(Acquire);
        if published < self.published {
            return Err(Misbehaved::Published);
        }
        self.published = published;
        self.walk_runs(w)?;
        let mut ring_end = published;
        if self.have_run != 0 {
            if self.taken >= self.run_start {
                return Ok(match self.run_end {
                    u64::MAX => Next::TcpForever,
                    end => Next::Tcp(end - self.taken),
                });
            }
            ring_end = ring_end.min(self.run_start);
        }
        // Outside of a run, nothing was taken that had not been published: else this place and
        // `published` would never meet, and who waits for that waits for ever.
        if published < self.taken {
            return Err(Misbehaved::Published);
        }
        if ring_end <= self.taken {
            return Ok(Next::Empty);
        }
        let len = ring_end - self.taken;
        if len > (size as u64).saturating_sub(self.held) {
            return Err(Misbehaved::Published);
        }
        #[allow(clippy::cast_possible_truncation)] // at most size
        Ok(Next::Ring(len as usize))
    }

    /// Is anything published beyond this place? (One load: for spin loops.)
    #[inline]
    pub fn anything<W: Words>(&self, w: &DmbWords<W>) -> bool {
        w.published.0.load(Relaxed) != self.taken
    }

    /// The one or two stretches of a ring of `size` bytes of the next `n` bytes.
    #[inline]
    pub fn stretches(&self, size: usize, n: usize) -> (Stretch, Stretch) {
        split(self.taken, size, n)
    }

    /// The application has taken `n` bytes (from either lane).
    #[inline]
    pub fn took<W: Words>(&mut self, w: &DmbWords<W>, n: u64) {
        self.taken += n;
        if self.held != 0 {
            self.held += n; // these are behind bytes that are in use
        }
        w.consumed.0.store(self.taken - self.held, Release);
    }

    /// The application has `n` bytes, and goes on using them where they lie, until
    /// [`Rx::release_to`].
    pub fn took_to_hold(&mut self, n: u64) {
        self.taken += n;
        self.held += n;
    }

    /// Bytes below stream offset `to` are not in use any more.
    pub fn release_to<W: Words>(&mut self, w: &DmbWords<W>, to: u64) {
        let from = self.taken - self.held;
        self.held = self.taken - to.clamp(from, self.taken);
        w.consumed.0.store(self.taken - self.held, Release);
    }

    /// `n` bytes came by plain TCP before the sender had opened the lane.
    pub fn skip(&mut self, n: u64) {
        self.taken += n;
    }

    /// Says "I am about to sleep" (or "TCP only"): follow with [`Rx::check_park`].
    pub fn begin_park<W: Words>(&mut self, w: &DmbWords<W>, flags: u32) {
        self.flags |= flags;
        w.rx.0.flags.store(self.flags, Relaxed);
        W::full_fence(); // fence P
    }

    /// The second half of parking; needs a full fence after `begin_park` (many
    /// connections may share one).
    pub fn check_park<W: Words>(&self, w: &DmbWords<W>) -> ParkCheck {
        if w.tx.0.writing.load(Acquire) != 0 {
            return ParkCheck::WriterBusy;
        }
        if w.published.0.load(Acquire) != self.taken {
            return ParkCheck::Data;
        }
        ParkCheck::Parked
    }

    /// Says "awake: the ring is fine".
    pub fn unpark<W: Words>(&mut self, w: &DmbWords<W>) {
        self.set_flags(w, self.flags & !PARKED);
    }

    /// Sets flags that need no fence.
    pub fn set_flags<W: Words>(&mut self, w: &DmbWords<W>, flags: u32) {
        self.flags = flags;
        w.rx.0.flags.store(flags, Release);
    }

    /// Finds the first declared run that ends beyond `taken`.
    #[inline]
    fn walk_runs<W: Words>(&mut self, w: &DmbWords<W>) -> Result<(), Misbehaved> {
        if self.have_run != 0 && self.taken < self.run_start {
            return Ok(());
        }
        let declared = w.tx.0.runs_declared.load(Acquire);
        if self.have_run == 0 && self.walked == declared {
            return Ok(());
        }
        if declared.wrapping_sub(self.walked) as usize > RUNS {
            return Err(Misbehaved::Run);
        }
        self.have_run = 0;
        // `walked` counts runs known to be behind us; the last one may still grow.
        while self.walked != declared {
            let run = &w.runs[self.walked as usize % RUNS];
            let (start, end) = (run.start.load(Relaxed), run.end.load(Acquire));
            if start < self.last_end || end < start {
                return Err(Misbehaved::Run);
            }
            if end > self.taken {
                (self.run_start, self.run_end, self.have_run) = (start, end, 1);
                return Ok(());
            }
            if self.walked.wrapping_add(1) == declared {
                return Ok(()); // may be extended: look at it again next time
            }
            self.last_end = end;
            self.walked = self.walked.wrapping_add(1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::DMB_WORDS_LEN;
    use crate::region::Region;
    use crate::sync::Cpu;

    const SIZE: usize = 64;

    /// One byte by the ring, then two promises by TCP: they must share one run.
    fn ring_then_tcp(tx: &mut Tx, w: &DmbWords<Cpu>) {
        assert_eq!(tx.reserve(w, SIZE, 1), Ok(Room::Ring(1)));
        tx.commit(w, 1);
        let declared = tx.declared;
        for _ in 0..2 {
            tx.promise_tcp(w, 1);
            tx.paid(1);
        }
        assert_eq!(
            tx.declared,
            declared.wrapping_add(1),
            "contiguous runs merge"
        );
    }

    #[test]
    fn what_is_held_is_not_written_over_and_what_comes_behind_it_waits_with_it() {
        let region = Region::create(c"held", DMB_WORDS_LEN, false).unwrap();
        // SAFETY: atomics only; the region outlives the reference.
        let w = unsafe { region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() };
        let (mut tx, mut rx) = (Tx::default(), Rx::default());
        rx.prepare(w);
        rx.unpark(w);
        tx.activate(w, 0);
        assert_eq!(tx.reserve(w, SIZE, SIZE), Ok(Room::Ring(SIZE)));
        tx.commit(w, 40);
        assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(40)));
        rx.took_to_hold(10);
        rx.took_to_hold(30);
        assert_eq!(rx.next(w, SIZE), Ok(Next::Empty));
        assert_eq!(
            tx.reserve(w, SIZE, SIZE),
            Ok(Room::Ring(24)),
            "none of the 40"
        );
        tx.commit(w, 0);
        // Bytes of TCP behind them do not free them.
        tx.promise_tcp(w, 5);
        tx.paid(5);
        assert_eq!(rx.next(w, SIZE), Ok(Next::Tcp(5)));
        rx.took(w, 5);
        assert_eq!(w.consumed.0.load(Relaxed), 0);
        rx.release_to(w, 10);
        assert_eq!(tx.reserve(w, SIZE, SIZE), Ok(Room::Ring(29)));
        tx.commit(w, 29);
        assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(29)));
        rx.release_to(w, 0);
        assert_eq!(w.consumed.0.load(Relaxed), 10, "never back");
        rx.release_to(w, u64::MAX);
        assert_eq!(
            w.consumed.0.load(Relaxed),
            45,
            "never beyond what was taken"
        );
        rx.took(w, 29);
        assert_eq!(tx.drained(w), Ok(true));
    }

    #[test]
    fn a_sender_that_claims_to_have_written_over_what_is_held_misbehaves() {
        let region = Region::create(c"held", DMB_WORDS_LEN, false).unwrap();
        // SAFETY: atomics only; the region outlives the reference.
        let w = unsafe { region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() };
        let (mut tx, mut rx) = (Tx::default(), Rx::default());
        rx.prepare(w);
        rx.unpark(w);
        tx.activate(w, 0);
        assert_eq!(tx.reserve(w, SIZE, 40), Ok(Room::Ring(40)));
        tx.commit(w, 40);
        assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(40)));
        rx.took_to_hold(40);
        w.published.0.store(40 + 24, Release);
        assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(24)));
        w.published.0.store(40 + 25, Release);
        assert_eq!(rx.next(w, SIZE), Err(Misbehaved::Published));
    }

    #[test]
    fn the_count_of_runs_may_wrap() {
        let region = Region::create(c"wrap", DMB_WORDS_LEN, false).unwrap();
        // SAFETY: atomics only; the region outlives the reference.
        let w = unsafe { region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() };
        let (mut tx, mut rx) = (Tx::default(), Rx::default());
        rx.prepare(w);
        rx.unpark(w);
        tx.activate(w, 0);
        (tx.declared, tx.freed, rx.walked) = (u32::MAX - 5, u32::MAX - 5, u32::MAX - 5);
        w.tx.0.runs_declared.store(tx.declared, Relaxed);
        for _ in 0..20 {
            ring_then_tcp(&mut tx, w);
            assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(1)));
            rx.took(w, 1);
            assert_eq!(rx.next(w, SIZE), Ok(Next::Tcp(2)));
            rx.took(w, 2);
            assert_eq!(rx.next(w, SIZE), Ok(Next::Empty));
        }
        assert_eq!((tx.drained(w), rx.offset()), (Ok(true), 60));
    }
}
