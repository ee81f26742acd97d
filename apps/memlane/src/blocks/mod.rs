//! Volumes: `serve`, `map`, `vol`, `session`.
//!
//! | room | what |
//! |---|---|
//! | `serve` | gives volumes out |
//! | `map`, `process` | the verb; the process behind a mapping |
//! | `host` | what such a process holds: a session with a server, or a file of this machine |
//! | `mapping`, `frontend` | a shown volume; what it is shown as |
//! | `vol`, `session` | ask these processes, and tell them what to do |
//! | `requests`, `documents` | what they are asked; what they tell |
//! | `leftovers` | what killed processes leave |
//! | `tls` | certificates |
//! | `spec` | what flags say; `metrics`: what Prometheus is shown |

mod across;
mod documents;
mod frontend;
mod host;
mod leftovers;
pub(crate) mod map;
mod mapping;
mod metrics;
pub(crate) mod process;
mod requests;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod spec;
mod tls;
mod users;
pub(crate) mod vol;

pub(crate) use documents::{Server, Session};
pub(crate) use host::{One, open_one};
pub(crate) use metrics::{of_servers, of_sessions};
pub(crate) use spec::Access;
