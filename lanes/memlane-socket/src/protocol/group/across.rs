//! Groups of processes on other machines: both chunks lie in a region that the two machines share, where the agents have
//! allotted them.
//!
//! Such a chunk has no file of its own, no bell, and no futex wakes its sleepers: a receiver that sleeps parks, and the next
//! bytes come by TCP. Each direction has one chunk, so two processes have [`SLOTS`](memlane_core::layout::SLOTS) lanes at most.

use super::{BY_AGENT, drop_group, find, is_ours_to_read, is_over, keep_life_line};
use super::{Locked, NOT_TOLD, OwnChunk, PeerChunk, PeerDmb, sweep};
use super::{show_chunk, write_header};
use crate::faults::{self, Step};
use crate::protocol::agent::{Across, Parting};
use crate::protocol::board::BOARDS;
use crate::state::process::PROCESS;
use crate::state::sets::Sleeper;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use memlane_core::layout::{self, ChunkHeader, ring_size_ok};
use memlane_core::reason::Reason;
use memlane_core::region::Region;
use memlane_sys::fd::Fd;
use memlane_sys::{mem, sock, time};

/// Does the process of this group run on another machine?
pub fn is_across(locked: &mut Locked<'_>, group: u32) -> bool {
    locked.groups()[group as usize].across.is_some()
}

/// Groups whose process is on another machine. Written under the groups' lock, and by the only thread of a fork's child. Read
/// without it: whoever reads an old number lets go a call later.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Has this process memory that it shares with another machine?
pub fn shares_with_machines() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Drops groups whose process is gone, if there are any of other machines: the memory of those serves nobody else until then.
pub fn let_go_of_the_gone() {
    if shares_with_machines()
        && let Some(mut locked) = super::lock()
    {
        sweep(&mut locked);
    }
}

/// The child of a fork has forgotten its parent's groups.
pub(super) fn forget_all() {
    COUNT.store(0, Ordering::Relaxed);
}

/// Notes what the agent says of a process on another machine: maps the two chunks, unless they are mapped. `line`: one end of
/// a life line to that process.
pub fn meet(
    locked: &mut Locked<'_>,
    told: &Across,
    region: &Fd,
    line: Option<Fd>,
) -> Result<(), Reason> {
    let group = find(locked, told.peer, BY_AGENT)?;
    let known = locked.groups()[group as usize].across;
    let is_same = |known: &Across| {
        (known.own, known.theirs, known.ring_size) == (told.own, told.theirs, told.ring_size)
    };
    match known {
        Some(known) if is_same(&known) => {}
        // The agents have allotted other memory since. What is in use stays in use; nothing new begins there.
        Some(_) if !is_over(&locked.groups()[group as usize], time::now_ns()) => {
            return Err(Reason::AGENT);
        }
        Some(_) => {
            drop_group(locked, group);
            return meet(locked, told, region, line);
        }
        None => {
            map(locked, group, told, region)?;
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
    }
    locked.groups()[group as usize].across = Some(*told);
    if let Some(end) = line {
        keep_life_line(locked, group, end, [false, true], None);
    }
    Ok(())
}

fn map(locked: &mut Locked<'_>, group: u32, told: &Across, region: &Fd) -> Result<(), Reason> {
    let len = layout::chunk_len(told.ring_size as usize);
    let apart = told.own.abs_diff(told.theirs) >= len as u64;
    if !ring_size_ok(told.ring_size as usize) || !apart {
        return Err(Reason::AGENT);
    }
    let own_at = locked.free_own().ok_or(Reason::MAX_DMB)?;
    let their_at = locked.free_peer().ok_or(Reason::MAX_DMB)?;
    let own = Region::window(region, told.own, len).map_err(|_| Reason::MEMORY)?;
    let Ok(theirs) = Region::window(region, told.theirs, len) else {
        // SAFETY: the whole mapping, which nobody has seen yet.
        unsafe { mem::unmap(own, len) };
        return Err(Reason::MEMORY);
    };
    place_own(locked, own_at, group, (own, told.ring_size));
    locked.peers()[their_at] = PeerChunk {
        group,
        id: NOT_TOLD,
        ring_size: told.ring_size,
        base: Some(theirs),
        bell: 0,
    };
    Ok(())
}

fn place_own(locked: &mut Locked<'_>, i: usize, group: u32, (base, ring_size): (NonNull<u8>, u32)) {
    write_header(base, ring_size);
    locked.own()[i] = OwnChunk {
        group,
        ring_size,
        acked: true,
        ..OwnChunk::NONE
    };
    BOARDS[i].sleeper.set(Sleeper::NOBODY);
    BOARDS[i].is_to_arrive.store(0, Ordering::Relaxed);
    BOARDS[i].is_across.store(1, Ordering::Relaxed);
    show_chunk(i, base, ring_size);
    faults::at(Step::ChunkMade);
}

/// The chunk that the agent has shown, which the peer now names. `None`: there is none, or the peer has not made it yet.
pub(super) fn adopt(locked: &mut Locked<'_>, group: u32, told: &PeerDmb) -> Option<usize> {
    let shown = |c: &PeerChunk| c.base.is_some() && c.group == group && c.id == NOT_TOLD;
    let at = locked.used_peers().iter().position(shown)?;
    let chunk = &mut locked.peers()[at];
    // SAFETY: a page-aligned mapping larger than the header; atomics only.
    let header = unsafe { chunk.base?.cast::<ChunkHeader>().as_ref() };
    if !is_ours_to_read(header) {
        return None;
    }
    header.ready.rings.store(0, Ordering::Release);
    chunk.id = told.chunk;
    Some(at)
}

/// Tells the agent that the memory shared with a process of another machine is not mapped here any more.
pub(super) fn part(across: &Across) {
    COUNT.fetch_sub(1, Ordering::Relaxed);
    tell(across.peer, across.serial);
}

/// Answers an introduction that has come for a connection which is gone: the memory was not mapped for it.
pub fn decline(locked: &mut Locked<'_>, told: &Across) {
    let is_peers = |g: &&mut super::Group| g.gid == told.peer && g.pid == BY_AGENT;
    let known = locked.used_groups().iter_mut().find(is_peers);
    match known.and_then(|g| g.across.as_mut()) {
        Some(across) => across.serial = told.serial,
        None => tell(told.peer, told.serial),
    }
}

fn tell(peer: u64, serial: u32) {
    let agent = PROCESS.agent.load(Ordering::Acquire);
    if agent >= 0 {
        let parting = Parting { peer, serial };
        let _ = sock::send_to_peer(agent, &parting.encode(), &[]);
    }
}
