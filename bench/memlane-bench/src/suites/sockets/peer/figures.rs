//! What a client of the embedded pair prints, and measures it with.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hist::Hist;

/// Bytes of a request and of its reply.
pub(super) const MESSAGE: usize = 100;

/// What a client prints, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct Outcome {
    /// Messages answered in the time that was measured.
    pub(in super::super) exchanges: u64,
    /// Messages answered, with those of the warm-up.
    pub(in super::super) all: u64,
    /// Time that was measured.
    pub(in super::super) seconds: f64,
    /// Median round trip.
    pub(in super::super) p50_ns: u64,
    /// 99th percentile of the round trip.
    pub(in super::super) p99_ns: u64,
}

/// What a client prints of one size, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sized {
    /// Of a message, or of a write.
    pub(crate) bytes: u64,
    /// Bytes carried one way in a second.
    pub(crate) bytes_per_second: f64,
    /// Median of half a round trip, if there was one.
    pub(crate) p50_ns: Option<f64>,
    /// 99th percentile, if there was one.
    pub(crate) p99_ns: Option<f64>,
    /// Processor time of both ends for what was measured; `None`: not told.
    pub(crate) cpu_seconds: Option<f64>,
    /// Which that was.
    pub(crate) seconds: f64,
}

/// What a client with a pace prints, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct Paced {
    /// Requests that were measured.
    pub(in super::super) requests: u64,
    /// Time in which they were due.
    pub(in super::super) seconds: f64,
    /// Median of the time from when a request was due to its answer.
    pub(in super::super) p50_ns: u64,
    /// 99th percentile of it.
    pub(in super::super) p99_ns: u64,
    /// Processor time of both ends; `None`: the kernel does not tell it.
    pub(in super::super) cpu_seconds: Option<f64>,
}

/// What a client of `opening` prints, as one line of JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::suites) struct Opened {
    /// Connections that were made.
    pub(in crate::suites) connections: u64,
    /// From the eighth exchange to the lane, of each that has got it.
    pub(in crate::suites) took_ns: Vec<u64>,
    /// Time for all of it.
    pub(in crate::suites) seconds: f64,
}

impl Opened {
    pub(super) fn add(&mut self, more: Opened) {
        self.connections += more.connections;
        self.took_ns.extend(more.took_ns);
    }
}

/// What was measured of 100-byte messages.
pub(super) fn outcome(hist: &Hist, all: u64, elapsed: Duration) -> Outcome {
    Outcome {
        exchanges: hist.len(),
        all,
        seconds: elapsed.as_secs_f64(),
        p50_ns: hist.percentile(50),
        p99_ns: hist.percentile(99),
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
