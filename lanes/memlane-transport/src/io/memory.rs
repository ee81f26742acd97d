//! The memory of a server's sessions: one region each, which is its chunks.

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
    region: Arc<Region>,
    pages: Pages,
    /// Devices by which clients write there themselves.
    reaches: Reaches,
    geometry: Geometry,
    /// What its client is told: an address of no process, so that it says nothing about this one.
    base: u64,
    key: u32,
}

impl Memory {
    fn new(geometry: Geometry, pages: Pages) -> memlane_sys::Result<Memory> {
        let len = len_of(&geometry);
        let key = Token::fresh()?.bits().to_le_bytes();
        Ok(Memory {
            region: Arc::new(Region::create_of(c"memlane-session", len, pages)?),
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
        let named = reach.and_then(|reach| reach.name(&self.region.bytes()));
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
        self.region.bytes().part(at, len)
    }

    /// Lets the device of `id` write there.
    pub(super) fn reach(&self, id: &Arc<Id>) -> Result<Arc<Reach>, LinkError> {
        let reach = self.reaches.of(id)?;
        let (bytes, owner) = (self.region.bytes(), Arc::clone(&self.region));
        // SAFETY: the region is mapped as long as it lives.
        unsafe { reach.add(bytes, self.base, owner)? };
        Ok(reach)
    }

    /// Chunks.
    pub(super) fn depth(&self) -> u16 {
        self.geometry.depth()
    }

    /// With a client of this host, which refuses huge pages: whoever punches a hole into them could leave it without one. Data of such
    /// sessions goes by the socket.
    pub(super) fn share(&self, link: &mut Link) -> Result<(), LinkError> {
        if self.pages == Pages::Huge {
            return Ok(());
        }
        let chunks = self.region.fd().ok_or(LinkError::Queue)?;
        link.share(self.geometry.depth(), chunks, self.base)
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
        memory.region.bytes().part(at, span)
    }
}

/// All sessions'.
#[derive(Debug)]
pub(super) struct Memories {
    geometry: Geometry,
    pages: Pages,
    sessions: BTreeMap<SessionId, Arc<Memory>>,
}

impl Memories {
    pub(super) fn new(geometry: Geometry, pages: Pages) -> Memories {
        Memories {
            geometry,
            pages,
            sessions: BTreeMap::new(),
        }
    }

    pub(super) fn open(&mut self, session: SessionId) -> memlane_sys::Result<()> {
        let memory = Memory::new(self.geometry, self.pages)?;
        self.sessions.insert(session, Arc::new(memory));
        Ok(())
    }

    /// That of a session, which is made now if it could not be made before.
    pub(super) fn of(&mut self, session: SessionId) -> Option<Arc<Memory>> {
        if !self.sessions.contains_key(&session) {
            self.open(session).ok()?;
        }
        self.get(session).cloned()
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
