//! What two processes do together: the messages of the handshake ([`wire`]) and of questions to the agent ([`agent`]), the
//! memory that they share ([`group`] and [`board`]), the two lanes of a connection ([`lane`]), and the upgrade from plain
//! TCP ([`upgrade`]).

pub mod agent;
pub mod board;
pub mod group;
pub mod lane;
pub mod upgrade;
pub mod wire;
