//! iperf3, one stream, as in the published tables.

use super::super::trial::{Address, Metric, Place, Reading, Side, Trial, Workload, cpu_of_bytes};
use crate::runner::parse;
use crate::runner::proc::free_port;

pub(super) struct Iperf3;

impl Workload for Iperf3 {
    fn group(&self) -> &'static str {
        "iperf3"
    }

    fn rows(&self) -> Vec<&'static str> {
        vec!["iperf3"]
    }

    fn programs(&self) -> &'static [&'static str] {
        &["iperf3"]
    }

    fn sides(&self) -> &'static [Side] {
        &Side::OF_TCP
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let port = free_port()?;
        let (number, seconds) = (port.to_string(), trial.whole_seconds());
        let args = ["-s", "-B", "127.0.0.1", "-p", &number];
        let server = trial.command(Place::Server, "iperf3", &args)?;
        let server = trial.serve(server, &Address::Port(port))?;
        let args = ["-c", "127.0.0.1", "-p", &number, "-t", &seconds, "-J"];
        let ran = trial.run(&server, trial.command(Place::Client, "iperf3", &args)?)?;
        let rate = parse::iperf3_gbits(&ran.text)?;
        let mut values = vec![(Metric::throughput("Gbit/s"), rate)];
        values.extend(cpu_of_bytes(ran.cpu, parse::iperf3_bytes(&ran.text)?));
        readings.push(ran.reading("iperf3", values));
        Ok(())
    }
}
