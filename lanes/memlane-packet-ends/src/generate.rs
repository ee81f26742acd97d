//! A generator and a sink: frames that show by themselves whether all of them came, once, in order, and unchanged.
//!
//! A frame is Ethernet of type 0x88b5 (IEEE 802, local experimental), then, big endian: magic u32, stream u32,
//! sequence u64, and bytes that follow from both. The shortest has 30 bytes.

use super::tally::{EndCounts, Verdict};
use super::{End, EndError, More, Sent, Sleep, lend};
use memlane_packet::Meta;
use memlane_packet::engine::chain::Frame;
use memlane_packet::layout::{PACKET_MAX, PACKET_MIN};
use rustix::event::PollFd;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Bytes before those that follow from stream and sequence: also the shortest frame.
pub const HEADER: usize = PACKET_MIN + 16;
const TYPE: [u8; 2] = [0x88, 0xb5];
const MAGIC: u32 = 0x6d6c_706b;
/// Streams that a sink tells apart; frames of more are `strange`.
const STREAMS: usize = 64;
/// Frames behind the newest that a sink remembers, to tell a late one from one that came twice.
const WINDOW: u64 = REMEMBERED as u64;
const REMEMBERED: usize = 1024;

/// What to generate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Which stream: each generator's own.
    pub stream: u32,
    /// Bytes of a frame: the shortest and the longest, by turns from the one to the other.
    pub sizes: (usize, usize),
    /// How many frames; 0: without end.
    pub count: u64,
    /// How many a second; 0: as many as go.
    pub rate: u64,
}

impl Plan {
    /// `None`: there are no such frames.
    #[must_use]
    pub fn checked(self) -> Option<Plan> {
        let (low, high) = self.sizes;
        (HEADER <= low && low <= high && high <= PACKET_MAX).then_some(self)
    }
}

/// The byte at `at` of a frame's filling.
fn filling(stream: u32, sequence: u64, into: &mut [u8]) {
    // xorshift: another for each frame, and each byte depends on its place.
    let mut state = (sequence << 20) ^ u64::from(stream) ^ 0x9e37_79b9_7f4a_7c15;
    for chunk in into.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

/// Writes frame number `sequence` of a stream over `frame`, which has [`HEADER`] bytes or more.
pub fn write(stream: u32, sequence: u64, frame: &mut [u8]) {
    let Some((header, rest)) = frame.split_at_mut_checked(HEADER) else {
        return;
    };
    // To everybody who listens in, from an address of local making.
    header[..6].fill(0xff);
    header[6..12].copy_from_slice(&[2, 0x6d, 0x6c, 0, 0, 1]);
    header[12..14].copy_from_slice(&TYPE);
    header[14..18].copy_from_slice(&MAGIC.to_be_bytes());
    header[18..22].copy_from_slice(&stream.to_be_bytes());
    header[22..30].copy_from_slice(&sequence.to_be_bytes());
    filling(stream, sequence, rest);
}

/// A source of frames, without end or up to a number. It drops frames that are sent to it.
#[derive(Debug)]
pub struct Generator {
    plan: Plan,
    next: u64,
    size: usize,
    started: Option<Instant>,
    frame: Box<[u8]>,
    counts: EndCounts,
}

impl Generator {
    /// Of a plan that was [checked](Plan::checked).
    pub fn new(plan: Plan) -> Generator {
        Generator {
            plan,
            next: 0,
            size: plan.sizes.0,
            started: None,
            frame: vec![0; PACKET_MAX].into(),
            counts: EndCounts::default(),
        }
    }

    /// When the next one is due, if frames are paced.
    fn next_due(&self) -> Option<Instant> {
        let nanos = u128::from(self.next) * 1_000_000_000 / u128::from(self.plan.rate.max(1));
        let after = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        (self.plan.rate > 0).then(|| self.started?.checked_add(after))?
    }

    fn is_over(&self) -> bool {
        self.plan.count > 0 && self.next >= self.plan.count
    }
}

impl End for Generator {
    fn name(&self) -> &'static str {
        "gen"
    }

    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        if self.is_over() {
            return Err(EndError::Finished);
        }
        let now = Instant::now();
        self.started.get_or_insert(now);
        let mut n = 0;
        while n < most && !self.is_over() && self.next_due().is_none_or(|due| due <= now) {
            let frame = &mut self.frame[..self.size];
            write(self.plan.stream, self.next, frame);
            self.next += 1;
            self.counts.count_received(self.size);
            n += 1;
            let more = lend(frame, Meta::default(), take);
            let (low, high) = self.plan.sizes;
            self.size = if self.size < high { self.size + 1 } else { low };
            if more == More::No {
                break;
            }
        }
        Ok(n)
    }

    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        self.counts.count_sent(frame.len());
        Ok(Sent::Queued)
    }

    fn sleeps(&mut self, until: Sleep) -> Result<bool, EndError> {
        let due = self.next_due();
        Ok(!until.frames || due.is_some_and(|due| due > Instant::now()))
    }

    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}

    fn due(&self) -> Option<Instant> {
        self.next_due()
    }

    fn counts(&self) -> EndCounts {
        self.counts
    }
}

/// One stream, as a sink sees it.
#[derive(Debug)]
struct Stream {
    /// The sequence number behind the newest.
    next: u64,
    /// Which of the last [`WINDOW`] came, by number modulo that.
    seen: Box<[bool]>,
}

/// Takes frames and looks at them. None come from it, until it has [enough](Sink::until).
#[derive(Debug, Default)]
pub struct Sink {
    streams: BTreeMap<u32, Stream>,
    verdict: Verdict,
    counts: EndCounts,
    frame: Vec<u8>,
    right: Vec<u8>,
    /// Good frames after which it has finished; 0: never.
    enough: u64,
}

impl Sink {
    /// One that has seen nothing.
    pub fn new() -> Sink {
        Sink {
            frame: vec![0; PACKET_MAX],
            right: vec![0; PACKET_MAX],
            ..Sink::default()
        }
    }

    /// A sink that is finished when it has seen this many good frames; 0: never.
    #[must_use]
    pub fn until(good: u64) -> Sink {
        Sink {
            enough: good,
            ..Sink::new()
        }
    }

    fn has_enough(&self) -> bool {
        self.enough > 0 && self.verdict.good >= self.enough
    }

    fn look(&mut self, len: usize) {
        let frame = &self.frame[..len];
        let ours = len >= HEADER && frame[12..14] == TYPE && frame[14..18] == MAGIC.to_be_bytes();
        let stream = frame
            .get(18..22)
            .map_or([0; 4], |b| b.try_into().unwrap_or_default());
        let stream = u32::from_be_bytes(stream);
        let known = self.streams.contains_key(&stream) || self.streams.len() < STREAMS;
        if !ours || !known {
            self.verdict.strange += 1;
            return;
        }
        let sequence = u64::from_be_bytes(frame[22..30].try_into().unwrap_or_default());
        let right = &mut self.right[..len];
        write(stream, sequence, right);
        if frame != right {
            self.verdict.changed += 1;
            return;
        }
        self.count(stream, sequence);
    }

    fn count(&mut self, stream: u32, sequence: u64) {
        let stream = self.streams.entry(stream).or_insert_with(|| Stream {
            next: 0,
            seen: vec![false; REMEMBERED].into(),
        });
        let verdict = &mut self.verdict;
        if sequence >= stream.next {
            verdict.missing = verdict.missing.saturating_add(sequence - stream.next);
            // A jump of more than the window forgets all of it; the loop is bounded.
            let from = stream.next.max(sequence.saturating_sub(WINDOW));
            for passed in from..sequence {
                stream.seen[(passed % WINDOW) as usize] = false;
            }
            stream.seen[(sequence % WINDOW) as usize] = true;
            stream.next = sequence.saturating_add(1);
            verdict.good += 1;
            return;
        }
        let seen = &mut stream.seen[(sequence % WINDOW) as usize];
        // What is older than the window may have come before; that it came twice is the worse news.
        if stream.next - sequence > WINDOW || *seen {
            verdict.twice += 1;
            return;
        }
        *seen = true;
        verdict.missing = verdict.missing.saturating_sub(1);
        verdict.late += 1;
        verdict.good += 1;
    }
}

impl End for Sink {
    fn name(&self) -> &'static str {
        "sink"
    }

    fn receive(
        &mut self,
        _: usize,
        _: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        match self.has_enough() {
            true => Err(EndError::Finished),
            false => Ok(0),
        }
    }

    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        let len = frame.copy_out(0, &mut self.frame);
        self.counts.count_sent(len);
        self.look(len);
        Ok(Sent::Queued)
    }

    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        Ok(!self.has_enough())
    }

    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}

    fn verdict(&self) -> Option<Verdict> {
        Some(self.verdict)
    }

    fn counts(&self) -> EndCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(sink: &mut Sink, frame: &[u8]) {
        lend(frame, Meta::default(), &mut |frame| {
            assert_eq!(sink.send(frame), Ok(Sent::Queued));
            More::Yes
        });
    }

    fn frame(stream: u32, sequence: u64, len: usize) -> Vec<u8> {
        let mut frame = vec![0; len];
        write(stream, sequence, &mut frame);
        frame
    }

    #[test]
    fn a_sink_tells_what_became_of_each_frame() {
        let mut sink = Sink::new();
        for n in [0, 1, 2, 4, 3, 4, 7] {
            show(&mut sink, &frame(5, n, 100));
        }
        show(&mut sink, &frame(6, 0, HEADER));
        let mut changed = frame(5, 8, 100);
        changed[99] ^= 1;
        show(&mut sink, &changed);
        show(&mut sink, &[0; 60]);
        show(&mut sink, &frame(5, 0, 100)[..HEADER - 1]);
        let expected = Verdict {
            good: 7,
            missing: 2,
            late: 1,
            twice: 1,
            changed: 1,
            strange: 2,
        };
        assert_eq!(sink.verdict(), Some(expected));
    }

    #[test]
    fn a_frame_of_before_the_window_is_taken_for_one_that_came() {
        let mut sink = Sink::new();
        show(&mut sink, &frame(0, 5 * WINDOW, 64));
        show(&mut sink, &frame(0, 4 * WINDOW + 1, 64));
        show(&mut sink, &frame(0, 4 * WINDOW, 64));
        let verdict = sink.verdict().unwrap();
        assert_eq!((verdict.late, verdict.twice), (1, 1));
        assert_eq!(verdict.missing, 5 * WINDOW - 1);
        show(&mut sink, &frame(0, u64::MAX - 1, 64));
    }

    #[test]
    fn a_sink_that_has_enough_has_finished() {
        let mut sink = Sink::until(2);
        for (n, over) in [(0, false), (0, false), (1, true)] {
            show(&mut sink, &frame(5, n, 100));
            let came = sink.receive(1, &mut |_| More::Yes);
            assert_eq!(came == Err(EndError::Finished), over, "{n}: {came:?}");
            assert_eq!(sink.sleeps(Sleep::FOR_FRAMES), Ok(!over));
        }
    }

    #[test]
    fn a_generator_keeps_to_its_plan() {
        let plan = Plan {
            stream: 1,
            sizes: (HEADER, HEADER + 2),
            count: 5,
            rate: 0,
        };
        let mut generator = Generator::new(plan.checked().unwrap());
        let mut lens = Vec::new();
        let mut note = |frame: &Frame<'_>| {
            lens.push(frame.len());
            More::Yes
        };
        while generator.receive(2, &mut note).is_ok() {}
        assert_eq!(lens, [30, 31, 32, 30, 31]);
        for sizes in [(29, 60), (61, 60), (60, PACKET_MAX + 1)] {
            assert_eq!(Plan { sizes, ..plan }.checked(), None);
        }
    }
}
