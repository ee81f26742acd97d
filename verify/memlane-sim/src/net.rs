//! Wires and links. A link is one connection over a wire. It delivers in order until it fails, and then delivers
//! nothing more. Different links have no common order.

use crate::rng::Rng;
use memlane_transport::engine::Time;
use memlane_transport::engine::client::Post;
use memlane_transport::engine::path::Conn;

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To the server.
    Up = 0,
    /// To the client.
    Down = 1,
}

/// What travels.
#[derive(Clone, Debug)]
pub enum Frame {
    /// Up: the connection is asked for.
    Connect([u8; 56]),
    /// Down.
    Accept([u8; 56]),
    /// Down.
    Reject([u8; 56]),
    /// A message.
    Send(Vec<u8>),
    /// An immediate.
    Immediate(u32),
    /// Up: a request and its data.
    Post(Post, Vec<u8>),
    /// Down: bytes for the client's memory, then an immediate.
    Reply(Option<(u64, Vec<u8>)>, u32),
    /// Closed by the other end.
    End,
}

/// What connects two machines: one for each path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wire {
    /// Nothing moves before.
    pub stalled: Time,
    /// One connection of each path holds everything back, before.
    pub one: (u16, Time),
    /// What is sent before is lost; up, down.
    pub hole: [Time; 2],
    /// Links break, and none can be made, before.
    pub cut: Time,
    /// What it takes at most, in microseconds.
    pub latency: u64,
}

/// One connection.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Over which wire.
    pub wire: usize,
    /// As the client calls it.
    pub conn: Conn,
    /// Which start of the client, and of the server.
    pub lives: (u32, u32),
    /// Not closed by the client, by the server.
    pub open: [bool; 2],
    /// Something was lost: nothing comes any more; up, down.
    pub lost: [bool; 2],
    /// Broken: what was under way does not arrive either.
    pub broken: bool,
    /// When the last frame arrives; up, down.
    last: [Time; 2],
}

impl Link {
    /// A link that is being made.
    #[must_use]
    pub fn new(wire: usize, conn: Conn, lives: (u32, u32)) -> Self {
        Link {
            wire,
            conn,
            lives,
            open: [true; 2],
            lost: [false; 2],
            broken: false,
            last: [Time::ZERO; 2],
        }
    }

    /// When a frame that is sent now arrives; `None`: never.
    pub fn arrival(&mut self, now: Time, way: Way, wire: &Wire, rng: &mut Rng) -> Option<Time> {
        let way = way as usize;
        self.lost[way] |= now < wire.hole[way] || now < wire.cut;
        if self.lost[way] {
            return None;
        }
        let one = wire.one.1;
        let one = if wire.one.0 == self.conn.cid {
            one
        } else {
            now
        };
        let late = now.max(wire.stalled).max(one) + rng.micros(20, wire.latency);
        // In order; a nanosecond apart, that it can be told.
        let at = late.max(self.last[way] + Time::from_nanos(1));
        self.last[way] = at;
        Some(at)
    }
}
