//! Life lines: one channel for each peer process. Its end of file is the peer's death.
//!
//! Where both processes can, it also carries the handshakes of all connections after the first: a mailbox takes ten
//! messages from everybody together (`net.unix.max_dgram_qlen`), a life line takes [`MESSAGES_MOST`] from its one sender.
//! What is said over a line is proven like what comes to the mailbox.

use crate::state::process;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use memlane_sys::fd::Fd;
use memlane_sys::sock::{self, Received, Tuple};
use memlane_sys::{Errno, epoll, time};

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

/// This process's end of a life line.
#[derive(Debug)]
pub struct Line {
    /// The descriptor; 0: there is no line.
    fd: i32,
    /// Do handshakes go over it? Then it is in the set.
    speaks: bool,
    /// Is this the line that the peer keeps, too, even if it has made one at the same time?
    is_settled: bool,
    /// Before this time, in monotonic ns, it has no room.
    full_until: u64,
    /// What the peer has proposed in vain and has not been told yet.
    owed: Option<Owed>,
}

/// Makes a life line: two ends.
pub(super) fn make() -> Option<(Fd, Fd)> {
    let ends = sock::unix_channel().ok()?;
    // What the peer says before it has prepared its end carries its credentials too.
    prepare(ends.0.raw());
    prepare(ends.1.raw());
    Some(ends)
}

/// Bounds what may lie unread of ours, and asks for the sender's credentials with each message.
fn prepare(end: i32) {
    let messages = (process::fd_limit() / MESSAGES_OF_LIMIT).clamp(1, MESSAGES_MOST);
    // The kernel doubles what it is told (socket(7), SO_SNDBUF).
    let bytes = messages * MESSAGE_COST / 2;
    let _ = sock::set_option(end, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes);
    let _ = sock::set_option(end, libc::SOL_SOCKET, libc::SO_PASSCRED, 1i32);
}

/// The set; made when first needed. 0: it cannot be made.
fn the_set() -> i32 {
    let have = SET.load(Ordering::Relaxed);
    if have > 0 {
        return have;
    }
    let new = epoll::create().map_or(0, process::hide).max(0);
    match SET.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => new,
        Err(have) => {
            process::unhide(new);
            have
        }
    }
}

impl Line {
    /// No line.
    pub(super) const NONE: Line = Line {
        fd: 0,
        speaks: false,
        is_settled: false,
        full_until: 0,
        owed: None,
    };

    /// Keeps this end instead of the one before. `made_here`: this process has made the line.
    pub(super) fn keep(&mut self, end: Fd, made_here: bool) {
        self.end();
        (self.fd, self.is_settled) = (process::hide(end).max(0), !made_here);
    }

    /// From now on, handshakes go over this line, the one to the process of `group`.
    pub(super) fn listen(&mut self, group: u32) {
        let set = the_set();
        if set > 0 && self.fd > 0 && epoll::add(set, self.fd, u64::from(group)).is_ok() {
            prepare(self.fd);
            (self.speaks, self.full_until, self.owed) = (true, 0, None);
            SPEAKING.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// From now on, no handshake goes over this line. It stays a life line.
    fn silence(&mut self) {
        if core::mem::take(&mut self.speaks) {
            SPEAKING.fetch_sub(1, Ordering::Relaxed);
            // A process that a raw clone has made may still have the line: closing it would leave it in the set.
            let _ = epoll::remove(SET.load(Ordering::Relaxed), self.fd);
        }
    }

    /// Closes this end.
    pub(super) fn end(&mut self) {
        self.silence();
        process::unhide(core::mem::take(&mut self.fd));
    }

    /// Is there a line?
    pub(super) fn is_there(&self) -> bool {
        self.fd > 0
    }

    /// Has the other end been closed, by everybody who had it?
    pub(super) fn has_hung_up(&self) -> bool {
        self.is_there() && sock::has_hung_up(self.fd)
    }

    /// Do handshakes go over this line?
    pub fn speaks(&self) -> bool {
        self.speaks
    }

    /// May a handshake that began by mail go on over this line? If this process has made the line, and the peer another
    /// one at the same time, it must have heard something over it first: the peer may not keep it.
    pub fn is_settled(&self) -> bool {
        self.speaks && self.is_settled
    }

    /// May the line have room for a message?
    pub fn has_room(&self) -> bool {
        self.full_until == 0 || time::now_ns() >= self.full_until
    }

    /// Sends a message with these descriptors. Never blocks.
    ///
    /// # Errors
    /// `EAGAIN`: there is no room now. `ENOTCONN`: nothing goes over this line any more.
    pub fn say(&mut self, data: &[u8], fds: &[i32]) -> Result<(), Errno> {
        const ENDED: Errno = Errno(libc::ENOTCONN);
        if !self.speaks {
            return Err(ENDED);
        }
        match sock::send_to_peer(self.fd, data, fds) {
            Err(Errno(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN | libc::ECONNREFUSED)) => {
                self.silence();
                Err(ENDED)
            }
            Err(Errno::AGAIN) => {
                self.full_until = time::now_ns() + FULL_NS;
                Err(Errno::AGAIN)
            }
            sent => sent,
        }
    }

    /// Takes the next message that the peer has said; `None`: there is none.
    pub fn hear(&mut self, buf: &mut [u8]) -> Option<Received> {
        if !self.speaks {
            return None;
        }
        match sock::recv_with_fds(self.fd, buf) {
            Ok(got) if got.len != Some(0) => {
                self.is_settled = true;
                Some(got)
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            // The process is gone, or says nothing in many words.
            _ => {
                self.silence();
                None
            }
        }
    }

    /// Notes an answer that the line has no room for.
    pub fn owe(&mut self, answer: Owed) {
        self.owed = Some(answer);
    }

    /// Takes the answer that the peer is owed, if it may be sent now. `Err`: there is no room for it yet.
    pub fn owed(&mut self) -> Result<Option<Owed>, Errno> {
        let now = time::now_ns();
        match self.owed {
            Some(answer) if now.saturating_sub(answer.since) > OWED_NS => {
                self.owed = None;
                Ok(None)
            }
            Some(_) if now < self.full_until => Err(Errno::AGAIN),
            _ => Ok(self.owed.take()),
        }
    }

    /// Descriptor `n` of the library has the number `new` from now on; −1: it is gone.
    pub(super) fn renumbered(&mut self, n: i32, new: i32) {
        if self.fd == n {
            self.fd = new.max(0);
        }
    }
}

/// Descriptor `n` of the library, perhaps the set, has the number `new` from now on; −1: it is gone.
pub(super) fn renumbered(n: i32, new: i32) {
    let _ = SET.compare_exchange(n, new.max(0), Ordering::Relaxed, Ordering::Relaxed);
}

/// Do handshakes go over any line?
pub fn any_speaks() -> bool {
    SPEAKING.load(Ordering::Relaxed) != 0
}

/// The groups whose processes have said something over their lines: some of them, if there are many.
pub fn lines_with_news() -> impl Iterator<Item = u32> {
    let set = SET.load(Ordering::Relaxed);
    let news = (set > 0 && any_speaks()).then(|| epoll::ready(set));
    news.into_iter().flatten().map(|name| name as u32)
}

/// Forgets the parent's lines in the child of a fork. The set is the parent's too: nothing is removed from it.
pub(super) fn forget_all() {
    SET.store(0, Ordering::Relaxed);
    SPEAKING.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::wire;

    /// A line that speaks, and the peer's end of it.
    fn speaking(group: u32) -> (Line, Fd) {
        let (ours, theirs) = make().expect("a line");
        let mut line = Line::NONE;
        line.keep(ours, true);
        line.listen(group);
        (line, theirs)
    }

    fn unread(end: &Fd) -> usize {
        let mut buf = [0; wire::LEN];
        (0..)
            .take_while(|_| sock::recv_with_fds(end.raw(), &mut buf).is_ok())
            .count()
    }

    #[test]
    fn a_line_that_nobody_reads_takes_a_bounded_number_of_messages() {
        let (mut line, theirs) = speaking(70_001);
        let fds = [theirs.raw(), theirs.raw()];
        let said = (0..1000).take_while(|_| line.say(&[1; wire::LEN], &fds).is_ok());
        let said = said.count();
        let most = (process::fd_limit() / MESSAGES_OF_LIMIT).min(MESSAGES_MOST) as usize;
        assert!(
            (most / 2..=most + 1).contains(&said),
            "{said}, at most {most}"
        );
        assert!(!line.has_room());
        assert_eq!(unread(&theirs), said);
        std::thread::sleep(core::time::Duration::from_nanos(FULL_NS));
        assert!(line.has_room());
        assert_eq!(line.say(&[1; wire::LEN], &[]), Ok(()));
        line.end();
    }

    #[test]
    fn a_line_is_silent_from_the_peers_end_on() {
        const GROUP: u32 = 70_002;
        let (mut line, theirs) = speaking(GROUP);
        assert!(!line.is_settled());
        sock::send_to_peer(theirs.raw(), b"last word", &[]).expect("room");
        assert!(lines_with_news().any(|group| group == GROUP));
        drop(theirs);
        let mut buf = [0; wire::LEN];
        assert_eq!(line.hear(&mut buf).and_then(|got| got.len), Some(9));
        assert!(line.is_settled());
        assert!(line.hear(&mut buf).is_none());
        assert!(!line.speaks() && !line.is_settled());
        let is_named = lines_with_news().any(|group| group == GROUP);
        assert!(!is_named, "each look would find it, in vain");
        assert_eq!(line.say(&[1; wire::LEN], &[]), Err(Errno(libc::ENOTCONN)));
        line.end();
    }

    #[test]
    fn an_answer_that_is_owed_is_kept_while_there_is_no_room_and_dropped_after_a_while() {
        let zero = memlane_sys::sock::Addr {
            ip: [0; 16],
            port: 0,
        };
        let answer = |since| Owed {
            tuple: Tuple {
                local: zero,
                remote: zero,
            },
            echo: 7,
            since,
        };
        let (mut line, _theirs) = speaking(70_003);
        assert!(matches!(line.owed(), Ok(None)));
        line.owe(answer(time::now_ns()));
        line.full_until = u64::MAX;
        assert!(line.owed().is_err());
        line.full_until = 0;
        assert!(matches!(line.owed(), Ok(Some(owed)) if owed.echo == 7));
        assert!(matches!(line.owed(), Ok(None)));
        line.owe(answer(time::now_ns() - 2 * OWED_NS));
        line.full_until = u64::MAX;
        assert!(matches!(line.owed(), Ok(None)));
        line.end();
    }
}
