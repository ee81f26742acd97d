//! Programs in several network namespaces, and the agent that introduces them to each other.

mod agent;
mod cgroup;
mod container;
mod docker;
mod engine;
mod machines;
mod many;
mod networks;
pub mod root;
mod scene;

pub use agent::Agent;
pub use cgroup::{Cgroup, Hierarchy};
pub use container::Container;
pub use docker::Docker;
pub use engine::{Engine, Lane, Server, upgraded};
pub use machines::Machines;
pub use many::Many;
pub use networks::{Between, Networks, in_namespace};
pub use scene::scene;
