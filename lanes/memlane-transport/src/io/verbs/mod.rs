//! Connections over queue pairs: InfiniBand, RoCE, or whatever else rdma-core has a provider for.
//!
//! A request is one RDMA write with an immediate, from the client's lease into the server's chunk; what was read is one
//! RDMA write with an immediate, from the chunk into the lease. Messages are sends. The wire is mainline RTRS's.
//!
//! | part | what |
//! |---|---|
//! | `link` | one connection: how it comes about, what it carries, how it ends |
//! | `reach` | memory that the peers of a session may write, by each device |
//! | `buffer` | memory of one connection |
//! | `sends` | what waits for the send queue, and what the device still reads |
//! | `receives` | the memory that messages come into |

mod buffer;
mod link;
mod reach;
mod receives;
mod sends;

pub(super) use link::VerbsLink;
pub(super) use reach::{Reach, Reaches};
