//! The plots of a run, by the names of their files.

use super::plot::{self, Axes, Bar, Panel, Series, Whose};
use crate::catalogue::{Aim, Plot, Row, System, To, View};
use crate::figures::Figures;
use crate::sample::{Run, metric};
use crate::spread::Spread;

/// All for which there are figures: file, picture.
pub(crate) fn of(figures: &Figures<'_>) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    for view in &figures.catalogue.views {
        for one in &view.plots {
            match one {
                Plot::Bars { metric, to } => pictures.extend(bars(figures, view, metric, to)),
                Plot::Lines {
                    metric,
                    across,
                    powers,
                    scaling,
                } => {
                    let axes = Axes {
                        title: view.title.into(),
                        across: (*across).into(),
                        up: String::new(),
                        powers: *powers,
                    };
                    pictures.extend(lines(figures, view, metric, &axes, *scaling));
                }
            }
        }
    }
    pictures
}

fn file(figures: &Figures<'_>, parts: &[&str]) -> String {
    let parts: Vec<&str> = parts
        .iter()
        .copied()
        .filter(|part| !part.is_empty())
        .collect();
    format!("{}-{}.svg", figures.catalogue.suite, parts.join("-"))
}

fn caption(run: &Run) -> String {
    let machine = &run.head.machine;
    format!(
        "Medians of {}; a thin line goes from the lowest to the highest. {}, {} CPUs, Linux {}.",
        run.head.rounds_shown(),
        machine.cpu,
        machine.cores,
        machine.kernel
    )
}

fn bars(figures: &Figures<'_>, view: &View, id: &str, to: &To) -> Option<(String, String)> {
    let about = metric(id).map_or("?", |(about, _)| about);
    let panel = |row: &Row| {
        let bar = |system: &System| {
            // Against itself is one.
            let same = *to == To::System(system.id);
            Some(Bar {
                name: system.about.into(),
                value: figures
                    .ratio(&row.id, system.id, id, to)
                    .filter(|_| !same)?,
                whose: Whose::of(system.ours),
                aim: aim(figures, row, system, id, to),
            })
        };
        let bars: Vec<Bar> = view.systems.iter().filter_map(bar).collect();
        let unit = match to {
            To::Itself => format!("{about}, {}", figures.unit(&row.id, id)),
            to => format!("{about}, × {}", to.name()),
        };
        let tick = bars.iter().any(|bar| bar.aim.is_some());
        Panel {
            title: row.about.clone(),
            unit: if tick {
                format!("{unit}; the tick is the aim")
            } else {
                unit
            },
            bars,
        }
    };
    let panels = view.rows.iter().map(panel);
    let panels: Vec<Panel> = panels.filter(|panel| !panel.bars.is_empty()).collect();
    let times = if *to == To::Itself { "" } else { "times" };
    let name = file(figures, &[view.id, id, times]);
    let title = capital(view.title);
    (!panels.is_empty()).then(|| (name, plot::bars(&title, &caption(figures.run), &panels)))
}

/// Where a bar should end: the highest of its aims of that metric.
fn aim(figures: &Figures<'_>, row: &Row, system: &System, id: &str, to: &To) -> Option<f64> {
    let goals = figures.catalogue.goals.iter();
    let goals = goals.filter(|g| g.row == row.id && g.of == system.id && g.metric == id);
    let ends = goals.filter_map(|goal| match (&goal.to, to) {
        (of, to) if of == to => Some(goal.aim.bound()),
        (To::System(other), To::Itself) => match goal.aim {
            Aim::AtLeast(times) => Some(times * figures.spread(&row.id, other, id)?.median),
            Aim::AtMost(_) => None,
        },
        _ => None,
    });
    ends.reduce(f64::max)
}

/// One picture for each sweep that has at least two steps.
fn lines(
    figures: &Figures<'_>,
    view: &View,
    id: &str,
    axes: &Axes,
    scaling: bool,
) -> Vec<(String, String)> {
    let mut sweeps: Vec<&str> = Vec::new();
    for (sweep, _) in view.rows.iter().filter_map(|row| row.sweep.as_ref()) {
        if !sweeps.contains(&sweep.as_str()) {
            sweeps.push(sweep);
        }
    }
    let about = metric(id).map_or("?", |(about, _)| about);
    let pictures = sweeps.into_iter().filter_map(|sweep| {
        let steps: Vec<(&Row, f64)> = view
            .rows
            .iter()
            .filter_map(|row| {
                let (name, at) = row.sweep.as_ref()?;
                (name == sweep).then_some((row, *at))
            })
            .collect();
        let first = steps.first()?.0;
        let to = if scaling {
            To::Row(first.id.clone())
        } else {
            To::Itself
        };
        let mut series: Vec<Series> = view
            .systems
            .iter()
            .map(|system| Series {
                name: system.about.into(),
                whose: Whose::of(system.ours),
                points: steps
                    .iter()
                    .filter_map(|(row, at)| {
                        Some((*at, figures.ratio(&row.id, system.id, id, &to)?))
                    })
                    .collect(),
            })
            .collect();
        if scaling && series.iter().any(|series| !series.points.is_empty()) {
            series.extend(published(figures, id, &steps));
        }
        series.retain(|series| !series.points.is_empty());
        if series.iter().all(|series| series.points.len() < 2) {
            return None;
        }
        let axes = Axes {
            title: format!("{}: {sweep}", capital(view.title)),
            up: match scaling {
                true => format!("{about}, × {}", first.about),
                false => {
                    let units = steps.iter().map(|(row, _)| figures.unit(&row.id, id));
                    format!("{about}, {}", units.max().unwrap_or_default())
                }
            },
            ..axes.clone()
        };
        let name = file(
            figures,
            &[view.id, sweep, id, if scaling { "scaling" } else { "" }],
        );
        Some((name, plot::lines(&axes, &series)))
    });
    pictures.collect()
}

/// What others published of the same steps, as multiples of their first one.
fn published(figures: &Figures<'_>, id: &str, steps: &[(&Row, f64)]) -> Vec<Series> {
    let all = &figures.catalogue.published;
    let mut names: Vec<(&str, &str)> = Vec::new();
    for figure in steps.iter().flat_map(|(row, _)| all.of(&row.id, id)) {
        if !names.contains(&(&figure.system, &figure.source)) {
            names.push((&figure.system, &figure.source));
        }
    }
    let series = names.into_iter().map(|(system, source)| {
        let value = |row: &str| {
            let mut found = all.of(row, id);
            found
                .find(|f| f.system == system && f.source == source)
                .map(|f| f.value)
        };
        let one = steps.first().and_then(|(row, _)| value(&row.id));
        let points = steps
            .iter()
            .filter_map(|(row, at)| Some((*at, Spread::of(&[value(&row.id)? / one?])?)));
        Series {
            name: format!("{system} ({source})"),
            whose: Whose::Published,
            points: points.collect(),
        }
    });
    series.collect()
}

/// With a large first letter.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}
