//! `memlane net stats`: the counters of running `memlane net` processes, and how they are asked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use memlane_observe::control::{self, Listener, NameGuard, Role};
use serde::{Deserialize, Serialize};

use super::args::Job;
use super::documents::{End, Process, Queue, Stats, Table};
use super::progress::short;
use super::watched::Watched;
use crate::cli::exit::{Exit, fail};
use crate::cli::out::{self, human};
use crate::cli::values::duration;

/// Show the counters of your running memlane net processes: for each end, queue and grant table
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Process to show, by its name or process id [default: all]
    #[arg(value_name = "NAME|PID")]
    which: Option<String>,
    /// Show them again after each interval
    #[arg(long, value_parser = duration, value_name = "TIME")]
    watch: Option<Duration>,
    /// Print one JSON document; with --watch, one after another
    #[arg(long)]
    pub(super) json: bool,
}

/// What a `memlane net` process can be asked.
#[derive(Serialize, Deserialize, Debug)]
#[serde(tag = "verb", rename_all = "kebab-case")]
enum Question {
    /// Everything about the process.
    Describe,
}

impl control::Question for Question {
    fn is_read_only(&self) -> bool {
        true
    }

    fn timeout(&self) -> Duration {
        // A process answers at once, unless it is stopped.
        Duration::from_secs(2)
    }
}

/// Takes the process's name, and answers questions until the returned guard is dropped.
pub(super) fn show(job: &Job) -> anyhow::Result<(Arc<Watched>, Option<NameGuard>)> {
    let name = job.name.clone();
    let name = name.unwrap_or_else(|| std::process::id().to_string());
    let watched = Arc::new(Watched::new(name.clone(), job));
    let shown = Arc::clone(&watched);
    let held = Listener::bind(Role::Net, &name).and_then(|listener| {
        listener.in_background(move |Question::Describe| {
            crate::cli::exit::reply(serde_json::to_value(shown.describe()).map_err(Into::into))
        })
    });
    match held {
        Ok(held) => Ok((watched, Some(held))),
        Err(error) if job.name.is_some() => Err(match error.kind() {
            ErrorKind::AddrInUse => fail(
                Exit::Failed,
                format!("another memlane net process has the name {name:?}: choose another --name"),
            ),
            _ => fail(Exit::Failed, format!("--name {name}: {error}")),
        }),
        // Nobody asked for it: it works all the same.
        Err(error) => {
            out::note(&format!(
                "memlane net stats will not show this process: {error}"
            ));
            Ok((watched, None))
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let mut before = None;
    loop {
        let processes = look(args.which.as_deref())?;
        let now = Instant::now();
        let text = match args.json {
            true => out::json(&Stats {
                schema: "memlane.net-stats/1",
                processes: processes.clone(),
            })?,
            false => text(
                &processes,
                before.as_ref().map(|(then, old)| (now - *then, old)),
            ),
        };
        out::print(&text)?;
        let Some(pause) = args.watch else {
            return Ok(());
        };
        before = Some((now, index(processes)));
        std::thread::sleep(pause.max(Duration::from_millis(10)));
    }
}

type Index = BTreeMap<String, Process>;

fn index(processes: Vec<Process>) -> Index {
    let named = |process: Process| (process.name.clone(), process);
    processes.into_iter().map(named).collect()
}

/// All processes, or the one that was asked for.
fn look(which: Option<&str>) -> anyhow::Result<Vec<Process>> {
    let mut found = Vec::new();
    for name in control::list(Role::Net)? {
        let told = control::ask(Role::Net, &name, &Question::Describe)
            .and_then(|value| Ok(value.map(serde_json::from_value::<Process>).transpose()?));
        match told {
            Ok(told) => found.extend(told),
            Err(error) if which.is_none_or(|which| which == name) => {
                out::note(&format!("{name} is left out: {error:#}"));
            }
            Err(_) => {}
        }
    }
    let Some(which) = which else {
        return Ok(found);
    };
    found.retain(|process| process.name == which || process.pid.to_string() == which);
    match found.is_empty() {
        true => Err(anyhow::anyhow!(
            "no memlane net process {which:?} of this user runs here; `memlane net stats` lists the running ones"
        )),
        false => Ok(found),
    }
}

fn text(processes: &[Process], before: Option<(Duration, &Index)>) -> String {
    if processes.is_empty() {
        return "no memlane net process of this user runs here\n".into();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let each = processes.iter().map(|process| {
        let old = before.and_then(|(time, old)| Some((time, old.get(&process.name)?)));
        head(process, now) + &ends(process, old) + &grants(process)
    });
    each.collect::<Vec<_>>().join("\n")
}

fn head(process: &Process, now: u64) -> String {
    let age = now.saturating_sub(process.since);
    let state = match &process.waiting_for {
        Some(whom) => format!("waiting for {whom} since {age} s"),
        None => format!("joined since {age} s"),
    };
    let mut text = format!(
        "{} (pid {}, {}): {state}",
        process.name, process.pid, process.verb
    );
    if process.attaches > 1 {
        let _ = write!(text, ", attached {} times", process.attaches);
    }
    text.push('\n');
    for end in &process.ends {
        let mode = end.mode.as_ref().map(|mode| format!("mode {mode}"));
        let peer = end.peer.as_ref().map(|peer| {
            let called = peer.interface.as_ref().map(|name| format!(" {name:?}"));
            format!(
                "other side{} pid {}, user {}",
                called.unwrap_or_default(),
                peer.pid,
                peer.uid
            )
        });
        let known: Vec<String> = mode.into_iter().chain(peer).collect();
        if !known.is_empty() {
            let _ = writeln!(text, "  {}: {}", end.end, known.join(", "));
        }
    }
    if let Some(event) = &process.last_end {
        let _ = writeln!(
            text,
            "  {} s ago: {}",
            now.saturating_sub(event.at),
            event.text
        );
    }
    text
}

/// Of each queue; with what was there before, how many a second.
fn ends(process: &Process, before: Option<(Duration, &Process)>) -> String {
    let mut rows = Vec::new();
    for (n, end) in process.ends.iter().enumerate() {
        for (q, queue) in end.queues.iter().enumerate() {
            let old = before.and_then(|(time, old)| {
                Some((time.as_secs_f64(), old.ends.get(n)?.queues.get(q)?))
            });
            rows.push(queue_row(end, q, queue, old));
        }
    }
    let header = [
        "  END",
        "QUEUE",
        "RECEIVED",
        "BYTES",
        "SENT",
        "BYTES",
        "NO ROOM",
        "FAILED",
        "DOORBELLS",
        "AVOIDED",
        "IN/S",
        "OUT/S",
    ];
    let shown = if before.is_some() { 12 } else { 10 };
    for row in &mut rows {
        row.truncate(shown);
    }
    let mut text = out::columns(&header[..shown], &header[1..shown], rows);
    for end in &process.ends {
        if let Some(seen) = &end.verdict {
            let _ = writeln!(
                text,
                "  {}: {} good, {} missing, {} late, {} twice, {} changed, {} strange",
                end.end, seen.good, seen.missing, seen.late, seen.twice, seen.changed, seen.strange
            );
        }
    }
    text
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a rate, of which three digits are shown"
)]
fn queue_row(
    end: &End,
    number: usize,
    queue: &Queue,
    before: Option<(f64, &Queue)>,
) -> Vec<String> {
    let counts = &queue.counts;
    let rate = |now: u64, of: fn(&Queue) -> u64| {
        before.map_or(String::new(), |(seconds, old)| {
            short(now.saturating_sub(of(old)) as f64 / seconds.max(1e-3))
        })
    };
    vec![
        format!("  {}", end.end),
        number.to_string(),
        counts.received.to_string(),
        human(counts.received_bytes),
        counts.sent.to_string(),
        human(counts.sent_bytes),
        counts.full.to_string(),
        counts.failed.to_string(),
        queue.doorbells.to_string(),
        queue.doorbells_avoided.to_string(),
        rate(counts.received, |old| old.counts.received),
        rate(counts.sent, |old| old.counts.sent),
    ]
}

/// Of a back: its tables.
fn grants(process: &Process) -> String {
    let queues = process
        .ends
        .iter()
        .flat_map(|end| end.queues.iter().enumerate());
    let mut rows = Vec::new();
    for (number, queue) in queues {
        let Some(grants) = &queue.grants else {
            continue;
        };
        let tables: [(&str, &Table, u64); 2] =
            [("tx", &grants.tx, queue.copied), ("rx", &grants.rx, 0)];
        for (name, table, copied) in tables {
            let numbers = [
                table.count,
                table.in_use,
                table.max,
                table.hits,
                table.misses,
                table.busy,
                table.evicted,
                table.idle,
                table.stale,
            ];
            let mut row = vec![format!("  {name}"), number.to_string()];
            row.extend(numbers.map(|number| number.to_string()));
            // Of both directions together.
            row.push(if name == "tx" {
                copied.to_string()
            } else {
                String::new()
            });
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let header = [
        "  GRANTS", "QUEUE", "COUNT", "IN USE", "MAX", "HITS", "MISSES", "BUSY", "EVICTED", "IDLE",
        "STALE", "COPIED",
    ];
    out::columns(&header, &header[1..], rows)
}
