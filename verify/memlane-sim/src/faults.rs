//! Faults: what goes wrong in a world, and when it is repaired.

use crate::net::Way;
use crate::rng::Rng;
use memlane_transport::engine::Time;

/// One thing that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A wire holds everything back for a while.
    Stall(usize, Time),
    /// A wire holds one connection of each path back, and no other.
    StallOne(usize, u16, Time),
    /// A wire silently loses what is sent, in one direction or both.
    Hole(usize, Option<Way>, Time),
    /// A wire breaks, and both ends notice.
    Cut(usize, Time),
    /// The backend is stuck for a while with what it begins now.
    Stuck(Time),
    /// The server dies, and is back after a while.
    KillServer(Time),
    /// The client dies; another one begins.
    KillClient,
    /// A path is removed, and one over the same wire added.
    Replace(usize),
    /// An end's process is stopped for a while: what comes meanwhile waits for it.
    Stop(End, Time),
}

/// One of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// What goes wrong in a world: when, and what.
#[must_use]
pub fn plan(rng: &mut Rng, wires: usize, until: Time) -> Vec<(Time, Fault)> {
    let count = 2 + rng.below(9);
    let most = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
    let mut plan = Vec::new();
    for _ in 0..count {
        let at = rng.micros(0, most);
        let wire = usize::try_from(rng.below(wires as u64)).unwrap_or(0);
        let long = rng.micros(1_000, 500_000);
        let fault = match rng.below(14) {
            0..=1 => Fault::Stall(wire, long),
            2..=3 => Fault::StallOne(wire, if rng.chance(30) { 0 } else { 1 }, long),
            4..=5 => Fault::Hole(wire, one_way(rng), long),
            6..=7 => Fault::Cut(wire, long),
            8..=10 => Fault::Stuck(long),
            11 => Fault::Stop(End::Client, long),
            12 => Fault::Stop(End::Server, long),
            _ => Fault::Replace(wire),
        };
        plan.push((at, fault));
    }
    plan
}

/// The client's process is stopped now and then, while its questions are under way by wires that hold back what comes
/// until it has been back for a moment. Nothing else goes wrong.
#[must_use]
pub fn stops(rng: &mut Rng, wires: usize) -> Vec<(Time, Fault)> {
    // Less than the peer is given, from the first question on.
    let (before, after) = (Time::from_millis(85), Time::from_millis(5));
    let mut plan = Vec::new();
    for begin in [0, 250, 500, 750] {
        let at = Time::from_millis(begin) + rng.micros(0, 20_000);
        // Together less than it is until the next one.
        let long = rng.micros(60_000, 100_000);
        let stalls = |wire| (at, Fault::Stall(wire, before + long + after));
        plan.extend((0..wires).map(stalls));
        plan.push((at + before, Fault::Stop(End::Client, long)));
    }
    plan
}

/// Which end dies after how many steps of a world.
#[must_use]
pub fn kills(rng: &mut Rng) -> Vec<(u64, Fault)> {
    let mut kills = Vec::new();
    for _ in 0..rng.below(3) {
        let fault = match rng.below(3) {
            0 => Fault::KillClient,
            _ => Fault::KillServer(rng.micros(1_000, 300_000)),
        };
        kills.push((rng.below(3_000), fault));
    }
    kills
}

fn one_way(rng: &mut Rng) -> Option<Way> {
    match rng.below(3) {
        0 => Some(Way::Up),
        1 => Some(Way::Down),
        _ => None,
    }
}
