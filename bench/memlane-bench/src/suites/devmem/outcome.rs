//! What was seen of a stream: by each end, and of both together.

use serde::{Deserialize, Serialize};

use super::sizes::Sizes;
use crate::runner::record::Figure;

/// What an end has counted.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) bytes: u64,
    pub(super) per_second: f64,
    /// Of its processor time, user and system.
    pub(super) cpu_s_per_gb: f64,
    /// Bytes that were copied for each byte of payload, by the kernel between its buffers and memory of a program …
    pub(super) copied_by_kernel: f64,
    /// … and by the program, between two places of host memory.
    pub(super) copied_by_program: f64,
    /// Of fragments, if there were any.
    pub(super) fragments: Option<Sizes>,
}

/// What was seen of one system in one row.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Outcome {
    /// Bytes in a second.
    pub(super) value: f64,
    /// Seconds of processor time for a gigabyte, both ends.
    pub(super) cpu: Option<f64>,
    /// Of these, the receiver's.
    pub(super) receiver_cpu: Option<f64>,
    /// Copies of each byte, both ends.
    pub(super) copied_by_kernel: Option<f64>,
    pub(super) copied_by_program: Option<f64>,
    pub(super) fragments: Option<Sizes>,
}

impl Outcome {
    /// The rate is that of one end, all else of both.
    pub(super) fn of(value: f64, sent: &Seen, received: Seen) -> Outcome {
        Outcome {
            value,
            cpu: Some(sent.cpu_s_per_gb + received.cpu_s_per_gb),
            receiver_cpu: Some(received.cpu_s_per_gb),
            copied_by_kernel: Some(sent.copied_by_kernel + received.copied_by_kernel),
            copied_by_program: Some(sent.copied_by_program + received.copied_by_program),
            fragments: received.fragments,
        }
    }

    pub(super) fn figures(&self) -> Vec<Figure> {
        let some = |metric, unit, value: Option<f64>| value.map(|value| (metric, unit, value));
        let sizes = self.fragments.as_ref();
        let size = |metric, of: fn(&Sizes) -> u32| some(metric, "B", sizes.map(|s| of(s).into()));
        let all = [
            Some(("throughput", "GB/s", self.value / 1e9)),
            some("cpu", "s/GB", self.cpu),
            some("receiver_cpu", "s/GB", self.receiver_cpu),
            some("kernel_copies", "copies", self.copied_by_kernel),
            some("program_copies", "copies", self.copied_by_program),
            some("fragments", "fragments", sizes.map(|s| s.count as f64)),
            size("fragment_smallest", |s| s.smallest),
            size("fragment_tenth", |s| s.tenth),
            size("fragment_half", |s| s.half),
            size("fragment_largest", |s| s.largest),
        ];
        all.into_iter().flatten().collect()
    }
}
