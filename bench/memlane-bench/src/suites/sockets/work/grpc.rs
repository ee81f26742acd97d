//! gRPC's implementation in Go: calls of 100 bytes, one at a time on one connection.

use super::super::lines::GRPC;
use super::super::trial::{Address, Place, Reading, Trial};
use super::super::works::Line;
use super::embedded;
use crate::runner::proc::free_port;

pub(super) fn measure(trial: &Trial<'_>, line: &Line) -> anyhow::Result<Reading> {
    let port = free_port()?;
    let listens = format!("{}:{port}", trial.network.listens());
    let server = trial.command(Place::SERVER, GRPC, &["serve", &listens])?;
    let server = trial.serve(server, &Address::Port(port))?;
    let reached = format!("{}:{port}", trial.network.reached());
    let seconds = trial.bench.seconds.to_string();
    let client = trial.command(Place::CLIENT, GRPC, &["ask", &reached, &seconds])?;
    embedded::reading(line.id, "msg/s", trial.run(&server, client)?)
}
