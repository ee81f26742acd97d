//! The plots of a report, by the name of their files.

use super::report::{Cell, Line, Report};
use super::rows::Part;
use super::text::title;
use crate::beside;
use crate::plot::{self, Bar, Panel, Whose};
use crate::published::Aim;
use crate::spread::Spread;

/// All for which there are figures.
pub(super) fn of(report: &Report) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    let mut add = |name: &str, about: &str, panels: Vec<Panel>| {
        let panels: Vec<Panel> = panels.into_iter().filter(|p| !p.bars.is_empty()).collect();
        let caption = beside::caption(&report.machine, report.run.rounds);
        if !panels.is_empty() {
            pictures.push((name.to_owned(), plot::bars(about, &caption, &panels)));
        }
    };
    let lines = report.lines(Part::Stream);
    let all = |panel: fn(&Line) -> Panel| lines.iter().map(|line| panel(line)).collect();
    add("devmem.svg", "Payload into a region", all(rates));
    add(
        "devmem-cpu.svg",
        "What a gigabyte costs its receiver",
        all(costs),
    );
    let tensors = report.lines(Part::Python);
    let tensors = tensors.into_iter().map(rates).collect();
    add("devmem-python.svg", "Tensors", tensors);
    pictures
}

fn bars(line: &Line, get: impl Fn(&Cell) -> Option<Spread>) -> Vec<Bar> {
    // What is aimed at, as a value, so that a bar's end shows it.
    let aim = |of: &str| {
        let goal = line.aims.iter().find(|goal| goal.of == of)?;
        match goal.bound {
            Aim::AtLeast(times) => Some(times * get(line.cell(goal.to)?)?.median),
            Aim::AtMost(_) => None,
        }
    };
    let bar = |cell: &Cell| {
        Some(Bar {
            name: cell.about.into(),
            value: get(cell)?,
            whose: Whose::of(cell.ours),
            aim: aim(cell.system),
        })
    };
    line.systems.iter().filter_map(bar).collect()
}

fn rates(line: &Line) -> Panel {
    Panel {
        title: title(line),
        unit: "bytes/s; the tick is the aim, at least".into(),
        bars: bars(line, |cell| Some(cell.bytes_per_second.clone())),
    }
}

fn costs(line: &Line) -> Panel {
    let mut bars = bars(line, |cell| cell.receiver_cpu_s_per_gb.clone());
    // The aims are of throughput.
    bars.iter_mut().for_each(|bar| bar.aim = None);
    Panel {
        title: title(line),
        unit: "CPU, s/GB".into(),
        bars,
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use crate::shape::marks;

    #[test]
    fn every_figure_is_in_its_plot() {
        let pictures = super::of(&sample());
        let told: Vec<(&str, usize)> = pictures
            .iter()
            .map(|(name, picture)| (name.as_str(), marks(picture, "rect")))
            .collect();
        let expected = [
            ("devmem.svg", 8),
            ("devmem-cpu.svg", 8),
            ("devmem-python.svg", 2),
        ];
        assert_eq!(told, expected);
    }
}
