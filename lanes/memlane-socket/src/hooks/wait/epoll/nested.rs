//! Sets in sets, and sets that poll and select wait on: what they report of rings, and how a thread sleeps on them.
//!
//! A set is readable while one of its registrations has something to report. [`news`] says that of rings; the kernel says it of
//! everything else. Before a thread sleeps in the kernel on something that a set lies in, it parks the set's connections: TCP
//! wakes it. Such a set uses no bells, which the kernel would report as news of the set.
//!
//! No thread holds the locks of two sets at a time.

use super::ctl::asked;
use super::park::{AllParked, park_what_is_read};
use super::waiter::{Round, Waiter, has_report};
use super::*;
use core::mem::MaybeUninit;
use libc::pollfd;

/// Kinds of nests that are not followed.
const NOT_FOLLOWED: u32 = ONESHOT | EXCLUSIVE | WAKEUP;
/// The most sets of one call of poll or select that are followed.
pub(in crate::hooks::wait) const POLLED: usize = 8;
/// The most sets that one thread can sleep on: all that lie in others, and those that it polls.
const MOST: usize = NESTS + POLLED;

// --- registrations ----------------------------------------------------------

/// `epoll_ctl(2)` with a set. `None`: the kernel does the call, and nothing else is to be done.
pub(super) fn ctl(
    ep: &'static Ep,
    op: c_int,
    inner: &'static Ep,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<c_int> {
    if op == libc::EPOLL_CTL_DEL {
        let _held = ep.lock.lock();
        let known = find_nest(ep, inner, fd);
        known.into_iter().for_each(|nest| end_nest(ep, nest));
        return None;
    }
    let asked = asked(event)?;
    let epfd = ep.fd.load(Ordering::Relaxed);
    let done = real!(epoll_ctl(epfd, op, fd, event));
    if done != 0 {
        return Some(done);
    }
    let is_seen = ep.nested.load(Ordering::Relaxed) != UNFOLLOWED;
    if is_seen && asked.0 & NOT_FOLLOWED == 0 && follow(inner) {
        register(ep, inner, fd, asked);
    } else {
        is_waited_for(inner);
    }
    Some(done)
}

/// Notes that from now on poll, select or another set waits on this one. `false`: its connections are on TCP.
pub(in crate::hooks::wait) fn follow(ep: &Ep) -> bool {
    let followed = ep
        .nested
        .compare_exchange(0, FOLLOWED, Ordering::AcqRel, Ordering::Acquire);
    followed.is_ok() || followed == Err(FOLLOWED)
}

/// Notes what the kernel has just registered or changed.
fn register(ep: &'static Ep, inner: &'static Ep, fd: c_int, asked: (u32, u64)) {
    let is_ready = news(inner).is_some();
    let Some(held) = ep.lock.lock() else {
        return is_waited_for(inner);
    };
    let nest = match find_nest(ep, inner, fd) {
        Some(known) => {
            known.reg.events.store(asked.0, Ordering::Relaxed);
            known.reg.data.store(asked.1, Ordering::Relaxed);
            Some(known)
        }
        None => make_nest(ep, inner, fd, asked),
    };
    let Some(nest) = nest else {
        drop(held);
        return is_waited_for(inner);
    };
    mark(&nest.reg, REG_IN_EDGE); // as the kernel does, the next wait reports the set if it is readable
    if is_ready {
        push_ready(ep, &nest.reg);
    }
    if ep.sleepers.load(Ordering::Relaxed) != 0 {
        ring_bell(ep, &process::HIDING);
    }
}

// --- what rings have ----------------------------------------------------------

/// When the first news came, in `ticks`, that a wait on this set would report by rings. `None`: there are none. The caller has
/// harvested.
pub(in crate::hooks::wait) fn news(ep: &'static Ep) -> Option<u64> {
    look_below(ep);
    let _held = ep.lock.lock()?;
    while let Some(reg) = reg_ref(ep.ready_head.load(Ordering::Relaxed)) {
        if let Some(since) = news_of(reg) {
            return Some(since);
        }
        pop_ready(ep);
    }
    None
}

fn news_of(reg: &Reg) -> Option<u64> {
    let asked = reg.events.load(Ordering::Relaxed);
    match (reg_conn(reg), nest_of(reg)) {
        (Some(conn), _) => has_report(conn, reg, asked).then(|| board::since_of(conn)),
        (None, Some(nest)) => marked(reg, REG_IN_EDGE).then(|| nest.since.load(Ordering::Relaxed)),
        (None, None) => None,
    }
}

/// Notes which sets in this one have something to report.
#[inline]
pub(super) fn look_below(ep: &'static Ep) {
    if ep.below.load(Ordering::Relaxed) != 0 {
        look_at_each(ep);
    }
}

#[cold]
fn look_at_each(ep: &'static Ep) {
    for nest in nests_in(ep) {
        let Some(inner) = nest.inner() else { continue };
        touch_inherited(inner);
        let arrivals = inner.arrivals.load(Ordering::Relaxed); // before the look: later ones are edges of their own
        let news = news(inner);
        let Some(_held) = ep.lock.lock() else { return };
        if belongs_to(&nest.reg, ep) && nest.inner().is_some_and(|now| core::ptr::eq(now, inner)) {
            note(ep, nest, arrivals, news);
        }
    }
}

fn note(ep: &Ep, nest: &Nest, arrivals: u32, news: Option<u64>) {
    let reg = &nest.reg;
    let asked = reg.events.load(Ordering::Relaxed);
    let is_edge = nest.told.swap(arrivals, Ordering::Relaxed) != arrivals;
    let is_due = asked & ET == 0 || is_edge || marked(reg, REG_IN_EDGE);
    let Some(since) = news.filter(|_| is_due && asked & IN != 0) else {
        return unmark(reg, REG_IN_EDGE);
    };
    nest.since.store(since, Ordering::Relaxed);
    mark(reg, REG_IN_EDGE);
    if is_edge {
        push_ready(ep, reg);
    } else {
        look_again_at(ep, reg);
    }
}

/// Keeps the place, in the ready lists of the sets that this one lies in, of news that have just come.
#[cold]
pub(super) fn keep_place(inner: &'static Ep) {
    for nest in nests_of(inner) {
        let Some((outer, held)) = set_of(&nest.reg) else {
            continue;
        };
        look_again_at(outer, &nest.reg);
        drop(held);
        keep_place(outer);
    }
}

impl Waiter<'_> {
    /// Reports a set that lies in this one, if it has something. The caller holds this set's lock.
    #[cold]
    pub(super) fn report_nest(&mut self, round: &mut Round, reg: &Reg, compared: usize) {
        let Some(nest) = nest_of(reg).filter(|_| marked(reg, REG_IN_EDGE)) else {
            return;
        };
        unmark(reg, REG_IN_EDGE);
        let asked = reg.events.load(Ordering::Relaxed);
        let event = epoll_event {
            events: asked & IN,
            u64: reg.data.load(Ordering::Relaxed),
        };
        round.add(self.out, event, &(0..compared));
        round.count_news(nest.since.load(Ordering::Relaxed));
        if asked & ET == 0 {
            round.keep(reg);
        }
    }
}

// --- sets below, all at once -----------------------------------------------------

/// Calls `f` with each set below this one until it returns `true`. Returns whether it did.
#[inline]
fn any_below(ep: &Ep, f: &mut dyn FnMut(&'static Ep) -> bool) -> bool {
    ep.below.load(Ordering::Relaxed) != 0 && any_of_those(ep, f)
}

#[cold]
fn any_of_those(ep: &Ep, f: &mut dyn FnMut(&'static Ep) -> bool) -> bool {
    let mut inners = nests_in(ep).filter_map(Nest::inner);
    inners.any(|inner| f(inner) || any_below(inner, f))
}

/// Gives the kernel what it does not know yet of this set and of those below.
#[inline]
pub(in crate::hooks::wait) fn flush(ep: &Ep) {
    flush_dirty(ep);
    any_below(ep, &mut |inner| {
        flush_dirty(inner);
        false
    });
}

/// A connection of the set, or of one below, that is awake.
#[inline]
pub(in crate::hooks::wait) fn any_awake(ep: &Ep) -> Option<&'static Reg> {
    first_awake(ep).or_else(|| {
        let mut found = None;
        any_below(ep, &mut |inner| {
            found = first_awake(inner);
            found.is_some()
        });
        found
    })
}

/// Does a connection of the set, or of one below, wait for room in its ring?
#[inline]
pub(in crate::hooks::wait) fn any_full(ep: &Ep) -> bool {
    let is_full = |ep: &Ep| !ep.full.load(Ordering::Relaxed).is_null();
    is_full(ep) || any_below(ep, &mut |inner| is_full(inner))
}

/// Makes the connections reportable that have got room in their rings. Returns whether there is one.
#[cold]
pub(in crate::hooks::wait) fn find_room(ep: &'static Ep) -> bool {
    let mut any = has_got_room(ep);
    any_below(ep, &mut |inner| {
        any |= has_got_room(inner);
        false
    });
    any
}

fn has_got_room(ep: &Ep) -> bool {
    let Some(_held) = ep.lock.lock() else {
        return false;
    };
    drop_full(ep, |reg| !reg_conn(reg).is_some_and(room::is_full))
}

/// Ends the lanes of connections that this process shares, in the child of a fork, before its first wait on the set.
#[inline]
pub(in crate::hooks::wait) fn touch_inherited(ep: &Ep) {
    // Only once: connections that are added later are looked at when they are added.
    if ep.inherited.load(Ordering::Relaxed) == 1 {
        touch_all(ep);
    }
}

#[cold]
fn touch_all(ep: &Ep) {
    ep.inherited.store(2, Ordering::Relaxed);
    process::for_live(|conn| {
        if is_registered(&conn.regs) {
            crate::hooks::calls::touch_conn(conn);
        }
    });
}

// --- sleeping ----------------------------------------------------------------------

/// The sets that a thread sleeps on in the kernel, because what it waits on is one of them or holds them.
pub(in crate::hooks::wait) struct Under {
    sets: [MaybeUninit<&'static Ep>; MOST],
    len: usize,
    /// A connection could not be parked, because it has unread bytes that nobody waits for: the thread may sleep only for a
    /// moment.
    pub(in crate::hooks::wait) is_any_awake: bool,
}

impl Under {
    pub(in crate::hooks::wait) fn new() -> Under {
        Under {
            sets: [const { MaybeUninit::uninit() }; MOST],
            len: 0,
            is_any_awake: false,
        }
    }

    fn sets(&self) -> &[&'static Ep] {
        // SAFETY: `add` has written the first `len`.
        unsafe { core::slice::from_raw_parts(self.sets.as_ptr().cast(), self.len) }
    }

    /// Parks the connections of the sets below this one, and counts the thread as asleep on these sets, until
    /// [`get_up`](Under::get_up), which must follow in any case.
    pub(super) fn lie_down_below(&mut self, ep: &Ep) -> AllParked {
        for inner in nests_in(ep).filter_map(Nest::inner) {
            if self.lie_down(inner).is_stuck() {
                return AllParked::Stuck;
            }
        }
        AllParked::Yes
    }

    /// The same for this set, too.
    pub(in crate::hooks::wait) fn lie_down(&mut self, ep: &'static Ep) -> AllParked {
        if self.sets().iter().any(|known| core::ptr::eq(*known, ep)) {
            return AllParked::Yes;
        }
        if !self.lie_down_on(ep) {
            return AllParked::Stuck;
        }
        self.lie_down_below(ep)
    }

    fn lie_down_on(&mut self, ep: &'static Ep) -> bool {
        let (Some(_held), Some(place)) = (ep.lock.lock(), self.sets.get_mut(self.len)) else {
            return false;
        };
        for list in [&ep.hot, &ep.belled] {
            match park_what_is_read(ep, list) {
                AllParked::Stuck => return false,
                AllParked::No => self.is_any_awake = true,
                AllParked::Yes => {}
            }
        }
        ep.sleepers.fetch_add(1, Ordering::SeqCst);
        place.write(ep);
        self.len += 1;
        true
    }

    /// Counts the thread as awake. Returns whether another thread has woken it by the eventfd of one of the sets: the kernel may
    /// have reported that set, though it has nothing.
    pub(in crate::hooks::wait) fn get_up(&mut self) -> bool {
        let mut rung = false;
        for ep in self.sets() {
            let _held = ep.lock.lock();
            let sleepers = ep.sleepers.load(Ordering::Relaxed);
            // 0: the set has been closed meanwhile, and another one has its place.
            ep.sleepers
                .store(sleepers.saturating_sub(1), Ordering::SeqCst);
            if sleepers <= 1 {
                rung |= silence(ep); // other sleepers read it themselves
            }
        }
        self.len = 0;
        self.is_any_awake = false;
        rung
    }
}

/// Drops the kernel's reports of sets that have nothing. Returns how many events are left.
#[cold]
pub(super) fn drop_false(ep: &'static Ep, events: &mut [epoll_event]) -> usize {
    let mut kept = 0;
    for i in 0..events.len() {
        let event = events[i];
        let is_it = |nest: &&Nest| nest.reg.data.load(Ordering::Relaxed) == { event.u64 };
        let inner = nests_in(ep).find(is_it).and_then(Nest::inner);
        if event.events & !IN == 0 && inner.is_some_and(|inner| !is_readable(inner)) {
            continue;
        }
        events[kept] = event;
        kept += 1;
    }
    kept
}

/// Is the set readable, by rings or by what the kernel has?
fn is_readable(ep: &'static Ep) -> bool {
    news(ep).is_some() || {
        flush(ep);
        let mut one = pollfd {
            fd: ep.fd.load(Ordering::Relaxed),
            events: libc::POLLIN,
            revents: 0,
        };
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        real!(ppoll(&raw mut one, 1, &raw const now, core::ptr::null())) > 0
    }
}
