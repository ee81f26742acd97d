//! A shell script that starts one short program after the other: curl and a client in Go ask nginx for one page each.

use std::path::PathBuf;

use anyhow::Context as _;

use super::super::trial::{Place, Ran, Reading, Trial, cpu_of_requests};
use super::super::works::Line;
use super::{go, nginx};
use crate::runner::proc::find_program;

/// Programs that a script starts for each second that it should take.
const A_SECOND: f64 = 200.0;

pub(super) fn measure(
    trial: &Trial<'_>,
    kept: &mut Option<PathBuf>,
    line: &Line,
) -> anyhow::Result<Reading> {
    let [program] = line.args else {
        anyhow::bail!("a row without its arguments");
    };
    let (server, port) = nginx::serve(trial, Place::SERVER.on_both_cpus())?;
    let path = || find_program(program).with_context(|| format!("{program} is not installed"));
    let url = format!("http://{}:{port}/index.html", trial.network.reached());
    let call = match *program {
        "curl" => format!("{} -sf -o /dev/null {url}", path()?.display()),
        "go" => format!("{} get {url}", go::with_libc(trial, kept)?),
        _ => path()?.display().to_string(),
    };
    let count = (A_SECOND * trial.bench.seconds).ceil();
    let client = trial.command(
        Place::CLIENT.on_both_cpus(),
        "sh",
        &["-c", &script(&call, count)],
    )?;
    let ran = trial.run(&server, client)?;
    reading(line.id, ran, count)
}

/// The script. It prints the time in ns before its first program and after its last one.
fn script(call: &str, count: f64) -> String {
    format!(
        "date +%s%N; i=0; while [ $i -lt {count} ]; do {call} || exit 1; i=$((i + 1)); done; date +%s%N"
    )
}

fn reading(row: &'static str, ran: Ran, count: f64) -> anyhow::Result<Reading> {
    let seconds = seconds_between(&ran.text).with_context(|| ran.text.clone())?;
    let mut values = vec![("rate", "starts/s", count / seconds)];
    values.extend(cpu_of_requests(ran.cpu, count));
    Ok(ran.reading(row, values))
}

/// The time between two lines of `date +%s%N`.
fn seconds_between(text: &str) -> Option<f64> {
    let mut times = text.lines().map(|line| line.trim().parse::<u64>());
    let (first, last) = (times.next()?.ok()?, times.next()?.ok()?);
    (last > first).then(|| (last - first) as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::{script, seconds_between};
    use std::process::Command;

    #[test]
    fn a_script_tells_when_its_first_program_began_and_its_last_one_ended() {
        let run = |call| Command::new("sh").args(["-c", &script(call, 3.0)]).output();
        let ran = run("sleep 0.02").expect("it runs");
        let text = String::from_utf8(ran.stdout).expect("text");
        let seconds = seconds_between(&text).expect(&text);
        assert!((0.06..30.0).contains(&seconds), "{seconds}");
        let ran = run("false").expect("it runs");
        assert_eq!(ran.status.code(), Some(1));
        assert_eq!(seconds_between(&String::from_utf8_lossy(&ran.stdout)), None);
    }
}
