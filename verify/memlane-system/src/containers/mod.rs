//! Programs in several network namespaces, and the agent that introduces them to each other.

mod agent;
mod engine;
mod networks;

pub use agent::Agent;
pub use engine::{Engine, Server, upgraded};
pub use networks::{Between, Networks};
