//! One path of a client: its states, and what belongs to its present incarnation.

use super::Time;
use super::policy::Candidate;
use super::pulse::{Beat, Heartbeat, Pulse};
use crate::error::PathError;
use crate::stats::PathStats;
use crate::wire::{Geometry, SgDesc, Uuid};
use std::collections::BTreeSet;
use std::time::Duration;

/// How much slower a path is asked that carries nothing.
const IDLE_PACE: u32 = 4;

/// A path's number in its session; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PathId(pub u32);

/// One connection of one incarnation of a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Conn {
    /// The path.
    pub path: PathId,
    /// Which incarnation: one count for the whole session.
    pub epoch: u64,
    /// Which of its connections; 0 is for control and replays.
    pub cid: u16,
}

/// Where a path stands. RTRS has three more, for what it must wait for between them; here `Close` is at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathState {
    /// Its connections are being made, or the server has not told its chunks yet.
    Connecting,
    /// Takes requests.
    Connected,
    /// Down; will be tried again.
    Reconnecting,
    /// Down until a user asks for it.
    Closed,
}

impl PathState {
    /// The edges of the state machine.
    #[must_use]
    pub fn may_become(self, next: PathState) -> bool {
        use PathState::{Closed, Connected, Connecting, Reconnecting};
        matches!(
            (self, next),
            (Connecting, Connected | Reconnecting | Closed)
                | (Connected, Reconnecting | Closed)
                | (Reconnecting, Connecting | Closed)
                | (Closed, Connecting)
        )
    }
}

/// One connection, as far as life goes.
#[derive(Clone, Copy, Debug)]
struct Line {
    pulse: Pulse,
    /// Requests under way by it.
    busy: u32,
}

#[derive(Debug)]
pub(super) struct Path {
    pub(super) id: PathId,
    pub(super) uuid: Uuid,
    state: PathState,
    /// The present, or the last, incarnation.
    pub(super) epoch: u64,
    /// Connections of it that were accepted.
    pub(super) accepted: u16,
    /// Where each chunk is, by this path.
    chunks: Vec<SgDesc>,
    /// The server tells a new key with each response.
    pub(super) new_keys: bool,
    /// Connecting: give up. Reconnecting: try again.
    pub(super) at: Time,
    /// Failures in a row.
    pub(super) failures: u32,
    /// Why it is not up, if it was tried.
    pub(super) why: Option<PathError>,
    /// One for each connection.
    lines: Vec<Line>,
    pub(super) inflight: u32,
    latency: Option<Duration>,
    /// Fences that went out by this incarnation.
    pub(super) fences: BTreeSet<u64>,
    /// Requests have gone out by this incarnation: when it dies, it is to be fenced.
    pub(super) used: bool,
    pub(super) stats: PathStats,
}

impl Path {
    pub(super) fn new(id: PathId, session: &Uuid) -> Self {
        let mut uuid = *session;
        let number = id.0.wrapping_add(1).to_le_bytes();
        let changed = uuid[12..].iter_mut().zip(number);
        changed.for_each(|(byte, other)| *byte ^= other);
        Path {
            id,
            uuid,
            state: PathState::Closed,
            epoch: 0,
            accepted: 0,
            chunks: Vec::new(),
            new_keys: false,
            at: Time::ZERO,
            failures: 0,
            why: None,
            lines: Vec::new(),
            inflight: 0,
            latency: None,
            fences: BTreeSet::new(),
            used: false,
            stats: PathStats::default(),
        }
    }

    pub(super) fn state(&self) -> PathState {
        self.state
    }

    pub(super) fn becomes(&mut self, next: PathState) {
        debug_assert!(self.state.may_become(next), "{:?} -> {next:?}", self.state);
        self.state = next;
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == PathState::Connected
    }

    /// Is there a connection that could deliver something?
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, PathState::Connecting | PathState::Connected)
    }

    pub(super) fn conn(&self, cid: u16) -> Conn {
        Conn {
            path: self.id,
            epoch: self.epoch,
            cid,
        }
    }

    /// A new incarnation begins.
    pub(super) fn begin(&mut self, epoch: u64, give_up: Time) {
        self.becomes(PathState::Connecting);
        self.epoch = epoch;
        self.accepted = 0;
        self.chunks.clear();
        self.fences.clear();
        self.used = false;
        self.inflight = 0;
        self.lines.clear();
        self.at = give_up;
    }

    /// It takes requests from now on.
    pub(super) fn comes_up(&mut self, now: Time) {
        self.becomes(PathState::Connected);
        self.failures = 0;
        self.why = None;
        self.stats.connected += 1;
        let pulse = Pulse::new(now);
        let lines = usize::from(self.accepted);
        self.lines = vec![Line { pulse, busy: 0 }; lines];
    }

    /// A connection has shown that the peer hears us. That stands for connection 0, too, unless there are requests
    /// under way by that one: a connection can die alone.
    pub(super) fn sign(&mut self, now: Time, cid: u16) {
        for (at, line) in self.lines.iter_mut().enumerate() {
            if at == usize::from(cid) || (at == 0 && line.busy == 0) {
                line.pulse.sign(now);
            }
        }
    }

    /// A request goes out by a connection.
    pub(super) fn leaves(&mut self, now: Time, cid: u16) {
        // What was not answered so far was asked at leisure.
        if self.inflight == 0
            && let Some(line) = self.lines.first_mut()
        {
            line.pulse.sign(now);
        }
        self.inflight += 1;
        self.used = true;
        if let Some(line) = self.lines.get_mut(usize::from(cid)) {
            line.busy += 1;
            // It had nothing to answer until now.
            if line.busy == 1 && cid != 0 {
                line.pulse.sign(now);
            }
        }
    }

    /// Its response has come.
    pub(super) fn returns(&mut self, cid: u16) {
        self.inflight = self.inflight.saturating_sub(1);
        if let Some(line) = self.lines.get_mut(usize::from(cid)) {
            line.busy = line.busy.saturating_sub(1);
        }
    }

    /// Which connections are to be asked now? `None`: one does not answer any more. Others than connection 0 are
    /// asked only if requests are under way by them, and only a server of ours (`all`): mainline warns about it.
    pub(super) fn beat(&mut self, now: Time, config: &Heartbeat, all: bool) -> Option<Vec<u16>> {
        let mut ask = Vec::new();
        let config = &self.pace(config);
        for (cid, line) in (0..).zip(&mut self.lines) {
            if cid == 0 || (all && line.busy > 0) {
                match line.pulse.check(now, config) {
                    Beat::Quiet => {}
                    Beat::Ask => ask.push(cid),
                    Beat::Dead => return None,
                }
            }
        }
        Some(ask)
    }

    /// When to call [`beat`](Self::beat).
    pub(super) fn next_beat(&self, config: &Heartbeat, all: bool) -> Option<Time> {
        let config = &self.pace(config);
        let lines = self.lines.iter().enumerate();
        let asked = lines.filter(|(cid, line)| *cid == 0 || (all && line.busy > 0));
        asked.map(|(_, line)| line.pulse.deadline(config)).min()
    }

    /// A path that carries nothing is asked less often: nobody waits for it.
    fn pace(&self, config: &Heartbeat) -> Heartbeat {
        match self.inflight {
            0 => config.times(IDLE_PACE),
            _ => *config,
        }
    }

    pub(super) fn candidate(&self) -> Candidate<PathId> {
        Candidate {
            id: self.id,
            inflight: self.inflight,
            latency: self.latency,
        }
    }

    /// A request took so long: an eighth of the average is the newest.
    pub(super) fn took(&mut self, latency: Duration) {
        self.stats.latency.add(latency);
        let mean = self
            .latency
            .map_or(latency, |mean| (mean * 7 + latency) / 8);
        self.latency = Some(mean);
    }

    /// The server says where its chunks are (rtrs-clt.c `process_info_rsp`).
    pub(super) fn learn(&mut self, told: &[SgDesc], geometry: &Geometry) -> Result<(), PathError> {
        let wrong = PathError::Misbehaved("its chunks do not add up");
        let parts = u32::try_from(told.len()).map_err(|_| wrong)?;
        if parts == 0 || u32::from(geometry.depth()) % parts != 0 {
            return Err(wrong);
        }
        let each = u32::from(geometry.depth()) / parts;
        let len = each.checked_mul(geometry.chunk()).ok_or(wrong)?;
        let mut chunks = Vec::with_capacity(usize::from(geometry.depth()));
        for desc in told {
            let fits = desc.len == len && desc.addr.checked_add(u64::from(len)).is_some();
            if !fits {
                return Err(wrong);
            }
            chunks.extend((0..each).map(|n| SgDesc {
                addr: desc.addr + u64::from(n) * u64::from(geometry.chunk()),
                key: desc.key,
                len: geometry.chunk(),
            }));
        }
        self.chunks = chunks;
        Ok(())
    }

    pub(super) fn chunk(&self, permit: u16) -> SgDesc {
        let known = self.chunks.get(usize::from(permit));
        known.copied().unwrap_or_default()
    }

    /// The next request in this chunk needs this key.
    pub(super) fn new_key(&mut self, permit: u16, key: u32) -> Result<(), PathError> {
        let known = self.chunks.get_mut(usize::from(permit));
        let known = known.filter(|_| self.new_keys);
        let chunk = known.ok_or(PathError::Misbehaved("a key for no chunk"))?;
        chunk.key = key;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desc(len: u32) -> SgDesc {
        SgDesc {
            addr: 0x1000,
            key: 7,
            len,
        }
    }

    #[test]
    fn chunks_that_do_not_add_up_are_refused() {
        let geometry = Geometry::new(4, 8192, 4096).expect("valid");
        let mut path = Path::new(PathId(0), &[0; 16]);
        assert!(path.learn(&[], &geometry).is_err());
        assert!(path.learn(&[desc(8192); 3], &geometry).is_err());
        assert!(path.learn(&[desc(8192); 2], &geometry).is_err());
        let far = SgDesc {
            addr: u64::MAX - 9,
            ..desc(4 * 8192)
        };
        assert!(path.learn(&[far], &geometry).is_err());
        assert!(path.learn(&[desc(2 * 8192); 2], &geometry).is_ok());
        assert_eq!(path.chunk(3).addr, 0x1000 + 8192);
        assert_eq!(path.chunk(3).len, 8192);
    }

    #[test]
    fn a_path_that_is_down_takes_no_short_cut_up() {
        use PathState::{Closed, Connected, Connecting, Reconnecting};
        assert!(!Reconnecting.may_become(Connected) && !Closed.may_become(Connected));
        assert!(!Closed.may_become(Reconnecting) && Closed.may_become(Connecting));
    }
}
