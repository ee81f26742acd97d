//! How two ends that have both asked come to meet.

use super::bonds::side_of;
use super::{Act, Bond, FOREIGN, Foreign, Here, Match, Party, QUICK, Relay};
use crate::across::mail::{Failure, Mail, Side};
use crate::pairs::{Asker, Key, PATIENCE, Pairs};
use memlane_socket::protocol::agent::{Refusal, Role};
use std::time::Instant;

impl Relay {
    // --- the accepting end's side --------------------------------------------

    /// Another machine's process asks who has the accepting end.
    pub(super) fn asked(&mut self, key: Key, asked: Foreign, here: &mut Here<'_>) {
        let other = self.foreign.get(&key);
        let other = other.filter(|other| other.until > here.now);
        if let Some(other) = other
            && (other.place, other.process) != (asked.place, asked.process)
        {
            return self.forged(key, [*other, asked], here);
        }
        // Asked once more, it is remembered for as long as before.
        if other.is_none() {
            // Each that is remembered has an end in this list, and so has each that was forgotten before its end.
            if self.foreign_ends.len() >= FOREIGN {
                return;
            }
            self.foreign.insert(key, asked);
            self.foreign_ends.push_back((asked.until, key));
        }
        if let Some((waiter, _)) = here.pairs.waiting(key, Role::Accepted)
            && let Some(party) = (here.parties)(waiter.process)
        {
            self.find(key, party, here.pairs, here.now);
        }
    }

    /// Two machines say that they have the connecting end.
    pub(super) fn forged(&mut self, key: Key, askers: [Foreign; 2], here: &mut Here<'_>) {
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
        if let Some(asker) = here.pairs.close(key, Role::Accepted) {
            self.acts.push(Act::Refuse(asker, Refusal::Forged));
        }
    }

    /// Both ends of a connection have asked, the accepting one here: the meeting is proposed to the other machine.
    pub(super) fn find(&mut self, key: Key, party: Party, pairs: &mut Pairs, now: Instant) {
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
        if refusal == Refusal::NoMemory {
            pairs.reopen(key);
        }
        let failed = Mail::Failed {
            key,
            channel: 0,
            why,
        };
        self.post(asked.place, failed);
    }

    pub(super) fn propose(
        &mut self,
        key: Key,
        asked: Foreign,
        asker: Asker,
        name: u64,
        now: Instant,
    ) {
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
            side: side_of(channel, name, &bond),
        };
        self.post(asked.place, found);
    }

    /// The other machine agrees to a meeting that this one has proposed.
    pub(super) fn agreed(&mut self, place: usize, channel: u64, side: Side, here: &mut Here<'_>) {
        let ended = Mail::Ended {
            channel: side.channel,
        };
        let is_its = self.matches.get(&channel).is_some_and(|m| m.place == place);
        let Some(proposed) = is_its.then(|| self.matches.remove(&channel)).flatten() else {
            return self.post(place, ended);
        };
        if !self.complete(proposed.bond, &side) {
            self.give_up(&proposed, Refusal::Nobody, here.pairs);
            return self.post(place, ended);
        }
        self.introduce(
            proposed.asker,
            proposed.bond,
            channel,
            side.channel,
            here.now,
        );
    }

    /// The program that was to meet somebody does not.
    pub(super) fn fail_match(&mut self, channel: u64, why: Refusal, pairs: &mut Pairs) {
        if let Some(failed) = self.matches.remove(&channel) {
            self.give_up(&failed, why, pairs);
        }
    }

    /// The program of a failed meeting is refused, and may ask again.
    pub(super) fn give_up(&mut self, failed: &Match, why: Refusal, pairs: &mut Pairs) {
        self.acts.push(Act::Refuse(failed.asker, why));
        pairs.reopen(failed.key);
        self.drop_unused(failed.bond);
    }

    // --- the connecting end's side -------------------------------------------

    /// Another machine has the accepting end of a connection.
    pub(super) fn found(
        &mut self,
        place: usize,
        key: Key,
        process: u64,
        side: Side,
        here: &mut Here<'_>,
    ) {
        let waiter = here.pairs.waiting(key, Role::Connected);
        let party = waiter.and_then(|(waiter, _)| (here.parties)(waiter.process));
        let (Some((asker, _)), Some(party)) = (waiter, party) else {
            return self.decline(place, key, &side, Failure::Nobody);
        };
        let Some(name) = self.bond_for(place, process, party, &side) else {
            self.acts.push(Act::Refuse(asker, Refusal::NoMemory));
            here.pairs.close(key, Role::Connected);
            here.pairs.reopen(key);
            return self.decline(place, key, &side, Failure::NoMemory);
        };
        if !self.complete(name, &side) {
            self.drop_unused(name);
            return self.decline(place, key, &side, Failure::Nobody);
        }
        here.pairs.close(key, Role::Connected);
        let channel = self.new_channel();
        let Some(bond) = self.bonds.get(&name).copied() else {
            return;
        };
        let meet = Mail::Meet {
            channel: side.channel,
            side: side_of(channel, name, &bond),
        };
        self.post(place, meet);
        self.introduce(asker, name, channel, side.channel, here.now);
    }

    /// The bond that another machine proposes: one that is there, or a new one if the other side has none yet.
    pub(super) fn bond_for(
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

    pub(super) fn decline(&mut self, place: usize, key: Key, side: &Side, why: Failure) {
        let failed = Mail::Failed {
            key,
            channel: side.channel,
            why,
        };
        self.post(place, failed);
    }

    /// Another machine says that there is no meeting: one that this machine has proposed, or has asked for.
    pub(super) fn failed(
        &mut self,
        place: usize,
        key: Key,
        channel: u64,
        why: Failure,
        here: &mut Here<'_>,
    ) {
        let refusal = match why {
            Failure::Nobody => Refusal::Nobody,
            Failure::Untrusted => Refusal::Untrusted,
            Failure::Forged => Refusal::Forged,
            Failure::NoMemory => Refusal::NoMemory,
        };
        if self.matches.get(&channel).is_some_and(|m| m.place == place) {
            return self.fail_match(channel, refusal, here.pairs);
        }
        if channel == 0
            && let Some(asker) = here.pairs.close(key, Role::Connected)
        {
            self.acts.push(Act::Refuse(asker, refusal));
            if matches!(refusal, Refusal::Nobody | Refusal::NoMemory) {
                here.pairs.reopen(key);
            }
        }
    }
}
