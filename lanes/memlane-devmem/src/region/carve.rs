//! Parts of a region that another process gets, and nothing else of it.

use super::{DeviceRegion, RegionKind};
use memlane_sys::fd::Fd;
use memlane_sys::{Errno, Result, mem};

impl DeviceRegion {
    /// Can parts be given to other processes?
    pub fn can_be_carved(&self) -> bool {
        self.kind == RegionKind::Memfd && self.memory.is_some()
    }

    /// Has fresh memory lie in the place of these whole pages, at the same addresses; the file that it is of. Whoever
    /// gets that file reaches this part, and no other.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: of this kind of memory, all or nothing is given; `EINVAL`: these are no pages of it; the kernel's.
    pub(crate) fn carve(&self, offset: u64, len: usize) -> Result<Fd> {
        if !self.can_be_carved() {
            return Err(Errno(rustix::io::Errno::OPNOTSUPP.raw_os_error()));
        }
        let file = mem::memfd(c"memlane-device-part", len, false)?;
        mem::add_seals(file.raw(), mem::SEALS_FIXED)?;
        self.put(offset, file.raw(), 0, len)?;
        Ok(file)
    }

    /// Has the region's own memory lie there again: whoever still has that file reaches nothing of it.
    ///
    /// # Errors
    /// As [`carve`](Self::carve); then others may still write there.
    pub(crate) fn mend(&self, offset: u64, len: usize) -> Result<()> {
        let own = self.memory.as_ref().ok_or(Errno::INVAL)?;
        let at = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        self.put(offset, own.raw(), at, len)
    }

    fn put(&self, offset: u64, file: i32, from: usize, len: usize) -> Result<()> {
        let at = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        let part = self.bytes().part(at, len).ok_or(Errno::INVAL)?;
        if len == 0 || !at.is_multiple_of(mem::PAGE) || !len.is_multiple_of(mem::PAGE) {
            return Err(Errno::INVAL);
        }
        let base = std::ptr::NonNull::new(part.as_ptr()).ok_or(Errno::INVAL)?;
        // SAFETY: whole pages of our own mapping; there are windows on them, and no references.
        unsafe { mem::remap_shared(base, file, from, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_core::region::Region;

    const PART: usize = 8192;

    fn region(text: &str) -> DeviceRegion {
        DeviceRegion::create(&text.parse().unwrap()).unwrap()
    }

    #[test]
    fn who_has_a_part_reaches_it_until_it_is_mended_and_nothing_else_ever() {
        let region = region("memfd:64K");
        region.write(0, &[1; 65536]).unwrap();
        let part = Region::attach(region.carve(16384, PART).unwrap(), PART).unwrap();
        // SAFETY: as long as the part.
        assert!(unsafe { part.bytes().copy_in(0, [7_u8; PART].as_ptr(), PART) });
        let mut seen = [0; 65536];
        region.read(0, &mut seen).unwrap();
        assert_eq!(seen[16384..][..PART], [7; PART]);
        assert!(
            seen[..16384]
                .iter()
                .chain(&seen[16384 + PART..])
                .all(|b| *b == 1)
        );

        region.mend(16384, PART).unwrap();
        // SAFETY: as above.
        assert!(unsafe { part.bytes().copy_in(0, [9_u8; PART].as_ptr(), PART) });
        region.read(0, &mut seen).unwrap();
        assert!(!seen.contains(&9), "it still writes there");
    }

    #[test]
    fn only_whole_pages_of_it_are_carved() {
        let region = region("memfd:64K");
        for (offset, len) in [
            (1, 4096),
            (0, 100),
            (0, 0),
            (61440, 8192),
            (u64::MAX - 4095, 4096),
        ] {
            assert_eq!(
                region.carve(offset, len).unwrap_err(),
                Errno::INVAL,
                "{offset}"
            );
        }
    }
}
