//! The agent: it introduces the two ends of one TCP connection to each other, across network namespaces and NAT.
//!
//! Within one network namespace, two processes find each other by the connection's addresses, and the kernel says whether a
//! claim is true. Between two namespaces neither works: addresses are translated on the way, and may be the same in two
//! honest networks. What stays the same is the connection's two initial sequence numbers, 64 random bits that both ends'
//! kernels hold. The agent reads them for whoever asks, from outside of both, and gives the two that have the same numbers
//! the two ends of a private channel. It holds no stream, keeps no duplicate of a socket, and tells nobody the numbers.
//!
//! | room | what |
//! |---|---|
//! | [`bpf`] | BPF programs, put together and loaded without a compiler |
//! | [`kernel`] | what the kernel knows of another process's sockets |
//! | [`pairs`] | which two sockets are the ends of one connection |
//! | [`party`] | what the processes of one container may ask |
//! | [`folder`] | which directories of a folder are domains |
//! | [`across`] | processes of other machines |
//! | [`server`] | the agent's sockets |
//!
//! ```no_run
//! use memlane_agent::{kernel::Looker, server::Agent};
//! use std::{path::Path, time::Duration};
//!
//! let mut agent = Agent::new(Looker::open()?)?;
//! agent.serve(Path::new("/run/memlane/default"))?;
//! loop {
//!     agent.turn(Duration::from_secs(1))?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod across;
pub mod bpf;
pub mod folder;
pub mod kernel;
pub mod pairs;
pub mod party;
pub mod server;
