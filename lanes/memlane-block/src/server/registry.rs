//! Who has what open: over all sessions and services of a process.

use super::ids::Ids;
use crate::loan::{Handover, LoanToken, Offer, may_borrow};
use crate::store::{Backing, Failure, Key};
use crate::volume::{Errno, Op};
use crate::wire::{AGAIN_MASK, Access, Busy};
use memlane_transport::io::tls::stands_for;
use memlane_transport::port::Identity;
use memlane_wait::mutex::lock;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// Refusals that are remembered.
const REFUSALS: usize = 32;
/// Volumes taken from sessions that are remembered, so that these do not get them back unawares.
const TAKEN: usize = 4096;
/// Most volumes that are lent at a time: what a client keeps is not among the volumes that its session has open.
const LOANS: usize = 1024;
/// The process's limit of descriptors (`RLIMIT_NOFILE`) divided by this is how many volumes it may lend. Each loan takes two
/// descriptors, so all loans together take a quarter.
const DESCRIPTORS: u64 = 8;

/// A session, as far as others are concerned.
#[derive(Debug)]
pub(super) struct Party {
    pub(super) name: String,
    pub(super) who: Identity,
    /// Its client understands that a volume was taken from it.
    pub(super) can_lose: AtomicBool,
    /// Since when the session has no path, if it has none. Its own thread writes it; sessions that want the same volume
    /// read it.
    silent: Mutex<Option<Instant>>,
}

impl Party {
    pub(super) fn new(name: &str, who: &Identity) -> Party {
        Party {
            name: name.to_owned(),
            who: who.clone(),
            can_lose: AtomicBool::new(false),
            silent: Mutex::new(None),
        }
    }

    /// Notes the number of paths that the session has now.
    pub(super) fn reached_by(&self, paths: usize) {
        let mut silent = lock(&self.silent);
        *silent = match paths {
            0 => Some(silent.unwrap_or_else(Instant::now)),
            _ => None,
        };
    }

    fn silent_for(&self) -> Option<Duration> {
        let silent = *lock(&self.silent);
        silent.map(|since| since.elapsed())
    }

    /// Who has the volume open, for the error of a session that is refused.
    pub(super) fn busy(&self) -> Busy {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        Busy::new(&self.name, self.silent_for().map(seconds))
    }

    /// The same user, or a certificate that is good for this session's name; root may take from any user of its machine.
    fn gives_way_to(&self, other: &Identity) -> bool {
        let root = matches!(
            (&self.who, other),
            (Identity::Local { .. }, Identity::Local { uid: 0, .. })
        );
        self.silent_for().is_some()
            && self.can_lose.load(Ordering::Relaxed)
            && (root || self.is_of(other))
    }

    /// Is it a process of this host that could take this one's memory anyway?
    pub(super) fn may_borrow(&self) -> bool {
        matches!(self.who, Identity::Local { uid, .. } if may_borrow(uid))
    }

    fn is_of(&self, other: &Identity) -> bool {
        let named = match other {
            Identity::Certificate(names) => {
                names.is_empty() || names.iter().any(|name| stands_for(name, &self.name))
            }
            Identity::Local { .. } | Identity::Unknown => true,
        };
        named && joins(&self.who, other)
    }
}

/// Is this the client that opened a session of that name? Certificates may have been renewed, and each was looked at for
/// the session's name.
fn joins(one: &Identity, other: &Identity) -> bool {
    match (one, other) {
        (Identity::Local { uid: a, .. }, Identity::Local { uid: b, .. }) => a == b,
        (Identity::Certificate(_), Identity::Certificate(_))
        | (Identity::Unknown, Identity::Unknown) => true,
        _ => false,
    }
}

/// May a connection of this client join a session of that one? Both could open a session of its name, and whoever joins has shown
/// the session's id: 128 random bits, which its client tells its server alone. So a client may reach a server of its host by
/// memory and by a network. But the id of a session that began with certificates is not taken from who has none: it
/// may have been read on a wire without encryption.
pub(super) fn may_join(one: &Identity, other: &Identity) -> bool {
    match (one, other) {
        (Identity::Local { .. }, Identity::Local { .. }) => joins(one, other),
        (Identity::Certificate(_), Identity::Unknown)
        | (Identity::Unknown, Identity::Certificate(_)) => false,
        _ => true,
    }
}

/// Why a volume is not opened.
#[derive(Debug)]
pub(super) enum Denied {
    /// This one writes it.
    Busy(Arc<Opener>),
    /// It was taken from one whose last requests are not over.
    Ending,
    /// No ids are left.
    Full,
}

/// One volume, opened by one session.
#[derive(Debug)]
pub(super) struct Opener {
    pub(super) id: u32,
    pub(super) party: Arc<Party>,
    /// Below the root.
    pub(super) name: String,
    pub(super) access: Access,
    pub(super) backing: Arc<Backing>,
    pub(super) counts: Counts,
    /// Taken away by the server's owner.
    pub(super) revoked: AtomicBool,
    /// The volume's memory, which its client may take or has taken. Set once, under the registry's lock.
    loan: OnceLock<Arc<Offer>>,
    /// Its session has closed it. It stays as long as its client still has the volume's memory.
    closed: AtomicBool,
}

impl Opener {
    /// Can its client read or write the volume without asking?
    pub(super) fn is_lent(&self) -> bool {
        self.loan.get().is_some_and(|offer| offer.is_held())
    }

    /// Withdraws what is offered, or asks for it back.
    fn end_loan(&self) {
        if let Some(offer) = self.loan.get() {
            offer.end();
        }
    }

    /// Its session has closed it, and its client cannot write it any more.
    fn is_over(&self) -> bool {
        self.closed.load(Ordering::Acquire) && !self.is_lent()
    }
}

/// What was done, as it is counted.
#[derive(Debug, Default)]
pub(super) struct Counts {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    trims: AtomicU64,
    errors: AtomicU64,
}

impl Counts {
    pub(super) fn add(&self, op: Op, len: u32, ok: bool) {
        let one = |count: &AtomicU64| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        if !ok {
            one(&self.errors);
            return;
        }
        let len = u64::from(len);
        match op {
            Op::Read => {
                one(&self.reads);
                self.read_bytes.fetch_add(len, Ordering::Relaxed);
            }
            Op::Write => {
                one(&self.writes);
                self.written_bytes.fetch_add(len, Ordering::Relaxed);
            }
            Op::Flush => one(&self.flushes),
            Op::Trim | Op::WriteZeroes => one(&self.trims),
            Op::Extents => {}
        }
    }

    fn view(&self) -> Counters {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counters {
            reads: of(&self.reads),
            read_bytes: of(&self.read_bytes),
            writes: of(&self.writes),
            written_bytes: of(&self.written_bytes),
            flushes: of(&self.flushes),
            trims: of(&self.trims),
            errors: of(&self.errors),
        }
    }
}

/// What was done with a volume by one that has it open.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Trims and write-zeroes.
    pub trims: u64,
    /// What ended with an error.
    pub errors: u64,
}

/// One that has a volume open.
#[derive(Clone, Debug)]
pub struct OpenerView {
    /// The session's name.
    pub session: String,
    /// The session.
    pub who: Identity,
    /// How it was opened.
    pub access: Access,
    /// What requests call it.
    pub device_id: u32,
    /// What was done.
    pub counters: Counters,
    /// The last thing that went wrong.
    pub failure: Option<Failure>,
    /// It reads and writes the volume's memory by itself, which no counter sees.
    pub lent: bool,
}

/// A volume that is open.
#[derive(Clone, Debug)]
pub struct VolumeView {
    /// Below the root, as who opened it first called it.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// The session that has it open.
    pub openers: Vec<OpenerView>,
}

/// An open that was refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// When.
    pub when: SystemTime,
    /// The session's name.
    pub session: String,
    /// What it wanted: whatever it liked to write.
    pub name: String,
    /// What the session knows of the volume.
    pub errno: Errno,
    /// Why.
    pub why: String,
}

#[derive(Debug)]
pub(super) struct Registry {
    /// Not by name: two names may be one file.
    volumes: HashMap<Key, Vec<Arc<Opener>>>,
    ids: Ids,
    refusals: VecDeque<Refusal>,
    /// Low bits of ids that were taken from their sessions, and what they named.
    taken: VecDeque<(u32, String)>,
    /// Volumes that are about to become smaller: they are lent to nobody.
    shrinking: HashSet<Key>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        // The process ends before its clients have given back what they borrowed: its locks must not end before theirs.
        let openers = self.volumes.values().flatten();
        for opener in openers.filter(|opener| opener.is_lent()) {
            std::mem::forget(Arc::clone(&opener.backing));
        }
    }
}

impl Registry {
    pub(super) fn new() -> io::Result<Registry> {
        Ok(Registry {
            volumes: HashMap::new(),
            ids: Ids::new()?,
            refusals: VecDeque::new(),
            taken: VecDeque::new(),
            shrinking: HashSet::new(),
        })
    }

    /// What is open under this key already. (Memory is the same for all.)
    pub(super) fn existing(&self, key: &Key) -> Option<Arc<Backing>> {
        let mut openers = self.volumes.get(key)?.iter();
        let first = openers.find(|opener| !opener.is_over())?;
        Some(Arc::clone(&first.backing))
    }

    /// Opens, if no other writer is in the way.
    pub(super) fn open(
        &mut self,
        party: &Arc<Party>,
        name: String,
        access: Access,
        backing: Arc<Backing>,
    ) -> Result<Arc<Opener>, Denied> {
        let key = backing.key().clone();
        let writers = self.writers(&key);
        if writers.len() >= room(access) {
            let stays = writers
                .into_iter()
                .find(|writer| !writer.revoked.load(Ordering::Acquire));
            return Err(stays.map_or(Denied::Ending, Denied::Busy));
        }
        let id = self.ids.take().ok_or(Denied::Full)?;
        let opener = Arc::new(Opener {
            id,
            party: Arc::clone(party),
            name,
            access,
            backing,
            counts: Counts::default(),
            revoked: AtomicBool::new(false),
            loan: OnceLock::new(),
            closed: AtomicBool::new(false),
        });
        let openers = self.volumes.entry(key).or_default();
        openers.push(Arc::clone(&opener));
        Ok(opener)
    }

    /// Takes out what was closed while its client still had the volume's memory, and is over since. To be dropped without the
    /// lock: to free a volume's memory takes its time.
    #[must_use]
    pub(super) fn forget_what_is_over(&mut self) -> Vec<Arc<Opener>> {
        let mut over = Vec::new();
        self.volumes.retain(|_, openers| {
            over.extend(openers.extract_if(.., |opener| opener.is_over()));
            !openers.is_empty()
        });
        over
    }

    /// Offers a volume's memory to the client of this opener, once. `None`: it is not in memory, or nothing more is lent; then
    /// all requests come here.
    pub(super) fn offer(
        &self,
        opener: &Opener,
        size: u64,
        handover: Handover,
    ) -> Option<LoanToken> {
        if let Some(offer) = opener.loan.get() {
            return Some(offer.token());
        }
        let openers = self.volumes.values().flatten();
        let offered = openers.filter(|opener| opener.loan.get().is_some()).count();
        let descriptors = memlane_sys::proc::limit(libc::RLIMIT_NOFILE);
        if offered >= most_loans(descriptors) || self.shrinking.contains(opener.backing.key()) {
            return None;
        }
        let lent = opener.backing.lend(opener.access != Access::ReadOnly);
        let offer = Offer::make(lent.ok()??, size, handover).ok()?;
        Some(opener.loan.get_or_init(|| offer).token())
    }

    /// Asks for a volume back that is to become smaller, and lends it to nobody until [`has_shrunk`](Self::has_shrunk).
    pub(super) fn will_shrink(&mut self, key: &Key) -> Vec<Arc<Opener>> {
        self.shrinking.insert(key.clone());
        let openers = self.openers_of(key);
        openers.iter().for_each(|opener| opener.end_loan());
        openers
    }

    /// It has, or it cannot.
    pub(super) fn has_shrunk(&mut self, key: &Key) {
        self.shrinking.remove(key);
    }

    fn writers(&self, key: &Key) -> Vec<Arc<Opener>> {
        let openers = self.volumes.get(key).into_iter().flatten();
        let writes = |opener: &&Arc<Opener>| opener.access != Access::ReadOnly && !opener.is_over();
        openers.filter(writes).cloned().collect()
    }

    /// Takes a volume from those who write it and are not there, if that makes room for one more. It is free when
    /// their last requests are over.
    pub(super) fn take_over(
        &mut self,
        key: &Key,
        access: Access,
        by: &Party,
    ) -> Result<(), Arc<Opener>> {
        // What a process has in its own memory cannot be taken from it. Perhaps it is merely stopped, and goes on later.
        let gives_way = |writer: &Arc<Opener>| {
            let gone = writer.party.gives_way_to(&by.who) && !writer.is_lent();
            writer.revoked.load(Ordering::Acquire) || gone
        };
        let (silent, stay): (Vec<_>, Vec<_>) = self.writers(key).into_iter().partition(gives_way);
        if stay.len() >= room(access)
            && let Some(holder) = stay.into_iter().next()
        {
            return Err(holder);
        }
        silent.iter().for_each(|opener| self.take_from(opener));
        Ok(())
    }

    /// All its later requests are refused; so is opening it again.
    fn take_from(&mut self, opener: &Opener) {
        if opener.revoked.swap(true, Ordering::AcqRel) {
            return;
        }
        opener.end_loan();
        if self.taken.len() == TAKEN {
            self.taken.pop_front();
        }
        let id = opener.id & AGAIN_MASK;
        self.taken.push_back((id, opener.name.clone()));
    }

    /// Was it taken from the session that knew it by this id?
    pub(super) fn was_taken(&self, id: u32, name: &str) -> bool {
        self.taken
            .iter()
            .any(|(taken, of)| *taken == id & AGAIN_MASK && of == name)
    }

    /// It is closed, and nothing of it is under way any more. If its client still has the volume's memory, it is asked for
    /// that, and this stays until [`forget_what_is_over`](Self::forget_what_is_over).
    pub(super) fn close(&mut self, opener: &Arc<Opener>) {
        opener.end_loan();
        opener.closed.store(true, Ordering::Release);
        let key = opener.backing.key();
        let Some(openers) = self.volumes.get_mut(key) else {
            return;
        };
        openers.retain(|other| !(Arc::ptr_eq(other, opener) && other.is_over()));
        if openers.is_empty() {
            self.volumes.remove(key);
        }
    }

    pub(super) fn openers_of(&self, key: &Key) -> Vec<Arc<Opener>> {
        self.volumes.get(key).cloned().unwrap_or_default()
    }

    pub(super) fn backings(&self) -> Vec<Arc<Backing>> {
        let openers = self.volumes.values().flatten();
        openers.map(|opener| Arc::clone(&opener.backing)).collect()
    }

    pub(super) fn revoke(&mut self, name: &str, session: &str) -> usize {
        let openers = self.volumes.values().flatten();
        let meant = |opener: &&Arc<Opener>| opener.name == name && opener.party.name == session;
        let meant: Vec<_> = openers.filter(meant).cloned().collect();
        meant.iter().for_each(|opener| self.take_from(opener));
        meant.len()
    }

    pub(super) fn refused(&mut self, session: &str, name: &str, errno: Errno, why: String) {
        if self.refusals.len() == REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(Refusal {
            when: SystemTime::now(),
            session: session.to_owned(),
            name: name.to_owned(),
            errno,
            why,
        });
    }

    pub(super) fn refusals(&self) -> Vec<Refusal> {
        self.refusals.iter().cloned().collect()
    }

    pub(super) fn views(&self) -> Vec<VolumeView> {
        let mut views: Vec<VolumeView> = self.volumes.values().filter_map(|v| view(v)).collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }
}

/// The most volumes that a process lends at a time, if its limit is this number of descriptors.
fn most_loans(descriptors: u64) -> usize {
    usize::try_from(descriptors / DESCRIPTORS).map_or(LOANS, |most| most.min(LOANS))
}

/// With this many writers, one more is refused.
fn room(access: Access) -> usize {
    match access {
        Access::ReadOnly => usize::MAX,
        Access::ReadWrite => 1,
        Access::Migration => 2,
    }
}

fn view(openers: &[Arc<Opener>]) -> Option<VolumeView> {
    let there = || openers.iter().filter(|opener| !opener.is_over());
    let first = there().next()?;
    let seen = there().map(|opener| OpenerView {
        session: opener.party.name.clone(),
        who: opener.party.who.clone(),
        access: opener.access,
        device_id: opener.id,
        counters: opener.counts.view(),
        failure: opener.backing.failure(),
        lent: opener.is_lent(),
    });
    Some(VolumeView {
        name: first.name.clone(),
        size: first.backing.info(0).size,
        openers: seen.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loan::Borrowed;
    use crate::store::{Direct, Mode};
    use rustix::fs::{FlockOperation, Mode as Permissions, OFlags, flock};
    use std::os::fd::AsFd as _;

    #[test]
    fn loans_leave_most_descriptors_to_clients_and_files() {
        let most = [0, 256, 1024, 1 << 20, u64::MAX].map(most_loans);
        assert_eq!(most, [0, 32, 128, LOANS, LOANS]);
    }

    #[test]
    fn a_registry_that_ends_frees_no_file_that_a_client_may_still_write() {
        for is_held in [false, true] {
            let name = format!("/dev/shm/memlane-registry-{}", std::process::id());
            let file = std::fs::File::create(&name).expect("a file");
            file.set_len(4096).expect("its size");
            let path = rustix::fs::open(&name, OFlags::PATH, Permissions::empty()).expect("opened");
            std::fs::remove_file(&name).expect("nameless");
            let backing = Backing::open(path.as_fd(), Mode::Claim, Direct::Off).expect("a backing");
            let me = Identity::Local {
                uid: memlane_sys::proc::euid(),
                pid: 1,
            };
            let party = Arc::new(Party::new("one", &me));
            let mut registry = Registry::new().expect("a registry");
            let access = Access::ReadWrite;
            let opener = registry.open(&party, "disk".into(), access, Arc::new(backing));
            let opener = opener.expect("nobody else has it");
            let token = registry
                .offer(&opener, 4096, Handover::Sent)
                .expect("an offer");
            let borrowed = Borrowed::take(token).expect("taken");
            let held = is_held.then_some(borrowed);
            assert_eq!(opener.is_lent(), is_held);
            drop((opener, registry));
            // As a process does that wants to write it.
            let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
            assert_eq!(locked.is_err(), is_held, "{locked:?}");
            drop(held);
        }
    }
}
