//! memlane's own load generator: requests over the API, without any export between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memlane_block::volume::{Done, Io, Op, Queue, Volume};

use super::work::{Outcome, Pattern};
use crate::bench::hist::Hist;
use crate::blocks::{self, Access};
use crate::out;

/// Requests over memlane's API, as fast as they are answered.
#[derive(clap::Args, Debug)]
pub(in crate::bench) struct Load {
    #[arg(long, value_enum, default_value_t = Pattern::Randread)]
    pattern: Pattern,
    /// Bytes of each request.
    #[arg(long, default_value_t = 4096)]
    block: u32,
    /// Requests under way, of each job.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,
    /// Threads, each with a queue of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: u32,
    #[arg(long, default_value_t = 1)]
    seconds: u32,
    /// One JSON document.
    #[arg(long)]
    json: bool,
    server: String,
    volume: String,
}

pub(in crate::bench) fn run(load: &Load) -> anyhow::Result<()> {
    let access = match load.pattern {
        Pattern::Randread | Pattern::Read => Access::Ro,
        Pattern::Randwrite | Pattern::Write => Access::Rw,
    };
    let connections = u16::try_from(load.jobs.min(2))?;
    let opened = blocks::open_one(&load.server, &load.volume, access, connections)?;
    let volume: Arc<dyn Volume> = opened.volume();
    let end = Instant::now() + Duration::from_secs(u64::from(load.seconds));
    let begin = Instant::now();
    let jobs = (0..load.jobs).map(|number| {
        let (volume, pattern) = (Arc::clone(&volume), load.pattern);
        let (block, depth) = (load.block, load.depth);
        std::thread::spawn(move || job(&*volume, pattern, block, depth, number, end))
    });
    let jobs: Vec<_> = jobs.collect();
    let mut hist = Hist::new();
    for job in jobs {
        let times = job
            .join()
            .map_err(|_| anyhow::anyhow!("a job ended badly"))??;
        times.into_iter().for_each(|time| hist.record(time));
    }
    let micros = |percent| hist.percentile(percent) as f64 / 1000.0;
    let outcome = Outcome {
        per_second: hist.len() as f64 / begin.elapsed().as_secs_f64(),
        p50: micros(50),
        p99: micros(99),
        cpu_seconds_per_million: 0.0,
    };
    out::print(&match load.json {
        true => out::json(&outcome)?,
        false => format!(
            "{:.0} requests per second, p50 {:.1} µs, p99 {:.1} µs\n",
            outcome.per_second, outcome.p50, outcome.p99
        ),
    })
}

/// One thread's requests; how long each took, in nanoseconds.
fn job(
    volume: &dyn Volume,
    pattern: Pattern,
    block: u32,
    depth: u32,
    number: u32,
    end: Instant,
) -> anyhow::Result<Vec<u64>> {
    let info = volume.info();
    // A request that is longer than the volume takes is several; they count as one when all are done.
    let piece = block.min(info.max_io);
    let pieces = block.div_ceil(piece);
    let blocks = (info.size / u64::from(block)).max(1);
    let mut generator = Generator {
        queue: volume.queue()?,
        op: match pattern {
            Pattern::Randread | Pattern::Read => Op::Read,
            Pattern::Randwrite | Pattern::Write => Op::Write,
        },
        random: matches!(pattern, Pattern::Randread | Pattern::Randwrite),
        seed: u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        next: u64::from(number) * blocks / 8 % blocks,
        block,
        piece,
        pieces,
        blocks,
        flights: vec![Flight::default(); depth as usize],
        waiting: Vec::new(),
    };
    generator.run(end)
}

#[derive(Clone, Copy, Default)]
struct Flight {
    begun: Option<Instant>,
    left: u32,
}

struct Generator {
    queue: Box<dyn Queue>,
    op: Op,
    random: bool,
    seed: u64,
    next: u64,
    block: u32,
    piece: u32,
    pieces: u32,
    blocks: u64,
    flights: Vec<Flight>,
    /// Pieces that found no memory: which flight, where, how long.
    waiting: Vec<(u64, u64, u32)>,
}

impl Generator {
    fn run(&mut self, end: Instant) -> anyhow::Result<Vec<u64>> {
        let mut times = Vec::with_capacity(1 << 20);
        let mut done: Vec<Done> = Vec::new();
        for flight in 0..self.flights.len() {
            self.begin(flight)?;
        }
        while self.flights.iter().any(|flight| flight.begun.is_some()) {
            self.queue.push();
            self.queue.wait(Some(Duration::from_secs(10)));
            self.queue.reap(&mut done);
            anyhow::ensure!(!done.is_empty(), "no answer for 10 seconds");
            for done in done.drain(..) {
                self.end(done, end, &mut times)?;
            }
            self.retry()?;
        }
        Ok(times)
    }

    fn begin(&mut self, flight: usize) -> anyhow::Result<()> {
        let at = self.place() * u64::from(self.block);
        self.flights[flight] = Flight {
            begun: Some(Instant::now()),
            left: self.pieces,
        };
        for n in 0..self.pieces {
            let from = n * self.piece;
            let len = self.piece.min(self.block - from);
            self.submit(flight as u64, at + u64::from(from), len)?;
        }
        Ok(())
    }

    fn submit(&mut self, flight: u64, at: u64, len: u32) -> anyhow::Result<()> {
        let lease = self.queue.lease(len);
        match lease.map_err(|e| anyhow::anyhow!("no memory for a request: {e}"))? {
            Some(lease) => self.queue.submit(Io::data(flight, self.op, at, len, lease)),
            None => self.waiting.push((flight, at, len)),
        }
        Ok(())
    }

    fn retry(&mut self) -> anyhow::Result<()> {
        for (flight, at, len) in std::mem::take(&mut self.waiting) {
            self.submit(flight, at, len)?;
        }
        Ok(())
    }

    fn end(&mut self, done: Done, end: Instant, times: &mut Vec<u64>) -> anyhow::Result<()> {
        done.result
            .map_err(|errno| std::io::Error::from_raw_os_error(errno.0))
            .context("a request failed")?;
        let index = usize::try_from(done.tag)?;
        drop(done.lease);
        let flight = &mut self.flights[index];
        flight.left -= 1;
        if flight.left > 0 {
            return Ok(());
        }
        let now = Instant::now();
        if let Some(begun) = flight.begun.take() {
            times.push(u64::try_from((now - begun).as_nanos()).unwrap_or(u64::MAX));
        }
        match now < end {
            true => self.begin(index),
            false => Ok(()),
        }
    }

    fn place(&mut self) -> u64 {
        if !self.random {
            self.next = (self.next + 1) % self.blocks;
            return self.next;
        }
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % self.blocks
    }
}
