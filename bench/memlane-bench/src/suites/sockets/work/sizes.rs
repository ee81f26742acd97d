//! One connection, messages and writes from 1 byte to 4 MiB in steps of four: netperf's TCP_RR and TCP_STREAM, so to
//! speak, by the embedded pair.

use anyhow::Context as _;

use super::super::peer::figures::Sized;
use super::super::trial::{Place, Reading, Trial, cpu_of_bytes, cpu_of_requests};
use super::super::works::{Line, size_seconds};
use crate::runner::record::Figure;

/// A run for each size: so each tells by itself which lane it took.
pub(super) fn measure(
    trial: &Trial<'_>,
    kind: &str,
    lines: &[&Line],
    readings: &mut Vec<Reading>,
) -> anyhow::Result<()> {
    let (server, text) = trial.serve_embedded("sizes-server")?;
    let seconds = size_seconds(trial.bench.seconds).to_string();
    for line in lines {
        let bytes = line.at.context("a row without its size")?.to_string();
        let mut args = vec!["sizes-client", "--at", &text, "--seconds", &seconds];
        args.extend(["--kind", kind, "--bytes", &bytes]);
        let ran = trial.run(&server, trial.embedded(trial.side, Place::CLIENT, &args))?;
        let told: Vec<Sized> = serde_json::from_str(ran.text.trim())
            .with_context(|| format!("the embedded client said {:?}", ran.text))?;
        let told = told.first().context("the embedded client told nothing")?;
        readings.push(ran.reading(line.id, values(told)));
    }
    Ok(())
}

fn values(told: &Sized) -> Vec<Figure> {
    let carried = told.bytes_per_second * told.seconds;
    let cpu = told.cpu_seconds.unwrap_or_default();
    let mut values = Vec::new();
    match (told.p50_ns, told.p99_ns) {
        (Some(p50), Some(p99)) => {
            values.push(("p50", "µs", p50 / 1e3));
            values.push(("p99", "µs", p99 / 1e3));
            values.extend(cpu_of_requests(cpu, carried / told.bytes as f64));
        }
        _ => {
            let rate = told.bytes_per_second / 1e6;
            values.push(("throughput", "MB/s", rate));
            values.extend(cpu_of_bytes(cpu, carried));
        }
    }
    values
}
