//! The connections that one poll or select waits on, held as long as it lasts.

use crate::protocol::lane::{self, Parked};
use crate::state::conn::{Conn, RxMode};
use crate::state::process::ConnRef;
use crate::state::process::{self, PROCESS};
use crate::state::spin::{self, Spun};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use memlane_core::reason::Reason;
use memlane_core::stats::Counter;
use memlane_sys::mem;
use memlane_sys::time::ticks;

/// Connections that are remembered on the stack; more have a mapping.
const FEW: usize = 64;
/// Awake connections that a spin looks at.
const SPUN: usize = 32;
/// While the rings answer, the kernel is asked this often …
const ASK_EVERY_US: u64 = 50;
/// … or, where its answer takes long, once in this many descriptors' µs.
const ASK_BY_LEN: u64 = 4;

/// A connection, and where in the program's list it stands.
struct Entry {
    conn: ConnRef,
    at: u32,
}

/// Room on the stack: see `FEW`.
pub(super) struct Room([MaybeUninit<Entry>; FEW]);

impl Room {
    pub(super) fn new() -> Room {
        Room([const { MaybeUninit::uninit() }; FEW])
    }
}

/// See the module's head.
pub(super) struct Waited<'a> {
    /// Of the room, or a mapping.
    base: NonNull<MaybeUninit<Entry>>,
    capacity: usize,
    /// Bytes of the mapping, 0 = it is the room.
    mapped: usize,
    len: usize,
    /// Has any of them been upgraded?
    pub(super) upgraded: bool,
    _room: core::marker::PhantomData<&'a mut Room>,
}

impl<'a> Waited<'a> {
    /// For a list of `most` descriptors.
    pub(super) fn new(room: &'a mut Room, most: usize) -> Waited<'a> {
        let (mut base, mut capacity, mut mapped) = (NonNull::from(&mut room.0).cast(), FEW, 0);
        if most > FEW
            && let Some((block, len)) = take_block(most.saturating_mul(size_of::<Entry>()))
        {
            (base, capacity, mapped) = (block.cast(), len / size_of::<Entry>(), len);
        }
        Waited {
            base,
            capacity,
            mapped,
            len: 0,
            upgraded: false,
            _room: core::marker::PhantomData,
        }
    }

    /// One more, which stands at `at` in the program's list.
    pub(super) fn add(&mut self, conn: ConnRef, at: usize) {
        crate::hooks::calls::touch(&conn);
        if self.len == self.capacity {
            crate::protocol::upgrade::bar(&conn, Reason::WAIT_KIND); // there was no memory
            return;
        }
        self.upgraded |= conn.upgraded();
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        // SAFETY: below `capacity`.
        unsafe { self.base.add(self.len).as_mut() }.write(Entry { conn, at });
        self.len += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn entries(&self) -> &[Entry] {
        // SAFETY: the first `len` have been written by `add`.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().cast(), self.len) }
    }

    fn each(&self) -> impl Iterator<Item = &Conn> {
        self.entries().iter().map(|e| &*e.conn)
    }

    /// Those whose ring has something, with their places.
    pub(super) fn readable(&self) -> impl Iterator<Item = (usize, &Conn)> {
        let readable = |e: &&Entry| self.upgraded && lane::readable(&e.conn);
        let entries = self.entries().iter();
        entries.filter(readable).map(|e| (e.at as usize, &*e.conn))
    }

    pub(super) fn any_readable(&self) -> bool {
        self.readable().next().is_some()
    }

    /// Is it time to ask the kernel of a list of `n`, as if it were asked now?
    pub(super) fn is_kernel_due(&self, n: usize) -> bool {
        let Some(first) = self.each().next() else {
            return true;
        };
        let us = ASK_EVERY_US.max(n as u64 / ASK_BY_LEN);
        let now = ticks();
        let since = now.wrapping_sub(first.glanced.load(Ordering::Relaxed));
        let due = since > us * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        if due {
            first.glanced.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Counts (or uncounts) this thread as asleep on all of them.
    pub(super) fn asleep(&self, yes: bool) {
        for conn in self.each() {
            let gate = &conn.shared().rx_gate;
            if yes {
                gate.sleeps();
            } else {
                gate.wakes();
            }
        }
    }

    /// Looks at those that are awake, for as long as that pays.
    pub(super) fn spin(&self) -> Spun {
        let budget = spin::budget();
        if budget == 0 {
            return Spun::Nothing;
        }
        let mut awake: [Option<&Conn>; SPUN] = [None; SPUN];
        let hot = self.each().filter(|c| c.rx_mode() == RxMode::Hot);
        for (place, conn) in awake.iter_mut().zip(hot) {
            *place = Some(conn);
        }
        let Some(Some(first)) = awake.first() else {
            return Spun::Nothing;
        };
        let here = self.len == 1 && lane::recv::is_peer_here(first);
        let any = || awake.iter().map_while(|c| *c).any(lane::perhaps_readable);
        let spun = spin::until(budget, here, any);
        let counter = match spun {
            Spun::Ready => Counter::SpinHits,
            _ => Counter::SpinMisses,
        };
        process::count(counter, 1);
        spun
    }

    /// Parks all of them; call after `asleep(true)`.
    pub(super) fn park(&self) -> Parked {
        for conn in self.each() {
            if !matches!(conn.rx_mode(), RxMode::Hot | RxMode::Drain | RxMode::Moving) {
                continue;
            }
            let Some(mut held) = crate::state::guard::lock_rx(conn) else {
                return Parked::Stuck;
            };
            let parked = lane::park(conn, &mut held);
            drop(held);
            match parked {
                Parked::Data if lane::readable(conn) => return Parked::Data,
                Parked::Stuck => return Parked::Stuck,
                _ => {}
            }
        }
        Parked::Yes
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        for i in 0..self.len {
            // SAFETY: written by `add`, and dropped here only.
            unsafe { self.base.add(i).as_mut().assume_init_drop() };
        }
        if self.mapped > 0 {
            give_block(self.base.cast(), self.mapped);
        }
    }
}

// --- long lists -------------------------------------------------------------

/// A mapping that nobody uses just now, so that a program that polls a long list does
/// not have one made each time: 0 = none. Its first word is its length. Whoever swaps it
/// out has it alone.
static SPARE: AtomicUsize = AtomicUsize::new(0);

fn take_block(least: usize) -> Option<(NonNull<u8>, usize)> {
    if let Some(spare) = NonNull::new(SPARE.swap(0, Ordering::AcqRel) as *mut u8) {
        // SAFETY: ours alone since the swap; `give_block` has written its length there.
        let len = unsafe { spare.cast::<usize>().read() };
        if len >= least {
            return Some((spare, len));
        }
        // SAFETY: the whole mapping.
        unsafe { mem::unmap(spare, len) };
    }
    let len = least.checked_next_power_of_two()?.max(mem::PAGE);
    Some((mem::map_anon(len, false).ok()?, len))
}

fn give_block(block: NonNull<u8>, len: usize) {
    // SAFETY: ours alone, longer than a word and page-aligned.
    unsafe { block.cast::<usize>().write(len) };
    let spare = SPARE.compare_exchange(
        0,
        block.as_ptr() as usize,
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
    if spare.is_err() {
        // SAFETY: the whole mapping, which nobody else has.
        unsafe { mem::unmap(block, len) };
    }
}
