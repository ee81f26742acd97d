//! The plots of a report, by the name of their files.

use super::native;
use super::report::{Report, Row};
use super::text::{FIGURES, PROGRAMS};
use super::trial::{Better, CPU, Side};
use crate::beside;
use crate::plot::{self, Axes, Bar, Panel, Series, Whose};
use crate::published::Aim;

/// All for which there are figures: file, picture.
pub(super) fn of(report: &Report) -> Vec<(String, String)> {
    let foot = beside::caption(&report.machine, report.run.rounds);
    let mut pictures = Vec::new();
    let mut bars = |name: &str, title: &str, panels: Vec<Panel>| {
        if panels.iter().any(|panel| !panel.bars.is_empty()) {
            pictures.push((name.to_owned(), plot::bars(title, &foot, &panels)));
        }
    };
    let programs = |metrics| report.of(&PROGRAMS, metrics);
    bars(
        "sockets.svg",
        "memlane and UNIX domain sockets against TCP",
        ratios(&programs(&FIGURES)),
    );
    bars(
        "sockets-cpu.svg",
        "What it costs, against TCP",
        ratios(&programs(&[CPU])),
    );
    let sweeps = [
        (
            "sockets-connections.svg",
            "Requests over many connections",
            "connections",
            "rate",
        ),
        ("sockets-rr.svg", "There and back, by size", "rr", "p50"),
        (
            "sockets-rr-p99.svg",
            "There and back, by size: the slowest of 100",
            "rr",
            "p99",
        ),
        (
            "sockets-stream.svg",
            "One way, by size of writes",
            "stream",
            "throughput",
        ),
        (
            "sockets-stream-cpu.svg",
            "One way: what a gigabyte costs",
            "stream",
            CPU,
        ),
    ];
    for (name, title, group, metric) in sweeps {
        pictures.extend(sweep(report, title, group, metric).map(|it| (name.to_owned(), it)));
    }
    for (name, axes, series) in native::pictures(&report.native) {
        pictures.push((name.to_owned(), plot::lines(&axes, &series)));
    }
    pictures
}

/// A panel for what should be high, one for what should be low.
fn ratios(rows: &[&Row]) -> Vec<Panel> {
    let panel = |better: Better, title: &str| {
        let rows = rows.iter().filter(|row| row.better == better);
        Panel {
            title: title.to_owned(),
            unit: "against TCP; the tick is the aim of nocopy".to_owned(),
            bars: rows.flat_map(|row| row_bars(row)).collect(),
        }
    };
    vec![
        panel(Better::Higher, "More is better"),
        panel(Better::Lower, "Less is better"),
    ]
}

fn row_bars(row: &Row) -> Vec<Bar> {
    let bar = |side: &Side| {
        let cell = row.cell(*side)?;
        let nocopy = *side == Side::Nocopy;
        let aim = row.aim.as_ref().filter(|_| nocopy);
        Some(Bar {
            name: format!("{}, {}, {}: {}", row.id, row.cpus(), row.metric, side.id()),
            value: cell.to_tcp.clone()?,
            whose: Whose::of(cell.ours),
            aim: aim.map(|aim| match aim.ratio {
                Aim::AtLeast(bound) | Aim::AtMost(bound) => bound,
            }),
        })
    };
    Side::ALL.iter().filter_map(bar).collect()
}

/// One line for each column; nothing, if nothing was measured.
fn sweep(report: &Report, title: &str, group: &str, metric: &str) -> Option<String> {
    let rows = report.of(&[group], &[metric]);
    let series = Side::ALL.iter().filter_map(|side| {
        let point = |row: &&Row| Some((row.across?, row.cell(*side)?.value.clone()));
        let points: Vec<_> = rows.iter().filter_map(point).collect();
        let system = side.system();
        (!points.is_empty()).then(|| Series {
            name: system.about.to_owned(),
            whose: Whose::of(system.ours),
            points,
        })
    });
    let series: Vec<Series> = series.collect();
    let row = rows.first()?;
    let axes = Axes {
        title: title.to_owned(),
        across: match group {
            "connections" => "connections".to_owned(),
            _ => "bytes".to_owned(),
        },
        up: format!("{} {}", row.metric, row.unit),
        powers: true,
    };
    Some(plot::lines(&axes, &series))
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;

    /// Bars or points: marks with a title.
    fn marks(picture: &str) -> usize {
        let parsed = roxmltree::Document::parse(picture).expect("XML");
        let nodes = parsed.descendants();
        let titled = |node: &roxmltree::Node<'_, '_>| {
            let mut inner = node.children();
            inner.any(|child| child.tag_name().name() == "title")
        };
        nodes.filter(titled).count()
    }

    #[test]
    fn every_figure_is_in_its_plot() {
        let pictures = super::of(&sample());
        let told: Vec<(&str, usize)> = pictures
            .iter()
            .map(|(name, picture)| (name.as_str(), marks(picture)))
            .collect();
        let expected = [
            ("sockets.svg", 5 * 3 + 2),
            ("sockets-cpu.svg", 3),
            ("sockets-connections.svg", 5 * 4),
            ("sockets-rr.svg", 12 * 4),
            ("sockets-stream.svg", 12 * 4),
            ("sockets-native-handover.svg", 6 * 3),
            ("sockets-native-carried.svg", 5 * 3),
        ];
        assert_eq!(told, expected);
    }
}
