//! The plots of a report, by the name of their files.

use super::report::{Cell, Line, Report};
use super::rows::{Part, Way};
use crate::beside::{self, plan::Part as _};
use crate::plot::{self, Axes, Bar, Panel, Series, Whose};
use crate::published::Aim;
use crate::spread::Spread;

/// All for which there are figures.
pub(super) fn of(report: &Report) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    let mut add = |name: &str, picture: Option<String>| {
        pictures.extend(picture.map(|picture| (name.to_owned(), picture)));
    };
    let frames: Vec<&Line> = report.lines(Part::Table);
    let single: Vec<&Line> = frames
        .iter()
        .filter(|l| l.of.queues == 1)
        .copied()
        .collect();
    add(
        "packets.svg",
        rates(report, "Frames, in three modes", &single),
    );
    add(
        "packets-cpu.svg",
        costs(report, "Frames: what one costs", &single),
    );
    for way in [Way::Tx, Way::Rx] {
        for bytes in [64, 1496, 65535] {
            let all = frames.iter();
            let of = |l: &&&Line| l.of.way == way && l.of.bytes == bytes && l.of.burst == 32;
            let lines: Vec<&Line> = all.filter(of).copied().collect();
            let name = format!("packets-queues-{}-{bytes}.svg", way.word());
            add(&name, queues(&lines));
        }
    }
    let bulk = report.lines(Part::Bulk);
    add(
        "packets-bulk.svg",
        rates(report, "TCP between two namespaces", &bulk),
    );
    add(
        "packets-bulk-cpu.svg",
        costs(report, "TCP: what a gigabyte costs", &bulk),
    );
    let memif = report.lines(Part::Memif);
    add(
        "packets-memif.svg",
        rates(report, "Beside DPDK's testpmd", &memif),
    );
    pictures
}

/// The older modes are ours, too; but they are what persistent is compared with.
fn whose(cell: &Cell) -> Whose {
    Whose::of(cell.ours && !matches!(cell.system, "map" | "copy"))
}

fn foot(report: &Report) -> String {
    beside::caption(&report.machine, report.run.rounds)
}

fn title(line: &Line) -> String {
    match line.of.part {
        Part::Bulk => line.about.clone(),
        _ => format!("{}, burst {}", line.about, line.of.burst),
    }
}

fn rates(report: &Report, name: &str, lines: &[&Line]) -> Option<String> {
    let panel = |line: &&Line| {
        // The highest of the values that persistent must have, so that a bar's end shows it.
        let aim = line.aims.iter().filter(|aim| aim.of == "persistent");
        let aim = aim.filter_map(|aim| match aim.bound {
            Aim::AtLeast(times) => Some(times * line.cell(aim.to)?.value.median),
            Aim::AtMost(_) => None,
        });
        let aim = aim.reduce(f64::max);
        let bar = |cell: &Cell| Bar {
            name: cell.about.into(),
            value: cell.value.clone(),
            whose: whose(cell),
            aim: aim.filter(|_| cell.system == "persistent"),
        };
        Panel {
            title: title(line),
            unit: match aim {
                Some(_) => format!("{}; the tick is the aim, at least", line.unit),
                None => line.unit.into(),
            },
            bars: line.systems.iter().map(bar).collect(),
        }
    };
    let panels: Vec<Panel> = lines.iter().map(panel).collect();
    (!panels.is_empty()).then(|| plot::bars(name, &foot(report), &panels))
}

fn costs(report: &Report, name: &str, lines: &[&Line]) -> Option<String> {
    let panel = |line: &&Line| {
        let bars = line.systems.iter().filter_map(|cell| {
            Some(Bar {
                name: cell.about.into(),
                value: cell.cpu.clone()?,
                whose: whose(cell),
                aim: None,
            })
        });
        Panel {
            title: title(line),
            unit: format!("CPU, {}", line.cpu_unit),
            bars: bars.collect(),
        }
    };
    let panels: Vec<Panel> = lines.iter().map(panel).collect();
    (!panels.is_empty()).then(|| plot::bars(name, &foot(report), &panels))
}

/// More and more queues; nothing, if there was one number of them only.
fn queues(lines: &[&Line]) -> Option<String> {
    let first = lines.first().filter(|_| lines.len() > 1)?;
    let series = Part::Table.systems().iter().map(|system| {
        let points = lines.iter();
        let point = |line: &&Line| -> Option<(f64, Spread)> {
            let cell = line.cell(system.id)?;
            Some((f64::from(line.of.queues), cell.value.clone()))
        };
        Series {
            name: system.about.into(),
            whose: Whose::of(system.id == "persistent"),
            points: points.filter_map(point).collect(),
        }
    });
    let axes = Axes {
        title: format!("Queues: {}, burst 32", first.about),
        across: "queues".into(),
        up: "frames per second".into(),
        powers: false,
    };
    Some(plot::lines(&axes, &series.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;
    use crate::shape::marks;

    #[test]
    fn every_figure_is_in_its_plot_and_nothing_is_drawn_of_what_was_not_measured() {
        let report = sample();
        let pictures = of(&report);
        let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "packets.svg",
                "packets-cpu.svg",
                "packets-queues-tx-64.svg",
                "packets-bulk.svg",
                "packets-bulk-cpu.svg",
                "packets-memif.svg",
            ]
        );
        let found = |name: &str| {
            let picture = pictures.iter().find(|(known, _)| known == name);
            &picture.expect("it is there").1
        };
        // Three rows of one queue, three modes each.
        assert_eq!(marks(found("packets.svg"), "rect"), 9);
        assert_eq!(marks(found("packets-cpu.svg"), "rect"), 9);
        assert_eq!(marks(found("packets-queues-tx-64.svg"), "circle"), 6);
        assert_eq!(marks(found("packets-bulk.svg"), "rect"), 10);
        assert_eq!(marks(found("packets-memif.svg"), "rect"), 2);
    }
}
