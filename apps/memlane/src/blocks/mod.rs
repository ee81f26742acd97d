//! Volumes: `serve`, `map`, `vol`, `session`.
//!
//! | room | what |
//! |---|---|
//! | `serve` | gives volumes out |
//! | `map`, `host`, `face` | the verb; the process behind a session; what a volume is shown as |
//! | `vol`, `session` | ask these processes, and tell them what to do |
//! | `control`, `documents` | how they are asked; what they tell |
//! | `leftovers` | what killed processes leave |
//! | `tls` | certificates |
//! | `spec` | what flags say; `metrics`: Prometheus; `service`: what a service manager wants |

mod control;
mod documents;
mod face;
pub(crate) mod host;
mod leftovers;
pub(crate) mod map;
mod metrics;
pub(crate) mod serve;
mod service;
pub(crate) mod session;
mod spec;
mod tls;
pub(crate) mod vol;

pub(crate) use host::{One, open_one};
pub(crate) use service::bell_of_the_end;
pub(crate) use spec::{Access, duration, size};
