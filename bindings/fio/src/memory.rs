//! Buffers for fio, in memory that leases may be pieces of.
//!
//! fio takes a job's buffers from here and gives them back at the job's end. A session that knows of them keeps them mapped until
//! it is over, since a server may send late.

use crate::job::Buffer;
use memlane_core::access::SharedBytes;
use memlane_core::region::{Pages, Region};
use memlane_transport::lease::Memory;
use std::sync::Arc;

/// The buffers of one job.
#[derive(Debug)]
pub(crate) struct Buffers {
    memory: Arc<dyn Memory>,
    /// Leases may be pieces of it.
    lends: bool,
}

#[derive(Debug)]
struct Made(Region);

impl Memory for Made {
    fn bytes(&self) -> SharedBytes {
        self.0.bytes()
    }
}

impl Buffers {
    /// Memory of `len` bytes, which are zero.
    pub(crate) fn new(len: usize, lends: bool) -> memlane_sys::Result<Buffers> {
        let region = Region::create_of(c"memlane-fio", len, Pages::Plain)?;
        let memory = Arc::new(Made(region));
        Ok(Buffers { memory, lends })
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> Buffer {
        Buffer(self.memory.bytes().as_ptr())
    }

    /// The memory, and where in it these `len` bytes are, if a lease may lie there.
    pub(crate) fn place(&self, buffer: Buffer, len: u32) -> Option<(&Arc<dyn Memory>, usize)> {
        let bytes = self.memory.bytes();
        let at = (buffer.0 as usize).checked_sub(bytes.as_ptr() as usize)?;
        let end = at.checked_add(len as usize)?;
        (self.lends && end <= bytes.len()).then_some((&self.memory, at))
    }

    /// No lease is a piece of it from now on: the session knows too many memories, say.
    pub(crate) fn lend_no_more(&mut self) {
        self.lends = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_within_the_memory_has_a_place_there() {
        let mut buffers = Buffers::new(8192, true).expect("memory");
        let start = buffers.start().0;
        let place = |buffers: &Buffers, at: isize, len| {
            let buffer = Buffer(start.wrapping_offset(at));
            buffers.place(buffer, len).map(|(_, at)| at)
        };
        assert_eq!(place(&buffers, 0, 8192), Some(0));
        assert_eq!(place(&buffers, 4096, 4096), Some(4096));
        assert_eq!(place(&buffers, 4096, 4097), None);
        assert_eq!(place(&buffers, -1, 1), None);
        assert_eq!(place(&buffers, 8192, 1), None);
        buffers.lend_no_more();
        assert_eq!(place(&buffers, 0, 1), None);
    }
}
