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
use crate::lease::{Detour, Lease};
use memlane_core::access::SharedBytes;

/// A request's data, as a device has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceData {
    /// Where it is; none if there is none.
    pub(super) bytes: Option<SharedBytes>,
    /// What is read comes to the lease's slot, and is to be copied to the lease.
    pub(super) by_slot: bool,
    /// Why it does not go straight to its user's memory.
    pub(super) detour: Option<Detour>,
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
    let home = pool.bytes(lease.number());
    let home = home.and_then(|home| home.part(0, len as usize));
    match post.into_at {
        Some(at) => Ok(to_read(
            reach,
            lease,
            home,
            (usize::from(at.get()), len),
            post,
        )),
        None => Ok(to_write(reach, lease, home, len)),
    }
}

/// Data to be read into the lease, which the request describes at `at`.
fn to_read(
    reach: &Reach,
    lease: &Lease,
    home: Option<SharedBytes>,
    (at, len): (usize, u32),
    post: &mut Post,
) -> DeviceData {
    let named = match lease.memory() {
        Some(memory) => reach
            .name_in(memory, (lease.at(), len as usize))
            .map_err(Some),
        None => {
            let part = lease.bytes().part(0, len as usize);
            part.and_then(|part| reach.name(&part)).ok_or(None)
        }
    };
    let by_home = || home.and_then(|home| reach.name(&home));
    if let Some(named) = named.ok().or_else(by_home) {
        say_where(named, &mut post.tail, at);
    }
    DeviceData {
        bytes: None,
        // A lease beyond the CPU lies in its slot already.
        by_slot: named.is_err() && !lease.is_beyond_cpu(),
        detour: named.err().flatten(),
    }
}

/// Data that is written from the lease.
fn to_write(reach: &Reach, lease: &Lease, home: Option<SharedBytes>, len: u32) -> DeviceData {
    let part = lease.bytes().part(0, len as usize);
    let reached = part.filter(|part| {
        // Memory of a user's own is registered when it is first met.
        let known = lease
            .memory()
            .is_none_or(|memory| reach.know(memory).is_ok());
        known && reach.piece(part).is_some()
    });
    if let (None, Some(part), Some(home)) = (reached, part, home) {
        // SAFETY: both are mapped for their lengths; a lease that lies elsewhere is no part of its slot.
        unsafe { home.copy_in(0, part.as_ptr(), part.len()) };
    }
    DeviceData {
        bytes: reached.or(home).filter(|bytes| !bytes.is_empty()),
        by_slot: false,
        detour: None,
    }
}

/// Writes a name and its key where the request describes its destination.
fn say_where((name, key): (u64, u32), tail: &mut [u8], at: usize) {
    if let Some(described) = tail.get_mut(at..at + 12) {
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
