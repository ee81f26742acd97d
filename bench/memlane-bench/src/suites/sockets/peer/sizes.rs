//! Messages and writes of many sizes, each on a connection of its own. A client begins by saying what it will do, and
//! gets 24 bytes at the end: bytes that came in the time that was measured, that time in ns, the server's processor
//! time in ns.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::figures::{Sized, nanoseconds};
use super::wire::{At, Door, Wire};
use crate::hist::Hist;
use crate::runner::sys;

/// What is done with a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Wait for an answer of the same size.
    Echo,
    /// Only send.
    Stream,
}

/// Largest message: the server makes room for it.
const MOST: u64 = 64 << 20;
/// A reader's buffer, where nobody waits for a message of some size.
const READ: usize = 256 * 1024;
/// Not measured: a lane opens, buffers of the kernel grow.
const WARM_UP: Duration = Duration::from_millis(60);

/// Serves one connection after the other.
pub(super) fn serve(door: &Door) -> anyhow::Result<()> {
    loop {
        let wire = door.accept().context("accept")?;
        if let Err(error) = serve_one(wire) {
            eprintln!("connection ended: {error:#}");
        }
    }
}

fn serve_one(mut wire: Wire) -> anyhow::Result<()> {
    let mut head = [0u8; 16];
    wire.read_whole(&mut head)?;
    let (kind, size) = head.split_at(8);
    let size = u64::from_le_bytes(size.try_into()?);
    ensure!((1..=MOST).contains(&size), "{size} bytes");
    let tail = match kind[0] {
        0 => echo(&mut wire, usize::try_from(size)?)?,
        _ => sink(&mut wire)?,
    };
    let tail: Vec<u8> = tail.iter().flat_map(|word| word.to_le_bytes()).collect();
    wire.write_all(&tail)?;
    Ok(())
}

fn echo(wire: &mut Wire, size: usize) -> anyhow::Result<[u64; 3]> {
    let mut message = vec![0u8; size];
    let mut took = Took::new();
    loop {
        match wire.read_whole(&mut message) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(took.end()),
            other => other?,
        }
        took.more(size);
        wire.write_all(&message)?;
    }
}

fn sink(wire: &mut Wire) -> anyhow::Result<[u64; 3]> {
    let mut buffer = vec![0u8; READ];
    let mut took = Took::new();
    loop {
        match wire.read(&mut buffer) {
            Ok(0) => return Ok(took.end()),
            Ok(n) => took.more(n),
            // As `read_whole`.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What has come since the warm-up; all of it, where there was no more.
struct Took {
    begin: Instant,
    cpu: f64,
    bytes: u64,
    last: Instant,
    warm: bool,
}

impl Took {
    fn new() -> Took {
        Took {
            begin: Instant::now(),
            cpu: sys::own_cpu_seconds(),
            bytes: 0,
            last: Instant::now(),
            warm: false,
        }
    }

    fn more(&mut self, n: usize) {
        let now = Instant::now();
        if !self.warm && self.last - self.begin >= WARM_UP {
            self.warm = true;
            (self.begin, self.bytes) = (self.last, 0);
            self.cpu = sys::own_cpu_seconds();
        }
        self.bytes += n as u64;
        self.last = now;
    }

    fn end(&self) -> [u64; 3] {
        let cpu = Duration::from_secs_f64((sys::own_cpu_seconds() - self.cpu).max(0.0));
        [
            self.bytes,
            nanoseconds(self.last - self.begin),
            nanoseconds(cpu),
        ]
    }
}

/// All sizes, one after the other.
pub(super) fn measure(
    at: &At,
    budget: Duration,
    kind: Kind,
    sizes: &[u64],
) -> anyhow::Result<Vec<Sized>> {
    let each = sizes.iter().map(|&size| {
        ensure!((1..=MOST).contains(&size), "{size} bytes");
        one(at, budget, kind, size).with_context(|| format!("{size} bytes"))
    });
    each.collect()
}

fn one(at: &At, budget: Duration, kind: Kind, size: u64) -> anyhow::Result<Sized> {
    let mut wire = Wire::connect(at).context("connect")?;
    let word = u64::from(kind == Kind::Stream).to_le_bytes();
    wire.write_all(&[word, size.to_le_bytes()].concat())?;
    let mut message = vec![0u8; usize::try_from(size)?];
    let mut hist = Hist::new();
    let mut sent = 0u8;
    let mut turn = |wire: &mut Wire| {
        sent = sent.wrapping_add(1);
        exchange(wire, kind, &mut message, sent)
    };
    let begin = Instant::now();
    while begin.elapsed() < WARM_UP {
        turn(&mut wire)?;
    }
    let (begin, cpu) = (Instant::now(), sys::own_cpu_seconds());
    let mut last = begin;
    while last - begin < budget {
        turn(&mut wire)?;
        let now = Instant::now();
        hist.record(nanoseconds(now - last));
        last = now;
    }
    wire.finish()?;
    let mut tail = [0u8; 24];
    wire.read_whole(&mut tail).context("the server's figures")?;
    let cpu = sys::own_cpu_seconds() - cpu;
    let mut words = tail.chunks_exact(8).map(|word| {
        let word = word.try_into().unwrap_or_default();
        u64::from_le_bytes(word) as f64
    });
    let mut next = || words.next().unwrap_or_default();
    let (bytes, seconds, server) = (next(), next() / 1e9, next() / 1e9);
    let half = |percent| (kind == Kind::Echo).then(|| hist.percentile(percent) as f64 / 2.0);
    Ok(Sized {
        bytes: size,
        bytes_per_second: bytes / seconds.max(1e-9),
        p50_ns: half(50),
        p99_ns: half(99),
        cpu_seconds: Some(cpu + server),
        seconds,
    })
}

fn exchange(wire: &mut Wire, kind: Kind, message: &mut [u8], sent: u8) -> anyhow::Result<()> {
    let last = message.len() - 1;
    message[last] = sent;
    wire.write_all(message).context("send")?;
    if kind == Kind::Echo {
        message[last] = !sent;
        wire.read_whole(message).context("receive")?;
        ensure!(message[last] == sent, "a message came back changed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::wire::each_way;
    use super::*;

    #[test]
    fn every_size_has_its_figures_whichever_way() {
        each_way(|at| {
            let door = Door::open(&at).expect("it listens");
            std::thread::spawn(move || serve(&door));
            let budget = Duration::from_millis(20);
            let sizes = [1, 4096, 1 << 20];
            let echoed = measure(&at, budget, Kind::Echo, &sizes).expect("echo");
            let streamed = measure(&at, budget, Kind::Stream, &sizes).expect("stream");
            for (size, (echo, stream)) in sizes.iter().zip(echoed.iter().zip(&streamed)) {
                assert_eq!((echo.bytes, stream.bytes), (*size, *size));
                assert!(echo.bytes_per_second > 0.0 && stream.bytes_per_second > 0.0);
                assert!(echo.p50_ns > Some(0.0) && echo.p50_ns <= echo.p99_ns);
                assert!(stream.p50_ns.is_none());
            }
        });
    }

    #[test]
    fn a_size_that_nobody_could_hold_is_refused_by_both() {
        let scratch = crate::runner::proc::Scratch::new().expect("a folder");
        let at = At::Unix(scratch.name("socket"));
        let door = Door::open(&at).expect("it listens");
        let client = std::thread::spawn(move || {
            let budget = Duration::from_millis(1);
            assert!(measure(&at, budget, Kind::Echo, &[MOST + 1]).is_err());
            let mut wire = Wire::connect(&at).expect("connect");
            let head = [0u64.to_le_bytes(), u64::MAX.to_le_bytes()].concat();
            wire.write_all(&head).expect("send");
        });
        let served = serve_one(door.accept().expect("accept"));
        assert!(served.is_err());
        client.join().expect("the client");
    }
}
