//! iperf3: one stream, as in the published tables, or more.

use super::super::trial::{Address, Place, Reading, Trial, cpu_of_bytes};
use super::super::works::Line;
use crate::runner::parse;
use crate::runner::proc::free_port;

pub(super) fn measure(trial: &Trial<'_>, line: &Line) -> anyhow::Result<Reading> {
    let port = free_port()?;
    let (number, seconds) = (port.to_string(), trial.whole_seconds());
    let args = ["-s", "-B", trial.network.listens(), "-p", &number];
    let server = trial.command(Place::SERVER, "iperf3", &args)?;
    let server = trial.serve(server, &Address::Port(port))?;
    let mut args = vec!["-c", trial.network.reached(), "-p", &number];
    args.extend(["-t", &seconds, "-J"]);
    args.extend(line.args);
    let ran = trial.run(&server, trial.command(Place::CLIENT, "iperf3", &args)?)?;
    let rate = parse::iperf3_gbits(&ran.text)?;
    let mut values = vec![("throughput", "Gbit/s", rate)];
    values.extend(cpu_of_bytes(ran.cpu, parse::iperf3_bytes(&ran.text)?));
    Ok(ran.reading(line.id, values))
}
