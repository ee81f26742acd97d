//! What a client does when a path goes down, when none is left, and when the server turns out to be another one.
//!
//! Before a copy of a request is sent again, the connection that it goes by has carried a fence for every epoch by
//! which an older copy may still be under way. So when the request is over, and its permit may be used again,
//! nothing can reach the chunk from the past.

use super::Time;
use super::client::{Action, AfterRestart, AllDown, Client, Event, RequestState};
use super::path::{Conn, PathId, PathState};
use crate::error::{PathError, RequestError};
use crate::wire::{CAP_REPLAY, ConnRsp, Geometry};

/// Instances of the past that are told from a new one.
const GONE: usize = 16;

impl Client {
    /// The path is down: at once closed, its requests elsewhere, and it will be tried again.
    pub(super) fn path_down(&mut self, now: Time, id: PathId, why: PathError) {
        let (attempts, backoff) = (self.config.attempts, self.config.backoff);
        let Some(path) = self.paths.get_mut(&id).filter(|path| path.is_live()) else {
            return;
        };
        let epoch = path.epoch;
        self.actions.push_back(Action::Close { path: id, epoch });
        if path.used {
            self.dead.insert(epoch);
        }
        path.stats.failed += 1;
        let given_up = attempts.is_some_and(|most| path.failures >= most);
        let for_good = matches!(why, PathError::Requested | PathError::GeometryChanged);
        if for_good || given_up {
            path.becomes(PathState::Closed);
        } else {
            path.becomes(PathState::Reconnecting);
            path.at = now + backoff.wait(path.failures, &mut self.jitter);
        }
        path.failures += 1;
        path.why = Some(why);
        path.inflight = 0;
        let failed_over = self.strand(now, id);
        self.events.push_back(Event::PathDown {
            path: id,
            why,
            failed_over,
        });
        self.dispatch_waiting(now);
    }

    /// The requests of a path wait, in the order in which they were taken. How many?
    fn strand(&mut self, now: Time, id: PathId) -> usize {
        let mut stranded = Vec::new();
        for flight in self.flights.iter_mut().flatten() {
            if matches!(flight.place, RequestState::Sent { by, .. } if by.path == id) {
                flight.place = RequestState::Waiting;
                flight.since = now;
                stranded.push((flight.order, flight.ticket));
            }
        }
        stranded.sort_unstable();
        let count = stranded.len();
        let unsafe_to_replay = !self.can_replay && !self.config.replay_unfenced;
        for (_, ticket) in stranded {
            if unsafe_to_replay {
                self.give_up(ticket.permit, RequestError::Aborted);
            } else {
                self.waiting.push_back(ticket.permit);
            }
        }
        if let Some(path) = self.paths.get_mut(&id) {
            path.stats.failed_over += count as u64;
        }
        count
    }

    /// Sends what waits, if a path is up.
    pub(super) fn dispatch_waiting(&mut self, now: Time) {
        while !self.waiting.is_empty() {
            let Some(path) = self.choose() else {
                if self.config.all_down == AllDown::Fail {
                    self.fail_waiting(RequestError::NoPath, |_| true);
                }
                return;
            };
            if let Some(permit) = self.waiting.pop_front() {
                self.post(now, permit, path);
            }
        }
    }

    /// When the first request has waited for too long.
    pub(super) fn next_expiry(&self) -> Option<Time> {
        let AllDown::Queue(limit) = self.config.all_down else {
            return None;
        };
        let waiting = self.waiting.iter();
        let flights = waiting.filter_map(|permit| self.flights[usize::from(*permit)].as_ref());
        let expiry = flights.filter(|flight| !flight.abandoned);
        expiry.map(|flight| flight.since + limit).min()
    }

    /// Fails what has waited for too long.
    pub(super) fn expire(&mut self, now: Time) {
        if let AllDown::Queue(limit) = self.config.all_down
            && self.next_expiry().is_some_and(|expiry| now >= expiry)
        {
            self.fail_waiting(RequestError::TimedOut, |since| now >= since + limit);
        }
    }

    fn fail_waiting(&mut self, error: RequestError, which: impl Fn(Time) -> bool) {
        for permit in std::mem::take(&mut self.waiting) {
            let flight = self.flights[usize::from(permit)].as_ref();
            let fails = flight.is_some_and(|flight| !flight.abandoned && which(flight.since));
            if !fails || self.give_up(permit, error) {
                self.waiting.push_back(permit);
            }
        }
    }

    /// Tells that the request failed. Is its permit still taken? If a copy may be at the server, or on its way,
    /// it is, until the server has settled it.
    fn give_up(&mut self, permit: u16, error: RequestError) -> bool {
        let Some(flight) = self.flights[usize::from(permit)].as_mut() else {
            return false;
        };
        let (ticket, unsettled) = (flight.ticket, flight.sent && self.can_replay);
        let told = std::mem::replace(&mut flight.abandoned, true);
        // Its user's no more, since a copy may still use the chunk.
        flight.reserved &= !unsettled;
        if !unsettled {
            self.release(permit);
        }
        if !told {
            self.tell(ticket, Err(error));
        }
        unsettled
    }

    /// A server has accepted: is it the one that we know?
    pub(super) fn adopt(&mut self, now: Time, conn: Conn, rsp: &ConnRsp) -> Result<(), PathError> {
        let geometry = Geometry::of(rsp)?;
        let caps = rsp.caps.filter(|caps| caps.bits & CAP_REPLAY != 0);
        let instance = caps.map(|caps| caps.number);
        if self.geometry.is_none() {
            self.first_geometry(geometry);
            self.instance = instance;
            self.can_replay = instance.is_some();
        }
        if instance.is_some_and(|instance| self.gone.contains(&instance)) {
            return Err(PathError::ServerRestarted);
        }
        if self.geometry != Some(geometry) {
            return Err(PathError::GeometryChanged);
        }
        if self.instance != instance {
            if conn.cid != 0 {
                return Err(PathError::ServerRestarted);
            }
            self.restarted(now, conn.path, instance);
        }
        Ok(())
    }

    /// The server knows nothing of us any more. Paths to the old one are down, whether they know it or not; what it
    /// had is sent again or fails.
    fn restarted(&mut self, now: Time, by: PathId, instance: Option<u64>) {
        self.gone.extend(self.instance);
        while self.gone.len() > GONE {
            self.gone.pop_front();
        }
        self.instance = instance;
        self.events.push_back(Event::ServerRestarted);
        let accepted = self.paths.values().filter(|path| path.accepted > 0);
        let old = accepted.filter(|path| path.id != by && path.is_live());
        let old: Vec<_> = old.map(|path| path.id).collect();
        for id in old {
            self.path_down(now, id, PathError::ServerRestarted);
        }
        self.can_replay = instance.is_some();
        for permit in std::mem::take(&mut self.waiting) {
            let Some(flight) = self.flights[usize::from(permit)].as_mut() else {
                continue;
            };
            flight.sent = false;
            // What was not sent yet was meant for the old one, too.
            let fails = self.config.after_restart == AfterRestart::Fail;
            if flight.abandoned || fails {
                self.give_up(permit, RequestError::OutcomeUnknown);
            } else {
                self.waiting.push_back(permit);
            }
        }
        self.dead.clear();
    }
}
