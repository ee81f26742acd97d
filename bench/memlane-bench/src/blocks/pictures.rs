//! The plots of a report, by the name of their files.

use super::report::{Report, Sweep};
use super::work::{self, Pattern};
use crate::beside;
use crate::plot::{self, Axes, Bar, Panel, Series, Whose};
use crate::published::Aim;
use crate::spread::Spread;

/// All for which there are figures.
pub(super) fn of(report: &Report) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    if !report.rows.is_empty() {
        pictures.push(("blocks.svg".into(), rows(report)));
        pictures.push(("blocks-cpu.svg".into(), cpu(report)));
    }
    if !report.gaps.is_empty() {
        pictures.push(("blocks-gap.svg".into(), gaps(report)));
    }
    for pattern in [Pattern::Randread, Pattern::Randwrite] {
        let sweeps = report.jobs.iter().filter(|sweep| sweep.pattern == pattern);
        let sweeps: Vec<&Sweep> = sweeps.collect();
        if !sweeps.is_empty() {
            let word = pattern.word();
            let name = |what: &str| format!("blocks-jobs-{word}{what}.svg");
            pictures.push((name(""), rates(pattern, &sweeps)));
            pictures.push((name("-scaling"), scaling(report, pattern, &sweeps)));
            pictures.push((name("-cpu"), costs(pattern, &sweeps)));
        }
    }
    pictures
}

fn foot(report: &Report) -> String {
    beside::caption(&report.machine, report.run.rounds)
}

/// A panel for each row.
fn panels(report: &Report, unit: &str, bar: impl Fn(&super::report::Line) -> Bar) -> Vec<Panel> {
    let of = |row: &work::Row| Panel {
        title: row.about(),
        unit: unit.into(),
        bars: report
            .rows
            .iter()
            .filter(|line| line.row == row.id)
            .map(&bar)
            .collect(),
    };
    work::rows().iter().map(of).collect()
}

fn named(line: &super::report::Line) -> String {
    match line.tool {
        "fio" => line.system_about.to_owned(),
        tool => format!("{}, by {tool}", line.system_about),
    }
}

fn rows(report: &Report) -> String {
    let panels = panels(report, "requests per second", |line| Bar {
        name: named(line),
        value: line.figures.per_second.clone(),
        whose: Whose::of(line.ours),
        aim: None,
    });
    plot::bars("Volumes, side by side", &foot(report), &panels)
}

fn cpu(report: &Report) -> String {
    let panels = panels(report, "CPU seconds for a million requests", |line| Bar {
        name: named(line),
        value: line.figures.cpu_seconds_per_million.clone(),
        whose: Whose::of(line.ours),
        aim: None,
    });
    plot::bars("Volumes: what a request costs", &foot(report), &panels)
}

fn gaps(report: &Report) -> String {
    // Two scales: some are a tenth of the others.
    let panel = |event: super::gap::Event, title: &str| {
        let lines = report.gaps.iter().filter(|line| line.event == event);
        let bars = lines.map(|line| Bar {
            name: format!("{} path(s): {}", line.paths, line.scenario),
            value: line.gap_ms.clone(),
            whose: Whose::Ours,
            aim: match line.aim.bound {
                Aim::AtLeast(aim) | Aim::AtMost(aim) => Some(aim),
            },
        });
        Panel {
            title: title.into(),
            unit: "ms of the slowest request; the tick is the aim, at most".into(),
            bars: bars.collect(),
        }
    };
    let panels = [
        panel(super::gap::Event::Reset, "A path is reset"),
        panel(super::gap::Event::Cut, "A path falls silent"),
    ];
    plot::bars("The gap when a path dies", &foot(report), &panels)
}

fn series(sweep: &Sweep, get: impl Fn(&super::report::Point) -> Option<&Spread>) -> Series {
    let points = sweep.points.iter();
    let points = points.filter_map(|point| Some((f64::from(point.jobs), get(point)?.clone())));
    Series {
        name: sweep.system_about.to_owned(),
        whose: Whose::of(sweep.ours),
        points: points.collect(),
    }
}

fn axes(pattern: Pattern, title: &str, up: &str) -> Axes {
    let depth = work::SWEEP_DEPTH;
    Axes {
        title: format!("{title}: {}, 4 KiB, depth {depth} each", pattern.word()),
        across: "jobs on one volume".into(),
        up: up.into(),
        powers: false,
    }
}

fn rates(pattern: Pattern, sweeps: &[&Sweep]) -> String {
    let all = sweeps.iter();
    let all = all.map(|sweep| series(sweep, |point| Some(&point.figures.per_second)));
    let axes = axes(pattern, "Many jobs", "requests per second");
    plot::lines(&axes, &all.collect::<Vec<_>>())
}

fn costs(pattern: Pattern, sweeps: &[&Sweep]) -> String {
    let all = sweeps.iter();
    let all = all.map(|sweep| series(sweep, |point| Some(&point.figures.cpu_seconds_per_million)));
    let axes = axes(pattern, "Many jobs", "CPU seconds for a million requests");
    plot::lines(&axes, &all.collect::<Vec<_>>())
}

fn scaling(report: &Report, pattern: Pattern, sweeps: &[&Sweep]) -> String {
    let ours = sweeps.iter();
    let ours = ours.map(|sweep| series(sweep, |point| point.rate_to_one_job.as_ref()));
    let published = report.published.of(pattern.word()).map(|series| {
        let points = series.points.keys().filter_map(|&jobs| {
            let times = series.to_one_job(jobs)?;
            Some((f64::from(jobs), Spread::of(&[times])?))
        });
        Series {
            name: format!("{} ({})", series.system, series.source),
            whose: Whose::Published,
            points: points.collect(),
        }
    });
    let axes = axes(
        pattern,
        "Many jobs, beside what others published",
        "rate, × one job's",
    );
    plot::lines(&axes, &ours.chain(published).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use crate::shape::marks;

    #[test]
    fn every_figure_is_in_its_plot_and_nothing_is_drawn_of_what_was_not_measured() {
        let report = sample();
        let pictures = super::of(&report);
        let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "blocks.svg",
                "blocks-cpu.svg",
                "blocks-gap.svg",
                "blocks-jobs-randread.svg",
                "blocks-jobs-randread-scaling.svg",
                "blocks-jobs-randread-cpu.svg",
            ]
        );
        let found = |name: &str| {
            let picture = pictures.iter().find(|(known, _)| known == name);
            &picture.expect("it is there").1
        };
        assert_eq!(marks(found("blocks.svg"), "rect"), report.rows.len());
        assert_eq!(marks(found("blocks-cpu.svg"), "rect"), report.rows.len());
        assert_eq!(marks(found("blocks-gap.svg"), "rect"), report.gaps.len());
        let ours: usize = report.jobs.iter().map(|sweep| sweep.points.len()).sum();
        assert_eq!(marks(found("blocks-jobs-randread.svg"), "circle"), ours);
        let published = report.published.of("randread");
        let published: usize = published.map(|series| series.points.len()).sum();
        let scaling = found("blocks-jobs-randread-scaling.svg");
        assert_eq!(marks(scaling, "circle"), ours + published);
    }
}
