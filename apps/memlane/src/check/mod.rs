//! `memlane check`: proves that bytes take the memory lane, or says why not.

mod between;
mod child;
pub(crate) mod echo;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use memlane_core::reason::Reason;
use memlane_core::stats::ConnState;
use memlane_observe::kernel_sockets::KernelSockets;
use memlane_observe::page::{Conn, Flow};
use memlane_observe::processes::{self, Survey};
use serde::Serialize;

use crate::cli::exit::Exit;
use crate::cli::out;
use crate::ss::ReasonDocument;
use crate::{run, ss};
use child::Helper;

/// How long a helper process may take to start or to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of cycles that always run; each has six rounds.
const CYCLES: u32 = 8;
/// Time between two readings of the stats pages.
const PAUSE: Duration = Duration::from_millis(20);
/// Times that the request of `--send` is sent.
const SENDS: &str = "32";

/// Test whether memlane works here, or why a service stays on TCP.
///
/// Without HOST:PORT, this starts an echo server and a client under memlane. They exchange a few dozen messages and
/// compare every byte. Then it reads from the stats pages of both processes whether the bytes went through memory in both
/// directions.
///
/// With HOST:PORT, this connects to the service under memlane and shows whether the connection gets the memory lane. It
/// sends nothing. If the service waits for its client to speak first, there may be no verdict: name a harmless request
/// with --send, such as 'PING\r\n'.
///
/// With --container, this starts nothing: it looks at two programs that run and says, step by step, whether connections
/// between them get the memory lane, and what to do if not.
///
/// Exit code 0: the connection is on the memory lane; 3: this machine cannot do it; 4: the service refused; 5: the
/// connection is on TCP for another reason, which is shown.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Service to connect to
    #[arg(value_name = "HOST:PORT")]
    target: Option<String>,
    /// Look at two containers, by name, or two processes, by id: do connections between them get the memory lane?
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with = "target")]
    container: Vec<String>,
    /// Request to send 32 times; \r, \n, \t and \\ are understood
    #[arg(long, value_name = "TEXT", requires = "target", value_parser = unescape)]
    send: Option<String>,
    /// Longest wait for a verdict, in seconds from 1 to 60
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    wait: u64,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    if !args.container.is_empty() {
        return containers(args);
    }
    let wait = Duration::from_secs(args.wait);
    let report = if run::disabled() {
        Report::note(
            args.target.as_deref(),
            "MEMLANE_DISABLE is set: it switches memlane off",
        )
    } else {
        run::library::find(std::env::var_os("MEMLANE_PRELOAD"))?;
        match &args.target {
            None => embedded(wait)?,
            Some(target) => service(target, args.send.as_deref(), wait)?,
        }
    };
    let text = match args.json {
        true => out::json(&report)?,
        false => report.text(),
    };
    out::print(&text)?;
    Ok(report.exit)
}

fn containers(args: &Args) -> anyhow::Result<Exit> {
    let report = between::look(&args.container)?;
    let text = match args.json {
        true => out::json(&report)?,
        false => report.text(),
    };
    out::print(&text)?;
    Ok(report.exit)
}

fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next() {
                Some('r') => '\r',
                Some('n') => '\n',
                Some('t') => '\t',
                Some('\\') => '\\',
                _ => return Err("after a backslash comes r, n, t or a backslash".to_owned()),
            },
            other => other,
        });
    }
    Ok(plain)
}

/// The verdict, with its evidence.
#[derive(Serialize, Debug)]
struct Report {
    schema: &'static str,
    version: &'static str,
    /// `HOST:PORT`; `None` for the embedded pair.
    target: Option<String>,
    /// `memlane`, `tcp` or `undecided`.
    result: &'static str,
    exit_code: u8,
    reason: Option<ReasonDocument>,
    peer_reason: Option<ReasonDocument>,
    note: Option<String>,
    /// Bytes that were compared, in each direction.
    verified_bytes: u64,
    client: Option<End>,
    server: Option<End>,
    #[serde(skip)]
    exit: Exit,
}

/// One end of the connection, from its own stats page.
#[derive(Serialize, Debug)]
struct End {
    pid: u32,
    process: String,
    mode: String,
    tx_ring_bytes: u64,
    tx_tcp_bytes: u64,
    rx_ring_bytes: u64,
    rx_tcp_bytes: u64,
}

/// An end as it is printed, with the connection as it was read.
type Seen = Option<(End, Conn)>;

/// The first connection of process `pid` for which `wanted` holds.
fn connection(pid: u32, accepted: bool) -> Seen {
    let process = processes::process(pid)?;
    let conn = process
        .page
        .conns
        .iter()
        .find(|c| c.state != ConnState::New && c.accepted == accepted)?;
    Some((End::new(pid, &process.comm, conn), conn.clone()))
}

impl End {
    fn new(pid: u32, process: &str, conn: &Conn) -> End {
        End {
            pid,
            process: process.to_owned(),
            mode: ss::mode(conn),
            tx_ring_bytes: conn.tx.ring_bytes,
            tx_tcp_bytes: conn.tx.tcp_bytes,
            rx_ring_bytes: conn.rx.ring_bytes,
            rx_tcp_bytes: conn.rx.tcp_bytes,
        }
    }

    fn line(&self, name: &str) -> String {
        format!(
            "  {name:<7} {}/{}: {}; sent {} by memory, {} by TCP; received {} by memory, {} by TCP\n",
            self.process,
            self.pid,
            self.mode,
            self.tx_ring_bytes,
            self.tx_tcp_bytes,
            self.rx_ring_bytes,
            self.rx_tcp_bytes
        )
    }
}

/// Whether the connection is on the lane on which it will stay.
fn settled(conn: &Conn) -> bool {
    let over = matches!(conn.state, ConnState::Tcp | ConnState::Downgraded);
    over && conn.reason != Reason::NONE && conn.reason != Reason::TOO_YOUNG
}

/// Whether bytes went through memory in both directions at this end.
fn proven(conn: &Conn) -> bool {
    let used = |flow: &Flow| flow.ring_size > 0 && flow.ring_bytes > 0;
    conn.state == ConnState::Memlane && used(&conn.tx) && used(&conn.rx)
}

fn embedded(wait: Duration) -> anyhow::Result<Report> {
    let mut server = Helper::start(&["__echo-server"])?;
    let at = server
        .line(PATIENCE)
        .context("the echo server did not start")?;
    let mut client = Helper::start(&["__echo-client", &at])?;
    client
        .line(PATIENCE)
        .context("the echo client did not start")?;
    let deadline = Instant::now() + wait;
    let mut verified = 0;
    for cycle in 1.. {
        verified += exchange(&mut client)?;
        if cycle < CYCLES {
            continue;
        }
        let ends = (
            connection(client.pid(), false),
            connection(server.pid(), true),
        );
        let (done, late) = match &ends {
            (Some((_, c)), Some((_, s))) => (
                (proven(c) && proven(s)) || settled(c) || settled(s),
                Instant::now() >= deadline,
            ),
            _ => (false, Instant::now() >= deadline),
        };
        if done || late {
            return Ok(Report::of_pair(ends, verified));
        }
        std::thread::sleep(PAUSE);
    }
    unreachable!("the loop above ends by its deadline")
}

/// Runs one cycle of rounds and returns the number of bytes that were compared.
fn exchange(client: &mut Helper) -> anyhow::Result<u64> {
    client.ask("go")?;
    let answer = client.line(PATIENCE).context("the echo failed")?;
    answer
        .strip_prefix("ok ")
        .and_then(|n| n.parse().ok())
        .with_context(|| format!("the echo failed: {answer}"))
}

fn service(target: &str, send: Option<&str>, wait: Duration) -> anyhow::Result<Report> {
    let mut verb = vec!["__probe", target];
    if let Some(text) = send {
        verb.extend(["--rounds", SENDS, "--send", text]);
    }
    let mut probe = Helper::start(&verb)?;
    let ends = probe.line(PATIENCE)?;
    let addresses = ends
        .split_once(' ')
        .and_then(|(local, peer)| Some((local.parse().ok()?, peer.parse().ok()?)));
    if send.is_some() {
        probe
            .line(PATIENCE)
            .context("the service did not answer what was sent")?;
    }
    let deadline = Instant::now() + wait;
    loop {
        let seen = connection(probe.pid(), false);
        let open = |c: &Conn| c.state == ConnState::Memlane && (send.is_none() || proven(c));
        let done = seen.as_ref().is_some_and(|(_, c)| settled(c) || open(c));
        if done || Instant::now() >= deadline {
            return Ok(Report::of_service(target, seen, addresses, send.is_some()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The connection as the service's own page shows it, if this user may read that page.
fn other_end(addresses: Option<(SocketAddr, SocketAddr)>) -> Option<End> {
    let (local, peer) = addresses?;
    let survey = Survey::all().ok()?;
    let mut sockets = KernelSockets::default();
    survey.processes.iter().find_map(|process| {
        let mut theirs = |c: &Conn| {
            let known = c.addresses.or_else(|| {
                let (_, socket) = sockets.find(process.pid, c.fd)?;
                Some((socket.local, socket.peer))
            });
            c.accepted && known == Some((peer, local))
        };
        let conn = process.page.conns.iter().find(|c| theirs(c))?;
        Some(End::new(process.pid, &process.comm, conn))
    })
}

impl Report {
    fn new(target: Option<&str>) -> Report {
        Report {
            schema: "memlane.check/1",
            version: env!("CARGO_PKG_VERSION"),
            target: target.map(str::to_owned),
            result: "undecided",
            exit_code: Exit::FellBack.code(),
            reason: None,
            peer_reason: None,
            note: None,
            verified_bytes: 0,
            client: None,
            server: None,
            exit: Exit::FellBack,
        }
    }

    fn note(target: Option<&str>, note: &str) -> Report {
        let mut report = Report::new(target);
        report.result = "tcp";
        report.note = Some(note.to_owned());
        report
    }

    fn end_with(&mut self, result: &'static str, exit: Exit) {
        self.result = result;
        self.exit = exit;
        self.exit_code = exit.code();
    }

    fn of_pair(ends: (Seen, Seen), verified: u64) -> Report {
        let mut report = Report::new(None);
        report.verified_bytes = verified;
        match &ends {
            (Some((_, c)), Some((_, s))) if proven(c) && proven(s) => {
                report.end_with("memlane", Exit::Ok);
            }
            (Some((_, c)), Some((_, s))) => {
                report.blame(if settled(c) || !settled(s) { c } else { s });
                // Both ends are ours: nobody has refused, whatever the code says.
                if report.exit == Exit::PeerRefused {
                    report.end_with("tcp", Exit::FellBack);
                }
            }
            _ => report.no_page("the echo server or client"),
        }
        report.client = ends.0.map(|(end, _)| end);
        report.server = ends.1.map(|(end, _)| end);
        report
    }

    fn of_service(
        target: &str,
        seen: Seen,
        addresses: Option<(SocketAddr, SocketAddr)>,
        sent: bool,
    ) -> Report {
        let mut report = Report::new(Some(target));
        match &seen {
            None => report.no_page("the probe"),
            Some((_, c)) if proven(c) => report.end_with("memlane", Exit::Ok),
            Some((_, c)) if c.state == ConnState::Memlane && !sent => {
                report.end_with("memlane", Exit::Ok);
                report.note = Some("the lane is open; no bytes were sent through it".to_owned());
            }
            Some((_, c)) => {
                report.blame(c);
                if !settled(c) && !sent {
                    report.note = Some(
                        "the service waits for its client to speak: try --send with a harmless request"
                            .to_owned(),
                    );
                }
            }
        }
        report.client = seen.map(|(end, _)| end);
        report.server = other_end(addresses);
        report
    }

    fn no_page(&mut self, who: &str) {
        self.end_with("undecided", Exit::FellBack);
        self.note = Some(format!(
            "{who} shows no stats page with the connection: the library did not get into it"
        ));
    }

    /// Says why the connection is not on the memory lane, and picks the exit code.
    fn blame(&mut self, conn: &Conn) {
        self.reason = ReasonDocument::of(conn.reason);
        self.peer_reason = ReasonDocument::of(conn.peer_reason);
        match conn.state {
            ConnState::Memlane => {
                self.end_with("undecided", Exit::FellBack);
                self.note =
                    Some("the lane is open, but bytes did not take it both ways".to_owned());
            }
            _ if settled(conn) => self.end_with("tcp", code_for(conn.reason)),
            ConnState::Pending => {
                self.note = Some("the handshake did not come to an end".to_owned())
            }
            _ => {}
        }
    }

    fn text(&self) -> String {
        let target = self
            .target
            .as_deref()
            .unwrap_or("embedded echo server and client");
        let mut text = match self.result {
            "memlane" => format!("{target}: MEMLANE\n"),
            "tcp" => format!("{target}: TCP\n"),
            _ => format!("{target}: TCP so far, no verdict\n"),
        };
        for (who, reason) in [
            ("reason", &self.reason),
            ("peer's reason", &self.peer_reason),
        ] {
            if let Some(r) = reason {
                text.push_str(&format!(
                    "  {who}: 0x{:08x} {}: {}\n",
                    r.code, r.name, r.text
                ));
            }
        }
        if let Some(note) = &self.note {
            text.push_str(&format!("  {note}\n"));
        }
        if self.verified_bytes > 0 {
            text.push_str(&format!(
                "  {} bytes echoed and compared\n",
                self.verified_bytes
            ));
        }
        for (name, end) in [("client", &self.client), ("server", &self.server)] {
            if let Some(end) = end {
                text.push_str(&end.line(name));
            }
        }
        text
    }
}

/// The exit code for a reason.
fn code_for(reason: Reason) -> Exit {
    match reason {
        Reason::NO_DEVICE => Exit::Unsupported,
        Reason::NO_EID
        | Reason::RELEASE
        | Reason::PEER_REFUSED
        | Reason::VERSION
        | Reason::PEER_DECLINED
        | Reason::NOT_PROVEN => Exit::PeerRefused,
        _ => Exit::FellBack,
    }
}

#[cfg(test)]
mod tests;
