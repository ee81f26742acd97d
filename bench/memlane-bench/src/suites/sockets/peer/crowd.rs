//! Many streams at once to one process: a thread for each at the client, one thread with epoll at the server.

use std::io::{ErrorKind, Read as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::figures::Sized;
use super::many;
use super::wire::{At, Door, Wire};
use crate::runner::sys;

/// The bytes of a write, and of a read.
const PIECE: usize = 128 * 1024;

/// Takes what comes until it is ended. Each stream that has something is read once in a turn.
pub(super) fn serve(door: &Door) -> anyhow::Result<()> {
    let mut room = vec![0u8; PIECE];
    many::serve_by(door, |wire| match wire.read(&mut room) {
        Ok(0) => bail!("the end"),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(error.into()),
    })
}

/// Sends over this many connections at once for this time. What counts is the time until all bytes have been taken: buffers of the
/// kernel hold megabytes of each stream.
pub(super) fn measure(at: &At, budget: Duration, streams: usize) -> anyhow::Result<Sized> {
    ensure!(streams > 0, "no streams");
    sys::raise_descriptor_limit();
    let wires: Vec<Wire> = (0..streams)
        .map(|number| Wire::connect(at).with_context(|| format!("stream {number}")))
        .collect::<anyhow::Result<_>>()?;
    let begin = Instant::now();
    let bytes = std::thread::scope(|scope| {
        let threads: Vec<_> = wires
            .iter()
            .map(|wire| scope.spawn(move || send(wire, begin + budget)))
            .collect();
        let sent = threads.into_iter().map(|thread| {
            let sent = thread.join();
            sent.unwrap_or_else(|_| bail!("a thread that sends has panicked"))
        });
        sent.sum::<anyhow::Result<u64>>()
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Sized {
        bytes: PIECE as u64,
        bytes_per_second: bytes as f64 / seconds,
        p50_ns: None,
        p99_ns: None,
        cpu_seconds: None,
        seconds,
    })
}

/// Sends until then, and waits until the server has taken all of it and has closed. Returns how many bytes that were.
fn send(mut wire: &Wire, until: Instant) -> anyhow::Result<u64> {
    let piece = vec![7u8; PIECE];
    let mut sent = 0;
    while Instant::now() < until {
        sent += wire.write(&piece).context("send")? as u64;
    }
    wire.finish()?;
    match wire.read_whole(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(sent),
        Err(error) => Err(error).context("the server has not taken all"),
        Ok(()) => bail!("the server has sent something"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::each_way;
    use super::*;

    #[test]
    fn streams_are_taken_at_the_same_time() {
        each_way(|at| {
            let door = Door::open(&at).expect("it listens");
            std::thread::spawn(move || serve(&door));
            for streams in [1, 20] {
                let told = measure(&at, Duration::from_millis(50), streams).expect("it sends");
                assert!(told.bytes_per_second > 0.0 && told.seconds >= 0.05);
            }
            assert!(measure(&at, Duration::from_millis(1), 0).is_err());
        });
    }
}
