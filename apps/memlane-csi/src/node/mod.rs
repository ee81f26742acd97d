//! The service *Node*: a volume is mapped and mounted where the orchestrator wants it.
//!
//! *Staging* maps the volume with `memlane map`, makes a file system on an empty one, and mounts it at one place of the node.
//! *Publishing* shows that place, or the device, to a pod by a bind mount. Each call looks at the table of mounts and at the
//! list of mapped volumes, and does what is missing. A mapping whose process was killed is found and mended by the next call.

mod array;
mod calls;
mod format;
mod gauges;
mod health;
mod lane;
mod mapping;
mod mirror;
mod mounts;
mod present;
mod service;
mod superblock;

use std::collections::HashMap;
use std::path::PathBuf;

pub use self::lane::{Lanes, Shared};
use self::mapping::Wanted;
pub use self::mapping::{Memlane, NAME, SERVERS, servers_of};
use self::mirror::Notes;
use self::present::Seen;
pub use self::service::Service;
use crate::busy::Busy;
use crate::capability::Capability;
use crate::volume_id::VolumeId;

/// What a node plugin works with.
pub struct Node {
    /// The node's identifier.
    pub id: String,
    /// What the orchestrator is told about where this node is.
    pub topology: HashMap<String, String>,
    /// How to run `memlane`.
    pub memlane: Memlane,
    /// Where lane volumes come from.
    pub lanes: Lanes,
    busy: Busy,
    seen: Seen,
    notes: Notes,
}

/// What a call says about a volume that is to be used.
struct Use {
    id: VolumeId,
    wanted: Wanted,
    capability: Capability,
    staging: PathBuf,
}

impl Node {
    /// A node without calls.
    #[must_use]
    pub fn new(
        id: String,
        topology: HashMap<String, String>,
        memlane: Memlane,
        lanes: Lanes,
    ) -> Node {
        Node {
            id,
            topology,
            memlane,
            lanes,
            busy: Busy::default(),
            seen: Seen::default(),
            notes: Notes::default(),
        }
    }
}
