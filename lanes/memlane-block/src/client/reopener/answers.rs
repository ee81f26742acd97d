//! What comes to the reopener: news of the session, and the server's answers.

use super::super::answer::{Opened, Server};
use super::super::error::{OpenError, of_request};
use super::super::mail::Claim;
use super::super::remote::{Remote, State, Status, Under};
use super::{Ask, BACKOFF, Known, LEASE_LEN, NOTICE_GAP, Reopener, Who};
use crate::wire::{WireError, notice};
use memlane_transport::engine::client::AllDown as Patience;
use memlane_transport::error::RequestError;
use memlane_transport::port::{Completion, News};
use std::sync::Arc;
use std::time::Duration;

/// Most news that are read before something else is done.
const MOST_NEWS: usize = 256;
/// No era: they begin with 1.
const NEVER: u64 = 0;

impl Reopener {
    pub(super) fn read_news(&mut self) {
        let mut restarted = false;
        for _ in 0..MOST_NEWS {
            let news = self.session.news();
            self.heard += u64::from(news.is_some());
            match news {
                Some(News::ServerRestarted) => restarted = true,
                Some(News::Notice(bits)) => self.look(|id| notice(id) == notice(bits)),
                // What was sent while no path was up has not arrived.
                Some(News::PathUp(_)) => self.look(|_| true),
                Some(News::PathDown(..)) => {}
                None => break,
            }
        }
        if restarted {
            self.restarted();
        }
    }

    /// The server has forgotten everything: volumes are to be opened anew before anything else is asked of them.
    pub(super) fn restarted(&mut self) {
        let now = self.clock.now();
        self.era += 1;
        self.known = Known::No(now);
        self.info_failures = 0;
        for entry in &mut self.entries {
            (entry.wanted, entry.asked) = (true, false);
            (entry.at, entry.failures) = (now, 0);
            if let Who::Open {
                remote,
                refused,
                taken: false,
                ..
            } = &mut entry.who
            {
                *refused = None;
                remote.becomes(State::Waiting);
                remote.show(Status::Reopening(None));
            }
        }
    }

    /// Volumes may have changed: opening them again tells how.
    fn look(&mut self, which: impl Fn(u32) -> bool) {
        let now = self.clock.now();
        for entry in &mut self.entries {
            if let Who::Open { remote, .. } = &entry.who
                && which(remote.gate().device_id)
                && !entry.wanted
            {
                entry.wanted = true;
                entry.at = now.saturating_add(NOTICE_GAP);
            }
        }
    }

    pub(super) fn port_answers(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.port.reap(&mut completions);
        // What the new server answered counts in the new era only.
        self.read_news();
        for completion in completions.drain(..) {
            self.answered(completion);
        }
        self.completions = completions;
    }

    pub(super) fn answered(&mut self, completion: Completion) {
        let place = self.asked.iter().position(|a| a.tag == completion.tag);
        let Some(asked) = place.map(|place| self.asked.swap_remove(place)) else {
            return;
        };
        let mut answer = [0; LEASE_LEN as usize];
        let mut told = false;
        if let Some(lease) = completion.lease {
            let n = lease.bytes().len().min(answer.len());
            told = lease.take(0, &mut answer[..n]);
            self.leases.push(lease);
        }
        let result = match completion.result {
            Ok(()) if told => Ok(&answer),
            Ok(()) => Err(OpenError::Nonsense(WireError::Short { have: 0, need: 1 })),
            Err(RequestError::Closed) => {
                self.session_closed();
                Err(OpenError::Closed)
            }
            Err(error) => Err(of_request(error)),
        };
        match asked.ask {
            Ask::Close { reply } => {
                // A client that is gone need not be told either.
                let _ = reply.map(|reply| reply.send(()));
            }
            _ if asked.era != self.era => {}
            Ask::SessInfo => {
                let server = result.and_then(|bytes| Server::parse(bytes));
                let server = server.map(|server| server.for_client(self.options.borrow));
                self.server_told(server);
            }
            Ask::Open { key, name } => {
                let max_io = self.session.geometry().map_or(0, |g| g.max_io());
                let (caps, Known::Yes(_)) = (self.caps(), self.known) else {
                    return;
                };
                let opened = result.and_then(|bytes| Opened::parse(bytes, caps, max_io));
                self.open_told(key, &name, opened);
            }
        }
    }

    pub(super) fn caps(&self) -> u16 {
        match self.known {
            Known::Yes(server) => server.caps,
            _ => 0,
        }
    }

    pub(super) fn server_told(&mut self, server: Result<Server, OpenError>) {
        let now = self.clock.now();
        match server {
            Ok(server) => {
                self.known = Known::Yes(server);
                self.info_failures = 0;
            }
            Err(error) => {
                let wait = BACKOFF.wait(self.info_failures, &mut self.jitter);
                self.known = Known::No(now.saturating_add(wait));
                self.info_failures = self.info_failures.saturating_add(1);
                let keys: Vec<u64> = self.entries.iter().map(|entry| entry.key).collect();
                for key in keys {
                    self.refused(key, error);
                }
            }
        }
    }

    pub(super) fn open_told(&mut self, key: u64, name: &str, opened: Result<Opened, OpenError>) {
        let Some(place) = self.entries.iter().position(|entry| entry.key == key) else {
            // Nobody wants it any more.
            if let Ok(opened) = opened {
                self.close_orphan(name, opened.device_id);
            }
            return;
        };
        self.entries[place].asked = false;
        match opened {
            Err(error) => self.refused(key, error),
            Ok(opened) if matches!(self.entries[place].who, Who::Opening { .. }) => {
                self.first_open(place, &opened);
            }
            Ok(opened) => self.opened_again(place, &opened),
        }
    }

    /// A caller gave up before the answer came. The volume is closed, unless another caller wants it.
    pub(super) fn close_orphan(&mut self, name: &str, device_id: u32) {
        let used = self.entries.iter().any(|entry| match &entry.who {
            Who::Opening { .. } => entry.name == name,
            Who::Open { remote, .. } => entry.name == name || remote.gate().device_id == device_id,
        });
        if !used {
            self.ask_close(device_id, None);
        }
    }

    pub(super) fn first_open(&mut self, place: usize, opened: &Opened) {
        let Known::Yes(server) = self.known else {
            return;
        };
        // Another name for the same volume has the same number.
        let twice = self.entries.iter().any(|entry| match &entry.who {
            Who::Open { remote, under, .. } => {
                under.era == self.era && remote.gate().device_id == opened.device_id
            }
            Who::Opening { .. } => false,
        });
        if twice {
            return self.answer_opening(place, OpenError::AlreadyOpen);
        }
        let era = self.era;
        let entry = &mut self.entries[place];
        let remote = Arc::new(Remote::new(entry.name.clone(), entry.access, opened));
        remote.borrow(opened, &self.loans);
        let under = Under { era, server };
        let open = Who::Open {
            remote: Arc::clone(&remote),
            under,
            refused: None,
            taken: false,
        };
        entry.failures = 0;
        let opening = std::mem::replace(&mut entry.who, open);
        if let Who::Opening { reply, .. } = opening {
            let mail = Arc::clone(&self.mail);
            // If nobody takes it, the claim closes it.
            let _ = reply.send(Ok(Claim { remote, mail }));
        }
    }

    pub(super) fn opened_again(&mut self, place: usize, opened: &Opened) {
        let Known::Yes(server) = self.known else {
            return;
        };
        let entry = &mut self.entries[place];
        let key = entry.key;
        let Who::Open {
            remote,
            under,
            refused,
            ..
        } = &mut entry.who
        else {
            return;
        };
        let gate = remote.gate();
        let same_era = under.era == self.era;
        if same_era && gate.device_id != opened.device_id {
            // The volume is not what it was, although no restart was reported. The other volumes go on meanwhile.
            under.era = NEVER;
            (entry.wanted, entry.at) = (true, self.clock.now());
            remote.becomes(State::Waiting);
            self.known = Known::No(entry.at);
            return;
        }
        if let Err(change) = opened.still(&remote.info(), same_era) {
            return self.refused(key, OpenError::Changed(change));
        }
        if !same_era && !server.kept_memory_since(&under.server) {
            remote.durable.rebooted(&remote.counters);
        }
        remote.learn(opened);
        if !same_era || gate.state != State::Open {
            remote.borrow(opened, &self.loans);
            remote.revive(opened.device_id);
        } else if entry.doubted && remote.is_doubted() {
            remote.deny();
        }
        remote.show(Status::Open);
        (*refused, entry.failures) = (None, 0);
        *under = Under {
            era: self.era,
            server,
        };
    }

    /// The server did not open this one.
    pub(super) fn refused(&mut self, key: u64, error: OpenError) {
        let now = self.clock.now();
        let Some(place) = self.entries.iter().position(|entry| entry.key == key) else {
            return;
        };
        let grace = match self.options.patience {
            Patience::Queue(limit) => self.options.grace.min(limit),
            Patience::Fail => Duration::ZERO,
        };
        let wait = BACKOFF.wait(self.entries[place].failures, &mut self.jitter);
        let entry = &mut self.entries[place];
        entry.failures = entry.failures.saturating_add(1);
        (entry.wanted, entry.at) = (true, now.saturating_add(wait));
        let transient = matches!(error, OpenError::TimedOut | OpenError::Ending);
        match &mut entry.who {
            // A caller that waits for the answer wants nothing else.
            Who::Opening { late, .. } if transient => *late = error,
            Who::Opening { .. } => self.answer_opening(place, error),
            Who::Open { .. } if error == OpenError::Closed => {}
            Who::Open { remote, taken, .. } if *taken || error == OpenError::Taken => {
                *taken = true;
                entry.wanted = false;
                remote.becomes(State::Refused);
                remote.show(Status::Failed(OpenError::Taken));
            }
            Who::Open {
                remote,
                under,
                refused,
                ..
            } => {
                let state = remote.gate().state;
                let changed = matches!(error, OpenError::Changed(_));
                if state == State::Open && under.era == self.era && !entry.doubted && !changed {
                    // Only a look at its size: it is open nevertheless.
                    return;
                }
                let since = if transient { None } else { Some(now) };
                *refused = refused.or(since);
                let over = refused.is_some_and(|since| now.saturating_sub(since) >= grace);
                if over && !transient {
                    remote.becomes(State::Refused);
                    remote.show(Status::Failed(error));
                } else if state != State::Refused {
                    remote.becomes(State::Waiting);
                    remote.show(Status::Reopening(Some(error)));
                }
            }
        }
    }

    pub(super) fn answer_opening(&mut self, place: usize, error: OpenError) {
        let entry = self.entries.swap_remove(place);
        if let Who::Opening { reply, .. } = entry.who {
            // If nobody is there any more, nobody need know.
            let _ = reply.send(Err(error));
        }
    }

    pub(super) fn session_closed(&mut self) {
        self.closed = true;
        for entry in std::mem::take(&mut self.entries) {
            match entry.who {
                Who::Opening { reply, .. } => {
                    let _ = reply.send(Err(OpenError::Closed));
                }
                Who::Open { remote, .. } => {
                    remote.becomes(State::Closed);
                    remote.show(Status::Closed);
                }
            }
        }
    }
}
