//! Requests of 100 bytes at fixed times: the embedded pair asleep most of the time.

use anyhow::Context as _;

use super::super::peer::figures::Paced;
use super::super::trial::{Place, Reading, Trial};
use super::super::works::Line;

pub(super) fn measure(trial: &Trial<'_>, line: &Line) -> anyhow::Result<Reading> {
    let [rate, connections] = line.args else {
        anyhow::bail!("a row without its arguments");
    };
    // One connection is waited for by a blocking recv, several by epoll.
    let server = if *connections == "1" {
        "server"
    } else {
        "many-server"
    };
    let (server, text) = trial.serve_embedded(server)?;
    let (seconds, pid) = (trial.bench.seconds.to_string(), server.pid().to_string());
    let args = ["paced-client", "--at", &text, "--seconds", &seconds];
    let pace = ["--rate", rate, "--connections", connections];
    let args = [&args[..], &pace, &["--server", &pid]].concat();
    let ran = trial.run(&server, trial.embedded(trial.side, Place::CLIENT, &args))?;
    let told: Paced = serde_json::from_str(ran.text.trim())
        .with_context(|| format!("the embedded client said {:?}", ran.text))?;
    let [p50, p99] = [told.p50_ns, told.p99_ns].map(|ns| ns as f64 / 1e3);
    let mut values = vec![("p50", "µs", p50), ("p99", "µs", p99)];
    // To the nanosecond: so a few milliseconds are enough.
    let millions = told.requests as f64 / 1e6;
    let cpu = told.cpu_seconds.filter(|_| millions > 0.0);
    values.extend(cpu.map(|seconds| ("cpu", "s/M requests", seconds / millions)));
    Ok(ran.reading(line.id, values))
}
