//! The descriptors of a poll or select that are no connections, while the call sleeps in pieces.
//!
//! The kernel is woken by what a number meant when the call began, and looks then at what it means. So where another thread closes
//! one of them between two pieces, the call leaves its number out from then on. When something else ends the wait, it looks at it
//! once more.

use crate::state::process;
use crate::state::thread;
use libc::{c_int, pollfd};

/// The most strangers of a call. One that has more does not sleep in pieces.
const MOST: usize = 32;

/// A number, and how often it had been closed when the call first slept.
type Stranger = (c_int, u32);

/// The strangers of a call.
#[expect(
    clippy::large_enum_variant,
    reason = "it lies on the stack of the one call that needs it"
)]
pub(super) enum Strangers {
    /// The call has not slept yet.
    Unknown,
    /// No other thread can close any.
    Alone,
    /// A list, and how many of its places are used.
    Known([Stranger; MOST], usize),
}

impl Strangers {
    /// Notes what the strangers are, once. `false`: they are too many, or their numbers too high.
    pub(super) fn know(&mut self, numbers: impl Iterator<Item = c_int>) -> bool {
        if !matches!(self, Strangers::Unknown) {
            return true;
        }
        if thread::is_alone() {
            *self = Strangers::Alone;
            return true;
        }
        let mut known = [(-1, 0); MOST];
        let mut len = 0;
        for n in numbers {
            let (Some(place), Some(closes)) = (known.get_mut(len), process::closes(n)) else {
                return false;
            };
            *place = (n, closes);
            len += 1;
        }
        *self = Strangers::Known(known, len);
        true
    }

    /// Those that have been closed meanwhile.
    pub(super) fn closed(&self) -> impl Iterator<Item = c_int> {
        let (known, len) = match self {
            Strangers::Known(known, len) => (&known[..], *len),
            Strangers::Unknown | Strangers::Alone => (&[][..], 0),
        };
        let is_closed = |&&(n, before): &&Stranger| process::closes(n) != Some(before);
        known[..len].iter().filter(is_closed).map(|(n, _)| *n)
    }

    /// Has any of them been closed meanwhile?
    pub(super) fn is_any_closed(&self) -> bool {
        self.closed().next().is_some()
    }

    /// Takes those out of the list that have been closed meanwhile.
    pub(super) fn leave_out_closed(&self, list: &mut [pollfd]) {
        for n in self.closed() {
            let same = list.iter_mut().filter(|p| p.fd == n);
            same.for_each(|p| (p.fd, p.revents) = (-1, 0));
        }
    }
}
