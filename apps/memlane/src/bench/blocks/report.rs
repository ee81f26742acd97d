//! The table: a row for each workload and system, with its ratio to the best of the peers in the same round.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Reading, systems, work};
use crate::bench::machine::Machine;
use crate::bench::spread::Spread;

/// A system that could not be measured.
#[derive(Serialize, Debug)]
pub(super) struct Trouble {
    system: &'static str,
    why: String,
}

impl Trouble {
    pub(super) fn new(system: &'static str, error: &anyhow::Error) -> Trouble {
        Trouble {
            system,
            why: format!("{error:#}"),
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        systems::is_ours(self.system)
    }
}

/// What is printed.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    schema: &'static str,
    machine: Machine,
    method: String,
    lines: Vec<Line>,
    trouble: &'a [Trouble],
}

#[derive(Serialize)]
struct Line {
    row: &'static str,
    system: &'static str,
    per_second: Spread,
    p50_us: Spread,
    p99_us: Spread,
    cpu_seconds_per_million: Spread,
    /// Requests per second, against the best peer of each round.
    to_best_peer: Option<Spread>,
    aim: Option<f64>,
}

impl<'a> Report<'a> {
    pub(super) fn new(
        readings: &[Reading],
        trouble: &'a [Trouble],
        machine: Machine,
        seconds: u32,
    ) -> Report<'a> {
        let mut keys: Vec<(&'static str, &'static str)> = Vec::new();
        for reading in readings {
            let key = (reading.row, reading.system);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let mut rows: Vec<&'static str> = Vec::new();
        for (row, _) in &keys {
            if !rows.contains(row) {
                rows.push(row);
            }
        }
        keys.sort_by_key(|(row, _)| rows.iter().position(|known| known == row));
        let lines = keys
            .iter()
            .filter_map(|(row, system)| line(readings, row, system));
        Report {
            schema: "memlane.bench.blocks/1",
            lines: lines.collect(),
            machine,
            method: format!(
                "rounds alternate between the systems; {seconds} s each; volumes of {} MiB, written before; NBD and files by fio, \
                 the API by memlane's own generator; ratios to the best peer of the same round",
                systems::SIZE >> 20
            ),
            trouble,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::from(
            "| what | system | per second | p50 µs | p99 µs | CPU s / 1M | to the best peer | aim |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for line in &self.lines {
            let about = work::known(line.row).map_or("?", |row| row.about);
            let ratio = line.to_best_peer.as_ref();
            let _ = writeln!(
                text,
                "| {about} | {} | {} | {} | {} | {} | {} | {} |",
                systems::about(line.system),
                spread(&line.per_second),
                spread(&line.p50_us),
                spread(&line.p99_us),
                short(line.cpu_seconds_per_million.median),
                ratio.map(|r| format!("{}×", spread(r))).unwrap_or_default(),
                aim(line.aim, ratio),
            );
        }
        for trouble in self.trouble {
            let _ = writeln!(text, "not measured: {}: {}", trouble.system, trouble.why);
        }
        let _ = writeln!(
            text,
            "\n{}. Taken on: {}, {} CPUs, Linux {}, load {}.",
            self.method,
            self.machine.cpu,
            self.machine.cores,
            self.machine.kernel,
            self.machine.load
        );
        text
    }
}

fn aim(aim: Option<f64>, ratio: Option<&Spread>) -> String {
    match (aim, ratio) {
        (Some(aim), Some(ratio)) => {
            format!("≥{aim} {}", if ratio.median >= aim { '+' } else { '-' })
        }
        _ => String::new(),
    }
}

fn line(readings: &[Reading], row: &'static str, system: &'static str) -> Option<Line> {
    let ours: Vec<&Reading> = readings
        .iter()
        .filter(|r| r.row == row && r.system == system)
        .collect();
    let of = |get: fn(&work::Outcome) -> f64| {
        let values: Vec<f64> = ours.iter().map(|r| get(&r.result)).collect();
        Spread::of(&values)
    };
    let ratios: Vec<f64> = ours
        .iter()
        .filter_map(|r| Some(r.result.per_second / best_peer(readings, row, r.round)?))
        .collect();
    let aims = work::known(row)?.aims;
    Some(Line {
        row,
        system,
        per_second: of(|o| o.per_second)?,
        p50_us: of(|o| o.p50)?,
        p99_us: of(|o| o.p99)?,
        cpu_seconds_per_million: of(|o| o.cpu_seconds_per_million)?,
        to_best_peer: systems::is_ours(system)
            .then(|| Spread::of(&ratios))
            .flatten(),
        aim: match system {
            "api-tcp" => aims[0],
            "api-local" => aims[1],
            "nbd-local" | "nbd-tcp" => aims[2],
            _ => None,
        },
    })
}

fn best_peer(readings: &[Reading], row: &str, round: usize) -> Option<f64> {
    readings
        .iter()
        .filter(|r| r.row == row && r.round == round && !systems::is_ours(r.system))
        .map(|r| r.result.per_second)
        .max_by(f64::total_cmp)
}

fn spread(spread: &Spread) -> String {
    format!(
        "{} ({}–{})",
        short(spread.median),
        short(spread.min),
        short(spread.max)
    )
}

/// Three figures that matter.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
