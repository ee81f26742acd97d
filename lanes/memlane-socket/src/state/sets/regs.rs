//! The registrations of a connection. Nearly all connections are in one or two sets: these registrations lie in the connection.
//! Further ones come from a pool of the process, as a list that only connections in more sets have: others do not pay for it.

use super::*;

/// The number of registrations that lie in the connection.
pub const REGS: usize = 2;

/// The number of registrations in the pool. A connection that finds none free stays on TCP.
const SPARE: usize = 4096;
/// The numbers of these registrations, below those of nests.
const FIRST_NUMBER: u32 = nests::FIRST_NUMBER - SPARE as u32;
/// Value of `Spare::conn`: it belongs to no connection. Others are indices of connections, +1.
const NOBODYS: u32 = 0;

/// A registration from the pool.
#[derive(Debug)]
struct Spare {
    reg: Reg,
    /// The index of the connection that has it, +1; `NOBODYS`. The thread that changes it from `NOBODYS` owns it.
    conn: AtomicU32,
    /// The connection's next one. Written before the list is published.
    next: AtomicPtr<Spare>,
}

far! {
    static SPARES: [Spare; SPARE] = [const {
        Spare {
            reg: Reg::FREE,
            conn: AtomicU32::new(NOBODYS),
            next: AtomicPtr::new(core::ptr::null_mut()),
        }
    }; SPARE];
}
/// The index at which the search for a free registration begins: behind the one that was taken last.
static SEARCHED: AtomicU32 = AtomicU32::new(0);

/// The registrations of one connection.
#[derive(Debug)]
pub struct Regs {
    own: [Reg; REGS],
    /// Those from the pool. They stay here until the connection ends, so threads can walk the list without a lock.
    more: AtomicPtr<Spare>,
}

impl Regs {
    /// Prepares the registrations of connection `index`, which no other thread knows yet.
    pub fn reset(&self, index: u32) {
        for (place, reg) in self.own.iter().enumerate() {
            reg.ep.store(core::ptr::null_mut(), Ordering::Relaxed);
            reg.marks.store(0, Ordering::Relaxed);
            let number = index * REGS as u32 + place as u32;
            reg.number.store(number, Ordering::Relaxed);
        }
        self.give_back();
    }

    /// Gives those from the pool back. They are in no set any more.
    pub fn give_back(&self) {
        if !self.has_more() {
            return;
        }
        let mut at = self.more.swap(core::ptr::null_mut(), Ordering::AcqRel);
        while let Some(spare) = spare_ref(at) {
            at = spare.next.load(Ordering::Relaxed);
            spare.conn.store(NOBODYS, Ordering::Release);
        }
    }

    /// Those that lie in the connection.
    #[inline(always)]
    pub(crate) fn own(&self) -> &[Reg; REGS] {
        &self.own
    }

    /// Are there any from the pool?
    #[inline(always)]
    pub(crate) fn has_more(&self) -> bool {
        !self.more.load(Ordering::Relaxed).is_null()
    }

    /// Those from the pool.
    #[inline(always)]
    pub(crate) fn more(&self) -> Spares<'_> {
        Spares(spare_ref(self.more.load(Ordering::Acquire)))
    }

    /// All of them.
    #[inline(always)]
    pub fn iter(&self) -> impl Iterator<Item = &Reg> {
        self.own.iter().chain(self.more())
    }

    /// Claims one that is free for the set `ep`. `None`: there is none, nor in the pool.
    pub(crate) fn claim(&self, ep: &Ep) -> Option<&Reg> {
        let ours = core::ptr::from_ref(ep).cast_mut();
        let is_claimed = |reg: &&Reg| {
            reg.ep
                .compare_exchange(
                    core::ptr::null_mut(),
                    ours,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
        };
        self.iter().find(is_claimed).or_else(|| self.add(ours))
    }

    /// Takes one more from the pool, for the set `ep`.
    #[cold]
    fn add(&self, ep: *mut Ep) -> Option<&Reg> {
        let index = self.own[0].number.load(Ordering::Relaxed) / REGS as u32;
        let (number, spare) = take(index + 1)?;
        let reg = &spare.reg;
        reg.number.store(FIRST_NUMBER + number, Ordering::Relaxed);
        reg.marks.store(0, Ordering::Relaxed);
        reg.ep.store(ep, Ordering::Release);
        let mut first = self.more.load(Ordering::Acquire);
        loop {
            spare.next.store(first, Ordering::Relaxed);
            let new = core::ptr::from_ref(spare).cast_mut();
            match self
                .more
                .compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(reg),
                Err(now) => first = now,
            }
        }
    }
}

/// Takes a free registration, with its index, for connection `conn` - 1.
fn take(conn: u32) -> Option<(u32, &'static Spare)> {
    let begin = SEARCHED.load(Ordering::Relaxed);
    for i in 0..SPARE as u32 {
        let index = (begin + i) % SPARE as u32;
        let spare = &SPARES[index as usize];
        let free = &spare.conn;
        if free
            .compare_exchange(NOBODYS, conn, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            SEARCHED.store(index + 1, Ordering::Relaxed);
            return Some((index, spare));
        }
    }
    None
}

fn spare_ref<'a>(p: *mut Spare) -> Option<&'a Spare> {
    // SAFETY: null, or a place in `SPARES`, which lives for ever.
    unsafe { p.as_ref() }
}

/// A walk along a list of spare registrations.
pub(crate) struct Spares<'a>(Option<&'a Spare>);

impl<'a> Iterator for Spares<'a> {
    type Item = &'a Reg;

    #[inline]
    fn next(&mut self) -> Option<&'a Reg> {
        let spare = self.0?;
        self.0 = spare_ref(spare.next.load(Ordering::Acquire));
        Some(&spare.reg)
    }
}

/// The index of the connection that has this registration from the pool. `None`: it is not from there.
#[cold]
pub(crate) fn owner_of(reg: &Reg) -> Option<usize> {
    spare_of(reg.number.load(Ordering::Relaxed)).and_then(owner)
}

/// The registration with this number, if it is from the pool and in use.
pub(crate) fn spare_reg(number: u32) -> Option<&'static Reg> {
    spare_of(number)
        .filter(|spare| owner(spare).is_some())
        .map(|spare| &spare.reg)
}

/// Is this the number of a registration from the pool?
pub(crate) fn is_spare(number: u32) -> bool {
    spare_of(number).is_some()
}

#[cold]
fn spare_of(number: u32) -> Option<&'static Spare> {
    SPARES.get(number.checked_sub(FIRST_NUMBER)? as usize)
}

fn owner(spare: &Spare) -> Option<usize> {
    let conn = spare.conn.load(Ordering::Acquire);
    conn.checked_sub(1).map(|index| index as usize)
}

#[cfg(test)]
mod tests;
