//! Connections of parents to their agents, which forked children keep open.

use core::sync::atomic::{AtomicI32, Ordering};

/// Their descriptors; 0: a free place. Written in the child of a fork, which has one thread, and where a descriptor gets another
/// number.
static AGENTS: [AtomicI32; 8] = [const { AtomicI32::new(0) }; 8];

/// Keeps the parent's connection to its agent open in the child of a fork, for as long as the child lives: the agent gives memory
/// that is shared with another machine to others when nobody has the connection any more, and the child has the memory mapped.
pub fn keep_agent(n: i32) {
    if let Some(place) = AGENTS.iter().find(|p| p.load(Ordering::Relaxed) == 0) {
        place.store(n.max(0), Ordering::Relaxed);
    }
}

/// Is descriptor `n` such a connection?
pub(super) fn is_kept(n: i32) -> bool {
    AGENTS
        .iter()
        .any(|place| place.load(Ordering::Relaxed) == n)
}

/// Notes that a hidden descriptor has got another number; −1: it is gone.
pub(super) fn renumbered(n: i32, new: i32) {
    for agent in &AGENTS {
        let _ = agent.compare_exchange(n, new.max(0), Ordering::Relaxed, Ordering::Relaxed);
    }
}
