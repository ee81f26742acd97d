//! The tables, and all of them in Markdown.

use std::fmt::Write as _;

use super::published::Figure;
use super::report::{Cell, Report, Row};
use super::table::Table;
use super::trial::{CPU, Side};
use crate::beside;
use crate::published::cited;
use crate::spread::{Spread, short, times};

/// Groups of the programs' rows.
pub(super) const PROGRAMS: [&str; 5] = ["embedded", "sockperf", "iperf3", "nginx", "redis"];
const ALL: [&str; 8] = [
    "embedded",
    "sockperf",
    "iperf3",
    "nginx",
    "redis",
    "connections",
    "rr",
    "stream",
];
/// Whatever is no processor time.
pub(super) const FIGURES: [&str; 4] = ["rate", "throughput", "p50", "p99"];

/// All that was measured.
pub(super) fn of(report: &Report) -> String {
    let mut out = String::new();
    head(&mut out, report);
    for table in tables(report) {
        table.markdown(&mut out);
    }
    out.push('\n');
    for line in notes(report) {
        let _ = writeln!(out, "{line}");
    }
    out
}

/// In the order in which they are shown.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let parts: [(&str, &str, &[&str], &[&str]); 5] = [
        ("programs", "programs", &PROGRAMS, &FIGURES),
        (
            "connections",
            "many connections",
            &["connections"],
            &FIGURES,
        ),
        ("rr", "there and back, by size", &["rr"], &FIGURES),
        ("stream", "one way, by size", &["stream"], &FIGURES),
        ("cpu", "processor time", &ALL, &[CPU]),
    ];
    let measured = parts.map(|(id, title, groups, metrics)| {
        let rows = report.of(groups, metrics);
        table(id, title, &rows)
    });
    let mut tables = vec![seeds(report)];
    tables.extend(measured);
    tables.extend(super::native::tables(&report.native));
    tables
}

fn head(out: &mut String, report: &Report) {
    let more = format!(
        ", columns alternating, memlane with --upgrade {}",
        report.upgrade
    );
    beside::head(out, "sockets", &report.run, &more, &report.machine);
    for (word, list) in [
        ("NOT MEASURED", &report.skipped),
        ("FAILED", &report.failed),
    ] {
        for trouble in list {
            let _ = writeln!(out, "{word}: {}: {}", trouble.name, trouble.why);
        }
    }
}

/// A line of one of the published tables.
pub(super) struct Seed {
    /// `2. sockperf`; the same for lines of one table.
    pub(super) table: &'static str,
    /// As it is called there.
    pub(super) metric: &'static str,
    /// How it is run.
    pub(super) about: &'static str,
    row: &'static str,
    name: &'static str,
}

const fn seed(
    table: &'static str,
    metric: &'static str,
    about: &'static str,
    row: &'static str,
    name: &'static str,
) -> Seed {
    Seed {
        table,
        metric,
        about,
        row,
        name,
    }
}

/// The four tables of the postings, in their order.
pub(super) const SEEDS: [Seed; 5] = [
    seed(
        "1. ipc-benchmark",
        "Message rate",
        "100 bytes there and back, one at a time",
        "msg100",
        "rate",
    ),
    seed(
        "2. sockperf",
        "Bandwidth",
        "tp --tcp -m 64000",
        "sockperf-tp",
        "throughput",
    ),
    seed(
        "2. sockperf",
        "Latency (p50; published: average)",
        "pp --tcp -m 14",
        "sockperf-pp",
        "p50",
    ),
    seed("3. iperf3", "Bitrate", "one stream", "iperf3", "throughput"),
    seed(
        "4. nginx/wrk",
        "Requests/s",
        "wrk -t 8 -c 500",
        "nginx-500",
        "rate",
    ),
];

/// One line in the postings' own shape: who says it, its unit, and TCP, UNIX, copy, nocopy with their difference to TCP.
pub(super) struct Shaped {
    pub(super) who: String,
    pub(super) unit: String,
    pub(super) cells: [String; 4],
}

impl Seed {
    /// Measured here, if it was, then as published.
    pub(super) fn lines(&self, report: &Report) -> Vec<Shaped> {
        let Some(row) = report.find(self.row, self.name) else {
            return Vec::new();
        };
        let here = Shaped {
            who: format!("here, {}", row.cpus()),
            unit: row.unit.to_owned(),
            cells: Side::ALL.map(|side| row.cell(side).map_or(String::new(), shaped)),
        };
        let published = row.published.iter().map(|beside| of_figure(&beside.figure));
        std::iter::once(here).chain(published).collect()
    }
}

/// As in the postings: `150.7k (+89.56%)`; large changes as a multiple.
fn shaped(cell: &Cell) -> String {
    let value = short(cell.value.median);
    match &cell.to_tcp {
        Some(ratio) => format!("{value} ({})", change(ratio.median)),
        None => value,
    }
}

fn of_figure(figure: &Figure) -> Shaped {
    let columns = figure.columns();
    let cell = |at: usize| match (columns[at], figure.ratio(at)) {
        (Some(value), _) if at == 0 => short(value),
        (Some(value), Some(ratio)) => format!("{} ({})", short(value), change(ratio)),
        _ => String::new(),
    };
    Shaped {
        who: format!("published, {}", figure.source),
        unit: figure.unit.clone(),
        cells: [0, 1, 2, 3].map(cell),
    }
}

fn change(ratio: f64) -> String {
    match ratio {
        r if r >= 3.0 => format!("{}×", short(r)),
        r => format!("{:+.1}%", (r - 1.0) * 100.0),
    }
}

fn seeds(report: &Report) -> Table {
    let head = [
        "test",
        "metric",
        "unit",
        "who",
        "TCP-lo",
        "domain",
        "copy (SMC-lo)",
        "nocopy (SMC-lo-nocpy)",
    ];
    let lines = SEEDS.iter().flat_map(|seed| {
        let lines = seed.lines(report).into_iter();
        lines.map(|line| {
            let what = format!("{}: {}", seed.table, seed.about);
            let words = [what, seed.metric.to_owned(), line.unit, line.who];
            words.into_iter().chain(line.cells).collect()
        })
    });
    Table {
        id: "postings",
        title: "as in the postings for SMC-D loopback".into(),
        head: head.map(String::from).to_vec(),
        lines: lines.collect(),
        words: [4, 0],
    }
}

/// Heads of the columns behind the first three.
const HEADS: [&str; 7] = [
    "× TCP: UNIX",
    "copy",
    "nocopy",
    "aim",
    "lane: copy, nocopy",
    "SMC-lo/TCP",
    "SMC-lo-nocpy/TCP",
];

fn table(id: &'static str, title: &str, rows: &[&Row]) -> Table {
    let columns = Side::ALL.iter().map(|side| side.system().about);
    let head = ["", "cpus", "metric"]
        .into_iter()
        .chain(columns)
        .chain(HEADS);
    Table {
        id,
        title: title.to_owned(),
        head: head.map(String::from).collect(),
        lines: rows.iter().map(|row| cells(row)).collect(),
        words: [3, 4],
    }
}

fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![
        row.about.clone(),
        row.cpus().to_owned(),
        format!("{} {}", row.metric, row.unit),
    ];
    let value = |side| {
        row.cell(side)
            .map_or(String::new(), |cell| cell.value.shown())
    };
    cells.extend(Side::ALL.map(value));
    cells.extend(Side::ALL[1..].iter().map(|side| times(ratio(row, *side))));
    cells.push(row.aim.as_ref().map_or(String::new(), |aim| aim.shown()));
    let lanes: Vec<String> = row.lanes().map(|(_, lane)| lane.shown()).collect();
    cells.push(lanes.join(", "));
    cells.push(besides(row, 2));
    cells.push(besides(row, 3));
    cells
}

fn ratio(row: &Row, side: Side) -> Option<&Spread> {
    row.cell(side).and_then(|cell| cell.to_tcp.as_ref())
}

fn besides(row: &Row, column: usize) -> String {
    let shown = row.published.iter().filter_map(|beside| {
        let ratio = beside.figure.ratio(column)?;
        Some(format!("{ratio:.2}× {}", beside.figure.source))
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// How it was measured, what the marks mean, whose the published figures are.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let mut notes: Vec<String> = report
        .method
        .iter()
        .map(|line| format!("{line}."))
        .collect();
    notes.push(
        "aim: of nocopy against TCP; + reached, - missed, ? not measured. lane: ! = the memory lane was not used: the row compares \
         TCP with TCP."
            .to_owned(),
    );
    notes.extend(
        unused(report)
            .iter()
            .map(|line| format!("LANE NOT USED: {line}")),
    );
    notes.extend(super::native::notes(&report.native));
    notes.extend(cited(&report.sources));
    notes
}

/// Rows that should have used the lane and did not, and why.
pub(super) fn unused(report: &Report) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for row in &report.rows {
        for (system, lane) in row.lanes().filter(|(_, lane)| lane.used == Some(false)) {
            let line = format!("{} ({}, {system}): {}", row.id, row.cpus(), lane.why());
            if !told.contains(&line) {
                told.push(line);
            }
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use crate::shape;

    #[test]
    fn every_part_has_a_table_and_its_lines_are_even() {
        let text = super::of(&sample());
        assert_eq!(shape::even_tables(&text), 8, "{text}");
    }

    #[test]
    fn figures_aims_and_what_is_missing_are_told() {
        let text = super::of(&sample());
        for told in [
            "4.10× (4.10–4.10)",
            "≥20 -",
            ">99.9 %",
            "1.43× rfc-v2",
            "| published, rfc-v4 | 79.0k | 116k (+46.5%) | 147k (+85.7%) | 150k (+89.6%) |",
            "| here, pinned | 16.5k | 33.0k (+100.0%) | 990k (60.0×) | 3.30M (200×) |",
            "NOT MEASURED: redis-get-c1: on <purpose>",
            "FAILED: nginx unpinned",
            "1,048,576 B there and back",
            "100 B over 10,000 connections in turn",
            "published rfc-v2:",
        ] {
            assert!(text.contains(told), "{told}\n{text}");
        }
    }
}
