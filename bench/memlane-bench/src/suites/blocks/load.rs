//! memlane's own load generator: requests over the API, without any export between.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memlane_block::volume::{Done, Io, Op, Queue, Volume};

use super::gap::Longest;
use super::rows::{Outcome, Pattern};
use super::volume::{Access, OpenVolume, Way};
use crate::hist::Hist;
use crate::out;

/// For all paths to be up.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Requests over memlane's API, as fast as they are answered.
#[derive(clap::Args, Debug)]
pub(crate) struct Load {
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
    /// Connections of each path, for requests.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    #[arg(long, default_value_t = 1.0, value_parser = crate::runner::options::seconds)]
    seconds: f64,
    /// End when each job has made this number of requests.
    #[arg(long)]
    requests: Option<u64>,
    /// Says how long the slowest request took, instead of how many there were in a second.
    #[arg(long)]
    longest: bool,
    /// Memory that the servers share with other machines, for paths ivshmem://HOST: a file.
    #[arg(long, value_name = "FILE")]
    device: Option<PathBuf>,
    /// Made when all paths are up and the first request is sent.
    #[arg(long)]
    begun: Option<PathBuf>,
    /// One JSON document.
    #[arg(long)]
    json: bool,
    /// As `memlane map` takes it.
    #[arg(
        value_name = "SERVER[,SERVER2…]",
        value_delimiter = ',',
        required = true
    )]
    servers: Vec<String>,
    #[arg(required = true)]
    volume: String,
}

pub(crate) fn run(load: &Load) -> anyhow::Result<()> {
    let access = match load.pattern {
        Pattern::Randread | Pattern::Read => Access::ReadOnly,
        Pattern::Randwrite | Pattern::Write => Access::ReadWrite,
    };
    let way = Way {
        servers: &load.servers,
        device: load.device.as_deref(),
        connections: load.connections,
    };
    let opened = OpenVolume::open(way, &load.volume, access)?;
    opened.wait_for_paths(OPEN_LIMIT)?;
    let volume: Arc<dyn Volume> = opened.volume();
    if let Some(begun) = &load.begun {
        std::fs::write(begun, "").with_context(|| begun.display().to_string())?;
    }
    let begin = Instant::now();
    let task = Task {
        pattern: load.pattern,
        block: load.block,
        depth: load.depth,
        requests: load.requests.unwrap_or(u64::MAX),
        end: begin + Duration::from_secs_f64(load.seconds),
    };
    let jobs = (0..load.jobs).map(|number| {
        let volume = Arc::clone(&volume);
        std::thread::spawn(move || job(&*volume, task, number))
    });
    let jobs: Vec<_> = jobs.collect();
    let mut hist = Hist::new();
    let (mut longest, mut slowest) = (Duration::ZERO, 0);
    for job in jobs {
        let seen = job
            .join()
            .map_err(|_| anyhow::anyhow!("a job ended badly"))??;
        slowest = slowest.max(seen.times.iter().copied().max().unwrap_or(0));
        seen.times.into_iter().for_each(|time| hist.record(time));
        longest = longest.max(seen.longest);
    }
    match load.longest {
        true => {
            let millis = |time: Duration| time.as_secs_f64() * 1000.0;
            let seen = Longest {
                requests: hist.len(),
                request_ms: millis(Duration::from_nanos(slowest)),
                without_answer_ms: millis(longest),
                paths_lost: opened.paths_lost(),
            };
            tell_longest(load, &seen)
        }
        false => tell(load, &hist, begin.elapsed()),
    }
}

fn tell_longest(load: &Load, seen: &Longest) -> anyhow::Result<()> {
    out::print(&match load.json {
        true => out::json(seen)?,
        false => format!(
            "the slowest request took {:.1} ms; {:.1} ms without any answer; {} times a path was lost\n",
            seen.request_ms, seen.without_answer_ms, seen.paths_lost
        ),
    })
}

fn tell(load: &Load, hist: &Hist, took: Duration) -> anyhow::Result<()> {
    let micros = |percent| hist.percentile(percent) as f64 / 1000.0;
    let outcome = Outcome {
        requests: hist.len(),
        per_second: hist.len() as f64 / took.as_secs_f64(),
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

/// What each job does.
#[derive(Clone, Copy)]
struct Task {
    pattern: Pattern,
    block: u32,
    depth: u32,
    requests: u64,
    end: Instant,
}

/// What a job has seen.
struct Seen {
    /// How long each request took, in nanoseconds.
    times: Vec<u64>,
    /// The longest time in which none was answered.
    longest: Duration,
}

/// One thread's requests.
fn job(volume: &dyn Volume, task: Task, number: u32) -> anyhow::Result<Seen> {
    let (info, block) = (volume.info(), task.block);
    // A request that is longer than the volume takes is several; they count as one when all are done.
    let piece = block.min(info.max_io);
    let pieces = block.div_ceil(piece);
    let blocks = (info.size / u64::from(block)).max(1);
    let mut generator = Generator {
        queue: volume.queue()?,
        op: match task.pattern {
            Pattern::Randread | Pattern::Read => Op::Read,
            Pattern::Randwrite | Pattern::Write => Op::Write,
        },
        random: matches!(task.pattern, Pattern::Randread | Pattern::Randwrite),
        seed: u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        next: u64::from(number) * blocks / 8 % blocks,
        block,
        piece,
        pieces,
        blocks,
        flights: vec![Flight::default(); task.depth as usize],
        waiting: Vec::new(),
        left: task.requests,
        end: task.end,
        answered: Instant::now(),
        longest: Duration::ZERO,
    };
    let times = generator.run()?;
    Ok(Seen {
        times,
        longest: generator.longest,
    })
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
    /// Requests that may still be begun.
    left: u64,
    /// None is begun after this.
    end: Instant,
    /// When the last answer came.
    answered: Instant,
    longest: Duration,
}

impl Generator {
    fn run(&mut self) -> anyhow::Result<Vec<u64>> {
        let mut times = Vec::with_capacity(1 << 20);
        let mut done: Vec<Done> = Vec::new();
        self.answered = Instant::now();
        for flight in 0..self.flights.len() {
            self.begin_next(flight)?;
        }
        while self.flights.iter().any(|flight| flight.begun.is_some()) {
            self.queue.push();
            self.queue.wait(Some(Duration::from_secs(10)));
            self.queue.reap(&mut done);
            anyhow::ensure!(!done.is_empty(), "no answer for 10 seconds");
            for done in done.drain(..) {
                self.finish(done, &mut times)?;
            }
            self.retry()?;
        }
        Ok(times)
    }

    /// Begins a request, if it is not yet time to end.
    fn begin_next(&mut self, flight: usize) -> anyhow::Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        self.begin(flight)
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

    fn finish(&mut self, done: Done, times: &mut Vec<u64>) -> anyhow::Result<()> {
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
        self.longest = self.longest.max(now - self.answered);
        self.answered = now;
        match now < self.end {
            true => self.begin_next(index),
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
