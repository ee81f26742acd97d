//! The front's regions, as a back reaches them: descriptors, mapped page by page or read and written by the kernel.

use crate::engine::grant::{Access, Extent, Grant, Reach};
use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_sys::fd::Fd;
use memlane_sys::{Errno, Result, fd, mem};
use std::ptr::NonNull;
use std::sync::Arc;

/// The regions that a front handed over. Each queue has one, of the same descriptors.
#[derive(Clone, Debug)]
pub struct Regions {
    files: Arc<[Fd]>,
    extents: Arc<[Extent]>,
    /// Where grants of each are mapped, if nothing is there: beside each other as they are in the file.
    places: Arc<[usize]>,
}

impl Regions {
    /// Takes descriptors that must be as a [`Region`] would take them, of these lengths.
    ///
    /// # Errors
    /// One is not.
    pub fn new(files: Vec<Fd>, lens: &[usize]) -> Result<Regions> {
        if files.len() != lens.len() {
            return Err(Errno::INVAL);
        }
        let mut extents = Vec::new();
        for (file, len) in files.iter().zip(lens) {
            Region::vet(file, *len)?;
            let writable = mem::seals(file.raw())? & mem::SEALS_WRITING == 0;
            extents.push(Extent {
                len: *len,
                writable,
            });
        }
        let places = lens.iter().map(|len| mem::place_for(*len)).collect();
        Ok(Regions {
            places,
            files: files.into(),
            extents: extents.into(),
        })
    }

    fn file(&self, grant: Grant) -> Result<i32> {
        let file = self.files.get(usize::from(grant.region));
        file.map(Fd::raw).ok_or(Errno::INVAL)
    }
}

impl Reach for Regions {
    fn regions(&self) -> &[Extent] {
        &self.extents
    }

    fn map(&mut self, grant: Grant, access: Access) -> Result<SharedBytes> {
        let writable = access == Access::Write;
        let file = self.file(grant)?;
        let place = self.places.get(usize::from(grant.region)).copied();
        let place = place
            .filter(|place| *place > 0)
            .map_or(0, |place| place + grant.at);
        let base = mem::map_shared_at(place, file, grant.at, grant.len, writable)?;
        // SAFETY: just mapped, and unmapped by `unmap` only. Its size is sealed, so that it cannot go from under us.
        Ok(unsafe {
            if writable {
                SharedBytes::new(base, grant.len)
            } else {
                SharedBytes::read_only(base, grant.len)
            }
        })
    }

    fn unmap(&mut self, window: SharedBytes) {
        if let Some(base) = NonNull::new(window.as_ptr()) {
            // SAFETY: a whole mapping of `map`'s; the engine has nobody use it any more.
            unsafe { mem::unmap(base, window.len()) };
        }
    }

    fn read(&mut self, grant: Grant, at: usize, into: &mut [u8]) -> Result<()> {
        let n = fd::read_at(self.file(grant)?, into, (grant.at + at) as u64)?;
        // Memory files are read whole; a signal comes before or after.
        if n == into.len() {
            Ok(())
        } else {
            Err(Errno(5))
        }
    }

    fn write(&mut self, grant: Grant, at: usize, from: &[u8]) -> Result<()> {
        let n = fd::write_at(self.file(grant)?, from, (grant.at + at) as u64)?;
        if n == from.len() {
            Ok(())
        } else {
            Err(Errno(5))
        }
    }
}
