//! What was measured, as a document: every figure with its spread, ratios of the same round, aims.

use serde::Serialize;

use super::native;
use super::published::{self, Figure, Published};
use super::runner::{Line, Results, Trouble};
use super::trial::{Better, Side};
use super::work;
use crate::bench::lane::Usage;
use crate::bench::machine::Machine;
use crate::bench::published::{Aim, Source};
use crate::bench::spread::Spread;

/// `schema` of the JSON.
pub(super) const SCHEMA: &str = "memlane.bench.sockets/2";
/// A row whose bytes took the ring to a smaller share than this did not use the lane.
const LEAST_PERCENT: f64 = 50.0;

const METHOD: [&str; 6] = [
    "rounds alternate between the columns in one run, every second round backwards; medians (lowest–highest); ratios are to TCP \
     of the same round",
    "copy and nocopy: both programs under memlane run with that --mode; UNIX: the same programs over UNIX domain sockets, where \
     they can",
    "pinned: server on one CPU, client on another; 2: all on these two; free: wherever the kernel likes",
    "lane: share of bytes that the servers' stats pages count on the ring",
    "CPU: user and system time of server and client, warm-up included where its requests are counted; told where it was 50 ms or more",
    "embedded: our own plain programs with sockets of the standard library, blocking; for many connections: one thread with epoll \
     at each end, requests over all of them in turn, up to 64 at a time",
];

/// Everything that was measured.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) schema: &'static str,
    pub(super) created_unix: u64,
    pub(super) command: Vec<String>,
    pub(super) quick: bool,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    pub(super) upgrade: String,
    pub(super) method: [&'static str; 6],
    pub(super) machine: Machine,
    pub(super) rows: Vec<Row>,
    pub(super) native: native::Report,
    pub(super) skipped: Vec<Trouble>,
    pub(super) failed: Vec<Trouble>,
    pub(super) sources: std::collections::BTreeMap<String, Source>,
}

/// How it was measured, for the head of the report.
pub(super) struct How {
    /// `--quick`?
    pub(super) quick: bool,
    /// Rounds.
    pub(super) rounds: usize,
    /// Seconds per measurement.
    pub(super) seconds: f64,
    /// `--upgrade` of memlane's columns.
    pub(super) upgrade: String,
}

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) id: &'static str,
    pub(super) group: &'static str,
    pub(super) about: String,
    /// Bytes of a message, or connections, where a row is one of a sweep.
    pub(super) across: Option<f64>,
    pub(super) pinned: bool,
    pub(super) metric: &'static str,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    pub(super) systems: Vec<Cell>,
    pub(super) aim: Option<Goal>,
    pub(super) published: Vec<Beside>,
}

/// One column of a row.
#[derive(Serialize)]
pub(super) struct Cell {
    pub(super) system: &'static str,
    pub(super) about: &'static str,
    pub(super) ours: bool,
    pub(super) value: Spread,
    /// Ratio of the same round; null for TCP itself.
    pub(super) to_tcp: Option<Spread>,
    /// Null for what is not memlane's.
    pub(super) lane: Option<Lane>,
}

#[derive(Serialize)]
pub(super) struct Lane {
    /// Whether the bytes should have taken the ring.
    expected: bool,
    /// Whether they did; null where that isn't asked.
    pub(super) used: Option<bool>,
    ring_percent: Option<f64>,
    ring_bytes: u64,
    tcp_bytes: u64,
    /// Why connections were on TCP, and how many.
    reasons: Vec<WhyTcp>,
}

#[derive(Serialize)]
struct WhyTcp {
    code: String,
    name: &'static str,
    connections: u64,
}

/// Of nocopy against TCP.
#[derive(Serialize)]
pub(super) struct Goal {
    pub(super) ratio: Aim,
    pub(super) met: Option<bool>,
}

#[derive(Serialize)]
pub(super) struct Beside {
    #[serde(flatten)]
    pub(super) figure: Figure,
    domain_ratio: Option<f64>,
    smc_lo_ratio: Option<f64>,
    smc_lo_nocopy_ratio: Option<f64>,
}

impl Report {
    /// Puts the results beside the published figures.
    pub(super) fn new(
        mut results: Results,
        native: native::Report,
        how: How,
        machine: Machine,
    ) -> anyhow::Result<Self> {
        let published = Published::load()?;
        let order = |line: &Line| (work::position(line.row), !line.pinned);
        results.lines.sort_by_key(order);
        let rows = results.lines.iter().map(|line| row(line, &published));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        Ok(Report {
            schema: SCHEMA,
            created_unix: now.as_secs(),
            command: std::env::args().collect(),
            quick: how.quick,
            rounds: how.rounds,
            seconds: how.seconds,
            upgrade: how.upgrade,
            method: METHOD,
            machine,
            rows: rows.collect(),
            native,
            skipped: results.skipped,
            failed: results.failed,
            sources: published.sources,
        })
    }

    /// Whether some trial failed.
    pub(super) fn has_failures(&self) -> bool {
        !self.failed.is_empty() || self.native.ours_failed()
    }

    /// Whether a row that should have used the memory lane did not.
    pub(super) fn lane_missed(&self) -> bool {
        let lanes = self.rows.iter().flat_map(Row::lanes);
        lanes.into_iter().any(|(_, lane)| lane.used == Some(false))
    }

    /// What one line says of a row; pinned, where it is both.
    pub(super) fn find(&self, id: &str, metric: &str) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.id == id && row.metric == metric)
    }

    /// Rows of a group, or of some groups.
    pub(super) fn of(&self, groups: &[&str], metrics: &[&str]) -> Vec<&Row> {
        let rows = self.rows.iter();
        let wanted = |row: &&Row| groups.contains(&row.group) && metrics.contains(&row.metric);
        rows.filter(wanted).collect()
    }
}

impl Row {
    /// Where its programs ran.
    pub(super) fn cpus(&self) -> &'static str {
        match (self.id, self.pinned) {
            ("oversubscribed", _) => "2",
            (_, true) => "pinned",
            (_, false) => "free",
        }
    }

    pub(super) fn cell(&self, side: Side) -> Option<&Cell> {
        self.systems.iter().find(|cell| cell.system == side.id())
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = (&'static str, &Lane)> {
        let cells = self.systems.iter();
        cells.filter_map(|cell| Some((cell.system, cell.lane.as_ref()?)))
    }
}

impl Goal {
    /// `≥4.00 +`.
    pub(super) fn shown(&self) -> String {
        self.ratio.shown(self.met)
    }
}

impl Lane {
    fn new(usage: &Usage, row: &str) -> Self {
        let expected = work::expects_lane(row);
        let percent = usage.percent();
        let reasons = usage.reasons.iter().map(|(&code, &connections)| WhyTcp {
            code: format!("{code:#010x}"),
            name: memlane_core::reason::Reason(code).name(),
            connections,
        });
        Lane {
            expected,
            used: expected.then(|| percent.is_some_and(|it| it >= LEAST_PERCENT)),
            ring_percent: percent,
            ring_bytes: usage.ring,
            tcp_bytes: usage.tcp,
            reasons: reasons.collect(),
        }
    }

    /// In a table.
    pub(super) fn shown(&self) -> String {
        let percent = match self.ring_percent {
            // Shown to a tenth, but never rounded up to "all".
            Some(percent) if percent > 99.9 && self.tcp_bytes > 0 => ">99.9 %".to_owned(),
            Some(percent) => format!("{percent:.1} %"),
            None => "none".to_owned(),
        };
        match (self.used, self.expected) {
            (Some(false), _) => format!("! {percent}"),
            (None, false) => "n/a".to_owned(),
            _ => percent,
        }
    }

    /// In a sentence.
    pub(super) fn why(&self) -> String {
        if self.ring_percent.is_none() && self.reasons.is_empty() {
            return "the servers showed no stats page, or no bytes in it".to_owned();
        }
        let reasons = self.reasons.iter();
        let reasons: Vec<_> = reasons
            .map(|why| format!("{} {} × {}", why.code, why.name, why.connections))
            .collect();
        let ring = self.ring_percent.unwrap_or(0.0);
        let reasons = match reasons.is_empty() {
            true => "none given".to_owned(),
            false => reasons.join(", "),
        };
        format!("{ring:.1} % of the bytes by ring; reasons: {reasons}")
    }
}

fn row(line: &Line, published: &Published) -> Row {
    let name = line.metric.name;
    let cells = Side::ALL.iter().filter_map(|side| cell(line, *side));
    let systems: Vec<Cell> = cells.collect();
    let nocopy = systems.iter().find(|c| c.system == Side::Nocopy.id());
    let aim = published::aim(line.row, name, line.pinned).map(|aim| {
        // TCP against TCP proves nothing, whichever way it comes out.
        let real = nocopy.filter(|c| c.lane.as_ref().is_none_or(|it| it.used != Some(false)));
        let ratio = real.and_then(|cell| cell.to_tcp.as_ref());
        Goal {
            ratio: aim,
            met: ratio.map(|ratio| aim.met(ratio.median)),
        }
    });
    let figures = published.of(line.row, name).into_iter();
    let beside = figures.map(|figure| Beside {
        domain_ratio: figure.ratio(1),
        smc_lo_ratio: figure.ratio(2),
        smc_lo_nocopy_ratio: figure.ratio(3),
        figure,
    });
    Row {
        id: line.row,
        group: line.group,
        about: work::about(line.row),
        across: work::across(line.row),
        pinned: line.pinned,
        metric: name,
        unit: line.metric.unit,
        better: line.metric.better,
        aim,
        published: beside.collect(),
        systems,
    }
}

/// Nothing, if it has no figures.
fn cell(line: &Line, side: Side) -> Option<Cell> {
    let at = side as usize;
    let values: Vec<f64> = line.rounds.iter().filter_map(|round| round[at]).collect();
    let pairs: Vec<_> = line
        .rounds
        .iter()
        .map(|round| (round[0], round[at]))
        .collect();
    let system = side.system();
    Some(Cell {
        system: system.id,
        about: system.about,
        ours: system.ours,
        value: Spread::of(&values)?,
        to_tcp: Spread::of_ratios(&pairs).filter(|_| side != Side::Tcp),
        lane: system.ours.then(|| Lane::new(&line.lanes[at], line.row)),
    })
}
