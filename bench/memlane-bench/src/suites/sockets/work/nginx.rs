//! nginx and wrk: one worker, keep-alive, a page the size of nginx's own welcome
//! page, from a file (which nginx opens, asks for its size, reads and closes for each
//! request) and from nginx's memory (its configuration: what the transport alone brings).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::super::trial::{Address, Place, Reading, Trial, cpu_of_requests, of_requests};
use super::super::works::Line;
use crate::runner::parse;
use crate::runner::proc::free_port;

const PAGE_BYTES: usize = 612;

pub(super) fn measure(
    trial: &Trial<'_>,
    lines: &[&Line],
    readings: &mut Vec<Reading>,
) -> anyhow::Result<()> {
    let port = free_port()?;
    let folder = site(
        &trial.bench.scratch.name("nginx"),
        (trial.network.listens(), port),
    )?;
    let (prefix, config) = (text(&folder)?, text(&folder.join("nginx.conf"))?);
    let args = ["-p", &prefix, "-c", &config, "-e", "stderr"];
    let server = trial.command(Place::SERVER, "nginx", &args)?;
    let server = trial.serve(server, &Address::Port(port))?;
    let duration = format!("{}s", trial.whole_seconds());
    for line in lines {
        let [threads, connections, path] = line.args else {
            anyhow::bail!("a row without its arguments");
        };
        let url = format!("http://{}:{port}/{path}", trial.network.reached());
        let mut args = vec!["-t", threads, "-c", connections, "-d", &duration];
        args.extend(["--latency", &url]);
        let wrk = trial.command(Place::CLIENT, "wrk", &args)?;
        let ran = trial.run(&server, wrk)?;
        let run = parse::wrk(&ran.text).with_context(|| line.id)?;
        let mut values = of_requests("req/s", [run.rate, run.p50, run.p99]);
        values.extend(cpu_of_requests(ran.cpu, run.requests));
        readings.push(ran.reading(line.id, values));
    }
    Ok(())
}

fn text(path: &Path) -> anyhow::Result<String> {
    let path = path
        .to_str()
        .context("the temporary folder's name is not UTF-8")?;
    Ok(path.to_owned())
}

fn site(folder: &Path, at: (&str, u16)) -> anyhow::Result<PathBuf> {
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let page = folder.join("index.html");
    let text_of_page = page_text();
    fs::write(&page, &text_of_page)?;
    fs::set_permissions(&page, fs::Permissions::from_mode(0o644))?;
    fs::write(
        folder.join("nginx.conf"),
        config(&text(folder)?, at, &text_of_page),
    )?;
    Ok(folder.to_owned())
}

fn page_text() -> String {
    let mut page = "memlane ".repeat(PAGE_BYTES / 8 + 1);
    page.truncate(PAGE_BYTES);
    page
}

fn config(folder: &str, (address, port): (&str, u16), page: &str) -> String {
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
  keepalive_requests 1000000000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen {address}:{port} backlog=4096;
    root {folder};
    location = /memory {{ return 200 '{page}'; }}
  }}
}}
"
    )
}
