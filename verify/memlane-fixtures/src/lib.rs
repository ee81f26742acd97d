//! What the tests of several crates share. It is a development dependency, never a part of a program.
//!
//! | module | what it gives a test |
//! |---|---|
//! | [`random`] | a seeded generator of numbers |
//! | [`golden`] | hex dumps as the documents in docs/formats show them |
//! | [`mainline`] | what mainline's RNBD client and server said to each other |
//! | [`guest`] | a small Linux in QEMU |
//! | [`frames`] | frames that can be told apart |
//! | [`world`] | a queue of the packet lane with both its ends in one process |
//! | [`script`] | that queue's memory by its format document, and an oracle of what a back must see |

pub mod frames;
pub mod golden;
pub mod mainline;
pub mod random;
pub mod script;
pub mod world;

pub use memlane_guest as guest;
