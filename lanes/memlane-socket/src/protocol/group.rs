//! Link groups: all connections between this process and one other process.
//!
//! The memory belongs to the pair of processes, not to a connection. Each side makes **chunks** (64 DMBs each, see
//! `memlane_core::layout`) for what it receives from that peer, and attaches the peer's chunks. No other process ever
//! gets a chunk's descriptor, so a hostile peer can disturb only its own connections.
//!
//! `PROCESS.group_lock` guards everything here. What is read without that lock is in `board`.

// Indices and descriptor numbers are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod across;
mod line;
mod tables;

pub use across::{decline, is_across, let_go_of_the_gone, meet, shares_with_machines};
pub use line::{Line, Owed, any_speaks, lines_with_news};
pub use tables::{CHUNKS, GROUPS, Locked, lock};
use tables::{Group, NOT_TOLD, OwnChunk, PeerChunk};

use crate::config::RING_OF_MANY;
use crate::faults::{self, Step};
use crate::protocol::board::{self, BOARD_HIGH, BOARDS};
use crate::protocol::wire;
use crate::state::conn::{Conn, Dmb, SharedState};
use crate::state::idle;
use crate::state::process;
use crate::state::sets::Sleeper;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use memlane_core::layout::{
    self, CHUNK_MAGIC, ChunkHeader, DMB_WORDS_LEN, DMBS_AT, LAYOUT_VERSION, RINGS_AT, ReadyWords,
    SLOTS, TCP_ONLY,
};
use memlane_core::reason::Reason;
use memlane_core::region::Region;
use memlane_core::ring::{Rx, Tx};
use memlane_core::stats::Counter;
use memlane_core::token::Token;
use memlane_sys::fd::Fd;
use memlane_sys::sock::{self, Addr, UnixName};
use memlane_sys::{mem, proc, time};

/// The "process id" of a peer that the agent introduced: its `gid` is the agent's name for it.
pub const BY_AGENT: i32 = -1;

/// A DMB of ours, as a message describes it to the peer.
#[derive(Clone, Copy, Debug)]
pub struct OwnDmb {
    /// Index of the chunk.
    pub chunk: u32,
    /// Slot in that chunk.
    pub slot: u32,
    /// Size of the ring, in bytes.
    pub ring_size: u32,
    /// The DMB's token.
    pub token: Token,
}

/// Finds or makes the group of the peer process (`gid`, `pid`).
pub fn find(locked: &mut Locked<'_>, gid: u64, pid: i32) -> Result<u32, Reason> {
    let groups = locked.used_groups();
    if let Some(i) = groups.iter().position(|g| g.gid == gid && g.pid == pid) {
        return u32::try_from(i).map_err(|_| Reason::INTERNAL);
    }
    sweep(locked);
    let most = faults::groups(GROUPS);
    let i = locked.free_group(most).ok_or(Reason::MAX_DMB)?;
    locked.groups()[i] = Group {
        gid,
        pid,
        idle_since: time::now_ns(),
        ..Group::NONE
    };
    process::count(Counter::LinkGroups, 1);
    u32::try_from(i).map_err(|_| Reason::INTERNAL)
}

/// Detaches a DMB that a peer process has offered for a connection that is gone here, so that it may serve another one.
/// `false`: this process does not know the DMB's chunk.
pub fn let_go(locked: &mut Locked<'_>, gid: u64, pid: i32, told: &PeerDmb) -> bool {
    let groups = locked.used_groups();
    let Some(group) = groups.iter().position(|g| g.gid == gid && g.pid == pid) else {
        return false;
    };
    let attached = attach(locked, group as u32, told, [None, None]);
    if let Ok(a) = &attached {
        detach(a.dmb);
    }
    attached.is_ok()
}

/// Notes that the process of `group` listens on this address and takes Proposals by mail.
pub fn learn_mailbox(locked: &mut Locked<'_>, group: u32, serves: &Addr, name: &[u8]) {
    let g = &mut locked.groups()[group as usize];
    if let Some(place) = g.mailbox.get_mut(..name.len()) {
        place.copy_from_slice(name);
        g.mailbox_len = name.len() as u8;
        g.serves = *serves;
    }
}

/// A peer process that listens on an address and takes Proposals.
pub struct Server {
    /// The name of its mailbox.
    pub mailbox: UnixName,
    /// Its group, if handshakes go over the life line.
    pub line: Option<u32>,
    /// No other process is known to listen there.
    pub alone: bool,
}

/// A process that listens on this address. If there are several, `turn` chooses one.
pub fn server_at(locked: &mut Locked<'_>, address: &Addr, turn: u32) -> Option<Server> {
    let known = |(_, g): &(usize, &Group)| g.conns > 0 && g.mailbox_len > 0 && g.serves == *address;
    let groups = locked.used_groups();
    let many = groups.iter().enumerate().filter(known).count();
    let (at, g) = groups
        .iter()
        .enumerate()
        .filter(known)
        .nth(turn as usize % many.max(1))?;
    Some(Server {
        mailbox: UnixName::abstract_name(&g.mailbox[..usize::from(g.mailbox_len)]).ok()?,
        line: g.line.speaks().then_some(at as u32),
        alone: many == 1,
    })
}

/// Life lines may take this part of the descriptors that the program may have.
const LINES_OF_LIMIT: usize = 16;

fn has_room_for_life_line(locked: &mut Locked<'_>) -> bool {
    let lines = locked
        .used_groups()
        .iter()
        .filter(|g| g.line.is_there())
        .count();
    lines < usize::try_from(process::fd_limit()).unwrap_or(0) / LINES_OF_LIMIT
}

/// The life line to the process of `group`.
pub fn line<'a>(locked: &'a mut Locked<'_>, group: u32) -> &'a mut Line {
    &mut locked.groups()[group as usize].line
}

/// Makes a life line to the process of `group`, unless there is one that holds. Returns the end for that process;
/// `keep_life_line` takes ours once it is on its way.
pub fn new_life_line(locked: &mut Locked<'_>, group: u32) -> Option<(Fd, Fd)> {
    let has = line(locked, group);
    if has.is_there() && !has.has_hung_up() || !has_room_for_life_line(locked) {
        return None;
    }
    line::make()
}

/// Keeps our end of a life line to a peer with these features, unless `features` is `None`: then nothing is said over it.
/// Each of the two processes may have made one at the same time: the line of the process with the lower gid stays.
pub fn keep_life_line(
    locked: &mut Locked<'_>,
    group: u32,
    end: Fd,
    [made_here, made_by_lower_gid]: [bool; 2],
    features: Option<u8>,
) {
    let has = line(locked, group);
    let has_one = has.is_there();
    let stays = has_one && !made_by_lower_gid && !has.has_hung_up();
    if stays || !has_one && !has_room_for_life_line(locked) || !sock::is_unix_seqpacket(end.raw()) {
        return;
    }
    let line = line(locked, group);
    line.keep(end, made_here);
    if features.is_some_and(|f| f & wire::HEARS_LIFE_LINE != 0) {
        line.listen(group);
    }
}

/// Descriptor `n` of the library has the number `new` from now on; −1: it is gone.
pub fn renumbered(locked: &mut Locked<'_>, n: i32, new: i32) {
    for g in locked.used_groups() {
        g.line.renumbered(n, new);
    }
    line::renumbered(n, new);
    let chunks = locked.used_own().iter_mut().map(|chunk| &mut chunk.fd);
    for chunk in chunks.filter(|chunk| **chunk == n) {
        *chunk = new.max(0);
    }
    let bells = locked
        .used_own()
        .iter_mut()
        .map(|chunk| &mut chunk.their_bell);
    for bell in bells.filter(|bell| **bell == n) {
        *bell = new.max(0);
    }
    for board in &BOARDS[..board::chunks_in_use()] {
        let bell = &board.bell;
        let _ = bell.compare_exchange(n, new.max(0), Ordering::AcqRel, Ordering::Relaxed);
    }
    board::polled::renumbered(n, new);
}

/// Is the process of a group gone, or not to be told from one that is?
fn is_gone(g: &Group) -> bool {
    if g.line.is_there() {
        return g.line.has_hung_up();
    }
    // A process of another pid namespace has no number here.
    g.pid <= 0 || !proc::alive(g.pid)
}

/// Has a group been without connections for a second? A thread that has just ended the last one may still be reading a board.
fn is_over(g: &Group, now: u64) -> bool {
    g.conns == 0 && now.saturating_sub(g.idle_since) > 1_000_000_000
}

/// Forgets groups whose process is gone and that have no connections any more.
fn sweep(locked: &mut Locked<'_>) {
    let now = time::now_ns();
    for i in 0..locked.used_groups().len() {
        let g = &locked.groups()[i];
        if g.gid != 0 && is_over(g, now) && is_gone(g) {
            drop_group(locked, i as u32);
        }
    }
}

fn drop_group(locked: &mut Locked<'_>, group: u32) {
    let was_across = locked.groups()[group as usize].across;
    locked.groups()[group as usize].line.end();
    locked.groups()[group as usize] = Group::NONE;
    for (i, chunk) in locked.used_own().iter_mut().enumerate() {
        if chunk.ring_size != 0 && chunk.group == group {
            let base = BOARDS[i].base.swap(core::ptr::null_mut(), Ordering::AcqRel);
            if let Some(base) = NonNull::new(base) {
                if !process::drop_file(base) {
                    process::unhide(chunk.fd);
                }
                // SAFETY: the whole mapping; no connection uses it.
                unsafe { mem::unmap(base, layout::chunk_len(chunk.ring_size as usize)) };
            }
            BOARDS[i].serial.fetch_add(1, Ordering::Relaxed);
            idle::forget(i);
            process::unhide(BOARDS[i].bell.swap(0, Ordering::AcqRel));
            board::polled::close(i as u32);
            process::unhide(chunk.their_bell);
            *chunk = OwnChunk::NONE;
        }
    }
    for chunk in locked.used_peers() {
        if let Some(base) = chunk.base.take_if(|_| chunk.group == group) {
            process::drop_bell(core::mem::take(&mut chunk.bell));
            // SAFETY: the whole mapping; no connection uses it.
            unsafe { mem::unmap(base, layout::chunk_len(chunk.ring_size as usize)) };
            chunk.ring_size = 0;
        }
    }
    if let Some(across) = was_across {
        across::part(&across);
    }
}

/// Takes a DMB of ours for a connection with `group`, prepared and parked. `sleeper` is who waits for the connection: the
/// bell of its chunk is to wake it.
pub fn take_dmb(locked: &mut Locked<'_>, group: u32, sleeper: Sleeper) -> Result<OwnDmb, Reason> {
    let (chunk, slot) = match free_slot(locked, group, sleeper) {
        Some(found) => found,
        None => (new_chunk(locked, group, sleeper)?, 0),
    };
    let token = Token::fresh().map_err(|_| Reason::INTERNAL)?;
    let own = &mut locked.own()[chunk as usize];
    own.used |= 1 << slot;
    let dmb = OwnDmb {
        chunk,
        slot,
        ring_size: own.ring_size,
        token,
    };
    let words = own_words(chunk, slot).ok_or(Reason::INTERNAL)?;
    idle::used(chunk, slot);
    Rx::default().prepare(words);
    words.rx.0.token.store(token.bits(), Ordering::Release);
    locked.groups()[group as usize].conns += 1;
    Ok(dmb)
}

/// A free slot in a chunk of the group: one whose bell wakes this sleeper, or else one whose bell wakes nobody yet. Somebody
/// may wait later for a connection that nobody waits for now, so for it any chunk will do.
fn free_slot(locked: &mut Locked<'_>, group: u32, sleeper: Sleeper) -> Option<(u32, u32)> {
    let mut second = None;
    for (i, own) in locked.used_own().iter_mut().enumerate() {
        let board = &BOARDS[i];
        if own.ring_size == 0 || own.group != group {
            continue;
        }
        take_back(own, i);
        if own.used == u64::MAX {
            continue;
        }
        let found = (i as u32, own.used.trailing_ones());
        let has = board.sleeper.get();
        if has == sleeper {
            return Some(found);
        }
        let nobodys = has == Sleeper::NOBODY || sleeper == Sleeper::NOBODY;
        if second.is_none() && (nobodys || own.used == 0) {
            second = Some(found);
        }
    }
    let (chunk, _) = second?;
    let board = &BOARDS[chunk as usize];
    if sleeper != Sleeper::NOBODY && board.bell.load(Ordering::Relaxed) > 0 {
        board::give_to(chunk, sleeper);
    }
    second
}

/// Makes the slots of a chunk free whose senders have detached since.
fn take_back(chunk: &mut OwnChunk, i: usize) {
    let mut waiting = chunk.quarantine;
    while waiting != 0 {
        let slot = waiting.trailing_zeros();
        waiting &= waiting - 1;
        let detached = own_words(i as u32, slot).is_some_and(Rx::sender_detached);
        if detached && !is_read_elsewhere(i, slot) {
            chunk.quarantine &= !(1 << slot);
            chunk.used &= !(1 << slot);
            idle::mark(i as u32, slot);
        }
    }
}

/// Does another process still hold the socket that this DMB served? A later connection may have got its shared state;
/// then the slot waits for that connection too.
fn is_read_elsewhere(chunk: usize, slot: u32) -> bool {
    let shared = BOARDS[chunk].shared_states[slot as usize].load(Ordering::Acquire);
    // SAFETY: null, or a shared state; these are never unmapped.
    unsafe { shared.as_ref() }.is_some_and(|c| c.procs.load(Ordering::Acquire) != 0)
}

fn new_chunk(locked: &mut Locked<'_>, group: u32, sleeper: Sleeper) -> Result<u32, Reason> {
    if is_across(locked, group) {
        return Err(Reason::MAX_DMB); // the agent allots one
    }
    let i = locked.free_own().ok_or(Reason::MAX_DMB)?;
    let ring_size = new_ring_size(locked, group);
    let mut region = Region::create(c"memlane-dmb", layout::chunk_len(ring_size as usize), false)
        .map_err(|_| Reason::MEMORY)?;
    let file = region.take_fd().ok_or(Reason::INTERNAL)?;
    let (base, len) = region.leak();
    let fd = process::keep_file(base, len, file);
    if fd < 0 {
        // SAFETY: the whole mapping; no other code knows of it yet.
        unsafe { mem::unmap(base, len) };
        return Err(Reason::MEMORY);
    }
    write_header(base, ring_size);
    BOARDS[i].sleeper.set(Sleeper::NOBODY);
    BOARDS[i].is_across.store(0, Ordering::Relaxed);
    let their_bell = new_bell(locked, i, sleeper);
    locked.own()[i] = OwnChunk {
        group,
        ring_size,
        fd,
        their_bell,
        ..OwnChunk::NONE
    };
    BOARDS[i].is_to_arrive.store(1, Ordering::Relaxed);
    show_chunk(i, base, ring_size);
    faults::at(Step::ChunkMade);
    Ok(i as u32)
}

/// Writes the header of a new chunk, which is a page-aligned mapping of zeros that nobody else uses yet.
fn write_header(base: NonNull<u8>, ring_size: u32) {
    // SAFETY: mapped, aligned, larger than the header; atomics only.
    let header = unsafe { base.cast::<ChunkHeader>().as_ref() };
    header.ring_size.store(ring_size, Ordering::Relaxed);
    let version = faults::chunk_version(LAYOUT_VERSION);
    header.version.store(version, Ordering::Relaxed);
    header.magic.store(CHUNK_MAGIC, Ordering::Release);
}

/// Puts a chunk of ours on its board, for threads that hold no lock.
fn show_chunk(i: usize, base: NonNull<u8>, ring_size: u32) {
    BOARDS[i].ring_size.store(ring_size, Ordering::Relaxed);
    BOARDS[i].base.store(base.as_ptr(), Ordering::Release);
    BOARD_HIGH.fetch_max(i as u32 + 1, Ordering::AcqRel);
}

/// Makes the bell of chunk `i`, which wakes this sleeper. Returns the sender's end; 0: there is no bell.
fn new_bell(locked: &mut Locked<'_>, i: usize, sleeper: Sleeper) -> i32 {
    close_what_has_arrived(locked);
    if !has_room_for_bell() {
        return 0;
    }
    let Ok((ours, theirs)) = sock::unix_stream() else {
        return 0;
    };
    let (ours, theirs) = (process::hide(ours), process::hide(theirs));
    if ours <= 0 || theirs <= 0 {
        process::unhide(ours);
        process::unhide(theirs);
        return 0;
    }
    BOARDS[i].sleeper.set(sleeper);
    BOARDS[i].bell.store(ours, Ordering::Release);
    theirs
}

/// Closes the descriptors of chunks whose senders have them: a sender says in the chunk itself that it can ring.
fn close_what_has_arrived(locked: &mut Locked<'_>) {
    for chunk in 0..board::chunks_in_use() as u32 {
        if board::can_ring(chunk) {
            acked(locked, chunk);
        }
    }
}

/// May this process make another bell? The caller holds the groups' lock.
fn has_room_for_bell() -> bool {
    let has_bell = |board: &&board::Board| board.bell.load(Ordering::Relaxed) > 0;
    let boards = BOARDS[..board::chunks_in_use()].iter();
    boards.filter(has_bell).count() < process::most_bells()
}

/// The size of the rings in a new chunk of the group. Where the user has not set it, only the first 64 connections with
/// a peer process have large rings: a ring that lies far from its neighbours costs a page table of its own in both
/// processes, however few of its pages are touched.
fn new_ring_size(locked: &mut Locked<'_>, group: u32) -> u32 {
    let config = process::config();
    let is_groups = |chunk: &&OwnChunk| chunk.ring_size != 0 && chunk.group == group;
    let slots = locked.used_own().iter().filter(is_groups);
    let taken: u32 = slots.map(|chunk| chunk.used.count_ones()).sum();
    if config.ring_is_default && taken as usize >= SLOTS {
        return config.ring.min(RING_OF_MANY);
    }
    config.ring
}

/// The size of the ring of a DMB of ours, in bytes; 0: there is no such chunk.
pub fn own_ring_size(chunk: u32) -> u32 {
    BOARDS
        .get(chunk as usize)
        .map_or(0, |board| board.ring_size.load(Ordering::Relaxed))
}

/// The words of a DMB of ours.
pub fn own_words(chunk: u32, slot: u32) -> Option<&'static Dmb> {
    let base = BOARDS.get(chunk as usize)?.base.load(Ordering::Acquire);
    if base.is_null() || slot as usize >= SLOTS {
        return None;
    }
    // SAFETY: inside the chunk's mapping, aligned; consists of atomics.
    Some(unsafe {
        &*base
            .add(DMBS_AT + slot as usize * DMB_WORDS_LEN)
            .cast::<Dmb>()
    })
}

/// The first byte of the ring of a DMB of ours.
pub fn own_ring(chunk: u32, slot: u32, ring_size: u32) -> *mut u8 {
    BOARDS[chunk as usize]
        .base
        .load(Ordering::Acquire)
        .wrapping_add(RINGS_AT + slot as usize * ring_size as usize)
}

/// Who uses a slot of ours, with the slot's ring.
pub enum Holder {
    /// Nobody: the slot is free, and the sender will not touch it.
    Nobody(NonNull<u8>, usize),
    /// An open connection.
    Conn(&'static Conn, NonNull<u8>, usize),
    /// Unknown: perhaps a sender, another process, or a connection that is not open yet.
    Somebody,
}

/// Finds out who uses a slot. The answer holds as long as the lock is held.
pub fn holder(locked: &mut Locked<'_>, chunk: u32, slot: u32) -> Holder {
    let (i, bit) = (chunk as usize, 1u64 << slot);
    let own = &locked.own()[i];
    let size = own.ring_size as usize;
    let Some(ring) = NonNull::new(own_ring(chunk, slot, own.ring_size)).filter(|_| size != 0)
    else {
        return Holder::Somebody;
    };
    if own.used & bit == 0 {
        return Holder::Nobody(ring, size);
    }
    // SAFETY: null or an address in the pool, which is never unmapped.
    if let Some(conn) = unsafe {
        BOARDS[i].conns[slot as usize]
            .load(Ordering::Acquire)
            .as_ref()
    } {
        return Holder::Conn(conn, ring, size);
    }
    let detached = own_words(chunk, slot).is_some_and(Rx::sender_detached);
    if own.quarantine & bit != 0 && detached && !is_read_elsewhere(i, slot) {
        return Holder::Nobody(ring, size);
    }
    Holder::Somebody
}

/// Closes the descriptor of a chunk that the peer has got.
pub fn acked(locked: &mut Locked<'_>, chunk: u32) {
    let own = &mut locked.own()[chunk as usize];
    if !own.acked {
        own.acked = true;
        BOARDS[chunk as usize]
            .is_to_arrive
            .store(0, Ordering::Relaxed);
        let fd = core::mem::take(&mut own.fd);
        process::unhide(core::mem::take(&mut own.their_bell));
        if !process::is_kept_file(fd) {
            process::unhide(fd);
        }
    }
}

/// Closes the descriptors of the chunk that this connection receives from, if its sender shows in the DMB that it has the
/// chunk. Takes no lock once they are closed.
pub fn close_if_arrived(conn: &Conn) {
    let (chunk, slot) = (
        conn.rx_chunk.load(Ordering::Relaxed),
        conn.rx_slot.load(Ordering::Relaxed),
    );
    let is_active = || {
        conn.rx_lane()
            .is_some_and(|lane| Rx::sender_active(lane.words))
    };
    if BOARDS[chunk as usize].is_to_arrive.load(Ordering::Relaxed) != 0
        && board::is_posted(chunk, slot, conn)
        && is_active()
        && let Some(mut locked) = lock()
    {
        acked(&mut locked, chunk);
    }
}

/// Gives a DMB of ours back. It serves another connection only when the sender has said that it will not touch it again
/// (or never knew of it), and when no other process still reads from it: `shared` is the state that all of them hold.
pub fn release_dmb(
    locked: &mut Locked<'_>,
    group: u32,
    chunk: u32,
    slot: u32,
    told: bool,
    shared: Option<&SharedState>,
) {
    let board = &BOARDS[chunk as usize];
    board.conns[slot as usize].store(core::ptr::null_mut(), Ordering::Release);
    let shared = shared.filter(|c| c.procs.load(Ordering::Acquire) > 1);
    board.shared_states[slot as usize].store(
        shared.map_or(core::ptr::null_mut(), |c| core::ptr::from_ref(c).cast_mut()),
        Ordering::Release,
    );
    if let Some(words) = own_words(chunk, slot) {
        words.rx.0.flags.fetch_or(TCP_ONLY, Ordering::SeqCst);
        idle::mark(chunk, slot);
        let own = &mut locked.own()[chunk as usize];
        if shared.is_some() || told && !Rx::sender_detached(words) {
            own.quarantine |= 1 << slot;
        } else {
            own.used &= !(1 << slot);
        }
    }
    let g = &mut locked.groups()[group as usize];
    g.conns = g.conns.saturating_sub(1);
    g.idle_since = time::now_ns();
}

/// A peer's DMB that this process has attached.
pub struct Attached {
    /// The DMB's words.
    pub dmb: &'static Dmb,
    /// The first byte of its ring.
    pub ring: *mut u8,
    /// The size of its ring, in bytes.
    pub ring_size: u32,
    /// The ready words of its chunk.
    pub ready: *mut ReadyWords,
    /// Its slot, which is its bit in the ready word.
    pub slot: u32,
    /// How to ring the bell of its chunk: a place in `state::process::bells`, +1; 0: not at all.
    pub bell: u32,
}

/// A peer's description of its DMB.
#[derive(Clone, Copy, Debug)]
pub struct PeerDmb {
    /// The peer's number of the chunk.
    pub chunk: u32,
    /// The slot in that chunk.
    pub slot: u32,
    /// The size of each ring of the chunk, in bytes.
    pub ring_size: u32,
    /// The DMB's token.
    pub token: u64,
}

/// Attaches a peer's DMB. `files` are the descriptors of the chunk and of its bell, if the message brought them.
pub fn attach(
    locked: &mut Locked<'_>,
    group: u32,
    told: &PeerDmb,
    [file, bell]: [Option<Fd>; 2],
) -> Result<Attached, Reason> {
    let is_named = told.chunk != NOT_TOLD;
    if !layout::ring_size_ok(told.ring_size as usize) || told.slot as usize >= SLOTS || !is_named {
        return Err(Reason::PEER_MISBEHAVED);
    }
    let known = locked
        .used_peers()
        .iter()
        .position(|c| c.base.is_some() && c.group == group && c.id == told.chunk);
    let at = match (known.or_else(|| across::adopt(locked, group, told)), file) {
        (Some(at), _) => at,
        (None, Some(file)) => attach_chunk(locked, group, told, file, bell)?,
        (None, None) => return Err(Reason::MEMORY),
    };
    let chunk = &locked.peers()[at];
    let (base, bell) = (chunk.base.ok_or(Reason::INTERNAL)?, chunk.bell);
    if chunk.ring_size != told.ring_size {
        return Err(Reason::PEER_MISBEHAVED);
    }
    // SAFETY: slot and ring size are checked: inside the chunk's mapping, aligned, atomics only.
    let dmb = unsafe {
        base.add(DMBS_AT + told.slot as usize * DMB_WORDS_LEN)
            .cast::<Dmb>()
            .as_ref()
    };
    if told.token == 0 || dmb.rx.0.token.load(Ordering::Acquire) != told.token {
        return Err(Reason::PEER_MISBEHAVED);
    }
    // SAFETY: inside the chunk's mapping.
    let (ring, ready) = unsafe {
        let ring = base
            .add(RINGS_AT + told.slot as usize * told.ring_size as usize)
            .as_ptr();
        let header = base.cast::<ChunkHeader>().as_ref();
        (ring, core::ptr::from_ref(&header.ready).cast_mut())
    };
    Ok(Attached {
        dmb,
        ring,
        ring_size: told.ring_size,
        ready,
        slot: told.slot,
        bell,
    })
}

fn attach_chunk(
    locked: &mut Locked<'_>,
    group: u32,
    told: &PeerDmb,
    file: Fd,
    bell: Option<Fd>,
) -> Result<usize, Reason> {
    let at = locked.free_peer().ok_or(Reason::MAX_DMB)?;
    let len = layout::chunk_len(told.ring_size as usize);
    let region = Region::attach(file, len).map_err(|_| Reason::MEMORY)?;
    // SAFETY: a page-aligned mapping larger than the header; atomics only.
    let header = unsafe { &*region.bytes().as_ptr().cast::<ChunkHeader>() };
    if !is_ours_to_read(header) {
        return Err(Reason::RELEASE);
    }
    let bell = bell.map_or(0, process::keep_bell);
    header
        .ready
        .rings
        .store(u32::from(bell != 0), Ordering::Release);
    let (base, _) = region.leak();
    locked.peers()[at] = PeerChunk {
        group,
        id: told.chunk,
        ring_size: told.ring_size,
        base: Some(base),
        bell,
    };
    Ok(at)
}

/// Does a peer's chunk have the layout of this release?
fn is_ours_to_read(header: &ChunkHeader) -> bool {
    header.magic.load(Ordering::Acquire) == CHUNK_MAGIC
        && header.version.load(Ordering::Relaxed) == faults::chunk_version(LAYOUT_VERSION)
}

/// Tells the receiver that this sender will never touch its DMB again.
pub fn detach(dmb: &Dmb) {
    Tx::detach(dmb);
}

/// Forgets the parent's groups in the child of a fork. The mappings stay, because inherited connections may still have
/// bytes in them.
pub fn forget_all() {
    if tables::forget_all() {
        across::forget_all();
        line::forget_all();
        board::forget_all();
    }
}

/// The descriptors of a chunk of ours and of its bell, if the peer may not have them yet.
pub fn chunk_fds(locked: &mut Locked<'_>, chunk: u32) -> [Option<i32>; 2] {
    if board::can_ring(chunk) {
        acked(locked, chunk); // it says so in the chunk itself
    }
    let own = &locked.own()[chunk as usize];
    let unknown = |fd: i32| (!own.acked && own.fd > 0 && fd > 0).then_some(fd);
    [unknown(own.fd), unknown(own.their_bell)]
}
