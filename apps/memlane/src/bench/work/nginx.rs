//! nginx and wrk: one worker, keep-alive, a page the size of nginx's own welcome page.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::bench::parse;
use crate::bench::proc::free_port;
use crate::bench::trial::{Metric, Place, Reading, Trial, Workload};

const CONNECTIONS: [(&str, &str); 4] = [
    ("nginx-1", "1"),
    ("nginx-16", "16"),
    ("nginx-64", "64"),
    ("nginx-128", "128"),
];
const PAGE_BYTES: usize = 612;

pub(crate) struct Nginx;

impl Workload for Nginx {
    fn group(&self) -> &'static str {
        "nginx"
    }

    fn rows(&self) -> Vec<&'static str> {
        CONNECTIONS.iter().map(|(row, _)| *row).collect()
    }

    fn programs(&self) -> &'static [&'static str] {
        &["nginx", "wrk"]
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let port = free_port()?;
        let folder = site(&trial.setting.scratch.name("nginx"), port)?;
        let (prefix, config) = (text(&folder)?, text(&folder.join("nginx.conf"))?);
        let args = ["-p", &prefix, "-c", &config, "-e", "stderr"];
        let server = trial.serve(trial.command(Place::Server, "nginx", &args)?, port)?;
        let url = format!("http://127.0.0.1:{port}/index.html");
        let duration = format!("{}s", trial.whole_seconds());
        for (row, connections) in CONNECTIONS {
            if !trial.wants(row) {
                continue;
            }
            let args = [
                "-t",
                "1",
                "-c",
                connections,
                "-d",
                &duration,
                "--latency",
                &url,
            ];
            let wrk = trial.command(Place::Client, "wrk", &args)?;
            let (printed, lane) = trial.run(&server, wrk)?;
            let run = parse::wrk(&printed).with_context(|| row.to_owned())?;
            readings.push(Reading {
                row,
                values: vec![
                    (Metric::rate("req/s"), run.rate),
                    (Metric::latency("p50"), run.p50),
                    (Metric::latency("p99"), run.p99),
                ],
                lane,
            });
        }
        Ok(())
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    let path = path
        .to_str()
        .context("the temporary folder's name is not UTF-8")?;
    Ok(path.to_owned())
}

fn site(folder: &Path, port: u16) -> anyhow::Result<PathBuf> {
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let page = folder.join("index.html");
    fs::write(
        &page,
        "memlane\n"
            .repeat(PAGE_BYTES / 8 + 1)
            .split_at(PAGE_BYTES)
            .0,
    )?;
    fs::set_permissions(&page, fs::Permissions::from_mode(0o644))?;
    fs::write(folder.join("nginx.conf"), config(&text(folder)?, port))?;
    Ok(folder.to_owned())
}

fn config(folder: &str, port: u16) -> String {
    format!(
        "worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
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
  server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"
    )
}
