//! Computes how full the rings are.
//!
//! The bytes in a ring are what one end has sent into it, less what the other end has taken out. No process keeps this
//! number: the sender's page has one half of it, and the receiver's page the other.

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;

use crate::page::{Conn, Flow};
use crate::processes::{Process, Survey};

/// Times that a busy ring is read, until nothing was taken between two readings.
const LOOKS: usize = 8;

/// Fills in [`Flow::ring_used`] of every connection in `survey.processes`, and [`Flow::ring_window`] of what it receives.
/// Both stay `None` where the other end's page could not be read.
pub fn measure(survey: &mut Survey) {
    let ends = Ends::of(survey);
    let windows: Vec<Vec<Option<u32>>> = survey
        .processes
        .iter()
        .map(|process| {
            let window = |conn: &Conn| ends.other(process, conn)?.1.tx.ring_window;
            process.page.conns.iter().map(window).collect()
        })
        .collect();
    let used: Vec<Vec<[Option<u32>; 2]>> = survey
        .processes
        .iter()
        .map(|process| used_by(process, &ends))
        .collect();
    for ((process, used), windows) in survey.processes.iter_mut().zip(used).zip(windows) {
        let conns = process.page.conns.iter_mut();
        for ((conn, [tx, rx]), window) in conns.zip(used).zip(windows) {
            conn.tx.ring_used = tx;
            conn.rx.ring_used = rx;
            conn.rx.ring_window = window.map(|window| window.min(conn.rx.ring_size));
        }
    }
}

/// Bytes in the rings of each connection of a process: what it sends, and what it receives.
fn used_by(process: &Process, ends: &Ends<'_>) -> Vec<[Option<u32>; 2]> {
    let file = process.reopen();
    let of = |conn: &Conn| {
        if conn.tx.ring_size == 0 && conn.rx.ring_size == 0 {
            return [Some(0); 2];
        }
        let both = file.as_ref().zip(ends.other(process, conn));
        let both = both.and_then(|(file, (peer, end))| Some((file, peer.reopen()?, end)));
        let Some((own, peer, end)) = both else {
            return [&conn.tx, &conn.rx].map(|flow| (flow.ring_size == 0).then_some(0));
        };
        [
            in_ring(&conn.tx, &Watched(own, conn), &Watched(&peer, end)),
            in_ring(&conn.rx, &Watched(&peer, end), &Watched(own, conn)),
        ]
    };
    process.page.conns.iter().map(of).collect()
}

/// Connections by local and remote address.
struct Ends<'a>(HashMap<(SocketAddr, SocketAddr), Vec<(&'a Process, &'a Conn)>>);

impl<'a> Ends<'a> {
    fn of(survey: &'a Survey) -> Ends<'a> {
        let mut ends: HashMap<_, Vec<_>> = HashMap::new();
        for process in survey.processes.iter().chain(&survey.bystanders) {
            for conn in &process.page.conns {
                if let Some(addresses) = conn.addresses {
                    ends.entry(addresses).or_default().push((process, conn));
                }
            }
        }
        Ends(ends)
    }

    /// The other end of a connection. Another network namespace may have the same addresses, so both ends must also name
    /// each other's process. `None`: no connection fits, or more than one does.
    fn other(&self, process: &Process, conn: &Conn) -> Option<(&'a Process, &'a Conn)> {
        let (local, peer) = conn.addresses?;
        let mut found = self.0.get(&(peer, local))?.iter().filter(|(other, end)| {
            is_named(other, conn.peer_pid) && is_named(process, end.peer_pid)
        });
        let one = found.next()?;
        found.next().is_none().then_some(*one)
    }
}

/// Whether `pid` is the process's id as this program sees it, or its id in its own pid namespace.
fn is_named(process: &Process, pid: u32) -> bool {
    pid != 0 && (pid == process.pid || pid == process.page.pid)
}

/// A connection whose entry can be read again.
struct Watched<'a>(&'a File, &'a Conn);

impl Watched<'_> {
    fn now(&self) -> Option<Conn> {
        self.1.again(self.0)
    }
}

/// Bytes in the ring `flow`, from its sender's page and its receiver's page.
fn in_ring(flow: &Flow, sender: &Watched<'_>, receiver: &Watched<'_>) -> Option<u32> {
    if flow.ring_size == 0 {
        return Some(0);
    }
    let taken = || Some(receiver.now()?.rx.ring_bytes);
    let sent = || Some(sender.now()?.tx.ring_bytes);
    settle(flow.ring_size, taken, sent)
}

/// Computes sent minus taken, from two pages that cannot be read at one moment. It reads what was sent between two
/// readings of what was taken. If these two are equal, the result is exact; if they never are, the result is a lower
/// bound of what was in the ring at one moment.
fn settle(
    size: u32,
    taken: impl Fn() -> Option<u64>,
    sent: impl Fn() -> Option<u64>,
) -> Option<u32> {
    let mut used = 0;
    let mut before = taken()?;
    for _ in 0..LOOKS {
        let sent = sent()?;
        let after = taken()?;
        used = sent.saturating_sub(after).min(size.into());
        if before == after {
            break;
        }
        before = after;
    }
    u32::try_from(used).ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_quiet_ring_is_measured_exactly_and_never_beyond_its_size() {
        assert_eq!(settle(1000, || Some(40), || Some(50)), Some(10));
        assert_eq!(settle(1000, || Some(0), || Some(u64::MAX)), Some(1000));
        assert_eq!(settle(1000, || Some(9), || Some(5)), Some(0));
        assert_eq!(settle(1000, || None, || Some(5)), None);
        assert_eq!(settle(1000, || Some(5), || None), None);
    }

    #[test]
    fn a_ring_that_is_read_meanwhile_is_looked_at_again_but_not_for_ever() {
        let (looks, quiet_after) = (Cell::new(0), 3);
        let taken = || {
            looks.set(looks.get() + 1);
            Some(100 * looks.get().min(quiet_after))
        };
        assert_eq!(settle(1000, taken, || Some(310)), Some(10));
        assert_eq!(looks.get(), quiet_after + 1);

        let restless = Cell::new(0);
        let taken = || {
            restless.set(restless.get() + 100);
            Some(restless.get())
        };
        assert_eq!(settle(1000, taken, || Some(restless.get() + 110)), Some(10));
    }
}
