//! Where the device of a connection over RDMA finds a request's data, or puts what is read.
//!
//! That is the lease itself, if the device reaches it; else the lease's slot in the session's memory, which all devices
//! reach, and a copy.

use super::super::link_error::LinkError;
use super::super::pool::Pool;
use super::super::verbs::Reach;
use super::{Core, Link};
use crate::engine::client::Post;
use crate::engine::path::PathId;
use crate::lease::Lease;
use memlane_core::access::SharedBytes;
use std::sync::Arc;

/// A request's data, as a device has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceData {
    /// Where it is; none if there is none.
    pub(super) bytes: Option<SharedBytes>,
    /// What is read comes to the lease's slot, and is to be copied to the lease.
    pub(super) by_slot: bool,
}

/// The data of a request that goes out by a device. Where it reads, the request then says where to.
pub(super) fn for_device(
    reach: &Reach,
    pool: &Pool,
    lease: &Lease,
    post: &mut Post,
) -> Result<DeviceData, LinkError> {
    // A path that has just come up by another device.
    pool.let_reach(reach)?;
    // A read's tail lies where its data would end.
    let len = if post.into_at.is_some() {
        post.tail_at
    } else {
        post.data
    };
    let part = lease.bytes().part(0, len as usize);
    let home = pool.bytes(lease.number());
    let home = home.and_then(|home| home.part(0, len as usize));
    let reached = part.filter(|part| can_reach(reach, lease, part));
    if let (Some(at), Some(into)) = (post.into_at, reached.or(home)) {
        say_where(reach, &into, &mut post.tail, usize::from(at.get()));
        return Ok(DeviceData {
            bytes: None,
            by_slot: reached.is_none(),
        });
    }
    if let (None, Some(part), Some(home)) = (reached, part, home) {
        // SAFETY: both are mapped for their lengths; a lease that lies elsewhere is no part of its slot.
        unsafe { home.copy_in(0, part.as_ptr(), part.len()) };
    }
    let bytes = reached.or(home).filter(|bytes| !bytes.is_empty());
    Ok(DeviceData {
        bytes,
        by_slot: false,
    })
}

/// Memory of a user's own is registered when it is first met.
fn can_reach(reach: &Reach, lease: &Lease, part: &SharedBytes) -> bool {
    if reach.piece(part).is_some() {
        return true;
    }
    let Some(memory) = lease.memory() else {
        return false;
    };
    // SAFETY: what a session was told of stays mapped as long as it lives (`lease::Memory`).
    let added = unsafe { reach.add(memory.bytes(), None, Arc::new(Arc::clone(memory))) };
    added.is_ok() && reach.piece(part).is_some()
}

/// Writes name and key of `into` where the request describes its destination.
fn say_where(reach: &Reach, into: &SharedBytes, tail: &mut [u8], at: usize) {
    if let Some((name, key)) = reach.name(into)
        && let Some(described) = tail.get_mut(at..at + 12)
    {
        described[..8].copy_from_slice(&name.to_le_bytes());
        described[8..].copy_from_slice(&key.to_le_bytes());
    }
}

impl Core {
    /// A path is up: if it has a device, that may write to leases from now on.
    pub(super) fn let_reach(&mut self, path: PathId) {
        let Some(pool) = &self.pool else {
            return;
        };
        for entry in self.links.iter().flatten() {
            if entry.conn.path == path
                && let Link::Verbs(link) = &entry.link
                && let Some(reach) = link.reach()
                && let Err(error) = pool.let_reach(reach)
            {
                self.failed.push((entry.conn, error.for_path()));
                return;
            }
        }
    }
}
