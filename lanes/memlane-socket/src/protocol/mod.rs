//! What two processes do together: the messages of the handshake ([`wire`]), the memory that they share ([`group`] and [`board`]),
//! the two lanes of a connection ([`lane`]), and the upgrade from plain TCP ([`upgrade`]).

pub mod board;
pub mod group;
pub mod lane;
pub mod upgrade;
pub mod wire;
