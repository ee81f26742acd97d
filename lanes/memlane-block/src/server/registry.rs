//! Who has what open: over all sessions and services of a process.

use super::ids::Ids;
use crate::store::{Backing, Failure, Key};
use crate::volume::{Errno, Op};
use crate::wire::Access;
use memlane_transport::port::Identity;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

/// Refusals that are remembered.
const REFUSALS: usize = 32;

/// One volume, opened by one session.
#[derive(Debug)]
pub(super) struct Opener {
    pub(super) id: u32,
    pub(super) session: String,
    pub(super) who: Identity,
    /// Below the root.
    pub(super) name: String,
    pub(super) access: Access,
    pub(super) backing: Arc<Backing>,
    pub(super) counts: Counts,
    /// Taken away by the server's owner.
    pub(super) revoked: AtomicBool,
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
    /// Who that is.
    pub who: Identity,
    /// How it was opened.
    pub access: Access,
    /// What requests call it.
    pub device_id: u32,
    /// What was done.
    pub counters: Counters,
    /// The last thing that went wrong.
    pub failure: Option<Failure>,
}

/// A volume that is open.
#[derive(Clone, Debug)]
pub struct VolumeView {
    /// Below the root, as who opened it first called it.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// By whom.
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
    /// What it was told.
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
}

impl Registry {
    pub(super) fn new() -> io::Result<Registry> {
        Ok(Registry {
            volumes: HashMap::new(),
            ids: Ids::new()?,
            refusals: VecDeque::new(),
        })
    }

    /// What is open under this key already. (Memory is the same for all.)
    pub(super) fn existing(&self, key: &Key) -> Option<Arc<Backing>> {
        let first = self.volumes.get(key)?.first()?;
        Some(Arc::clone(&first.backing))
    }

    /// Opens, if no other writer is in the way: `EBUSY`.
    pub(super) fn open(
        &mut self,
        session: &str,
        who: &Identity,
        name: String,
        access: Access,
        backing: Arc<Backing>,
    ) -> Result<Arc<Opener>, Errno> {
        let key = backing.key().clone();
        let writers = self.volumes.get(&key).map_or(0, |openers| {
            let writes = |opener: &&Arc<Opener>| opener.access != Access::ReadOnly;
            openers.iter().filter(writes).count()
        });
        let permitted = match access {
            Access::ReadOnly => true,
            Access::ReadWrite => writers == 0,
            Access::Migration => writers < 2,
        };
        if !permitted {
            return Err(Errno(libc::EBUSY));
        }
        let id = self.ids.take().ok_or(Errno(libc::ENFILE))?;
        let opener = Arc::new(Opener {
            id,
            session: session.to_owned(),
            who: who.clone(),
            name,
            access,
            backing,
            counts: Counts::default(),
            revoked: AtomicBool::new(false),
        });
        let openers = self.volumes.entry(key).or_default();
        openers.push(Arc::clone(&opener));
        Ok(opener)
    }

    /// It is closed, and nothing of it is under way any more.
    pub(super) fn close(&mut self, opener: &Arc<Opener>) {
        let key = opener.backing.key();
        let Some(openers) = self.volumes.get_mut(key) else {
            return;
        };
        openers.retain(|other| !Arc::ptr_eq(other, opener));
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
        let meant = openers.filter(|opener| opener.name == name && opener.session == session);
        let mut revoked = 0;
        for opener in meant {
            opener.revoked.store(true, Ordering::Release);
            revoked += 1;
        }
        revoked
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

fn view(openers: &[Arc<Opener>]) -> Option<VolumeView> {
    let first = openers.first()?;
    let seen = openers.iter().map(|opener| OpenerView {
        session: opener.session.clone(),
        who: opener.who.clone(),
        access: opener.access,
        device_id: opener.id,
        counters: opener.counts.view(),
        failure: opener.backing.failure(),
    });
    Some(VolumeView {
        name: first.name.clone(),
        size: first.backing.info(0).size,
        openers: seen.collect(),
    })
}
