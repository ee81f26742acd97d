//! What became of a run's aims: how many were reached, and each one that was not.

use super::table::Table;
use crate::catalogue::{Goal, To, View};
use crate::figures::Figures;
use crate::sample::{Better, metric};
use crate::spread::{Spread, times};

/// How many aims came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) reached: usize,
    pub(crate) missed: usize,
    /// There was nothing to compare with, or memory carried too few of the bytes.
    pub(crate) undecided: usize,
    /// Missed, and what memlane is compared with was better: such an aim asks for more than not to be worse.
    pub(crate) behind: usize,
}

/// Counts the aims of a run.
pub(crate) fn counts(figures: &Figures<'_>) -> Counts {
    let mut counts = Counts::default();
    for goal in figures.goals() {
        match figures.met(goal) {
            Some(true) => counts.reached += 1,
            Some(false) => counts.missed += 1,
            None => counts.undecided += 1,
        }
    }
    let behind = missed_goals(figures).filter(|(goal, ratio)| is_behind(goal, ratio));
    counts.behind = behind.count();
    counts
}

/// The aims that a run missed; without lines, if it missed none.
pub(crate) fn missed(figures: &Figures<'_>) -> Table {
    let head = [
        "aim missed",
        "table",
        "system",
        "metric",
        "aim",
        "reached",
        "behind",
    ];
    Table {
        id: "missed",
        title: "aims missed".into(),
        head: head.map(String::from).to_vec(),
        lines: missed_goals(figures)
            .map(|(goal, ratio)| line(figures, goal, &ratio))
            .collect(),
        words: [5, 1],
    }
}

fn missed_goals<'a>(figures: &Figures<'a>) -> impl Iterator<Item = (&'a Goal, Spread)> {
    let missed = figures
        .goals()
        .filter(|goal| figures.met(goal) == Some(false));
    missed.filter_map(|goal| {
        let ratio = figures.ratio(&goal.row, goal.of, goal.metric, &goal.to)?;
        Some((goal, ratio))
    })
}

fn line(figures: &Figures<'_>, goal: &Goal, ratio: &Spread) -> Vec<String> {
    let mut views = figures.catalogue.views.iter();
    let view = views.find(|view| shows(view, goal));
    let row = view.and_then(|view| view.rows.iter().find(|row| row.id == goal.row));
    let system = view.and_then(|view| view.systems.iter().find(|one| one.id == goal.of));
    let reached = match goal.to {
        To::Itself => ratio.shown(),
        _ => times(Some(ratio)),
    };
    vec![
        row.map_or(&goal.row, |row| &row.about).clone(),
        view.map_or("", |view| view.title).to_owned(),
        system.map_or(goal.of, |system| system.about).to_owned(),
        metric(goal.metric)
            .map_or(goal.metric, |(about, _)| about)
            .to_owned(),
        format!("{} {}", goal.to.name(), goal.aim.bound_shown())
            .trim()
            .to_owned(),
        reached,
        if is_behind(goal, ratio) { "yes" } else { "" }.to_owned(),
    ]
}

fn shows(view: &View, goal: &Goal) -> bool {
    view.rows.iter().any(|row| row.id == goal.row)
        && view.systems.iter().any(|system| system.id == goal.of)
        && view.metrics.contains(&goal.metric)
}

/// Whether what it is compared with is better.
fn is_behind(goal: &Goal, ratio: &Spread) -> bool {
    let worse = match metric(goal.metric) {
        Some((_, Better::Lower)) => ratio.median > 1.0,
        _ => ratio.median < 1.0,
    };
    goal.to != To::Itself && worse
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::run;
    use crate::suites::catalogue;

    #[test]
    fn missed_aims_are_listed_and_marked_where_the_peer_is_better() {
        let run = run(
            "packets",
            &[
                ("tx-64-b32", "persistent", "rate", "frames/s", &[6.0]),
                ("tx-64-b32", "copy", "rate", "frames/s", &[7.0]),
                ("tx-1496-b32", "persistent", "rate", "frames/s", &[5.0]),
                ("tx-1496-b32", "copy", "rate", "frames/s", &[4.0]),
                ("rx-64-b32", "persistent", "rate", "frames/s", &[9000.0]),
                ("rx-64-b32", "copy", "rate", "frames/s", &[4.0]),
                ("rx-1496-b32", "persistent", "rate", "frames/s", &[5.0]),
            ],
        );
        let all = catalogue("packets");
        let figures = Figures::new(&run, &all);
        let counts = counts(&figures);
        assert_eq!((counts.missed, counts.behind), (3, 2), "{counts:?}");
        assert!(counts.reached > 0 && counts.undecided > 0, "{counts:?}");
        let lines = missed(&figures).lines;
        let told: Vec<String> = lines.iter().map(|line| line[4..].join(", ")).collect();
        // Of 64 bytes it was asked to be 8 times as fast, and not to be the slowest mode.
        let expected = [
            "copy ≥8, 0.86× (0.86–0.86), yes",
            "older ≥1, 0.86× (0.86–0.86), yes",
            "copy ≥3, 1.25× (1.25–1.25), ",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_run_that_reached_all_its_aims_has_no_list() {
        let run = run(
            "packets",
            &[
                ("tx-64-b32", "persistent", "rate", "frames/s", &[9000.0]),
                ("tx-64-b32", "copy", "rate", "frames/s", &[1.0]),
            ],
        );
        let all = catalogue("packets");
        let figures = Figures::new(&run, &all);
        assert!(counts(&figures).reached > 0);
        assert!(missed(&figures).lines.is_empty());
    }
}
