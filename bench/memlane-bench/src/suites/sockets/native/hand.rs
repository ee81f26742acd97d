//! Two processes that hand memory over, by one of several ways: `memlane-bench peer hand`. Each size has a connection of its
//! own; what is measured is in [`turns`], the same for all ways. The program for iceoryx2 takes
//! the same arguments and prints the same.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::peer::figures::Sized;
use super::super::rows::Kind;
use super::turns::{self, End};
use super::{lane, ring, unix};

/// One end.
#[derive(clap::Args, Debug)]
pub(crate) struct Hand {
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

/// Largest.
pub(super) const MOST: usize = 64 << 20;

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
pub(crate) fn run(hand: &Hand) -> anyhow::Result<()> {
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
        measure(&mut *end, hand.kind, bytes, budget)
    });
    let told: Vec<Sized> = told.collect::<anyhow::Result<_>>()?;
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}

fn serve(end: &mut dyn End, kind: Kind, bytes: usize) -> anyhow::Result<()> {
    match kind {
        Kind::Handover => turns::give_back(end, bytes),
        Kind::Carried => turns::receive_all(end, bytes),
    }
}

fn measure(end: &mut dyn End, kind: Kind, bytes: usize, budget: Duration) -> anyhow::Result<Sized> {
    let turned = match kind {
        Kind::Handover => turns::give_and_take(end, bytes, budget),
        Kind::Carried => turns::carry(end, bytes, budget),
    };
    let turned = turned.with_context(|| format!("{bytes} bytes"))?;
    Ok(Sized {
        bytes: bytes as u64,
        bytes_per_second: turned.bytes_per_second,
        p50_ns: turned.p50_ns,
        p99_ns: turned.p99_ns,
        cpu_seconds: None,
        seconds: turned.seconds,
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::proc::Scratch;

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
