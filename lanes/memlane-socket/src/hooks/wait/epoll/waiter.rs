//! `epoll_wait`: rings first, a spin, then the kernel.

use super::marked::Marked;
use super::nap::nap;
use super::park::AllParked;
use super::quiet::is_quiet;
use super::under::Under;
use super::*;
use crate::protocol::lane::trim::Pieces;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::AtomicPtr;

/// Sleeps in the kernel: makes the program's own call with another time-out (ms).
pub type Sleep<'a> = &'a dyn Fn(*mut epoll_event, c_int, c_int) -> c_int;

/// `epoll_wait(2)` and its relatives. `masked`: the call has a signal mask, which only the kernel can apply, so the
/// wait does not spin.
pub fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    masked: bool,
    sleep: Sleep<'_>,
) -> c_int {
    let Some(ep) = process::ep_of(epfd) else {
        return sleep(events, max, timeout);
    };
    below::touch_inherited(ep);
    if max <= 0 || events.is_null() {
        return sleep(events, max, timeout);
    }
    // SAFETY: the program's array of `max` entries, as it promised its call.
    let out = unsafe { core::slice::from_raw_parts_mut(events, max.cast_unsigned() as usize) };
    Waiter::new(ep, out, timeout, masked, sleep).run()
}

/// What one wait has reported so far.
pub(super) struct Round {
    /// The number of filled entries of the program's array.
    pub(super) filled: usize,
    /// Has the kernel been asked?
    asked: bool,
    /// Registrations to look at again afterwards. The first `kept` are set: a wait that fills in all of them before it begins
    /// costs a tenth of an event's instructions.
    again: [MaybeUninit<*mut Reg>; 64],
    kept: usize,
    /// The kernel's events behind which some of the rings' events belong.
    marked: Option<Marked>,
}

impl Round {
    fn new() -> Round {
        Round {
            marked: None,
            filled: 0,
            asked: false,
            again: [const { MaybeUninit::uninit() }; 64],
            kept: 0,
        }
    }

    /// What a wait has reported that got `filled` events from the kernel first.
    pub(super) fn behind_kernel(filled: usize) -> Round {
        Round {
            filled,
            asked: true,
            ..Round::new()
        }
    }

    /// Looks at a level-triggered registration again afterwards.
    pub(super) fn keep(&mut self, reg: &Reg) {
        self.again[self.kept].write(ptr(reg));
        self.kept += 1;
    }

    /// Counts an event of the rings, whose news came at `since`, for the marks that it belongs behind.
    pub(super) fn count_news(&mut self, since: u64) {
        if let Some(marked) = self.marked.as_mut().filter(|_| !self.asked) {
            marked.count_news(since);
        }
    }

    /// Adds an event. A registration gets one entry, as from the kernel, even if both its ring and its socket have
    /// news; `others` are the entries that may belong to the same registration.
    pub(super) fn add(
        &mut self,
        out: &mut [epoll_event],
        event: epoll_event,
        others: &Range<usize>,
    ) {
        let data = event.u64;
        if let Some(twin) = out[others.clone()].iter_mut().find(|e| { e.u64 } == data) {
            twin.events |= event.events;
        } else {
            out[self.filled] = event;
            self.filled += 1;
        }
    }
}

/// Puts the connections whose peers have published something on the ready lists of their sets, for all sets of the
/// process. The caller waits on the set `own`. With `EPOLLEXCLUSIVE`, news end at this set if the caller `is_waiting` for them:
/// sets behind it are not told.
pub(in crate::hooks::wait) fn harvest(own: &Ep, is_waiting: bool) {
    if !board::any_hot() {
        return;
    }
    board::harvest(own, |conn| tell_sets(own, conn, is_waiting));
}

/// Tells the sets of a connection that it has news: see [`harvest`].
#[inline]
pub(crate) fn tell_sets(own: &Ep, conn: &Conn, is_waiting: bool) {
    for reg in conn.regs.own() {
        if tell_set(own, reg) && is_waiting {
            return;
        }
    }
    if conn.regs.has_more() {
        tell_more(own, conn, is_waiting);
    }
}

#[cold]
#[inline(never)]
fn tell_more(own: &Ep, conn: &Conn, is_waiting: bool) {
    conn.regs.more().any(|reg| tell_set(own, reg) && is_waiting);
}

/// Tells the set of one registration. Returns whether that is `own`, and exclusive.
#[inline(always)]
fn tell_set(own: &Ep, reg: &Reg) -> bool {
    let Some((ep, held)) = set_of(reg) else {
        return false;
    };
    let is_own = core::ptr::eq(ep, own);
    mark(reg, REG_IN_EDGE);
    look_again_at(ep, reg);
    let is_nested = ep.nested.load(Ordering::Relaxed) == FOLLOWED;
    if is_nested {
        count_arrival(ep);
    }
    // The peer's bell, if it has rung, found nothing: this thread has taken its news.
    if !is_own && ep.bells.sleepers.load(Ordering::Relaxed) != 0 {
        ring_bell(ep, &process::HIDING);
    }
    drop(held);
    if is_nested {
        nested::keep_place(ep);
    }
    is_own && reg.events.load(Ordering::Relaxed) & EXCLUSIVE != 0
}

pub(super) struct Waiter<'a> {
    pub(super) ep: &'static Ep,
    pub(super) out: &'a mut [epoll_event],
    pub(super) timeout: c_int,
    pub(super) masked: bool,
    pub(super) sleep: Sleep<'a>,
    pub(super) pieces: Pieces,
    /// When this wait last looked at the clock, in `ticks`: a look takes as long as some thirty instructions. A spin that found
    /// something may have passed since, but no sleep.
    pub(super) now: u64,
    /// Does the sleep that this thread is in rely on bells?
    pub(super) relies: bool,
    /// How often this wait could not lie down, because there were news.
    pub(super) restless: u32,
    /// Has this wait looked at the rings? What a later look finds has come since.
    has_looked: bool,
    /// The sets below that this thread sleeps on, too.
    pub(super) under: Under,
}

impl<'a> Waiter<'a> {
    #[inline(always)]
    pub(super) fn new(
        ep: &'static Ep,
        out: &'a mut [epoll_event],
        timeout: c_int,
        masked: bool,
        sleep: Sleep<'a>,
    ) -> Waiter<'a> {
        Waiter {
            ep,
            out,
            timeout,
            masked,
            sleep,
            pieces: Pieces::WHOLE,
            now: 0,
            relies: false,
            restless: 0,
            under: Under::new(),
            has_looked: false,
        }
    }
}

impl Waiter<'_> {
    fn run(&mut self) -> c_int {
        let start = ticks();
        self.now = start;
        if is_quiet(self.ep)
            && let Some(n) = self.wait_quietly(start)
        {
            return n;
        }
        let deadline = self.deadline(start);
        let signals = crate::state::thread::current()
            .signals
            .load(Ordering::Relaxed);
        trim::look(start);
        board::looking(start);
        crate::protocol::upgrade::look(start);
        let mut naps = Naps::FRESH;
        loop {
            self.find_room();
            let n = self.collect();
            if n > 0 {
                return c_int::try_from(n).unwrap_or(c_int::MAX);
            }
            if self.timeout == 0 {
                self.ep.asked.store(start, Ordering::Relaxed);
                below::flush(self.ep);
                let n = self.kernel(0, 0);
                // A bell that was meant for another thread may have rung.
                let is_left = n == 0 && !self.ep.ready_head.load(Ordering::Relaxed).is_null();
                return if is_left { self.collect() as c_int } else { n };
            }
            let awake = below::any_awake(self.ep);
            if awake.is_some() || self.is_any_full() {
                let budget = self.budget(deadline);
                // A wait that is about to sleep asks the kernel by that. But where that would park many connections, news
                // of others are no reason to.
                if budget > 0 || self.would_park_many() {
                    let n = self.ask_kernel();
                    if n != 0 {
                        return n;
                    }
                }
                let (spun, n) = self.spin(budget);
                if n != 0 {
                    return n;
                }
                match spun {
                    Spun::Ready => continue,
                    Spun::Signal => {
                        real::set_errno(libc::EINTR);
                        return -1;
                    }
                    Spun::Nothing if budget > 0 => self.now = ticks(),
                    Spun::Nothing => {}
                }
                if let Some(us) = self.nap_instead(deadline) {
                    below::flush(self.ep);
                    let n = nap(self.ep, self.out, us);
                    self.now = ticks();
                    let n = translated(self.ep, self.out, n);
                    if n != 0 {
                        return n;
                    }
                    continue;
                }
            }
            match self.park_all() {
                AllParked::No => {}
                AllParked::Yes if self.is_any_full() || self.under.is_any_awake => {
                    if let Some(n) = self.nap_parked(deadline, naps.next_us(), signals) {
                        return n;
                    }
                }
                AllParked::Yes => {
                    if let Some(n) = self.sleep_parked(deadline, signals) {
                        return n;
                    }
                }
                AllParked::Stuck => {
                    let n = self.kernel(0, 1);
                    if n != 0 || deadline.is_some_and(|d| ticks() >= d) {
                        return n;
                    }
                }
            }
        }
    }

    /// Would a sleep park more than one connection?
    fn would_park_many(&self) -> bool {
        let is_long = |list: &AtomicPtr<Reg>| {
            let first = reg_ref(list.load(Ordering::Relaxed));
            first.is_some_and(|reg| !reg.next_hot.load(Ordering::Relaxed).is_null())
        };
        is_long(&self.ep.hot)
            || !self.may_rely() && is_long(&self.ep.belled)
            || self.ep.below.load(Ordering::Relaxed) != 0
    }

    /// How long to nap, in microseconds, instead of parking. A wait whose time is over does not nap.
    fn nap_instead(&self, deadline: Option<u64>) -> Option<u64> {
        if self.masked || deadline.is_some_and(|d| ticks() >= d) {
            return None;
        }
        spin::nap_instead()
    }

    /// Does a connection of the set wait for room in its ring?
    fn is_any_full(&self) -> bool {
        below::any_full(self.ep)
    }

    /// Makes the connections reportable that have got room in their rings. Returns whether there is one.
    fn find_room(&self) -> bool {
        self.is_any_full() && below::find_room(self.ep)
    }

    /// Gets what the kernel has before a spin, if it was not asked lately.
    fn ask_kernel(&mut self) -> c_int {
        let every = KERNEL_EVERY_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let now = ticks();
        if now.wrapping_sub(self.ep.asked.load(Ordering::Relaxed)) < every {
            return 0;
        }
        self.ep.asked.store(now, Ordering::Relaxed);
        below::flush(self.ep);
        self.kernel(0, 0)
    }

    /// Gets what the kernel has, into the entries from `first` on, as the program is to see it.
    fn kernel(&mut self, first: usize, timeout: c_int) -> c_int {
        kernel(self.ep, &mut self.out[first..], timeout, self.sleep)
    }

    pub(super) fn max(&self) -> c_int {
        c_int::try_from(self.out.len()).unwrap_or(c_int::MAX)
    }

    fn deadline(&self, start: u64) -> Option<u64> {
        let ms = u64::try_from(self.timeout).ok()?;
        Some(start.saturating_add(ms * 1000 * PROCESS.ticks_per_us.load(Ordering::Relaxed)))
    }

    /// How long this wait may spin, in ticks.
    fn budget(&self, deadline: Option<u64>) -> u64 {
        if self.masked {
            return 0;
        }
        let left = |d: u64| d.saturating_sub(ticks());
        let budget = if self.is_any_full() {
            spin::budget_for_room()
        } else {
            spin::budget()
        };
        budget.min(deadline.map_or(u64::MAX, left))
    }

    /// Fills `out` with the rings' events, in the order in which the connections became ready, and with the kernel's
    /// events when its turn has come. Returns the number of entries; 0: the rings have nothing.
    fn collect(&mut self) -> usize {
        let is_waiting = self.has_looked && self.timeout != 0;
        harvest(self.ep, is_waiting);
        self.has_looked = true;
        nested::look_below(self.ep);
        if self.ep.ready_head.load(Ordering::Relaxed).is_null() {
            return 0;
        }
        let is_kernels = self.ep.turns.is_kernels(ready_len(self.ep));
        let asks_kernel = self.is_kernel_due() || is_kernels;
        let kernel_has_news = asks_kernel || self.ep.turns.are_kept();
        let places = self.out.len();
        // In its turn the kernel may fill all entries, at other times half of them; the rings get what it leaves.
        let share = match (is_kernels, asks_kernel) {
            (true, _) => places,
            (false, true) => places / 2,
            (false, false) => 0,
        };
        let mut round = Round::new();
        if asks_kernel {
            round.marked = Marked::find(self.ep);
        }
        self.report_rings(&mut round, places - share, !kernel_has_news);
        if round.filled == 0 && places > share {
            return 0; // the caller asks the kernel, or sleeps in it
        }
        if kernel_has_news && round.filled < places {
            self.report_kernel(&mut round);
        } else {
            if asks_kernel {
                self.ep.turns.kernel_is_next();
            }
            process::count(Counter::WaitsAvoided, 1);
        }
        self.requeue(&mut round);
        round.filled
    }

    /// Is it time to ask the kernel, although the rings have something to report?
    fn is_kernel_due(&self) -> bool {
        let ep = self.ep;
        let every = KERNEL_EVERY_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let waits = ep.unasked.fetch_add(1, Ordering::Relaxed) + 1;
        waits >= KERNEL_EVERY_WAITS
            || self.now.wrapping_sub(ep.asked.load(Ordering::Relaxed)) > every
    }

    /// Reports rings until `limit` entries are filled. After the `last` time, those that are level-triggered go back to the ready
    /// list: earlier, they would be found again.
    pub(super) fn report_rings(&mut self, round: &mut Round, limit: usize, last: bool) {
        let Some(_held) = self.ep.lock.lock() else {
            return;
        };
        let before = round.filled;
        // The first time, the kernel has no entries yet, and no ring is found twice. The second time, another thread
        // may have found a ring again that has been reported.
        let compared = if round.asked { before } else { 0 };
        while round.filled < limit && round.kept < round.again.len() {
            let Some(reg) = pop_ready(self.ep) else { break };
            let Some(conn) = reg_conn(reg) else {
                self.report_nest(round, reg, compared);
                continue;
            };
            let asked = reg.events.load(Ordering::Relaxed);
            let report = report(conn, reg, asked);
            if report == 0 {
                continue;
            }
            oneshot::reported(self.ep, reg);
            let event = epoll_event {
                events: report,
                u64: reg.data.load(Ordering::Relaxed),
            };
            round.add(self.out, event, &(0..compared));
            if let Some(marked) = round.marked.as_mut().filter(|_| !round.asked) {
                marked.count(conn);
            }
            if asked & ET == 0 {
                round.keep(reg);
            }
        }
        self.ep.turns.rings_reported(round.filled - before);
        if last {
            self.requeue_held(round);
        }
    }

    /// Asks the kernel for events to fill the entries that are left; what it leaves goes to the rings.
    fn report_kernel(&mut self, round: &mut Round) {
        let ep = self.ep;
        ep.asked.store(self.now, Ordering::Relaxed);
        ep.unasked.store(0, Ordering::Relaxed);
        below::flush(ep);
        let (first, places) = (round.filled, self.out.len());
        let got = usize::try_from(self.kernel(first, 0)).unwrap_or(0);
        for i in first..first + got {
            let event = self.out[i];
            round.add(self.out, event, &(0..first));
        }
        let by_kernel = first..round.filled;
        round.asked = true;
        if let Some(marked) = &round.marked {
            marked.put_behind(&mut self.out[..round.filled], first);
        }
        self.report_rings(round, places, true);
        if got == 0 || round.filled < places {
            return ep.turns.forget(); // at least one side has reported all it had
        }
        let events = self.out[by_kernel].iter().map(|e| e.u64);
        ep.turns.kernel_reported(events, first + got < places);
    }

    /// Puts level-triggered registrations at the end of the ready list, to be looked at again, unless that has been done.
    fn requeue(&self, round: &mut Round) {
        if round.kept != 0
            && let Some(_held) = self.ep.lock.lock()
        {
            self.requeue_held(round);
        }
    }

    /// Puts level-triggered registrations at the end of the ready list. The caller holds the set's lock.
    fn requeue_held(&self, round: &mut Round) {
        for place in &round.again[..round.kept] {
            // SAFETY: `keep` has set the places below `kept`.
            let reg = reg_ref(unsafe { place.assume_init() });
            if let Some(reg) = reg
                && belongs_to(reg, self.ep)
            {
                look_again_at(self.ep, reg);
            }
        }
        round.kept = 0;
    }

    /// Waits awake for the rings and for the kernel, which it asks now and then; the second value is the number of the
    /// kernel's events. A set may have sockets without rings and parked connections. If only these have news, parking
    /// the others would send them all back to TCP.
    fn spin(&mut self, budget: u64) -> (Spun, c_int) {
        if budget == 0 {
            return (Spun::Nothing, 0);
        }
        let ep = self.ep;
        let every = KERNEL_EVERY_SPIN_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let (mut turns, mut asked, mut from_kernel) = (0u32, ticks(), 0);
        let here = self.peer_is_here();
        let comes = || {
            if board::any_ready(ep) || !ep.ready_head.load(Ordering::Relaxed).is_null() {
                return true;
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(4) && self.find_room() {
                return true;
            }
            if turns.is_multiple_of(8) && ticks().wrapping_sub(asked) > every {
                below::flush(ep);
                from_kernel = kernel(ep, self.out, 0, self.sleep);
                asked = ticks();
                board::looking(asked);
            }
            from_kernel != 0
        };
        let served = || board::count_ready(ep) + u64::from(ready_len(ep));
        let spun = spin::until(budget, here, comes, served);
        let counter = if spun == Spun::Ready {
            Counter::SpinHits
        } else {
            Counter::SpinMisses
        };
        process::count(counter, 1);
        (spun, from_kernel)
    }

    /// Was the peer of the connection that woke last seen on this very CPU, or the receiver of one that waits for room?
    fn peer_is_here(&self) -> bool {
        let full = reg_ref(self.ep.full.load(Ordering::Relaxed)).and_then(reg_conn);
        if full.is_some_and(room::is_peer_here) {
            return true;
        }
        let Some(conn) = below::any_awake(self.ep).and_then(reg_conn) else {
            return false;
        };
        if conn.rx_mode() != RxMode::Hot {
            return false;
        }
        conn.rx_lane().is_some_and(|lane| {
            lane.words.sent.0.tx_cpu.load(Ordering::Relaxed) == spin::cpu_mark()
        })
    }

    /// Ends the wait if a handler has run since, outside the kernel's sleep, as the kernel would have ended it.
    pub(super) fn interrupted(&self, signals: u32) -> Option<c_int> {
        if crate::state::thread::current()
            .signals
            .load(Ordering::Relaxed)
            == signals
        {
            return None;
        }
        real::set_errno(libc::EINTR);
        Some(-1)
    }

    pub(super) fn remaining(&self, deadline: Option<u64>) -> c_int {
        if self.pieces.is_cut() {
            return self
                .pieces
                .left()
                .map_or(-1, |ms| c_int::try_from(ms).unwrap_or(c_int::MAX));
        }
        let Some(deadline) = deadline else {
            return self.timeout;
        };
        let per_ms = PROCESS.ticks_per_us.load(Ordering::Relaxed) * 1000;
        let left = deadline.saturating_sub(ticks()).div_ceil(per_ms.max(1));
        c_int::try_from(left)
            .unwrap_or(self.timeout)
            .min(self.timeout)
    }
}

/// Makes the program's own wait, with another time-out and other entries.
fn kernel(ep: &Ep, out: &mut [epoll_event], timeout: c_int, sleep: Sleep<'_>) -> c_int {
    let max = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
    let n = sleep(out.as_mut_ptr(), max, timeout);
    translated(ep, out, n)
}

/// The kernel's answer `n` as the program is to see it. If a bell has rung, the rings' news are on the ready lists.
pub(super) fn translated(ep: &Ep, out: &mut [epoll_event], n: c_int) -> c_int {
    if n <= 0 {
        return n;
    }
    let came = oneshot::translate(ep, &mut out[..n.cast_unsigned() as usize]);
    if came.bell_at.is_some() {
        harvest(ep, false);
    }
    came.left as c_int
}

/// The events that the rings have to report for a registration; 0: none. The registration's edges are over then.
pub(super) fn report(conn: &Conn, reg: &Reg, asked: u32) -> u32 {
    let (readable, writable) = state(conn, reg, asked);
    if !is_due(reg, asked, (readable, writable)) {
        return 0;
    }
    let mut bits = 0;
    if readable {
        bits |= asked & IN;
        unmark(reg, REG_IN_EDGE);
    }
    if writable {
        bits |= asked & OUT;
        unmark(reg, REG_OUT_EDGE | REG_ROOM);
    }
    bits
}

/// Would [`report`] have something?
pub(super) fn has_report(conn: &Conn, reg: &Reg, asked: u32) -> bool {
    let state = state(conn, reg, asked);
    state != (false, false) && is_due(reg, asked, state)
}

/// What the rings have for a registration: input, and room for output.
#[inline(always)]
fn state(conn: &Conn, reg: &Reg, asked: u32) -> (bool, bool) {
    if marked(reg, REG_ABSENT) || !may_report(reg) {
        return (false, false);
    }
    // The kernel does not know of ring bytes behind bytes of its own that the program has not read yet.
    let is_edge = || asked & ET != 0 && marked(reg, REG_IN_EDGE);
    let readable =
        asked & IN != 0 && (lane::readable(conn) || is_edge() && lane::has_bytes_behind_tcp(conn));
    // The kernel would report "writable" unless TCP's buffer is full. While the connection is parked, the kernel is
    // asked, except where the ring was full, of which the kernel does not know. What `REG_ROOM` says is reported in any
    // case: the ring may count as full again by now, but nothing else would report the connection.
    let by_ring = || conn.rx_mode() == RxMode::Hot && room::is_writable(conn);
    let writable = asked & OUT != 0 && (marked(reg, REG_ROOM) || by_ring());
    (readable, writable)
}

/// Is this state to be reported? An edge on either side makes the kernel report the whole state.
#[inline(always)]
fn is_due(reg: &Reg, asked: u32, (readable, writable): (bool, bool)) -> bool {
    asked & ET == 0 || readable && marked(reg, REG_IN_EDGE) || writable && marked(reg, REG_OUT_EDGE)
}
