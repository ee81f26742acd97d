//! Sets in sets, and sets that poll and select wait on: what they report of rings.
//!
//! A set is readable while one of its registrations has something to report. [`news`] says that of rings; the kernel says it of
//! everything else. No thread holds the locks of two sets at a time.

use super::below::touch_inherited;
use super::waiter::{Round, Waiter, has_report};
use super::*;

/// When the first news came, in `ticks`, that a wait on this set would report by rings. `None`: there are none. The caller has
/// harvested.
pub(in crate::hooks::wait) fn news(ep: &'static Ep) -> Option<u64> {
    look_below(ep);
    listed_news(ep)
}

/// The same of what the set's ready list has. The caller has looked below.
fn listed_news(ep: &Ep) -> Option<u64> {
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
        (Some(conn), _) => (has_report(conn, reg, asked) || has_come_behind_tcp(conn, reg, asked))
            .then(|| board::since_of(conn)),
        (None, Some(nest)) => marked(reg, REG_IN_EDGE).then(|| nest.since.load(Ordering::Relaxed)),
        (None, None) => None,
    }
}

/// Has the ring got bytes for a level-triggered registration behind others that the kernel holds? A wait on its own set leaves it
/// to the kernel to report these. But the kernel has no edge for bytes in a ring, and the set may lie in another one by an edge.
fn has_come_behind_tcp(conn: &Conn, reg: &Reg, asked: u32) -> bool {
    let is_level = asked & ET == 0 && asked & IN != 0;
    is_level
        && marked(reg, REG_IN_EDGE)
        && !marked(reg, REG_ABSENT)
        && may_report(reg)
        && lane::has_bytes_behind_tcp(conn)
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
        look_below(inner); // counts what has arrived there
        let arrivals = inner.arrivals.load(Ordering::Relaxed); // before the look: later ones are edges of their own
        let news = listed_news(inner);
        let Some(_held) = ep.lock.lock() else { return };
        if belongs_to(&nest.reg, ep) && nest.inner().is_some_and(|now| core::ptr::eq(now, inner)) {
            note(ep, nest, arrivals, news);
        }
    }
}

fn note(ep: &Ep, nest: &Nest, arrivals: u32, news: Option<u64>) {
    let reg = &nest.reg;
    let asked = reg.events.load(Ordering::Relaxed);
    let is_edge = nest.told.load(Ordering::Relaxed) != arrivals;
    let is_due = asked & ET == 0 || is_edge || marked(reg, REG_IN_EDGE);
    let Some(since) = news.filter(|_| is_due && asked & IN != 0) else {
        return unmark(reg, REG_IN_EDGE); // what has arrived is told once it can be read
    };
    nest.told.store(arrivals, Ordering::Relaxed);
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
