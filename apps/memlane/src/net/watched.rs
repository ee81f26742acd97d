//! What a process that joins shows of itself while it works.
//!
//! Counters come from boards, which the threads that join write and nobody waits for; the rest changes when a link
//! comes or goes, and has a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use memlane_packet_ends::tally::{Board, Tally};

use super::args::{Job, Kind};
use super::documents::{End, Event, Peer, Process};

/// What is known of a link as long as it is attached.
#[derive(Debug, Default)]
pub(super) struct Attached {
    pub(super) mode: Option<&'static str>,
    pub(super) peer: Option<Peer>,
}

#[derive(Debug)]
struct Shown {
    label: String,
    /// Of links that have ended, by queue.
    past: Vec<Tally>,
    live: Vec<Arc<Board>>,
    attached: Attached,
}

impl Shown {
    fn queues(&self) -> Vec<Tally> {
        let all = 0..self.past.len().max(self.live.len());
        all.map(|n| {
            let past = self.past.get(n).copied().unwrap_or_default();
            let live = self.live.get(n).map(|board| board.read());
            past.plus(&live.unwrap_or_default())
        })
        .collect()
    }

    fn end(&self) -> End {
        End {
            mode: self.attached.mode.map(str::to_owned),
            peer: self.attached.peer.clone(),
            ..End::new(&self.label, &self.queues())
        }
    }
}

#[derive(Debug)]
struct State {
    since: u64,
    waiting_for: Option<String>,
    attaches: u64,
    last_end: Option<Event>,
    began: Option<Instant>,
    ends: [Shown; 2],
}

/// See the module.
#[derive(Debug)]
pub(super) struct Watched {
    name: String,
    kind: Kind,
    state: Mutex<State>,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Watched {
    pub(super) fn new(name: String, job: &Job) -> Watched {
        let shown = |n: usize| Shown {
            label: job.ends[n].label.clone(),
            past: Vec::new(),
            live: Vec::new(),
            attached: Attached::default(),
        };
        let state = State {
            since: now(),
            waiting_for: Some("its ends".into()),
            attaches: 0,
            last_end: None,
            began: None,
            ends: [0, 1].map(shown),
        };
        Watched {
            name,
            kind: job.kind,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is no link.
    pub(super) fn waits(&self, whom: &str) {
        let mut state = self.state();
        (state.waiting_for, state.since) = (Some(whom.to_owned()), now());
    }

    /// A link has come.
    pub(super) fn attached(&self, n: usize, attached: Attached) {
        let mut state = self.state();
        state.attaches += 1;
        state.ends[n].attached = attached;
    }

    /// Its ends are joined, and counted here.
    pub(super) fn joined(&self, boards: [Vec<Arc<Board>>; 2]) {
        let mut state = self.state();
        (state.waiting_for, state.since) = (None, now());
        state.began.get_or_insert_with(Instant::now);
        for (end, boards) in state.ends.iter_mut().zip(boards) {
            end.live = boards;
        }
    }

    /// A link has ended. What its queues have counted stays, although they don't.
    pub(super) fn parted(&self, n: usize, why: &str) {
        let mut state = self.state();
        state.last_end = Some(Event {
            at: now(),
            text: why.to_owned(),
        });
        let end = &mut state.ends[n];
        end.past = end.queues().into_iter().map(Tally::ended).collect();
        end.live.clear();
        end.attached = Attached::default();
    }

    pub(super) fn ends(&self) -> [End; 2] {
        let state = self.state();
        [0, 1].map(|n| state.ends[n].end())
    }

    /// Times that a link was attached, and seconds since the first time.
    pub(super) fn history(&self) -> (u64, f64) {
        let state = self.state();
        let seconds = state.began.map(|began| began.elapsed().as_secs_f64());
        (state.attaches, seconds.unwrap_or(0.0))
    }

    pub(super) fn describe(&self) -> Process {
        let ends = self.ends().into();
        let state = self.state();
        let joined = state.waiting_for.is_none();
        Process {
            name: self.name.clone(),
            pid: std::process::id(),
            verb: self.kind.word().into(),
            state: if joined { "joined" } else { "waiting" }.into(),
            since: state.since,
            waiting_for: state.waiting_for.clone(),
            attaches: state.attaches,
            last_end: state.last_end.clone(),
            ends,
        }
    }
}
