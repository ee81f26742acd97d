//! Loads a system, by fio or by our own generator, and reads what they say.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::rows::{FILL, Outcome, Work};
use super::running::{Bench, Running, Target, volume};
use crate::runner::proc::{Job, confined, family, find_program};
use crate::runner::sys;
use crate::spread::Spread;

/// What a program may take beyond the time of its measurement.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes the whole volume once: holes would be read from nowhere, by those who know of them.
pub(super) fn fill(bench: &Bench, running: &Running) -> anyhow::Result<()> {
    let seconds = PATIENCE.as_secs_f64();
    let mut command = command(bench, &running.target, &FILL, seconds)?;
    match running.target {
        Target::Api { .. } => {
            let requests = bench.size.div_ceil(u64::from(FILL.block));
            command.args(["--requests", &requests.to_string()])
        }
        // Later flags win.
        _ => command.arg("--time_based=0"),
    };
    Job::start(command, 2 * PATIENCE, &bench.scratch)?.finish()?;
    Ok(())
}

/// Loads a system with a row.
pub(super) fn measure(bench: &Bench, running: &Running, row: &Work) -> anyhow::Result<Outcome> {
    let seconds = bench.seconds;
    let command = command(bench, &running.target, row, seconds)?;
    let before = cpu_of(running) + sys::children_cpu_seconds();
    let limit = Duration::from_secs_f64(seconds) + PATIENCE;
    let job = Job::start(command, limit, &bench.scratch)?;
    let (mut outcome, idle): (Outcome, f64) = match running.target {
        Target::Api { .. } => (job.told()?, 0.0),
        _ => (fio_outcome(&job.finish()?)?, bench.fio_cpu),
    };
    let cpu = cpu_of(running) + sys::children_cpu_seconds() - before;
    outcome.cpu_seconds_per_million = per_million(cpu - idle, outcome.requests);
    Ok(outcome)
}

#[allow(clippy::cast_precision_loss)] // 2^53 requests are not answered in a measurement
fn per_million(cpu: f64, requests: u64) -> f64 {
    match requests {
        0 => 0.0,
        _ => cpu.max(0.0) * 1e6 / requests as f64,
    }
}

/// Processor seconds that fio takes to begin and end, whatever it measures (it looks at the clocks of all CPUs first).
pub(super) fn fixed_cost(scratch: &crate::runner::proc::Scratch) -> anyhow::Result<f64> {
    let Some(fio) = find_program("fio") else {
        return Ok(0.0);
    };
    let mut costs = Vec::new();
    for _ in 0..3 {
        let mut command = confined(&fio);
        command.args(["--name=nothing", "--thread", "--ioengine=null", "--rw=read"]);
        command.args(["--size=4k", "--output-format=json"]);
        let before = sys::children_cpu_seconds();
        Job::start(command, PATIENCE, scratch)?.finish()?;
        costs.push(sys::children_cpu_seconds() - before);
    }
    Ok(Spread::of(&costs).map_or(0.0, |costs| costs.median))
}

fn command(bench: &Bench, target: &Target, row: &Work, seconds: f64) -> anyhow::Result<Command> {
    match target {
        Target::Api { at, device } => {
            let mut command = own(bench, at, row, seconds);
            if let Some(device) = device {
                command.arg("--device").arg(device);
            }
            Ok(command)
        }
        _ => by_fio(target, row, (bench.size, seconds)),
    }
}

/// Our own generator.
fn own(bench: &Bench, at: &str, row: &Work, seconds: f64) -> Command {
    let mut command = confined(&bench.programs.lanes);
    command.args(["peer", "load", "--pattern", row.pattern.word(), "--json"]);
    let numbers = [
        ("--block", row.block),
        ("--depth", row.depth),
        ("--jobs", row.jobs),
        ("--connections", connections(row)),
    ];
    for (flag, number) in numbers {
        command.args([flag, &number.to_string()]);
    }
    command.args(["--seconds", &seconds.to_string()]);
    command.args([at, &volume(bench.size)]);
    command
}

/// Of each path: one for each of the client's CPUs that has a job, as `memlane map` does it.
fn connections(row: &Work) -> u32 {
    let cpus = sys::allowed_cpus().len();
    row.jobs.min(u32::try_from(cpus).unwrap_or(1)).max(1)
}

/// fio with a row; `size`: bytes of the volume that it uses.
pub(in crate::suites) fn by_fio(
    target: &Target,
    row: &Work,
    (size, seconds): (u64, f64),
) -> anyhow::Result<Command> {
    let fio = find_program("fio").context("not installed: fio")?;
    let mut command = confined(fio);
    command.args(["--name=bench", "--time_based", "--thread"]);
    command.args(["--group_reporting", "--output-format=json"]);
    command.args(["--norandommap", "--randrepeat=0", "--refill_buffers=0"]);
    // From the call that begins a request to its end, whichever half of it an engine calls submission.
    command.args(["--lat_percentiles=1", "--clat_percentiles=0"]);
    command.arg(format!("--rw={}", row.pattern.word()));
    command.arg(format!("--bs={}", row.block));
    command.arg(format!("--iodepth={}", row.depth));
    command.arg(format!("--numjobs={}", row.jobs));
    command.arg(format!("--runtime={:.0}ms", seconds * 1000.0));
    command.arg(format!("--size={size}"));
    match target {
        Target::Nbd(uri) => command.arg("--ioengine=nbd").arg(format!("--uri={uri}")),
        Target::File(path) => command
            .args(["--ioengine=libaio", "--direct=1"])
            .arg(format!("--filename={}", path.display())),
        Target::Engine {
            library,
            at,
            volume,
        } => command
            .arg(format!("--ioengine=external:{}", library.display()))
            .arg(format!("--address={at}"))
            .arg(format!("--connections={}", connections(row)))
            .arg(format!("--volume={volume}")),
        Target::Api { .. } => &mut command,
    };
    Ok(command)
}

/// What fio's document says of the side, reads or writes, that did something.
fn side(text: &str) -> anyhow::Result<serde_json::Value> {
    // It may say something before its document.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let document: serde_json::Value = serde_json::from_str(json).context("fio's document")?;
    let job = &document["jobs"][0];
    let error = job["error"].as_i64().unwrap_or(0);
    anyhow::ensure!(error == 0, "fio's requests failed with errno {error}");
    let did = |side: &&serde_json::Value| side["total_ios"].as_u64() > Some(0);
    let sides = [&job["read"], &job["write"]];
    let side = sides.into_iter().find(did);
    side.context("fio completed no request").cloned()
}

/// How long the slowest request took, in milliseconds, by fio's document.
pub(in crate::suites) fn slowest_ms(text: &str) -> anyhow::Result<f64> {
    let nanos = side(text)?["lat_ns"]["max"].as_f64();
    Ok(nanos.context("fio's longest latency")? / 1e6)
}

/// The figures in fio's document.
pub(in crate::suites) fn fio_outcome(text: &str) -> anyhow::Result<Outcome> {
    let side = side(text)?;
    let micros = |percentile: &str| {
        let nanos = side["lat_ns"]["percentile"][percentile].as_f64();
        nanos.map(|nanos| nanos / 1000.0)
    };
    Ok(Outcome {
        requests: side["total_ios"].as_u64().unwrap_or(0),
        per_second: side["iops"].as_f64().context("fio's iops")?,
        p50: micros("50.000000").context("fio's median")?,
        p99: micros("99.000000").context("fio's 99th percentile")?,
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
    let daemons = daemon.into_iter().flat_map(family);
    pids.chain(daemons).map(sys::cpu_seconds).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_says_of_the_side_that_did_something_is_read() {
        let text = r#"fio: hello
            {"jobs": [{"error": 0, "read": {"total_ios": 0},
             "write": {"total_ios": 5, "iops": 12.5,
                       "lat_ns": {"max": 8000000, "percentile": {"50.000000": 2000, "99.000000": 9000}}}}]}"#;
        let outcome = fio_outcome(text).expect("figures");
        assert_eq!(
            (
                outcome.requests,
                outcome.per_second,
                outcome.p50,
                outcome.p99
            ),
            (5, 12.5, 2.0, 9.0)
        );
        assert_eq!(slowest_ms(text).expect("a latency"), 8.0);
    }

    #[test]
    fn a_document_without_figures_or_with_an_error_is_none() {
        let percentiles = r#""lat_ns": {"percentile": {"50.000000": 2000}}"#;
        let job = |error: u32, ios: u32, rest: &str| {
            format!(
                r#"{{"jobs": [{{"error": {error}, "read": {{"total_ios": {ios}, "iops": 1.0, {rest}}}}}]}}"#
            )
        };
        let wrong = [
            (String::new(), "document"),
            ("{}".into(), "no request"),
            (job(0, 0, percentiles), "no request"),
            (job(5, 9, percentiles), "errno 5"),
            (job(0, 9, percentiles), "99th"),
            (job(0, 9, r#""x": 1"#), "median"),
        ];
        for (text, why) in wrong {
            let error = fio_outcome(&text).expect_err(&text);
            assert!(format!("{error:#}").contains(why), "{error:#}");
        }
    }

    #[test]
    fn processor_time_is_told_for_a_million_requests() {
        assert_eq!(per_million(0.5, 250_000), 2.0);
        assert_eq!((per_million(0.5, 0), per_million(-0.1, 7)), (0.0, 0.0));
    }
}
