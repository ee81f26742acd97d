//! What most tests of introductions begin with.

use crate::blocks::skip;
use crate::containers::{Agent, Between, Networks};
use crate::harness::plain_only;

/// An agent and two network namespaces. `None`, and a word on standard error, where they cannot be.
///
/// # Panics
/// As of `skip`.
pub fn scene(test: &str, between: Between) -> Option<(Agent, Networks)> {
    if plain_only() {
        return None;
    }
    let networks = Networks::new(between).map_err(|why| skip(test, &why));
    let agent = Agent::start(test).map_err(|why| skip(test, &why));
    Some((agent.ok()?, networks.ok()?))
}
