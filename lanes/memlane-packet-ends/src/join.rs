//! Joins two ends: what comes from one goes to the other, both ways, until one of them ends.
//!
//! One thread for each pair of queues. A round is bounded. Where there is no room nothing is taken, and the sender
//! feels it there; a frame that finds none all the same is kept (one for each way). Nobody's frames wait for a full burst.

use super::segment::Cut;
use super::tally::Board;
use super::{End, EndError, Filled, More, Placed, Sent, Sleep, Taker};
use memlane_packet::engine::chain::{Frame, Room};
use memlane_packet::io::socket::errno;
use memlane_packet::layout::PACKET_MAX;
use memlane_packet::{Meta, Offloads};
use memlane_sys::Errno;
use memlane_wait::event::EventFd;
use memlane_wait::spin::{Policy, Spin};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes after which a receiver is told, in the middle of a burst: it can begin while we go on.
const TELL_AFTER: usize = 64 << 10;
/// Rounds in which an end that found nothing and has to ask the kernel is not asked again, as long as the other way
/// keeps us busy: its frames come in bursts then, one system call instead of many.
const UNASKED: u8 = 3;
/// The longest sleep: kept mappings are looked through after it.
const LONGEST: Duration = Duration::from_secs(10);
/// Rounds of work after which others are looked after: who wants it to stop, who reads its counters.
const LOOK_AFTER: u32 = 64;

/// How two ends are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Frames of one way before the other has its turn.
    pub burst: usize,
    /// How long to look for more before a sleep.
    pub spin: Duration,
}

impl Default for Terms {
    /// 32 frames; 10 µs, which is about what a sleep and a doorbell cost.
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

/// A frame that found no room, or is being cut up, of one way.
#[derive(Debug)]
struct HeldFrame {
    bytes: Box<[u8]>,
    /// 0: nothing is held.
    len: usize,
    meta: Meta,
    /// How far it is cut up.
    cut: Option<Cut>,
    /// What to wait for; 0: for nothing. There may be something to wait for although nothing is held.
    room: u32,
    /// Frames that the other end could not use.
    lost: u64,
    /// Frames that were cut up for it.
    segmented: u64,
}

impl HeldFrame {
    fn new() -> HeldFrame {
        HeldFrame {
            bytes: vec![0; PACKET_MAX].into(),
            len: 0,
            meta: Meta::default(),
            cut: None,
            room: 0,
            lost: 0,
            segmented: 0,
        }
    }

    fn keep(&mut self, frame: &Frame<'_>, room: u32) {
        self.len = frame.copy_out(0, &mut self.bytes);
        self.meta = frame.meta();
        self.room = room.max(1);
    }

    /// Takes a large frame that `to` does not, to send it in segments; `false`: it is none that can be cut.
    #[cold]
    fn begin_cut(&mut self, frame: &Frame<'_>) -> bool {
        // Who would have it cut has left its checksum to us; otherwise a damaged frame would get a right one.
        let meta = frame.meta();
        let Some(gso) = meta.gso.filter(|_| meta.csum_blank) else {
            return false;
        };
        let len = frame.copy_out(0, &mut self.bytes);
        self.cut = Cut::new(&self.bytes[..len], gso);
        if self.cut.is_some() {
            self.len = len;
            // Complete, and never left this machine.
            self.meta = Meta {
                data_validated: true,
                ..Meta::default()
            };
            self.segmented += 1;
        }
        self.cut.is_some()
    }

    /// Sends what is held, of a frame that is cut at most `burst` segments; how many frames went.
    fn send(&mut self, to: &mut dyn End, burst: usize) -> Result<usize, EndError> {
        if self.len == 0 {
            self.room = to.lacks()?;
            return Ok(0);
        }
        let mut went = 0;
        while self.len > 0 && went < burst {
            match self.send_one(to)? {
                Sent::Full(room) => {
                    self.room = room.max(1);
                    break;
                }
                sent => {
                    self.lost += u64::from(sent == Sent::Refused);
                    self.room = 0;
                    went += 1;
                }
            }
        }
        Ok(went)
    }

    /// Sends what is held, or the next segment of it, and forgets it unless there is no room.
    fn send_one(&mut self, to: &mut dyn End) -> Result<Sent, EndError> {
        let whole = &self.bytes[..self.len];
        let parts = match &mut self.cut {
            None => Some([whole, &[]]),
            Some(cut) => cut.segment(whole).map(|one| [one.headers, one.payload]),
        };
        let mut sent = Ok(Sent::Queued);
        if let Some(parts) = parts {
            super::lend_both(parts, self.meta, &mut |frame| {
                sent = to.send(frame);
                More::No
            });
        }
        if !matches!(sent, Ok(Sent::Full(_))) {
            let cut = self.cut.as_mut();
            let more = cut.is_some_and(|cut| {
                cut.advance();
                cut.is_left()
            });
            if !more {
                (self.len, self.cut) = (0, None);
            }
        }
        sent
    }
}

/// Two ends that are joined.
#[derive(Debug)]
pub struct Join {
    ends: [Box<dyn End>; 2],
    /// From A to B, and back.
    held: [HeldFrame; 2],
    boards: [Arc<Board>; 2],
    /// Rounds in which A, B need not be asked.
    unasked: [u8; 2],
    spin: Spin,
    terms: Terms,
}

/// Looks for as long as asked, and half as long after each look in vain, down to none. Once in 64 sleeps it looks again,
/// because frames may come faster by now. It keeps its core: the other end of a queue has one of its own.
fn policy(longest: Duration) -> Policy {
    Policy {
        longest,
        shortest: Duration::ZERO,
        probe_every: 64,
        probe: longest,
        yields: false,
        ..Policy::default()
    }
}

impl Join {
    /// Joins them; [`run`](Self::run) or [`step`](Self::step) has them work.
    ///
    /// # Errors
    /// One has ended.
    pub fn new(mut a: Box<dyn End>, mut b: Box<dyn End>, terms: Terms) -> Result<Join, EndError> {
        // Large frames, whatever the other takes: cutting one up here costs less than a call of the kernel for each
        // segment.
        for end in [&mut a, &mut b] {
            end.limit(Offloads::ALL)?;
        }
        let join = Join {
            ends: [a, b],
            held: [HeldFrame::new(), HeldFrame::new()],
            boards: Default::default(),
            unasked: [0; 2],
            spin: Spin::new(policy(terms.spin)),
            terms,
        };
        join.show();
        Ok(join)
    }

    /// Where the counters of A and B can be read while it works, and afterwards.
    pub fn boards(&self) -> [Arc<Board>; 2] {
        self.boards.clone()
    }

    /// Only between rounds: who works may not be kept from it by who looks.
    fn show(&self) {
        for (end, board) in self.ends.iter().zip(&self.boards) {
            board.show(&end.tally());
        }
    }

    /// The ends, to read their counters.
    pub fn ends(&self) -> [&dyn End; 2] {
        [&*self.ends[0], &*self.ends[1]]
    }

    /// Frames that the other end could not use: from A to B, and back.
    pub fn lost(&self) -> [u64; 2] {
        [self.held[0].lost, self.held[1].lost]
    }

    /// Large frames that were cut up for the other end: from A to B, and back.
    pub fn segmented(&self) -> [u64; 2] {
        [self.held[0].segmented, self.held[1].segmented]
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
        let burst = self.terms.burst;
        let [mut n, mut m] = [0; 2];
        let asked = self.unasked.map(|rounds| rounds == 0);
        if asked[0] {
            n = carry((&mut **a, Side::A), (&mut **b, Side::B), burst, there)?;
        }
        if asked[1] {
            m = carry((&mut **b, Side::B), (&mut **a, Side::A), burst, back)?;
        }
        self.unasked[0] = unasked(&**a, self.unasked[0], n, m);
        self.unasked[1] = unasked(&**b, self.unasked[1], m, n);
        Ok(n + m)
    }

    /// Works until an end ends, or one of `stops` is readable.
    pub fn run(&mut self, stops: &[BorrowedFd<'_>]) -> Over {
        loop {
            match self.round(stops) {
                Ok(()) => {}
                Err(over) => {
                    self.show();
                    return over;
                }
            }
        }
    }

    /// Works as long as there is something, and sleeps once.
    fn round(&mut self, stops: &[BorrowedFd<'_>]) -> Result<(), Over> {
        let mut rounds: u32 = 0;
        loop {
            rounds += 1;
            if rounds.is_multiple_of(LOOK_AFTER) {
                self.show();
                if called(stops) {
                    return Err(Over::Stopped);
                }
            }
            if self.step()? > 0 {
                self.spin.found();
            } else if self.spin.is_over() {
                break;
            } else {
                self.spin.pause();
            }
        }
        self.show();
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

/// In how many rounds more an end need not be asked that has just given `came` frames, while the other way had `other`.
fn unasked(end: &dyn End, rounds: u8, came: usize, other: usize) -> u8 {
    match (other, rounds) {
        (0, _) => 0,
        (_, 0) if came == 0 && end.asks_the_kernel() => UNASKED,
        (_, rounds) => rounds.saturating_sub(1),
    }
}

/// One way, a burst of it.
fn carry(
    (from, from_side): (&mut dyn End, Side),
    (to, to_side): (&mut dyn End, Side),
    burst: usize,
    held: &mut HeldFrame,
) -> Result<usize, Over> {
    let wrong = |side| move |error| Over::Ended(side, error);
    if held.room > 0 || held.len > 0 {
        let went = held.send(to, burst).map_err(wrong(to_side))?;
        to.flush().map_err(wrong(to_side))?;
        if held.room > 0 || held.len > 0 {
            return Ok(went);
        }
    }
    let mut giving = Giving {
        takes_all: to.offloads() == Offloads::ALL,
        to,
        burst,
        held,
        failed: None,
        untold: 0,
    };
    let came = from.receive_for(burst, &mut giving);
    let Giving { to, failed, .. } = giving;
    let flushed = to.flush();
    if let Some(error) = failed {
        return Err(wrong(to_side)(error));
    }
    flushed.map_err(wrong(to_side))?;
    came.map_err(wrong(from_side))
}

/// One way's frames, on their way.
struct Giving<'a> {
    to: &'a mut dyn End,
    /// Does it take whatever comes, uncut?
    takes_all: bool,
    burst: usize,
    held: &'a mut HeldFrame,
    failed: Option<EndError>,
    /// Bytes that the receiver was not told of.
    untold: usize,
}

impl Giving<'_> {
    /// A frame of `len` bytes was sent, or was not.
    fn after(&mut self, sent: Result<Sent, EndError>, len: usize) -> Result<Sent, EndError> {
        let sent = sent?;
        self.untold += len;
        if self.untold >= TELL_AFTER {
            self.untold = 0;
            self.to.flush()?;
        }
        Ok(sent)
    }

    /// Is there to be another one?
    fn more(&mut self, sent: Result<Sent, EndError>) -> More {
        match sent {
            Ok(Sent::Queued) if self.held.len > 0 => {}
            Ok(Sent::Queued) => match self.to.lacks() {
                Ok(0) => return More::Yes,
                Ok(room) => self.held.room = room,
                Err(error) => self.failed = Some(error),
            },
            Ok(Sent::Refused) => {
                self.held.lost += 1;
                return More::Yes;
            }
            Ok(Sent::Full(room)) => self.held.room = room.max(1),
            Err(error) => self.failed = Some(error),
        }
        More::No
    }
}

impl Taker for Giving<'_> {
    fn take(&mut self, frame: &Frame<'_>) -> More {
        let sent = pass(frame, self.to, self.burst, self.held);
        if let Ok(Sent::Full(room)) = sent {
            self.held.keep(frame, room);
        }
        let sent = self.after(sent, frame.len());
        self.more(sent)
    }

    fn place(&mut self, fill: &mut dyn FnMut(&Room<'_>) -> Filled) -> Option<More> {
        // What has to be cut up is not placed: only who has read it knows.
        if !self.takes_all {
            return None;
        }
        let mut len = 0;
        let placed = self.to.place(&mut |room| {
            let filled = fill(room);
            len = filled.map_or(0, |(len, _)| len);
            filled
        });
        let sent = match placed {
            Ok(Placed::NotHere) => return None,
            // Nothing came, or nothing of use: who has filled knows.
            Ok(Placed::Nothing) => return Some(More::Yes),
            Ok(Placed::Sent(sent)) => Ok(sent),
            Err(error) => Err(error),
        };
        let sent = self.after(sent, len);
        Some(self.more(sent))
    }
}

/// Sends a frame, or begins to send it in segments: then some of it may be held.
#[inline]
fn pass(
    frame: &Frame<'_>,
    to: &mut dyn End,
    burst: usize,
    held: &mut HeldFrame,
) -> Result<Sent, EndError> {
    let gso = frame.meta().gso;
    if gso.is_some() && !to.offloads().allow(gso) && held.begin_cut(frame) {
        held.send(to, burst)?;
        return Ok(Sent::Queued);
    }
    to.send(frame)
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
    let halt = EventFd::new().map_err(errno)?;
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

fn stopping_the_others(join: &mut Join, stops: &[BorrowedFd<'_>], halt: &EventFd) -> Over {
    let over = join.run(stops);
    // Readable from now on, as nobody reads it.
    halt.signal();
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_make_others_rarer() {
        if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
            return; // a thread that looks keeps the other one from working: it never does
        }
        let mut spin = Spin::new(policy(Terms::default().spin));
        let mut in_vain = || {
            let looks = spin.would_look();
            spin.start(Duration::ZERO);
            assert!(spin.is_over());
            looks
        };
        // For 10, 5, 2.5 and 1.25 µs.
        let looked: Vec<u32> = (0..200).filter(|_| in_vain()).collect();
        assert_eq!(looked, [0, 1, 2, 3, 63, 127, 191]);
    }
}
