//! The memory of a server's sessions: one region each, which is its chunks.

use super::across::{Lent, Lot, Mapped};
use super::frame::WriteTarget;
use super::inflow::Granted;
use super::link::Link;
use super::link_error::LinkError;
use super::verbs::{Reach, Reaches};
use crate::engine::server::SessionId;
use crate::wire::{Geometry, SgDesc};
use memlane_core::access::SharedBytes;
use memlane_core::region::{Pages, Region};
use memlane_core::token::Token;
use memlane_verbs::Id;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One session's chunks.
#[derive(Debug)]
pub(super) struct Memory {
    mapped: Arc<Mapped>,
    pages: Pages,
    /// Devices by which clients write there themselves.
    reaches: Reaches,
    geometry: Geometry,
    /// What its client is told: an address of no process, so that it says nothing about this one.
    base: u64,
    key: u32,
}

impl Memory {
    /// In the lot, if there is one and it has room; else of this host's own.
    fn new(
        geometry: Geometry,
        pages: Pages,
        lot: Option<&Arc<Lot>>,
    ) -> memlane_sys::Result<Memory> {
        let len = len_of(&geometry);
        let key = Token::fresh()?.bits().to_le_bytes();
        let mapped = match lot.and_then(|lot| lot.lend(len).ok()) {
            Some(lent) => Mapped::Lent(lent),
            None => Mapped::Own(Region::create_of(c"memlane-session", len, pages)?),
        };
        Ok(Memory {
            mapped: Arc::new(mapped),
            pages,
            reaches: Reaches::default(),
            geometry,
            base: (Token::fresh()?.bits() >> 1) & !4095,
            key: u32::from_le_bytes([key[0], key[1], key[2], key[3]]),
        })
    }

    /// As `rtrs_msg_info_rsp` tells it: in one piece if its length can be told, else each chunk alone.
    /// `reach`: to a client that writes by this device, which has a key of its own.
    pub(super) fn table(&self, reach: Option<&Reach>) -> Vec<SgDesc> {
        let named = reach.and_then(|reach| reach.name(&self.mapped.bytes()));
        let (base, key) = named.unwrap_or((self.base, self.key));
        let (chunk, depth) = (self.geometry.chunk(), u32::from(self.geometry.depth()));
        let (parts, len) = match chunk.checked_mul(depth) {
            Some(all) => (1, all),
            None => (depth, chunk),
        };
        let part = |n: u32| SgDesc {
            addr: base + u64::from(n) * u64::from(len),
            key,
            len,
        };
        (0..parts).map(part).collect()
    }

    pub(super) fn chunk(&self, permit: u16) -> Option<SharedBytes> {
        let len = self.geometry.chunk() as usize;
        let at = len.checked_mul(usize::from(permit))?;
        self.mapped.bytes().part(at, len)
    }

    /// Lets the device of `id` write there.
    pub(super) fn reach(&self, id: &Arc<Id>) -> Result<Arc<Reach>, LinkError> {
        let reach = self.reaches.of(id)?;
        let (bytes, owner) = (self.mapped.bytes(), Arc::clone(&self.mapped));
        // SAFETY: the region is mapped as long as it lives.
        unsafe { reach.add(bytes, self.base, owner)? };
        Ok(reach)
    }

    /// Chunks.
    pub(super) fn depth(&self) -> u16 {
        self.geometry.depth()
    }

    /// With a client of this host, which refuses huge pages: whoever punches a hole into them could leave it without one. Data of such
    /// sessions goes by the socket, and so does data of sessions that lie in memory of several machines.
    pub(super) fn share(&self, link: &mut Link) -> Result<(), LinkError> {
        match self.mapped.descriptor() {
            Some(chunks) if self.pages == Pages::Plain => {
                link.share(self.geometry.depth(), chunks, self.base)
            }
            _ => Ok(()),
        }
    }

    /// Does it lie in memory of several machines?
    pub(super) fn is_lent(&self) -> bool {
        self.mapped.as_lent().is_some()
    }

    /// It does, and its client will not come back.
    fn is_departed(&self) -> bool {
        self.mapped.as_lent().is_some_and(Lent::is_departed)
    }

    /// With a client of another machine that has the same memory.
    pub(super) fn place(&self, link: &mut Link) -> Result<(), LinkError> {
        let chunks = self.mapped.as_lent().ok_or(LinkError::Queue)?;
        link.place(self.geometry.depth(), chunks, self.base)
    }

    pub(super) fn copy(&self, permit: u16, at: u32, into: &mut [u8]) {
        if let Some(chunk) = self.chunk(permit) {
            // SAFETY: `into` is writable for its length; the window checks its own bounds.
            unsafe { chunk.copy_out(at as usize, into.as_mut_ptr(), into.len()) };
        }
    }
}

/// Bytes of a server's memory for each session.
#[must_use]
pub fn len_of(geometry: &Geometry) -> usize {
    geometry.chunk() as usize * usize::from(geometry.depth())
}

/// A client may write its session's chunks, at any time: what is done with them is checked, not what is in them.
pub(super) struct BySession<'a>(pub(super) Option<&'a Memory>);

impl Granted for BySession<'_> {
    fn window(&mut self, place: &WriteTarget) -> Option<SharedBytes> {
        let memory = self.0.filter(|memory| memory.key == place.key)?;
        let at = usize::try_from(place.addr.checked_sub(memory.base)?).ok()?;
        let span = usize::try_from(place.span()).ok()?;
        memory.mapped.bytes().part(at, span)
    }
}

/// All sessions'.
#[derive(Debug)]
pub(super) struct Memories {
    geometry: Geometry,
    pages: Pages,
    /// Memory that other machines have, too.
    lot: Option<Arc<Lot>>,
    sessions: BTreeMap<SessionId, Arc<Memory>>,
}

impl Memories {
    pub(super) fn new(geometry: Geometry, pages: Pages, lot: Option<Arc<Lot>>) -> Memories {
        Memories {
            geometry,
            pages,
            lot,
            sessions: BTreeMap::new(),
        }
    }

    /// Is there memory that other machines have, too?
    pub(super) fn has_lot(&self) -> bool {
        self.lot.is_some()
    }

    /// Makes that of a session. `across`: its client may be on another machine that has the same memory.
    pub(super) fn open(&mut self, session: SessionId, across: bool) -> memlane_sys::Result<()> {
        let lot = self.lot.as_ref().filter(|_| across);
        let memory = Memory::new(self.geometry, self.pages, lot)?;
        self.sessions.insert(session, Arc::new(memory));
        Ok(())
    }

    /// That of a session, which is made now if it could not be made before.
    pub(super) fn of(&mut self, session: SessionId, across: bool) -> Option<Arc<Memory>> {
        if !self.sessions.contains_key(&session) {
            self.open(session, across).ok()?;
        }
        self.get(session).cloned()
    }

    /// Puts that of a session into memory of several machines, if there is room by now. Nothing has happened in the session yet.
    pub(super) fn move_across(&mut self, session: SessionId) -> Option<Arc<Memory>> {
        let lot = self.lot.as_ref()?;
        let known = self.sessions.get_mut(&session)?;
        // Whatever else has it, has it mapped.
        let whole = Arc::get_mut(known)?;
        let moved = Memory::new(self.geometry, self.pages, Some(lot)).ok()?;
        *whole = Some(moved).filter(Memory::is_lent)?;
        Some(Arc::clone(known))
    }

    /// Sessions in memory of several machines whose clients will not come back.
    pub(super) fn departed(&self) -> Vec<SessionId> {
        let sessions = self.sessions.iter();
        let departed = sessions.filter(|(_, memory)| memory.is_departed());
        departed.map(|(session, _)| *session).collect()
    }

    /// Frees what nobody uses any more. Is there something left that its client has not let go of?
    pub(super) fn tidy_up(&self) -> bool {
        self.lot.as_ref().is_some_and(|lot| lot.look())
    }

    /// Sessions in memory of several machines.
    pub(super) fn lent(&self) -> impl Iterator<Item = SessionId> + '_ {
        let lent = self.sessions.iter().filter(|(_, memory)| memory.is_lent());
        lent.map(|(session, _)| *session)
    }

    /// Its connections are gone, and so are its jobs.
    pub(super) fn free(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    pub(super) fn get(&self, session: SessionId) -> Option<&Arc<Memory>> {
        self.sessions.get(&session)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.keys().copied()
    }
}
