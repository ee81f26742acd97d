//! Caddy between wrk and nginx: three programs and two hops on two CPUs.

use std::fs;

use super::super::lines::CADDY;
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
    let folder = trial.bench.scratch.name("caddy");
    fs::create_dir(&folder)?;
    let file = folder.join("Caddyfile");
    fs::write(&file, config(trial, port, backend))?;
    let file = file.to_string_lossy();
    let args = ["run", "--adapter", "caddyfile", "--config", &file];
    let mut caddy = trial.command(Place::SERVER.on_both_cpus(), CADDY, &args)?;
    // Where it keeps certificates, of which it has none here.
    caddy.envs([("HOME", &folder), ("XDG_DATA_HOME", &folder)]);
    let caddy = trial.serve(caddy, &Address::Port(port))?;
    let load = [*threads, *connections, PAGE];
    let wrk = nginx::wrk(trial, Place::CLIENT.on_both_cpus(), port, load)?;
    let ran = trial.run_through(&[&caddy, &nginx], wrk)?;
    nginx::reading(line.id, PAGE, ran)
}

fn config(trial: &Trial<'_>, port: u16, backend: u16) -> String {
    let (listens, reached) = (trial.network.listens(), trial.network.reached());
    format!(
        "{{
    admin off
    auto_https off
    persist_config off
}}
http://:{port} {{
    bind {listens}
    reverse_proxy {reached}:{backend} {{
        transport http {{
            keepalive_idle_conns_per_host 1024
        }}
    }}
}}
"
    )
}
