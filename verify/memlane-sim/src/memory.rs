//! The server's memory: the chunks of its sessions, which clients may write at any time.

use memlane_transport::engine::server::{Chunks, LinkId, SessionId};
use memlane_transport::wire::SgDesc;
use std::collections::BTreeMap;

/// Bytes of a chunk.
pub(crate) const CHUNK: u32 = 8192;

/// The memory of each session of the present server.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) depth: u16,
    pub(crate) sessions: BTreeMap<SessionId, Vec<u8>>,
}

impl Chunks for Memory {
    fn table(&self, session: SessionId, _: LinkId) -> Vec<SgDesc> {
        let len = u32::from(self.depth) * CHUNK;
        let key = u32::try_from(session.0).unwrap_or(0);
        vec![SgDesc { addr: 0, key, len }]
    }

    fn copy(&self, session: SessionId, chunk: u16, at: u32, into: &mut [u8]) {
        let at = usize::from(chunk) * CHUNK as usize + at as usize;
        into.copy_from_slice(&self.sessions[&session][at..at + into.len()]);
    }
}

impl Memory {
    pub(crate) fn place(&mut self, session: SessionId, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if let Some(memory) = self.sessions.get_mut(&session) {
            memory[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    pub(crate) fn value(&self, session: SessionId, chunk: u16) -> u64 {
        let mut bytes = [0; 8];
        self.copy(session, chunk, 0, &mut bytes);
        u64::from_le_bytes(bytes)
    }
}
