//! A world made from one number: clients and a server of the transport lane over links that are late, stall, lose and
//! break, with ends that are killed and a backend that is slow or stuck; and an oracle that trusts none of them.
//!
//! | room | what |
//! |---|---|
//! | [`rng`] | the random numbers |
//! | [`net`] | wires and links, each in order; different links in any order |
//! | [`world`] | the clock, both drivers, the backend |
//! | `world/user` | requests, and their results |
//! | `memory` | the chunks of the server's sessions |
//! | [`report`] | counts of what happened, which show that worlds are not dull |
//! | [`faults`] | what goes wrong, and when it is repaired |
//! | [`oracle`] | was each block a register, and was anything executed twice? |

pub mod faults;
mod memory;
pub mod net;
pub mod oracle;
pub mod report;
pub mod rng;
pub mod world;
