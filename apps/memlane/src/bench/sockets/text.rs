//! The tables, in Markdown.

use std::fmt::Write as _;

use super::published::Figure;
use super::report::{Cell, Report, Row};
use super::trial::{CPU, Side};
use crate::bench::beside;
use crate::bench::spread::{Spread, short, times};

/// Groups of the programs' rows.
pub(super) const PROGRAMS: [&str; 5] = ["embedded", "sockperf", "iperf3", "nginx", "redis"];
/// Whatever is no processor time.
pub(super) const FIGURES: [&str; 4] = ["rate", "throughput", "p50", "p99"];

/// All that was measured.
pub(super) fn of(report: &Report) -> String {
    let mut out = String::new();
    head(&mut out, report);
    seeds(&mut out, report);
    let parts: [(&str, &[&str], &[&str]); 5] = [
        ("programs", &PROGRAMS, &FIGURES),
        ("many connections", &["connections"], &FIGURES),
        ("there and back, by size", &["rr"], &FIGURES),
        ("one way, by size", &["stream"], &FIGURES),
        (
            "processor time",
            &[
                "embedded",
                "sockperf",
                "iperf3",
                "nginx",
                "redis",
                "connections",
                "rr",
                "stream",
            ],
            &[CPU],
        ),
    ];
    for (title, groups, metrics) in parts {
        table(&mut out, title, report.of(groups, metrics));
    }
    super::native::table(&mut out, &report.native);
    foot(&mut out, report);
    out
}

fn head(out: &mut String, report: &Report) {
    let how = format!(
        "{} rounds × {} s, columns alternating, memlane with --upgrade {}",
        report.rounds, report.seconds, report.upgrade
    );
    beside::head(out, "sockets", report.quick, &how, &report.machine);
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

fn seeds(out: &mut String, report: &Report) {
    let mut told = false;
    for seed in &SEEDS {
        for line in seed.lines(report) {
            if !told {
                out.push_str(
                    "\n| as in the postings for SMC-D loopback | metric | unit | who | TCP-lo | domain | copy (SMC-lo) | nocopy (SMC-lo-nocpy) |\n\
                     |---|---|---|---|---:|---:|---:|---:|\n",
                );
                told = true;
            }
            let Shaped { who, unit, cells } = line;
            let (table, about, metric) = (seed.table, seed.about, seed.metric);
            let cells = cells.join(" | ");
            let _ = writeln!(
                out,
                "| {table}: {about} | {metric} | {unit} | {who} | {cells} |"
            );
        }
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

fn table(out: &mut String, title: &str, rows: Vec<&Row>) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(out, "\n| {title} | cpus | metric |");
    for side in Side::ALL {
        let _ = write!(out, " {} |", side.system().about);
    }
    let _ = writeln!(out, " {} |", HEADS.join(" | "));
    let _ = writeln!(out, "|---|---|---|{}---|---|---|---|", "---:|".repeat(7));
    for row in rows {
        let _ = writeln!(out, "| {} |", cells(row).join(" | "));
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

fn foot(out: &mut String, report: &Report) {
    let _ = writeln!(out, "\n{}.", report.method.join(";\n"));
    let _ = writeln!(
        out,
        "aim: of nocopy against TCP; + reached, - missed, ? not measured. lane: ! = the memory lane was not used: the row \
         compares TCP with TCP."
    );
    for line in unused(report) {
        let _ = writeln!(out, "LANE NOT USED: {line}");
    }
    for (key, source) in &report.sources {
        let (title, place, machine) = (&source.title, &source.place, &source.machine);
        let _ = writeln!(out, "published {key}: {title}; {place}; {machine}");
    }
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
