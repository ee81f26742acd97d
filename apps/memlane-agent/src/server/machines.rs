//! What the agent does with other machines, by the region that it shares with them.

use super::{Agent, Domain, Process, random_name};
use crate::across::Across;
use crate::across::participants::{Identity, JoinError};
use crate::across::region::Region;
use crate::across::relay::{Act, Party, Relay, Tally};
use crate::kernel::Record;
use crate::pairs::{Asker, Key};
use memlane_socket::protocol::agent::{Outcome, Parting, Refusal, Role};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

impl Agent {
    /// Introduces the processes of a domain to those of other machines, too, which have the same region mapped. Everybody who
    /// has the region can read and write all of it, so it belongs to one domain.
    ///
    /// # Errors
    /// The machine cannot take part.
    ///
    /// # Panics
    /// If the domain is not served, or if it has a region.
    pub fn share(
        &mut self,
        directory: &Path,
        region: Region,
        identity: Identity,
    ) -> Result<(), JoinError> {
        let served = |(_, domain): &(&u64, &Domain)| domain.directory == directory;
        let (&number, _) = self.domains.iter().find(served).expect("it is served");
        assert!(self.across.is_none(), "an agent has one region");
        let random = Box::new(|| random_name().unwrap_or(1));
        let relay = Relay::join(
            region,
            identity,
            random,
            &std::thread::sleep,
            Instant::now(),
        )?;
        self.across = Some(Across::new(number, relay));
        Ok(())
    }

    /// What it has done with other machines. `None`: it shares no region.
    pub fn tally(&self) -> Option<Tally> {
        self.across.as_ref().map(Across::tally)
    }

    /// The other end of a connection has not asked here: it may be on another machine.
    pub(super) fn ask_across(&mut self, number: u64, role: Role, socket: &Record, now: Instant) {
        let Some(party) = party_at(&self.processes, number) else {
            return;
        };
        if let Some(across) = &mut self.across
            && let Some(domain) = self.domains.get_mut(&across.domain)
            && self
                .processes
                .get(&number)
                .is_some_and(|p| p.domain == across.domain)
        {
            let key = Key::of(socket, role);
            across.relay.ask(party, key, role, &mut domain.pairs, now);
        }
        self.act();
    }

    /// The process has let go of memory.
    pub(super) fn part(&mut self, number: u64, partings: &[Parting]) {
        let party = party_at(&self.processes, number);
        if let (Some(across), Some(party)) = (&mut self.across, party) {
            for &parting in partings {
                across.relay.part(party, parting);
            }
        }
        self.act();
    }

    pub(super) fn hear_channel(&mut self, channel: u64) {
        if let Some(across) = &mut self.across {
            across.hear(channel);
        }
    }

    /// Takes the mail of other machines.
    pub(super) fn look_across(&mut self, now: Instant) {
        let Some(across) = &mut self.across else {
            return;
        };
        // The domain of a region is served as long as the agent runs, unless its directory goes.
        if let Some(domain) = self.domains.get_mut(&across.domain) {
            let processes = &self.processes;
            let parties = |number| party_at(processes, number);
            across.turn(&mut domain.pairs, &parties, now);
        }
        self.act();
    }

    /// Tells programs what the other machines' agents have said.
    pub(super) fn act(&mut self) {
        let acts = self.across.as_mut().map(|across| across.relay.acts());
        for act in acts.unwrap_or_default() {
            let rest = self.across.as_mut().and_then(|across| across.act(act));
            match rest {
                Some(Act::Refuse(asker, why)) => self.refuse(asker, why),
                Some(Act::Introduce {
                    asker,
                    across,
                    channel,
                    bond,
                    line,
                }) => {
                    let outcome = Outcome::Across(across);
                    self.introduce_across(asker, outcome, channel, line.then_some(bond));
                }
                Some(Act::Deliver(..) | Act::EndChannel(_) | Act::EndLine(_)) | None => {}
            }
        }
    }

    /// Gives an asker one end of a channel, the region, and a life line where it needs one.
    pub(super) fn introduce_across(
        &mut self,
        asker: Asker,
        outcome: Outcome,
        channel: u64,
        bond: Option<u64>,
    ) {
        let Some(across) = &mut self.across else {
            return;
        };
        let Ok(given) = across.give(self.epoll.as_fd(), channel, bond) else {
            across.take_back(channel);
            return self.refuse(asker, Refusal::Busy);
        };
        let line = given.line.as_ref().map(AsFd::as_fd);
        let Some(across) = &self.across else {
            return;
        };
        let ends = [given.channel.as_fd(), across.descriptor()];
        let ends: Vec<BorrowedFd<'_>> = ends.into_iter().chain(line).collect();
        // Who does not read what it is told would miss its life line.
        if !self.answer(asker, outcome, &ends) {
            if let Some(across) = &mut self.across {
                across.take_back(channel);
            }
            self.forget(asker.process);
        }
    }
}

/// A process, as other machines' agents may know it.
fn party_at(processes: &HashMap<u64, Process>, number: u64) -> Option<Party> {
    let process = processes.get(&number)?;
    Some(Party {
        number,
        name: process.name,
        lifetime: process.lifetime?,
    })
}
