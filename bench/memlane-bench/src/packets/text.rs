//! The tables, in Markdown.

use std::fmt::Write as _;

use super::published;
use super::report::{Cell, Line, Report};
use super::rows::{OLDER, Part, Row, TESTPMD, VETH};
use crate::beside::{self, cells, plan::Part as _};
use crate::spread::{Spread, short, times};

/// All that was measured.
pub(super) fn of(report: &Report) -> String {
    let mut out = String::new();
    head(&mut out, report);
    table(&mut out, report);
    bulk(&mut out, report);
    memif(&mut out, report);
    beside::others(&mut out, published::others(&report.published));
    foot(&mut out, report);
    out
}

fn head(out: &mut String, report: &Report) {
    beside::head(out, "packets", &report.run, "", &report.machine);
    beside::lacking(out, &report.missing);
}

/// The seed's tables: ways and sizes downwards, modes side by side.
fn table(out: &mut String, report: &Report) {
    let lines = report.lines(Part::Table);
    if lines.is_empty() {
        return;
    }
    out.push_str(
        "\n| frames | burst | queues | copy | map | persistent | × copy | × map | CPU ns a frame: copy, map, persistent | \
         Xen 2015: baseline → persistent | aims |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for line in lines {
        let value = |system| shown(line, system);
        let cpu: Vec<String> = ["copy", "map", "persistent"]
            .iter()
            .map(|s| cpu(line, s))
            .collect();
        let cells = [
            line.about.clone(),
            line.of.burst.to_string(),
            line.of.queues.to_string(),
            value("copy"),
            value("map"),
            value("persistent"),
            times(line.ratio("persistent", "copy")),
            times(line.ratio("persistent", "map")),
            cpu.join(", "),
            seed(report, &line.of),
            goals(line),
        ];
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
}

fn bulk(out: &mut String, report: &Report) {
    let lines = report.lines(Part::Bulk);
    if lines.is_empty() {
        return;
    }
    let all = Part::Bulk.systems();
    let control = &report.bulk_congestion_control;
    let _ = write!(out, "\n| Gbit/s between namespaces, {control} |");
    cells(out, all.iter().map(|system| system.about));
    out.push_str(" persistent × veth | × copier | CPU s a GB |");
    out.push_str(" Xen 2015: baseline → persistent | aims |\n|---|");
    let _ = writeln!(out, "{}---:|---:|---|---:|---|", "---:|".repeat(all.len()));
    for line in lines {
        let _ = write!(out, "| {} |", line.about);
        cells(out, all.iter().map(|system| shown(line, system.id)));
        let cpu: Vec<String> = all
            .iter()
            .filter(|system| line.cell(system.id).is_some())
            .map(|system| format!("{} {}", system.id, cpu(line, system.id)))
            .collect();
        let _ = writeln!(
            out,
            " {} | {} | {} | {} | {} |",
            times(line.ratio("persistent", VETH)),
            times(line.ratio("persistent", "copier")),
            cpu.join(", "),
            seed(report, &line.of),
            goals(line)
        );
    }
}

fn memif(out: &mut String, report: &Report) {
    let lines = report.lines(Part::Memif);
    if lines.is_empty() {
        return;
    }
    let all = Part::Memif.systems();
    out.push_str("\n| memif, burst 32 |");
    cells(out, all.iter().map(|system| system.about));
    out.push_str(" × testpmd: to, from, both, lane | aims |\n|---|");
    let _ = writeln!(out, "{}---|---|", "---:|".repeat(all.len()));
    for line in lines {
        let _ = write!(out, "| {} |", line.about);
        cells(out, all.iter().map(|system| shown(line, system.id)));
        let ours = all.iter().filter(|system| system.ours);
        let ratios: Vec<String> = ours
            .map(|system| line.ratio(system.id, TESTPMD))
            .map(|ratio| ratio.map_or("?".into(), |_| times(ratio)))
            .collect();
        let _ = writeln!(out, " {} | {} |", ratios.join(", "), goals(line));
    }
}

fn foot(out: &mut String, report: &Report) {
    let _ = writeln!(out, "\n{}.", report.method.join(";\n"));
    let _ = writeln!(
        out,
        "aims: + reached, - missed, ? not measured (or nothing to compare with); of the persistent mode unless it is said; \
         {OLDER}: the better of copy and map.\npublished figures were taken elsewhere: only ratios can be compared."
    );
    beside::foot(out, &report.published.sources, &report.failed);
}

/// A value with its unit, as the seed's tables have it.
pub(super) fn value(row: &Row, value: f64) -> String {
    let (scale, unit) = scale(row, value);
    format!("{} {unit}", short(value / scale))
}

/// What a value of about that size is divided by, and the unit that it then has.
fn scale(row: &Row, value: f64) -> (f64, &'static str) {
    match row.part {
        Part::Bulk => (1.0, "Gbit/s"),
        _ if value < 1e6 => (1e3, "kpps"),
        _ => (1e6, "Mpps"),
    }
}

fn shown(line: &Line, system: &str) -> String {
    let told = line.cell(system).map(|Cell { value, .. }| {
        let (scale, unit) = scale(&line.of, value.median);
        let [median, min, max] = [value.median, value.min, value.max].map(|v| short(v / scale));
        match line.of.part {
            // It stands in the head.
            Part::Bulk => format!("{median} ({min}–{max})"),
            _ => format!("{median} {unit} ({min}–{max})"),
        }
    });
    told.unwrap_or_default()
}

fn cpu(line: &Line, system: &str) -> String {
    let told = line.cell(system).and_then(|cell| cell.cpu.as_ref());
    told.map_or("?".into(), |Spread { median, .. }| short(*median))
}

fn seed(report: &Report, row: &Row) -> String {
    let told = published::seed(&report.published, row).map(|[baseline, persistent]| {
        let times = persistent.value / baseline.value;
        let (before, after) = (baseline.value, persistent.value);
        format!("{before} → {after} {} ({times:.2}×)", baseline.unit)
    });
    told.unwrap_or_default()
}

fn goals(line: &Line) -> String {
    beside::goals(&line.aims, "persistent")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use crate::shape;

    #[test]
    fn each_table_has_as_many_cells_in_every_line_as_in_its_head() {
        let text = super::of(&sample());
        assert_eq!(shape::even_tables(&text), 4, "{text}");
    }

    #[test]
    fn figures_aims_and_what_is_missing_are_told() {
        let text = super::of(&sample());
        for told in [
            "10.0 Mpps (9.00–12.0)",
            "100 kpps (100–100)",
            "9.00× (6.00–10.0)",
            "copy ≥8 +",
            "veth ≥0.8 +",
            "1.24 → 1.82 Mpps (1.47×)",
            "14.5 → 21.6 Gbit/s (1.49×)",
            "lane/testpmd ≥1 +",
            "memlane/testpmd ≥1 ?",
            "| netmap pipe (at least) | short frames | 100 Mpps | netmap |",
            "NOT MEASURED: memif, to-testpmd: not installed",
            "FAILED: tcp-tx-1, copier, round 1: on purpose",
            "published pgnt:",
        ] {
            assert!(text.contains(told), "{told}\n{text}");
        }
    }
}
