//! What a read has brought: it is where its lease is, or is copied there, before the engine hears of it.

use super::super::link_error::LinkError;
use super::Core;
use crate::engine::path::Conn;
use crate::wire::Immediate;

impl Core {
    /// A response has come by this connection.
    pub(super) fn brought(&mut self, at: usize, conn: Conn, imm: u32) -> Result<(), LinkError> {
        let Ok(Immediate::Response { id, errno, .. }) = Immediate::decode(imm) else {
            return Ok(());
        };
        let Some(entry) = self.links[at].as_mut() else {
            return Ok(());
        };
        let copied = match (entry.link.is_shared(), errno) {
            (true, 0) => self.pull(at, conn, id as usize)?,
            (true, _) => 0,
            (false, _) if entry.link.reach().is_some() => self.fetch_home(conn, id as usize),
            (false, _) => entry.link.take_copied(),
        };
        let flight = self.flights.get_mut(id as usize).and_then(Option::as_mut);
        if let Some(lease) = flight.and_then(|flight| flight.lease.as_mut()) {
            lease.note_copied(u32::try_from(copied).unwrap_or(u32::MAX));
            let reading = self.reading.get(lease.number() as usize).copied().flatten();
            lease.note_detour(reading.and_then(|reading| reading.detour));
        }
        Ok(())
    }

    /// What was read came to the slot of its lease, if the device does not reach the lease. How many bytes were copied?
    fn fetch_home(&self, conn: Conn, permit: usize) -> u64 {
        let flight = self.flights.get(permit).and_then(Option::as_ref);
        let lease = flight.and_then(|flight| flight.lease.as_ref());
        let (Some(lease), Some(pool)) = (lease, &self.pool) else {
            return 0;
        };
        let reading = self.reading.get(lease.number() as usize).copied().flatten();
        let reading = reading.filter(|reading| reading.by == conn && reading.by_slot);
        let slot = pool.bytes(lease.number());
        let came = reading.and_then(|reading| {
            let home = slot?.part(0, reading.len as usize)?;
            Some((reading, home))
        });
        let Some((reading, home)) = came else {
            return 0;
        };
        // SAFETY: both are mapped for their lengths; the lease is no part of its slot.
        unsafe { reading.into.copy_in(0, home.as_ptr(), home.len()) };
        home.len() as u64
    }

    /// What was read lies in its chunk; if its lease does not, it is copied out. How many bytes were?
    fn pull(&self, at: usize, conn: Conn, permit: usize) -> Result<u64, LinkError> {
        let flight = self.flights.get(permit).and_then(Option::as_ref);
        let lease = flight.and_then(|flight| flight.lease.as_ref());
        let (Some(lease), Some(geometry)) = (lease, self.engine.geometry()) else {
            return Ok(0);
        };
        let reading = self.reading.get(lease.number() as usize).copied().flatten();
        let reading = reading.filter(|reading| reading.by == conn && !reading.in_place);
        let into = reading.and_then(|reading| reading.into.part(0, reading.len as usize));
        let (Some(into), Some(entry)) = (into, self.links[at].as_ref()) else {
            return Ok(0);
        };
        match entry.link.pull(permit * geometry.chunk() as usize, &into) {
            true => Ok(into.len() as u64),
            false => Err(LinkError::Queue),
        }
    }
}
