//! Joins two ends: what comes from one goes to the other, both ways, until one of them ends.
//!
//! One thread for each pair of queues. A round is bounded. Where there is no room nothing is taken, and the sender
//! feels it there; a frame that finds none all the same is kept (one for each way). Nobody's frames wait for a full burst.

use super::{End, EndError, More, Sent, Sleep};
use crate::engine::Meta;
use crate::engine::chain::Frame;
use crate::layout::PACKET_MAX;
use memlane_sys::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes after which a receiver is told, in the middle of a burst: it can begin while we go on.
const TELL_AFTER: usize = 64 << 10;
/// The longest sleep: kept mappings are looked through after it.
const LONGEST: Duration = Duration::from_secs(10);

/// How two ends are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Frames of one way before the other has its turn.
    pub burst: usize,
    /// How long to look for more before a sleep.
    pub spin: Duration,
}

impl Default for Terms {
    /// 32 frames; 10 µs, which is about what a sleep and a bell cost.
    fn default() -> Terms {
        Terms {
            burst: 32,
            spin: Duration::from_micros(10),
        }
    }
}

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

/// Why a join is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// It was asked to stop.
    Stopped,
    /// An end ended.
    Ended(Side, EndError),
}

/// A frame that found no room, of one way.
#[derive(Debug)]
struct Held {
    bytes: Box<[u8]>,
    len: usize,
    meta: Meta,
    /// What to wait for; 0: for nothing. There may be something to wait for although nothing is held.
    room: u32,
}

impl Held {
    fn new() -> Held {
        Held {
            bytes: vec![0; PACKET_MAX].into(),
            len: 0,
            meta: Meta::default(),
            room: 0,
        }
    }

    fn keep(&mut self, frame: &Frame<'_>, room: u32) {
        self.len = frame.copy_out(0, &mut self.bytes);
        self.meta = frame.meta();
        self.room = room.max(1);
    }

    /// Tries again; `false`: there is still no room.
    fn send(&mut self, to: &mut dyn End, lost: &mut u64) -> Result<bool, EndError> {
        if self.len == 0 {
            self.room = to.lacks()?;
            return Ok(self.room == 0);
        }
        let mut sent = Ok(Sent::Queued);
        super::lend(&self.bytes[..self.len], self.meta, &mut |frame| {
            sent = to.send(frame);
            More::No
        });
        match sent? {
            Sent::Full(room) => self.room = room.max(1),
            sent => {
                *lost += u64::from(sent == Sent::Refused);
                (self.len, self.room) = (0, 0);
            }
        }
        Ok(self.room == 0)
    }
}

/// Two ends that are joined.
#[derive(Debug)]
pub struct Join {
    ends: [Box<dyn End>; 2],
    /// From A to B, and back.
    held: [Held; 2],
    lost: [u64; 2],
    terms: Terms,
}

impl Join {
    /// Joins them; [`run`](Self::run) or [`step`](Self::step) has them work.
    ///
    /// # Errors
    /// One has ended.
    pub fn new(mut a: Box<dyn End>, mut b: Box<dyn End>, terms: Terms) -> Result<Join, EndError> {
        a.limit(b.offloads())?;
        b.limit(a.offloads())?;
        Ok(Join {
            ends: [a, b],
            held: [Held::new(), Held::new()],
            lost: [0; 2],
            terms,
        })
    }

    /// The ends, to read their counters.
    pub fn ends(&self) -> [&dyn End; 2] {
        [&*self.ends[0], &*self.ends[1]]
    }

    /// Frames that the other end could not use: from A to B, and back.
    pub fn lost(&self) -> [u64; 2] {
        self.lost
    }

    /// The ends, to join one of them anew. A frame that is held is lost, as on any wire.
    pub fn into_ends(self) -> [Box<dyn End>; 2] {
        self.ends
    }

    /// One round, both ways; how many frames moved. Does not sleep.
    ///
    /// # Errors
    /// It is over.
    pub fn step(&mut self) -> Result<usize, Over> {
        let [a, b] = &mut self.ends;
        let [there, back] = &mut self.held;
        let [lost_there, lost_back] = &mut self.lost;
        let burst = self.terms.burst;
        let n = carry(
            (&mut **a, Side::A),
            (&mut **b, Side::B),
            burst,
            there,
            lost_there,
        )?;
        let m = carry(
            (&mut **b, Side::B),
            (&mut **a, Side::A),
            burst,
            back,
            lost_back,
        )?;
        Ok(n + m)
    }

    /// Works until an end ends, or one of `stops` is readable.
    pub fn run(&mut self, stops: &[BorrowedFd<'_>]) -> Over {
        loop {
            match self.round(stops) {
                Ok(()) => {}
                Err(over) => return over,
            }
        }
    }

    /// Works as long as there is something, and sleeps once.
    fn round(&mut self, stops: &[BorrowedFd<'_>]) -> Result<(), Over> {
        let mut idle_since = None;
        let mut rounds: u32 = 0;
        loop {
            rounds += 1;
            if rounds.is_multiple_of(64) && called(stops) {
                return Err(Over::Stopped);
            }
            if self.step()? > 0 {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= self.terms.spin {
                break;
            }
            std::hint::spin_loop();
        }
        if !self.sleeps()? {
            // An end that says so again and again does not keep us from stopping.
            return if called(stops) {
                Err(Over::Stopped)
            } else {
                Ok(())
            };
        }
        if self.sleep(stops)? {
            return Err(Over::Stopped);
        }
        for (end, side) in self.ends.iter_mut().zip([Side::A, Side::B]) {
            end.woken().map_err(|error| Over::Ended(side, error))?;
        }
        Ok(())
    }

    /// What A and B are to be waited for: frames, unless one is held; room, if one is.
    fn until(&self) -> [Sleep; 2] {
        let [there, back] = [self.held[0].room, self.held[1].room];
        let sleep = |out: u32, room| Sleep {
            frames: out == 0,
            room,
        };
        [sleep(there, back), sleep(back, there)]
    }

    fn sleeps(&mut self) -> Result<bool, Over> {
        let until = self.until();
        for ((end, until), side) in self.ends.iter_mut().zip(until).zip([Side::A, Side::B]) {
            if !end
                .sleeps(until)
                .map_err(|error| Over::Ended(side, error))?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `true`: it is to stop.
    fn sleep(&self, stops: &[BorrowedFd<'_>]) -> Result<bool, Over> {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(8);
        fds.extend(
            stops
                .iter()
                .map(|stop| PollFd::from_borrowed_fd(*stop, PollFlags::IN)),
        );
        let until = self.until();
        let mut limit = LONGEST;
        for (end, until) in self.ends.iter().zip(until) {
            end.watch(until, &mut fds);
            if let Some(due) = end.due().filter(|_| until.frames) {
                limit = limit.min(due.saturating_duration_since(Instant::now()));
            }
        }
        let limit = Timespec::try_from(limit).ok();
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                let error = EndError::Device(Errno(error.raw_os_error()));
                return Err(Over::Ended(Side::A, error));
            }
        }
        Ok(fds[..stops.len()].iter().any(|fd| !fd.revents().is_empty()))
    }
}

/// One way, a burst of it.
fn carry(
    (from, from_side): (&mut dyn End, Side),
    (to, to_side): (&mut dyn End, Side),
    burst: usize,
    held: &mut Held,
    lost: &mut u64,
) -> Result<usize, Over> {
    let wrong = |side| move |error| Over::Ended(side, error);
    if held.room > 0 {
        if !held.send(to, lost).map_err(wrong(to_side))? {
            to.flush().map_err(wrong(to_side))?;
            return Ok(0);
        }
        to.flush().map_err(wrong(to_side))?;
    }
    let (mut failed, mut untold) = (None, 0);
    let came = from.receive(burst, &mut |frame| {
        let sent = to.send(frame).and_then(|sent| {
            untold += frame.len();
            if untold >= TELL_AFTER {
                untold = 0;
                to.flush()?;
            }
            Ok(sent)
        });
        match sent {
            Ok(Sent::Queued) => match to.lacks() {
                Ok(0) => return More::Yes,
                Ok(room) => held.room = room,
                Err(error) => failed = Some(error),
            },
            Ok(Sent::Refused) => {
                *lost += 1;
                return More::Yes;
            }
            Ok(Sent::Full(room)) => held.keep(frame, room),
            Err(error) => failed = Some(error),
        }
        More::No
    });
    let flushed = to.flush();
    if let Some(error) = failed {
        return Err(wrong(to_side)(error));
    }
    flushed.map_err(wrong(to_side))?;
    came.map_err(wrong(from_side))
}

fn called(stops: &[BorrowedFd<'_>]) -> bool {
    let mut fds: Vec<_> = stops
        .iter()
        .map(|stop| PollFd::from_borrowed_fd(*stop, PollFlags::IN))
        .collect();
    let now = Timespec::default();
    poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}

/// Has joins work, each on a thread of its own, until one is over or one of `stops` is readable; what became of each.
/// The others are stopped then: queues of one link live and die together.
///
/// # Errors
/// No descriptor to stop them with.
pub fn run_all(joins: &mut [Join], stops: &[BorrowedFd<'_>]) -> Result<Vec<Over>, Errno> {
    let halt = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| Errno(e.raw_os_error()))?;
    let mut all = stops.to_vec();
    all.push(halt.as_fd());
    Ok(std::thread::scope(|scope| {
        let threads: Vec<_> = joins
            .iter_mut()
            .map(|join| scope.spawn(|| stopping_the_others(join, &all, &halt)))
            .collect();
        let overs = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        overs.map(|over| over.unwrap_or(Over::Stopped)).collect()
    }))
}

fn stopping_the_others(join: &mut Join, stops: &[BorrowedFd<'_>], halt: &OwnedFd) -> Over {
    let over = join.run(stops);
    // Readable from now on, as nobody reads it.
    let _ = rustix::io::write(halt, &1_u64.to_ne_bytes());
    over
}
