//! How long connections go on by TCP until they have their lane. The server is the one for many connections.
//!
//! A plain program cannot tell on which lane its connection is. This one reads its own stats page, after each answer from the
//! eighth on: for that it takes about 10 µs.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use memlane_core::stats::ConnState;
use memlane_observe::page::Page;
use memlane_observe::processes;

use super::figures::{MESSAGE, Opened, nanoseconds};
use super::wire::{At, Wire};

/// From this exchange on a connection is due (`--upgrade auto`).
const DUE: u32 = 8;
/// A connection that has no lane by then stays on TCP. The lanes of the first connections did not pay, so a later one may be due
/// only after 256 exchanges, and on a busy machine each of these takes long where there are 64 connections.
const LIMIT: Duration = Duration::from_secs(10);

/// What a client does.
#[derive(clap::Args, Debug)]
pub(crate) struct Opening {
    /// ADDRESS:PORT.
    #[arg(long)]
    at: At,
    /// Make connections for this long, and at least once.
    #[arg(long)]
    seconds: f64,
    /// Open this number of connections at a time; those that have their lane wait for the others.
    #[arg(long, default_value_t = 1)]
    together: usize,
    /// Begin as many processes instead, one after the other, of one connection each.
    #[arg(long)]
    processes: Option<u32>,
}

/// Measures.
pub(super) fn measure(wish: &Opening) -> anyhow::Result<Opened> {
    let budget = Duration::try_from_secs_f64(wish.seconds).context("--seconds")?;
    let begin = Instant::now();
    let mut opened = Opened::default();
    match wish.processes {
        Some(processes) => {
            for _ in 0..processes {
                opened.add(in_a_process(wish)?);
            }
        }
        None => loop {
            opened.add(batch(&wish.at, wish.together)?);
            if begin.elapsed() >= budget {
                break;
            }
        },
    }
    opened.seconds = begin.elapsed().as_secs_f64();
    Ok(opened)
}

/// A process of its own for one connection. It inherits what preloads memlane.
fn in_a_process(wish: &Opening) -> anyhow::Result<Opened> {
    let this = std::env::current_exe().context("where is this program?")?;
    let mut command = Command::new(this);
    command.args([
        "peer",
        "embedded",
        "opening-client",
        "--seconds",
        "0",
        "--at",
    ]);
    let said = command.arg(wish.at.to_string()).output()?;
    let error = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.success(), "a process failed: {error}");
    Ok(serde_json::from_slice(&said.stdout)?)
}

/// Some connections, until all of them have their lane.
fn batch(at: &At, together: usize) -> anyhow::Result<Opened> {
    let wires = (0..together).map(|_| Wire::connect(at).context("connect"));
    let mut wires: Vec<Wire> = wires.collect::<anyhow::Result<_>>()?;
    for _ in 0..DUE {
        exchange(&mut wires)?;
    }
    let page = own_page().context("this process has no stats page: it is not under memlane")?;
    let due = Instant::now();
    let mut waiting: Vec<u32> = wires
        .iter()
        .map(|wire| wire.as_raw_fd().cast_unsigned())
        .collect();
    let mut opened = Opened {
        connections: wires.len() as u64,
        ..Opened::default()
    };
    while !waiting.is_empty() && due.elapsed() < LIMIT {
        exchange(&mut wires)?;
        let page = Page::read(&page).context("the stats page")?;
        let now = nanoseconds(due.elapsed());
        let on_lane = page
            .conns
            .iter()
            .filter(|conn| conn.state == ConnState::Memlane);
        let on_lane: Vec<u32> = on_lane.map(|conn| conn.fd).collect();
        let before = waiting.len();
        waiting.retain(|fd| !on_lane.contains(fd));
        opened.took_ns.extend((waiting.len()..before).map(|_| now));
    }
    Ok(opened)
}

fn own_page() -> Option<File> {
    processes::process(std::process::id())?.reopen()
}

/// A message over each of them, and then the answer of each.
fn exchange(wires: &mut [Wire]) -> anyhow::Result<()> {
    let mut message = [7u8; MESSAGE];
    for wire in wires.iter_mut() {
        wire.write_all(&message).context("send")?;
    }
    for wire in wires.iter_mut() {
        wire.read_whole(&mut message).context("receive")?;
    }
    Ok(())
}
