//! Holds on connections.

use super::reap;
use crate::state::conn::Conn;
use core::sync::atomic::Ordering;

/// A hold on a connection: it is not freed while this lives.
#[derive(Debug)]
pub struct ConnRef(&'static Conn);

impl ConnRef {
    /// Wraps a hold that has been counted.
    pub fn counted(conn: &'static Conn) -> ConnRef {
        ConnRef(conn)
    }

    /// Takes one more hold.
    pub fn another(held: &ConnRef) -> ConnRef {
        held.0.holds.fetch_add(1, Ordering::AcqRel);
        ConnRef(held.0)
    }
}

impl core::ops::Deref for ConnRef {
    type Target = Conn;
    #[inline(always)]
    fn deref(&self) -> &Conn {
        self.0
    }
}

impl ConnRef {
    /// The connection itself. It is valid for as long as the process lives, but its index may be reused once the hold
    /// is gone.
    #[inline(always)]
    pub fn conn(&self) -> &'static Conn {
        self.0
    }
}

impl Drop for ConnRef {
    #[inline]
    fn drop(&mut self) {
        if self.0.holds.fetch_sub(1, Ordering::AcqRel) == 1
            && self.0.closing.load(Ordering::Acquire) != 0
        {
            reap(self.0);
        }
    }
}
