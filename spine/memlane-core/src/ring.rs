//! One direction of one stream over two lanes.
//!
//! A stream is a sequence of bytes, each with its **stream offset**. Every byte
//! goes either through the ring or through TCP. The
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
//! # Parts
//!
//! A sender uses as much of the ring as the stream needs: a **part** of it, from
//! its first byte on, with offset `o` at `(o + shift) % part`. Which, is declared
//! with each run and holds from that run's end on; a run may be empty, to declare
//! nothing else. When a write does not fit, the part grows, and the shift is such
//! that the next byte lies right behind the old part: what is unread there stays
//! where it is, and is written over only when it has been consumed. The part
//! shrinks when the receiver says that it has given the ring's pages back
//! ([`crate::layout::SHED`]); it may do that while it is parked and owns the ring
//! alone. Neither side ever waits for the other to agree.
//!
//! # Trust
//!
//! [`Tx`] and [`Rx`] live in private memory. What they read of the other side's
//! words is loaded once and checked against private state; an impossible value
//! is [`Misbehaved`], which ends this peer's memory lane and nothing else.

use crate::layout::{ACTIVE, DETACHED, DmbWords, PARKED, RUNS, SHED, TCP_ONLY};
use crate::sync::{Word, Words};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The peer wrote an impossible value into the shared words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misbehaved {
    /// `consumed` went backwards or beyond what was sent.
    Consumed,
    /// `published` went backwards, claims more than the ring holds, or less than was taken.
    Published,
    /// A TCP run overlaps its predecessor, ends before it starts, or names a part that the ring does not have.
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
/// run after them, and two because the receiver may still be looking at the
/// last run that it has finished (that run could have grown), behind which an
/// empty one may stand that declares a part, and nothing in between.
const RUNS_FOR_RING: usize = RUNS - 3;

/// A part that is too small grows so many times.
const GROWTH: u32 = 4;

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
    /// Until everything below this is consumed, which lies in the part that was used before …
    barrier: u64,
    /// … bytes go into the ring below this offset only.
    cap: u64,
    /// Where a part was last declared by a run of its own, +1; 0 = nowhere yet.
    declared_at: u64,
    run_ends: [u64; RUNS],
    declared: u32,
    freed: u32,
    ended: u32,
    /// Bytes of the ring in use; 0 = all.
    part: u32,
    /// Added to an offset, for its place.
    shift: u32,
    /// The part to begin with; 0 = all, always.
    least: u32,
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

    /// Bytes in use of a ring of `size` bytes.
    #[inline]
    pub fn part(&self, size: usize) -> usize {
        part_of(self.part, size)
    }

    /// Opens the lane at stream offset `head`: everything below went by TCP. The
    /// whole ring is used, always.
    pub fn activate<W: Words>(&mut self, w: &DmbWords<W>, head: u64) {
        self.activate_part(w, head, 0);
    }

    /// As `activate`, with a part of `least` bytes (a power of two, at most the
    /// ring's size) to begin with.
    pub fn activate_part<W: Words>(&mut self, w: &DmbWords<W>, head: u64, least: u32) {
        *self = Tx {
            head,
            part: least,
            least,
            ..Tx::default()
        };
        if head > 0 || least > 0 {
            self.write_run(w, 0, head);
        }
        w.sent.0.published.store(head, Release);
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
        self.reserve_if(w, size, want, |_| true)
    }

    /// As `reserve`, for who may have no memory for more: `may_grow` is asked
    /// before so many bytes of the ring are used that were not in use.
    #[inline]
    pub fn reserve_if<W: Words>(
        &mut self,
        w: &DmbWords<W>,
        size: usize,
        want: usize,
        may_grow: impl FnOnce(usize) -> bool,
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
            if room < want && self.part != 0 && (self.part as usize) < size {
                self.grow(w, size, want, may_grow);
                room = self.room(size);
            }
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
        // Acquire: a receiver that was parked may have given the pages back that are written now.
        if let Some(why) = must_tcp(w.rx.0.flags.load(Acquire)) {
            w.tx.0.writing.store(0, Release);
            return Ok(Room::Tcp(why));
        }
        Ok(Room::Ring(room.min(want)))
    }

    /// The one or two stretches of a ring of `size` bytes for the next `n` bytes.
    #[inline]
    pub fn stretches(&self, size: usize, n: usize) -> (Stretch, Stretch) {
        split(self.head, self.shift, self.part(size), n)
    }

    /// Would the next `want` bytes lie in two stretches, although the part is large enough for them? If nothing in the
    /// ring is unread, the part begins anew at its first byte, so that they lie in one. For senders that hand places out.
    #[inline]
    pub fn straighten<W: Words>(
        &mut self,
        w: &DmbWords<W>,
        size: usize,
        want: usize,
    ) -> Result<(), Misbehaved> {
        let (_, second) = self.stretches(size, want);
        if second.len == 0 || want > self.part(size) || self.part == 0 || self.debt != 0 {
            return Ok(());
        }
        match must_tcp(w.rx.0.flags.load(Relaxed)) {
            Some(_) => Ok(()),
            None => self.begin_anew(w),
        }
    }

    /// … unless it was ended, or somebody has still to read there.
    #[cold]
    fn begin_anew<W: Words>(&mut self, w: &DmbWords<W>) -> Result<(), Misbehaved> {
        self.refresh(w)?;
        if self.ended == 0 && self.consumed >= self.ring_head {
            #[allow(clippy::cast_possible_truncation)] // meant: a power of two divides it
            let shift = (self.head as u32).wrapping_neg() & (self.part - 1);
            self.declare_part(w, self.part, shift);
        }
        Ok(())
    }

    /// In a full ring of `size` bytes: what the receiver must have consumed for a
    /// good piece of room (half-empty rings make long copies).
    pub fn room_from(&self, size: usize) -> u64 {
        let part = self.part(size) as u64;
        let quarter = (self.head + part / 4).saturating_sub(part);
        quarter.max(self.barrier)
    }

    /// Publishes `n` bytes copied after [`Tx::reserve`] (0 = nothing came of it).
    #[inline]
    pub fn commit<W: Words>(&mut self, w: &DmbWords<W>, n: usize) {
        if n > 0 {
            self.head += n as u64;
            self.ring_head = self.head;
            w.sent.0.published.store(self.head, Release);
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
        if self.debt == 0 && self.part > self.least && w.rx.0.flags.load(Relaxed) & SHED != 0 {
            self.shrink(w);
        }
        let more = want - self.debt;
        self.declare_to(w, self.head + more);
        self.head += more;
        self.debt += more;
        w.sent.0.published.store(self.head, Release);
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
        if self.consumed < self.barrier {
            return self.cap.saturating_sub(self.head) as usize;
        }
        (self.part(size) as u64).saturating_sub(self.head - self.consumed) as usize
    }

    /// `want` bytes do not fit: more of the ring is used from here on.
    #[cold]
    fn grow<W: Words>(
        &mut self,
        w: &DmbWords<W>,
        size: usize,
        want: usize,
        may_grow: impl FnOnce(usize) -> bool,
    ) {
        let larger = u64::from(self.part.saturating_mul(GROWTH));
        let two = 2 * want.min(size) as u64; // this one, and the next beside it
        #[allow(clippy::cast_possible_truncation)] // a ring's size at most
        let more = larger.max(two.next_power_of_two()).min(size as u64) as u32;
        if !may_grow((more - self.part) as usize) {
            return;
        }
        // Everything unread lies in the old part; `head` shall lie right behind it.
        let is_empty = self.consumed >= self.ring_head;
        let old = if is_empty { 0 } else { self.part };
        #[allow(clippy::cast_possible_truncation)] // meant: a power of two divides it
        let shift = old.wrapping_sub(self.head as u32) & (more - 1);
        if self.declare_part(w, more, shift) {
            self.cap = self.head + u64::from(more - old);
        }
    }

    /// The receiver has given the ring's pages back.
    #[cold]
    fn shrink<W: Words>(&mut self, w: &DmbWords<W>) {
        // An impossible word is told by the next `reserve`.
        if self.refresh(w).is_ok() && self.consumed >= self.ring_head {
            self.declare_part(w, self.least, 0);
        }
    }

    /// From `head` on, bytes lie in this part of the ring. The slots of runs have
    /// uses that are more important (see `RUNS_FOR_RING`), so not twice at one place.
    fn declare_part<W: Words>(&mut self, w: &DmbWords<W>, part: u32, shift: u32) -> bool {
        if self.outstanding() >= RUNS_FOR_RING || self.declared_at == self.head + 1 {
            return false;
        }
        self.declared_at = self.head + 1;
        self.barrier = self.ring_head;
        (self.part, self.shift) = (part, shift);
        self.write_run(w, self.head, self.head);
        true
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
        w.parts.0[slot].len.store(self.part, Relaxed);
        w.parts.0[slot].shift.store(self.shift, Relaxed);
        self.run_ends[slot] = end;
        self.run_start = start;
        self.declared = self.declared.wrapping_add(1);
        w.sent.0.runs_declared.store(self.declared, Release);
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

/// Bytes in use of a ring of `size` bytes of which `part` was declared.
#[inline]
fn part_of(part: u32, size: usize) -> usize {
    match part as usize {
        0 => size,
        part => part.min(size),
    }
}

#[inline]
fn split(offset: u64, shift: u32, size: usize, n: usize) -> (Stretch, Stretch) {
    #[allow(clippy::cast_possible_truncation)] // masked by size
    let at = (offset.wrapping_add(u64::from(shift)) & (size as u64 - 1)) as usize;
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
    /// Bytes of the ring that are in use at `taken`; 0 = all.
    part: u32,
    /// Added to an offset, for its place.
    shift: u32,
    /// So many runs were declared when the last of them was found to be behind us, …
    seen: u32,
    /// … with this end.
    seen_end: u64,
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

    /// Bytes in use of a ring of `size` bytes, as far as [`Rx::next`] has seen.
    #[inline]
    pub fn part(&self, size: usize) -> usize {
        part_of(self.part, size)
    }

    /// The state that belongs to a fresh DMB after [`Rx::prepare`]: parked, at stream offset 0.
    pub fn prepared() -> Rx {
        Rx {
            flags: PARKED,
            ..Rx::default()
        }
    }

    /// Prepares a fresh DMB before the sender is told of it: parked, at stream
    /// offset 0 (the sender's first run says how far TCP has come).
    pub fn prepare<W: Words>(&mut self, w: &DmbWords<W>) {
        *self = Rx::prepared();
        w.consumed.0.store(0, Relaxed);
        w.sent.0.published.store(0, Relaxed);
        w.tx.0.writing.store(0, Relaxed);
        w.sent.0.runs_declared.store(0, Relaxed);
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
        let published = w.sent.0.published.load(Acquire);
        if published < self.published {
            return Err(Misbehaved::Published);
        }
        self.published = published;
        self.walk_runs(w, size)?;
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
        if len > (self.part(size) as u64).saturating_sub(self.held) {
            return Err(Misbehaved::Published);
        }
        #[allow(clippy::cast_possible_truncation)] // at most size
        Ok(Next::Ring(len as usize))
    }

    /// Is anything published beyond this place? (One load: for spin loops.)
    #[inline]
    pub fn anything<W: Words>(&self, w: &DmbWords<W>) -> bool {
        w.sent.0.published.load(Relaxed) != self.taken
    }

    /// The one or two stretches of a ring of `size` bytes of the next `n` bytes;
    /// [`Rx::next`] has just said that they are there.
    #[inline]
    pub fn stretches(&self, size: usize, n: usize) -> (Stretch, Stretch) {
        split(self.taken, self.shift, self.part(size), n)
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
        if w.sent.0.published.load(Acquire) != self.taken {
            return ParkCheck::Data;
        }
        ParkCheck::Parked
    }

    /// A parked receiver: does it own the ring alone? Until [`Rx::unpark`], that
    /// stays so: a sender that sees `PARKED` does not touch it.
    pub fn owns_ring<W: Words>(&self, w: &DmbWords<W>) -> bool {
        self.flags & PARKED != 0 && self.held == 0 && self.check_park(w) == ParkCheck::Parked
    }

    /// Says that the ring's pages have been given back.
    pub fn shed<W: Words>(&mut self, w: &DmbWords<W>) {
        self.set_flags(w, self.flags | SHED);
    }

    /// Says "awake: the ring is fine".
    pub fn unpark<W: Words>(&mut self, w: &DmbWords<W>) {
        self.set_flags(w, self.flags & !(PARKED | SHED));
    }

    /// Sets flags that need no fence.
    pub fn set_flags<W: Words>(&mut self, w: &DmbWords<W>, flags: u32) {
        self.flags = flags;
        w.rx.0.flags.store(flags, Release);
    }

    /// Finds the first declared run that ends beyond `taken`.
    #[inline]
    fn walk_runs<W: Words>(&mut self, w: &DmbWords<W>, size: usize) -> Result<(), Misbehaved> {
        if self.have_run != 0 && self.taken < self.run_start {
            return Ok(());
        }
        let declared = w.sent.0.runs_declared.load(Acquire);
        if self.have_run == 0 && declared == self.seen {
            // Mostly: no run since the last look, and the last one has not grown.
            let last = &w.runs[declared.wrapping_sub(1) as usize % RUNS];
            if self.walked == declared || last.end.load(Acquire) == self.seen_end {
                return Ok(());
            }
        }
        self.walk_on(w, size, declared)
    }

    /// … by the list.
    #[inline(never)]
    fn walk_on<W: Words>(
        &mut self,
        w: &DmbWords<W>,
        size: usize,
        declared: u32,
    ) -> Result<(), Misbehaved> {
        if declared.wrapping_sub(self.walked) as usize > RUNS {
            return Err(Misbehaved::Run);
        }
        self.have_run = 0;
        // `walked` counts runs known to be behind us; the last one may still grow.
        while self.walked != declared {
            let slot = self.walked as usize % RUNS;
            let run = &w.runs[slot];
            let (start, end) = (run.start.load(Relaxed), run.end.load(Acquire));
            if start < self.last_end || end < start {
                return Err(Misbehaved::Run);
            }
            if end > self.taken {
                (self.run_start, self.run_end, self.have_run) = (start, end, 1);
                return Ok(());
            }
            let part = &w.parts.0[slot];
            self.follow(part.len.load(Relaxed), part.shift.load(Relaxed), size)?;
            if self.walked.wrapping_add(1) == declared {
                (self.seen, self.seen_end) = (declared, end);
                return Ok(()); // may be extended: look at it again next time
            }
            self.last_end = end;
            self.walked = self.walked.wrapping_add(1);
        }
        Ok(())
    }

    /// From a run that is behind us on, the sender uses this part of the ring.
    #[inline]
    fn follow(&mut self, part: u32, shift: u32, size: usize) -> Result<(), Misbehaved> {
        if part != self.part && part != 0 && (!part.is_power_of_two() || part as usize > size) {
            return Err(Misbehaved::Run);
        }
        (self.part, self.shift) = (part, shift);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
