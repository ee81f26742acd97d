//! The server's half: volumes below a root, opened by sessions, used by their requests.
//!
//! ```text
//!   Shared ── names, who has what open          one for the process
//!     └─ BlockService ── sessions, devices      one for each thread that serves
//!          └─ Engine ── files                   (see crate::store)
//! ```

mod ids;
mod registry;
mod service;
mod shared;

pub use registry::{Counters, OpenerView, Refusal, VolumeView};
pub use service::BlockService;
pub use shared::{Lend, ServerConfig, Shared, Snapshot};
