//! epoll over the two lanes.
//!
//! The program's epoll set is always the kernel's own. Beside it, an [`Ep`] keeps what the program asked for, for each
//! *registered connection*. A wait looks only at the connections whose peers have set a ready bit. It spins a little,
//! then parks every awake connection of the set and sleeps in the kernel, where TCP wakes it.
//!
//! Each set has three intrusive lists, guarded by its lock: *ready* (may have something to report), *hot* (awake: to be
//! parked before a sleep) and *dirty* (registrations whose `EPOLL_CTL_MOD` the kernel does not know yet, because no
//! thread has slept since).
//!
//! Lock order: parking takes a connection's `rx_lock` under the set's lock. So a thread that holds `rx_lock` only
//! *tries* to take a set's lock (`may_wake`).

// Indices and descriptor numbers are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

pub(super) mod below;
mod ctl;
mod marked;
mod nap;
mod nest;
pub(super) mod nested;
mod oneshot;
mod park;
mod quiet;
mod sleep;
pub(super) mod under;
mod waiter;

pub use ctl::{ctl, ctl_of_connection, is_waited_for};
pub(super) use nest::follow;
pub(super) use waiter::harvest;
#[cfg(test)]
pub(crate) use waiter::tell_sets;
pub use waiter::{Sleep, wait};

use crate::protocol::board;
use crate::protocol::lane::room::{self, Naps};
use crate::protocol::lane::{self, Parked, trim};
use crate::real;
use crate::state::conn::{Conn, RxMode, SEEN_IN_SET, SEEN_OUT};
use crate::state::process::{self, ConnRef, PROCESS};
use crate::state::sets::*;
use crate::state::spin::{self, Spun};
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event};
use memlane_core::reason::Reason;
use memlane_core::stats::Counter;
use memlane_sys::time::ticks;

const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32;
const WAKEUP: u32 = libc::EPOLLWAKEUP as u32;

/// Kinds of registration that the readiness of rings does not follow.
const NOT_OURS: u32 = WAKEUP;

/// While the rings keep a wait busy, it looks at the kernel's side of the set (listeners, timers, plain sockets, ends
/// of streams) this often, in µs …
const KERNEL_EVERY_US: u64 = 50;
/// … and at least once in this many waits.
const KERNEL_EVERY_WAITS: u32 = 64;
/// How often a wait that spins asks the kernel, in µs.
const KERNEL_EVERY_SPIN_US: u64 = 10;

fn reg_conn(reg: &Reg) -> Option<&'static Conn> {
    let index = reg.number.load(Ordering::Relaxed) as usize / REGS;
    process::conn_at(index).or_else(|| process::conn_at(owner_of(reg)?))
}
