//! Memory that the peers of one session may write, by each device.
//!
//! One protection domain to each session and device: what a peer guesses, it cannot use for another session's memory.

use memlane_core::access::SharedBytes;
use memlane_core::token::Token;
use memlane_verbs::{Domain, Id, Piece, Registration, VerbsError};
use memlane_wait::mutex::{lock, read, write};
use std::any::Any;
use std::sync::{Arc, Mutex, RwLock, Weak};

/// Memory is named as from a page's beginning.
const PAGE: u64 = 4096;

/// What one device may reach for one session.
#[derive(Debug)]
pub(in crate::io) struct Reach {
    domain: Arc<Domain>,
    known: RwLock<Vec<Registration>>,
}

impl Reach {
    /// Nothing yet, by the device of `id`.
    pub(in crate::io) fn new(id: &Arc<Id>) -> Result<Reach, VerbsError> {
        Ok(Reach {
            domain: Domain::new(id)?,
            known: RwLock::default(),
        })
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    fn is_for(&self, id: &Id) -> bool {
        self.domain.is_for(id)
    }

    /// Lets peers write `bytes` from now on, and calls the first one `named`, if it has a name already.
    ///
    /// # Safety
    /// They stay mapped as long as `owner` lives.
    pub(in crate::io) unsafe fn add(
        &self,
        bytes: SharedBytes,
        named: Option<u64>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<(), VerbsError> {
        let mut known = write(&self.known);
        if known.iter().any(|known| known.name(&bytes).is_some()) {
            return Ok(());
        }
        // An address of no process, so that it says nothing about this one.
        let within_page = bytes.as_ptr().addr() as u64 % PAGE;
        let random = Token::fresh().map_or(PAGE, |token| (token.bits() >> 1) & !(PAGE - 1));
        let named = named.unwrap_or(random + within_page);
        // SAFETY: as the caller promises.
        known.push(unsafe { self.domain.register(bytes, named, owner)? });
        Ok(())
    }

    /// These bytes for a work request, if the device reaches them.
    pub(in crate::io) fn piece(&self, bytes: &SharedBytes) -> Option<Piece> {
        read(&self.known)
            .iter()
            .find_map(|known| known.piece(bytes))
    }

    /// What a peer calls these bytes, and what opens them.
    pub(in crate::io) fn name(&self, bytes: &SharedBytes) -> Option<(u64, u32)> {
        let known = read(&self.known);
        known
            .iter()
            .find_map(|known| Some((known.name(bytes)?, known.key())))
    }
}

/// The devices by which a session is reached. What a device may reach lasts as long as a connection by it: a device that was
/// taken away goes when nothing of it is left.
#[derive(Debug, Default)]
pub(in crate::io) struct Reaches(Mutex<Vec<Weak<Reach>>>);

impl Reaches {
    /// That of the device that `id` has.
    pub(in crate::io) fn of(&self, id: &Arc<Id>) -> Result<Arc<Reach>, VerbsError> {
        let mut all = lock(&self.0);
        all.retain(|known| known.strong_count() > 0);
        let mut known = all.iter().filter_map(Weak::upgrade);
        if let Some(known) = known.find(|known| known.is_for(id)) {
            return Ok(known);
        }
        let reach = Arc::new(Reach::new(id)?);
        all.push(Arc::downgrade(&reach));
        Ok(reach)
    }
}
