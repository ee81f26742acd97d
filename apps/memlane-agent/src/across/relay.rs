//! Meetings with processes of other machines: what is decided.
//!
//! The connecting end's agent asks the others; the accepting end's agent remembers what it is asked for as long as a question
//! lasts, and decides: it finds, the other agrees, and both tell their programs. Two processes that have met share a *bond*: two
//! extents, one for each direction, and a life line.
//!
//! Holds no descriptor and no clock: memory and time in, [`Act`]s out.

use super::extents::{self, Extents, Lifetime, Sender};
use super::layout::{EXTENTS, MACHINES};
use super::mail::{BYTES, Cursor, Failure, Mail, Runs, Side, Words};
use super::participants::{Identity, JoinError, Participants};
use super::region::Region;
use crate::pairs::{Asker, Key, PATIENCE, Pairs};
use memlane_socket::protocol::agent::{Across, Parting, Refusal, Role};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How often an agent looks at its mail while messages follow each other: a handshake has four, one behind the other …
const QUICK: Duration = Duration::from_micros(50);
/// … which it takes for this long after the last one …
const QUICK_FOR: Duration = Duration::from_millis(5);
/// … while somebody waits, or has waited within the last second …
const BUSY: Duration = Duration::from_millis(1);
const BUSY_FOR: Duration = Duration::from_secs(1);
/// … and while nobody does.
const IDLE: Duration = Duration::from_millis(20);
/// How often it looks after processes that were there before it.
const BURIAL: Duration = Duration::from_secs(1);
/// A channel whose handshake is not over after this time is ended.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Questions of other machines that are remembered.
const FOREIGN: usize = 8_192;
/// Messages that wait for room in one ring. An agent that does not take its mail is asked nothing more.
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
    /// An answer to one of our questions may come until then.
    hopes: Instant,
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
            hopes: now,
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
        match role {
            Role::Connected => {
                let places: Vec<usize> = self.who.living(now).map(|(place, _)| place).collect();
                if !places.is_empty() {
                    self.hopes = now + PATIENCE;
                    self.next_look = self.next_look.min(now + QUICK);
                }
                for place in places {
                    let process = party.name;
                    self.post(
                        place,
                        Mail::Ask {
                            key,
                            process,
                            is_roots,
                        },
                    );
                }
            }
            Role::Accepted => {
                if self
                    .foreign
                    .get(&key)
                    .is_some_and(|asked| asked.until > now)
                {
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
            self.take_mail(place, epoch, pairs, parties, now);
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
        let is_busy = !self.channels.is_empty()
            || !self.matches.is_empty()
            || self.hopes > now
            || self.outboxes.iter().any(|outbox| !outbox.is_empty());
        if core::mem::take(&mut self.has_moved) {
            self.moved = now;
        }
        let rest = match now.saturating_duration_since(self.moved) {
            since if since < QUICK_FOR => QUICK,
            since if is_busy || since < BUSY_FOR => BUSY,
            _ => IDLE,
        };
        let next = (now + rest).min(self.who.next_beat());
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

    /// Who writes to our processes may have let go, or died.
    fn look_after_bonds(&mut self) {
        for (&name, bond) in &mut self.bonds {
            let sender = extents::sender(self.region.extent(bond.own), &self.who);
            if sender == Sender::Ended && !core::mem::replace(&mut bond.has_ended, true) {
                bond.is_over = true;
                self.acts.push(Act::EndLine(name));
            }
        }
    }

    // --- mail -----------------------------------------------------------------

    fn post(&mut self, place: usize, mail: Mail) {
        self.has_moved = true;
        let outbox = &mut self.outboxes[place];
        if matches!(mail, Mail::Ask { .. }) && outbox.len() >= OUTBOX {
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

    fn take_mail(
        &mut self,
        place: usize,
        epoch: u64,
        pairs: &mut Pairs,
        parties: &dyn Fn(u64) -> Option<Party>,
        now: Instant,
    ) {
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
            self.hear(place, &words, runs, pairs, parties, now);
        }
        let (to_other, to_us) = (self.region.ring(own, place), self.region.ring(place, own));
        self.cursors[place].mend(to_other, to_us);
    }

    fn hear(
        &mut self,
        place: usize,
        words: &Words,
        runs: Runs,
        pairs: &mut Pairs,
        parties: &dyn Fn(u64) -> Option<Party>,
        now: Instant,
    ) {
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
                    until: now + PATIENCE,
                };
                self.asked(key, asked, pairs, parties, now);
            }
            Some(Mail::Found { key, process, side }) => {
                self.found(place, key, process, side, pairs, parties, now);
            }
            Some(Mail::Meet { channel, side }) => self.agreed(place, channel, side, pairs, now),
            Some(Mail::Failed { key, channel, why }) => {
                self.failed(place, key, channel, why, pairs);
            }
            Some(Mail::Relay { channel, bytes }) if self.is_of(channel, place) => {
                self.acts.push(Act::Deliver(channel, bytes));
            }
            Some(Mail::Ended { channel }) if self.is_of(channel, place) => {
                self.channels.remove(&channel);
                self.acts.push(Act::EndChannel(channel));
            }
            Some(Mail::Relay { .. } | Mail::Ended { .. }) | None => {}
        }
    }

    /// Is this channel one to the machine at that place?
    fn is_of(&self, channel: u64, place: usize) -> bool {
        let known = self.channels.get(&channel);
        known.is_some_and(|channel| channel.place == place)
    }

    // --- the accepting end's side ----------------------------------------------

    /// Another machine's process asks who has the accepting end.
    fn asked(
        &mut self,
        key: Key,
        asked: Foreign,
        pairs: &mut Pairs,
        parties: &dyn Fn(u64) -> Option<Party>,
        now: Instant,
    ) {
        let other = self.foreign.get(&key).filter(|other| other.until > now);
        if let Some(other) = other
            && (other.place, other.process) != (asked.place, asked.process)
        {
            return self.forged(key, [*other, asked], pairs);
        }
        if self.foreign.len() >= FOREIGN {
            return;
        }
        self.foreign.insert(key, asked);
        self.foreign_ends.push_back((asked.until, key));
        if let Some((waiter, _)) = pairs.waiting(key, Role::Accepted)
            && let Some(party) = parties(waiter.process)
        {
            self.find(key, party, pairs, now);
        }
    }

    /// Two machines say that they have the connecting end.
    fn forged(&mut self, key: Key, askers: [Foreign; 2], pairs: &mut Pairs) {
        self.foreign.remove(&key);
        let why = Failure::Forged;
        for asker in askers {
            let failed = Mail::Failed {
                key,
                channel: 0,
                why,
            };
            self.post(asker.place, failed);
        }
        if let Some(asker) = pairs.close(key, Role::Accepted) {
            self.acts.push(Act::Refuse(asker, Refusal::Forged));
        }
    }

    /// Both ends of a connection have asked, the accepting one here: the meeting is proposed to the other machine.
    fn find(&mut self, key: Key, party: Party, pairs: &mut Pairs, now: Instant) {
        let Some(asked) = self.foreign.remove(&key) else {
            return;
        };
        let Some((_, is_roots)) = pairs.waiting(key, Role::Accepted) else {
            return;
        };
        let Some(asker) = pairs.close(key, Role::Accepted) else {
            return;
        };
        let (refusal, why) = match is_roots && asked.is_roots {
            false => (Refusal::Untrusted, Failure::Untrusted),
            true => match self.bond_with(asked.place, asked.process, party) {
                Some(bond) => return self.propose(key, asked, asker, bond, now),
                None => (Refusal::NoMemory, Failure::NoMemory),
            },
        };
        self.acts.push(Act::Refuse(asker, refusal));
        let failed = Mail::Failed {
            key,
            channel: 0,
            why,
        };
        self.post(asked.place, failed);
    }

    fn propose(&mut self, key: Key, asked: Foreign, asker: Asker, name: u64, now: Instant) {
        let Some(bond) = self.bonds.get(&name).copied() else {
            return;
        };
        let channel = self.new_channel();
        let proposed = Match {
            asker,
            key,
            place: asked.place,
            bond: name,
            until: now + PATIENCE,
        };
        self.matches.insert(channel, proposed);
        self.next_look = self.next_look.min(now + QUICK);
        let found = Mail::Found {
            key,
            process: bond.party.name,
            side: side(channel, name, &bond),
        };
        self.post(asked.place, found);
    }

    /// The other machine agrees to a meeting that this one has proposed.
    fn agreed(&mut self, place: usize, channel: u64, side: Side, pairs: &mut Pairs, now: Instant) {
        let ended = Mail::Ended {
            channel: side.channel,
        };
        let is_its = self.matches.get(&channel).is_some_and(|m| m.place == place);
        let Some(proposed) = is_its.then(|| self.matches.remove(&channel)).flatten() else {
            return self.post(place, ended);
        };
        if !self.complete(proposed.bond, &side) {
            self.give_up(&proposed, Refusal::Nobody, pairs);
            return self.post(place, ended);
        }
        self.introduce(proposed.asker, proposed.bond, channel, side.channel, now);
    }

    /// The program that was to meet somebody does not.
    fn fail_match(&mut self, channel: u64, why: Refusal, pairs: &mut Pairs) {
        if let Some(failed) = self.matches.remove(&channel) {
            self.give_up(&failed, why, pairs);
        }
    }

    /// Likewise. It may ask again.
    fn give_up(&mut self, failed: &Match, why: Refusal, pairs: &mut Pairs) {
        self.acts.push(Act::Refuse(failed.asker, why));
        pairs.reopen(failed.key);
        self.drop_unused(failed.bond);
    }

    // --- the connecting end's side ----------------------------------------------

    /// Another machine has the accepting end of a connection.
    #[allow(clippy::too_many_arguments)] // one message's fields, and what it is checked against
    fn found(
        &mut self,
        place: usize,
        key: Key,
        process: u64,
        side: Side,
        pairs: &mut Pairs,
        parties: &dyn Fn(u64) -> Option<Party>,
        now: Instant,
    ) {
        let waiter = pairs.waiting(key, Role::Connected);
        let party = waiter.and_then(|(waiter, _)| parties(waiter.process));
        let (Some((asker, _)), Some(party)) = (waiter, party) else {
            return self.decline(place, key, &side, Failure::Nobody);
        };
        let Some(name) = self.bond_for(place, process, party, &side) else {
            self.acts.push(Act::Refuse(asker, Refusal::NoMemory));
            pairs.close(key, Role::Connected);
            return self.decline(place, key, &side, Failure::NoMemory);
        };
        if !self.complete(name, &side) {
            self.drop_unused(name);
            return self.decline(place, key, &side, Failure::Nobody);
        }
        pairs.close(key, Role::Connected);
        let channel = self.new_channel();
        let Some(bond) = self.bonds.get(&name).copied() else {
            return;
        };
        let meet = Mail::Meet {
            channel: side.channel,
            side: self::side(channel, name, &bond),
        };
        self.post(place, meet);
        self.introduce(asker, name, channel, side.channel, now);
    }

    /// The bond that another machine proposes: one that is there, or a new one if the other side has none yet.
    fn bond_for(
        &mut self,
        place: usize,
        process: u64,
        party: Party,
        proposed: &Side,
    ) -> Option<u64> {
        let fits = |bond: &Bond| bond.theirs.is_none_or(|t| t.name == proposed.bond);
        for bond in self.bonds.values_mut() {
            // The other side has let go of the last one, if it has another name now.
            let is_same = (bond.place, bond.process) == (place, process);
            if is_same && bond.party.number == party.number && !fits(bond) {
                bond.is_over = true;
            }
        }
        self.bond_with(place, process, party)
    }

    fn decline(&mut self, place: usize, key: Key, side: &Side, why: Failure) {
        let failed = Mail::Failed {
            key,
            channel: side.channel,
            why,
        };
        self.post(place, failed);
    }

    /// Another machine says that there is no meeting: one that this machine has proposed, or has asked for.
    fn failed(&mut self, place: usize, key: Key, channel: u64, why: Failure, pairs: &mut Pairs) {
        let refusal = match why {
            Failure::Nobody => Refusal::Nobody,
            Failure::Untrusted => Refusal::Untrusted,
            Failure::Forged => Refusal::Forged,
            Failure::NoMemory => Refusal::NoMemory,
        };
        if self.matches.get(&channel).is_some_and(|m| m.place == place) {
            return self.fail_match(channel, refusal, pairs);
        }
        if channel == 0
            && let Some(asker) = pairs.close(key, Role::Connected)
        {
            self.acts.push(Act::Refuse(asker, refusal));
        }
    }

    // --- bonds --------------------------------------------------------------------

    /// The bond of these two processes, which is made if there is none. `None`: there is no extent for it.
    fn bond_with(&mut self, place: usize, process: u64, party: Party) -> Option<u64> {
        self.look_after_bonds();
        let is_theirs = |bond: &Bond| {
            (bond.place, bond.process) == (place, process)
                && bond.party.number == party.number
                && !bond.is_over
        };
        if let Some((&name, _)) = self.bonds.iter().find(|(_, bond)| is_theirs(bond)) {
            return Some(name);
        }
        let name = (self.random)().max(1);
        self.extents.free(&self.region, &self.who);
        let own = self
            .extents
            .allot(&self.region, &self.who, party.lifetime, name);
        let Some(own) = own else {
            self.tally.no_memory += 1;
            return None;
        };
        let bond = Bond {
            party,
            place,
            process,
            own,
            theirs: None,
            serial: 0,
            is_over: false,
            has_ended: false,
        };
        self.bonds.insert(name, bond);
        Some(name)
    }

    /// Notes what the other side of a bond has told of itself, and takes its extent. `false`: it does not fit.
    fn complete(&mut self, name: u64, side: &Side) -> bool {
        let names = self.bonds.values().filter_map(|bond| bond.theirs);
        let is_known = names.into_iter().any(|theirs| theirs.name == side.bond);
        let Some(bond) = self.bonds.get_mut(&name) else {
            return false;
        };
        // The other side speaks of a bond that our side has let go of, or of none.
        if side.bond == 0 || side.other != 0 && side.other != name {
            return false;
        }
        let extent = usize::try_from(side.extent).unwrap_or(EXTENTS);
        let told = Theirs {
            name: side.bond,
            extent,
        };
        if let Some(theirs) = bond.theirs {
            return theirs == told;
        }
        let extents = self.region.division().extents;
        let process = bond.party.lifetime;
        // An extent of this machine's would be one to which the other cannot write.
        let good = !is_known
            && extent < extents
            && extent != bond.own
            && extents::take(&self.region, &self.who, extent, [side.bond, name], process);
        if good {
            bond.theirs = Some(told);
        }
        good
    }

    fn introduce(&mut self, asker: Asker, name: u64, channel: u64, theirs: u64, now: Instant) {
        let Some(bond) = self.bonds.get_mut(&name) else {
            return;
        };
        let Some(Theirs { name: peer, extent }) = bond.theirs else {
            return;
        };
        bond.serial += 1;
        let division = self.region.division();
        let across = Across {
            peer,
            own: division.at(bond.own) as u64,
            theirs: division.at(extent) as u64,
            ring_size: u32::try_from(division.ring_size).unwrap_or(0),
            serial: bond.serial,
        };
        let line = bond.serial == 1;
        let open = Channel {
            place: bond.place,
            theirs,
            until: now + HANDSHAKE,
        };
        self.channels.insert(channel, open);
        self.next_look = self.next_look.min(now + QUICK);
        self.tally.met += 1;
        self.acts.push(Act::Introduce {
            asker,
            across,
            channel,
            bond: name,
            line,
        });
    }

    /// Ends a bond about which our process was told nothing, if no other meeting needs it.
    fn drop_unused(&mut self, name: u64) {
        let is_unused = self.bonds.get(&name).is_some_and(|bond| bond.serial == 0);
        if is_unused && !self.matches.values().any(|m| m.bond == name) {
            self.release(name);
        }
    }

    /// Our process has nothing to do with a bond any more.
    fn release(&mut self, name: u64) {
        let Some(bond) = self.bonds.remove(&name) else {
            return;
        };
        if let Some(theirs) = bond.theirs {
            extents::let_go(self.region.extent(theirs.extent), &self.who);
        }
        self.extents.leave(bond.own);
        self.acts.push(Act::EndLine(name));
    }

    fn new_channel(&mut self) -> u64 {
        let channel = self.next_channel;
        self.next_channel += 1;
        channel
    }
}

/// What a bond's own side tells the other.
fn side(channel: u64, name: u64, bond: &Bond) -> Side {
    Side {
        channel,
        bond: name,
        other: bond.theirs.map_or(0, |theirs| theirs.name),
        extent: bond.own as u64,
    }
}
