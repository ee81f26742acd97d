//! Which awake connections are idle. A thread that relies on bells asks this of each of its connections twice a second, and
//! parks those that are, so that their rings can be given back.

use crate::state::conn::Conn;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bit of [`Conn::rx_calls_swept`]: the connection had not been read from when this was last asked.
const ONCE: u64 = 1 << 63;

/// Has the connection not been read from since the last but one time that this was asked?
pub fn is_idle(conn: &Conn) -> bool {
    let calls = conn.rx_calls.load(Ordering::Relaxed) & !ONCE;
    is_twice_the_same(&conn.rx_calls_swept, calls)
}

/// A connection that is read from about as often as it is asked for is not parked for a moment's delay.
fn is_twice_the_same(swept: &AtomicU64, calls: u64) -> bool {
    let before = swept.load(Ordering::Relaxed);
    if before & !ONCE != calls {
        swept.store(calls, Ordering::Relaxed);
        return false;
    }
    swept.store(calls | ONCE, Ordering::Relaxed);
    before & ONCE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_idle_when_two_questions_in_a_row_find_nothing_new() {
        let swept = AtomicU64::new(0);
        let idle =
            [7, 7, 8, 8, 9, 9, 9, 9, 10, 10, 10].map(|calls| is_twice_the_same(&swept, calls));
        let expected = [6, 7, 10].map(|n: usize| n);
        for (n, idle) in idle.into_iter().enumerate() {
            assert_eq!(idle, expected.contains(&n), "question {n}");
        }
    }
}
