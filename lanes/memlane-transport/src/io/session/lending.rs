//! Memory for requests' data: of the session's own, or of its users'.

use super::super::port_state::PortState;
use super::inner::Inner;
use crate::lease::{Lease, Memory};
use crate::port::{ChunkFile, LeaseError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Inner {
    pub(in super::super) fn lease(
        &self,
        port: &Arc<PortState>,
        len: u32,
    ) -> Result<Option<Lease>, LeaseError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(LeaseError::Closed);
        }
        let Some(pool) = self.pool.get() else {
            return Ok(None);
        };
        if len > pool.most() {
            return Err(LeaseError::TooLong);
        }
        Ok(pool.lend(port, len))
    }

    pub(in super::super) fn lease_in(
        &self,
        port: &Arc<PortState>,
        memory: &Arc<dyn Memory>,
        (at, len): (usize, u32),
    ) -> Result<Option<Lease>, LeaseError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(LeaseError::Closed);
        }
        let Some(pool) = self.pool.get() else {
            return Ok(None);
        };
        if len > pool.most() {
            return Err(LeaseError::TooLong);
        }
        pool.lend_in(port, memory, (at, len as usize))
    }

    pub(in super::super) fn chunk_file(&self) -> std::io::Result<Option<ChunkFile>> {
        let chunks = self.pool.get().and_then(|pool| pool.chunks());
        let file = chunks.map_or(Ok(None), |chunks| chunks.file());
        file.map_err(|errno| std::io::Error::from_raw_os_error(errno.0))
    }

    pub(in super::super) fn can_lend_again(&self, port: &Arc<PortState>) -> bool {
        self.pool.get().is_some_and(|pool| pool.has_again(port))
    }
}
