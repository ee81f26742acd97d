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
use memlane_sys::sock::{self, Received, Tuple};
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

/// An answer that has found no room for so long is dropped, and the peer's connection stays on TCP: two processes that
/// propose to each other may both wait for room.
const OWED_NS: u64 = 100_000_000;

/// A Proposal that is to be declined with `TOO_YOUNG`, and whose answer has found no room. Until it is sent, nothing more
/// is heard from that peer: it would wait in vain for an answer that got lost.
#[derive(Clone, Copy, Debug)]
pub struct Owed {
    /// The connection as this process sees it.
    pub tuple: Tuple,
    /// The peer's id of the connection.
    pub echo: u64,
    /// When the Proposal was heard, in monotonic ns.
    pub since: u64,
}

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
    [made_here, made_by_lower_gid]: [bool; 2],
    features: Option<u8>,
) {
    let has = locked.groups()[group as usize].life_line;
    let stays = has > 0 && !made_by_lower_gid && !sock::has_hung_up(has);
    if stays || has <= 0 && !has_room_for_life_line(locked) || !sock::is_unix_seqpacket(end.raw()) {
        return;
    }
    silence(locked, group);
    process::unhide(has);
    let g = &mut locked.groups()[group as usize];
    (g.life_line, g.is_settled) = (process::hide(end).max(0), !made_here);
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
        (g.speaks, g.full_until, g.owed) = (true, 0, None);
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

/// May a handshake that began by mail go on over the line of this group? If this process has made the line, and the peer
/// another one at the same time, it must have heard something over it first: the peer may not keep it.
pub fn is_settled(locked: &mut Locked<'_>, group: u32) -> bool {
    let g = &locked.groups()[group as usize];
    g.speaks && g.is_settled
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

/// Notes an answer that the line of this group has no room for.
pub fn owe(locked: &mut Locked<'_>, group: u32, answer: Owed) {
    locked.groups()[group as usize].owed = Some(answer);
}

/// Takes the answer that this group is owed, if it may be sent now. `Err`: there is no room for it yet.
pub fn owed(locked: &mut Locked<'_>, group: u32) -> Result<Option<Owed>, Errno> {
    let now = time::now_ns();
    let g = &mut locked.groups()[group as usize];
    match g.owed {
        Some(answer) if now.saturating_sub(answer.since) > OWED_NS => {
            g.owed = None;
            Ok(None)
        }
        Some(_) if now < g.full_until => Err(Errno::AGAIN),
        _ => Ok(g.owed.take()),
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
    let g = locked.groups().get_mut(group as usize)?;
    if !g.speaks {
        return None;
    }
    match sock::recv_with_fds(g.life_line, buf) {
        Ok(got) if got.len != Some(0) => {
            g.is_settled = true;
            Some(got)
        }
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

#[cfg(test)]
mod tests {
    use super::super::{drop_group, find, lock};
    use super::*;

    /// A group whose line speaks, and the peer's end of it.
    fn with_line(locked: &mut Locked<'_>, gid: u64) -> (u32, Fd) {
        let group = find(locked, gid, 1).expect("a group");
        let (ours, theirs) = new_life_line(locked, group).expect("a line");
        keep_life_line(
            locked,
            group,
            ours,
            [true, true],
            Some(wire::HEARS_LIFE_LINE),
        );
        (group, theirs)
    }

    fn unread(end: &Fd) -> usize {
        let mut buf = [0; wire::LEN];
        (0..)
            .take_while(|_| sock::recv_with_fds(end.raw(), &mut buf).is_ok())
            .count()
    }

    #[test]
    fn a_line_that_nobody_reads_takes_a_bounded_number_of_messages() {
        let mut locked = lock().expect("free");
        let (group, theirs) = with_line(&mut locked, 0x6c69_6e65);
        let said = (0..1000).take_while(|_| {
            say(
                &mut locked,
                group,
                &[1; wire::LEN],
                &[theirs.raw(), theirs.raw()],
            )
            .is_ok()
        });
        let said = said.count();
        let most = (process::fd_limit() / MESSAGES_OF_LIMIT).min(MESSAGES_MOST) as usize;
        assert!(
            (most / 2..=most + 1).contains(&said),
            "{said}, at most {most}"
        );
        assert!(!has_room(&mut locked, group));
        assert_eq!(unread(&theirs), said);
        std::thread::sleep(core::time::Duration::from_nanos(FULL_NS));
        assert!(has_room(&mut locked, group));
        assert_eq!(say(&mut locked, group, &[1; wire::LEN], &[]), Ok(()));
        drop_group(&mut locked, group);
    }

    #[test]
    fn a_line_is_silent_from_the_peers_end_on() {
        let mut locked = lock().expect("free");
        let (group, theirs) = with_line(&mut locked, 0x656e_6473);
        sock::send_to_peer(theirs.raw(), b"last word", &[]).expect("room");
        assert!(lines_with_news().any(|g| g == group));
        drop(theirs);
        let mut buf = [0; wire::LEN];
        let last = hear(&mut locked, group, &mut buf).and_then(|got| got.len);
        assert_eq!(last, Some(9));
        assert!(hear(&mut locked, group, &mut buf).is_none());
        assert!(!lines_with_news().any(|g| g == group), "in vain for ever");
        let ended = say(&mut locked, group, &[1; wire::LEN], &[]);
        assert_eq!(ended, Err(Errno(libc::ENOTCONN)));
        drop_group(&mut locked, group);
    }
}
