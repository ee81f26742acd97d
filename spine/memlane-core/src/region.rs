//! Regions: memory that can be shared, mapped once.

use crate::access::SharedBytes;
use core::ffi::CStr;
use core::ptr::NonNull;
use memlane_sys::fd::Fd;
use memlane_sys::mem;
use memlane_sys::{Errno, Result};

/// A mapped memfd, ours or a peer's. Unmapped when dropped.
#[derive(Debug)]
pub struct Region {
    fd: Option<Fd>,
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: a Region is an address range; all access goes through SharedBytes or atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Huge page size assumed for `hugetlb` regions (x86-64's default).
pub const HUGE: usize = 2 * 1024 * 1024;

/// What pages a region is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pages {
    /// Ordinary ones.
    #[default]
    Plain,
    /// Huge ones, from the administrator's pool (`vm.nr_hugepages`).
    Huge,
}

impl Pages {
    /// Huge pages that a region of `len` bytes needs; none, if it is made of plain ones.
    pub fn huge_for(self, len: usize) -> usize {
        match self {
            Pages::Plain => 0,
            Pages::Huge => len.div_ceil(HUGE),
        }
    }
}

impl Region {
    /// Makes a memfd of `len` bytes, seals its size for ever, maps it. With
    /// `hugetlb`, huge pages are tried first and plain ones taken if there are none.
    pub fn create(name: &CStr, len: usize, hugetlb: bool) -> Result<Region> {
        if hugetlb && let Ok(r) = Region::create_kind(name, len.next_multiple_of(HUGE), true) {
            return Ok(r);
        }
        Region::create_kind(name, len, false)
    }

    /// As `create`, of these pages and no others. Huge pages are whole, so the region may be longer than `len`, and
    /// they are reserved at once: a page that is touched later is there.
    ///
    /// # Errors
    /// With huge pages: `ENOMEM`, too few of the pool are free; `EINVAL`, `ENOSYS`, this kernel has none.
    pub fn create_of(name: &CStr, len: usize, pages: Pages) -> Result<Region> {
        match pages {
            Pages::Plain => Region::create_kind(name, len, false),
            Pages::Huge => Region::create_kind(name, len.next_multiple_of(HUGE), true),
        }
    }

    fn create_kind(name: &CStr, len: usize, hugetlb: bool) -> Result<Region> {
        let fd = mem::memfd(name, len, hugetlb)?;
        mem::add_seals(fd.raw(), mem::SEALS_FIXED)?;
        let base = mem::map_shared(fd.raw(), 0, len, true)?;
        Ok(Region {
            fd: Some(fd),
            base,
            len,
            writable: true,
        })
    }

    /// Makes one that others can map for reading only: nobody can get a writable mapping of the memfd, or write it by
    /// its descriptor, once it is mapped here.
    pub fn create_for_readers(name: &CStr, len: usize) -> Result<Region> {
        let fd = mem::memfd(name, len, false)?;
        let base = mem::map_shared(fd.raw(), 0, len, true)?;
        let region = Region {
            fd: Some(fd),
            base,
            len,
            writable: true,
        };
        let seals = mem::SEALS_FIXED | libc::F_SEAL_FUTURE_WRITE;
        mem::add_seals(region.fd().unwrap_or(-1), seals)?;
        Ok(region)
    }

    /// Maps a memfd that a peer handed over. Refuses one whose size is not
    /// sealed (the peer could pull its pages from under us: SIGBUS), that is not
    /// `len` bytes long, or that is made of huge pages: they come from a pool of
    /// the administrator's, and a peer that punched a hole could leave us to find
    /// it empty (SIGBUS again).
    pub fn attach(fd: Fd, len: usize) -> Result<Region> {
        Region::attach_kind(&fd, len, true)
    }

    /// As `attach`, for reading only: nothing can be written through the mapping.
    pub fn attach_read_only(fd: Fd, len: usize) -> Result<Region> {
        Region::attach_kind(&fd, len, false)
    }

    /// As `attach`, for protocols whose peers seal against shrinking only (memif): the first `len` bytes of a memfd
    /// that has at least as many.
    pub fn attach_unshrinkable(fd: Fd, len: usize) -> Result<Region> {
        if mem::seals(fd.raw())? & libc::F_SEAL_SHRINK == 0 {
            return Err(Errno(libc::EPERM));
        }
        if len == 0 || memlane_sys::fd::stat(fd.raw())?.size < len as u64 {
            return Err(Errno::INVAL);
        }
        if mem::is_hugetlb(fd.raw())? {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        Region::map(&fd, len, true)
    }

    /// Maps `len` bytes of a memfd that a peer handed over, from `at`: of any length that is sealed, of ordinary pages.
    /// Whoever asks for it unmaps it.
    pub fn attach_part(fd: &Fd, at: u64, len: usize) -> Result<NonNull<u8>> {
        if mem::seals(fd.raw())? & mem::SEALS_FIXED != mem::SEALS_FIXED {
            return Err(Errno(libc::EPERM));
        }
        let size = memlane_sys::fd::stat(fd.raw())?.size;
        let end = at.checked_add(len as u64).ok_or(Errno::INVAL)?;
        if len == 0 || end > size {
            return Err(Errno::INVAL);
        }
        if mem::is_hugetlb(fd.raw())? {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let at = usize::try_from(at).map_err(|_| Errno::INVAL)?;
        mem::map_shared(fd.raw(), at, len, true)
    }

    /// Maps `len` bytes from `at` of memory that several machines share: a file, or a device's memory, that an agent handed over.
    /// Nothing seals such memory: whoever may shorten the file can end this process by SIGBUS. Only the machine's root, and the
    /// owner of the file, can. Whoever asks for it unmaps it.
    pub fn window(fd: &Fd, at: u64, len: usize) -> Result<NonNull<u8>> {
        let size = memlane_sys::fd::stat(fd.raw())?.size;
        let end = at.checked_add(len as u64).ok_or(Errno::INVAL)?;
        if len == 0 || end > size || !at.is_multiple_of(mem::PAGE as u64) {
            return Err(Errno::INVAL);
        }
        let at = usize::try_from(at).map_err(|_| Errno::INVAL)?;
        mem::map_shared(fd.raw(), at, len, true)
    }

    fn attach_kind(fd: &Fd, len: usize, writable: bool) -> Result<Region> {
        Region::vet(fd, len)?;
        Region::map(fd, len, writable)
    }

    fn map(fd: &Fd, len: usize, writable: bool) -> Result<Region> {
        let base = mem::map_shared(fd.raw(), 0, len, writable)?;
        // The mapping keeps the memory; the descriptor is of no further use.
        Ok(Region {
            fd: None,
            base,
            len,
            writable,
        })
    }

    /// Would `attach` take this memfd? For who maps pieces of it.
    pub fn vet(fd: &Fd, len: usize) -> Result<()> {
        if mem::seals(fd.raw())? & mem::SEALS_FIXED != mem::SEALS_FIXED {
            return Err(Errno(libc::EPERM));
        }
        if memlane_sys::fd::stat(fd.raw())?.size != len as u64 {
            return Err(Errno::INVAL);
        }
        if mem::is_hugetlb(fd.raw())? {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        Ok(())
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is it empty? (Never.)
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The descriptor to hand to a peer (`None` for an attached region).
    pub fn fd(&self) -> Option<i32> {
        self.fd.as_ref().map(Fd::raw)
    }

    /// Gives the descriptor away (the mapping stays).
    pub fn take_fd(&mut self) -> Option<Fd> {
        self.fd.take()
    }

    /// The whole region as a window.
    pub fn bytes(&self) -> SharedBytes {
        // SAFETY: the mapping lives as long as `self`; users are bound to it by the caller.
        unsafe {
            if self.writable {
                SharedBytes::new(self.base, self.len)
            } else {
                SharedBytes::read_only(self.base, self.len)
            }
        }
    }

    /// A structure of atomics at `offset`, or `None` if it does not fit, is
    /// misaligned, or cannot be written.
    ///
    /// # Safety
    /// `T` consists of atomics only (any bytes are a valid value, and a peer may
    /// change them), and `self` outlives the use of the pointer.
    pub unsafe fn words<T>(&self, offset: usize) -> Option<NonNull<T>> {
        let end = offset.checked_add(size_of::<T>())?;
        if !self.writable || end > self.len || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: inside the mapping, which is page aligned.
        Some(unsafe { self.base.add(offset) }.cast())
    }

    /// Keeps the mapping for ever (for process-wide regions that may be in use
    /// by another thread at any time).
    pub fn leak(self) -> (NonNull<u8>, usize) {
        let r = (self.base, self.len);
        core::mem::forget(self);
        r
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the whole mapping made in create/attach; `self` is going.
        unsafe { mem::unmap(self.base, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_whose_size_is_not_sealed_is_refused() {
        let fd = mem::memfd(c"test", 8192, false).unwrap();
        assert_eq!(Region::attach(fd, 8192).unwrap_err(), Errno(libc::EPERM));
    }

    #[test]
    fn a_region_for_readers_cannot_be_written_by_others() {
        let region = Region::create_for_readers(c"test", 8192).unwrap();
        // SAFETY: one byte is readable.
        assert!(unsafe { region.bytes().copy_in(5, b"x".as_ptr(), 1) });
        let copy = || memlane_sys::fd::duplicate(region.fd().unwrap()).unwrap();
        assert_eq!(
            Region::attach(copy(), 8192).unwrap_err(),
            Errno(libc::EPERM)
        );
        let written = memlane_sys::fd::write_at(copy().raw(), b"y", 5);
        assert_eq!(written.unwrap_err(), Errno(libc::EPERM));
        let theirs = Region::attach_read_only(copy(), 8192).unwrap();
        let mut byte = [0];
        // SAFETY: one byte is writable.
        assert!(unsafe { theirs.bytes().copy_out(5, byte.as_mut_ptr(), 1) });
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn a_region_of_another_size_than_told_is_refused() {
        let mut r = Region::create(c"test", 8192, false).unwrap();
        assert_eq!(
            Region::attach(r.take_fd().unwrap(), 4096).unwrap_err(),
            Errno::INVAL
        );
    }

    #[test]
    fn memory_that_may_grow_is_taken_where_that_is_asked_for_and_memory_that_may_shrink_never() {
        let memfd = |seals| {
            let fd = mem::memfd(c"test", 8192, false).unwrap();
            mem::add_seals(fd.raw(), seals).unwrap();
            fd
        };
        let shrinks = Region::attach_unshrinkable(memfd(libc::F_SEAL_GROW), 8192);
        assert_eq!(shrinks.unwrap_err(), Errno(libc::EPERM));
        let grows = || memfd(libc::F_SEAL_SHRINK);
        assert_eq!(
            Region::attach_unshrinkable(grows(), 4096).unwrap().len(),
            4096
        );
        for len in [0, 8193] {
            let wrong = Region::attach_unshrinkable(grows(), len);
            assert_eq!(wrong.unwrap_err(), Errno::INVAL);
        }
        assert!(Region::attach(grows(), 8192).is_err());
    }

    #[test]
    fn huge_pages_of_a_peer_are_refused() {
        const HUGE_LEN: usize = 2 * HUGE;
        let huge = match mem::memfd(c"test", HUGE_LEN, true) {
            Ok(fd) => fd,
            Err(e) => {
                eprintln!("SKIPPED: this kernel makes no huge memfds: {e}");
                return;
            }
        };
        mem::add_seals(huge.raw(), mem::SEALS_FIXED).unwrap();
        let refused = Region::attach(huge, HUGE_LEN).unwrap_err();
        assert_eq!(refused, Errno(libc::EOPNOTSUPP));
    }

    /// The pool of huge pages is the machine's, so this asks for more than any machine has.
    #[test]
    fn huge_pages_that_the_pool_does_not_have_are_no_region_and_plain_ones_do_not_take_their_place()
    {
        const MORE_THAN_ANY: usize = 1 << 44;
        let refused = Region::create_of(c"test", MORE_THAN_ANY, Pages::Huge);
        assert!(refused.is_err());
        let plain = Region::create_of(c"test", 8192, Pages::Plain).unwrap();
        assert_eq!(plain.len(), 8192);
    }

    #[test]
    fn a_region_of_huge_pages_is_as_long_as_they_are() {
        let Ok(region) = Region::create_of(c"test", HUGE + 1, Pages::Huge) else {
            eprintln!("SKIPPED: no huge pages are free here: sysctl vm.nr_hugepages=2");
            return;
        };
        assert_eq!(region.len(), 2 * HUGE);
        assert_eq!(Pages::Huge.huge_for(HUGE + 1), 2);
        assert!(mem::is_hugetlb(region.fd().unwrap()).unwrap());
    }

    #[test]
    fn a_part_of_a_peer_s_file_is_taken_only_if_it_cannot_vanish() {
        let memfd = |seals| {
            let fd = mem::memfd(c"test", 16384, false).unwrap();
            mem::add_seals(fd.raw(), seals).unwrap();
            fd
        };
        let sealed = memfd(mem::SEALS_FIXED);
        let base = Region::attach_part(&sealed, 8192, 8192).unwrap();
        // SAFETY: the whole mapping, which nobody uses.
        unsafe { mem::unmap(base, 8192) };
        for (at, len) in [(8192, 8193), (16384, 4096), (0, 0), (u64::MAX - 4095, 8192)] {
            let refused = Region::attach_part(&sealed, at, len).unwrap_err();
            assert_eq!(refused, Errno::INVAL, "{len} at {at}");
        }
        for seals in [
            0,
            libc::F_SEAL_SHRINK,
            libc::F_SEAL_SHRINK | libc::F_SEAL_GROW,
        ] {
            let refused = Region::attach_part(&memfd(seals), 0, 4096).unwrap_err();
            assert_eq!(refused, Errno(libc::EPERM));
        }
        // A socket, a pipe, a plain file: nothing that seals are for.
        let other = memlane_sys::fd::event().unwrap();
        assert!(Region::attach_part(&other, 0, 4096).is_err());
    }

    #[test]
    fn what_may_only_be_read_is_not_written_by_any_door() {
        let mut owner = Region::create(c"test", 8192, false).unwrap();
        let reader = Region::attach_read_only(owner.take_fd().unwrap(), 8192).unwrap();
        let (bytes, mut out) = (reader.bytes(), [0u8; 5]);
        // SAFETY: the arrays are five bytes long.
        unsafe {
            assert!(owner.bytes().copy_in(4000, b"hello".as_ptr(), 5));
            assert!(bytes.copy_out(4000, out.as_mut_ptr(), 5));
            assert!(!bytes.copy_in(4000, b"never".as_ptr(), 5));
            assert!(
                !bytes
                    .part(4000, 5)
                    .unwrap()
                    .copy_in(0, b"never".as_ptr(), 5)
            );
            assert!(reader.words::<u64>(0).is_none());
        }
        assert_eq!(&out, b"hello");
        // The kernel says so too: it cannot copy into these pages.
        // SAFETY: the kernel checks the address and answers EFAULT.
        let r = unsafe {
            let mut pipe = [0i32; 2];
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            assert_eq!(libc::write(pipe[1], b"x".as_ptr().cast(), 1), 1);
            let r = libc::read(pipe[0], bytes.as_ptr().cast(), 1);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            r
        };
        assert_eq!(r, -1);
    }

    #[test]
    fn what_one_side_copies_in_the_other_side_copies_out() {
        let mut owner = Region::create(c"test", 8192, false).unwrap();
        let peer = Region::attach(owner.take_fd().unwrap(), 8192).unwrap();
        let mut out = [0u8; 5];
        // SAFETY: the arrays are five bytes long.
        unsafe {
            assert!(owner.bytes().copy_in(4000, b"hello".as_ptr(), 5));
            assert!(peer.bytes().copy_out(4000, out.as_mut_ptr(), 5));
        }
        assert_eq!(&out, b"hello");
    }

    #[test]
    fn a_sealed_region_cannot_be_truncated() {
        let r = Region::create(c"test", 8192, false).unwrap();
        // SAFETY: ftruncate on our own descriptor.
        assert_eq!(unsafe { libc::ftruncate(r.fd().unwrap(), 0) }, -1);
    }
}
