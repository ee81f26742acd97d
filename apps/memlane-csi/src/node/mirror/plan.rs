//! What is to be done with two copies: the decision that loses no write, made of what the copies say and of nothing else.

use super::super::superblock::{Beginning, Superblock};

/// What is to be done with copies of which no mirror runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// Make a new mirror of both.
    New,
    /// Start it with both.
    Both,
    /// Start it with this one alone. The other one is taken in later.
    Alone(usize),
}

/// Why no mirror can be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// What can be reached may be older than what cannot.
    MayBeOld,
    /// A copy has something that is not of this mirror.
    Strange,
    /// Both copies were used without the other.
    Apart,
    /// Neither copy is complete.
    Incomplete,
}

/// What is to be done with two copies, of which `None` cannot be reached.
pub(super) fn plan(found: &[Option<Beginning>]) -> Result<Start, Refusal> {
    use Beginning::{Blank, Member, Strange};
    let [one, other] = found else {
        return Err(Refusal::Strange);
    };
    match (one, other) {
        (Some(Strange), _) | (_, Some(Strange)) => Err(Refusal::Strange),
        (Some(Blank), Some(Blank)) => Ok(Start::New),
        // Nothing is on the other one, so nothing newer is.
        (Some(Member(one)), Some(Blank)) => one
            .is_complete
            .then_some(Start::Alone(0))
            .ok_or(Refusal::Incomplete),
        (Some(Blank), Some(Member(other))) => other
            .is_complete
            .then_some(Start::Alone(1))
            .ok_or(Refusal::Incomplete),
        (Some(Member(one)), Some(Member(other))) => both(one, other),
        (Some(Member(one)), None) if one.is_ahead() => Ok(Start::Alone(0)),
        (None, Some(Member(other))) if other.is_ahead() => Ok(Start::Alone(1)),
        (None, _) | (_, None) => Err(Refusal::MayBeOld),
    }
}

fn both(one: &Superblock, other: &Superblock) -> Result<Start, Refusal> {
    // An older copy that says it was used alone has been brought together with the other since, or neither was asked.
    let is_newer = |a: &Superblock, b: &Superblock| a.events >= b.events || !b.is_complete;
    match (one.is_ahead(), other.is_ahead()) {
        (true, true) => Err(Refusal::Apart),
        (true, false) if is_newer(one, other) => Ok(Start::Alone(0)),
        (false, true) if is_newer(other, one) => Ok(Start::Alone(1)),
        (false, false) if one.is_complete || other.is_complete => Ok(Start::Both),
        (false, false) => Err(Refusal::Incomplete),
        _ => Err(Refusal::Apart),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(events: u64, is_complete: bool, has_other: bool) -> Option<Beginning> {
        Some(Beginning::Member(Superblock {
            uuid: [0; 16],
            events,
            is_complete,
            has_other,
        }))
    }

    /// The plan, which does not depend on the order of the copies.
    fn planned(one: &Option<Beginning>, other: &Option<Beginning>) -> Result<Start, Refusal> {
        let plan_of = |a: &Option<Beginning>, b: &Option<Beginning>| plan(&[a.clone(), b.clone()]);
        let turned = plan_of(other, one).map(|start| match start {
            Start::Alone(number) => Start::Alone(1 - number),
            same => same,
        });
        let planned = plan_of(one, other);
        assert_eq!(planned, turned);
        planned
    }

    #[test]
    fn a_copy_that_does_not_say_that_the_other_was_left_behind_is_never_used_alone() {
        for has_complete in [false, true] {
            let left_behind = copy(5, has_complete, true);
            assert_eq!(planned(&left_behind, &None), Err(Refusal::MayBeOld));
        }
        assert_eq!(planned(&copy(5, true, false), &None), Ok(Start::Alone(0)));
        assert_eq!(
            planned(&Some(Beginning::Blank), &None),
            Err(Refusal::MayBeOld)
        );
        assert_eq!(planned(&None, &None), Err(Refusal::MayBeOld));
    }

    #[test]
    fn of_two_copies_the_one_that_went_on_alone_is_the_newer_one() {
        let (ahead, behind) = (copy(9, true, false), copy(5, true, true));
        assert_eq!(planned(&ahead, &behind), Ok(Start::Alone(0)));
        assert_eq!(
            planned(&copy(9, true, true), &copy(9, true, true)),
            Ok(Start::Both)
        );
        // Killed while one was made up to date.
        assert_eq!(
            planned(&copy(9, true, true), &copy(9, false, true)),
            Ok(Start::Both)
        );
        assert_eq!(
            planned(&copy(8, true, false), &copy(9, false, true)),
            Ok(Start::Alone(0))
        );
    }

    #[test]
    fn copies_that_were_both_used_alone_are_not_joined() {
        assert_eq!(
            planned(&copy(9, true, false), &copy(7, true, false)),
            Err(Refusal::Apart)
        );
        assert_eq!(
            planned(&copy(7, true, false), &copy(9, true, true)),
            Err(Refusal::Apart)
        );
    }

    #[test]
    fn a_new_mirror_is_made_of_two_blank_copies_only() {
        let blank = Some(Beginning::Blank);
        assert_eq!(planned(&blank, &blank), Ok(Start::New));
        assert_eq!(planned(&blank, &copy(3, true, true)), Ok(Start::Alone(1)));
        assert_eq!(
            planned(&blank, &copy(3, false, true)),
            Err(Refusal::Incomplete)
        );
        for other in [blank, copy(3, true, false), None] {
            assert_eq!(
                planned(&Some(Beginning::Strange), &other),
                Err(Refusal::Strange)
            );
        }
    }
}
