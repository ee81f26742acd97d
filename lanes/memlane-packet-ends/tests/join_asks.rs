//! Who is asked for frames, and how often: an end that costs a system call is spared where it can be, and never forgotten.

use memlane_packet::Offloads;
use memlane_packet_ends::generate::{Generator, Plan, Sink};
use memlane_packet_ends::join::{Join, Terms};
use memlane_packet_ends::{End, EndCounts, EndError, Frame, More, Sent, Sleep};
use rustix::event::PollFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts how often it is asked. From the `ready`th time on it has one frame at each.
#[derive(Debug)]
struct Asked {
    asked: Arc<AtomicU64>,
    ready: u64,
    costs: bool,
    frames: Generator,
    sink: Sink,
}

impl Asked {
    fn counted(costs: bool, ready: u64) -> (Box<dyn End>, Arc<AtomicU64>) {
        let asked = Arc::new(AtomicU64::new(0));
        let end = Asked {
            asked: Arc::clone(&asked),
            ready,
            costs,
            frames: Generator::new(plan(9)),
            sink: Sink::new(),
        };
        (Box::new(end), asked)
    }
}

fn plan(stream: u32) -> Plan {
    Plan {
        stream,
        sizes: (64, 64),
        count: 0,
        rate: 0,
    }
}

impl End for Asked {
    fn name(&self) -> &'static str {
        "asked"
    }
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    fn receive(
        &mut self,
        _: usize,
        take: &mut dyn FnMut(&Frame<'_>) -> More,
    ) -> Result<usize, EndError> {
        if self.asked.fetch_add(1, Ordering::Relaxed) + 1 < self.ready {
            return Ok(0);
        }
        self.frames.receive(1, take)
    }
    fn asks_the_kernel(&self) -> bool {
        self.costs
    }
    fn send(&mut self, frame: &Frame<'_>) -> Result<Sent, EndError> {
        self.sink.send(frame)
    }
    fn sleeps(&mut self, _: Sleep) -> Result<bool, EndError> {
        Ok(false)
    }
    fn watch<'a>(&'a self, _: Sleep, _: &mut Vec<PollFd<'a>>) {}
    fn counts(&self) -> EndCounts {
        self.sink.counts()
    }
}

fn terms() -> Terms {
    Terms {
        burst: 4,
        spin: Duration::ZERO,
    }
}

#[test]
fn an_end_that_costs_a_call_and_has_nothing_is_asked_in_each_fourth_busy_round() {
    for (costs, expected) in [(true, 100), (false, 400)] {
        let (end, asked) = Asked::counted(costs, u64::MAX);
        let busy = Box::new(Generator::new(plan(1)));
        let mut join = Join::new(busy, end, terms()).expect("both are new");
        for _ in 0..400 {
            assert_eq!(join.step(), Ok(4));
        }
        assert_eq!(asked.load(Ordering::Relaxed), expected, "{costs}");
    }
}

#[test]
fn an_end_that_has_something_is_asked_each_time_and_so_is_one_beside_which_nothing_moves() {
    // It has frames from the second time on.
    let (end, asked) = Asked::counted(true, 2);
    let busy = Box::new(Generator::new(plan(1)));
    let mut join = Join::new(busy, end, terms()).expect("both are new");
    let moved: Vec<_> = (0..8).map(|_| join.step()).collect();
    let expected = [4, 4, 4, 4, 5, 5, 5, 5].map(Ok);
    assert_eq!(moved, expected);
    assert_eq!(asked.load(Ordering::Relaxed), 5);
    // Nothing comes from a sink.
    let (end, asked) = Asked::counted(true, u64::MAX);
    let mut join = Join::new(Box::new(Sink::new()), end, terms()).expect("both are new");
    for _ in 0..100 {
        assert_eq!(join.step(), Ok(0));
    }
    assert_eq!(asked.load(Ordering::Relaxed), 100);
}
