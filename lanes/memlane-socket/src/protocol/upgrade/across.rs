//! The other end is on another machine: the agent's answer brings the memory that the two machines share.

use crate::protocol::agent::{Across, Outcome};
use crate::protocol::group;
use memlane_core::reason::Reason;
use memlane_sys::sock::Received;

/// Maps what the two processes share. Behind the channel come the region and perhaps a life line.
pub(super) fn met(told: &Across, got: &mut Received) -> Result<(), Reason> {
    let region = got.fds[1].take().ok_or(Reason::AGENT)?;
    let mut locked = group::lock().ok_or(Reason::INTERNAL)?;
    let met = group::meet(&mut locked, told, &region, got.fds[2].take());
    if met.is_err() {
        group::decline(&mut locked, told);
    }
    met
}

/// An answer has come for a connection that does not wait for it any more. The agent hears if nothing was mapped for it.
pub(super) fn missed(outcome: &Outcome) {
    if let Outcome::Across(told) = outcome
        && let Some(mut locked) = group::lock()
    {
        group::decline(&mut locked, told);
    }
}
