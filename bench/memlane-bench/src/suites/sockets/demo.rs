//! What `./dev demo` shows: a few rows of stock programs over TCP and over memlane, each as soon as it is measured.

use std::process::ExitCode;

use super::catalogue::catalogue;
use super::trial::{Setting, Side, Workload};
use super::{can_run, rounds, work};
use crate::exit::{Exit, fail};
use crate::out;
use crate::render::figures::Figures;
use crate::render::spread::short;
use crate::runner::machine::Machine;
use crate::runner::programs::Programs;
use crate::runner::progress::Progress;
use crate::runner::{Made, Record, finished, proc, sys};
use crate::suites::To;

/// Rows of the first programs that are installed; the embedded pair needs none.
const ROWS: [(&[&str], &[&str]); 4] = [
    (
        &["redis-server", "redis-benchmark"],
        &["redis-get-c1", "redis-get-c50", "redis-set-c50"],
    ),
    (&["nginx", "wrk"], &["nginx-1", "nginx-16"]),
    (&["iperf3"], &["iperf3"]),
    (&[], &["msg100", "connections-100"]),
];
/// Rows that are shown at most.
const MOST: usize = 5;
const ROUNDS: usize = 3;
const SECONDS: f64 = 0.5;

/// What a demonstration may be told: nothing.
#[derive(clap::Args, Debug)]
pub(crate) struct Demo {}

/// Shows it.
pub(crate) fn run(_: &Demo) -> anyhow::Result<ExitCode> {
    let cpus = sys::allowed_cpus();
    let mut setting = Setting {
        upgrade: "auto".into(),
        seconds: SECONDS,
        scratch: proc::Scratch::new()?,
        cpus: [cpus[0], cpus[cpus.len().min(2) - 1]],
        rows: Vec::new(),
        programs: Programs::find()?,
    };
    if let Err(why) = can_run(&setting) {
        let message = format!("`memlane run` does not work here: {why}");
        return Err(fail(Exit::Unsupported, message));
    }
    sys::watch_for_interrupts();
    let plan = rounds::Plan {
        rounds: ROUNDS,
        sides: vec![Side::Tcp, Side::Nocopy],
        pinning: vec![true],
    };
    let line = |cells: [&str; 5]| out::print(&line(cells));
    line(["workload", "TCP", "memlane", "times", "through memory"])?;
    for row in chosen() {
        setting.rows = vec![row];
        let cells = measured(row, &setting, &plan)?;
        anyhow::ensure!(!sys::interrupted(), "interrupted");
        line(cells.each_ref().map(String::as_str))?;
    }
    out::print(
        "\nThe same programs, with `memlane run` in front of both. Try your own: `memlane run -- SERVER`, and \
         `memlane run -- CLIENT`\nin another terminal; `./dev bench sockets --quick` measures more, with spreads.\n",
    )?;
    Ok(Exit::Ok.into())
}

/// Rows whose programs are there.
fn chosen() -> Vec<&'static str> {
    let there = |programs: &[&str]| {
        programs
            .iter()
            .all(|name| proc::find_program(name).is_some())
    };
    let rows = ROWS.iter().filter(|(programs, _)| there(programs));
    let rows = rows.flat_map(|(_, rows)| rows.iter().copied());
    rows.take(MOST).collect()
}

/// The cells of a row.
fn measured(
    row: &'static str,
    setting: &Setting,
    plan: &rounds::Plan,
) -> anyhow::Result<[String; 5]> {
    let mut record = Record::new("sockets");
    let workloads: Vec<Box<dyn Workload>> = work::all();
    rounds::run(
        workloads,
        setting,
        plan,
        &mut record,
        &mut Progress::silent(),
    );
    let made = Made {
        rounds: ROUNDS,
        seconds: SECONDS,
        settings: Vec::new(),
        machine: Machine::of("devmem"),
    };
    let run = finished(record, made, true)?;
    let all = catalogue();
    Ok(cells(&Figures::new(&run, &all), row))
}

fn cells(figures: &Figures<'_>, row: &str) -> [String; 5] {
    let (tcp, ours) = (Side::Tcp.id(), Side::Nocopy.id());
    let known = |metric: &&&str| figures.spread(row, tcp, metric).is_some();
    let Some(metric) = ["rate", "throughput"].iter().find(known) else {
        let why = figures
            .run
            .absent
            .first()
            .map_or("", |one| one.why.as_str());
        return [
            work::about(row),
            "failed".into(),
            why.chars().take(40).collect(),
            String::new(),
            String::new(),
        ];
    };
    let value = |system| {
        let spread = figures.spread(row, system, metric);
        spread.map_or("failed".to_owned(), |it| {
            format!("{} {}", short(it.median), figures.unit(row, metric))
        })
    };
    let times = figures.ratio(row, ours, metric, &To::System(tcp));
    let share = figures.memory(row, ours);
    [
        work::about(row),
        value(tcp),
        value(ours),
        times.map_or(String::new(), |it| format!("{}×", short(it.median))),
        share.map_or(String::new(), |share| format!("{:.0} %", share.floor())),
    ]
}

/// At most 100 characters, and a newline.
fn line([workload, tcp, memlane, times, share]: [&str; 5]) -> String {
    format!("{workload:<40} {tcp:>15} {memlane:>15} {times:>8} {share:>15}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::run;

    #[test]
    fn every_line_fits_into_a_hundred_columns() {
        let all = catalogue();
        for row in ROWS.iter().flat_map(|(_, rows)| rows.iter()) {
            let run = run(
                "sockets",
                &[
                    (row, "tcp", "rate", "conn/s", &[999_499.0]),
                    (row, "nocopy", "rate", "conn/s", &[123_456_789.0]),
                    (row, "nocopy", "ring_bytes", "B", &[99.0]),
                    (row, "nocopy", "tcp_bytes", "B", &[1.0]),
                ],
            );
            let cells = cells(&Figures::new(&run, &all), row);
            let line = line(cells.each_ref().map(String::as_str));
            assert!(line.chars().count() <= 101, "{line}");
            assert!(
                line.contains("999k conn/s") && line.contains("99 %"),
                "{line}"
            );
        }
    }

    #[test]
    fn a_machine_without_any_program_still_has_rows() {
        assert!(!chosen().is_empty() && chosen().len() <= MOST);
        let rows: Vec<&str> = work::all().iter().flat_map(|w| w.rows()).collect();
        assert!(
            ROWS.iter()
                .flat_map(|(_, rows)| rows.iter())
                .all(|row| rows.contains(row))
        );
    }
}
