//! What was measured, as a document: every figure with its spread, ratios of the same round, aims.

use serde::Serialize;

use super::native;
use super::published::{self, Figure, Published};
use super::runner::{Line, Results, Trouble};
use super::trial::{Better, Side};
use super::work;
use crate::beside::Run;
use crate::lane::Usage;
use crate::machine::Machine;
use crate::published::{Aim, Source};
use crate::spread::Spread;

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
    #[serde(flatten)]
    pub(super) run: Run,
    pub(super) upgrade: String,
    pub(super) method: [&'static str; 6],
    pub(super) machine: Machine,
    pub(super) rows: Vec<Row>,
    pub(super) native: native::Report,
    pub(super) skipped: Vec<Trouble>,
    pub(super) failed: Vec<Trouble>,
    pub(super) sources: std::collections::BTreeMap<String, Source>,
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
        run: Run,
        upgrade: String,
        machine: Machine,
    ) -> anyhow::Result<Self> {
        let published = Published::load()?;
        let order = |line: &Line| (work::position(line.row), !line.pinned);
        results.lines.sort_by_key(order);
        let rows = results.lines.iter().map(|line| row(line, &published));
        Ok(Report {
            run,
            upgrade,
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
            ("oversubscribed" | "oversubscribed-32" | "strangers", _) => "2",
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

#[cfg(test)]
pub(super) mod tests {
    use super::super::trial::Metric;
    use super::*;
    use crate::shape;

    fn usage(ring: u64, tcp: u64) -> Usage {
        Usage {
            ring,
            tcp,
            pages: 1,
            reasons: [(0x0301_0000, 2)].into(),
        }
    }

    /// `by`: of TCP, UNIX, copy, nocopy.
    fn line(row: &'static str, metric: Metric, by: [Option<f64>; 4]) -> Line {
        let workloads = work::all();
        let workload = workloads.iter().find(|w| w.rows().contains(&row));
        let more = by.map(|value| value.map(|value| value * 1.2));
        Line {
            group: workload.expect("a row").group(),
            row,
            pinned: true,
            metric,
            rounds: vec![by, more],
            lanes: [(); 4].map(|()| usage(99_990, 10)),
        }
    }

    fn lines() -> Vec<Line> {
        let all =
            |tcp: f64, by: [f64; 3]| [1.0, by[0], by[1], by[2]].map(|times| Some(tcp * times));
        let rate = |row, tcp, by| line(row, Metric::rate("req/s"), all(tcp, by));
        let mut lines = vec![
            rate("msg100", 15e3, [2.0, 60.0, 200.0]),
            rate("nginx-1", 10e3, [1.0, 10.0, 14.0]),
            rate("nginx-500", 50e3, [1.0, 3.0, 4.1]),
            line(
                "sockperf-pp",
                Metric::latency("p50"),
                all(20.0, [0.9, 0.02, 0.005]),
            ),
            line(
                "sockperf-tp",
                Metric::throughput("MiB/s"),
                all(3e3, [1.1, 1.5, 5.0]),
            ),
            line(
                "iperf3",
                Metric::throughput("Gbit/s"),
                [Some(20.0), None, Some(40.0), Some(150.0)],
            ),
        ];
        for group in ["rr", "stream", "connections"] {
            for workload in work::all().iter().filter(|w| w.group() == group) {
                for row in workload.rows() {
                    let metric = match group {
                        "rr" => Metric::latency("p50"),
                        "stream" => Metric::throughput("MB/s"),
                        _ => Metric::rate("msg/s"),
                    };
                    let across = work::across(row).expect("a number");
                    lines.push(line(row, metric, all(across.sqrt(), [1.5, 3.0, 9.0])));
                }
            }
        }
        let cpu = super::super::trial::cpu_of_requests(1.0, 1e5)
            .expect("enough")
            .0;
        lines.push(line("nginx-1", cpu, all(60.0, [1.0, 0.3, 0.1])));
        lines
    }

    fn report_of(lines: Vec<Line>) -> Report {
        let run = Run::new(SCHEMA, true, 2, 1.0).expect("a time");
        let trouble = |name: &str| {
            vec![Trouble {
                name: name.into(),
                why: "on <purpose> & so on".into(),
            }]
        };
        let results = Results {
            lines,
            skipped: trouble("redis-get-c1"),
            failed: trouble("nginx unpinned"),
        };
        let (plan, handed) = native::sample();
        let native = native::Report::new(&plan, &handed);
        Report::new(results, native, run, "auto".into(), Machine::here()).expect("a report")
    }

    pub(in super::super) fn sample() -> Report {
        report_of(lines())
    }

    #[test]
    fn a_row_that_used_the_lane_has_a_verdict_and_stands_beside_the_published_one() {
        let report = sample();
        let row = report.find("nginx-500", "rate").expect("a row");
        let nocopy = row.cell(Side::Nocopy).expect("measured");
        assert_eq!(nocopy.to_tcp.as_ref().expect("a ratio").median, 4.1);
        assert_eq!(row.aim.as_ref().expect("an aim").met, Some(true));
        let sources: Vec<&str> = row
            .published
            .iter()
            .map(|b| b.figure.source.as_str())
            .collect();
        assert_eq!(sources, ["rfc-v2", "rfc-v4"]);
        assert!(row.cell(Side::Tcp).expect("measured").to_tcp.is_none());
        assert!(!report.lane_missed());
        let missed = report.find("nginx-1", "rate").expect("a row");
        assert_eq!(missed.aim.as_ref().expect("an aim").met, Some(false));
    }

    #[test]
    fn a_row_whose_bytes_went_by_tcp_has_no_verdict_and_says_why() {
        let mut by_tcp = line("nginx-500", Metric::rate("req/s"), [Some(1.0); 4]);
        by_tcp.lanes = [(); 4].map(|()| usage(10, 99_990));
        let report = report_of(vec![by_tcp]);
        assert!(report.lane_missed());
        let row = &report.rows[0];
        assert_eq!(row.aim.as_ref().expect("an aim").met, None);
        let (_, lane) = row.lanes().next().expect("a column of ours");
        assert_eq!(lane.shown(), "! 0.0 %");
        assert!(
            lane.why().contains("0x03010000 PEER_NO_SMC × 2"),
            "{}",
            lane.why()
        );
    }

    #[test]
    fn without_a_stats_page_the_lane_counts_as_unused() {
        let mut line = line("nginx-500", Metric::rate("req/s"), [Some(1.0); 4]);
        line.lanes = Default::default();
        assert!(report_of(vec![line]).lane_missed());
    }

    #[test]
    fn short_connections_are_not_asked_for_a_lane() {
        let mut line = line("short", Metric::rate("conn/s"), [Some(1.0); 4]);
        line.lanes = Default::default();
        let report = report_of(vec![line]);
        assert!(!report.lane_missed());
        let (_, lane) = report.rows[0].lanes().next().expect("a column of ours");
        assert_eq!(lane.shown(), "n/a");
    }

    #[test]
    fn the_guide_names_every_field_of_the_document() {
        let json = serde_json::to_value(sample()).expect("json");
        assert_eq!(json["schema"], SCHEMA);
        let maps = [".machine.versions", ".sources"];
        let (told, there) = (
            shape::documented("sockets", SCHEMA),
            shape::of(&json, &maps),
        );
        assert_eq!(there, told);
    }
}
