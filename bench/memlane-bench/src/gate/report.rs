//! The result: a table for people, at most 100 columns wide, or a JSON document.

use std::fmt::Write as _;

use serde::Serialize;

use super::rows::Row;
use super::turns::Series;
use super::verdict::{Judged, Pair, Verdict};
use crate::sample::Machine;
use crate::spread::{Spread, short};

/// `schema` of the document. Fields may be added under that name; any other change takes another name.
pub(super) const SCHEMA: &str = "memlane.gate/1";

/// All that the gate has seen.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) schema: &'static str,
    /// What the builds are called.
    pub(super) base: String,
    pub(super) new: String,
    pub(super) rounds: usize,
    /// The length of each measurement.
    pub(super) seconds: f64,
    /// Whether the clock counts instructions.
    pub(super) counted: bool,
    /// A loss of no more than this is none: 0.02 is 2 %.
    pub(super) least: f64,
    pub(super) machine: Machine,
    pub(super) figures: Vec<Told>,
    /// How many figures have lost.
    pub(super) lost: usize,
}

/// What is told of a figure.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    pub(super) suite: &'static str,
    pub(super) row: String,
    pub(super) system: &'static str,
    pub(super) metric: &'static str,
    pub(super) unit: String,
    /// Both builds by round, the older one first; null where there is none.
    pub(super) rounds: Vec<Pair>,
    #[serde(flatten)]
    pub(super) judged: Judged,
    /// The second measurement of a figure that had lost in the first: it has lost only if it does so again.
    pub(super) again: Option<Judged>,
    /// Why rounds are missing, of the older build and of the newer one.
    pub(super) why: [Option<String>; 2],
}

impl Told {
    pub(super) fn new(row: &Row, series: Series, judged: Judged) -> Told {
        Told {
            suite: row.suite,
            row: row.id.clone(),
            system: series.figure.system,
            metric: series.figure.metric,
            unit: series.unit,
            rounds: series.rounds,
            judged,
            again: None,
            why: series.why,
        }
    }

    /// Of both measurements, if there are two.
    pub(super) fn verdict(&self) -> Verdict {
        match &self.again {
            Some(again) if !again.verdict.is_loss() => Verdict::Held,
            _ => self.judged.verdict,
        }
    }

    fn cells(&self) -> [String; 8] {
        let median = |build: usize| {
            let values: Vec<f64> = self.rounds.iter().filter_map(|pair| pair[build]).collect();
            Spread::of(&values).map_or("–".to_owned(), |values| short(values.median))
        };
        let once = self.judged.verdict.is_loss() && !self.verdict().is_loss();
        let word = if once {
            "held (2nd)"
        } else {
            self.verdict().word()
        };
        [
            format!("  {}", self.row),
            self.system.to_owned(),
            self.metric.to_owned(),
            median(0),
            median(1),
            self.judged.ratio.as_ref().map_or(String::new(), times),
            percent(self.judged.spread),
            word.to_owned(),
        ]
    }
}

/// Two digits are enough: what is told apart is a few per cent.
fn times(ratio: &Spread) -> String {
    let digits = |times: f64| match times {
        far if far >= 10.0 => short(far),
        near => format!("{near:.2}"),
    };
    let [median, min, max] = [ratio.median, ratio.min, ratio.max].map(digits);
    format!("{median}× ({min}–{max})")
}

fn percent(share: f64) -> String {
    match share {
        far if far > 1.0 => "> 100 %".to_owned(),
        near => format!("{:.1} %", near * 100.0),
    }
}

/// A spread beyond which a figure is told to be noisy.
const NOISY: f64 = 0.1;

const HEAD: [&str; 8] = [
    "row",
    "system",
    "metric",
    "BASE",
    "NEW",
    "as good, times",
    "spread",
    "",
];

/// What stands between two columns.
const GAP: &str = " ";

impl Report {
    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = format!(
            "BASE: {}\nNEW: {}\n{} rounds of {} s{}\n\n",
            self.base,
            self.new,
            self.rounds,
            self.seconds,
            if self.counted {
                " of the counted clock"
            } else {
                ""
            },
        );
        self.table(&mut out);
        for told in &self.figures {
            for (build, why) in ["BASE", "NEW"].iter().zip(&told.why) {
                if let Some(why) = why {
                    let (suite, row, system) = (told.suite, &told.row, told.system);
                    let _ = writeln!(
                        out,
                        "!! NOT MEASURED: {build}, {suite}/{row}, {system}: {why}"
                    );
                }
            }
        }
        let count = |is_such: fn(Verdict) -> bool| {
            let figures = self.figures.iter();
            figures.filter(|told| is_such(told.verdict())).count()
        };
        let _ = writeln!(
            out,
            "\n{} lost, {} better, {} held, {} without a verdict",
            self.lost,
            count(|verdict| verdict == Verdict::Better),
            count(|verdict| verdict == Verdict::Held),
            count(|verdict| verdict == Verdict::Untold),
        );
        let held = self
            .figures
            .iter()
            .filter(|told| told.verdict() == Verdict::Held);
        let noisy = held.filter(|told| told.judged.spread > NOISY).count();
        if noisy > 0 {
            let _ = writeln!(
                out,
                "{noisy} of the figures that held spread by more than 10 %: smaller losses of them are not seen here"
            );
        }
        out
    }

    fn table(&self, out: &mut String) {
        let lines: Vec<[String; 8]> = self.figures.iter().map(Told::cells).collect();
        let head = HEAD.map(str::to_owned);
        let wide = |column: usize| {
            let cells = lines
                .iter()
                .chain([&head])
                .map(|line| line[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..HEAD.len()).map(wide).collect();
        let mut line = |cells: &[String; 8]| {
            let cells = cells.iter().zip(&widths).enumerate();
            let padded = cells.map(|(at, (cell, width))| match at {
                3..=6 => format!("{cell:>width$}"),
                _ => format!("{cell:width$}"),
            });
            let line = padded.collect::<Vec<_>>().join(GAP);
            let _ = writeln!(out, "{}", line.trim_end());
        };
        line(&head);
        let mut suite = "";
        for (told, cells) in self.figures.iter().zip(&lines) {
            if told.suite != suite {
                suite = told.suite;
                let mut title: [String; 8] = Default::default();
                title[0] = suite.to_owned();
                line(&title);
            }
            line(cells);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::machine;
    use crate::gate::rows::Figure;
    use crate::gate::verdict::judge;
    use crate::sample::Better;

    fn told(row: &str, system: &'static str, metric: &'static str, rounds: &[Pair]) -> Told {
        let figure = Figure {
            system,
            metric,
            better: Better::Higher,
        };
        let row = Row {
            suite: "blocks",
            id: row.into(),
            figures: vec![figure],
        };
        let series = Series {
            figure,
            unit: "req/s".into(),
            rounds: rounds.to_vec(),
            why: [None, None],
        };
        Told::new(&row, series, judge(Better::Higher, rounds, 0.02))
    }

    fn report(figures: Vec<Told>) -> Report {
        Report {
            schema: SCHEMA,
            base: "v1".into(),
            new: "this tree".into(),
            rounds: 3,
            seconds: 1.0,
            counted: false,
            least: 0.02,
            machine: machine(),
            lost: figures
                .iter()
                .filter(|told| told.verdict().is_loss())
                .count(),
            figures,
        }
    }

    /// The widest table that fits.
    const WIDTH: usize = 100;
    const HALF: [Pair; 3] = [[Some(123_456.0), Some(61_728.0)]; 3];
    const SAME: [Pair; 3] = [[Some(99.96), Some(99.96)]; 3];

    #[test]
    fn the_longest_names_fit_a_hundred_columns() {
        let wide = [
            [Some(0.2345), Some(0.1234)],
            [Some(1.2345), Some(0.1999)],
            [Some(12.2345), Some(2345.6)],
        ];
        let mut once = told("randwrite-qd32-jobs8", "memlane-cable", "throughput", &HALF);
        once.again = Some(judge(Better::Higher, &SAME, 0.02));
        let text = report(vec![
            once,
            told("randwrite-qd32-jobs8", "native-lane", "throughput", &wide),
        ]);
        let text = text.text();
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        assert!(text.contains("held (2nd)"), "{text}");
        assert!(text.contains("> 100 %") && text.contains("–192)"), "{text}");
        assert!(
            text.contains("1 of the figures that held spread by more"),
            "{text}"
        );
    }

    #[test]
    fn a_loss_that_is_not_seen_again_is_none() {
        let mut figure = told("seqread", "fio-tcp", "rate", &HALF);
        assert_eq!(figure.verdict(), Verdict::Lost);
        figure.again = Some(judge(Better::Higher, &HALF, 0.02));
        assert_eq!(figure.verdict(), Verdict::Lost);
        figure.again = Some(judge(Better::Higher, &SAME, 0.02));
        assert_eq!(figure.verdict(), Verdict::Held);
    }

    #[test]
    fn people_and_programs_are_told_the_same() {
        let mut fails = told("seqwrite", "fio-tcp", "rate", &[[Some(1.0), None]; 3]);
        fails.why[1] = Some("no such flag".into());
        let report = report(vec![told("seqread", "fio-tcp", "rate", &HALF), fails]);
        let text = report.text();
        for line in [
            "0.50× (0.50–0.50)",
            "LOST",
            "FAILS",
            "2 lost, 0 better, 0 held",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text.contains("!! NOT MEASURED: NEW, blocks/seqwrite, fio-tcp: no such flag"));
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(
            (&json["schema"], &json["lost"]),
            (&"memlane.gate/1".into(), &2.into())
        );
        assert_eq!(json["figures"][0]["verdict"], "lost");
        assert_eq!(json["figures"][0]["ratio"]["median"], 0.5);
        assert_eq!(json["figures"][1]["rounds"][0][1], serde_json::Value::Null);
    }
}
