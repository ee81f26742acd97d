//! The tables, in Markdown.

use std::fmt::Write as _;

use super::report::{GapLine, Line, Report, Sweep};
use super::work::Pattern;
use crate::beside;
use crate::published::cited;
use crate::spread::{short, times};

/// All that was measured.
pub(super) fn of(report: &Report) -> String {
    let mut out = String::new();
    head(&mut out, report);
    if !report.rows.is_empty() {
        rows(&mut out, &report.rows);
    }
    if !report.gaps.is_empty() {
        gaps(&mut out, &report.gaps);
    }
    for pattern in [Pattern::Randread, Pattern::Randwrite] {
        let sweeps = report.jobs.iter().filter(|sweep| sweep.pattern == pattern);
        let sweeps: Vec<&Sweep> = sweeps.collect();
        if !sweeps.is_empty() {
            jobs(&mut out, report, pattern, &sweeps);
        }
    }
    foot(&mut out, report);
    out
}

fn head(out: &mut String, report: &Report) {
    let volumes = format!(", volumes of {} MiB", report.volume_bytes >> 20);
    beside::head(out, "blocks", &report.run, &volumes, &report.machine);
    for missing in &report.missing {
        let _ = writeln!(out, "NOT MEASURED: {}: {}", missing.system, missing.why);
    }
}

fn rows(out: &mut String, lines: &[Line]) {
    out.push_str(
        "\n| what | system | by | per second | p50 µs | p99 µs | CPU s / 1M | rate to the best peer's | p50 to the best peer's | aim |\n\
         |---|---|---|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for line in lines {
        let figures = &line.figures;
        let cells = [
            line.about.clone(),
            line.system_about.into(),
            line.tool.into(),
            figures.per_second.shown(),
            figures.p50_us.shown(),
            figures.p99_us.shown(),
            figures.cpu_seconds_per_million.shown(),
            times(line.rate_to_best_peer.as_ref()),
            times(line.p50_to_best_peer.as_ref()),
            line.aim.map(|aim| aim.shown()).unwrap_or_default(),
        ];
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
}

fn gaps(out: &mut String, lines: &[GapLine]) {
    out.push_str(
        "\n| what happens | paths | by | slowest request, ms | no answer at all, ms | aim |\n|---|---:|---|---:|---:|---|\n",
    );
    for line in lines {
        let by = match line.by {
            super::gap::By::Cable => "a cable",
            super::gap::By::Proxy => "a proxy",
        };
        let _ = writeln!(
            out,
            "| {} | {} | {by} | {} | {} | {} |",
            line.about,
            line.paths,
            line.gap_ms.shown(),
            line.silence_ms.shown(),
            line.aim.shown()
        );
    }
}

/// One line for each number of jobs; beside ours what others published, as a multiple of one job.
fn jobs(out: &mut String, report: &Report, pattern: Pattern, sweeps: &[&Sweep]) {
    let published: Vec<_> = report.published.of(pattern.word()).collect();
    let _ = write!(out, "\n| {}, jobs |", pattern.word());
    beside::cells(out, sweeps.iter().map(|sweep| sweep.system_about));
    for series in &published {
        let _ = write!(out, " {} ({}) |", series.system, series.source);
    }
    let columns = sweeps.len() + published.len();
    let _ = writeln!(out, "\n|---|{}", "---:|".repeat(columns));
    let steps = sweeps.iter().flat_map(|sweep| &sweep.points);
    let mut steps: Vec<u32> = steps.map(|point| point.jobs).collect();
    steps.sort_unstable();
    steps.dedup();
    for step in steps {
        let _ = write!(out, "| x{step} |");
        for sweep in sweeps {
            let point = sweep.points.iter().find(|point| point.jobs == step);
            let told = point.map(|point| {
                let times = times(point.rate_to_one_job.as_ref());
                format!("{} {times}", short(point.figures.per_second.median))
            });
            let _ = write!(out, " {} |", told.unwrap_or_default());
        }
        for series in &published {
            let times = series.to_one_job(step);
            let times = times.map(|times| format!("{times:.2}×"));
            let _ = write!(out, " {} |", times.unwrap_or_default());
        }
        out.push('\n');
    }
    let _ = write!(out, "| CPU for a request, x64 to x1 |");
    for sweep in sweeps {
        let aim = sweep.aim.map(|aim| format!(" {}", aim.shown()));
        let cost = times(sweep.cpu_64_to_1.as_ref());
        let _ = write!(out, " {cost}{} |", aim.unwrap_or_default());
    }
    let _ = writeln!(out, "{}", " |".repeat(published.len()));
}

fn foot(out: &mut String, report: &Report) {
    let _ = writeln!(out, "\n{}.", report.method.join(";\n"));
    let _ = writeln!(
        out,
        "aim: + reached, - missed, ? not measured (or no peer to compare with)."
    );
    if !report.jobs.is_empty() {
        let _ = writeln!(
            out,
            "jobs: 4 KiB, depth {} each, requests per second (× one job's); published figures were taken elsewhere, with \
             other sizes and depths: only how they change can be compared.",
            super::work::SWEEP_DEPTH
        );
        for line in cited(&report.published.sources) {
            let _ = writeln!(out, "{line}");
        }
    }
    for trouble in &report.failed {
        let (name, round, why) = (trouble.name, trouble.round, &trouble.why);
        let _ = writeln!(out, "FAILED: {name}, round {round}: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use crate::shape;

    #[test]
    fn each_table_has_as_many_cells_in_every_line_as_in_its_head() {
        let text = super::of(&sample());
        assert_eq!(shape::even_tables(&text), 3, "{text}");
    }

    #[test]
    fn figures_aims_and_what_is_missing_are_told() {
        let text = super::of(&sample());
        for told in [
            "4.00× (3.00–5.00)",
            "≥3 +",
            "≥1.2 -",
            "| 90.0 (80.0–130) |",
            "≤100 +",
            "NOT MEASURED: nbd-server: not installed",
            "FAILED: nbdkit-tcp, round 1: on purpose",
            "2.15×",
            "published cx3:",
        ] {
            assert!(text.contains(told), "{told}\n{text}");
        }
    }
}
