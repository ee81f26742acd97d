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

/// Fills in [`Flow::ring_used`] of every connection in `survey.processes`, [`Flow::ring_window`] of what it receives, and who
/// its peer is. They stay as they are where the other end's page could not be read.
pub fn measure(survey: &mut Survey) {
    let ends = Ends::of(survey);
    let peers: Vec<Vec<Option<(u32, String)>>> = survey
        .processes
        .iter()
        .map(|process| {
            let peer = |conn: &Conn| {
                ends.other(process, conn)
                    .map(|(p, _)| (p.pid, p.comm.clone()))
            };
            process.page.conns.iter().map(peer).collect()
        })
        .collect();
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
    for (process, peers) in survey.processes.iter_mut().zip(peers) {
        for (conn, peer) in process.page.conns.iter_mut().zip(peers) {
            match peer {
                Some((pid, comm)) => (conn.peer_pid, conn.peer_comm) = (pid, comm),
                // A number of another pid namespace says nothing here.
                None if process.pid != process.page.pid => conn.peer_pid = 0,
                None => {}
            }
        }
    }
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

/// One end of a connection.
type End<'a> = (&'a Process, &'a Conn);

/// Connections by the name of their lane, and by local and remote address.
struct Ends<'a> {
    by_lane: HashMap<u64, Vec<End<'a>>>,
    by_address: HashMap<(SocketAddr, SocketAddr), Vec<End<'a>>>,
}

impl<'a> Ends<'a> {
    fn of(survey: &'a Survey) -> Ends<'a> {
        let mut ends = Ends {
            by_lane: HashMap::new(),
            by_address: HashMap::new(),
        };
        for process in survey.processes.iter().chain(&survey.bystanders) {
            for conn in &process.page.conns {
                let end = (process, conn);
                if conn.lane != 0 {
                    ends.by_lane.entry(conn.lane).or_default().push(end);
                }
                if let Some(addresses) = conn.addresses {
                    ends.by_address.entry(addresses).or_default().push(end);
                }
            }
        }
        ends
    }

    /// The other end of a connection: the one with the same lane. A page of an older release does not name lanes. There,
    /// another network namespace may have the same addresses, so both ends must also name each other's process. `None`: no
    /// connection fits, or more than one does.
    fn other(&self, process: &Process, conn: &Conn) -> Option<End<'a>> {
        let is_itself = |end: &End<'a>| end.0.pid == process.pid && end.1.index == conn.index;
        if conn.lane != 0 {
            let ends = self.by_lane.get(&conn.lane)?;
            return only(ends.iter().filter(|end| !is_itself(end)));
        }
        let (local, peer) = conn.addresses?;
        let ends = self.by_address.get(&(peer, local))?;
        only(ends.iter().filter(|(other, end)| {
            is_named(other, conn.peer_pid) && is_named(process, end.peer_pid)
        }))
    }
}

/// The first, if there is no second.
fn only<'e, 'a: 'e>(mut ends: impl Iterator<Item = &'e End<'a>>) -> Option<End<'a>> {
    let one = ends.next()?;
    ends.next().is_none().then_some(*one)
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
