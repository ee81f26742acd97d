//! One direction of one stream over two lanes.
//!
//! A stream is a sequence of bytes, each with its **stream offset**. Every byte goes either through the ring or through
//! TCP. The sender chooses for each stretch of bytes, and the receiver follows the sender's map: all bytes below
//! `published` are in the ring, except those in a declared TCP **run**. The sender declares a run before it writes the
//! run's first byte to TCP, so the receiver always knows how many bytes it may take from TCP. Bytes of a declared run
//! that the kernel has not taken yet are a **debt**; the sender pays it, by TCP, before it sends anything else.
//!
//! # Parking
//!
//! The ring cannot wake anybody; TCP can. So a receiver that goes to sleep first says so, and a sender first looks:
//!
//! ```text
//! receiver: flags |= PARKED   ── fence P ──  writing == 0?  published unchanged?  sleep on TCP
//! sender:   writing  = 1      ── fence W ──  flags & PARKED? → TCP   else copy, publish; writing = 0
//! ```
//!
//! One of the two fences comes first in their single order. If it is P, the sender sees `PARKED`, and its bytes go by
//! TCP, which wakes the receiver. If it is W, the receiver sees `writing` and waits until it is 0 (for a bounded time:
//! the peer may be descheduled, dead or hostile), and then sees the new `published`. In no order do bytes lie in the
//! ring while the receiver sleeps.
//!
//! Checked with loom on a shrunken ring (`tests/loom_ring.rs`).
//!
//! # Windows
//!
//! A sender uses only as much of the ring as the stream needs: a **window**. It begins at the ring's first byte, and
//! offset `o` lies at `(o + shift) % window`. The sender declares a window with each run, and the window holds from
//! that run's end on; a run may be empty, to declare nothing else. When a write does not fit, the window grows, and the
//! shift puts the next byte right behind the old window. Unread bytes in the old window stay where they are, and are
//! written over only when they have been consumed. The window shrinks when the receiver says that it has given the
//! ring's pages back ([`crate::layout::TRIMMED`]). The receiver may do that while it is parked, because it is the
//! ring's only user then. It also shrinks when other streams need the room ([`Tx::reserve_if`]): bytes go to the ring's
//! beginning again as soon as nothing unread lies there. Neither side ever waits for the other to agree.
//!
//! # Trust
//!
//! [`Tx`] and [`Rx`] live in private memory. They load each word of the other side once and check it against private
//! state. An impossible value is [`Misbehaved`], which ends this peer's memory lane and nothing else.

use crate::layout::{ACTIVE, AWAKE, DETACHED, DmbWords, PARKED, RUNS, TCP_ONLY, TRIMMED};
use crate::sync::{Exchange, Word, Words};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The peer wrote an impossible value into the shared words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misbehaved {
    /// `consumed` went backwards or beyond what was sent.
    Consumed,
    /// `published` went backwards, claims more than the ring holds, or less than was taken.
    Published,
    /// A TCP run overlaps its predecessor, ends before it starts, or names a window that the ring does not have.
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

/// A stretch of the ring: `len` bytes from position `at`, without a wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Position in the ring.
    pub at: usize,
    /// Number of bytes.
    pub len: usize,
}

/// Why the next bytes must go by TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MustTcp {
    /// The receiver is parked: only TCP can wake it.
    Parked,
    /// The receiver asked for TCP only: call [`Tx::go_tcp_only`].
    TcpOnly,
    /// Bytes promised to TCP have not been written yet.
    Debt,
    /// No slot is free in which a later run could be declared.
    RunsFull,
    /// This side has ended the memory lane.
    Ended,
}

/// The most outstanding runs with which ring bytes may be written. A new run is needed only after ring bytes. One slot
/// is kept for that run. Two more are kept because the receiver may still be looking at the last run that it has
/// finished (it could have grown), and behind that an empty run may declare a window.
const RUNS_FOR_RING: usize = RUNS - 3;

/// The `cap` of a sender whose window has shrunk: the new window's bytes lie apart from those of the window before.
const FROM_LARGER: u64 = u64::MAX;

/// The factor by which a window that is too small grows.
const GROWTH: usize = 4;

/// The answer to a sender that wants to put bytes into the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Yes, up to this many bytes. `writing` is set: [`Tx::commit`] must follow.
    Ring(usize),
    /// The ring is full.
    Full,
    /// No: the bytes must go by TCP.
    Tcp(MustTcp),
}

/// The sender's private state of one direction. All-zero bytes are a valid, inactive value.
#[derive(Debug, Default, Clone, Copy)]
#[repr(C)]
pub struct Tx {
    head: u64,
    consumed: u64,
    debt: u64,
    run_start: u64,
    ring_head: u64,
    /// Until everything below this offset, which lies in the window used before, is consumed …
    barrier: u64,
    /// … bytes go into the ring only below this offset, and [`FROM_LARGER`] says that the window used before is larger.
    cap: u64,
    /// The offset at which a run of its own last declared a window, +1; 0: none yet.
    declared_at: u64,
    run_ends: [u64; RUNS],
    declared: u32,
    freed: u32,
    ended: u32,
    /// The window, in bytes; 0: the whole ring.
    window: u32,
    /// How many bytes of the window may be unread: fewer than `window` until the window can shrink; 0: the whole ring.
    usable: u32,
    /// What is added to an offset to get its position.
    shift: u32,
    /// The window to begin with; 0: always the whole ring.
    least: u32,
}

impl Tx {
    /// Stream offset of the next byte from the application.
    pub fn offset(&self) -> u64 {
        self.head - self.debt
    }

    /// The number of bytes sent, by either lane, that were not consumed when this side last looked.
    pub fn in_flight(&self) -> u64 {
        // A peer may have acknowledged promised bytes that `go_tcp_only` took back.
        self.head.saturating_sub(self.consumed)
    }

    /// Has [`Tx::go_tcp_only`] been called?
    pub fn is_ended(&self) -> bool {
        self.ended != 0
    }

    /// The window in a ring of `size` bytes: how many bytes may be unread.
    #[inline]
    pub fn window(&self, size: usize) -> usize {
        window_of(self.usable, size)
    }

    /// Opens the lane at stream offset `head`: everything below went by TCP. The window is always the whole ring.
    pub fn activate<W: Words>(&mut self, w: &DmbWords<W>, head: u64) {
        self.activate_window(w, head, 0);
    }

    /// Opens the lane at stream offset `head`, with a window of `least` bytes to begin with: a power of two, at most
    /// the ring's size.
    pub fn activate_window<W: Words>(&mut self, w: &DmbWords<W>, head: u64, least: u32) {
        *self = Tx {
            head,
            window: least,
            usable: least,
            least,
            ..Tx::default()
        };
        if head > 0 || least > 0 {
            self.write_run(w, 0, head);
        }
        w.sent.0.published.store(head, Release);
        w.tx.0.active.store(ACTIVE, Release);
    }

    /// May up to `want` bytes go into the ring of `size` bytes? After `Room::Ring(n)`, `writing` is set: copy to the
    /// stretches of [`Tx::stretches`] and call [`Tx::commit`] soon.
    #[inline]
    pub fn reserve<W: Words>(
        &mut self,
        w: &DmbWords<W>,
        size: usize,
        want: usize,
    ) -> Result<Room, Misbehaved> {
        self.reserve_if(w, size, want, |wanted| wanted)
    }

    /// Reserves like [`reserve`](Tx::reserve), for a sender whose window has a bound. `allow` gets the window that this
    /// sender wants, in bytes, which is at least the present one. It returns the window that the sender may have, a
    /// power of two. If that is less than the present window, the window shrinks as soon as nothing unread is in the
    /// way.
    #[inline]
    pub fn reserve_if<W: Words>(
        &mut self,
        w: &DmbWords<W>,
        size: usize,
        want: usize,
        allow: impl FnOnce(usize) -> usize,
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
            if self.window != 0 {
                self.fit(w, size, if room < want { want } else { 0 }, allow);
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
        // Acquire: a receiver that was parked may have given back the pages that are written now.
        if let Some(why) = must_tcp(w.rx.0.flags.load(Acquire)) {
            w.tx.0.writing.store(0, Release);
            return Ok(Room::Tcp(why));
        }
        Ok(Room::Ring(room.min(want)))
    }

    /// The one or two stretches of a ring of `size` bytes for the next `n` bytes.
    #[inline]
    pub fn stretches(&self, size: usize, n: usize) -> (Stretch, Stretch) {
        split(self.head, self.shift, window_of(self.window, size), n)
    }

    /// Makes room for the next `want` bytes without a wrap, for senders that fill reserved room in place. If these
    /// bytes would wrap although the window is large enough, and nothing in the ring is unread, the window begins anew
    /// at its first byte.
    #[inline]
    pub fn straighten<W: Words>(
        &mut self,
        w: &DmbWords<W>,
        size: usize,
        want: usize,
    ) -> Result<(), Misbehaved> {
        let (_, second) = self.stretches(size, want);
        if second.len == 0 || want > self.window(size) || self.window == 0 || self.debt != 0 {
            return Ok(());
        }
        match must_tcp(w.rx.0.flags.load(Relaxed)) {
            Some(_) => Ok(()),
            None => self.begin_anew(w),
        }
    }

    /// Begins the window anew, unless the lane has ended or the ring has unread bytes.
    #[cold]
    fn begin_anew<W: Words>(&mut self, w: &DmbWords<W>) -> Result<(), Misbehaved> {
        self.refresh(w)?;
        if self.ended == 0 && self.consumed >= self.ring_head {
            #[allow(clippy::cast_possible_truncation)] // meant: a power of two divides it
            let shift = (self.head as u32).wrapping_neg() & (self.usable - 1);
            self.declare_window(w, self.usable, shift);
        }
        Ok(())
    }

    /// The offset up to which the receiver must have consumed, in a ring of `size` bytes, for `want` bytes to fit, and a
    /// quarter of the window in any case: smaller room makes short copies.
    pub fn room_from(&self, size: usize, want: usize) -> u64 {
        let window = self.window(size) as u64;
        let room = (want as u64).clamp(window / 4, window);
        let from = (self.head + room).saturating_sub(window);
        // A window that has shrunk has its room beside what is unread in the one before.
        if self.cap == FROM_LARGER {
            from
        } else {
            from.max(self.barrier)
        }
    }

    /// Publishes the first `n` of the bytes that [`Tx::reserve`] has reserved; more follow. [`Tx::commit`] must end it.
    #[inline]
    pub fn commit_part<W: Words>(&mut self, w: &DmbWords<W>, n: usize) {
        self.head += n as u64;
        self.ring_head = self.head;
        w.sent.0.published.store(self.head, Release);
    }

    /// Publishes `n` bytes copied after [`Tx::reserve`]; 0: nothing was copied.
    #[inline]
    pub fn commit<W: Words>(&mut self, w: &DmbWords<W>, n: usize) {
        if n > 0 {
            self.commit_part(w, n);
        }
        w.tx.0.writing.store(0, Release);
    }

    /// Declares that the next `want` bytes go by TCP. Call it before writing them; afterwards [`Tx::paid`] takes the
    /// number of bytes that the kernel took.
    pub fn promise_tcp<W: Words>(&mut self, w: &DmbWords<W>, want: usize) {
        let want = want as u64;
        if self.ended != 0 || want <= self.debt {
            return;
        }
        if self.debt == 0 && self.window > self.least && w.rx.0.flags.load(Relaxed) & TRIMMED != 0 {
            self.shrink(w);
        }
        let more = want - self.debt;
        self.declare_to(w, self.head + more);
        self.head += more;
        self.debt += more;
        w.sent.0.published.store(self.head, Release);
    }

    /// Notes that the kernel took `n` bytes of what was promised.
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

    /// Room for the next bytes. All bytes in flight count, by either lane, also while a larger window has room behind the
    /// old one: the receiver may hold them (`Rx::took_to_hold`), and refuses more than its window has.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // at most size
    fn room(&self, size: usize) -> usize {
        let room = (self.window(size) as u64).saturating_sub(self.head - self.consumed);
        if self.consumed < self.barrier {
            return room.min(self.cap.saturating_sub(self.head)) as usize;
        }
        room as usize
    }

    /// Makes the window as large as this sender wants and may have. `lacking` is the length of a write that does not
    /// fit; 0: it fits.
    #[cold]
    fn fit<W: Words>(
        &mut self,
        w: &DmbWords<W>,
        size: usize,
        lacking: usize,
        allow: impl FnOnce(usize) -> usize,
    ) {
        let mut wanted = self.window(size);
        if lacking > 0 {
            let two = 2 * lacking.min(size); // this write, and the next one beside it
            wanted = (GROWTH * wanted).max(two.next_power_of_two()).min(size);
        }
        #[allow(clippy::cast_possible_truncation)] // a ring's size at most
        let allowed = (allow(wanted).min(size) as u32).max(self.least);
        if allowed > self.window {
            self.grow(w, allowed);
        } else {
            self.usable = allowed;
            if allowed < self.window {
                self.shrink_to(w, allowed);
            }
        }
    }

    /// Grows the window to `more` bytes.
    fn grow<W: Words>(&mut self, w: &DmbWords<W>, more: u32) {
        if self.consumed < self.barrier && self.cap == FROM_LARGER {
            return; // the larger window would cover what is unread in the one before
        }
        // Everything unread lies in the old window; `head` must come right behind it.
        let is_empty = self.consumed >= self.ring_head;
        let old = if is_empty { 0 } else { self.window };
        #[allow(clippy::cast_possible_truncation)] // meant: a power of two divides it
        let shift = old.wrapping_sub(self.head as u32) & (more - 1);
        if self.declare_window(w, more, shift) {
            self.cap = self.head + u64::from(more - old);
        }
    }

    /// Shrinks the window to its first `less` bytes, once nothing unread lies there and no more than that is unread. The
    /// second condition is for speed only: while more is unread, the smaller window would have no room anyway.
    fn shrink_to<W: Words>(&mut self, w: &DmbWords<W>, less: u32) {
        let unread = self.ring_head.saturating_sub(self.consumed);
        #[allow(clippy::cast_possible_truncation)] // meant: a power of two divides it
        let first = (self.consumed as u32).wrapping_add(self.shift) & (self.window - 1);
        let is_behind = first >= less && u64::from(first) + unread <= u64::from(self.window);
        let are_few = self.in_flight() <= u64::from(less);
        if are_few && self.consumed >= self.barrier && (unread == 0 || is_behind) {
            #[allow(clippy::cast_possible_truncation)] // meant: a power of two divides it
            let shift = (self.head as u32).wrapping_neg() & (less - 1);
            if self.declare_window(w, less, shift) {
                self.cap = FROM_LARGER;
            }
        }
    }

    /// Shrinks the window, because the receiver has given the ring's pages back.
    #[cold]
    fn shrink<W: Words>(&mut self, w: &DmbWords<W>) {
        // The next `reserve` reports an impossible word.
        if self.refresh(w).is_ok() && self.consumed >= self.ring_head {
            self.declare_window(w, self.least, 0);
        }
    }

    /// Declares that bytes from `head` on lie in this window of the ring. Returns `false` if it does not: other uses of
    /// the slots of runs are more important (see `RUNS_FOR_RING`), and one offset gets one declaration at most.
    fn declare_window<W: Words>(&mut self, w: &DmbWords<W>, window: u32, shift: u32) -> bool {
        if self.outstanding() >= RUNS_FOR_RING || self.declared_at == self.head + 1 {
            return false;
        }
        self.declared_at = self.head + 1;
        self.barrier = self.ring_head;
        (self.window, self.usable, self.shift) = (window, window, shift);
        self.write_run(w, self.head, self.head);
        true
    }

    /// Reads the receiver's progress.
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

    /// Declares the bytes from `head` up to `end` as a TCP run. If the last run ends here, it grows; otherwise there is
    /// a new run. A slot is always free: see `RUNS_FOR_RING`.
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
        w.windows.0[slot].len.store(self.window, Relaxed);
        w.windows.0[slot].shift.store(self.shift, Relaxed);
        self.run_ends[slot] = end;
        self.run_start = start;
        self.declared = self.declared.wrapping_add(1);
        w.sent.0.runs_declared.store(self.declared, Release);
    }

    /// Makes the last run longer. If it has been consumed and freed already, it counts as outstanding again.
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

/// The window in a ring of `size` bytes of which `window` bytes were declared.
#[inline]
fn window_of(window: u32, size: usize) -> usize {
    match window as usize {
        0 => size,
        window => window.min(size),
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

/// What comes next in the stream, for the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// This many bytes lie in the ring.
    Ring(usize),
    /// Exactly this many bytes come by TCP (they may not have arrived yet).
    Tcp(u64),
    /// Everything from here on comes by TCP, for good.
    TcpForever,
    /// Nothing has been published beyond this offset.
    Empty,
}

/// What a parking receiver finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParkCheck {
    /// It is parked: nothing is in the ring, and the next bytes come by TCP.
    Parked,
    /// Something is published: call [`Rx::next`].
    Data,
    /// The sender may be writing at this moment: check again.
    WriterBusy,
}

/// The receiver's private state of one direction. All-zero bytes are a valid value (at the start of a stream, not
/// parked).
#[derive(Debug, Default, Clone, Copy)]
#[repr(C)]
pub struct Rx {
    taken: u64,
    /// The number of bytes right below `taken` that are still in use, so that `consumed` does not cover them.
    held: u64,
    published: u64,
    run_start: u64,
    run_end: u64,
    last_end: u64,
    flags: u32,
    walked: u32,
    have_run: u32,
    /// The window at `taken`, in bytes; 0: the whole ring.
    window: u32,
    /// What is added to an offset to get its position.
    shift: u32,
    /// The number of runs declared when the last of them was found to be behind `taken`, …
    seen: u32,
    /// … and the end of that run.
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

    /// The window in a ring of `size` bytes, as far as [`Rx::next`] has seen.
    #[inline]
    pub fn window(&self, size: usize) -> usize {
        window_of(self.window, size)
    }

    /// The state that belongs to a fresh DMB after [`Rx::prepare`]: parked, at stream offset 0.
    pub fn prepared() -> Rx {
        Rx {
            flags: PARKED,
            ..Rx::default()
        }
    }

    /// Prepares a fresh DMB before the sender knows of it: parked, at stream offset 0. The sender's first run tells how
    /// far TCP has come.
    pub fn prepare<W: Words>(&mut self, w: &DmbWords<W>) {
        *self = Rx::prepared();
        w.consumed.0.store(0, Relaxed);
        w.sent.0.published.store(0, Relaxed);
        w.tx.0.writing.store(0, Relaxed);
        w.sent.0.runs_declared.store(0, Relaxed);
        w.tx.0.active.store(0, Relaxed);
        w.rx.0.nap.0.store(AWAKE, Relaxed);
        w.waits.0.nap.0.store(AWAKE, Relaxed);
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

    /// Has the sender declared that everything from some offset on goes by TCP? Bytes below that offset may be unread.
    pub fn sender_ended<W: Words>(w: &DmbWords<W>) -> bool {
        match w.sent.0.runs_declared.load(Acquire) {
            0 => false,
            declared => w.runs[(declared - 1) as usize % RUNS].end.load(Acquire) == u64::MAX,
        }
    }

    /// Finds what comes next in the stream.
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
        // Outside of a run, only published bytes can have been taken. Otherwise this offset and `published` would never
        // meet, and a receiver that waits for that would wait for ever.
        if published < self.taken {
            return Err(Misbehaved::Published);
        }
        if ring_end <= self.taken {
            return Ok(Next::Empty);
        }
        let len = ring_end - self.taken;
        if len > (self.window(size) as u64).saturating_sub(self.held) {
            return Err(Misbehaved::Published);
        }
        #[allow(clippy::cast_possible_truncation)] // at most size
        Ok(Next::Ring(len as usize))
    }

    /// Is anything published beyond this offset? One load, for spin loops.
    #[inline]
    pub fn anything<W: Words>(&self, w: &DmbWords<W>) -> bool {
        w.sent.0.published.load(Relaxed) != self.taken
    }

    /// The one or two stretches of a ring of `size` bytes that hold the next `n` bytes. [`Rx::next`] must have reported
    /// them.
    #[inline]
    pub fn stretches(&self, size: usize, n: usize) -> (Stretch, Stretch) {
        split(self.taken, self.shift, self.window(size), n)
    }

    /// Notes that the application has taken `n` bytes, from either lane.
    #[inline]
    pub fn took<W: Words>(&mut self, w: &DmbWords<W>, n: u64) {
        self.taken += n;
        if self.held != 0 {
            self.held += n; // these bytes follow bytes that are in use
        }
        w.consumed.0.store(self.taken - self.held, Release);
    }

    /// Notes that the application has `n` bytes and goes on using them in the ring until [`Rx::release_to`].
    pub fn took_to_hold(&mut self, n: u64) {
        self.taken += n;
        self.held += n;
    }

    /// Notes that bytes below stream offset `to` are not in use any more.
    pub fn release_to<W: Words>(&mut self, w: &DmbWords<W>, to: u64) {
        let from = self.taken - self.held;
        self.held = self.taken - to.clamp(from, self.taken);
        w.consumed.0.store(self.taken - self.held, Release);
    }

    /// Notes that `n` bytes came by plain TCP before the sender opened the lane.
    pub fn skip(&mut self, n: u64) {
        self.taken += n;
    }

    /// Says "about to sleep" (or "TCP only"). [`Rx::check_park`] must follow.
    pub fn begin_park<W: Words>(&mut self, w: &DmbWords<W>, flags: u32) {
        self.flags |= flags;
        w.rx.0.flags.store(self.flags, Relaxed);
        W::full_fence(); // fence P
    }

    /// The second half of parking. It needs a full fence after `begin_park`; many connections may share one.
    pub fn check_park<W: Words>(&self, w: &DmbWords<W>) -> ParkCheck {
        if w.tx.0.writing.load(Acquire) != 0 {
            return ParkCheck::WriterBusy;
        }
        if w.sent.0.published.load(Acquire) != self.taken {
            return ParkCheck::Data;
        }
        ParkCheck::Parked
    }

    /// Says "asleep for a moment: wake me". [`Rx::check_park`] must follow; the receiver sleeps if that returns `Parked`.
    pub fn begin_nap<W: Words>(w: &DmbWords<W>)
    where
        W::U32: Exchange<u32>,
    {
        w.rx.0.nap.lie_down();
        W::full_fence(); // against fence W
    }

    /// Is this parked receiver the ring's only user? That stays true until [`Rx::unpark`]: a sender that sees `PARKED`
    /// does not touch the ring.
    pub fn owns_ring<W: Words>(&self, w: &DmbWords<W>) -> bool {
        self.flags & PARKED != 0 && self.held == 0 && self.check_park(w) == ParkCheck::Parked
    }

    /// Says that the ring's pages have been given back.
    pub fn set_trimmed<W: Words>(&mut self, w: &DmbWords<W>) {
        self.set_flags(w, self.flags | TRIMMED);
    }

    /// Says "awake: the ring may be used".
    pub fn unpark<W: Words>(&mut self, w: &DmbWords<W>) {
        self.set_flags(w, self.flags & !(PARKED | TRIMMED));
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

    /// Finds that run by walking the list.
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
            let window = &w.windows.0[slot];
            self.follow(window.len.load(Relaxed), window.shift.load(Relaxed), size)?;
            if self.walked.wrapping_add(1) == declared {
                (self.seen, self.seen_end) = (declared, end);
                return Ok(()); // it may still grow: look at it again next time
            }
            self.last_end = end;
            self.walked = self.walked.wrapping_add(1);
        }
        Ok(())
    }

    /// Takes over the window that the sender uses from a finished run on.
    #[inline]
    fn follow(&mut self, window: u32, shift: u32, size: usize) -> Result<(), Misbehaved> {
        if window != self.window
            && window != 0
            && (!window.is_power_of_two() || window as usize > size)
        {
            return Err(Misbehaved::Run);
        }
        (self.window, self.shift) = (window, shift);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
