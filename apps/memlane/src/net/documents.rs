//! What the verbs that join tell: at their end, to `memlane net stats`, and as text.

use std::fmt::Write as _;

use memlane_packet::engine::cache::GrantCounts;
use memlane_packet_ends::tally::Tally;
use serde::{Deserialize, Serialize};

/// A process of `memlane net` that joins two ends.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Process {
    pub(super) name: String,
    pub(super) pid: u32,
    /// `link`, `back`, `front`, `gen` or `sink`.
    pub(super) verb: String,
    /// `joined` or `waiting`.
    pub(super) state: String,
    /// Seconds since 1970.
    pub(super) since: u64,
    /// For whom, and where.
    pub(super) waiting_for: Option<String>,
    /// Times that a link was attached.
    pub(super) attaches: u64,
    /// Why the last one ended.
    pub(super) last_end: Option<Event>,
    /// In the order in which they were given.
    pub(super) ends: Vec<End>,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(super) struct Event {
    /// Seconds since 1970.
    pub(super) at: u64,
    pub(super) text: String,
}

/// An end, over all its queues and attaches.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(super) struct End {
    /// As it was given, without secrets.
    pub(super) end: String,
    /// How the back gets at packets, while a link of the lane is attached.
    pub(super) mode: Option<String>,
    /// Who is at the other end of the link.
    pub(super) peer: Option<Peer>,
    #[serde(flatten)]
    pub(super) counts: Counts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<Verdict>,
    pub(super) queues: Vec<Queue>,
}

/// By the kernel's word, and its own.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(super) struct Peer {
    /// 0: it lives in another PID namespace.
    pub(super) pid: i32,
    pub(super) uid: u32,
    /// What a memif peer calls its interface.
    pub(super) interface: Option<String>,
}

/// Frames from the point of view of the process: what came from this end, what went to it.
#[derive(Serialize, Deserialize, Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Counts {
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
    pub(super) full: u64,
    pub(super) failed: u64,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(super) struct Queue {
    #[serde(flatten)]
    pub(super) counts: Counts,
    /// Times that the other side was rung for, and times that it needed no bell.
    pub(super) doorbells: u64,
    pub(super) doorbells_avoided: u64,
    /// Fragments that the kernel copied.
    pub(super) copied: u64,
    /// Of a back.
    pub(super) grants: Option<Grants>,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(super) struct Grants {
    /// Frames from the front.
    pub(super) tx: Table,
    /// Frames to it.
    pub(super) rx: Table,
}

/// A table of mappings that are kept; the first three as the persistent-grant series' debugfs files called them.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub(super) struct Table {
    pub(super) in_use: u64,
    pub(super) max: u64,
    /// Mapped now.
    pub(super) count: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) busy: u64,
    pub(super) evicted: u64,
    pub(super) idle: u64,
    pub(super) stale: u64,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub(super) struct Verdict {
    pub(super) good: u64,
    pub(super) missing: u64,
    pub(super) late: u64,
    pub(super) twice: u64,
    pub(super) changed: u64,
    pub(super) strange: u64,
}

impl Verdict {
    /// All came, once, and as they were sent.
    pub(super) fn is_fine(&self) -> bool {
        self.missing == 0 && self.twice == 0 && self.changed == 0
    }
}

impl From<&Tally> for Counts {
    fn from(tally: &Tally) -> Counts {
        let counts = tally.counts;
        Counts {
            received: counts.received,
            received_bytes: counts.received_bytes,
            sent: counts.sent,
            sent_bytes: counts.sent_bytes,
            full: counts.full,
            failed: counts.failed,
        }
    }
}

impl From<&Tally> for Queue {
    fn from(tally: &Tally) -> Queue {
        Queue {
            counts: tally.into(),
            doorbells: tally.doorbells,
            doorbells_avoided: tally.quiet,
            copied: tally.copied,
            grants: tally.grants.map(|[tx, rx]| Grants {
                tx: tx.into(),
                rx: rx.into(),
            }),
        }
    }
}

impl From<GrantCounts> for Table {
    fn from(counts: GrantCounts) -> Table {
        Table {
            in_use: counts.in_use,
            max: counts.max,
            count: counts.mapped,
            hits: counts.hits,
            misses: counts.misses,
            busy: counts.busy,
            evicted: counts.evicted,
            idle: counts.idle,
            stale: counts.stale,
        }
    }
}

impl End {
    /// Of what its queues have counted.
    pub(super) fn new(end: &str, queues: &[Tally]) -> End {
        let sum = queues
            .iter()
            .fold(Tally::default(), |sum, queue| sum.plus(queue));
        End {
            end: end.to_owned(),
            mode: None,
            peer: None,
            counts: (&sum).into(),
            verdict: sum.verdict.map(|seen| Verdict {
                good: seen.good,
                missing: seen.missing,
                late: seen.late,
                twice: seen.twice,
                changed: seen.changed,
                strange: seen.strange,
            }),
            queues: queues.iter().map(Queue::from).collect(),
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let counts = &self.counts;
        let mut text = format!(
            "{}: {} frames ({} bytes) came, {} ({} bytes) went, {} found no room at once, {} were of no use\n",
            self.end,
            counts.received,
            counts.received_bytes,
            counts.sent,
            counts.sent_bytes,
            counts.full,
            counts.failed
        );
        if let Some(seen) = &self.verdict {
            let _ = writeln!(
                text,
                "{}: {} good, {} missing, {} late, {} twice, {} changed, {} strange",
                self.end,
                seen.good,
                seen.missing,
                seen.late,
                seen.twice,
                seen.changed,
                seen.strange
            );
        }
        text
    }
}

/// What a process prints at its end with `--json`.
#[derive(Serialize)]
pub(super) struct Last<'a> {
    pub(super) schema: &'static str,
    /// Of a sink: did all come, once and unchanged?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ok: Option<bool>,
    /// From the first attach on.
    pub(super) seconds: f64,
    pub(super) attaches: u64,
    pub(super) ends: &'a [End],
}

/// What `net stats --json` prints.
#[derive(Serialize)]
pub(super) struct Stats {
    pub(super) schema: &'static str,
    pub(super) processes: Vec<Process>,
}
