//! What the lane should reach in a row, against what is beside it.

use super::rows::{LANE, Part, Row};
use super::sinks::RECV_COPY;
use crate::bench::beside::Bound;
use crate::bench::published::Aim;

const LEAST: fn(f64) -> Aim = Aim::AtLeast;

/// The aims of a row, on throughput.
pub(super) fn aims(row: &Row) -> Vec<Bound> {
    match row.part {
        Part::Stream => vec![
            (LANE, RECV_COPY, LEAST(2.5)),
            ("mapped", RECV_COPY, LEAST(1.3)),
        ],
        Part::Tokens => Vec::new(),
        Part::Python => vec![("python", "rust", LEAST(0.95))],
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::{ROWS, systems};
    use super::*;

    #[test]
    fn aims_name_systems_of_their_part() {
        for row in &ROWS {
            for (of, to, _) in aims(row) {
                for id in [of, to] {
                    let known = systems(row.part).iter().any(|system| system.id == id);
                    assert!(known, "{}: {id}", row.row);
                }
            }
        }
    }
}
