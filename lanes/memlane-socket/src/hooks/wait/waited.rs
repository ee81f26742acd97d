//! The connections that one poll or select waits on, held while the call lasts.

use super::epoll::under::{POLLED, Under};
use super::epoll::{below, follow, harvest, is_waited_for, nested};
use super::long::{FEW, Spare};
use super::relied::{self, Relied};
use crate::protocol::board;
use crate::protocol::lane::{self, Parked, room};
use crate::state::conn::{Conn, RxMode};
use crate::state::process::ConnRef;
use crate::state::process::{self, PROCESS};
use crate::state::sets::{Ep, Sleeper};
use crate::state::spin::{self, Spun};
use core::cell::{Cell, RefCell};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use libc::c_int;
use memlane_core::reason::Reason;
use memlane_core::stats::Counter;
use memlane_sys::time::ticks;

/// The mapping for the connections of a long list.
static SPARE: Spare = Spare::new();
/// The most awake connections that a spin looks at.
const SPUN: usize = 32;
/// The time between two questions to the kernel while the rings answer, in µs …
const ASK_EVERY_US: u64 = 50;
/// … or, where the kernel takes long to answer, one µs for this many descriptors.
const ASK_BY_LEN: u64 = 4;

/// A connection, its position in the program's list, and what the call waits for.
struct Entry {
    conn: ConnRef,
    at: u32,
    reads: bool,
    writes: bool,
}

/// Room on the stack for [`FEW`] entries.
pub(super) struct Room([MaybeUninit<Entry>; FEW]);

impl Room {
    pub(super) fn new() -> Room {
        Room([const { MaybeUninit::uninit() }; FEW])
    }
}

/// The connections that one poll or select waits on.
pub(super) struct Waited<'a> {
    /// The entries: the room on the stack, or a mapping.
    base: NonNull<MaybeUninit<Entry>>,
    capacity: usize,
    /// The length of the mapping in bytes; 0: the entries are on the stack.
    mapped: usize,
    len: usize,
    /// Has any of the connections been upgraded?
    pub(super) upgraded: bool,
    /// Was the ring of any connection full that the call waits to write to?
    any_full: bool,
    /// The epoll sets, with their positions in the program's list.
    sets: [Option<(&'static Ep, usize)>; POLLED],
    /// The sets that the thread sleeps on, while it does.
    under: RefCell<Under>,
    /// Another thread has woken this one for a set: the kernel may have reported a set that has nothing.
    is_perhaps_false: Cell<bool>,
    /// A connection stays awake, and bytes of TCP are its next ones. The kernel reports these, unless another thread takes them,
    /// but not others that may come by the ring behind them: the thread may sleep only for a moment.
    is_any_run: Cell<bool>,
    _room: core::marker::PhantomData<&'a mut Room>,
}

impl<'a> Waited<'a> {
    /// An empty value for a list of `most` descriptors.
    pub(super) fn new(room: &'a mut Room, most: usize) -> Waited<'a> {
        let (mut base, mut capacity, mut mapped) = (NonNull::from(&mut room.0).cast(), FEW, 0);
        if most > FEW
            && let Some((block, len)) = SPARE.take(most.saturating_mul(size_of::<Entry>()))
        {
            (base, capacity, mapped) = (block.cast(), len / size_of::<Entry>(), len);
        }
        Waited {
            base,
            capacity,
            mapped,
            len: 0,
            upgraded: false,
            any_full: false,
            sets: [None; POLLED],
            under: RefCell::new(Under::new()),
            is_perhaps_false: Cell::new(false),
            is_any_run: Cell::new(false),
            _room: core::marker::PhantomData,
        }
    }

    /// Adds a connection whose position in the program's list is `at`, if its rings matter: the call waits for input, or
    /// for room in a ring that is full.
    pub(super) fn add(&mut self, conn: ConnRef, at: usize, (reads, writes): (bool, bool)) {
        let writes = writes && room::fills(&conn);
        if !reads && !writes {
            return;
        }
        crate::hooks::calls::touch(&conn);
        self.any_full |= writes;
        if self.len == self.capacity {
            crate::protocol::upgrade::bar(&conn, Reason::WAIT_KIND); // there is no memory for the entry
            return;
        }
        self.upgraded |= conn.upgraded();
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        // SAFETY: below `capacity`.
        unsafe { self.base.add(self.len).as_mut() }.write(Entry {
            conn,
            at,
            reads,
            writes,
        });
        self.len += 1;
    }

    /// Adds an epoll set whose position in the program's list is `at`.
    pub(super) fn add_set(&mut self, ep: &'static Ep, at: usize) {
        let place = self.sets.iter_mut().find(|place| place.is_none());
        match place {
            Some(place) if follow(ep) => {
                below::touch_inherited(ep);
                *place = Some((ep, at));
                self.upgraded = true;
            }
            Some(_) => {}
            None => is_waited_for(ep),
        }
    }

    fn sets(&self) -> impl Iterator<Item = (&'static Ep, usize)> {
        self.sets.iter().map_while(|set| *set)
    }

    /// Is one of the descriptors an epoll set?
    pub(super) fn has_sets(&self) -> bool {
        self.sets[0].is_some()
    }

    /// The positions of sets with something to report by rings.
    pub(super) fn readable_sets(&self) -> impl Iterator<Item = usize> {
        if let Some((first, _)) = self.sets[0] {
            harvest(first, false);
        }
        let has_news = |(ep, _): &(&'static Ep, usize)| {
            if below::any_full(ep) {
                below::find_room(ep);
            }
            nested::news(ep).is_some()
        };
        self.sets().filter(has_news).map(|(_, at)| at)
    }

    /// Leaves the sets to the kernel: the call cannot see rings.
    #[cold]
    pub(super) fn bar_sets(&self) {
        self.sets().for_each(|(ep, _)| is_waited_for(ep));
    }

    /// May the kernel have reported a set that has nothing?
    pub(super) fn is_perhaps_false(&self) -> bool {
        self.is_perhaps_false.take()
    }

    /// Gives the kernel what it does not know yet of the sets.
    pub(super) fn flush_sets(&self) {
        self.sets().for_each(|(ep, _)| below::flush(ep));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && !self.has_sets()
    }

    fn entries(&self) -> &[Entry] {
        // SAFETY: the first `len` have been written by `add`.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().cast(), self.len) }
    }

    /// The connections that the call waits to read from.
    fn each(&self) -> impl Iterator<Item = &Conn> {
        self.entries().iter().filter(|e| e.reads).map(|e| &*e.conn)
    }

    /// The connections whose ring has bytes, with their positions.
    pub(super) fn readable(&self) -> impl Iterator<Item = (usize, &Conn)> {
        let readable = |e: &&Entry| self.upgraded && e.reads && lane::readable(&e.conn);
        let entries = self.entries().iter();
        entries.filter(readable).map(|e| (e.at as usize, &*e.conn))
    }

    pub(super) fn any_readable(&self) -> bool {
        self.readable().next().is_some() || self.readable_sets().next().is_some()
    }

    /// The positions of the connections to which the call waits to write and whose rings are still full: the kernel,
    /// which sees that TCP has room, must not be asked about that.
    pub(super) fn full(&self) -> impl Iterator<Item = usize> {
        let full = |e: &&Entry| self.any_full && e.writes && room::is_full(&e.conn);
        self.entries().iter().filter(full).map(|e| e.at as usize)
    }

    /// Does the call wait for room in a ring?
    pub(super) fn waits_for_room(&self) -> bool {
        self.any_full || self.sets().any(|(ep, _)| below::any_full(ep))
    }

    /// May the thread, which lies down, sleep only for a moment?
    pub(super) fn only_naps(&self) -> bool {
        self.waits_for_room() || self.under.borrow().is_any_awake || self.is_any_run.get()
    }

    /// Is there room in a ring that was full when the call began?
    pub(super) fn any_room(&self) -> bool {
        let room = |e: &Entry| e.writes && !room::is_full(&e.conn);
        self.any_full && self.entries().iter().any(room)
    }

    /// Is any of the connections awake that the call waits to read from?
    pub(super) fn any_awake(&self) -> bool {
        self.each().any(|conn| conn.rx_mode() == RxMode::Hot) || self.any_set_awake()
    }

    fn any_set_awake(&self) -> bool {
        self.sets().any(|(ep, _)| below::any_awake(ep).is_some())
    }

    /// Is it time to ask the kernel about a list of `n` descriptors? If it is, this notes that it is asked now.
    pub(super) fn is_kernel_due(&self, n: usize) -> bool {
        let asked = match (self.entries().first(), self.sets[0]) {
            (Some(first), _) => &first.conn.glanced,
            (None, Some((ep, _))) => &ep.asked,
            (None, None) => return true,
        };
        let us = ASK_EVERY_US.max(n as u64 / ASK_BY_LEN);
        let now = ticks();
        let since = now.wrapping_sub(asked.load(Ordering::Relaxed));
        let due = since > us * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        if due {
            asked.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Counts this thread as asleep on all connections, or uncounts it.
    pub(super) fn asleep(&self, yes: bool) {
        for conn in self.each() {
            let gate = &conn.shared().rx_gate;
            if yes {
                gate.sleeps();
            } else {
                gate.wakes();
            }
        }
        if !yes && self.has_sets() && self.under.borrow_mut().get_up() {
            self.is_perhaps_false.set(true);
        }
    }

    /// Looks at the connections that are awake, for as long as that pays.
    pub(super) fn spin(&self) -> Spun {
        let budget = if !self.any_full {
            spin::budget()
        } else if self.any_full_soon_has_room() {
            spin::budget_for_room()
        } else {
            0
        };
        if budget == 0 {
            return Spun::Nothing;
        }
        let mut awake: [Option<&Conn>; SPUN] = [None; SPUN];
        let hot = self.each().filter(|c| c.rx_mode() == RxMode::Hot);
        for (place, conn) in awake.iter_mut().zip(hot) {
            *place = Some(conn);
        }
        let is_set_awake = self.any_set_awake();
        let here = match (awake[0], self.any_full) {
            (None, false) if !is_set_awake => return Spun::Nothing,
            (_, true) => self.is_any_receiver_here(),
            (_, false) => awake.iter().map_while(|c| *c).all(lane::recv::is_peer_here),
        };
        let in_sets = || self.sets[0].is_some_and(|(ep, _)| board::any_ready(ep));
        let any = || {
            awake.iter().map_while(|c| *c).any(lane::perhaps_readable)
                || self.any_room()
                || is_set_awake && in_sets()
        };
        let served = || self.readable().count() as u64;
        let spun = spin::until(budget, here, any, served);
        let counter = match spun {
            Spun::Ready => Counter::SpinHits,
            _ => Counter::SpinMisses,
        };
        process::count(counter, 1);
        spun
    }

    /// May a spin find room? Not where sends block: there, a quarter of the window is waited for, which takes the receiver longer.
    fn any_full_soon_has_room(&self) -> bool {
        self.entries()
            .iter()
            .any(|e| e.writes && e.conn.is_nonblock())
    }

    /// Was the receiver of a connection that waits for room last seen on this very CPU?
    fn is_any_receiver_here(&self) -> bool {
        let here = |e: &Entry| e.writes && room::is_peer_here(&e.conn);
        self.entries().iter().any(here)
    }

    /// Notes for each connection that this thread is the one to be woken.
    pub(super) fn is_polled_here(&self) {
        let me = Sleeper::this_thread();
        for conn in self.each().filter(|conn| conn.last_waiter.get() != me) {
            conn.last_waiter.set(me);
        }
    }

    /// Prepares to sleep: asks for the bells of connections that have one, and parks all others. Call this after
    /// `asleep(true)`. If it returns `Parked::Yes`, the bells are asked for until `relied.get_up()`.
    pub(super) fn park(&self, relied: &mut Relied) -> Parked {
        relied.begin();
        self.is_any_run.set(false);
        let mut under = self.under.borrow_mut();
        if self.sets().any(|(ep, _)| under.lie_down(ep).is_stuck()) {
            return Parked::Stuck;
        }
        drop(under);
        let sweeps = relied.may() && relied::is_sweep_due();
        for conn in self.each() {
            if !matches!(conn.rx_mode(), RxMode::Hot | RxMode::Drain | RxMode::Moving) {
                continue;
            }
            let stays_awake = relied.may()
                && !(sweeps && lane::is_idle(conn))
                && lane::polled_bell(conn).is_some_and(|bell| relied.add(&bell));
            if stays_awake {
                continue;
            }
            let Some(mut held) = crate::state::guard::lock_rx(conn) else {
                return Parked::Stuck;
            };
            let parked = lane::park(conn, &mut held);
            drop(held);
            match parked {
                Parked::Data if lane::readable(conn) => return Parked::Data,
                Parked::Data => self.is_any_run.set(true),
                Parked::Stuck => return Parked::Stuck,
                Parked::Yes | Parked::Ended => {}
            }
        }
        if self.has_sets() && self.any_readable() {
            return Parked::Data;
        }
        if relied.is_empty() {
            return Parked::Yes;
        }
        relied.lie_down();
        if self.any_readable() {
            relied.get_up();
            return Parked::Data;
        }
        Parked::Yes
    }

    /// Those of `all`, each with its position in the program's list, that are none of these connections.
    pub(super) fn strangers(
        &self,
        all: impl Iterator<Item = (usize, c_int)>,
    ) -> impl Iterator<Item = c_int> {
        // Both are in the order of the list.
        let mut own = self.entries().iter().map(|e| e.at as usize).peekable();
        all.filter_map(move |(at, fd)| {
            while own.next_if(|&own| own < at).is_some() {}
            (own.peek() != Some(&at)).then_some(fd)
        })
    }

    /// The positions of descriptors that another thread has closed meanwhile, if `fd_at` tells which are at a position.
    pub(super) fn gone<'b>(
        &'b self,
        fd_at: impl Fn(usize) -> c_int + 'b,
    ) -> impl Iterator<Item = usize> + 'b {
        let is_gone = move |e: &&Entry| {
            let now = process::conn_of(fd_at(e.at as usize));
            !now.is_some_and(|now| core::ptr::eq(&*now, &*e.conn))
        };
        self.entries().iter().filter(is_gone).map(|e| e.at as usize)
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        for i in 0..self.len {
            // SAFETY: written by `add`, and dropped only here.
            unsafe { self.base.add(i).as_mut().assume_init_drop() };
        }
        if self.mapped > 0 {
            SPARE.give(self.base.cast(), self.mapped);
        }
    }
}
