//! Programs in several network namespaces, and the agent that introduces them to each other.

mod agent;
mod cgroup;
mod container;
mod many;
mod networks;

pub use agent::Agent;
pub use cgroup::{Cgroup, Hierarchy};
pub use container::Container;
pub use many::Many;
pub use networks::{Between, Networks, in_namespace};
