//! Life lines: one channel for each peer process. Its end of file is the peer's death.
//!
//! Where both processes can, it also carries the handshakes of all connections after the first: a mailbox takes ten
//! messages from everybody together (`net.unix.max_dgram_qlen`), a life line takes [`MESSAGES_MOST`] from its one sender.
//! What is said over a line is proven like what comes to the mailbox.

use super::{Group, Locked};
use crate::protocol::wire;
use crate::state::process;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use memlane_sys::fd::Fd;
use memlane_sys::sock::{self, Received};
use memlane_sys::{Errno, epoll, time};

/// Life lines may take this part of the descriptors that the program may have.
const LINES_OF_LIMIT: usize = 16;
/// The most messages that lie unread in a line. Each has one descriptor or more with it, and the kernel lets a user have
/// as many descriptors under way as a process may have open: a peer that never reads takes this share of them.
const MESSAGES_MOST: i32 = 160;
const MESSAGES_OF_LIMIT: i32 = 8;
/// What the kernel counts for one message, in bytes: 448, its own headers, and both rounded up (`skb->truesize`).
const MESSAGE_COST: i32 = 1280;
/// A line without room is tried again after this time.
const FULL_NS: u64 = 100_000;

/// The set of the lines that speak; 0: none yet.
static SET: AtomicI32 = AtomicI32::new(0);
/// How many lines speak.
static SPEAKING: AtomicU32 = AtomicU32::new(0);

/// Makes a life line to the process of `group`, unless there is one that holds. Returns the end for that process;
/// `keep_life_line` takes ours once it is on its way.
pub fn new_life_line(locked: &mut Locked<'_>, group: u32) -> Option<(Fd, Fd)> {
    let life_line = locked.groups()[group as usize].life_line;
    if life_line > 0 && !sock::has_hung_up(life_line) || !has_room_for_life_line(locked) {
        return None;
    }
    let ends = sock::unix_channel().ok()?;
    // What the peer says before it has prepared its end carries its credentials too.
    prepare(ends.0.raw());
    prepare(ends.1.raw());
    Some(ends)
}

/// Keeps our end of a life line to a peer with these features, unless `features` is `None`: then nothing is said over it.
/// Each of the two processes may have made one at the same time: the line of the process with the lower gid stays.
pub fn keep_life_line(
    locked: &mut Locked<'_>,
    group: u32,
    end: Fd,
    made_by_lower_gid: bool,
    features: Option<u8>,
) {
    let has = locked.groups()[group as usize].life_line;
    let stays = has > 0 && !made_by_lower_gid && !sock::has_hung_up(has);
    if stays || has <= 0 && !has_room_for_life_line(locked) || !sock::is_unix_seqpacket(end.raw()) {
        return;
    }
    silence(locked, group);
    process::unhide(has);
    locked.groups()[group as usize].life_line = process::hide(end).max(0);
    if features.is_some_and(|f| f & wire::HEARS_LIFE_LINE != 0) {
        listen(locked, group);
    }
}

fn has_room_for_life_line(locked: &mut Locked<'_>) -> bool {
    let lines = locked.groups().iter().filter(|g| g.life_line > 0).count();
    lines < usize::try_from(process::fd_limit()).unwrap_or(0) / LINES_OF_LIMIT
}

/// Bounds what may lie unread of ours, and asks for the sender's credentials with each message.
fn prepare(end: i32) {
    let messages = (process::fd_limit() / MESSAGES_OF_LIMIT).clamp(1, MESSAGES_MOST);
    // The kernel doubles what it is told (socket(7), SO_SNDBUF).
    let bytes = messages * MESSAGE_COST / 2;
    let _ = sock::set_option(end, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes);
    let _ = sock::set_option(end, libc::SOL_SOCKET, libc::SO_PASSCRED, 1i32);
}

/// From now on, handshakes go over the line of this group.
fn listen(locked: &mut Locked<'_>, group: u32) {
    let set = the_set();
    let g = &mut locked.groups()[group as usize];
    if set > 0 && g.life_line > 0 && epoll::add(set, g.life_line, u64::from(group)).is_ok() {
        prepare(g.life_line);
        (g.speaks, g.full_until) = (true, 0);
        SPEAKING.fetch_add(1, Ordering::Relaxed);
    }
}

/// The set; made when first needed. The caller holds the lock of the groups.
fn the_set() -> i32 {
    let have = SET.load(Ordering::Relaxed);
    if have > 0 {
        return have;
    }
    let new = epoll::create().map_or(0, process::hide).max(0);
    SET.store(new, Ordering::Relaxed);
    new
}

/// From now on, no handshake goes over the line of this group. It stays a life line.
pub(super) fn silence(locked: &mut Locked<'_>, group: u32) {
    let g = &mut locked.groups()[group as usize];
    if core::mem::take(&mut g.speaks) {
        SPEAKING.fetch_sub(1, Ordering::Relaxed);
        // A process that a raw clone has made may still have the line: closing it would leave it in the set.
        let _ = epoll::remove(SET.load(Ordering::Relaxed), g.life_line);
    }
}

/// Do handshakes go over any line?
pub fn any_speaks() -> bool {
    SPEAKING.load(Ordering::Relaxed) != 0
}

/// May the line of this group have room for a message?
pub fn has_room(locked: &mut Locked<'_>, group: u32) -> bool {
    let g = &locked.groups()[group as usize];
    g.full_until == 0 || time::now_ns() >= g.full_until
}

/// Sends a message, with these descriptors, over the line of this group. Never blocks.
///
/// # Errors
/// `EAGAIN`: there is no room now. `ENOTCONN`: nothing goes over that line any more.
pub fn say(locked: &mut Locked<'_>, group: u32, data: &[u8], fds: &[i32]) -> Result<(), Errno> {
    const ENDED: Errno = Errno(libc::ENOTCONN);
    let g: &mut Group = &mut locked.groups()[group as usize];
    if !g.speaks {
        return Err(ENDED);
    }
    match sock::send_to_peer(g.life_line, data, fds) {
        Err(Errno(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN | libc::ECONNREFUSED)) => {
            silence(locked, group);
            Err(ENDED)
        }
        Err(Errno::AGAIN) => {
            g.full_until = time::now_ns() + FULL_NS;
            Err(Errno::AGAIN)
        }
        sent => sent,
    }
}

/// The groups whose processes have said something over their lines: some of them, if there are many.
pub fn lines_with_news() -> impl Iterator<Item = u32> {
    let set = SET.load(Ordering::Relaxed);
    let news = (set > 0 && any_speaks()).then(|| epoll::ready(set));
    news.into_iter().flatten().map(|name| name as u32)
}

/// Takes the next message that the process of this group has said; `None`: there is none.
pub fn hear(locked: &mut Locked<'_>, group: u32, buf: &mut [u8]) -> Option<Received> {
    let g = locked.groups().get(group as usize).filter(|g| g.speaks)?;
    match sock::recv_with_fds(g.life_line, buf) {
        Ok(got) if got.len != Some(0) => Some(got),
        Err(Errno::AGAIN | Errno::INTR) => None,
        // The process is gone, or says nothing in many words.
        _ => {
            silence(locked, group);
            None
        }
    }
}

/// Descriptor `n` of the library has the number `new` from now on; −1: it is gone.
pub(super) fn renumbered(locked: &mut Locked<'_>, n: i32, new: i32) {
    let lines = locked.groups().iter_mut().map(|g| &mut g.life_line);
    for line in lines.filter(|line| **line == n) {
        *line = new.max(0);
    }
    let _ = SET.compare_exchange(n, new.max(0), Ordering::Relaxed, Ordering::Relaxed);
}

/// Forgets the parent's lines in the child of a fork. The set is the parent's too: nothing is removed from it.
pub(super) fn forget_all() {
    SET.store(0, Ordering::Relaxed);
    SPEAKING.store(0, Ordering::Relaxed);
}
