//! What was handed over, as a document, a table and plots.

use serde::Serialize;

use super::super::table::Table;
use super::{BARE, ICE, ICE_SLEEPS, ring};
use super::{Kind, LANE, LANE_SLEEPS, Missing, Plan, Results, SYSTEMS, Trouble, named};
use crate::beside::{self, Goal, Ratio};
use crate::plot::{Axes, Series, Whose};
use crate::published::Aim;
use crate::spread::{Spread, times};

const METHOD: [&str; 4] = [
    "handover: half of a round trip between two processes on a CPU each, in which memory of so many bytes is given and as much taken \
     back; memlane: reserve and commit, peek and consume; iceoryx2: a sample is loaned and sent, received and dropped; neither \
     writes or reads the memory. UNIX sockets have to write and read it",
    "the clock is read once for as many turns as take about 20 µs, at most 64: percentiles are of means of so many; not in it: \
     what opens the connection, rings, page faults of the first 30 ms",
    "carried: bytes are copied into the memory at one end and out of it at the other, one way; the bare ring does the same by memcpy, \
     with indices and nothing else, never sleeping, as large as memlane's ring is by default; both take a quarter of it at a time, at most",
    "memlane spins for up to 100 µs and then sleeps on its TCP socket; no spinning: it sleeps each time; iceoryx2 looks without \
     pause; events: it sleeps on its event service each time",
];

/// Part of the document.
#[derive(Serialize)]
pub(in super::super) struct Report {
    method: [&'static str; 4],
    /// Of rounds and of each size.
    rounds: usize,
    seconds: f64,
    /// Of the bare ring, and of memlane's where bytes are carried.
    ring_bytes: usize,
    pub(in super::super) rows: Vec<Row>,
    /// Median hand-over of memlane's, largest size to smallest.
    flat: Option<Flat>,
    missing: Vec<Missing>,
    failed: Vec<Trouble>,
}

#[derive(Serialize)]
struct Flat {
    times: Spread,
    bound: Aim,
    met: bool,
}

/// One size.
#[derive(Serialize)]
pub(in super::super) struct Row {
    pub(in super::super) row: String,
    pub(in super::super) kind: Kind,
    pub(in super::super) bytes: u64,
    unit: &'static str,
    pub(in super::super) systems: Vec<Cell>,
    ratios: Vec<Ratio>,
    pub(in super::super) aims: Vec<Goal>,
}

/// One system in a row.
#[derive(Serialize)]
pub(in super::super) struct Cell {
    system: &'static str,
    about: &'static str,
    ours: bool,
    /// Median latency, or throughput.
    value: Spread,
    /// Null for throughput.
    p99: Option<Spread>,
}

/// Who is compared with whom.
const COMPARED: [(Kind, &str, &str); 5] = [
    (Kind::Handover, LANE, ICE),
    (Kind::Handover, LANE_SLEEPS, ICE_SLEEPS),
    (Kind::Handover, LANE, "unix-stream"),
    (Kind::Carried, LANE, BARE),
    (Kind::Carried, LANE, ICE),
];
/// Where bytes are carried the aim is for bulk: smaller messages than this are about calls.
const BULK: u64 = 64 * 1024;
const FLAT: Aim = Aim::AtMost(1.2);

impl Report {
    pub(in super::super) fn new(plan: &Plan, results: &Results) -> Report {
        let sizes = plan.sizes.iter();
        let rows = Kind::ALL.into_iter().flat_map(|kind| {
            let rows = sizes.clone().map(move |bytes| row(results, kind, *bytes));
            rows.filter(|row| !row.systems.is_empty())
        });
        Report {
            method: METHOD,
            rounds: plan.rounds,
            seconds: plan.seconds,
            ring_bytes: ring::SIZE,
            rows: rows.collect(),
            flat: flat(plan, results),
            missing: results.missing.clone(),
            failed: results.failed.clone(),
        }
    }

    /// Something of memlane's own could not be measured.
    pub(in super::super) fn ours_failed(&self) -> bool {
        self.failed.iter().any(|trouble| {
            let mut systems = SYSTEMS.iter();
            systems.any(|system| system.id == trouble.system && system.ours)
        })
    }

    /// Is a hand-over of the largest size as quick as of the smallest? What was aimed at, and whether it was reached.
    pub(in super::super) fn flat(&self) -> Option<(String, bool)> {
        let flat = self.flat.as_ref()?;
        Some((flat.bound.shown(Some(flat.met)), flat.met))
    }

    /// Rows of a kind.
    fn of(&self, kind: Kind) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.kind == kind).collect()
    }
}

fn value(results: &Results, kind: Kind, system: &'static str, bytes: u64) -> Vec<Option<f64>> {
    let Some(rounds) = results.figures.get(&(kind.word(), system, bytes)) else {
        return Vec::new();
    };
    let last = rounds.keys().last().copied().unwrap_or(0);
    let of = |round| {
        let figure = rounds.get(&round)?;
        match kind {
            Kind::Handover => figure.p50_ns.map(|ns| ns / 1e3),
            Kind::Carried => Some(figure.bytes_per_second / 1e6),
        }
    };
    (0..=last).map(of).collect()
}

fn spread(values: &[Option<f64>]) -> Option<Spread> {
    Spread::of(&values.iter().copied().flatten().collect::<Vec<f64>>())
}

fn against(of: &[Option<f64>], to: &[Option<f64>]) -> Option<Spread> {
    let pairs: Vec<_> = to.iter().copied().zip(of.iter().copied()).collect();
    Spread::of_ratios(&pairs)
}

fn row(results: &Results, kind: Kind, bytes: u64) -> Row {
    let values = |system| value(results, kind, system, bytes);
    let cell = |system: &beside::System| {
        let rounds = results.figures.get(&(kind.word(), system.id, bytes))?;
        let p99: Vec<f64> = rounds.values().filter_map(|f| f.p99_ns).collect();
        Some(Cell {
            system: system.id,
            about: system.about,
            ours: system.ours,
            value: spread(&values(system.id))?,
            p99: Spread::of(&p99.iter().map(|ns| ns / 1e3).collect::<Vec<f64>>()),
        })
    };
    let compared = COMPARED.iter().filter(|(of, ..)| *of == kind);
    let ratios = compared.filter_map(|&(_, of, to)| {
        Some(Ratio {
            of,
            to,
            times: against(&values(of), &values(to))?,
        })
    });
    let ratios: Vec<Ratio> = ratios.collect();
    let aims = match kind {
        Kind::Handover => vec![(LANE, ICE, Aim::AtMost(1.0))],
        Kind::Carried if bytes >= BULK => vec![(LANE, BARE, Aim::AtLeast(0.8))],
        Kind::Carried => Vec::new(),
    };
    let aims = aims
        .into_iter()
        .map(|aim| Goal::new(aim, named(&ratios, aim.0, aim.1)));
    Row {
        row: format!("{}-{bytes}", kind.word()),
        kind,
        bytes,
        unit: match kind {
            Kind::Handover => "µs",
            Kind::Carried => "MB/s",
        },
        systems: SYSTEMS.iter().filter_map(cell).collect(),
        aims: aims.collect(),
        ratios,
    }
}

fn flat(plan: &Plan, results: &Results) -> Option<Flat> {
    let (first, last) = (*plan.sizes.first()?, *plan.sizes.last()?);
    let of = |bytes| value(results, Kind::Handover, LANE, bytes);
    let times = against(&of(last), &of(first)).filter(|_| last > first)?;
    Some(Flat {
        met: FLAT.met(times.median),
        bound: FLAT,
        times,
    })
}

/// For people.
pub(in super::super) fn tables(report: &Report) -> Vec<Table> {
    Kind::ALL
        .map(|kind| table(report, kind))
        .into_iter()
        .collect()
}

fn table(report: &Report, kind: Kind) -> Table {
    let systems: Vec<_> = SYSTEMS.iter().filter(|s| kind.has(s)).collect();
    let compared: Vec<_> = COMPARED.iter().filter(|(of, ..)| *of == kind).collect();
    let ratios = compared.iter().map(|(_, of, to)| format!("{of}/{to}"));
    let names = systems.iter().map(|system| system.about.to_owned());
    let mut head = vec!["bytes".to_owned()];
    head.extend(names.chain(ratios));
    head.push("aims".into());
    let line = |row: &Row| {
        let value = |id: &str| row.systems.iter().find(|cell| cell.system == id);
        let values = systems.iter().map(|s| value(s.id));
        let values = values.map(|cell| cell.map_or(String::new(), |it| it.value.shown()));
        let ratios = compared
            .iter()
            .map(|(_, of, to)| times(named(&row.ratios, of, to)));
        let mut cells = vec![row.bytes.to_string()];
        cells.extend(values.chain(ratios));
        cells.push(beside::goals(&row.aims, LANE));
        cells
    };
    Table {
        id: kind.word(),
        title: match kind {
            Kind::Handover => "memory handed over by name, p50 in µs".into(),
            Kind::Carried => "bytes carried by name, MB/s".into(),
        },
        head,
        lines: report.of(kind).into_iter().map(line).collect(),
        words: [0, 1],
    }
}

/// Below them.
pub(in super::super) fn notes(report: &Report) -> Vec<String> {
    if report.rows.is_empty() && report.failed.is_empty() && report.missing.is_empty() {
        return Vec::new();
    }
    let mut notes: Vec<String> = report
        .method
        .iter()
        .map(|line| format!("{line}."))
        .collect();
    notes.extend(report.flat.as_ref().map(|flat| {
        format!(
            "handover, largest size to smallest: {} (aim {})",
            times(Some(&flat.times)),
            flat.bound.shown(Some(flat.met))
        )
    }));
    let missing = report.missing.iter();
    notes.extend(missing.map(|one| format!("NOT MEASURED: {}: {}", one.system, one.why)));
    notes.extend(report.failed.iter().map(|trouble| {
        let (kind, system) = (trouble.kind.word(), trouble.system);
        let (round, why) = (trouble.round, &trouble.why);
        format!("FAILED: {kind}, {system}, round {round}: {why}")
    }));
    notes
}

/// What a plot needs: name, axes, lines.
pub(in super::super) fn pictures(report: &Report) -> Vec<(&'static str, Axes, Vec<Series>)> {
    let plot = |kind: Kind, name, title: &str, up: &str| {
        let rows = report.of(kind);
        let series = SYSTEMS.iter().filter_map(|system| {
            let point = |row: &&Row| {
                let cell = row.systems.iter().find(|cell| cell.system == system.id)?;
                Some((row.bytes as f64, cell.value.clone()))
            };
            let points: Vec<_> = rows.iter().filter_map(point).collect();
            (!points.is_empty()).then(|| Series {
                name: system.about.into(),
                whose: Whose::of(system.ours),
                points,
            })
        });
        let axes = Axes {
            title: title.into(),
            across: "bytes".into(),
            up: up.into(),
            powers: true,
        };
        (name, axes, series.collect::<Vec<_>>())
    };
    let all = [
        plot(
            Kind::Handover,
            "sockets-native-handover.svg",
            "Memory handed over by name",
            "µs, median",
        ),
        plot(
            Kind::Carried,
            "sockets-native-carried.svg",
            "Bytes carried by name",
            "MB/s",
        ),
    ];
    all.into_iter()
        .filter(|(_, _, series)| !series.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::shape;

    fn report() -> Report {
        let (plan, results) = sample();
        Report::new(&plan, &results)
    }

    #[test]
    fn figures_ratios_and_aims_are_told() {
        let report = report();
        let mut text = String::new();
        for table in tables(&report) {
            table.markdown(&mut text);
        }
        text.push_str(&notes(&report).join("\n"));
        assert_eq!(shape::even_tables(&text), 2, "{text}");
        for told in [
            "0.10 (0.10–0.10)",
            "0.50× (0.50–0.50)",
            "iceoryx2 ≤1 +",
            "ring ≥0.8 +",
            "largest size to smallest: 1.00×",
            "≤1.2 +",
            "NOT MEASURED: nobody: on purpose",
        ] {
            assert!(text.contains(told), "{told}\n{text}");
        }
    }

    #[test]
    fn every_figure_is_in_its_plot() {
        let all = pictures(&report());
        let points: Vec<usize> = all
            .iter()
            .map(|(_, _, series)| series.iter().map(|series| series.points.len()).sum())
            .collect();
        assert_eq!(points, [6 * 3, 5 * 3]);
    }
}
