//! A world out of one number: clients and a server of the transport lane over links that are late, stall, lose and
//! break, with ends that are killed and a backend that is slow or stuck; and an oracle that believes none of them.
//!
//! | room | what |
//! |---|---|
//! | [`rng`] | everything that happens by chance |
//! | [`net`] | wires and links: in order or not at all, between links in any order |
//! | [`world`] | the clock, both drivers, the backend |
//! | `world/user` | what is asked for, and what came of it |
//! | `memory` | the chunks of the server's sessions |
//! | [`report`] | what happened, to see that worlds are not dull |
//! | [`faults`] | what goes wrong, and when it is mended |
//! | [`oracle`] | was each block a register, and was anything executed twice? |

pub mod faults;
mod memory;
pub mod net;
pub mod oracle;
pub mod report;
pub mod rng;
pub mod world;
