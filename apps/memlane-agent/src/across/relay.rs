//! Meetings with processes of other machines: what is decided.
//!
//! The connecting end's agent asks the others; the accepting end's agent remembers what it is asked for as long as a question
//! lasts, and decides: it finds, the other agrees, and both tell their programs. Two processes that have met share a *bond*: two
//! extents, one for each direction, and a life line.
//!
//! | room | what |
//! |---|---|
//! | [`meeting`] | how two ends that have both asked come to meet |
//! | [`bonds`] | how two processes come to share extents, and how they end it |
//!
//! Holds no descriptor and no clock: memory and time in, [`Act`]s out.

mod bonds;
mod meeting;

use super::extents::{Extents, Lifetime};
use super::layout::MACHINES;
use super::mail::{BYTES, Cursor, Mail, Runs, Words};
use super::participants::{Identity, JoinError, Participants};
use super::region::Region;
use crate::pairs::{Asker, Key, PATIENCE, Pairs};
use memlane_socket::protocol::agent::{Across, Parting, Refusal, Role};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// An agent looks at its mail again after this part of the time since the last message: a handshake has four, one behind the
/// other, and none of them waits for longer than that part of what it took to come. So an agent looks about 140 times in
/// the second after a message, which an emulated CPU, whose each look takes a tenth of a millisecond, would notice if they
/// were a thousand …
const PART: u32 = 16;
/// … but not sooner than this …
const QUICK: Duration = Duration::from_micros(50);
/// … and not later.
const IDLE: Duration = Duration::from_millis(40);
/// How often it looks after processes that were there before it.
const BURIAL: Duration = Duration::from_secs(1);
/// A channel whose handshake is not over after this time is ended.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Questions of other machines that are remembered.
const FOREIGN: usize = 8_192;
/// The most messages that wait for room in one ring. An agent that does not take its mail is told nothing more.
const OUTBOX: usize = 1_024;
/// Messages that are taken from one ring at a time.
const AT_ONCE: usize = 64;

/// A process of this machine's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Party {
    /// The agent's number of its connection.
    pub number: u64,
    /// Its name among agents: random.
    pub name: u64,
    /// Which process it is.
    pub lifetime: Lifetime,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// An asker gets this answer, one end of channel `channel`, and, if `line`, one end of the life line of `bond`.
    Introduce {
        /// Who has asked.
        asker: Asker,
        /// What it is told.
        across: Across,
        /// The channel.
        channel: u64,
        /// The bond.
        bond: u64,
        /// Is it the bond's first answer?
        line: bool,
    },
    /// An asker meets nobody.
    Refuse(Asker, Refusal),
    /// A message for the program that has the other end of a channel.
    Deliver(u64, Vec<u8>),
    /// A channel is over.
    EndChannel(u64),
    /// The process at the other end of a bond is no more, or has let go: the life line ends.
    EndLine(u64),
}

/// This machine's side of what is heard: who waits, who is there, and the time.
struct Here<'a> {
    pairs: &'a mut Pairs,
    parties: &'a dyn Fn(u64) -> Option<Party>,
    now: Instant,
}

/// What has been done since the agent's start, and what there is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Tally {
    /// Other machines that live.
    pub machines: u64,
    /// Connections whose ends were introduced.
    pub met: u64,
    /// Pairs of processes that share memory.
    pub bonds: u64,
    /// Extents in which this machine's processes receive …
    pub extents: u64,
    /// … and those of the whole region, for all machines.
    pub extents_of_region: u64,
    /// Meetings that failed as there was no extent.
    pub no_memory: u64,
}

/// A question of another machine's.
#[derive(Clone, Copy, Debug)]
struct Foreign {
    place: usize,
    process: u64,
    is_roots: bool,
    until: Instant,
}

/// A meeting that this agent has proposed to the other one.
#[derive(Clone, Copy, Debug)]
struct Match {
    asker: Asker,
    key: Key,
    place: usize,
    bond: u64,
    until: Instant,
}

/// A channel that is open: the other agent's number of its end.
#[derive(Clone, Copy, Debug)]
struct Channel {
    place: usize,
    theirs: u64,
    until: Instant,
}

/// The other side of a bond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Theirs {
    /// Its name for the bond, which is its process's name to ours.
    name: u64,
    extent: usize,
}

/// Two processes that share two extents.
#[derive(Clone, Copy, Debug)]
struct Bond {
    /// Our process.
    party: Party,
    /// The other machine, and the process there.
    place: usize,
    process: u64,
    /// The extent in which ours receives.
    own: usize,
    theirs: Option<Theirs>,
    /// Answers about it that our process was given.
    serial: u32,
    /// The other side has let go of it, or knows our process by another name: the next meeting makes another bond.
    is_over: bool,
    /// The other side has let go of it, and ours has been told.
    has_ended: bool,
}

/// What an agent knows of other machines.
pub struct Relay {
    region: Region,
    who: Participants,
    extents: Extents,
    cursors: [Cursor; MACHINES],
    outboxes: [VecDeque<Mail>; MACHINES],
    foreign: HashMap<Key, Foreign>,
    /// In the order in which they end.
    foreign_ends: VecDeque<(Instant, Key)>,
    matches: HashMap<u64, Match>,
    channels: HashMap<u64, Channel>,
    /// By our own names for them.
    bonds: HashMap<u64, Bond>,
    next_channel: u64,
    next_look: Instant,
    next_burial: Instant,
    /// A message was taken or posted since the last turn …
    has_moved: bool,
    /// … and when that was so last.
    moved: Instant,
    acts: Vec<Act>,
    tally: Tally,
    random: Box<dyn FnMut() -> u64 + Send>,
}

impl Relay {
    /// Takes part in a region. Names are drawn from `random`; `wait` sleeps.
    ///
    /// # Errors
    /// No place is free, or another agent has this one's.
    pub fn join(
        region: Region,
        identity: Identity,
        mut random: Box<dyn FnMut() -> u64 + Send>,
        wait: &dyn Fn(Duration),
        now: Instant,
    ) -> Result<Relay, JoinError> {
        let who = Participants::join(&region, identity, random().max(1), wait, now)?;
        let extents = Extents::take_over(&region, &who);
        let cursors = core::array::from_fn(|other| Cursor::now(&region, who.place(), other));
        Ok(Relay {
            region,
            who,
            extents,
            cursors,
            outboxes: core::array::from_fn(|_| VecDeque::new()),
            foreign: HashMap::new(),
            foreign_ends: VecDeque::new(),
            matches: HashMap::new(),
            channels: HashMap::new(),
            bonds: HashMap::new(),
            next_channel: 1,
            next_look: now,
            next_burial: now + BURIAL,
            has_moved: false,
            moved: now,
            acts: Vec::new(),
            tally: Tally::default(),
            random,
        })
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// What there is to be done since this was asked last.
    pub fn acts(&mut self) -> Vec<Act> {
        core::mem::take(&mut self.acts)
    }

    /// What has been done.
    pub fn tally(&self, now: Instant) -> Tally {
        Tally {
            machines: self.who.living(now).count() as u64,
            bonds: self.bonds.len() as u64,
            extents: self.extents.len() as u64,
            extents_of_region: self.region.division().extents as u64,
            ..self.tally
        }
    }

    /// When `turn` is due.
    pub fn next(&self) -> Instant {
        self.next_look
    }

    // --- what this machine's processes do ------------------------------------

    /// A process asks about a connection whose other end has not asked here.
    pub fn ask(&mut self, party: Party, key: Key, role: Role, pairs: &mut Pairs, now: Instant) {
        let Some((_, is_roots)) = pairs.waiting(key, role) else {
            return;
        };
        let places: Vec<usize> = self.who.living(now).map(|(place, _)| place).collect();
        if places.is_empty() {
            return;
        }
        // The other end asks at about the same time.
        self.moved = now;
        self.next_look = self.next_look.min(now + QUICK);
        match role {
            Role::Connected => {
                let ask = Mail::Ask {
                    key,
                    process: party.name,
                    is_roots,
                };
                places
                    .into_iter()
                    .for_each(|place| self.post(place, ask.clone()));
            }
            Role::Accepted => {
                let asked = self.foreign.get(&key);
                if asked.is_some_and(|asked| asked.until > now) {
                    self.find(key, party, pairs, now);
                }
            }
        }
    }

    /// The process has let go of what a bond has given it.
    pub fn part(&mut self, party: Party, parting: Parting) {
        let is_meant = |bond: &Bond| {
            bond.party.number == party.number
                && bond.theirs.is_some_and(|t| t.name == parting.peer)
                && bond.serial == parting.serial
        };
        let found = self.bonds.iter().find(|(_, bond)| is_meant(bond));
        match found.map(|(&name, _)| name) {
            Some(name) => self.release(name),
            None => {
                let (region, who) = (&self.region, &self.who);
                self.extents.part(region, who, party.lifetime, parting.peer);
            }
        }
    }

    /// The process is no more.
    pub fn process_gone(&mut self, process: u64) {
        let its = self.bonds.iter().filter(|(_, b)| b.party.number == process);
        let its: Vec<u64> = its.map(|(&name, _)| name).collect();
        for name in its {
            self.release(name);
        }
        self.matches.retain(|_, m| m.asker.process != process);
    }

    /// A program has said something over its end of a channel. `false`: the channel is over.
    pub fn said(&mut self, channel: u64, bytes: &[u8]) -> bool {
        let Some(at) = self.channels.get(&channel).copied() else {
            return false;
        };
        if bytes.len() > BYTES || self.outboxes[at.place].len() >= OUTBOX {
            return false;
        }
        let relay = Mail::Relay {
            channel: at.theirs,
            bytes: bytes.to_vec(),
        };
        self.post(at.place, relay);
        true
    }

    /// A program has closed its end of a channel, or did not get it.
    pub fn channel_ended(&mut self, channel: u64) {
        if let Some(at) = self.channels.remove(&channel) {
            let ended = Mail::Ended { channel: at.theirs };
            self.post(at.place, ended);
        }
    }

    // --- time -----------------------------------------------------------------

    /// Shows that this agent lives, takes the mail, and ends what is over.
    pub fn turn(
        &mut self,
        pairs: &mut Pairs,
        parties: &dyn Fn(u64) -> Option<Party>,
        now: Instant,
    ) {
        self.who.beat(&self.region, now);
        let is_due = now >= self.next_look;
        if is_due {
            for place in self.who.look(&self.region, now) {
                self.begin_anew_with(place, pairs);
            }
        }
        let others: Vec<(usize, u64)> = self.who.living(now).collect();
        for (place, epoch) in others {
            let mut here = Here {
                pairs: &mut *pairs,
                parties,
                now,
            };
            self.take_mail(place, epoch, &mut here);
        }
        if is_due {
            self.look_after_bonds();
            self.end_what_is_over(pairs, now);
            self.extents.free(&self.region, &self.who);
        }
        if now >= self.next_burial {
            self.next_burial = now + BURIAL;
            self.extents.bury(&self.region, &self.who);
        }
        for place in 0..MACHINES {
            self.flush(place);
        }
        if core::mem::take(&mut self.has_moved) {
            self.moved = now;
        }
        let since = now.saturating_duration_since(self.moved);
        let next = now + (since / PART).clamp(QUICK, IDLE);
        self.next_look = if is_due {
            next
        } else {
            next.min(self.next_look)
        };
    }

    /// Another run of an agent, or none, is at this place: what was agreed with the last one is void. Extents are not.
    fn begin_anew_with(&mut self, place: usize, pairs: &mut Pairs) {
        self.outboxes[place].clear();
        self.cursors[place] = Cursor::now(&self.region, self.who.place(), place);
        let its = self.channels.iter().filter(|(_, c)| c.place == place);
        let its: Vec<u64> = its.map(|(&channel, _)| channel).collect();
        for channel in its {
            self.channels.remove(&channel);
            self.acts.push(Act::EndChannel(channel));
        }
        let its = self.matches.iter().filter(|(_, m)| m.place == place);
        let its: Vec<u64> = its.map(|(&channel, _)| channel).collect();
        for channel in its {
            self.fail_match(channel, Refusal::Nobody, pairs);
        }
        self.foreign.retain(|_, asked| asked.place != place);
        // Its processes have other names for that run.
        for bond in self.bonds.values_mut().filter(|b| b.place == place) {
            bond.is_over = true;
        }
    }

    fn end_what_is_over(&mut self, pairs: &mut Pairs, now: Instant) {
        while let Some(&(until, key)) = self.foreign_ends.front()
            && until <= now
        {
            self.foreign_ends.pop_front();
            if self
                .foreign
                .get(&key)
                .is_some_and(|asked| asked.until <= now)
            {
                self.foreign.remove(&key);
            }
        }
        let over = self.matches.iter().filter(|(_, m)| m.until <= now);
        let over: Vec<u64> = over.map(|(&channel, _)| channel).collect();
        for channel in over {
            self.fail_match(channel, Refusal::Nobody, pairs);
        }
        let over = self.channels.iter().filter(|(_, c)| c.until <= now);
        let over: Vec<u64> = over.map(|(&channel, _)| channel).collect();
        for channel in over {
            self.acts.push(Act::EndChannel(channel));
            self.channel_ended(channel);
        }
    }

    // --- mail -----------------------------------------------------------------

    fn post(&mut self, place: usize, mail: Mail) {
        self.has_moved = true;
        let outbox = &mut self.outboxes[place];
        // What is lost here is over when its time is: a meeting, a handshake, a channel.
        if outbox.len() >= OUTBOX {
            return;
        }
        outbox.push_back(mail);
        self.flush(place);
    }

    fn flush(&mut self, place: usize) {
        let runs = Runs {
            from: self.who.epoch(),
            to: self.who.epoch_at(place),
        };
        while let Some(mail) = self.outboxes[place].front() {
            let ring = self.region.ring(self.who.place(), place);
            if !self.cursors[place].send(ring, &mail.encode(runs)) {
                return;
            }
            self.outboxes[place].pop_front();
        }
    }

    fn take_mail(&mut self, place: usize, epoch: u64, here: &mut Here<'_>) {
        let runs = Runs {
            from: epoch,
            to: self.who.epoch(),
        };
        let own = self.who.place();
        for _ in 0..AT_ONCE {
            let ring = self.region.ring(place, own);
            let Some(words) = self.cursors[place].take(ring) else {
                break;
            };
            self.has_moved = true;
            self.hear(place, &words, runs, here);
        }
        let (to_other, to_us) = (self.region.ring(own, place), self.region.ring(place, own));
        self.cursors[place].mend(to_other, to_us);
    }

    fn hear(&mut self, place: usize, words: &Words, runs: Runs, here: &mut Here<'_>) {
        let is_its = |c: &Channel| c.place == place;
        match Mail::decode(words, runs) {
            Some(Mail::Ask {
                key,
                process,
                is_roots,
            }) => {
                let asked = Foreign {
                    place,
                    process,
                    is_roots,
                    until: here.now + PATIENCE,
                };
                self.asked(key, asked, here);
            }
            Some(Mail::Found { key, process, side }) => {
                self.found(place, key, process, side, here);
            }
            Some(Mail::Meet { channel, side }) => self.agreed(place, channel, side, here),
            Some(Mail::Failed { key, channel, why }) => {
                self.failed(place, key, channel, why, here);
            }
            Some(Mail::Relay { channel, bytes })
                if self.channels.get(&channel).is_some_and(is_its) =>
            {
                self.acts.push(Act::Deliver(channel, bytes));
            }
            Some(Mail::Ended { channel }) if self.channels.get(&channel).is_some_and(is_its) => {
                self.channels.remove(&channel);
                self.acts.push(Act::EndChannel(channel));
            }
            Some(Mail::Relay { .. } | Mail::Ended { .. }) | None => {}
        }
    }
}

#[cfg(test)]
mod tests;
