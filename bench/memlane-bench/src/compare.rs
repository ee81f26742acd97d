//! An older run against a newer one: which figures got better or worse, beyond their spread.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::exit::{Exit, fail};
use crate::out;
use crate::render::table::Table;
use crate::sample::{Better, Run, metric};
use crate::spread::Spread;

/// Compares two runs of one suite. Ends with 0 if nothing got worse, 1 if something did, 2 if there is nothing to
/// compare or a file is no run.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The older run, as `run --json` printed it.
    old: PathBuf,
    /// The newer one.
    new: PathBuf,
    /// Also list what has not changed.
    #[arg(long)]
    all: bool,
}

/// What became of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Better,
    Worse,
    Same,
}

impl Change {
    fn word(self) -> &'static str {
        match self {
            Change::Better => "better",
            Change::Worse => "worse",
            Change::Same => "same",
        }
    }
}

/// Row, system, metric.
type Key = (String, String, String);

/// One figure in both runs.
struct Line {
    key: Key,
    unit: String,
    old: Spread,
    new: Spread,
    change: Change,
}

/// Compares.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let read = |file| Run::read(file).map_err(|error| fail(Exit::Usage, format!("{error:#}")));
    let (old, new) = (read(&args.old)?, read(&args.new)?);
    let lines = compare(&old, &new).map_err(|text| fail(Exit::Usage, text))?;
    out::print(&text(&lines, args.all, &missing(&old, &new)))?;
    let worse = lines.iter().any(|line| line.change == Change::Worse);
    Ok(if worse { Exit::Failed } else { Exit::Ok }.into())
}

/// The figures that both have. `Err` is for the user.
fn compare(old: &Run, new: &Run) -> Result<Vec<Line>, String> {
    let (was, is) = (&old.head.suite, &new.head.suite);
    if was != is {
        return Err(format!("{was:?} and {is:?} are different suites"));
    }
    let (before, mut after) = (by_key(old), by_key(new));
    let lines = before.into_iter().filter_map(|(key, (unit, old))| {
        let (now, new) = after.remove(&key)?;
        let (_, better) = metric(&key.2).filter(|_| now == unit)?;
        let (old, new) = (Spread::of(&old)?, Spread::of(&new)?);
        let change = change(better, &old, &new)?;
        Some(Line {
            key,
            unit,
            old,
            new,
            change,
        })
    });
    let lines: Vec<Line> = lines.collect();
    match lines.is_empty() {
        true => Err("the two runs have no figure in common".to_owned()),
        false => Ok(lines),
    }
}

fn by_key(run: &Run) -> BTreeMap<Key, (String, Vec<f64>)> {
    let mut found: BTreeMap<Key, (String, Vec<f64>)> = BTreeMap::new();
    for one in &run.samples {
        let key = (one.row.clone(), one.system.clone(), one.metric.clone());
        let (_, values) = found
            .entry(key)
            .or_insert_with(|| (one.unit.clone(), Vec::new()));
        values.push(one.value);
    }
    found
}

/// How far the nearest rounds of two runs must lie apart. Even the counted clock, which repeats best, repeats within 1 %
/// only; and a run of it has one round, so no spread of its own.
const APART: f64 = 1.01;

/// Beyond the spread: every round of the one is better than every round of the other. `None`: it is not judged.
fn change(better: Better, old: &Spread, new: &Spread) -> Option<Change> {
    let (above, below) = (new.min > old.max * APART, new.max * APART < old.min);
    Some(match better {
        Better::Neither => return None,
        Better::Higher if above => Change::Better,
        Better::Higher if below => Change::Worse,
        Better::Lower if below => Change::Better,
        Better::Lower if above => Change::Worse,
        _ => Change::Same,
    })
}

/// Rows that the newer run does not have.
fn missing(old: &Run, new: &Run) -> Vec<String> {
    let rows = |run: &Run| -> Vec<String> {
        let rows = run
            .samples
            .iter()
            .map(|one| format!("{}, {}", one.row, one.system));
        rows.collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect()
    };
    let there = rows(new);
    rows(old)
        .into_iter()
        .filter(|row| !there.contains(row))
        .collect()
}

fn text(lines: &[Line], all: bool, missing: &[String]) -> String {
    let shown = lines
        .iter()
        .filter(|line| all || line.change != Change::Same);
    let cells = |line: &Line| {
        let (row, system, id) = &line.key;
        let about = metric(id).map_or(id.as_str(), |(about, _)| about);
        let times = match line.old.median {
            old if old > 0.0 => format!("{:.2}×", line.new.median / old),
            _ => String::new(),
        };
        vec![
            row.clone(),
            system.clone(),
            format!("{about}, {}", line.unit),
            line.old.shown(),
            line.new.shown(),
            times,
            line.change.word().into(),
        ]
    };
    let table = Table {
        id: "compare",
        title: "compare".into(),
        head: [
            "row",
            "system",
            "metric",
            "old",
            "new",
            "new / old",
            "change",
        ]
        .map(String::from)
        .to_vec(),
        lines: shown.map(cells).collect(),
        words: [3, 1],
    };
    let mut out = String::new();
    table.markdown(&mut out);
    let count = |change| lines.iter().filter(|line| line.change == change).count();
    let [better, worse, same] = [Change::Better, Change::Worse, Change::Same].map(count);
    out.push_str(&format!(
        "\n{better} better, {worse} worse, {same} within their spread\n"
    ));
    if !missing.is_empty() {
        out.push_str(&format!("not in the newer run: {}\n", missing.join("; ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::run;

    fn changes(old: &Run, new: &Run) -> Vec<(String, Change)> {
        let lines = compare(old, new).expect("figures in common");
        lines
            .into_iter()
            .map(|line| (line.key.2, line.change))
            .collect()
    }

    #[test]
    fn a_figure_changes_only_beyond_both_spreads_and_the_way_that_its_metric_says() {
        let figures = |rate: &'static [f64], p50: &'static [f64], p99: &'static [f64]| {
            run(
                "blocks",
                &[
                    ("seqread", "fuse", "rate", "req/s", rate),
                    ("seqread", "fuse", "p50", "µs", p50),
                    ("seqread", "fuse", "p99", "µs", p99),
                    ("seqread", "fuse", "ring_bytes", "B", rate),
                ],
            )
        };
        let old = figures(&[10.0, 12.0], &[5.0, 6.0], &[5.0, 6.0]);
        let new = figures(&[13.0, 14.0], &[7.0, 8.0], &[5.9, 9.0]);
        let told = changes(&old, &new);
        let expected = [
            ("p50", Change::Worse),
            ("p99", Change::Same),
            ("rate", Change::Better),
        ];
        assert_eq!(told, expected.map(|(id, change)| (id.to_owned(), change)));
    }

    #[test]
    fn one_round_that_differs_by_less_than_a_counted_run_repeats_is_the_same() {
        let figure =
            |rate: &'static [f64]| run("counted", &[("short", "tcp", "rate", "conn/s", rate)]);
        let old = figure(&[8000.0]);
        for (new, change) in [
            (&[8070.0], Change::Same),
            (&[7930.0], Change::Same),
            (&[8090.0], Change::Better),
            (&[7900.0], Change::Worse),
        ] {
            assert_eq!(changes(&old, &figure(new)), [("rate".to_owned(), change)]);
        }
    }

    #[test]
    fn a_row_that_is_gone_is_named_and_nothing_in_common_is_an_error() {
        let old = run(
            "blocks",
            &[
                ("a", "x", "rate", "req/s", &[1.0]),
                ("b", "x", "rate", "req/s", &[1.0]),
            ],
        );
        let new = run("blocks", &[("a", "x", "rate", "req/s", &[1.0])]);
        assert_eq!(missing(&old, &new), ["b, x"]);
        let other = run("blocks", &[("c", "x", "rate", "req/s", &[1.0])]);
        assert!(compare(&new, &other).is_err_and(|text| text.contains("no figure")));
        let unit = run("blocks", &[("a", "x", "rate", "B/s", &[1.0])]);
        assert!(
            compare(&new, &unit).is_err(),
            "another unit is another figure"
        );
        let suite = run("sockets", &[("a", "x", "rate", "req/s", &[1.0])]);
        assert!(compare(&new, &suite).is_err_and(|text| text.contains("different suites")));
    }
}
