//! iperf3, one stream, as in the published tables.

use crate::bench::parse;
use crate::bench::proc::free_port;
use crate::bench::trial::{Metric, Place, Reading, Trial, Workload};

pub(crate) struct Iperf3;

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

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let port = free_port()?;
        let (number, seconds) = (port.to_string(), trial.whole_seconds());
        let args = ["-s", "-B", "127.0.0.1", "-p", &number];
        let server = trial.serve(trial.command(Place::Server, "iperf3", &args)?, port)?;
        let args = ["-c", "127.0.0.1", "-p", &number, "-t", &seconds, "-J"];
        let (text, lane) = trial.run(&server, trial.command(Place::Client, "iperf3", &args)?)?;
        readings.push(Reading {
            row: "iperf3",
            values: vec![(Metric::throughput("Gbit/s"), parse::iperf3_gbits(&text)?)],
            lane,
        });
        Ok(())
    }
}
