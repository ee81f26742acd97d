//! haproxy between wrk and nginx: three programs and two hops on two CPUs. It has as many threads as it may use CPUs, and
//! keeps its connections to nginx.

use std::fs;

use super::super::trial::{Address, Place, Reading, Trial};
use super::super::works::Line;
use super::nginx;
use crate::runner::proc::free_port;

/// What is asked for.
const PAGE: &str = "index.html";

pub(super) fn measure(trial: &Trial<'_>, line: &Line) -> anyhow::Result<Reading> {
    let [threads, connections] = line.args else {
        anyhow::bail!("a row without its arguments");
    };
    let (nginx, backend) = nginx::serve(trial, Place::SERVER.on_both_cpus())?;
    let port = free_port()?;
    let file = trial.bench.scratch.name("haproxy.cfg");
    fs::write(&file, config(trial, port, backend))?;
    let args = ["-db", "-f", &file.to_string_lossy()];
    let haproxy = trial.command(Place::SERVER.on_both_cpus(), "haproxy", &args)?;
    let haproxy = trial.serve(haproxy, &Address::Port(port))?;
    let load = [*threads, *connections, PAGE];
    let wrk = nginx::wrk(trial, Place::CLIENT.on_both_cpus(), port, load)?;
    let ran = trial.run_through(&[&haproxy, &nginx], wrk)?;
    nginx::reading(line.id, PAGE, ran)
}

fn config(trial: &Trial<'_>, port: u16, backend: u16) -> String {
    let (listens, reached) = (trial.network.listens(), trial.network.reached());
    format!(
        "global
    maxconn 1024
defaults
    mode http
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    http-reuse always
listen front
    bind {listens}:{port}
    server back {reached}:{backend}
"
    )
}
