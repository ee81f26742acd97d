//! Programs in several network namespaces, and the agent that introduces them to each other.

mod agent;
mod networks;

pub use agent::Agent;
pub use networks::{Between, Networks};
