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

/// The figures of a row. The rate, in bytes a second, is that of one end; all else is of both.
pub(super) fn figures(rate: f64, sent: &Seen, received: &Seen) -> Vec<Figure> {
    let both = |of: fn(&Seen) -> f64| of(sent) + of(received);
    let mut figures = vec![
        ("throughput", "GB/s", rate / 1e9),
        ("cpu", "s/GB", both(|seen| seen.cpu_s_per_gb)),
        ("receiver_cpu", "s/GB", received.cpu_s_per_gb),
        (
            "kernel_copies",
            "copies",
            both(|seen| seen.copied_by_kernel),
        ),
        (
            "program_copies",
            "copies",
            both(|seen| seen.copied_by_program),
        ),
    ];
    if let Some(sizes) = &received.fragments {
        figures.extend([
            ("fragments", "fragments", sizes.count as f64),
            ("fragment_smallest", "B", sizes.smallest.into()),
            ("fragment_tenth", "B", sizes.tenth.into()),
            ("fragment_half", "B", sizes.half.into()),
            ("fragment_largest", "B", sizes.largest.into()),
        ]);
    }
    figures
}
