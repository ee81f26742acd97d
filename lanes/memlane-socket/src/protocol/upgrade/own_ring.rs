//! A peer's ring that lies in a file of its own.

use crate::protocol::wire::Message;
use crate::state::conn::Handshake;
use memlane_core::layout::ring_size_ok;
use memlane_core::reason::Reason;
use memlane_core::region::Region;
use memlane_sys::fd::Fd;
use memlane_sys::mem;

/// Maps a ring that lies in a file of its own.
pub(super) fn attach(hs: &mut Handshake, m: &Message, file: Option<Fd>) -> Result<*mut u8, Reason> {
    let file = file.ok_or(Reason::MEMORY)?;
    let (len, at) = (m.own_ring as usize, m.own_ring_at);
    if !ring_size_ok(len) || !at.is_multiple_of(mem::PAGE as u64) {
        return Err(Reason::PEER_MISBEHAVED);
    }
    let base = Region::attach_part(&file, at, len).map_err(|_| Reason::MEMORY)?;
    (hs.tx_map, hs.tx_map_len) = (Some(base), len);
    Ok(base.as_ptr())
}

/// Unmaps the ring, when the connection no longer needs it.
pub(super) fn detach(hs: &mut Handshake) {
    if let Some(base) = hs.tx_map.take() {
        // SAFETY: the whole mapping, made in `attach`; nobody sends any more.
        unsafe { mem::unmap(base, hs.tx_map_len) };
    }
}
