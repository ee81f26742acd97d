//! How a row is measured: a server in a guest, and its client where the column says.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::computer::{Computer, Machine};
use super::rows::{Column, Row};
use super::scene::Scene;
use crate::runner::record::Figure;
use crate::runner::{lane, parse};
use crate::suites::sockets::trial::{Reading, of_requests};

/// Tries of a server to listen, a tenth of a second each.
const TRIES: u32 = 600;
/// Requests that tell how many make up the time asked for.
const PROBE: f64 = 2000.0;

/// Measures a row in a column. `port` is one that no server of this run has had.
///
/// # Errors
/// What went wrong.
pub(super) fn measure(
    scene: &mut Scene<'_>,
    column: Column,
    (row, seconds): (Row, f64),
    port: u16,
) -> anyhow::Result<Reading> {
    let under = match column.system.ours {
        true => "memlane run --domain $domain --",
        false => "",
    };
    let (_, at) = scene.client(column.client);
    let server = Server::start(&mut scene.server, under, row, (at, port))?;
    let (client, _) = scene.client(column.client);
    let values = values(client, under, (row, seconds), (at, port));
    let lane = server.lane(&mut scene.server);
    server.ends(&mut scene.server)?;
    Ok(Reading {
        row: row.name(),
        values: values?,
        lane: lane?,
        carried: None,
    })
}

/// A server in a guest.
struct Server(u32);

impl Server {
    fn start(
        on: &mut Machine,
        under: &str,
        row: Row,
        (at, port): (&str, u16),
    ) -> anyhow::Result<Server> {
        let command = match row {
            Row::Requests => format!("memlane-bench peer embedded server --at {at}:{port}"),
            Row::Stream => format!("memlane-bench peer embedded sizes-server --at {at}:{port}"),
            Row::Redis => format!(
                "redis-server --port {port} --bind {at} --save '' --appendonly no --protected-mode no \
                 --loglevel warning --tcp-backlog 511 --dir /tmp"
            ),
            Row::Nginx => {
                on.shell(&site(at, port), 0.0)?;
                "nginx -e stderr -p /site -c /site/nginx.conf".to_owned()
            }
        };
        let order = format!("{under} {command} </dev/null >/tmp/server.log 2>&1 & echo $!");
        let said = on.shell(&order, 0.0)?;
        let pid: u32 = said.trim().parse().with_context(|| said.clone())?;
        let order = format!(
            "tries=0; until grep -q ':{port:04X} 00000000:0000 0A' /proc/net/tcp; do \
             tries=$((tries + 1)); [ $tries -lt {TRIES} ] && kill -0 {pid} || break; sleep 0.1; done; \
             grep -q ':{port:04X} 00000000:0000 0A' /proc/net/tcp && echo listens || cat /tmp/server.log"
        );
        let said = on.shell(&order, f64::from(TRIES) / 10.0)?;
        ensure!(
            said.trim() == "listens",
            "the server does not listen: {said}"
        );
        Ok(Server(pid))
    }

    /// Which way the bytes of it and its children have gone. Without memlane, nothing is known.
    fn lane(&self, on: &mut Machine) -> anyhow::Result<lane::Usage> {
        let pid = self.0;
        let said = on.shell(
            &format!(
                "for pid in {pid} $(cat /proc/{pid}/task/*/children); do \
                 memlane stats --json --pid $pid 2>/dev/null | tr -d '\\n'; echo; done"
            ),
            0.0,
        )?;
        let mut sum = lane::Usage::default();
        for line in said.lines() {
            let Ok(told) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            if told["processes_read"].as_u64().unwrap_or(0) > 0 {
                sum.pages += 1;
                sum.ring += both(&told, "ring_bytes");
                sum.tcp += both(&told, "tcp_bytes");
            }
        }
        Ok(sum)
    }

    fn ends(self, on: &mut Machine) -> anyhow::Result<()> {
        let pid = self.0;
        on.shell(
            &format!("kill $(cat /proc/{pid}/task/*/children) {pid}; wait {pid} 2>/dev/null"),
            0.0,
        )
        .map(drop)
    }
}

/// Sent and taken.
fn both(told: &Value, bytes: &str) -> u64 {
    let flows = ["tx", "rx"].map(|flow| told["totals"][flow][bytes].as_u64());
    flows.into_iter().flatten().sum()
}

/// Makes nginx's page, of 612 bytes, and its configuration: as in the socket suite.
fn site(at: &str, port: u16) -> String {
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths = paths
        .map(|name| format!("{name}_temp_path {name};"))
        .concat();
    format!(
        "mkdir -p /site; head -c 612 /dev/zero | tr '\\0' m >/site/index.html; \
         echo \"user nobody nogroup; worker_processes 1; daemon off; pid /site/nginx.pid; error_log stderr error; \
         events {{ worker_connections 1024; }} http {{ access_log off; sendfile on; keepalive_requests 1000000000; {paths} \
         server {{ listen {at}:{port} backlog=4096; root /site; }} }}\" >/site/nginx.conf"
    )
}

/// Runs a row's client; its figures.
fn values(
    client: &mut dyn Computer,
    under: &str,
    (row, seconds): (Row, f64),
    (at, port): (&str, u16),
) -> anyhow::Result<Vec<Figure>> {
    let mut run =
        |command: &str| client.shell(&format!("{under} {command} 2>/tmp/client.log"), seconds);
    let embedded = format!("--at {at}:{port} --seconds {seconds}");
    Ok(match row {
        Row::Requests => {
            let told = json(&run(&format!(
                "memlane-bench peer embedded client {embedded}"
            ))?)?;
            let number = |name: &str| told[name].as_f64().with_context(|| name.to_owned());
            let rate = number("exchanges")? / number("seconds")?.max(1e-9);
            let [p50, p99] = [number("p50_ns")? / 1e3, number("p99_ns")? / 1e3];
            of_requests("msg/s", [rate, p50, p99])
        }
        Row::Stream => {
            let command = format!(
                "memlane-bench peer embedded sizes-client {embedded} --kind stream --bytes 65536"
            );
            let told = json(&run(&command)?)?;
            let rate = told[0]["bytes_per_second"].as_f64().context("no rate")?;
            vec![("throughput", "MB/s", rate / 1e6)]
        }
        Row::Redis => {
            let load = |requests: f64| {
                let load = "-c 50 -t GET -d 3 --csv --precision 3";
                format!("redis-benchmark -h {at} -p {port} -n {requests:.0} {load}")
            };
            let probed = parse::redis(&run(&load(PROBE))?, "GET")?;
            let requests = (probed.rate * seconds).max(PROBE);
            let told = parse::redis(&run(&load(requests))?, "GET")?;
            of_requests("req/s", [told.rate, told.p50, told.p99])
        }
        Row::Nginx => {
            let duration = seconds.ceil().max(1.0);
            let command = format!(
                "wrk -t 1 -c 16 -d {duration:.0}s --timeout 30s --latency http://{at}:{port}/index.html"
            );
            let told = parse::wrk(&run(&command)?)?;
            of_requests("req/s", [told.rate, told.p50, told.p99])
        }
    })
}

fn json(said: &str) -> anyhow::Result<Value> {
    serde_json::from_str(said.trim()).with_context(|| format!("the client said {said:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_both_ways_are_added() {
        let told =
            serde_json::json!({"totals": {"tx": {"ring_bytes": 3}, "rx": {"ring_bytes": 4}}});
        assert_eq!(both(&told, "ring_bytes"), 7);
        assert_eq!(both(&told, "tcp_bytes"), 0);
    }
}
