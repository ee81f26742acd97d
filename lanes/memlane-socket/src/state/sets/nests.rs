//! Sets in sets: the registrations of epoll sets in other sets.
//!
//! The kernel reports a set as readable to whatever waits on it, but it cannot see rings. So the library keeps which sets of the
//! process lie in which: a *nest* is one set's registration in another. A wait on the outer set looks at the inner one, too.
//!
//! The kernel refuses cycles. A nest is made after the kernel's registration and goes before it, so nests have no cycles either.

use super::*;
use core::sync::atomic::AtomicUsize;

/// Value of [`Ep::nested`]: all that waits on the set are this process's epoll, poll and select, which look at its rings.
pub(crate) const FOLLOWED: u32 = 1;
/// Value of [`Ep::nested`]: something waits on the set that cannot see rings. Its connections stay on TCP.
pub(crate) const UNFOLLOWED: u32 = 2;

/// The most nests of a process. The connections of further ones stay on TCP.
pub(crate) const NESTS: usize = 64;
/// The numbers of nests' registrations, above those of all connections.
pub(super) const FIRST_NUMBER: u32 = u32::MAX - NESTS as u32;

/// One set's registration in another.
#[derive(Debug)]
pub(crate) struct Nest {
    /// The registration in the outer set. Its lists, `events` and `data` are used as a connection's are.
    pub(crate) reg: Reg,
    /// The set that is registered. Written under the outer set's lock.
    pub(crate) inner: AtomicPtr<Ep>,
    /// The inner set's `arrivals` that the outer set has been told of, for edges.
    pub(crate) told: AtomicU32,
    /// When the inner set's first news came, in `ticks`.
    pub(crate) since: AtomicU64,
}

far! {
    static ALL: [Nest; NESTS] = [const {
        Nest {
            reg: Reg::FREE,
            inner: AtomicPtr::new(core::ptr::null_mut()),
            told: AtomicU32::new(0),
            since: AtomicU64::new(0),
        }
    }; NESTS];
}
/// Nests from this index on were never used.
static HIGH: AtomicUsize = AtomicUsize::new(0);

fn used() -> &'static [Nest] {
    &ALL[..HIGH.load(Ordering::Acquire)]
}

impl Nest {
    /// The set that is registered.
    pub(crate) fn inner(&self) -> Option<&'static Ep> {
        // SAFETY: null, or an address in the pool of sets, which is never unmapped.
        unsafe { self.inner.load(Ordering::Acquire).as_ref() }
    }

    fn is_of(&self, inner: &Ep) -> bool {
        core::ptr::eq(self.inner.load(Ordering::Acquire), inner)
    }
}

/// The nest that this registration belongs to; `None`: it is a connection's.
pub(crate) fn nest_of(reg: &Reg) -> Option<&'static Nest> {
    let index = reg
        .number
        .load(Ordering::Relaxed)
        .checked_sub(FIRST_NUMBER)?;
    ALL.get(index as usize)
}

/// The nests in this set, the latest first.
pub(crate) fn nests_in(ep: &Ep) -> impl Iterator<Item = &'static Nest> {
    let all = match ep.below.load(Ordering::Acquire) {
        0 => &[],
        _ => used(),
    };
    all.iter()
        .rev()
        .filter(move |nest| belongs_to(&nest.reg, ep))
}

/// The nests of this set in others, the latest first, which is the order in which the kernel tells them of news.
pub(crate) fn nests_of(inner: &Ep) -> impl Iterator<Item = &'static Nest> {
    let is_in_any = |nest: &&Nest| !nest.reg.ep.load(Ordering::Acquire).is_null();
    used()
        .iter()
        .rev()
        .filter(move |nest| nest.is_of(inner))
        .filter(is_in_any)
}

/// The nest of `inner`, registered by descriptor `fd`, in `ep`. The caller holds `ep`'s lock.
pub(crate) fn find_nest(ep: &Ep, inner: &Ep, fd: i32) -> Option<&'static Nest> {
    let by_fd = |nest: &&Nest| nest.reg.fd.load(Ordering::Relaxed) == fd;
    nests_in(ep).filter(|nest| nest.is_of(inner)).find(by_fd)
}

/// Registers a set in another one. The caller holds `ep`'s lock. `None`: there are too many nests.
pub(crate) fn make_nest(
    ep: &Ep,
    inner: &Ep,
    fd: i32,
    (events, data): (u32, u64),
) -> Option<&'static Nest> {
    let (none, ours) = (core::ptr::null_mut(), core::ptr::from_ref(ep).cast_mut());
    let (index, nest) = ALL.iter().enumerate().find(|(_, nest)| {
        let of = &nest.reg.ep;
        of.compare_exchange(none, ours, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })?;
    let reg = &nest.reg;
    nest.inner
        .store(core::ptr::from_ref(inner).cast_mut(), Ordering::Release);
    nest.told.store(0, Ordering::Relaxed);
    reg.number
        .store(FIRST_NUMBER + index as u32, Ordering::Relaxed);
    reg.fd.store(fd, Ordering::Relaxed);
    reg.events.store(events, Ordering::Relaxed);
    reg.data.store(data, Ordering::Relaxed);
    reg.armed.store(1, Ordering::Relaxed);
    reg.marks.store(0, Ordering::Relaxed);
    ep.regs.fetch_add(1, Ordering::Relaxed);
    ep.below.fetch_add(1, Ordering::AcqRel);
    HIGH.fetch_max(index + 1, Ordering::AcqRel);
    Some(nest)
}

/// Ends a nest. The caller holds the lock of the set that it is in.
pub(crate) fn end_nest(ep: &Ep, nest: &Nest) {
    nest.inner.store(core::ptr::null_mut(), Ordering::Release);
    take_out(ep, &nest.reg);
    ep.below.fetch_sub(1, Ordering::AcqRel);
}

/// Ends all nests of this set and in it, because its last descriptor is closed.
pub(crate) fn end_nests(ep: &Ep) {
    for nest in used() {
        if let Some((outer, _held)) = set_of(&nest.reg)
            && (nest.is_of(ep) || core::ptr::eq(outer, ep))
        {
            end_nest(outer, nest);
        }
    }
}
