//! Memory that the peers of one session may write, by each device.
//!
//! One protection domain to each session and device: what a peer guesses, it cannot use for another session's memory.

use crate::lease::{Detour, Memory};
use memlane_core::access::SharedBytes;
use memlane_core::token::Token;
use memlane_verbs::{Domain, Id, Piece, Registration, VerbsError};
use memlane_wait::mutex::{lock, read, write};
use std::any::Any;
use std::sync::{Arc, Mutex, RwLock, Weak};

/// Memory is named as from a page's beginning.
const PAGE: u64 = 4096;

/// A memory of the session's user, and the number of its registration, or why it has none.
type Met = (Arc<dyn Memory>, Result<usize, Detour>);

/// What one device may reach for one session.
#[derive(Debug)]
pub(in crate::io) struct Reach {
    domain: Arc<Domain>,
    known: RwLock<Vec<Registration>>,
    /// Of the session's user.
    memories: RwLock<Vec<Met>>,
}

impl Reach {
    /// Nothing yet, by the device of `id`.
    pub(in crate::io) fn new(id: &Arc<Id>) -> Result<Reach, VerbsError> {
        Ok(Reach {
            domain: Domain::new(id)?,
            known: RwLock::default(),
            memories: RwLock::default(),
        })
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    fn is_for(&self, id: &Id) -> bool {
        self.domain.is_for(id)
    }

    /// Lets peers write `bytes` from now on, and calls the first one `named`.
    ///
    /// # Safety
    /// They stay mapped as long as `owner` lives.
    pub(in crate::io) unsafe fn add(
        &self,
        bytes: SharedBytes,
        named: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<(), VerbsError> {
        let mut known = write(&self.known);
        if known.iter().any(|known| known.name(&bytes).is_some()) {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        known.push(unsafe { self.domain.register(bytes, named, owner)? });
        Ok(())
    }

    /// What a peer calls `len` bytes of a user's memory from `at` on, and what opens them. The memory is registered when it is first
    /// asked for: as a dma-buf, if it is one and the device can, else where it is mapped.
    pub(in crate::io) fn name_in(
        &self,
        memory: &Arc<dyn Memory>,
        (at, len): (usize, usize),
    ) -> Result<(u64, u32), Detour> {
        let number = self.know(memory)?;
        let known = read(&self.known);
        let named = known
            .get(number)
            .and_then(|r| Some((r.name_at(at, len)?, r.key())));
        named.ok_or(Detour::Refused(libc::ERANGE))
    }

    /// The number of a memory's registration.
    pub(in crate::io) fn know(&self, memory: &Arc<dyn Memory>) -> Result<usize, Detour> {
        let is_it = |(known, _): &&Met| Arc::ptr_eq(known, memory);
        if let Some((_, number)) = read(&self.memories).iter().find(is_it) {
            return *number;
        }
        let number = self.register(memory).map(|registration| {
            let mut known = write(&self.known);
            known.push(registration);
            known.len() - 1
        });
        write(&self.memories).push((Arc::clone(memory), number));
        number
    }

    fn register(&self, memory: &Arc<dyn Memory>) -> Result<Registration, Detour> {
        let (bytes, owner) = (memory.bytes(), || Arc::new(Arc::clone(memory)) as _);
        let as_dma_buf = memory.dma_buf().map(|(dma_buf, len)| {
            let named = fresh_name(&bytes) & !(PAGE - 1);
            // SAFETY: what a session was told of stays mapped as long as it lives (`lease::Memory`).
            unsafe { (self.domain).register_dma_buf(dma_buf, len, bytes, named, owner()) }
        });
        let refused = match as_dma_buf {
            Some(Ok(registration)) => return Ok(registration),
            Some(Err(error)) => Some(detour(&error)),
            None => None,
        };
        if bytes.is_empty() {
            return Err(refused.unwrap_or(Detour::Refused(libc::EFAULT)));
        }
        // SAFETY: as above.
        let mapped = unsafe { self.domain.register(bytes, fresh_name(&bytes), owner()) };
        mapped.map_err(|error| refused.unwrap_or(detour(&error)))
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

/// An address of no process, so that it says nothing about this one.
fn fresh_name(bytes: &SharedBytes) -> u64 {
    let within_page = bytes.as_ptr().addr() as u64 % PAGE;
    let random = Token::fresh().map_or(PAGE, |token| (token.bits() >> 1) & !(PAGE - 1));
    random + within_page
}

fn detour(error: &VerbsError) -> Detour {
    match error {
        VerbsError::Missing(_) => Detour::OldLibrary,
        VerbsError::Failed { errno, .. } => Detour::Refused(*errno),
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
