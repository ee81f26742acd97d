//! What the lane should reach in a row, against what is beside it.

use super::rows::{LANE, Part, Row};
use super::sinks::RECV_COPY;
use crate::beside::Bound;
use crate::published::Aim;

/// Of the lane, at most (`memlane_devmem::io::lane`).
const RING: u64 = 2 << 20;
const LEAST: fn(f64) -> Aim = Aim::AtLeast;

/// The aims of a row, on throughput.
pub(super) fn aims(row: &Row) -> Vec<Bound> {
    let mapped = ("mapped", RECV_COPY, LEAST(1.3));
    match row.part {
        // What is kept must fit into the ring that the peer writes into.
        Part::Stream if row.hold > RING => vec![mapped],
        Part::Stream => vec![(LANE, RECV_COPY, LEAST(2.5)), mapped],
        Part::Tokens => Vec::new(),
        Part::Python => vec![("wheel", "rust", LEAST(0.95))],
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::*;
    use crate::beside::plan::Part as _;

    #[test]
    fn aims_are_those_of_the_issue() {
        let of = |id: &str| aims(ROWS.iter().find(|row| row.row == id).expect("a row"));
        let lane = ("lane", RECV_COPY, LEAST(2.5));
        let mapped = ("mapped", RECV_COPY, LEAST(1.3));
        assert_eq!(of("kept-1m"), [lane, mapped]);
        assert_eq!(of("kept-32m"), [mapped]);
        assert_eq!(of("tensor"), [("wheel", "rust", LEAST(0.95))]);
    }

    #[test]
    fn aims_name_systems_of_their_part() {
        for row in &ROWS {
            for (of, to, _) in aims(row) {
                for id in [of, to] {
                    let known = row.part.systems().iter().any(|system| system.id == id);
                    assert!(known, "{}: {id}", row.row);
                }
            }
        }
    }
}
