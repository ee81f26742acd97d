//! Requests of 100 bytes at fixed times: the embedded pair asleep most of the time.

use anyhow::Context as _;

use super::super::peer::figures::Paced;
use super::super::trial::{Place, Reading, Trial};
use super::super::works::Line;

/// At fewer requests a second than this, a round of the usual length has too few for a median and a 99th percentile.
const FEW: u32 = 1000;
/// How many times as long a round with so few requests is.
const LONGER: f64 = 4.0;

/// How long a round lasts that has `rate` requests a second, where others last `usual` seconds.
fn seconds(rate: u32, usual: f64) -> f64 {
    if rate < FEW { usual * LONGER } else { usual }
}

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
    let lasts = seconds(rate.parse()?, trial.bench.seconds);
    let (lasts_text, pid) = (lasts.to_string(), server.pid().to_string());
    let args = ["paced-client", "--at", &text, "--seconds", &lasts_text];
    let pace = ["--rate", rate, "--connections", connections];
    let args = [&args[..], &pace, &["--server", &pid]].concat();
    let client = trial.embedded(trial.side, Place::CLIENT, &args);
    let ran = trial.run_for(lasts, &server, client)?;
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
