//! The tables of a run: one for each view, then what others published, then the notes.

use super::table::Table;
use crate::catalogue::{Goal, Layout, Row, System, To, View};
use crate::figures::Figures;
use crate::published::Figure;
use crate::sample::metric;
use crate::spread::{short, times};

/// All that have lines: the measured ones, then what others published.
pub(crate) fn of(figures: &Figures<'_>) -> Vec<Table> {
    let mut tables = measured(figures);
    tables.push(published(figures));
    tables.retain(|table| !table.lines.is_empty());
    tables
}

/// Those of the run's own figures that have lines.
pub(crate) fn measured(figures: &Figures<'_>) -> Vec<Table> {
    let views = figures.catalogue.views.iter();
    let views = views.map(|view| match view.layout {
        Layout::Systems => by_systems(figures, view),
        Layout::Metrics => by_metrics(figures, view),
    });
    let mut tables: Vec<Table> = views.collect();
    tables.retain(|table| !table.lines.is_empty());
    tables
}

/// Systems side by side; a line for each metric of a row.
fn by_systems(figures: &Figures<'_>, view: &View) -> Table {
    let some = |system: &&System| {
        let mut rows = view.rows.iter();
        rows.any(|row| {
            let mut metrics = view.metrics.iter();
            metrics.any(|m| figures.spread(&row.id, system.id, m).is_some())
        })
    };
    let systems: Vec<&System> = view.systems.iter().filter(some).collect();
    let mut head = vec![view.title.to_owned(), "metric".into()];
    head.extend(systems.iter().map(|system| system.about.to_owned()));
    let ratios = view.ratios.iter();
    head.extend(ratios.map(|(of, to, _)| format!("{of} / {}", to.name())));
    head.push("aim".into());
    let shares = figures.catalogue.memory.is_some();
    head.extend(shares.then(|| "by memory".to_owned()));
    let line = |row: &Row, id: &str| {
        let values = systems.iter().map(|s| shown(figures, &row.id, s.id, id));
        let values: Vec<String> = values.collect();
        if values.iter().all(String::is_empty) {
            return None;
        }
        let mut cells = vec![row.about.clone(), named(figures, &row.id, id)];
        cells.extend(values);
        cells.extend(view.ratios.iter().map(|(of, to, only)| {
            let ratio =
                (only.is_empty() || *only == id).then(|| figures.ratio(&row.id, of, id, to));
            times(ratio.flatten().as_ref())
        }));
        cells.push(goals(figures, &row.id, id, &systems));
        cells.extend(shares.then(|| memory(figures, row, &systems)));
        Some(cells)
    };
    let rows = view.rows.iter();
    let lines = rows.flat_map(|row| view.metrics.iter().filter_map(move |id| line(row, id)));
    let mut table = Table {
        id: view.id,
        title: view.title.into(),
        words: [2, 1 + usize::from(shares)],
        lines: lines.collect(),
        head,
    };
    table.drop_empty_columns();
    table
}

/// Metrics side by side; a line for each system of a row.
fn by_metrics(figures: &Figures<'_>, view: &View) -> Table {
    let mut compared: Vec<(&str, &To)> = Vec::new();
    for (_, to, id) in &view.ratios {
        if !compared.contains(&(id, to)) {
            compared.push((id, to));
        }
    }
    let about = |id: &str| metric(id).map_or("?", |(about, _)| about);
    let unit = |id: &str| {
        let mut rows = view.rows.iter();
        rows.find_map(|row| Some(figures.unit(&row.id, id)).filter(|unit| !unit.is_empty()))
    };
    let mut head = vec![view.title.to_owned(), "system".into()];
    head.extend(view.metrics.iter().map(|id| match unit(id) {
        Some(unit) => format!("{}, {unit}", about(id)),
        None => about(id).to_owned(),
    }));
    let ratios = compared.iter();
    head.extend(ratios.map(|(id, to)| format!("{} / {}", about(id), to.name())));
    head.push("aim".into());
    let line = |row: &Row, system: &System| {
        let values = view
            .metrics
            .iter()
            .map(|id| shown(figures, &row.id, system.id, id));
        let values: Vec<String> = values.collect();
        if values.iter().all(String::is_empty) {
            return None;
        }
        let mut cells = vec![row.about.clone(), system.about.to_owned()];
        cells.extend(values);
        cells.extend(compared.iter().map(|(id, to)| {
            let wanted = view
                .ratios
                .iter()
                .any(|(of, t, m)| *of == system.id && t == *to && m == id);
            let ratio = wanted.then(|| figures.ratio(&row.id, system.id, id, to));
            times(ratio.flatten().as_ref())
        }));
        let aims = view
            .metrics
            .iter()
            .map(|id| goals(figures, &row.id, id, &[system]));
        let aims: Vec<String> = aims.filter(|aim| !aim.is_empty()).collect();
        cells.push(aims.join(", "));
        Some(cells)
    };
    let rows = view.rows.iter();
    let lines = rows.flat_map(|row| {
        view.systems
            .iter()
            .filter_map(move |system| line(row, system))
    });
    Table {
        id: view.id,
        title: view.title.into(),
        words: [2, 1],
        lines: lines.collect(),
        head,
    }
}

fn shown(figures: &Figures<'_>, row: &str, system: &str, id: &str) -> String {
    let spread = figures.spread(row, system, id);
    spread.map_or(String::new(), |spread| spread.shown())
}

fn named(figures: &Figures<'_>, row: &str, id: &str) -> String {
    let about = metric(id).map_or("?", |(about, _)| about);
    format!("{about}, {}", figures.unit(row, id))
}

/// Aims of a row and metric, of some systems: `copy ≥8 +`, and of more than one with names.
fn goals(figures: &Figures<'_>, row: &str, id: &str, systems: &[&System]) -> String {
    let all = figures
        .goals()
        .filter(|goal| goal.row == row && goal.metric == id);
    let all: Vec<&Goal> = all
        .filter(|goal| systems.iter().any(|system| system.id == goal.of))
        .collect();
    let several = all.iter().any(|goal| goal.of != all[0].of);
    let told = all.iter().map(|goal| {
        let shown = goal.aim.shown(figures.met(goal));
        match (several, &goal.to) {
            (_, To::Itself) => shown,
            (false, to) => format!("{} {shown}", to.name()),
            (true, to) => format!("{} / {} {shown}", goal.of, to.name()),
        }
    });
    told.collect::<Vec<_>>().join(", ")
}

/// Shares of the bytes, of each system that has memory.
fn memory(figures: &Figures<'_>, row: &Row, systems: &[&System]) -> String {
    let ours = systems.iter().filter(|system| system.ours);
    let told = ours.filter_map(|system| {
        let share = figures.memory(&row.id, system.id)?;
        let used = figures.used_memory(&row.id, system.id);
        let mark = if used == Some(false) { "! " } else { "" };
        // Shown to a tenth, but never rounded up to "all".
        Some(match share {
            share if share > 99.9 && share < 100.0 => ">99.9 %".to_owned(),
            share => format!("{mark}{share:.1} %"),
        })
    });
    told.collect::<Vec<_>>().join(", ")
}

/// What others published: beside each row of ours that was measured, and what no row of ours is like.
fn published(figures: &Figures<'_>) -> Table {
    let all = &figures.catalogue.published;
    let rows: Vec<&Row> = figures
        .catalogue
        .views
        .iter()
        .flat_map(|view| &view.rows)
        .collect();
    let line = |figure: &Figure| {
        let row = rows.iter().find(|row| row.id == figure.row);
        let ours = row.is_none_or(|row| !figures.unit(&row.id, &figure.metric).is_empty());
        let ratio = all.ratio(figure).filter(|_| !figure.base.is_empty());
        ours.then(|| {
            vec![
                row.map_or(figure.row.clone(), |row| row.about.clone()),
                figure.system.clone(),
                format!("{} {}", short(figure.value), figure.unit),
                ratio.map_or(String::new(), |ratio| {
                    format!("{ratio:.2}× {}", figure.base)
                }),
                figure.source.clone(),
            ]
        })
    };
    Table {
        id: "published",
        title: "published by others".into(),
        head: ["published by others", "system", "figure", "ratio", "source"]
            .map(String::from)
            .to_vec(),
        lines: all.figures.iter().filter_map(line).collect(),
        words: [2, 1],
    }
}

/// How it was measured, what the marks mean, whose the published figures are.
pub(crate) fn notes(figures: &Figures<'_>) -> Vec<String> {
    let method = figures.catalogue.method.iter();
    let mut notes: Vec<String> = method.map(|line| format!("{line}.")).collect();
    notes.push(
        "Aims: + reached, - missed, ? not measured, or nothing to compare with. Published figures were taken elsewhere: \
         compare their ratios only."
            .to_owned(),
    );
    if figures.catalogue.memory.is_some() {
        notes.push("By memory: the share of the bytes, by the servers' stats pages; ! means that the row compares TCP with TCP.".to_owned());
    }
    let not_by_memory = figures.not_by_memory().into_iter();
    notes.extend(not_by_memory.map(|line| format!("NOT BY MEMORY: {line}")));
    notes.extend(absent(figures));
    let sources = figures.catalogue.published.sources.iter();
    notes.extend(sources.map(|(key, source)| {
        let (title, place, machine) = (&source.title, &source.place, &source.machine);
        format!(
            "Published, {key}: {title}; {place}; {machine}; {}.",
            source.method
        )
    }));
    notes
}

/// What is not there, and why.
fn absent(figures: &Figures<'_>) -> impl Iterator<Item = String> {
    figures.run.absent.iter().map(|one| match one.round {
        None => format!("NOT MEASURED: {}, {}: {}", one.row, one.system, one.why),
        Some(round) => format!(
            "FAILED: {}, {}, round {}: {}",
            one.row,
            one.system,
            round + 1,
            one.why
        ),
    })
}
