//! `memlane session`: the sessions of this user, and their paths.

use memlane_observe::control::{self, Role};

use super::documents::{Path, Session};
use super::requests::Request;
use super::spec::PathSpec;
use super::vol;
use crate::cli::exit::{Exit, fail};
use crate::cli::out::{self, human};
use serde::Serialize;

/// List and change sessions with servers, and their paths
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// List sessions
    Ls {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Show paths, volumes and the last events of a session
    Show {
        session: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Add a path to the server
    AddPath {
        session: String,
        /// Path, [SRC@]DST[:PORT]
        path: PathSpec,
    },
    /// Remove a path; its requests move to the others
    RmPath {
        session: String,
        /// Path, as memlane session show prints it
        path: String,
    },
    /// Show what each path has carried, and how fast
    Stats {
        session: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        matches!(
            self.what,
            What::Ls { json: true }
                | What::Show { json: true, .. }
                | What::Stats { json: true, .. }
        )
    }
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    sessions: Vec<Session>,
}

/// The document of `session stats --json`.
#[derive(Serialize)]
struct Stats {
    schema: &'static str,
    session: String,
    paths: Vec<Path>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        What::Ls { json } => ls(json),
        What::Show { session, json } => show(&session, json),
        What::Stats { session, json } => stats(&session, json),
        What::AddPath { session, path } => tell(&session, &Request::AddPath { path }),
        What::RmPath { session, path } => tell(&session, &Request::RemovePath { path }),
    }
}

fn ls(json: bool) -> anyhow::Result<()> {
    let mut sessions = vol::sessions()?;
    // The processes behind mapped files have no server.
    sessions.retain(|session| !session.direct);
    if json {
        let schema = "memlane.sessions/1";
        return out::print(&out::json(&Document { schema, sessions })?);
    }
    if sessions.is_empty() {
        return out::print("no session is open here\n");
    }
    let rows = sessions.iter().map(|s| {
        let up = s
            .paths
            .iter()
            .filter(|path| path.state == "connected")
            .count();
        vec![
            s.name.clone(),
            s.pid.to_string(),
            format!("{up}/{}", s.paths.len()),
            s.volumes.len().to_string(),
            s.policy.clone(),
            s.on_disconnect.clone(),
        ]
    });
    out::print(&out::columns(
        &[
            "SESSION",
            "PID",
            "PATHS UP",
            "VOLUMES",
            "POLICY",
            "ON DISCONNECT",
        ],
        &["PID", "PATHS UP", "VOLUMES"],
        rows.collect(),
    ))
}

fn one(name: &str) -> anyhow::Result<Session> {
    let said = control::ask(Role::Session, name, &Request::Describe)?;
    let value = said.ok_or_else(|| {
        anyhow::anyhow!(
            "no session {name:?} is open here; `memlane session ls` lists the open sessions"
        )
    })?;
    let session: Session = serde_json::from_value(value)?;
    if session.direct {
        let text = format!(
            "{name:?} is no session, but a file that is mapped without a server; `memlane vol show` shows it"
        );
        return Err(fail(Exit::Usage, text));
    }
    Ok(session)
}

fn show(name: &str, json: bool) -> anyhow::Result<()> {
    let session = one(name)?;
    if json {
        return out::print(&out::json(&session)?);
    }
    let mut text = path_table(&session.paths);
    for volume in &session.volumes {
        text.push_str(&format!(
            "{}: {}, as {}: {}\n",
            volume.volume,
            human(volume.size),
            volume.shown_as,
            volume.state
        ));
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    for event in &session.events {
        text.push_str(&format!(
            "{:>8} s ago: {}\n",
            now.saturating_sub(event.at),
            event.text
        ));
    }
    out::print(&text)
}

fn path_table(paths: &[Path]) -> String {
    let rows = paths.iter().map(|p| {
        vec![
            p.path.clone(),
            p.state.clone(),
            p.inflight.to_string(),
            p.reads.to_string(),
            human(p.read_bytes),
            p.writes.to_string(),
            human(p.written_bytes),
            p.failed_over.to_string(),
            p.reconnects.to_string(),
        ]
    });
    let header = [
        "PATH",
        "STATE",
        "INFLIGHT",
        "READS",
        "READ",
        "WRITES",
        "WRITTEN",
        "FAILED OVER",
        "RECONNECTS",
    ];
    out::columns(&header, &header[2..], rows.collect())
}

fn stats(name: &str, json: bool) -> anyhow::Result<()> {
    let session = one(name)?;
    if json {
        return out::print(&out::json(&Stats {
            schema: "memlane.session-stats/1",
            session: session.name,
            paths: session.paths,
        })?);
    }
    let mut text = path_table(&session.paths);
    for path in &session.paths {
        text.push_str(&format!("\n{}, requests by time:\n", path.path));
        text.push_str(&histogram(&path.latency_log2_us));
    }
    out::print(&text)
}

/// A histogram: one bar for each power of two of microseconds.
fn histogram(counts: &[u64]) -> String {
    const WIDTH: u64 = 50;
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let mut text = String::new();
    for (power, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let bar = count.saturating_mul(WIDTH).div_ceil(most).min(WIDTH);
        let bar = "#".repeat(usize::try_from(bar).unwrap_or(0));
        text.push_str(&format!(
            "  up to {:>9} µs {count:>10} {bar}\n",
            1u64 << power.min(63)
        ));
    }
    text
}

fn tell(name: &str, request: &Request) -> anyhow::Result<()> {
    let said = control::ask(Role::Session, name, request)?;
    vol::print_reply(
        said,
        &format!("no session {name:?} is open here; `memlane session ls` lists the open sessions"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_as_wide_as_the_screen_allows_and_none_is_invisible() {
        let text = histogram(&[0, 1, 0, 1_000_000]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].contains("2 µs") && lines[0].ends_with(" #"),
            "{text}"
        );
        assert!(lines[1].ends_with(&"#".repeat(50)), "{text}");
        assert_eq!(histogram(&[0; 8]), "");
    }
}
