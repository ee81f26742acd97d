//! The held locks of a connection's two directions, and what they give access to.

use crate::state::conn::{Conn, LaneView, SharedState};
use crate::state::thread::LockGuard;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;
use memlane_core::ring::{Rx, Tx};

/// `rx_lock`, held, with the receive state brought up to date.
///
/// It derefs to the receive state, so the borrow checker allows one user at a time:
///
/// ```
/// fn in_turn(held: &mut memlane_socket::state::guard::RxGuard<'_>) {
///     let one = &mut **held;
///     one.skip(1);
///     let two = &mut **held;
///     two.skip(1);
/// }
/// ```
///
/// ```compile_fail
/// fn aliased(held: &mut memlane_socket::state::guard::RxGuard<'_>) {
///     let one = &mut **held;
///     let two = &mut **held;
///     one.skip(1);
///     two.skip(1);
/// }
/// ```
#[derive(Debug)]
pub struct RxGuard<'a> {
    shared: &'a SharedState,
    lane: Option<LaneView<'a>>,
    _lock: LockGuard<'a>,
}

/// Takes `rx_lock` and credits what readers without the lock have taken by TCP. `None`: this thread holds it already,
/// because a signal handler has interrupted it.
#[inline]
pub fn lock_rx(conn: &Conn) -> Option<RxGuard<'_>> {
    Some(RxGuard::new(conn, conn.shared().rx_lock.lock()?))
}

/// Takes `rx_lock` like [`lock_rx`], if no thread holds it.
pub fn try_lock_rx(conn: &Conn) -> Option<RxGuard<'_>> {
    Some(RxGuard::new(conn, conn.shared().rx_lock.try_lock()?))
}

impl<'a> RxGuard<'a> {
    #[inline]
    fn new(conn: &'a Conn, lock: LockGuard<'a>) -> RxGuard<'a> {
        let shared = conn.shared();
        let mut held = RxGuard {
            shared,
            lane: conn.rx_lane(),
            _lock: lock,
        };
        if let Some(lane) = held.lane
            && shared.rx_count.load(Ordering::Relaxed) != 0
        {
            let n = shared.rx_count.swap(0, Ordering::AcqRel);
            held.took(lane.words, n);
        }
        held
    }

    /// The memory that this side receives from; `None`: the lane was not open when the lock was taken.
    #[inline(always)]
    pub fn lane(&self) -> Option<LaneView<'a>> {
        self.lane
    }
}

impl Deref for RxGuard<'_> {
    type Target = Rx;
    #[inline(always)]
    fn deref(&self) -> &Rx {
        // SAFETY: rx_lock is held, so no other guard of this state exists; this one is borrowed for as long as the reference lives.
        unsafe { &*self.shared.rx.get() }
    }
}

impl DerefMut for RxGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Rx {
        // SAFETY: rx_lock is held, so no other guard of this state exists; this one is borrowed mutably.
        unsafe { &mut *self.shared.rx.get() }
    }
}

impl Drop for RxGuard<'_> {
    /// Publishes how far the stream has been read, before the lock is released.
    #[inline(always)]
    fn drop(&mut self) {
        let taken = self.offset();
        self.shared.rx_taken.store(taken, Ordering::Relaxed);
    }
}

/// `tx_lock`, held. It derefs to the send state.
#[derive(Debug)]
pub struct TxGuard<'a> {
    shared: &'a SharedState,
    lane: Option<LaneView<'a>>,
    _lock: LockGuard<'a>,
}

/// Takes `tx_lock`. `None`: this thread holds it already, because a signal handler has interrupted it.
#[inline]
pub fn lock_tx(conn: &Conn) -> Option<TxGuard<'_>> {
    let shared = conn.shared();
    let lock = shared.tx_lock.lock()?;
    Some(TxGuard {
        shared,
        lane: conn.tx_lane(),
        _lock: lock,
    })
}

impl<'a> TxGuard<'a> {
    /// The memory that this side sends into; `None`: the lane was not open when the lock was taken.
    #[inline(always)]
    pub fn lane(&self) -> Option<LaneView<'a>> {
        self.lane
    }
}

impl Deref for TxGuard<'_> {
    type Target = Tx;
    #[inline(always)]
    fn deref(&self) -> &Tx {
        // SAFETY: tx_lock is held, so no other guard of this state exists; this one is borrowed for as long as the reference lives.
        unsafe { &*self.shared.tx.get() }
    }
}

impl DerefMut for TxGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Tx {
        // SAFETY: tx_lock is held, so no other guard of this state exists; this one is borrowed mutably.
        unsafe { &mut *self.shared.tx.get() }
    }
}

impl Drop for TxGuard<'_> {
    /// Publishes how far the stream has been sent, before the lock is released.
    #[inline(always)]
    fn drop(&mut self) {
        let sent = self.offset();
        self.shared.tx_sent.store(sent, Ordering::Relaxed);
    }
}
