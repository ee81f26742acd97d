//! epoll over two lanes.
//!
//! The program's epoll set is the kernel's own, always. Beside it, an [`Ep`]
//! keeps for each *registered connection* what the program asked for. A wait
//! looks at the connections whose peers have set a ready bit (not at all of
//! them), spins a little, then parks every awake connection of the set and
//! sleeps in the kernel, where TCP wakes it.
//!
//! Two intrusive lists per set, guarded by its lock: *ready* (may have
//! something to report) and *hot* (awake: to be parked before a sleep); and
//! *dirty*: registrations whose `EPOLL_CTL_MOD` the kernel has not been told,
//! because nobody has slept since.
//!
//! Lock order: a connection's `rx_lock` is never waited for while … it is:
//! parking takes `rx_lock` under the set's lock, so whoever holds `rx_lock`
//! only *tries* a set's lock (`may_wake`).

// Indices and descriptor numbers: bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod ctl;
mod oneshot;
mod waiter;

pub use ctl::{ctl, is_waited_for};
pub use waiter::{Sleep, wait};

use crate::protocol::group;
use crate::protocol::lane::{self, Parked, trim};
use crate::real;
use crate::state::conn::{Conn, RxMode, TxMode};
use crate::state::process::{self, ConnRef, PROCESS};
use crate::state::sets::*;
use crate::state::spin::{self, Spun};
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event};
use memlane_core::reason::Reason;
use memlane_core::stats::Counter;
use memlane_sys::time::ticks;

const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32;
const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
const WAKEUP: u32 = libc::EPOLLWAKEUP as u32;

/// Kinds of registration that ring readiness does not follow.
const NOT_OURS: u32 = EXCLUSIVE | WAKEUP;

/// While the rings keep a wait busy, the kernel's side of the set (listeners,
/// timers, plain sockets, ends of streams) is looked at this often.
const KERNEL_EVERY_US: u64 = 50;
/// … and at least every so many waits.
const KERNEL_EVERY_WAITS: u32 = 64;
/// A wait that spins asks it this often.
const KERNEL_EVERY_SPIN_US: u64 = 10;

fn reg_conn(reg: &Reg) -> Option<&'static Conn> {
    process::conn_at(reg.number.load(Ordering::Relaxed) as usize / REGS)
}
