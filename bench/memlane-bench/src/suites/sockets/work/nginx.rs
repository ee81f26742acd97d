//! nginx and wrk: one worker, keep-alive, a page the size of nginx's own welcome
//! page, from a file (which nginx opens, asks for its size, reads and closes for each
//! request) and from nginx's memory (its configuration: what the transport alone brings);
//! and a file of 16 MiB, of which the bytes count.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::super::lines::CLOSE;
use super::super::trial::{
    Address, Place, Ran, Reading, Trial, cpu_of_bytes, cpu_of_requests, of_requests,
};
use super::super::works::Line;
use crate::runner::parse;
use crate::runner::proc::{Service, free_port};

const PAGE_BYTES: usize = 612;
/// The page that comes from nginx's memory.
const MEMORY: &str = "memory";
/// The page that is one: a file of that size.
const LARGE: &str = "large.bin";
const LARGE_BYTES: usize = 16 << 20;

pub(super) fn measure(
    trial: &Trial<'_>,
    program: &str,
    lines: &[&Line],
    readings: &mut Vec<Reading>,
) -> anyhow::Result<()> {
    // nginx with musl has no module that answers from memory, and no row of it asks.
    let from_memory = lines.iter().any(|line| line.args.contains(&MEMORY));
    let offer = Offer {
        from_memory,
        ..Offer::FILES
    };
    let (server, port) = serve_by(trial, program, Place::SERVER, offer)?;
    for line in lines {
        let [threads, connections, path, more @ ..] = line.args else {
            anyhow::bail!("a row without its arguments");
        };
        let load = [*threads, *connections, *path];
        let mut client = wrk(trial, Place::CLIENT, port, load)?;
        if more == [CLOSE] {
            client.args(["-H", "Connection: close"]);
        }
        let ran = trial.run(&server, client)?;
        readings.push(reading(line.id, path, ran)?);
    }
    Ok(())
}

/// What nginx offers.
#[derive(Clone, Copy)]
struct Offer {
    /// The page that comes from its memory, too.
    from_memory: bool,
    /// The number of requests after which it closes a connection.
    requests: u64,
}

impl Offer {
    const FILES: Offer = Offer {
        from_memory: false,
        requests: 1_000_000_000,
    };
}

/// Starts nginx, with its pages.
pub(super) fn serve(trial: &Trial<'_>, place: Place) -> anyhow::Result<(Service, u16)> {
    serve_by(trial, "nginx", place, Offer::FILES)
}

/// Starts nginx. It closes a connection after this number of requests.
pub(super) fn serve_closing(
    trial: &Trial<'_>,
    place: Place,
    requests: u64,
) -> anyhow::Result<(Service, u16)> {
    let offer = Offer {
        requests,
        ..Offer::FILES
    };
    serve_by(trial, "nginx", place, offer)
}

/// Starts an nginx that may have been built otherwise.
fn serve_by(
    trial: &Trial<'_>,
    program: &str,
    place: Place,
    offer: Offer,
) -> anyhow::Result<(Service, u16)> {
    let port = free_port()?;
    let folder = site(
        &trial.bench.scratch.name("nginx"),
        (trial.network.listens(), port),
        offer,
    )?;
    let (prefix, config) = (text(&folder)?, text(&folder.join("nginx.conf"))?);
    let args = ["-p", &prefix, "-c", &config, "-e", "stderr"];
    let server = trial.command(place, program, &args)?;
    Ok((trial.serve(server, &Address::Port(port))?, port))
}

/// wrk, with its threads, its connections and the page that it asks for.
pub(super) fn wrk(
    trial: &Trial<'_>,
    place: Place,
    port: u16,
    load: [&str; 3],
) -> anyhow::Result<Command> {
    wrk_for(trial, place, (port, trial.bench.seconds), load)
}

/// The same, for so many seconds, of which it takes whole ones.
pub(super) fn wrk_for(
    trial: &Trial<'_>,
    place: Place,
    (port, seconds): (u16, f64),
    [threads, connections, path]: [&str; 3],
) -> anyhow::Result<Command> {
    let duration = format!("{:.0}s", seconds.ceil().max(1.0));
    let url = format!("http://{}:{port}/{path}", trial.network.reached());
    let mut args = vec!["-t", threads, "-c", connections, "-d", &duration];
    args.extend(["--latency", &url]);
    trial.command(place, "wrk", &args)
}

/// What wrk has told.
pub(super) fn reading(row: &'static str, path: &str, ran: Ran) -> anyhow::Result<Reading> {
    let run = parse::wrk(&ran.text).with_context(|| row)?;
    let mut values = Vec::new();
    if path == LARGE {
        let bytes = LARGE_BYTES as f64;
        values.push(("throughput", "MB/s", run.rate * bytes / 1e6));
        values.extend(cpu_of_bytes(ran.cpu, run.requests * bytes));
    } else {
        values.extend(of_requests("req/s", [run.rate, run.p50, run.p99]));
        values.extend(cpu_of_requests(ran.cpu, run.requests));
    }
    Ok(ran.reading(row, values))
}

fn text(path: &Path) -> anyhow::Result<String> {
    let path = path
        .to_str()
        .context("the temporary folder's name is not UTF-8")?;
    Ok(path.to_owned())
}

fn site(folder: &Path, at: (&str, u16), offer: Offer) -> anyhow::Result<PathBuf> {
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let page = folder.join("index.html");
    fs::write(&page, page_text())?;
    fs::set_permissions(&page, fs::Permissions::from_mode(0o644))?;
    let large = folder.join(LARGE);
    fs::write(&large, vec![7; LARGE_BYTES])?;
    fs::set_permissions(&large, fs::Permissions::from_mode(0o644))?;
    fs::write(folder.join("nginx.conf"), config(&text(folder)?, at, offer))?;
    Ok(folder.to_owned())
}

fn page_text() -> String {
    let mut page = "memlane ".repeat(PAGE_BYTES / 8 + 1);
    page.truncate(PAGE_BYTES);
    page
}

fn config(folder: &str, (address, port): (&str, u16), offer: Offer) -> String {
    let page = page_text();
    let from_memory = format!("location = /{MEMORY} {{ return 200 '{page}'; }}");
    let from_memory = if offer.from_memory { &*from_memory } else { "" };
    let requests = offer.requests;
    format!(
        "worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr error;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  sendfile on;
  keepalive_timeout 65;
  keepalive_requests {requests};
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen {address}:{port} backlog=4096;
    root {folder};
    {from_memory}
  }}
}}
"
    )
}
