//! haproxy between wrk and nginx: three programs and two hops on two CPUs. It has as many threads as it may use CPUs, and
//! keeps its connections to nginx. In TCP mode, a connection to nginx belongs to one of wrk's, and both end together: nginx closes
//! after 1,000 requests, as it does by default. The next connection may be another thread's.

use std::fs;

use super::super::trial::{Address, Place, Reading, Trial};
use super::super::works::Line;
use super::nginx;
use crate::runner::proc::free_port;

/// What is asked for.
const PAGE: &str = "index.html";
/// The requests after which nginx closes a connection by default (`keepalive_requests`).
const REQUESTS: u64 = 1000;

pub(super) fn measure(trial: &Trial<'_>, line: &Line) -> anyhow::Result<Reading> {
    let [threads, connections, mode] = line.args else {
        anyhow::bail!("a row without its arguments");
    };
    let place = Place::SERVER.on_both_cpus();
    let (nginx, backend) = match *mode {
        "tcp" => nginx::serve_closing(trial, place, REQUESTS)?,
        _ => nginx::serve(trial, place)?,
    };
    let port = free_port()?;
    let file = trial.bench.scratch.name("haproxy.cfg");
    fs::write(&file, config(trial, mode, [port, backend]))?;
    let args = ["-db", "-f", &file.to_string_lossy()];
    let haproxy = trial.command(place, "haproxy", &args)?;
    let haproxy = trial.serve(haproxy, &Address::Port(port))?;
    let load = [*threads, *connections, PAGE];
    let wrk = nginx::wrk(trial, Place::CLIENT.on_both_cpus(), port, load)?;
    let ran = trial.run_through(&[&haproxy, &nginx], wrk)?;
    nginx::reading(line.id, PAGE, ran)
}

fn config(trial: &Trial<'_>, mode: &str, [port, backend]: [u16; 2]) -> String {
    let reuse = if mode == "http" {
        "http-reuse always"
    } else {
        ""
    };
    let (listens, reached) = (trial.network.listens(), trial.network.reached());
    format!(
        "global
    maxconn 1024
defaults
    mode {mode}
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    {reuse}
listen front
    bind {listens}:{port}
    server back {reached}:{backend}
"
    )
}
