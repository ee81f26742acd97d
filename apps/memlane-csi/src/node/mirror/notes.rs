//! What helps to look after mirrors. Nothing is decided by it that a restarted plugin would decide otherwise.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::mapping::Wanted;
use crate::volume_id::VolumeId;

/// How long after a copy could not be taken back that is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// What helps to look after mirrors: since when copies are not what they should be, and how they are mapped.
#[derive(Default)]
pub(in crate::node) struct Notes(Mutex<BTreeMap<VolumeId, Note>>);

#[derive(Default)]
struct Note {
    /// How the copy is mapped, as the last call said it.
    wanted: Option<Wanted>,
    /// Since when the copy's server is away.
    away: Option<Instant>,
    /// When the copy could not be taken back, and why.
    refused: Option<(Instant, String)>,
}

impl Notes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Note>> {
        // A note is written at once.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remember(&self, id: &VolumeId, wanted: &Wanted) {
        let mut all = self.lock();
        for copy in id.copies() {
            all.entry(copy).or_default().wanted = Some(wanted.clone());
        }
    }

    pub(super) fn wanted(&self, id: &VolumeId) -> Option<Wanted> {
        self.lock().get(id)?.wanted.clone()
    }

    /// How long a copy's server has been away.
    pub(super) fn away(&self, id: &VolumeId, is_away: bool) -> Duration {
        let mut all = self.lock();
        let note = all.entry(id.clone()).or_default();
        note.away = note.away.filter(|_| is_away);
        match is_away {
            true => note.away.get_or_insert_with(Instant::now).elapsed(),
            false => Duration::ZERO,
        }
    }

    pub(super) fn refuses(&self, id: &VolumeId, why: Option<String>) {
        let mut all = self.lock();
        let note = all.entry(id.clone()).or_default();
        note.refused = why.map(|why| (Instant::now(), why));
    }

    /// Why a copy was not taken back at the last attempt.
    pub(in crate::node) fn why(&self, id: &VolumeId) -> Option<String> {
        let all = self.lock();
        let (_, why) = all.get(id)?.refused.as_ref()?;
        Some(why.clone())
    }

    pub(super) fn may_try(&self, id: &VolumeId) -> bool {
        let all = self.lock();
        let refused = all.get(id).and_then(|note| note.refused.as_ref());
        refused.is_none_or(|(when, _)| when.elapsed() >= AGAIN)
    }

    pub(super) fn forget(&self, id: &VolumeId) {
        let mut all = self.lock();
        for copy in id.copies() {
            all.remove(&copy);
        }
    }
}
