//! The two engines: what decides. No descriptor, no thread, no clock: time and bytes come in, actions and events come out.
//!
//! A driver calls an engine with what happened, then empties its actions **in their order, before it tells it anything else**,
//! and keeps two promises:
//!
//! - after `Close`, nothing comes by that connection any more: neither a message nor bytes placed in memory;
//! - one connection delivers in order, or not at all any more. Between connections, any order.
//!
//! It hands over what has arrived before it calls `poll`: a process that was stopped must not take its own absence for the peer's.

pub mod backoff;
pub mod client;
mod failover;
pub mod leader;
pub mod memory;
pub mod path;
pub mod permits;
pub mod policy;
pub mod pulse;
pub mod server;

/// Time since any fixed moment, the same for one engine.
pub type Time = std::time::Duration;

/// What a connection delivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inbound<'a> {
    /// A message.
    Send(&'a [u8]),
    /// A message with an immediate.
    SendImmediate(&'a [u8], u32),
    /// An immediate; what was written before it is in place.
    Immediate(u32),
}

/// Which way the data of a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From the server.
    Read,
    /// To the server.
    Write,
}
