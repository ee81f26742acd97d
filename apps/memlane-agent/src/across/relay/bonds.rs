//! Bonds: how two processes come to share extents, and how they end it.

use super::{Act, Bond, Channel, HANDSHAKE, Party, QUICK, Relay, Theirs};
use crate::across::extents::{self, Sender};
use crate::across::layout::EXTENTS;
use crate::across::mail::Side;
use crate::pairs::Asker;
use memlane_socket::protocol::agent::Across;
use std::time::Instant;

impl Relay {
    /// Who writes to our processes may have let go, or died.
    pub(super) fn look_after_bonds(&mut self) {
        for (&name, bond) in &mut self.bonds {
            let sender = extents::sender(self.region.extent(bond.own), &self.who);
            if sender == Sender::Ended && !core::mem::replace(&mut bond.has_ended, true) {
                bond.is_over = true;
                self.acts.push(Act::EndLine(name));
            }
        }
    }

    /// The bond of these two processes, which is made if there is none. `None`: there is no extent for it.
    pub(super) fn bond_with(&mut self, place: usize, process: u64, party: Party) -> Option<u64> {
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
    pub(super) fn complete(&mut self, name: u64, side: &Side) -> bool {
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

    pub(super) fn introduce(
        &mut self,
        asker: Asker,
        name: u64,
        channel: u64,
        theirs: u64,
        now: Instant,
    ) {
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
    pub(super) fn drop_unused(&mut self, name: u64) {
        let is_unused = self.bonds.get(&name).is_some_and(|bond| bond.serial == 0);
        if is_unused && !self.matches.values().any(|m| m.bond == name) {
            self.release(name);
        }
    }

    /// Our process has nothing to do with a bond any more.
    pub(super) fn release(&mut self, name: u64) {
        let Some(bond) = self.bonds.remove(&name) else {
            return;
        };
        if let Some(theirs) = bond.theirs {
            extents::let_go(self.region.extent(theirs.extent), &self.who);
        }
        self.extents.leave(bond.own);
        self.acts.push(Act::EndLine(name));
    }

    pub(super) fn new_channel(&mut self) -> u64 {
        let channel = self.next_channel;
        self.next_channel += 1;
        channel
    }
}

/// What a bond's own side tells the other.
pub(super) fn side_of(channel: u64, name: u64, bond: &Bond) -> Side {
    Side {
        channel,
        bond: name,
        other: bond.theirs.map_or(0, |theirs| theirs.name),
        extent: bond.own as u64,
    }
}
