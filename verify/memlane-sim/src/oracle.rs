//! Was each block a register? Was anything executed twice?
//!
//! Each write has a value of its own, so one need not search for an order (Gibbons and Korach, *Testing shared
//! memories*, 1997): a value's **zone** lies between the first end and the last beginning of what wrote or read it. Where
//! the end comes first, the value was there all that time, and no two values can have been; where it does not,
//! the value needs a moment within its zone that is not wholly inside another one's.

use std::collections::BTreeMap;

/// The value of a block that nobody has written.
pub const NOTHING: u64 = 0;

/// A moment of the history: no two are the same.
pub type Step = u64;

/// One operation of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// Which block.
    pub block: usize,
    /// A write, or a read.
    pub write: bool,
    /// What was written or read.
    pub value: u64,
    /// When it was asked for.
    pub begin: Step,
    /// When it was acknowledged; never, if its outcome is not known.
    pub end: Option<Step>,
}

/// What should not have happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The history of a block is that of no register.
    NotARegister(String),
    /// A request was executed more than once.
    ExecutedTwice(String),
    /// Somebody waits for ever.
    Hang(String),
}

/// What happened with one value.
#[derive(Clone, Copy, Debug)]
struct Zone {
    value: u64,
    written: Option<Op>,
    first_end: Step,
    last_begin: Step,
    read: bool,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.first_end < self.last_begin
    }
}

/// Judges a history.
pub fn judge(history: &[Op]) -> Result<(), Violation> {
    let mut blocks: BTreeMap<usize, BTreeMap<u64, Zone>> = BTreeMap::new();
    for op in history {
        // A read that never ended has read nothing.
        if !op.write && op.end.is_none() {
            continue;
        }
        let zones = blocks.entry(op.block).or_default();
        let zone = zones.entry(op.value).or_insert(Zone {
            value: op.value,
            written: None,
            first_end: Step::MAX,
            last_begin: 0,
            read: false,
        });
        zone.first_end = zone.first_end.min(op.end.unwrap_or(Step::MAX));
        zone.last_begin = zone.last_begin.max(op.begin);
        if op.write {
            zone.written = Some(*op);
        } else {
            zone.read = true;
        }
    }
    blocks
        .into_iter()
        .try_for_each(|(block, zones)| judge_block(block, zones))
}

fn judge_block(block: usize, zones: BTreeMap<u64, Zone>) -> Result<(), Violation> {
    let wrong = |text: String| Err(Violation::NotARegister(format!("block {block}: {text}")));
    let mut kept = Vec::new();
    for (_, mut zone) in zones {
        let Some(write) = zone.written else {
            if zone.value != NOTHING {
                return wrong(format!("{zone:?} was read and never written there"));
            }
            // It was there before everything else.
            zone.first_end = 0;
            kept.push(zone);
            continue;
        };
        if zone.first_end < write.begin {
            return wrong(format!("{zone:?} was read before it was written"));
        }
        // A write of which nobody knows, and that nobody saw, need not have happened.
        if write.end.is_some() || zone.read {
            kept.push(zone);
        }
    }
    let mut forward: Vec<_> = kept.iter().filter(|zone| zone.is_forward()).collect();
    forward.sort_by_key(|zone| zone.first_end);
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_begin {
            return wrong(format!(
                "{:?} and {:?} were there at once",
                pair[0], pair[1]
            ));
        }
    }
    for zone in kept.iter().filter(|zone| !zone.is_forward()) {
        let inside =
            |other: &&&Zone| other.first_end < zone.last_begin && zone.first_end < other.last_begin;
        if let Some(other) = forward.iter().find(inside) {
            return wrong(format!("{zone:?} has no moment beside {other:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(write, value, begin, end)`; an end of 0 is none.
    fn history(ops: &[(bool, u64, Step, Step)]) -> Result<(), Violation> {
        let op = |(write, value, begin, end): &(bool, u64, Step, Step)| Op {
            block: 0,
            write: *write,
            value: *value,
            begin: *begin,
            end: Some(*end).filter(|end| *end != 0),
        };
        judge(&ops.iter().map(op).collect::<Vec<_>>())
    }

    #[test]
    fn histories_of_a_register_pass() {
        assert!(history(&[(false, 0, 1, 2), (true, 7, 3, 4), (false, 7, 5, 6)]).is_ok());
        let overlapping = [
            (true, 7, 1, 9),
            (true, 8, 2, 10),
            (false, 8, 3, 4),
            (false, 7, 5, 6),
        ];
        assert!(history(&overlapping).is_ok());
        let unknown = [
            (true, 7, 1, 0),
            (true, 8, 2, 3),
            (false, 8, 4, 5),
            (false, 7, 6, 7),
        ];
        assert!(history(&unknown).is_ok());
        assert!(history(&[(true, 7, 1, 0), (false, 0, 2, 3)]).is_ok());
    }

    #[test]
    fn a_lost_write_an_old_value_and_a_value_from_nowhere_are_found() {
        let lost = [(true, 7, 1, 2), (false, 0, 3, 4)];
        assert!(history(&lost).is_err());
        let overwritten_late = [(true, 7, 1, 2), (true, 8, 3, 4), (false, 7, 5, 6)];
        assert!(history(&overwritten_late).is_err());
        assert!(history(&[(false, 9, 1, 2)]).is_err());
        assert!(history(&[(false, 7, 1, 2), (true, 7, 3, 4)]).is_err());
        let flip = [
            (true, 7, 1, 20),
            (true, 8, 2, 21),
            (false, 7, 3, 4),
            (false, 8, 5, 6),
            (false, 7, 7, 8),
        ];
        assert!(history(&flip).is_err());
    }
}
