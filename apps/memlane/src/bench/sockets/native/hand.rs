//! Two processes that hand memory over, by one of several ways: `memlane bench hand`. Each size has a connection of its
//! own; what is measured is in [`give_and_take`] and [`carry`], the same for all ways. The program for iceoryx2 takes
//! the same arguments and prints the same.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::super::peer::Sized;
use super::{lane, ring, unix};
use crate::bench::hist::Hist;

/// One end.
#[derive(clap::Args, Debug)]
pub(in crate::bench) struct Hand {
    /// Which end.
    role: Role,
    /// By what.
    #[arg(long)]
    by: By,
    #[arg(long)]
    kind: Kind,
    /// Where the server is: a folder that is there.
    #[arg(long)]
    at: PathBuf,
    /// How long to measure each size.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Which sizes; the same at both ends.
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Role {
    Server,
    Client,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum By {
    /// memlane's streams by name.
    Lane,
    /// UNIX domain sockets.
    Stream,
    /// UNIX domain sockets that keep messages apart.
    Seqpacket,
    /// A bare ring in shared memory.
    Ring,
}

/// What is done with a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Kind {
    /// So much memory is given to the other end and as much taken back. Nobody writes or reads it, where the way lets
    /// them.
    Handover,
    /// Bytes are copied in at one end and out at the other, one way.
    Carried,
}

/// Not measured.
const WARM_UP: Duration = Duration::from_millis(30);
/// The clock is read once for as many turns as take about so long, but no more than [`TURNS`].
const SLICE: Duration = Duration::from_micros(20);
const TURNS: u32 = 64;
/// Largest.
pub(super) const MOST: usize = 64 << 20;
/// An answer to a stream.
const ACK: [u8; 8] = *b"received";

/// One end of a connection, for messages of one size.
pub(super) trait End {
    /// Gives so many bytes of memory, whatever is in it.
    fn give(&mut self, bytes: usize) -> anyhow::Result<()>;
    /// Takes as many; `false`: there is nobody any more.
    fn take(&mut self, bytes: usize) -> anyhow::Result<bool>;
    /// Sends bytes.
    fn send(&mut self, from: &[u8]) -> anyhow::Result<()>;
    /// Receives as many as there is room for; `false`: the end.
    fn receive(&mut self, into: &mut [u8]) -> anyhow::Result<bool>;
    /// No more will come from here.
    fn finish(&mut self) -> anyhow::Result<()>;
}

/// What makes connections.
trait Way {
    /// For the next size.
    fn end(&mut self) -> anyhow::Result<Box<dyn End>>;
}

impl<F: FnMut() -> anyhow::Result<Box<dyn End>>> Way for F {
    fn end(&mut self) -> anyhow::Result<Box<dyn End>> {
        self()
    }
}

/// Runs an end. A client prints what it has measured.
pub(in crate::bench) fn run(hand: &Hand) -> anyhow::Result<()> {
    ensure!(
        hand.bytes.iter().all(|bytes| (1..=MOST).contains(bytes)),
        "sizes from 1 to {MOST}"
    );
    let mut way = way(hand)?;
    if hand.role == Role::Server {
        for &bytes in &hand.bytes {
            serve(&mut *way.end()?, hand.kind, bytes)?;
        }
        return Ok(());
    }
    let budget = Duration::try_from_secs_f64(hand.seconds).context("--seconds")?;
    let told = hand.bytes.iter().map(|&bytes| {
        let mut end = way.end()?;
        let told = match hand.kind {
            Kind::Handover => give_and_take(&mut *end, bytes, budget),
            Kind::Carried => carry(&mut *end, bytes, budget),
        };
        told.with_context(|| format!("{bytes} bytes"))
    });
    let told: Vec<Sized> = told.collect::<anyhow::Result<_>>()?;
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}

fn way(hand: &Hand) -> anyhow::Result<Box<dyn Way>> {
    let (serves, at) = (hand.role == Role::Server, hand.at.clone());
    Ok(match hand.by {
        By::Lane => {
            let mut door = lane::Door::new(serves, &at)?;
            Box::new(move || Ok(Box::new(door.end()?) as Box<dyn End>))
        }
        By::Stream | By::Seqpacket => {
            let door = unix::Door::new(serves, hand.by == By::Seqpacket, &at)?;
            Box::new(move || Ok(Box::new(door.end()?) as Box<dyn End>))
        }
        By::Ring => {
            let mut number = 0;
            Box::new(move || {
                number += 1;
                Ok(Box::new(ring::Pair::open(&at, number, serves)?) as Box<dyn End>)
            })
        }
    })
}

fn serve(end: &mut dyn End, kind: Kind, bytes: usize) -> anyhow::Result<()> {
    match kind {
        Kind::Handover => {
            while end.take(bytes)? {
                end.give(bytes)?;
            }
            Ok(())
        }
        Kind::Carried => {
            let mut buffer = vec![0u8; bytes];
            let mut sum = 0u8;
            while end.receive(&mut buffer)? {
                sum ^= buffer[0];
            }
            std::hint::black_box(sum);
            end.send(&ACK)
        }
    }
}

/// Half of a round trip: memory given, and as much taken back.
fn give_and_take(end: &mut dyn End, bytes: usize, budget: Duration) -> anyhow::Result<Sized> {
    let mut turns = |count: u32| -> anyhow::Result<()> {
        for _ in 0..count {
            end.give(bytes)?;
            ensure!(end.take(bytes)?, "the server has gone");
        }
        Ok(())
    };
    let (begin, mut warm) = (Instant::now(), 0u32);
    while begin.elapsed() < WARM_UP {
        turns(1)?;
        warm += 1;
    }
    let one = begin.elapsed() / warm.max(1);
    let slice = (SLICE.as_nanos() / one.as_nanos().max(1)).clamp(1, TURNS.into());
    let slice = u32::try_from(slice).unwrap_or(TURNS);
    let mut hist = Hist::new();
    let begin = Instant::now();
    let mut last = begin;
    while last - begin < budget {
        turns(slice)?;
        let now = Instant::now();
        // In tenths of a nanosecond, for one way of one turn: a turn may take a few hundred nanoseconds only.
        let took = (now - last).as_nanos() * 10 / u128::from(2 * slice);
        hist.record(u64::try_from(took).unwrap_or(u64::MAX));
        last = now;
    }
    end.finish()?;
    let seconds = (last - begin).as_secs_f64();
    let ways = 2.0 * hist.len() as f64 * f64::from(slice);
    Ok(Sized {
        bytes: bytes as u64,
        bytes_per_second: ways / 2.0 * bytes as f64 / seconds,
        p50_ns: Some(hist.percentile(50) as f64 / 10.0),
        p99_ns: Some(hist.percentile(99) as f64 / 10.0),
        cpu_seconds: None,
        seconds,
    })
}

/// Bytes one way, until the other end says that it has them all.
fn carry(end: &mut dyn End, bytes: usize, budget: Duration) -> anyhow::Result<Sized> {
    let message: Vec<u8> = (0..bytes).map(|n| n.to_le_bytes()[0]).collect();
    let mut send = |until: Instant| -> anyhow::Result<u64> {
        let mut sent = 0;
        while Instant::now() < until {
            // The clock is read once for 64 KiB, or for each message if it is larger.
            for _ in 0..(64 * 1024 / bytes).clamp(1, 256) {
                end.send(&message)?;
                sent += bytes as u64;
            }
        }
        Ok(sent)
    };
    send(Instant::now() + WARM_UP)?;
    let begin = Instant::now();
    let sent = send(begin + budget)?;
    end.finish()?;
    let mut ack = [0u8; 8];
    ensure!(end.receive(&mut ack)? && ack == ACK, "no answer");
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Sized {
        bytes: bytes as u64,
        bytes_per_second: sent as f64 / seconds,
        p50_ns: None,
        p99_ns: None,
        cpu_seconds: None,
        seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::proc::Scratch;

    fn end(role: Role, by: By, kind: Kind, at: &std::path::Path) -> Hand {
        Hand {
            role,
            by,
            kind,
            at: at.to_owned(),
            seconds: 0.01,
            bytes: vec![1, 5000, 100_000],
        }
    }

    #[test]
    fn every_way_hands_over_and_carries_every_size() {
        for by in [By::Stream, By::Seqpacket, By::Ring, By::Lane] {
            for kind in [Kind::Handover, Kind::Carried] {
                let scratch = Scratch::new().expect("a folder");
                let server = end(Role::Server, by, kind, scratch.path());
                let server = std::thread::spawn(move || run(&server));
                let client = end(Role::Client, by, kind, scratch.path());
                run(&client).unwrap_or_else(|error| panic!("{by:?} {kind:?}: {error:#}"));
                let ended = server.join().expect("no panic");
                ended.unwrap_or_else(|error| panic!("{by:?} {kind:?}: {error:#}"));
            }
        }
    }
}
