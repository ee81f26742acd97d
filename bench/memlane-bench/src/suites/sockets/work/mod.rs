//! The drivers of the programs, one file each.

mod connections;
mod embedded;
mod iperf3;
mod nginx;
mod redis;
mod sizes;
mod sockperf;

use super::trial::{Reading, Trial};
use super::works::{By, Line, Side, Work};

pub(in crate::suites) use redis::Rates;

/// Measures some rows of a program in one column. What was read before an error is kept.
pub(in crate::suites) fn measure(
    trial: &Trial<'_>,
    work: &Work,
    lines: &[&'static Line],
    rates: &mut Rates,
    readings: &mut Vec<Reading>,
) -> anyhow::Result<()> {
    let one: fn(&Trial<'_>, &Line) -> anyhow::Result<Reading> = match work.by {
        By::Nginx => return nginx::measure(trial, lines, readings),
        By::Redis => return redis::measure(trial, rates, lines, readings),
        By::Echo => return sizes::measure(trial, "echo", lines, readings),
        By::Stream => return sizes::measure(trial, "stream", lines, readings),
        By::Pair => |trial, line| embedded::pair(trial, trial.side, line),
        By::OneSided => |trial, line| embedded::pair(trial, Side::Tcp, line),
        By::Oversubscribed => embedded::oversubscribed,
        By::Sockperf => sockperf::measure,
        By::Iperf3 => iperf3::measure,
        By::Connections => connections::measure,
    };
    for line in lines {
        readings.push(one(trial, line)?);
    }
    Ok(())
}
