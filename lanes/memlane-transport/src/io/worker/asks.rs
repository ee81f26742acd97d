//! What a connection wants of its session's memory, as its first words say.

use crate::port::Identity;
use crate::wire::{CAP_BY_MEMORY, CAP_SHARED_MEMORY, CONN_LEN, ConnReq};

/// What a connection asks for, of the memory of its session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asks {
    /// It carries requests: it is not the first of its path.
    pub(super) carries_requests: bool,
    /// It comes from a process of this host.
    pub(super) is_local: bool,
    /// Its client has memory that machines share.
    pub(super) has_memory: bool,
    /// It is to go by that memory.
    pub(super) by_memory: bool,
}

impl Asks {
    pub(super) fn of(private: &[u8; CONN_LEN], who: &Identity) -> Asks {
        let request = ConnReq::decode(private).ok();
        let caps = request.as_ref().and_then(|request| request.caps);
        let says = |bit| caps.is_some_and(|caps| caps.bits & bit != 0);
        Asks {
            carries_requests: request.is_some_and(|request| request.cid > 0),
            is_local: matches!(who, Identity::Local { .. }),
            has_memory: says(CAP_SHARED_MEMORY),
            by_memory: says(CAP_BY_MEMORY),
        }
    }
}
