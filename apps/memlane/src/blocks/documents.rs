//! What servers and sessions tell about themselves: the `--json` of `vol`, `session` and `serve`, and the source of
//! their tables.

use memlane_block::volume::stats::VolumeStats;
use serde::{Deserialize, Serialize};

use super::spec::Access;
use crate::cli::out;

/// Of a session: the process behind `memlane map`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Session {
    /// `memlane.session/1`
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) pid: u32,
    /// It is no session, but the process behind a mapped file: it has no paths and no policies.
    #[serde(default)]
    pub(crate) direct: bool,
    pub(crate) policy: String,
    pub(crate) on_disconnect: String,
    /// Chunks, and bytes of each; none before the first path was up.
    pub(crate) queue_depth: Option<u32>,
    pub(crate) max_io: Option<u32>,
    pub(crate) paths: Vec<Path>,
    pub(crate) volumes: Vec<Volume>,
    /// The last things that happened, oldest first.
    pub(crate) events: Vec<Event>,
}

impl Session {
    /// This process, with nothing in it.
    pub(super) fn new(name: &str) -> Session {
        Session {
            schema: "memlane.session/1".into(),
            name: name.to_owned(),
            pid: std::process::id(),
            direct: false,
            policy: String::new(),
            on_disconnect: String::new(),
            queue_depth: None,
            max_io: None,
            paths: Vec::new(),
            volumes: Vec::new(),
            events: Vec::new(),
        }
    }
}

/// A path, and what it has carried.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Path {
    /// As `rm-path` wants it.
    pub(crate) path: String,
    pub(crate) state: String,
    pub(crate) inflight: u32,
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) failed_over: u64,
    pub(crate) reconnects: u64,
    pub(crate) failed_connects: u64,
    /// Why it went down last, until it is up again.
    pub(crate) last_error: Option<String>,
    /// Requests that took up to 1, 2, 4 … microseconds.
    pub(crate) latency_log2_us: Vec<u64>,
}

/// A mapped volume.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Volume {
    pub(crate) volume: String,
    /// The process behind it, as `vol --session` takes it.
    pub(crate) session: String,
    /// A file or device of this machine, mapped without a server.
    #[serde(default)]
    pub(crate) direct: bool,
    /// Reads and writes are done in memory that the server lends: it does not see them.
    #[serde(default)]
    pub(crate) lent: bool,
    pub(crate) access: Access,
    /// The frontend, as `--as` takes it.
    pub(crate) frontend: String,
    /// What to give to a program: a device, a file, a URI.
    pub(crate) shown_as: String,
    pub(crate) size: u64,
    pub(crate) block: u32,
    pub(crate) read_only: bool,
    /// `ok`, or why it is not.
    pub(crate) state: String,
    /// The last request that failed, if no server keeps that.
    #[serde(default)]
    pub(crate) last_error: Option<String>,
    pub(crate) counters: Counters,
}

/// What a volume was asked.
#[derive(Serialize, Deserialize, Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct Counters {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) flushes: u64,
    pub(crate) trims: u64,
    pub(crate) errors: u64,
    pub(crate) replays: u64,
}

impl From<VolumeStats> for Counters {
    fn from(stats: VolumeStats) -> Counters {
        Counters {
            reads: stats.reads,
            read_bytes: stats.read_bytes,
            writes: stats.writes,
            written_bytes: stats.write_bytes,
            flushes: stats.flushes,
            trims: stats.trims,
            errors: stats.errors,
            replays: stats.replays,
        }
    }
}

/// Something that happened.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Event {
    /// Seconds since 1970.
    pub(crate) at: u64,
    pub(crate) text: String,
}

/// Of `memlane serve`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Server {
    /// `memlane.server/1`
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) root: String,
    pub(crate) listen: Vec<String>,
    pub(crate) queue_depth: u32,
    pub(crate) max_io: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shared_memory: Option<SharedMemory>,
    pub(crate) sessions: Vec<Client>,
    pub(crate) volumes: Vec<Open>,
}

/// Memory that a server shares with other machines.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct SharedMemory {
    pub(crate) device: String,
    /// Bytes.
    pub(crate) size: u64,
    /// Bytes that sessions have, or that clients have not let go of yet.
    pub(crate) used: u64,
}

/// A session, as its server sees it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Client {
    pub(crate) session: String,
    pub(crate) identity: String,
    pub(crate) paths: Vec<String>,
    /// Requests.
    pub(crate) executed: u64,
    /// Second copies that were recognised, and not executed.
    pub(crate) replays: u64,
}

/// A volume that somebody has open.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Open {
    pub(crate) volume: String,
    pub(crate) size: u64,
    pub(crate) opened_by: Vec<String>,
    pub(crate) last_error: Option<String>,
}

/// The document of `map --json`.
#[derive(Serialize)]
struct Mapped<'a> {
    schema: &'static str,
    session: &'a str,
    volume: &'a str,
    /// The path of the device or file, or the URI of the export.
    place: &'a str,
}

/// Prints where the volume is.
pub(super) fn tell_place(
    session: &str,
    volume: &str,
    place: &str,
    json: bool,
) -> anyhow::Result<()> {
    let schema = "memlane.map/1";
    out::print(&match json {
        true => out::json(&Mapped {
            schema,
            session,
            volume,
            place,
        })?,
        false => format!("{place}\n"),
    })
}
