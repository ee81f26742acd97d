//! What `./dev demo` shows: a few rows of stock programs over TCP and over memlane, each as soon as it is measured.

use std::process::ExitCode;

use crate::catalogue::{Catalogue, To};
use crate::exit::Exit;
use crate::figures::Figures;
use crate::out;
use crate::runner::{proc, sys};
use crate::spread::short;
use crate::suites::sockets;

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

/// The columns.
const TCP: &str = "tcp";
const OURS: &str = "nocopy";

/// Shows it.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    sys::watch_for_interrupts();
    let all = sockets::catalogue::catalogue();
    let print = |cells: [&str; 5]| out::print(&line(cells));
    print(["workload", "TCP", "memlane", "times", "through memory"])?;
    for row in chosen() {
        let run = sockets::quietly(&[row], ROUNDS, SECONDS)?;
        let cells = cells(&Figures::new(&run, &all), row);
        print(cells.each_ref().map(String::as_str))?;
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

/// What a row is, for people.
fn about(all: &Catalogue, id: &str) -> String {
    let mut rows = all.views.iter().flat_map(|view| &view.rows);
    let row = rows.find(|row| row.id == id);
    row.map_or(String::new(), |row| row.about.clone())
}

/// The cells of a row.
fn cells(figures: &Figures<'_>, row: &str) -> [String; 5] {
    let about = about(figures.catalogue, row);
    let known = |metric: &&&str| figures.spread(row, TCP, metric).is_some();
    let Some(metric) = ["rate", "throughput"].iter().find(known) else {
        let why = figures
            .run
            .absent
            .first()
            .map_or("", |one| one.why.as_str());
        return [
            about,
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
    let times = figures.ratio(row, OURS, metric, &To::System(TCP));
    let share = figures.memory(row, OURS);
    [
        about,
        value(TCP),
        value(OURS),
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
    use crate::fixtures::run;

    #[test]
    fn every_line_fits_into_a_hundred_columns() {
        let all = sockets::catalogue::catalogue();
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
        let all = sockets::catalogue::catalogue();
        let mut rows = ROWS.iter().flat_map(|(_, rows)| rows.iter());
        assert!(rows.all(|row| !about(&all, row).is_empty()));
    }
}
