//! What two processes do together: the bytes of the handshake ([`wire`]) and of questions to the
//! agent ([`agent`]), the memory that they share ([`group`]), the two
//! lanes of a connection ([`lane`]), and the way from plain TCP to them ([`upgrade`]).

pub mod agent;
pub mod group;
pub mod lane;
pub mod upgrade;
pub mod wire;
