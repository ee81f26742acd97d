//! One client's requests: from the socket into the volume's queue, and back. One thread, one loop.
//!
//! ```text
//!   socket ─► inbox ─► judge ─► pieces ─► Queue::submit … Queue::reap ─► outbox ─► socket
//!       └── payload of a large WRITE ──► lease ──►          lease ── data of a READ ──►┘
//!       └── or to where the volume has it, and from there (in_place.rs) ──────────────►┘
//! ```
//!
//! Requests are taken in order and done in any order. One that finds no memory or too much under way waits, and those
//! behind it stay in the socket.

mod in_place;
mod input;
mod tasks;

use super::lock::{HeldRange, RangeLock, Wakeup};
use super::negotiate::Agreed;
use super::outbox::Outbox;
use super::request::{Piece, Span, Terms};
use super::slab::Slab;
use super::stats::ConnStats;
use super::stream::Stream;
use super::wire::{Request, error};
use memlane_block::volume::{Done, Flags, Io, Lease, Queue, Volume};
use memlane_wait::event::poll;
use memlane_wait::spin::{Policy, Spin};
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes that are read ahead.
const INBOX: usize = 128 * 1024;
/// A WRITE of this many bytes or more is received into its lease; a shorter one is copied there out of the inbox,
/// because a system call of its own would cost more.
const LARGE: u32 = 16 * 1024;
/// Replies that wait to be sent, before no more requests are taken.
const MAX_REPLIES: usize = 512;
/// Bytes of reads that are put together on the heap, because their reply must be in one piece: when there are more,
/// and until they are sent, no more requests are taken.
const MAX_GATHERED: usize = 1 << 20;
/// Requests that are taken in before what is done is sent: few enough that the client works at the same time as we
/// do, many enough that few system calls serve them.
const TURN: usize = 16;
/// Bytes of reads that are given out before what is done is sent: a volume that answers at once would otherwise read all of
/// them before the first is sent, out of caches again. With a quarter of this, reads of 1 MiB have 0.83 to 1 of the rate,
/// with four times as much the same (docs/missed-aims.md has the command).
const TURN_BYTES: usize = 1024 * 1024;
/// Bytes of reads that wait for the client, before no more reads are given out: the next ones are there when it has taken
/// what its socket holds.
const MAX_UNSENT: usize = 2 * TURN_BYTES;
/// How long a thread works for what is under way before it looks at the socket again.
const LINGER: Duration = Duration::from_micros(100);
/// Bytes of a list of extents.
const EXTENTS_LEN: u32 = 4096;

/// What a connection shares with its server and with others.
pub(super) struct Around<'a> {
    pub(super) volume: &'a dyn Volume,
    pub(super) lock: &'a RangeLock,
    pub(super) wakeup: &'a Arc<Wakeup>,
    pub(super) stop: &'a AtomicBool,
    pub(super) stats: &'a ConnStats,
    pub(super) read_only: bool,
    pub(super) max_requests: usize,
    pub(super) grace: Duration,
    pub(super) spin: Duration,
}

/// A request under way.
struct Pending {
    request: Request,
    /// Pieces that the volume has.
    open: u32,
    /// More pieces will come.
    more: bool,
    /// The first error.
    error: u32,
    /// The reply's data, if it must be in one piece and does not lie in one.
    gathered: Option<Vec<u8>>,
    /// Of a READ: the bytes at its beginning that are sent from where the volume has them.
    in_place: u32,
    /// The reply is complete.
    told: bool,
}

/// What the volume is asked for.
struct Task {
    pending: u32,
    held: Option<HeldRange>,
    /// Waits for the range lock.
    parked: Option<Io>,
    kind: Kind,
}

enum Kind {
    /// Nothing comes back but a result.
    Plain,
    Read(Span),
    /// What could not be sent from where the volume has it. Of no request: its reply is being sent.
    Fetch(Span),
    Extents,
    /// A part of a block: the block is being read; then these bytes go into it and it is written.
    Patch {
        block: u64,
        from: u32,
        bytes: Vec<u8>,
        flags: Flags,
    },
}

/// Where we are in what comes in.
enum Input {
    Header,
    /// A request whose pieces are still to be given out.
    Issue {
        pending: u32,
        at: u64,
        end: u64,
    },
    /// A WRITE whose payload comes.
    Payload {
        pending: u32,
        at: u64,
        end: u64,
        into: Option<Target>,
    },
    /// Payload that nobody wants; then the reply.
    Swallow {
        left: usize,
        then: Then,
    },
    /// Nothing more is read.
    Closed,
}

/// What replies when a payload is thrown away.
#[derive(Clone, Copy)]
enum Then {
    /// We do.
    Refuse { error: u32, cookie: u64 },
    /// The request itself, when its pieces are done.
    Finish(u32),
}

/// Where a piece of a payload goes.
enum Target {
    Lease {
        lease: Lease,
        piece: Piece,
        filled: usize,
    },
    Bytes {
        lease: Lease,
        piece: Piece,
        bytes: Vec<u8>,
    },
    /// Where the volume has them. What ends such a payload goes by a lease.
    InPlace { len: usize, filled: usize },
}

/// What the input waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    Bytes,
    /// Others first: what is done is sent, so that the client has something to do meanwhile.
    Turn,
    /// Something must be done or sent first.
    Room,
    Nothing,
}

pub(super) struct Conn<'a> {
    around: Around<'a>,
    stream: Stream,
    queue: Box<dyn Queue>,
    terms: Terms,
    inbox: Box<[u8]>,
    begin: usize,
    end: usize,
    input: Input,
    /// The last request had a large payload: do not read ahead.
    large: bool,
    /// The rest of its payload goes to leases.
    by_leases: bool,
    /// Of its next block, only a part has come.
    has_less_than_a_block: bool,
    /// The length from which on a READ is answered from where the volume has its bytes.
    in_place_from: u32,
    /// What the outbox misses is being read.
    fetches: bool,
    pending: Slab<Pending>,
    tasks: Slab<Task>,
    gathered: usize,
    outbox: Outbox,
    done: Vec<Done>,
    /// Requests that may still be taken in before something is sent.
    turn: usize,
    /// Bytes of reads that may still be given out before something is sent.
    turn_bytes: usize,
    /// What the input waits for.
    wants: Wants,
    /// The queue may have woken us: it is asked, so that it does not do so again.
    woken: bool,
    /// The kernel has just said that the socket has nothing.
    quiet: bool,
    /// Nobody listens any more.
    dead: bool,
    /// When this must be over, once it is known.
    until: Option<Instant>,
}

impl<'a> Conn<'a> {
    /// Goes on where the handshake has ended; `early` came behind it.
    ///
    /// # Errors
    /// The volume has no queue for us.
    pub(super) fn new(
        around: Around<'a>,
        stream: Stream,
        agreed: Agreed,
        early: &[u8],
    ) -> io::Result<Conn<'a>> {
        let info = Terms::whole_blocks(around.volume.info());
        let terms = Terms {
            info: info.ok_or(io::ErrorKind::InvalidInput)?,
            read_only: around.read_only,
            structured: agreed.structured,
            allocation: agreed.allocation,
            stopping: false,
        };
        let mut inbox = vec![0; INBOX.max(early.len())].into_boxed_slice();
        inbox[..early.len()].copy_from_slice(early);
        Ok(Conn {
            queue: around.volume.queue()?,
            in_place_from: stream.least_alone(),
            around,
            stream,
            terms,
            inbox,
            begin: 0,
            end: early.len(),
            input: Input::Header,
            large: false,
            by_leases: false,
            has_less_than_a_block: false,
            fetches: false,
            pending: Slab::default(),
            tasks: Slab::default(),
            gathered: 0,
            outbox: Outbox::default(),
            done: Vec::new(),
            turn: TURN,
            turn_bytes: TURN_BYTES,
            wants: Wants::Bytes,
            woken: false,
            quiet: false,
            dead: false,
            until: None,
        })
    }

    /// Serves until the client goes, or the server must stop.
    pub(super) fn run(mut self) {
        let mut spin = Spin::new(policy(self.around.spin));
        // Where there is nothing but the socket to wait for, its own call waits: that is half the system calls.
        let mut nap = true;
        while !self.is_over() {
            self.notice_stop();
            let mut progress = self.reap();
            (self.turn, self.turn_bytes) = (TURN, TURN_BYTES);
            self.wants = self.take_in();
            if self.wants == Wants::Bytes && !std::mem::take(&mut self.quiet) {
                // `is_over` begins the sleep that `found` then measures.
                let sleeps = nap && self.has_only_the_socket();
                let sleeps = sleeps && !spin.would_look() && spin.is_over();
                let came = self.receive(sleeps);
                progress |= came;
                nap = came || !sleeps;
                // It may have come after a stop that was not there before this wait.
                self.notice_stop();
                self.wants = self.take_in();
            }
            progress |= self.wants == Wants::Turn;
            self.queue.push();
            progress |= self.reap() || (self.outbox.is_empty() && self.linger());
            progress |= self.send();
            if progress {
                spin.found();
            } else if spin.is_over() {
                self.sleep();
            } else {
                spin.pause();
            }
        }
        self.stream.end();
    }

    fn has_only_the_socket(&self) -> bool {
        let told = self.outbox.is_empty() && !self.stream.holds_back();
        told && self.tasks.is_empty() && self.until.is_none() && !self.fills_in_place()
    }

    /// Works for what the volume has, if that is likely to end soon. Not amid a payload: the client fills the socket
    /// meanwhile, and would have to wait until it is emptied.
    fn linger(&mut self) -> bool {
        let payload_comes =
            self.wants == Wants::Bytes && matches!(self.input, Input::Payload { .. });
        !self.tasks.is_empty() && !payload_comes && self.queue.linger(LINGER) && self.reap()
    }

    /// Nothing under way, and nobody to tell.
    fn is_over(&self) -> bool {
        let closed = self.dead || matches!(self.input, Input::Closed);
        let told = self.dead || (self.outbox.is_empty() && !self.stream.holds_back());
        closed && told && self.pending.is_empty() && self.tasks.is_empty()
    }

    /// Without a client that reads and writes, this ends after a while. What is under way is finished nevertheless.
    fn notice_stop(&mut self) {
        if !self.terms.stopping && self.around.stop.load(Ordering::Relaxed) {
            self.terms.stopping = true;
            self.hurry();
        }
        if self.until.is_some_and(|until| Instant::now() >= until) {
            self.close();
            self.die();
        }
    }

    fn hurry(&mut self) {
        let until = Instant::now() + self.around.grace;
        self.until.get_or_insert(until);
    }

    /// Reads no more. A WRITE that came in part is given up; of it, what came in place and pieces that were whole are written.
    fn close(&mut self) {
        let input = std::mem::replace(&mut self.input, Input::Closed);
        (self.begin, self.end) = (0, 0);
        self.hurry();
        if let Input::Payload { pending, .. }
        | Input::Issue { pending, .. }
        | Input::Swallow {
            then: Then::Finish(pending),
            ..
        } = input
        {
            if let Some(waiting) = self.pending.get_mut(pending) {
                (waiting.more, waiting.error) = (false, error::EINVAL);
            }
            self.finish_if_done(pending);
        }
    }

    fn die(&mut self) {
        self.dead = true;
        self.outbox.clear();
    }

    fn send(&mut self) -> bool {
        if self.dead {
            return false;
        }
        match self.outbox.send(&mut self.stream, &mut *self.queue) {
            Ok(sent) => self.fetch() || sent > 0,
            Err(_) => {
                self.close();
                self.die();
                true
            }
        }
    }

    /// Sleeps until the client, the volume or another thread has something.
    fn sleep(&mut self) {
        if self.is_over() {
            return;
        }
        // The queue only has results of tasks, and memory where there was none: without both it need not wake us.
        let misses = self.outbox.misses().is_some();
        let waits_for_queue = misses || !self.tasks.is_empty() || self.wants == Wants::Room;
        let mut of_queue = PollFlags::empty();
        if waits_for_queue {
            self.woken = true;
            of_queue = PollFlags::IN;
            if self.queue.arm() {
                return;
            }
        }
        let mut events = PollFlags::empty();
        if self.wants == Wants::Bytes {
            events |= PollFlags::IN;
        }
        if !misses && (!self.outbox.is_empty() || self.stream.holds_back()) {
            events |= PollFlags::OUT;
        }
        let left = self
            .until
            .map(|until| until.saturating_duration_since(Instant::now()));
        let limit = left.filter(|_| !self.dead);
        let socket = self.stream.as_fd();
        let mut fds = [
            PollFd::from_borrowed_fd(self.queue.fd(), of_queue),
            PollFd::from_borrowed_fd(self.around.wakeup.event.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(socket, events),
        ];
        // One that is gone would be reported again and again.
        let watched = if self.dead { 2 } else { 3 };
        if poll(&mut fds[..watched], limit).is_err() {
            return;
        }
        let (woken, hung_up) = (!fds[1].revents().is_empty(), fds[2].revents());
        let asked = events.contains(PollFlags::IN) && self.stream.is_plain();
        self.quiet = asked && hung_up.is_empty();
        if woken {
            self.around.wakeup.event.drain();
        }
        let gone = hung_up.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        if gone && events.is_empty() {
            self.close();
            self.die();
        }
    }
}

/// How a connection's thread spins: after some turns, for `longest` at most. What comes late lets it sleep at once, as
/// the socket's own call can wait, and only one wait in 16 tries again. A look takes locks of the socket that the client
/// needs as well, so looks are further apart than elsewhere. One core is left to the clients.
///
/// Two turns bring most of what four do, and 16 no more (docs/decisions/0021).
fn policy(longest: Duration) -> Policy {
    Policy {
        turns: 4,
        longest,
        shortest: Duration::ZERO,
        probe_every: 16,
        probe: longest,
        short_sleep: longest,
        pauses: 16,
        yields: true,
        leaves_a_core: true,
    }
}
