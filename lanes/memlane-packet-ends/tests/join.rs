//! Ends joined with each other, over the lane: nothing is lost where the other side is slow, and each is told why it ends.

use memlane_packet::Mode;
use memlane_packet::Offloads;
use memlane_packet::io::{BackQueue, BackTerms, FrontQueue, FrontTerms, Link, Listener, connect};
use memlane_packet_ends::generate::{Generator, Plan, Sink};
use memlane_packet_ends::join::{Join, Over, Side, Terms, run_all};
use memlane_packet_ends::port::Port;
use memlane_packet_ends::tally::Verdict;
use memlane_packet_ends::{End, EndCounts, EndError, Frame, More, Sent, Sleep};
use rustix::event::{EventfdFlags, PollFd, eventfd};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

type Front = (Link, Vec<FrontQueue>);
type Back = (Link, Vec<BackQueue>);

fn linked(label: &str, mode: Mode, queues: u16) -> (Front, Back) {
    let name = format!("@memlane-join-{label}-{mode:?}-{}", std::process::id());
    let listener = Listener::bind(&name).unwrap();
    let terms = FrontTerms {
        mode: Some(mode),
        queues,
        ring_log2: 5,
        ..FrontTerms::default()
    };
    let front = std::thread::spawn(move || connect(&name, &terms).unwrap());
    let back = listener.accept(&BackTerms::default(), LIMIT).unwrap();
    (front.join().unwrap(), back)
}

fn generator(stream: u32, count: u64) -> Box<dyn End> {
    let plan = Plan {
        stream,
        sizes: (40, 9000),
        count,
        rate: 0,
    };
    Box::new(Generator::new(plan.checked().unwrap()))
}

/// A sink that takes a frame and then has no room until it was asked again, by turns.
#[derive(Debug)]
struct Slow {
    sink: Sink,
    turn: u32,
}

impl Slow {
    fn new() -> Slow {
        Slow {
            sink: Sink::new(),
            turn: 0,
        }
    }
}

impl End for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn offloads(&self) -> Offloads {
        self.sink.offloads()
    }
    fn receive(
        &mut self,
        n: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        self.sink.receive(n, take)
    }
    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        self.turn += 1;
        if self.turn.is_multiple_of(3) {
            return Ok(Sent::Full(1));
        }
        self.sink.send(frame)
    }
    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        // There is room again at once.
        Ok(false)
    }
    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}
    fn verdict(&self) -> Option<Verdict> {
        self.sink.verdict()
    }
    fn counts(&self) -> EndCounts {
        self.sink.counts()
    }
}

fn good(frames: u64) -> Option<Verdict> {
    Some(Verdict {
        good: frames,
        ..Verdict::default()
    })
}

#[test]
fn frames_go_over_the_lane_in_each_mode_and_none_is_lost_at_a_slow_end() {
    const FRAMES: u64 = 4000;
    for mode in Mode::ALL {
        // From the front to the back, and from the back to the front.
        for from_front in [true, false] {
            let ((front_link, mut fronts), (back_link, mut backs)) = linked("modes", mode, 1);
            let front = Box::new(Port::new("front".into(), fronts.remove(0), &front_link));
            let back = Box::new(Port::new("back".into(), backs.remove(0), &back_link));
            let (near, far): (Box<dyn End>, Box<dyn End>) = match from_front {
                true => (front, back),
                false => (back, front),
            };
            let sending = std::thread::spawn(move || {
                let mut join = Join::new(generator(7, FRAMES), near, Terms::default()).unwrap();
                // Its end is the other's: all that was sent is taken first.
                join.run(&[])
            });
            let mut join = Join::new(far, Box::new(Slow::new()), Terms::default()).unwrap();
            let over = join.run(&[]);
            assert!(
                matches!(over, Over::Ended(Side::A, EndError::Detached(_))),
                "{over:?}"
            );
            assert_eq!(
                sending.join().unwrap(),
                Over::Ended(Side::A, EndError::Finished)
            );
            assert_eq!(
                join.ends()[1].verdict(),
                good(FRAMES),
                "{mode:?} {from_front}"
            );
            assert_eq!(join.lost(), [0, 0]);
        }
    }
}

#[test]
fn a_stop_ends_all_queues_and_so_does_the_end_of_one() {
    let ((front_link, fronts), (back_link, backs)) = linked("stop", Mode::Persistent, 3);
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let ports = fronts
        .into_iter()
        .map(|queue| Port::new("front".into(), queue, &front_link));
    let mut sending: Vec<_> = ports
        .zip(0..)
        .map(|(port, n)| Join::new(generator(n, 0), Box::new(port), Terms::default()).unwrap())
        .collect();
    let ports = backs
        .into_iter()
        .map(|queue| Port::new("back".into(), queue, &back_link));
    let mut taking: Vec<_> = ports
        .map(|port| Join::new(Box::new(port), Box::new(Sink::new()), Terms::default()).unwrap())
        .collect();
    let stopping = stop.as_fd();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let overs = run_all(&mut sending, &[stopping]).unwrap();
            // As a process that ends.
            drop(std::mem::take(&mut sending));
            overs
        });
        let taker = scope.spawn(|| run_all(&mut taking, &[]).unwrap());
        // Each queue has frames by then, also where the threads of other tests have the processors.
        std::thread::sleep(Duration::from_millis(500));
        rustix::io::write(&stop, &1_u64.to_ne_bytes()).unwrap();
        assert_eq!(sender.join().unwrap(), [Over::Stopped; 3]);
        let overs = taker.join().unwrap();
        assert!(
            overs
                .iter()
                .any(|over| matches!(over, Over::Ended(Side::A, _))),
            "{overs:?}"
        );
    });
    for join in &taking {
        let verdict = join.ends()[1].verdict().unwrap();
        assert!(
            verdict.good > 0 && verdict == good(verdict.good).unwrap(),
            "{verdict:?}"
        );
    }
}

/// Rings when it is dropped, also by a test that fails: its threads end then.
struct Rung<'a>(BorrowedFd<'a>);

impl Drop for Rung<'_> {
    fn drop(&mut self) {
        let _ = rustix::io::write(self.0, &1_u64.to_ne_bytes());
    }
}

#[test]
fn counters_are_read_while_the_ends_work_and_are_exact_when_they_sleep_or_have_ended() {
    const FRAMES: u64 = 2000;
    for mode in Mode::ALL {
        let ((front_link, mut fronts), (back_link, mut backs)) = linked("boards", mode, 1);
        let front = Port::new("front".into(), fronts.remove(0), &front_link);
        let back = Port::new("back".into(), backs.remove(0), &back_link);
        // More frames than can pass while we look.
        let plan = Plan {
            stream: 1,
            sizes: (64, 64),
            count: FRAMES,
            rate: 10_000,
        };
        let mut sending = Join::new(
            Box::new(Generator::new(plan)),
            Box::new(front),
            Terms::default(),
        )
        .unwrap();
        let mut taking =
            Join::new(Box::new(back), Box::new(Sink::new()), Terms::default()).unwrap();
        let [port, sink] = taking.boards();
        assert_eq!(port.read().counts, EndCounts::default());
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        std::thread::scope(|scope| {
            let over = Rung(stop.as_fd());
            let sender = scope.spawn(|| sending.run(&[stop.as_fd()]));
            let taker = scope.spawn(|| taking.run(&[stop.as_fd()]));
            let end = std::time::Instant::now() + LIMIT;
            let mut seen = Vec::new();
            while seen.len() < 3 {
                assert!(std::time::Instant::now() < end, "{seen:?}");
                let good = sink.read().verdict.unwrap().good;
                if good > seen.last().copied().unwrap_or(0) {
                    seen.push(good);
                }
            }
            assert!(seen.is_sorted() && seen[0] < FRAMES, "{seen:?}");
            sender.join().unwrap();
            // It sleeps: nothing will come, and it has shown all that came.
            while sink.read().counts.sent < FRAMES {
                assert!(std::time::Instant::now() < end, "{:?}", sink.read());
            }
            drop(over);
            taker.join().unwrap();
        });
        for (board, end) in [&port, &sink].into_iter().zip(taking.ends()) {
            assert_eq!(board.read(), end.tally(), "{mode:?}");
        }
        let told = port.read();
        assert_eq!(told.counts.received, FRAMES);
        // Of what the back shows the front (that its frames are done), some or all without a doorbell.
        assert!(told.doorbells + told.quiet > 0, "{told:?}");
        let [tx, _] = told.grants.unwrap();
        assert_eq!(tx.hits > 0 && tx.mapped > 0, mode == Mode::Persistent);
        assert_eq!(tx.in_use, 0);
        assert_eq!(told.copied > 0, mode == Mode::Copy);
        assert_eq!(sending.boards()[1].read().grants, None);
    }
}

/// An end that says there is something, whenever it is asked, and never gives anything.
#[derive(Debug)]
struct Liar;

impl End for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    fn receive(
        &mut self,
        _: usize,
        _: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        Ok(0)
    }
    fn send(&mut self, _: &Frame<'_>) -> Result<Sent, EndError> {
        Ok(Sent::Full(1))
    }
    fn lacks(&mut self) -> Result<u32, EndError> {
        Ok(1)
    }
    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        Ok(false)
    }
    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}
    fn counts(&self) -> EndCounts {
        EndCounts::default()
    }
}

#[test]
fn an_end_that_never_lets_a_join_sleep_does_not_keep_it_from_stopping() {
    for spin in [Duration::ZERO, Duration::from_micros(10)] {
        let (done, over) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let terms = Terms {
                spin,
                ..Terms::default()
            };
            let mut join = Join::new(Box::new(Liar), generator(1, 10), terms).unwrap();
            let stop = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
            done.send(join.run(&[stop.as_fd()]))
        });
        assert_eq!(over.recv_timeout(LIMIT), Ok(Over::Stopped), "{spin:?}");
    }
}
