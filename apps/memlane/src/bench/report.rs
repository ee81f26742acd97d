//! The result as a table for people and as JSON for programs.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::lane::Usage;
use super::machine::Machine;
use super::plot::{self, Bar, Panel, Whose};
use super::published::{self, Aim, Figure, Published};
use super::runner::{Line, Results, Trouble};
use super::spread::Spread;
use super::trial::Better;
use super::work;

/// `schema` of the JSON.
pub(crate) const SCHEMA: &str = "memlane.bench.sockets/1";
/// A row whose bytes took the ring to a smaller share than this did not use the lane.
const LEAST_PERCENT: f64 = 50.0;

/// Everything that was measured.
#[derive(Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    created_unix: u64,
    command: Vec<String>,
    quick: bool,
    rounds: usize,
    seconds: f64,
    upgrade: String,
    method: &'static str,
    machine: Machine,
    rows: Vec<Row>,
    skipped: Vec<Trouble>,
    failed: Vec<Trouble>,
    sources: std::collections::BTreeMap<String, published::Source>,
}

/// How it was measured, for the head of the report.
pub(crate) struct How {
    /// `--quick`?
    pub(crate) quick: bool,
    /// Rounds of each pair.
    pub(crate) rounds: usize,
    /// Seconds per measurement.
    pub(crate) seconds: f64,
    /// `--upgrade` of the memlane side.
    pub(crate) upgrade: String,
}

#[derive(Serialize)]
struct Row {
    id: &'static str,
    group: &'static str,
    about: &'static str,
    pinned: bool,
    metric: &'static str,
    unit: &'static str,
    better: Better,
    tcp: Option<Spread>,
    memlane: Option<Spread>,
    ratio: Option<Spread>,
    lane: Lane,
    aim: Option<Goal>,
    published: Vec<Beside>,
}

#[derive(Serialize)]
struct Lane {
    /// Whether the bytes should have taken the ring.
    expected: bool,
    /// Whether they did; null where that can't be told or isn't asked.
    used: Option<bool>,
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

#[derive(Serialize)]
struct Goal {
    ratio: Aim,
    met: Option<bool>,
}

#[derive(Serialize)]
struct Beside {
    #[serde(flatten)]
    figure: Figure,
    smc_lo_ratio: Option<f64>,
    smc_lo_nocopy_ratio: Option<f64>,
}

impl Report {
    /// Puts the results beside the published figures.
    pub(crate) fn new(mut results: Results, how: How, machine: Machine) -> anyhow::Result<Self> {
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
            method: "rounds alternate TCP and memlane in one run; medians (lowest–highest); \
                     ratios are memlane/TCP of the same round; pinned = server on one CPU, \
                     client on another; lane = share of bytes that the servers' stats pages \
                     count on the ring",
            machine,
            rows: rows.collect(),
            skipped: results.skipped,
            failed: results.failed,
            sources: published.sources,
        })
    }

    /// Whether some trial failed.
    pub(crate) fn has_failures(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Whether a row that should have used the memory lane did not.
    pub(crate) fn lane_missed(&self) -> bool {
        self.rows.iter().any(|row| row.lane.used == Some(false))
    }

    /// For programs.
    pub(crate) fn json(&self) -> anyhow::Result<String> {
        crate::out::json(self)
    }

    /// The ratios as bars: one panel for what should be high, one for what should be low.
    pub(crate) fn picture(&self) -> String {
        let panel = |better: Better, title: &str| Panel {
            title: title.to_owned(),
            unit: "memlane/TCP; the tick is the aim".to_owned(),
            bars: self
                .rows
                .iter()
                .filter(|row| row.better == better)
                .filter_map(Row::bar)
                .collect(),
        };
        let panels = [
            panel(Better::Higher, "Rates: more is better"),
            panel(Better::Lower, "Latencies: less is better"),
        ];
        let machine = &self.machine;
        let foot = format!(
            "Medians of {} rounds, lowest to highest as a thin line. {}, {} CPUs, Linux {}.",
            self.rounds, machine.cpu, machine.cores, machine.kernel
        );
        plot::bars("memlane against TCP", &foot, &panels)
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        self.head(&mut out);
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "what",
            "cpus",
            "metric",
            "TCP",
            "memlane",
            "memlane/TCP",
            "aim",
            "lane",
            "SMC-lo/TCP",
            "SMC-lo-nocpy/TCP",
        ]);
        for row in &self.rows {
            table.add_row(row.cells());
        }
        for column in 3..8 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let _ = writeln!(out, "{table}");
        self.foot(&mut out);
        out
    }

    fn head(&self, out: &mut String) {
        let machine = &self.machine;
        let _ = writeln!(
            out,
            "memlane bench sockets{}: {} rounds × {} s, TCP and memlane (--upgrade {}) alternating",
            if self.quick { " --quick" } else { "" },
            self.rounds,
            self.seconds,
            self.upgrade
        );
        let _ = writeln!(
            out,
            "machine: {}, {} CPUs, {} MiB, Linux {}, tcp congestion control {}, load {}",
            machine.cpu,
            machine.cores,
            machine.memory_mib,
            machine.kernel,
            machine.congestion_control,
            machine.load
        );
        let versions: Vec<_> = machine
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        let _ = writeln!(out, "programs: {}\n", versions.join(", "));
    }

    fn foot(&self, out: &mut String) {
        let _ = writeln!(out, "\n{}.", self.method);
        let _ = writeln!(
            out,
            "aim: + reached, - missed, ? not measured. lane: ! = the memory lane was not used: the row \
             compares TCP with TCP."
        );
        let mut told = Vec::new();
        for row in self.rows.iter().filter(|row| row.lane.used == Some(false)) {
            if !told.contains(&(row.id, row.pinned)) {
                told.push((row.id, row.pinned));
                let (cpus, why) = (row.cpus(), row.lane.why());
                let _ = writeln!(out, "LANE NOT USED: {} ({cpus}): {why}", row.id);
            }
        }
        for (word, list) in [("SKIPPED", &self.skipped), ("FAILED", &self.failed)] {
            for trouble in list {
                let _ = writeln!(out, "{word}: {}: {}", trouble.name, trouble.why);
            }
        }
        let mut used: Vec<&str> = Vec::new();
        for beside in self.rows.iter().flat_map(|row| &row.published) {
            if !used.contains(&beside.figure.source.as_str()) {
                used.push(&beside.figure.source);
            }
        }
        for key in used {
            if let Some(source) = self.sources.get(key) {
                let _ = writeln!(
                    out,
                    "published {key}: {}; {}; {}",
                    source.title, source.place, source.machine
                );
            }
        }
    }
}

impl Row {
    fn cpus(&self) -> &'static str {
        match (self.id, self.pinned) {
            ("oversubscribed", _) => "2",
            (_, true) => "pinned",
            (_, false) => "free",
        }
    }

    /// Nothing if one side is missing.
    fn bar(&self) -> Option<Bar> {
        Some(Bar {
            name: format!("{}, {}, {}", self.id, self.cpus(), self.metric),
            value: self.ratio.clone()?,
            whose: Whose::Ours,
            aim: self.aim.as_ref().map(|aim| match aim.ratio {
                Aim::AtLeast(bound) | Aim::AtMost(bound) => bound,
            }),
        })
    }

    fn cells(&self) -> Vec<String> {
        let figures = |spread: &Option<Spread>| match spread {
            Some(it) => format!("{} ({}–{})", short(it.median), short(it.min), short(it.max)),
            None => "-".to_owned(),
        };
        vec![
            self.about.to_owned(),
            self.cpus().to_owned(),
            format!("{} {}", self.metric, self.unit),
            figures(&self.tcp),
            figures(&self.memlane),
            self.ratio.as_ref().map_or("-".into(), |ratio| {
                format!(
                    "{}× ({}–{})",
                    short(ratio.median),
                    short(ratio.min),
                    short(ratio.max)
                )
            }),
            self.aim.as_ref().map_or(String::new(), Goal::shown),
            self.lane.shown(),
            self.besides(|beside| beside.smc_lo_ratio),
            self.besides(|beside| beside.smc_lo_nocopy_ratio),
        ]
    }

    fn besides(&self, ratio: impl Fn(&Beside) -> Option<f64>) -> String {
        let shown = self.published.iter().filter_map(|beside| {
            ratio(beside).map(|ratio| format!("{ratio:.2}× {}", beside.figure.source))
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}

impl Goal {
    fn shown(&self) -> String {
        let bound = match self.ratio {
            Aim::AtLeast(bound) => format!("≥{}", short(bound)),
            Aim::AtMost(bound) => format!("≤{}", short(bound)),
        };
        match self.met {
            Some(true) => format!("{bound} +"),
            Some(false) => format!("{bound} -"),
            None => format!("{bound} ?"),
        }
    }
}

impl Lane {
    fn new(usage: &Usage, row: &str, measured: bool) -> Self {
        let expected = work::expects_lane(row);
        let percent = usage.percent();
        let reasons = usage.reasons.iter().map(|(&code, &connections)| WhyTcp {
            code: format!("{code:#010x}"),
            name: memlane_core::reason::Reason(code).name(),
            connections,
        });
        Lane {
            expected,
            used: (measured && expected).then(|| percent.is_some_and(|it| it >= LEAST_PERCENT)),
            ring_percent: percent,
            ring_bytes: usage.ring,
            tcp_bytes: usage.tcp,
            reasons: reasons.collect(),
        }
    }

    fn shown(&self) -> String {
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

    fn why(&self) -> String {
        if self.ring_percent.is_none() && self.reasons.is_empty() {
            return "the servers showed no stats page, or no bytes in it".to_owned();
        }
        let reasons: Vec<_> = self
            .reasons
            .iter()
            .map(|why| format!("{} {} × {}", why.code, why.name, why.connections))
            .collect();
        let ring = self.ring_percent.unwrap_or(0.0);
        format!(
            "{ring:.1} % of the bytes by ring; reasons: {}",
            or_none(&reasons.join(", "))
        )
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none given" } else { text }
}

fn row(line: &Line, published: &Published) -> Row {
    let tcp: Vec<f64> = line.rounds.iter().filter_map(|round| round.0).collect();
    let memlane: Vec<f64> = line.rounds.iter().filter_map(|round| round.1).collect();
    let ratio = Spread::of_ratios(&line.rounds);
    let lane = Lane::new(&line.lane, line.row, !memlane.is_empty());
    let name = line.metric.name;
    let aim = published::aim(line.row, name, line.pinned).map(|aim| Goal {
        ratio: aim,
        // TCP against TCP proves nothing, whichever way it comes out.
        met: (lane.used != Some(false))
            .then(|| ratio.as_ref().map(|ratio| aim.met(ratio.median)))
            .flatten(),
    });
    let beside = published
        .of(line.row, name)
        .into_iter()
        .map(|figure| Beside {
            smc_lo_ratio: figure.copy_ratio(),
            smc_lo_nocopy_ratio: figure.nocopy_ratio(),
            figure,
        });
    Row {
        id: line.row,
        group: line.group,
        about: work::about(line.row),
        pinned: line.pinned,
        metric: name,
        unit: line.metric.unit,
        better: line.metric.better,
        lane,
        tcp: Spread::of(&tcp),
        memlane: Spread::of(&memlane),
        ratio,
        aim,
        published: beside.collect(),
    }
}

/// Three significant digits, thousands as k.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 999_500.0 => format!("{:.2}M", value / 1e6),
        size if size >= 99_950.0 => format!("{:.0}k", value / 1e3),
        size if size >= 9_995.0 => format!("{:.1}k", value / 1e3),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.0995 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::trial::Metric;

    fn line(ring: u64, tcp: u64) -> Line {
        Line {
            group: "nginx",
            row: "nginx-128",
            pinned: true,
            metric: Metric::rate("req/s"),
            rounds: vec![
                (Some(50_000.0), Some(210_000.0)),
                (Some(60_000.0), Some(240_000.0)),
            ],
            lane: Usage {
                ring,
                tcp,
                pages: 1,
                reasons: [(0x0301_0000, 2)].into(),
            },
        }
    }

    fn report(line: Line) -> Report {
        let how = How {
            quick: true,
            rounds: 2,
            seconds: 1.0,
            upgrade: "auto".into(),
        };
        let results = Results {
            lines: vec![line],
            ..Results::default()
        };
        Report::new(results, how, Machine::here()).expect("a report")
    }

    #[test]
    fn a_row_that_used_the_lane_stands_beside_the_published_one() {
        let report = report(line(99_990, 10));
        let text = report.text();
        assert!(text.contains("4.10× (4.00–4.20)"), "{text}");
        assert!(
            text.contains("≥4.00 +") && text.contains(">99.9 %"),
            "{text}"
        );
        assert!(
            text.contains("1.43× rfc-v2") && text.contains("1.51× lo-v3"),
            "{text}"
        );
        assert!(!report.lane_missed());
    }

    #[test]
    fn each_ratio_is_a_bar_of_the_picture() {
        let picture = report(line(99_990, 10)).picture();
        let parsed = roxmltree::Document::parse(&picture).expect("XML");
        let bars = parsed.descendants();
        let bars = bars.filter(|node| node.attribute("class") == Some("bar"));
        assert_eq!(bars.count(), 1);
        assert!(picture.contains("nginx-128, pinned, rate"), "{picture}");
        assert!(!picture.contains("Latencies"), "no row has one");
    }

    #[test]
    fn a_row_whose_bytes_went_by_tcp_is_marked_with_its_reason() {
        let report = report(line(10, 99_990));
        let text = report.text();
        assert!(report.lane_missed());
        assert!(
            text.contains("! 0.0 %") && text.contains("≥4.00 ?"),
            "{text}"
        );
        assert!(text.contains("LANE NOT USED: nginx-128"), "{text}");
        assert!(text.contains("0x03010000 PEER_NO_SMC × 2"), "{text}");
    }

    #[test]
    fn without_a_stats_page_the_lane_counts_as_unused() {
        let mut line = line(0, 0);
        line.lane = Usage::default();
        assert!(report(line).lane_missed());
    }

    #[test]
    fn json_has_its_schema_and_the_machine() {
        let json = report(line(1, 0)).json().expect("json");
        let value: serde_json::Value = serde_json::from_str(&json).expect("valid");
        assert_eq!(value["schema"], SCHEMA);
        assert!(value["machine"]["kernel"].is_string());
        let row = &value["rows"][0];
        assert_eq!(row["ratio"]["values"][0], 4.2);
        assert_eq!(row["aim"]["ratio"]["at_least"], 4.0);
        assert_eq!(row["lane"]["ring_percent"], 100.0);
        assert_eq!(row["published"][0]["source"], "rfc-v2");
    }

    #[test]
    fn numbers_keep_three_digits() {
        let told: Vec<_> = [
            0.4,
            0.0063,
            21.977,
            50_549.1,
            240_123.0,
            1_234_567.0,
            9999.9,
        ]
        .into_iter()
        .map(short)
        .collect();
        assert_eq!(
            told,
            ["0.40", "0.0063", "22.0", "50.5k", "240k", "1.23M", "10.0k"]
        );
    }
}
