//! How long a connection goes on by TCP after its eighth exchange, and what that costs the agent.

use anyhow::{Context as _, ensure};

use super::rows::Opening;
use crate::runner::record::Figure;
use crate::runner::sys;
use crate::suites::sockets::peer::figures::Opened;
use crate::suites::sockets::trial::{Place, Trial};

/// Processes of one connection each.
const PROCESSES: &str = "100";
/// Connections at a time, where there are many.
const TOGETHER: &str = "64";
/// Percentage of the connections that must get their lane.
const LEAST: u64 = 95;

/// Runs it once. `agent` is the process that is asked, if one is.
pub(super) fn measure(
    trial: &Trial<'_>,
    how: Opening,
    agent: Option<u32>,
) -> anyhow::Result<Vec<Figure>> {
    let (server, there) = trial.serve_embedded("many-server")?;
    let seconds = trial.bench.seconds.to_string();
    let mut args = vec!["opening-client", "--at", &there, "--seconds", &seconds];
    args.extend(match how {
        Opening::First => ["--processes", PROCESSES].as_slice(),
        Opening::Later => &[],
        Opening::Together => &["--together", TOGETHER],
    });
    let cpu = || agent.map_or(0.0, sys::exact_cpu_seconds);
    let before = cpu();
    let client = trial.embedded(trial.side, Place::CLIENT, &args);
    let ran = trial.run(&server, client)?;
    let cpu = cpu() - before;
    let opened: Opened = serde_json::from_str(ran.text.trim())
        .with_context(|| format!("the client said {:?}", ran.text))?;
    figures(how, &opened, agent.map(|_| cpu))
}

fn figures(how: Opening, opened: &Opened, cpu: Option<f64>) -> anyhow::Result<Vec<Figure>> {
    let mut took = opened.took_ns.clone();
    took.sort_unstable();
    let (got, all) = (took.len() as u64, opened.connections);
    ensure!(
        got > 0 && got * 100 >= all * LEAST,
        "only {got} of {all} connections have got their lane"
    );
    let at = |percent: usize| took[(took.len() - 1) * percent / 100] as f64 / 1e3;
    let mut figures: Vec<Figure> = vec![("p50", "µs", at(50)), ("p99", "µs", at(99))];
    // Most of a process's time is its beginning.
    if how != Opening::First {
        figures.push(("rate", "conn/s", got as f64 / opened.seconds));
    }
    let for_thousand = |seconds: f64| seconds * 1e3 / (all as f64 / 1e3);
    figures.extend(cpu.map(|cpu| ("agent_cpu", "ms/1,000 connections", for_thousand(cpu))));
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_told_only_if_nearly_all_connections_have_got_their_lane() {
        let opened = |connections| Opened {
            connections,
            took_ns: (1..=100).rev().map(|n| n * 1000).collect(),
            seconds: 0.5,
        };
        let told = figures(Opening::Later, &opened(100), Some(0.005)).expect("figures");
        let values = [
            ("p50", "µs", 50.0),
            ("p99", "µs", 99.0),
            ("rate", "conn/s", 200.0),
            ("agent_cpu", "ms/1,000 connections", 50.0),
        ];
        assert_eq!(told, values);
        assert_eq!(
            figures(Opening::First, &opened(105), None)
                .expect("two")
                .len(),
            2
        );
        let error = figures(Opening::Later, &opened(110), None).expect_err("too few");
        assert!(error.to_string().contains("only 100 of 110"), "{error}");
    }
}
