//! The tables, in Markdown.

use std::fmt::Write as _;

use super::report::{Cell, Line, Report};
use super::rows::{LANE, Part};
use super::sinks::{RECV_COPY, SPLICE};
use crate::beside::{self, cells, plan::Part as _};
use crate::spread::{Spread, short, times};

/// All that was measured.
pub(super) fn of(report: &Report) -> String {
    let mut out = String::new();
    beside::head(&mut out, "devmem", &report.run, "", &report.machine);
    beside::lacking(&mut out, &report.missing);
    streams(&mut out, report);
    costs(&mut out, report);
    tokens(&mut out, report);
    python(&mut out, report);
    beside::others(&mut out, report.published.figures.iter());
    foot(&mut out, report);
    out
}

/// Throughput, systems side by side.
fn streams(out: &mut String, report: &Report) {
    let lines = report.lines(Part::Stream);
    if lines.is_empty() {
        return;
    }
    let all = Part::Stream.systems();
    let control = &report.stream_congestion_control;
    let _ = write!(out, "\n| GB/s into a region, {control} |");
    cells(out, all.iter().map(|system| system.about));
    out.push_str(" × recv() + copy: lane, mapped, staged | × splice: lane, mapped | aims |\n|---|");
    let _ = writeln!(out, "{}---|---|---|", "---:|".repeat(all.len()));
    for line in lines {
        let _ = write!(out, "| {} |", line.of.about);
        cells(out, all.iter().map(|system| giga(line.cell(system.id))));
        let rate = |of, to| times(beside::ratio(&line.ratios, of, to));
        let _ = writeln!(
            out,
            " {}, {}, {} | {}, {} | {} |",
            rate(LANE, RECV_COPY),
            rate("mapped", RECV_COPY),
            rate("staged", RECV_COPY),
            rate(LANE, SPLICE),
            rate("mapped", SPLICE),
            beside::goals(&line.aims, "")
        );
    }
}

/// Copies, processor time and fragments: a line for each system of each row.
fn costs(out: &mut String, report: &Report) {
    let lines = report.lines(Part::Stream);
    if lines.is_empty() {
        return;
    }
    out.push_str(
        "\n| what a byte costs | system | copies: kernel + programs | CPU s a GB | of these, the receiver's | \
         receiver's, × recv() + copy's | fragments: half, largest |\n|---|---|---:|---:|---:|---:|---:|\n",
    );
    for line in lines {
        for cell in &line.systems {
            let less = beside::ratio(&line.receiver_cpu_ratios, cell.system, RECV_COPY);
            let cells = [
                line.of.about.to_owned(),
                cell.about.to_owned(),
                copies(cell),
                shown(cell.cpu_s_per_gb.as_ref()),
                shown(cell.receiver_cpu_s_per_gb.as_ref()),
                times(less),
                sizes(cell),
            ];
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
    }
}

fn tokens(out: &mut String, report: &Report) {
    if report.tokens.is_empty() {
        return;
    }
    out.push_str("\n| tokens handed back | ns a token |\n|---|---:|\n");
    for line in &report.tokens {
        let what = match (line.ranges, line.tokens) {
            (1, 1) => "one by one".to_owned(),
            (ranges, 1) => format!("{ranges} ranges of 1 a call"),
            (1, tokens) => format!("1 range of {tokens} a call"),
            (ranges, tokens) => format!("{ranges} ranges of {tokens} a call"),
        };
        let _ = writeln!(out, "| {what} | {} |", line.ns_per_token.shown());
    }
}

fn python(out: &mut String, report: &Report) {
    let lines = report.lines(Part::Python);
    if lines.is_empty() {
        return;
    }
    let all = Part::Python.systems();
    out.push_str("\n| GB/s of tensors |");
    cells(out, all.iter().map(|system| system.about));
    out.push_str(" Python × Rust | × recv_into: one array, new ones | aims |\n|---|");
    let _ = writeln!(out, "{}---:|---:|---|", "---:|".repeat(all.len()));
    for line in lines {
        let _ = write!(out, "| {} |", line.of.about);
        cells(out, all.iter().map(|system| giga(line.cell(system.id))));
        let rate = |to| times(beside::ratio(&line.ratios, "wheel", to));
        let goals = beside::goals(&line.aims, "");
        let (one, fresh) = (rate("recv-into"), rate("recv-into-fresh"));
        let _ = writeln!(out, " {} | {one}, {fresh} | {goals} |", rate("rust"));
    }
}

fn foot(out: &mut String, report: &Report) {
    let _ = writeln!(out, "\n{}.", report.method.join(";\n"));
    out.push_str(
        "aims: + reached, - missed, ? not measured (or nothing to compare with), on throughput.\n\
         published figures were taken elsewhere: only ratios can be compared.\n",
    );
    beside::foot(out, &report.published.sources, &report.failed);
}

/// Bytes in a second.
pub(super) fn rate(value: f64) -> String {
    format!("{} GB/s", short(value / 1e9))
}

fn giga(cell: Option<&Cell>) -> String {
    let told = cell.map(|cell| {
        let rate = &cell.bytes_per_second;
        let [median, min, max] = [rate.median, rate.min, rate.max].map(|v| short(v / 1e9));
        format!("{median} ({min}–{max})")
    });
    told.unwrap_or_default()
}

fn shown(spread: Option<&Spread>) -> String {
    spread.map_or("?".into(), Spread::shown)
}

fn copies(cell: &Cell) -> String {
    let told = |spread: &Option<Spread>| spread.as_ref().map(|s| s.median);
    match (told(&cell.copied_by_kernel), told(&cell.copied_by_program)) {
        (Some(kernel), Some(programs)) => format!("{kernel:.2} + {programs:.2}"),
        _ => "?".into(),
    }
}

fn sizes(cell: &Cell) -> String {
    let told = cell.fragments.as_ref().map(|sizes| {
        let [half, largest] = [sizes.half, sizes.largest].map(|n| crate::units::human(n.into()));
        format!("{half}, {largest}")
    });
    told.unwrap_or_default()
}

/// For a picture.
pub(super) fn title(line: &Line) -> String {
    format!("{}: {}", line.of.row, line.of.about)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use crate::shape;

    #[test]
    fn each_table_has_as_many_cells_in_every_line_as_in_its_head() {
        let text = super::of(&sample());
        assert_eq!(shape::even_tables(&text), 5, "{text}");
    }

    #[test]
    fn figures_aims_and_what_is_missing_are_told() {
        let text = super::of(&sample());
        for told in [
            "6.00 (5.00–8.00)",
            "1.25× (1.20–2.00)",
            "mapped/recv-copy ≥1.3 -",
            "wheel/rust ≥0.95 +",
            "| 2.00 + 0.00 |",
            "64KiB, 64KiB",
            "| 128 ranges of 1 a call | 12.5 (12.5–12.5) |",
            "| devmem TCP (up to) | one GPU's flows, of the network card's rate | 96.6 % of line rate | devmem |",
            "NOT MEASURED: python, recv-into: no torch",
            "FAILED: kept-1m, splice, round 1: on purpose",
            "published zcrx:",
        ] {
            assert!(text.contains(told), "{told}\n{text}");
        }
    }
}
