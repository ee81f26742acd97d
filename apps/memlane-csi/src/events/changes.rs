//! Which changes of volumes' health are worth an event. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::Faults;

/// Longest note of an event, in bytes: what API servers take.
const NOTE: usize = 1024;
/// The reason of events that say that something is over.
const RECOVERED: &str = "VolumeRecovered";

/// Something that is wrong with a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// One word.
    pub reason: String,
    /// What happened, for people.
    pub message: String,
}

/// A change of a volume's health.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The volume's identifier.
    pub volume: String,
    /// Something has begun to be wrong.
    pub is_warning: bool,
    /// One word: the first fault that is new, or that something is over.
    pub reason: String,
    /// What happened, for people.
    pub note: String,
}

/// What has been told of each volume.
#[derive(Default, Debug)]
pub struct Seen(BTreeMap<String, BTreeSet<String>>);

impl Seen {
    /// One change for each volume whose faults are other ones than those that were told.
    pub fn changes(&self, now: &Faults) -> Vec<Change> {
        let all = now.iter();
        all.filter_map(|(volume, faults)| self.change(volume, faults))
            .collect()
    }

    fn change(&self, volume: &str, faults: &[Fault]) -> Option<Change> {
        let none = BTreeSet::new();
        let before = self.0.get(volume).unwrap_or(&none);
        let over: Vec<&str> = before
            .iter()
            .map(String::as_str)
            .filter(|reason| faults.iter().all(|fault| fault.reason != **reason))
            .collect();
        let new = faults.iter().find(|fault| !before.contains(&fault.reason));
        let messages = listed(faults);
        let (reason, note) = match new {
            Some(fault) => (fault.reason.as_str(), messages),
            None if over.is_empty() => return None,
            None if faults.is_empty() => {
                let note = format!(
                    "the volume works as it should again (before: {})",
                    over.join(", ")
                );
                (RECOVERED, note)
            }
            None => (
                RECOVERED,
                format!("over: {}; still so: {messages}", over.join(", ")),
            ),
        };
        Some(Change {
            volume: volume.to_owned(),
            is_warning: new.is_some(),
            reason: reason.to_owned(),
            note: shortened(note),
        })
    }

    /// The faults of a volume have been told.
    pub fn is_told(&mut self, volume: &str, now: &Faults) {
        let faults = now.get(volume).into_iter().flatten();
        let reasons = faults.map(|fault| fault.reason.clone()).collect();
        self.0.insert(volume.to_owned(), reasons);
    }

    /// Volumes that are no longer on this node are forgotten: nothing is wrong with them here.
    pub fn keep_only(&mut self, now: &Faults) {
        self.0.retain(|volume, _| now.contains_key(volume));
    }
}

fn listed(faults: &[Fault]) -> String {
    let messages = faults.iter().map(|fault| fault.message.as_str());
    messages.collect::<Vec<_>>().join("; ")
}

fn shortened(mut note: String) -> String {
    if note.len() <= NOTE {
        return note;
    }
    while note.len() > NOTE - '…'.len_utf8() {
        note.pop();
    }
    note.push('…');
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(of_a: &[&str]) -> Faults {
        let fault = |reason: &&str| Fault {
            reason: (*reason).to_owned(),
            message: format!("{reason} happened"),
        };
        BTreeMap::from([("a".to_owned(), of_a.iter().map(fault).collect())])
    }

    /// Looks at one state of the volume `a` after another; what was told, as reason and note.
    fn told(states: &[&[&str]]) -> Vec<(String, String)> {
        let (mut seen, mut all) = (Seen::default(), Vec::new());
        for state in states {
            let now = faults(state);
            for change in seen.changes(&now) {
                assert_eq!(change.is_warning, change.reason != RECOVERED);
                seen.is_told(&change.volume, &now);
                all.push((change.reason, change.note));
            }
            seen.keep_only(&now);
        }
        all
    }

    #[test]
    fn each_change_is_told_once() {
        let all = told(&[&[], &["Away"], &["Away"], &["Away"], &[], &[], &["Away"]]);
        let reasons: Vec<&str> = all.iter().map(|(reason, _)| reason.as_str()).collect();
        assert_eq!(reasons, ["Away", "VolumeRecovered", "Away"]);
        assert_eq!(all[0].1, "Away happened");
        assert!(all[1].1.contains("Away"), "{all:?}");
    }

    #[test]
    fn of_several_faults_at_once_the_first_gives_the_reason_and_all_are_told() {
        let all = told(&[
            &["Lost", "PathDown"],
            &["PathDown"],
            &["PathDown", "ReadOnly"],
        ]);
        assert_eq!(
            all[0],
            ("Lost".into(), "Lost happened; PathDown happened".into())
        );
        assert_eq!(
            all[1],
            (
                "VolumeRecovered".into(),
                "over: Lost; still so: PathDown happened".into()
            )
        );
        assert_eq!(all[2].0, "ReadOnly");
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn a_volume_that_left_the_node_has_not_recovered() {
        let mut seen = Seen::default();
        let now = faults(&["Away"]);
        seen.is_told("a", &now);
        let gone = Faults::new();
        assert_eq!(seen.changes(&gone), []);
        seen.keep_only(&gone);
        // It comes back, and is still away.
        assert_eq!(seen.changes(&now).len(), 1);
    }

    #[test]
    fn a_long_note_is_cut_between_two_characters() {
        for more in 0..4 {
            let cut = shortened("x".repeat(NOTE - 4 + more) + "äöü€€€");
            assert!(cut.len() <= NOTE && cut.ends_with('…'), "{}", cut.len());
        }
        assert_eq!(shortened("short".into()), "short");
    }
}
