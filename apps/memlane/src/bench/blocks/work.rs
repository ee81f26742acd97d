//! What is asked of each system.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::systems::{Bench, Running, SIZE, Target, confined, volume};
use crate::bench::proc::{Job, find_program};

/// Which way the data goes, and in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(in crate::bench) enum Pattern {
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Reads in order.
    Read,
    /// Writes in order.
    Write,
}

impl Pattern {
    /// As fio calls it, and our own generator.
    fn word(self) -> &'static str {
        match self {
            Pattern::Randread => "randread",
            Pattern::Randwrite => "randwrite",
            Pattern::Read => "read",
            Pattern::Write => "write",
        }
    }
}

/// A workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// For `--only`.
    pub(super) id: &'static str,
    pub(super) about: &'static str,
    pub(super) pattern: Pattern,
    pub(super) block: u32,
    pub(super) depth: u32,
    pub(super) jobs: u32,
    /// The aim, as ratios to the best peer: API over tcp, API over loopback, NBD.
    pub(super) aims: [Option<f64>; 3],
}

const fn row(
    id: &'static str,
    about: &'static str,
    pattern: Pattern,
    [block, depth, jobs]: [u32; 3],
    aims: [Option<f64>; 3],
) -> Row {
    Row {
        id,
        about,
        pattern,
        block,
        depth,
        jobs,
        aims,
    }
}

const SMALL: u32 = 4096;
const LARGE: u32 = 1 << 20;
const NONE: [Option<f64>; 3] = [None; 3];
/// A latency of at most 0.6 is a rate of at least 1.67 at depth 1.
const QD1: [Option<f64>; 3] = [Some(1.67), Some(20.0), Some(1.2)];
const QD32: [Option<f64>; 3] = [Some(3.0), Some(8.0), Some(1.2)];
const SEQ: [Option<f64>; 3] = [Some(2.0), None, Some(1.2)];

const ROWS: [Row; 8] = [
    row(
        "randread-qd1",
        "4 KiB random read, depth 1",
        Pattern::Randread,
        [SMALL, 1, 1],
        QD1,
    ),
    row(
        "randread-qd32",
        "4 KiB random read, depth 32",
        Pattern::Randread,
        [SMALL, 32, 1],
        QD32,
    ),
    row(
        "seqread",
        "1 MiB read, depth 8",
        Pattern::Read,
        [LARGE, 8, 1],
        SEQ,
    ),
    row(
        "randwrite-qd1",
        "4 KiB random write, depth 1",
        Pattern::Randwrite,
        [SMALL, 1, 1],
        QD1,
    ),
    row(
        "randwrite-qd32",
        "4 KiB random write, depth 32",
        Pattern::Randwrite,
        [SMALL, 32, 1],
        QD32,
    ),
    row(
        "seqwrite",
        "1 MiB write, depth 8",
        Pattern::Write,
        [LARGE, 8, 1],
        SEQ,
    ),
    row(
        "randread-jobs8",
        "4 KiB random read, 8 jobs of depth 8",
        Pattern::Randread,
        [SMALL, 8, 8],
        NONE,
    ),
    row(
        "randwrite-jobs8",
        "4 KiB random write, 8 jobs of depth 8",
        Pattern::Randwrite,
        [SMALL, 8, 8],
        NONE,
    ),
];

const fn jobs(id: &'static str, about: &'static str, count: u32) -> Row {
    row(id, about, Pattern::Randread, [SMALL, 4, count], NONE)
}

/// One volume, more and more jobs: where mainline's RNBD falls behind.
const JOBS: [Row; 7] = [
    jobs("x1", "4 KiB random read, depth 4, 1 job", 1),
    jobs("x2", "4 KiB random read, depth 4, 2 jobs", 2),
    jobs("x4", "4 KiB random read, depth 4, 4 jobs", 4),
    jobs("x8", "4 KiB random read, depth 4, 8 jobs", 8),
    jobs("x16", "4 KiB random read, depth 4, 16 jobs", 16),
    jobs("x32", "4 KiB random read, depth 4, 32 jobs", 32),
    jobs("x64", "4 KiB random read, depth 4, 64 jobs", 64),
];

/// The rows of a run.
pub(super) fn rows(quick: bool, many_jobs: bool) -> Vec<Row> {
    match (many_jobs, quick) {
        (true, _) => JOBS.to_vec(),
        (false, true) => ROWS[..3].to_vec(),
        (false, false) => ROWS.to_vec(),
    }
}

/// The row of that name.
pub(super) fn known(id: &str) -> Option<Row> {
    ROWS.iter().chain(&JOBS).find(|row| row.id == id).copied()
}

/// What a generator has seen.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub(in crate::bench) struct Outcome {
    /// Requests.
    pub(in crate::bench) per_second: f64,
    /// Microseconds.
    pub(in crate::bench) p50: f64,
    /// Microseconds.
    pub(in crate::bench) p99: f64,
    /// Of the processor, for a million requests, both ends together.
    pub(in crate::bench) cpu_seconds_per_million: f64,
}

/// Writes the whole volume once: holes would be read from nowhere, by those who know of them.
pub(super) fn fill(bench: &Bench, running: &Running) -> anyhow::Result<()> {
    const FILL: Row = row(
        "fill",
        "the whole volume, once",
        Pattern::Write,
        [LARGE, 8, 1],
        NONE,
    );
    let mut command = command(bench, &running.target, &FILL, 1)?;
    if !matches!(running.target, Target::Api(_)) {
        // Later flags win.
        command.args(["--time_based=0", "--runtime=30"]);
    }
    let limit = Duration::from_secs(40);
    Job::start(command, limit, &bench.scratch)?.finish()?;
    Ok(())
}

/// Loads a system with a row.
pub(super) fn measure(
    bench: &Bench,
    running: &Running,
    row: &Row,
    seconds: u32,
) -> anyhow::Result<Outcome> {
    let before = cpu_of(running);
    let children = children_cpu();
    let limit = Duration::from_secs(u64::from(seconds) + 30);
    let job = Job::start(
        command(bench, &running.target, row, seconds)?,
        limit,
        &bench.scratch,
    )?;
    let text = job.finish()?;
    let cpu = cpu_of(running) - before + children_cpu() - children;
    let mut outcome = match running.target {
        Target::Api(_) => serde_json::from_str(&text).context("our own generator's figures")?,
        _ => fio_outcome(&text)?,
    };
    let millions = outcome.per_second * f64::from(seconds) / 1e6;
    outcome.cpu_seconds_per_million = if millions > 0.0 { cpu / millions } else { 0.0 };
    Ok(outcome)
}

fn command(bench: &Bench, target: &Target, row: &Row, seconds: u32) -> anyhow::Result<Command> {
    if let Target::Api(at) = target {
        let mut command = confined(&bench.exe);
        command.args(["bench", "load", "--pattern", row.pattern.word(), "--json"]);
        command.args([
            "--block",
            &row.block.to_string(),
            "--depth",
            &row.depth.to_string(),
        ]);
        command.args([
            "--jobs",
            &row.jobs.to_string(),
            "--seconds",
            &seconds.to_string(),
        ]);
        command.args([at, &volume()]);
        return Ok(command);
    }
    let fio = find_program("fio").context("not installed: fio")?;
    let mut command = confined(fio);
    command.args([
        "--name=bench",
        "--time_based",
        "--thread",
        "--group_reporting",
        "--output-format=json",
    ]);
    command.args(["--norandommap", "--randrepeat=0", "--refill_buffers=0"]);
    command.arg(format!("--rw={}", row.pattern.word()));
    command.arg(format!("--bs={}", row.block));
    command.arg(format!("--iodepth={}", row.depth));
    command.arg(format!("--numjobs={}", row.jobs));
    command.arg(format!("--runtime={seconds}"));
    command.arg(format!("--size={SIZE}"));
    match target {
        Target::Nbd(uri) => command.arg("--ioengine=nbd").arg(format!("--uri={uri}")),
        Target::File(path) => command
            .args(["--ioengine=libaio", "--direct=1"])
            .arg(format!("--filename={}", path.display())),
        Target::Api(_) => &mut command,
    };
    Ok(command)
}

fn fio_outcome(text: &str) -> anyhow::Result<Outcome> {
    // It may say something before its document.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let document: serde_json::Value = serde_json::from_str(json).context("fio's document")?;
    let job = &document["jobs"][0];
    let side = ["read", "write"].map(|side| &job[side]);
    let side = side
        .into_iter()
        .find(|side| side["total_ios"].as_u64() > Some(0));
    let side = side.context("fio completed no request")?;
    let nanos = |percentile: &str| side["clat_ns"]["percentile"][percentile].as_f64();
    Ok(Outcome {
        per_second: side["iops"].as_f64().context("fio's iops")?,
        p50: nanos("50.000000").context("fio's median")? / 1000.0,
        p99: nanos("99.000000").context("fio's 99th percentile")? / 1000.0,
        cpu_seconds_per_million: 0.0,
    })
}

/// Processor time of the system's processes so far, in seconds.
fn cpu_of(running: &Running) -> f64 {
    let pids = running.services.iter().flat_map(|service| service.pids());
    let daemon = running.pid_file.as_ref().and_then(|file| {
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().parse().ok()
    });
    pids.chain(daemon).map(crate::bench::sys::cpu_seconds).sum()
}

/// Likewise of the generators that have ended.
fn children_cpu() -> f64 {
    crate::bench::sys::children_cpu_seconds()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_says_of_the_side_that_did_something_is_read() {
        let text = r#"fio: hello
            {"jobs": [{"read": {"total_ios": 0},
             "write": {"total_ios": 5, "iops": 12.5,
                       "clat_ns": {"percentile": {"50.000000": 2000, "99.000000": 9000}}}}]}"#;
        let outcome = fio_outcome(text).expect("figures");
        assert_eq!(
            (outcome.per_second, outcome.p50, outcome.p99),
            (12.5, 2.0, 9.0)
        );
        for wrong in ["", "{}", r#"{"jobs": [{"read": {"total_ios": 0}}]}"#] {
            assert!(fio_outcome(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rows_have_names_of_their_own() {
        let rows: Vec<Row> = ROWS.iter().chain(&JOBS).copied().collect();
        for (index, row) in rows.iter().enumerate() {
            assert!(
                rows[..index].iter().all(|other| other.id != row.id),
                "{}",
                row.id
            );
            assert!(known(row.id).is_some());
        }
    }
}
