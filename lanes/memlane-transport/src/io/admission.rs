//! How many connections a server lets in, of all and of each peer.

use memlane_wait::mutex::lock;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What strangers may use up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of all.
    pub connections: usize,
    /// Connections of one address, or one user of this host.
    pub per_peer: usize,
    /// Connections that have not said yet what they want, or who they are.
    pub half_open: usize,
    /// Those of one address, or one user of this host.
    pub half_open_per_peer: usize,
    /// How long they may take to.
    pub handshake: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 4096,
            per_peer: 1024,
            half_open: 256,
            half_open_per_peer: 64,
            handshake: Duration::from_secs(5),
        }
    }
}

/// The identity of a peer, for limits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Peer {
    Host(IpAddr),
    User(u32),
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    all: usize,
    each: HashMap<Peer, usize>,
}

/// A place among the connections that a server may have; given back when dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    counts: Arc<Mutex<Counts>>,
    pub(super) peer: Peer,
}

impl ConnectionSlot {
    pub(super) fn take(
        counts: &Arc<Mutex<Counts>>,
        peer: Peer,
        limits: &Limits,
    ) -> Option<ConnectionSlot> {
        let mut held = lock(counts);
        let each = held.each.get(&peer).copied().unwrap_or(0);
        if held.all >= limits.connections || each >= limits.per_peer {
            return None;
        }
        held.all += 1;
        *held.each.entry(peer.clone()).or_insert(0) += 1;
        let counts = Arc::clone(counts);
        Some(ConnectionSlot { counts, peer })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut held = lock(&self.counts);
        held.all -= 1;
        if let Some(each) = held.each.get_mut(&self.peer) {
            *each -= 1;
            if *each == 0 {
                held.each.remove(&self.peer);
            }
        }
    }
}
