//! Requests of 100 bytes that are due at fixed times, whatever the answers do: programs that sleep most of the time. With
//! one connection, a thread sends when a request is due, and another waits in a blocking `recv`. With more, one thread
//! waits for all of them and for its timer with epoll; requests go over the connections in turn.
//!
//! The latency of a request counts from when it was due, not from when it was sent: what holds up the sender is in it.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::epoll::{EVENTS, Epoll, NO_EVENT};
use super::figures::{MESSAGE, Paced, nanoseconds};
use super::pace::Clock;
use super::wire::{At, Wire};
use crate::hist::Hist;
use crate::runner::sys;

/// Not measured: without a pace, one request at a time over each connection. Where a lane opens, it opens here.
const WARM_UP: Duration = Duration::from_millis(100);
/// Requests that each connection has had then, at least.
const OPENING: usize = 12;
/// Not measured: requests with the pace, so that a waiter knows how long it waits here.
const LEAD: Duration = Duration::from_millis(200);
/// The timer's number; connections have their places.
const TIMER: u64 = u64::MAX;

/// How requests are spread.
#[derive(clap::Args, Debug)]
pub(crate) struct Pace {
    /// Requests in a second, over all connections together.
    #[arg(long)]
    rate: u32,
    /// How many connections.
    #[arg(long)]
    connections: usize,
    /// The server's process, whose processor time is told, too.
    #[arg(long)]
    server: u32,
}

/// Opens the connections, warms them up and measures.
pub(super) fn measure(at: &At, budget: Duration, pace: &Pace) -> anyhow::Result<Paced> {
    ensure!(pace.connections > 0, "no connections");
    let wires = (0..pace.connections).map(|number| {
        let wire = Wire::connect(at);
        wire.with_context(|| format!("connection {number}"))
    });
    let wires: Vec<Wire> = wires.collect::<anyhow::Result<_>>()?;
    warm_up(&wires)?;
    let (lead, counted) = (due_in(LEAD, pace.rate)?, due_in(budget, pace.rate)?);
    let mut answers = Answers {
        server: pace.server,
        lead,
        all: lead + counted,
        next: 0,
        hist: Hist::new(),
        cpu: None,
    };
    let mut clock = Clock::start(pace.rate, answers.all).context("the timer")?;
    match &wires[..] {
        [wire] => blocking(wire, &mut clock, &mut answers)?,
        wires => by_epoll(wires, &mut clock, &mut answers)?,
    }
    let cpu = answers.cpu_now();
    Ok(Paced {
        requests: answers.hist.len(),
        seconds: counted as f64 / f64::from(pace.rate),
        p50_ns: answers.hist.percentile(50),
        p99_ns: answers.hist.percentile(99),
        cpu_seconds: answers.cpu.zip(cpu).map(|(then, now)| now - then),
    })
}

/// How many requests become due in that time.
fn due_in(time: Duration, rate: u32) -> anyhow::Result<u64> {
    let times_a_billion = time.as_nanos() * u128::from(rate);
    Ok(u64::try_from(times_a_billion.div_ceil(1_000_000_000))?)
}

fn warm_up(wires: &[Wire]) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut message = [0u8; MESSAGE];
    let mut rounds = 0;
    while rounds < OPENING || begin.elapsed() < WARM_UP {
        for mut wire in wires {
            wire.write_all(&message).context("send")?;
            wire.read_whole(&mut message).context("receive")?;
        }
        rounds += 1;
    }
    Ok(())
}

/// What has been answered.
struct Answers {
    server: u32,
    /// Requests that are not counted, from the first.
    lead: u64,
    all: u64,
    /// How many were answered.
    next: u64,
    hist: Hist,
    /// Processor time of both ends when the first request that counts was about to be answered.
    cpu: Option<f64>,
}

impl Answers {
    fn are_complete(&self) -> bool {
        self.next == self.all
    }

    /// One came of a request that was due then.
    fn take(&mut self, now: Instant, due: Instant) {
        if self.next >= self.lead {
            self.hist.record(nanoseconds(now - due));
        }
        self.next += 1;
        if self.next == self.lead {
            self.cpu = self.cpu_now();
        }
    }

    fn cpu_now(&self) -> Option<f64> {
        let both = [std::process::id(), self.server].map(sys::exact_cpu_seconds);
        (both.iter().all(|seconds| *seconds > 0.0)).then(|| both.iter().sum())
    }
}

fn send(mut wire: &Wire, number: u64) -> anyhow::Result<()> {
    let mut message = [0u8; MESSAGE];
    message[..8].copy_from_slice(&number.to_le_bytes());
    let n = wire.write(&message).context("send")?;
    ensure!(n == MESSAGE, "a short write");
    Ok(())
}

fn number_of(message: &[u8; MESSAGE]) -> u64 {
    let mut number = [0u8; 8];
    number.copy_from_slice(&message[..8]);
    u64::from_le_bytes(number)
}

fn blocking(wire: &Wire, clock: &mut Clock, answers: &mut Answers) -> anyhow::Result<()> {
    let due_at = clock.due_times();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let sent = send_when_due(wire, clock);
            if sent.is_err() {
                // Who waits for the answers must learn of it.
                let _ = wire.finish();
            }
            sent
        });
        let received = receive_all(wire, due_at, answers);
        let sent = sender.join();
        sent.map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        received
    })
}

fn send_when_due(wire: &Wire, clock: &mut Clock) -> anyhow::Result<()> {
    loop {
        let due = clock.next().context("the timer")?;
        if due.is_empty() && clock.is_over() {
            return Ok(());
        }
        for number in due {
            send(wire, number)?;
        }
    }
}

fn receive_all(
    wire: &Wire,
    due_at: impl Fn(u64) -> Instant,
    answers: &mut Answers,
) -> anyhow::Result<()> {
    let mut message = [0u8; MESSAGE];
    while !answers.are_complete() {
        wire.read_whole(&mut message).context("receive")?;
        let now = Instant::now();
        let number = number_of(&message);
        ensure!(number == answers.next, "message {number} is out of order");
        answers.take(now, due_at(number));
    }
    Ok(())
}

fn by_epoll(wires: &[Wire], clock: &mut Clock, answers: &mut Answers) -> anyhow::Result<()> {
    let epoll = Epoll::new()?;
    epoll.add(clock.as_raw_fd(), TIMER)?;
    for (place, wire) in wires.iter().enumerate() {
        wire.set_nonblocking()?;
        epoll.add(wire.as_raw_fd(), place as u64)?;
    }
    let mut events = [NO_EVENT; EVENTS as usize];
    let mut under_way = vec![false; usize::try_from(answers.all)?];
    while !answers.are_complete() {
        let n = epoll.wait(&mut events)?;
        for event in &events[..n] {
            if event.u64 == TIMER {
                for number in clock.next().context("the timer")? {
                    let number_here = usize::try_from(number)?;
                    send(&wires[number_here % wires.len()], number)?;
                    under_way[number_here] = true;
                }
            } else if let Some(number) = receive(&wires[usize::try_from(event.u64)?])? {
                let now = Instant::now();
                let known = under_way.get_mut(usize::try_from(number)?);
                let was = known.map(std::mem::take);
                ensure!(was == Some(true), "nobody had asked for message {number}");
                answers.take(now, clock.due_at(number));
            }
        }
    }
    Ok(())
}

/// Reads once, as programs do that wait again instead of reading in vain.
fn receive(mut wire: &Wire) -> anyhow::Result<Option<u64>> {
    let mut message = [0u8; MESSAGE];
    match wire.read(&mut message) {
        Ok(MESSAGE) => Ok(Some(number_of(&message))),
        Ok(0) => bail!("the server has closed a connection"),
        Ok(n) => bail!("{n} bytes of a message"),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error).context("receive"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::many;
    use super::super::wire::{Door, each_way};
    use super::*;

    fn pace(rate: u32, connections: usize) -> Pace {
        Pace {
            rate,
            connections,
            server: std::process::id(),
        }
    }

    #[test]
    fn as_many_requests_are_answered_as_were_due_over_one_connection_or_many() {
        each_way(|at| {
            let door = Door::open(&at).expect("it listens");
            std::thread::spawn(move || many::serve(&door));
            for connections in [1, 7] {
                let budget = Duration::from_millis(100);
                let told = measure(&at, budget, &pace(1000, connections)).expect("answers");
                assert_eq!(told.requests, 100);
                assert!((told.seconds - 0.1).abs() < 1e-9);
                assert!(told.p50_ns > 0 && told.p50_ns <= told.p99_ns);
                assert!(told.cpu_seconds > Some(0.0), "{told:?}");
            }
            assert!(measure(&at, Duration::ZERO, &pace(0, 1)).is_err());
            assert!(measure(&at, Duration::ZERO, &pace(1, 0)).is_err());
        });
    }

    #[test]
    fn a_server_that_is_slow_once_shows_in_every_request_that_was_due_meanwhile() {
        let scratch = crate::runner::proc::Scratch::new().expect("a folder");
        let at = At::Unix(scratch.name("socket"));
        let door = Door::open(&at).expect("it listens");
        let stop = Duration::from_millis(50);
        std::thread::spawn(move || {
            let mut wire = door.accept().expect("accept");
            let mut message = [0u8; MESSAGE];
            let mut paced = 0;
            while wire.read_whole(&mut message).is_ok() {
                paced += u64::from(number_of(&message) == 250);
                if paced == 1 {
                    std::thread::sleep(stop);
                    paced += 1;
                }
                wire.write_all(&message).expect("answer");
            }
        });
        let told = measure(&at, Duration::from_millis(200), &pace(1000, 1)).expect("answers");
        // 50 of 200 requests wait: 2 of them for 48 ms or more.
        assert!(told.p99_ns >= 45_000_000, "{told:?}");
    }
}
