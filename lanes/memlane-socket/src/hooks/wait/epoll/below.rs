//! A set and those that lie in it, all at once.

use super::*;

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
    drop_full(ep, |reg| {
        reg_conn(reg).map_or(Fullness::Room, room::fullness)
    })
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
