//! What is measured, the same for all ways to hand memory over. The program for iceoryx2 is built with this very file.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::hist::Hist;

/// Not measured.
const WARM_UP: Duration = Duration::from_millis(30);
/// The clock is read once for as many turns as take about so long, but no more than [`TURNS`].
const SLICE: Duration = Duration::from_micros(20);
const TURNS: u32 = 64;
/// An answer to a stream.
const ACK: [u8; 8] = *b"received";

/// One end of a connection, for messages of one size.
pub(crate) trait End {
    /// Gives this many bytes of memory, whatever is in it.
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

/// What was measured of a size.
pub(crate) struct Turned {
    pub(crate) bytes_per_second: f64,
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    pub(crate) seconds: f64,
}

/// The server's part of a hand-over.
pub(crate) fn give_back(end: &mut dyn End, bytes: usize) -> anyhow::Result<()> {
    while end.take(bytes)? {
        end.give(bytes)?;
    }
    Ok(())
}

/// The server's part of a stream.
pub(crate) fn receive_all(end: &mut dyn End, bytes: usize) -> anyhow::Result<()> {
    let mut buffer = vec![0u8; bytes];
    let mut sum = 0u8;
    while end.receive(&mut buffer)? {
        sum ^= buffer[0];
    }
    std::hint::black_box(sum);
    end.send(&ACK)
}

/// Half of a round trip: memory given, and as much taken back.
pub(crate) fn give_and_take(
    end: &mut dyn End,
    bytes: usize,
    budget: Duration,
) -> anyhow::Result<Turned> {
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
    Ok(Turned {
        bytes_per_second: ways / 2.0 * bytes as f64 / seconds,
        p50_ns: Some(hist.percentile(50) as f64 / 10.0),
        p99_ns: Some(hist.percentile(99) as f64 / 10.0),
        seconds,
    })
}

/// Bytes one way, until the other end says that it has them all.
pub(crate) fn carry(end: &mut dyn End, bytes: usize, budget: Duration) -> anyhow::Result<Turned> {
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
    Ok(Turned {
        bytes_per_second: sent as f64 / seconds,
        p50_ns: None,
        p99_ns: None,
        seconds,
    })
}
