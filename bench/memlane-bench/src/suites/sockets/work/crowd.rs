//! Many streams at once to one process, by the embedded pair.

use anyhow::Context as _;

use super::super::peer::figures::Sized;
use super::super::trial::{Place, Reading, Trial, cpu_of_bytes};
use super::super::works::Line;

/// Each stream first fills the kernel's buffers, 4 MB or so. So long runs are not about these alone.
const OPENED_IN_A_SECOND: f64 = 200.0;

pub(super) fn measure(trial: &Trial<'_>, line: &Line) -> anyhow::Result<Reading> {
    let streams = line.at.context("a row without its number")?;
    let (server, text) = trial.serve_embedded("crowd-server")?;
    let seconds = trial.bench.seconds + streams as f64 / OPENED_IN_A_SECOND;
    let (told, streams) = (seconds.to_string(), streams.to_string());
    let args = [
        "crowd-client",
        "--at",
        &text,
        "--seconds",
        &told,
        "--streams",
        &streams,
    ];
    let client = trial.embedded(trial.side, Place::CLIENT, &args);
    let ran = trial.run_for(seconds, &server, client)?;
    let told: Sized = serde_json::from_str(ran.text.trim())
        .with_context(|| format!("the embedded client said {:?}", ran.text))?;
    let mut values = vec![("throughput", "MB/s", told.bytes_per_second / 1e6)];
    values.extend(cpu_of_bytes(ran.cpu, told.bytes_per_second * told.seconds));
    Ok(ran.reading(line.id, values))
}
