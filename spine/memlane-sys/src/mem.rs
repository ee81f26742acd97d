//! Memory that can be shared: memfd, seals, mappings.

use crate::errno::{Errno, Result};
use crate::fd::{Fd, as_fd};
use crate::proc;
use crate::syscall;
use core::ffi::CStr;
use core::ptr::NonNull;

/// Page size that layouts are built for (both supported architectures can run
/// with it; a kernel with larger pages is refused by `page_size`).
pub const PAGE: usize = 4096;

/// Seals that fix the size for ever: nobody can pull pages from under a peer.
pub const SEALS_FIXED: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
/// Seals with either of which nobody can begin to write a file.
pub const SEALS_WRITING: i32 = libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE;

/// Creates an anonymous memory file of `len` bytes. `hugetlb` asks for huge pages.
pub fn memfd(name: &CStr, len: usize, hugetlb: bool) -> Result<Fd> {
    may_grow_to(len)?;
    let mut flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    if hugetlb {
        flags |= libc::MFD_HUGETLB;
    }
    // SAFETY: `name` is NUL-terminated.
    let n = unsafe { syscall!(libc::SYS_memfd_create, name.as_ptr(), flags) }?;
    // SAFETY: the kernel just made this number for us.
    let fd = unsafe { Fd::from_raw(as_fd(n)) };
    // SAFETY: no pointers are passed.
    unsafe { syscall!(libc::SYS_ftruncate, fd.raw(), len) }?;
    Ok(fd)
}

/// Would the kernel let us make a file of `len` bytes? A program with `RLIMIT_FSIZE` is not told by an error alone
/// but by SIGXFSZ, which ends it, so nobody may try.
fn may_grow_to(len: usize) -> Result<()> {
    if proc::limit(libc::RLIMIT_FSIZE) < len as u64 {
        return Err(Errno(libc::EFBIG));
    }
    Ok(())
}

/// Adds seals to a memfd.
pub fn add_seals(fd: i32, seals: i32) -> Result<()> {
    // SAFETY: no pointers are passed.
    unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, seals) }.map(|_| ())
}

/// The seals that a memfd carries; fails on anything that is not a memfd.
pub fn seals(fd: i32) -> Result<i32> {
    // SAFETY: no pointers are passed.
    unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_GET_SEALS, 0) }.map(as_fd)
}

/// Is the file made of huge pages (hugetlbfs, or a memfd made with `MFD_HUGETLB`)?
pub fn is_hugetlb(fd: i32) -> Result<bool> {
    // SAFETY: an all-zero `statfs` is a valid value.
    let mut st: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: `st` is writable and of the size that the kernel fills.
    unsafe { syscall!(libc::SYS_fstatfs, fd, &raw mut st) }?;
    Ok(st.f_type == libc::HUGETLBFS_MAGIC)
}

/// Maps `len` bytes of `fd` from `offset`, shared.
pub fn map_shared(fd: i32, offset: usize, len: usize, writable: bool) -> Result<NonNull<u8>> {
    map_shared_at(0, fd, offset, len, writable)
}

/// Maps `len` bytes of `fd` from `offset`, shared, at address `at` if nothing is there (else, or with 0, where the kernel likes): stretches of a file that lie
/// there as they do in the file are one mapping to the kernel, and one stretch to who names them in a system call.
pub fn map_shared_at(
    at: usize,
    fd: i32,
    offset: usize,
    len: usize,
    writable: bool,
) -> Result<NonNull<u8>> {
    let prot = if writable {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_READ
    };
    unpopulated(len, prot, |prot| map_fresh(at, fd, offset, len, prot))
}

fn map_fresh(at: usize, fd: i32, offset: usize, len: usize, prot: i32) -> Result<NonNull<u8>> {
    // SAFETY: a fresh mapping touches nothing of ours: without MAP_FIXED the address is a wish, which the kernel only
    // grants where nothing is mapped.
    let addr = unsafe { syscall!(libc::SYS_mmap, at, len, prot, libc::MAP_SHARED, fd, offset) }?;
    NonNull::new(addr as *mut u8).ok_or(Errno::INVAL)
}

/// A mapping of at least this many bytes is mostly address space: pages that nobody touches must not cost memory.
const LARGE: usize = 8 << 20;

/// Has the kernel locked this fresh mapping, because the program has called `mlockall(MCL_FUTURE)`? Then it allocates all of its
/// pages at once, unless the mapping has no access rights yet.
///
/// The kernel refuses to drop the pages of a locked mapping with `EINVAL` (madvise(2), `MADV_DONTNEED`). `/proc/self/status`
/// says whether it locks new ones, too, but takes longer to read, and may be out of reach.
fn is_locked(addr: NonNull<u8>, len: usize) -> bool {
    // SAFETY: the mapping is fresh, nothing was written to it, and nobody else knows of it.
    let dropped = unsafe { syscall!(libc::SYS_madvise, addr.as_ptr(), len, libc::MADV_DONTNEED) };
    dropped == Err(Errno::INVAL)
}

/// Makes a mapping by `map`, to which it gives access rights. The kernel allocates none of its pages before they are touched,
/// also under `mlockall` if the mapping is [`LARGE`].
fn unpopulated(
    len: usize,
    prot: i32,
    map: impl Fn(i32) -> Result<NonNull<u8>>,
) -> Result<NonNull<u8>> {
    if len < LARGE {
        return map(prot);
    }
    let addr = map(libc::PROT_NONE)?;
    open(addr, len, prot)?;
    Ok(addr)
}

/// Gives a fresh mapping its access rights, and takes the lock of future mappings from it first.
fn open(addr: NonNull<u8>, len: usize, prot: i32) -> Result<()> {
    // SAFETY: a fresh mapping that nobody knows of.
    let done = unsafe {
        match is_locked(addr, len) {
            true => syscall!(libc::SYS_munlock, addr.as_ptr(), len),
            false => Ok(0),
        }
        .and_then(|_| syscall!(libc::SYS_mprotect, addr.as_ptr(), len, prot))
    };
    if let Err(e) = done {
        // SAFETY: the whole mapping, which nobody knows of.
        unsafe { unmap(addr, len) };
        return Err(e);
    }
    Ok(())
}

/// Writes to an address of this process that may be bad, as the kernel writes to those that a call is given: without a signal.
///
/// # Errors
/// `EFAULT`: nothing can be written there.
pub fn write_if_possible(at: usize, bytes: &[u8]) -> Result<()> {
    let from = [bytes.as_ptr() as usize, bytes.len()];
    let to = [at, bytes.len()];
    let pid = crate::proc::pid();
    // SAFETY: both are pairs of an address and a length, as `struct iovec` is. The kernel reads `bytes`, and checks the other
    // range itself.
    unsafe {
        syscall!(
            libc::SYS_process_vm_writev,
            pid,
            from.as_ptr(),
            1,
            to.as_ptr(),
            1,
            0
        )
    }
    .map(|_| ())
}

/// Puts `len` bytes of `fd` from `offset` in the place of what is mapped at `at`.
///
/// # Safety
/// A mapping of the caller's covers these pages, and nobody has a reference into them.
pub unsafe fn remap_shared(at: NonNull<u8>, fd: i32, offset: usize, len: usize) -> Result<()> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: only pages of a mapping of the caller's are replaced (its promise).
    unsafe { syscall!(libc::SYS_mmap, at.as_ptr(), len, prot, flags, fd, offset) }.map(|_| ())
}

/// Puts zeroed memory of this process alone in the place of what is mapped at `at`.
///
/// # Safety
/// As [`remap_shared`].
pub unsafe fn clear_shared(at: NonNull<u8>, len: usize) -> Result<()> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: only pages of a mapping of the caller's are replaced (its promise).
    unsafe { syscall!(libc::SYS_mmap, at.as_ptr(), len, prot, flags, -1_i32, 0) }.map(|_| ())
}

/// Puts pages that read as zero in the place of what is mapped at `at`. They take memory only where they are written.
///
/// # Safety
/// As [`remap_shared`].
pub unsafe fn cover_with_zeroes(at: NonNull<u8>, len: usize) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: only pages of a mapping of the caller's are replaced (its promise).
    unsafe { syscall!(libc::SYS_mmap, at.as_ptr(), len, prot, flags, -1_i32, 0) }.map(|_| ())
}

/// Which of the pages from `at` on are in memory: bit 0 of a byte for each, as `mincore(2)` says. A page of a file in memory
/// that is not is a hole, is swapped out, or lies behind the end. The kernel says "in memory" of every page of a file that the
/// process neither owns nor may write.
///
/// # Errors
/// `NOMEM`: not all of them are mapped.
pub fn resident(at: NonNull<u8>, pages: &mut [u8]) -> Result<()> {
    let len = pages.len() * PAGE;
    // SAFETY: the kernel writes one byte for each page, and looks at no page's contents.
    unsafe { syscall!(libc::SYS_mincore, at.as_ptr(), len, pages.as_mut_ptr()) }.map(|_| ())
}

/// Where `len` bytes could be mapped, and other mappings will hardly come to lie: a wish for [`map_shared_at`]. 0: the
/// kernel would not say.
pub fn place_for(len: usize) -> usize {
    // The kernel fills its space from above: so much of it comes first.
    let Some(all) = len.checked_add(1 << 30) else {
        return 0;
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address that the kernel picks, of which nothing can be read or written.
    let found = unsafe { syscall!(libc::SYS_mmap, 0, all, libc::PROT_NONE, flags, -1_i32, 0) };
    let Some(base) = found.ok().and_then(|at| NonNull::new(at as *mut u8)) else {
        return 0;
    };
    // SAFETY: all of what was just mapped, which nobody knows of.
    unsafe { unmap(base, all) };
    base.as_ptr() as usize
}

/// Has the kernel find memory for `len` bytes at `at`, in whole pages, before anybody touches them: where there is none,
/// this says so, and a touch would be SIGBUS. `INVAL`: the kernel is older than 5.14, or the memory is
/// a device's, which is always there.
///
/// # Safety
/// They lie in a shared mapping of the caller's that may be written. What stands there is not changed.
pub unsafe fn populate(at: NonNull<u8>, len: usize) -> Result<()> {
    // SAFETY: pages of a mapping of the caller's (its promise), whose contents stay.
    unsafe {
        syscall!(
            libc::SYS_madvise,
            at.as_ptr(),
            len,
            libc::MADV_POPULATE_WRITE
        )
    }
    .map(|_| ())
}

/// Maps the first `len` bytes of a file for reading; `executable`: as code, too, which a file system may forbid (`noexec`).
pub fn map_file(fd: i32, len: usize, executable: bool) -> Result<NonNull<u8>> {
    let kind = libc::MAP_PRIVATE;
    let rights = match executable {
        true => libc::PROT_READ | libc::PROT_EXEC,
        false => libc::PROT_READ,
    };
    // SAFETY: a fresh mapping at an address that the kernel picks touches nothing of ours.
    let addr = unsafe { syscall!(libc::SYS_mmap, 0, len, rights, kind, fd, 0) }?;
    NonNull::new(addr as *mut u8).ok_or(Errno::INVAL)
}

/// Maps `len` zeroed bytes that cost nothing until touched, also under `mlockall` where there are 8 MiB or more. `shared`
/// memory is seen by children of a fork too.
pub fn map_anon(len: usize, shared: bool) -> Result<NonNull<u8>> {
    let kind = if shared {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let kind = kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    unpopulated(len, prot, |prot| {
        // SAFETY: a fresh mapping at an address that the kernel picks touches nothing of ours.
        let addr = unsafe { syscall!(libc::SYS_mmap, 0, len, prot, kind, -1isize, 0) }?;
        NonNull::new(addr as *mut u8).ok_or(Errno::INVAL)
    })
}

/// Unmaps a mapping.
///
/// # Safety
/// `addr`/`len` is a whole mapping made here, and nobody uses it any more.
pub unsafe fn unmap(addr: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { syscall!(libc::SYS_munmap, addr.as_ptr(), len) };
}

/// Writes `bytes` into the program's code at `at`. If the system does not allow that, nothing has changed.
///
/// The pages are writable and executable for a moment: a system that refuses this refuses it before the first byte is written.
/// In two steps, the second might be refused, and the code could not be executed any more.
///
/// # Safety
/// All of it is code of this process that no thread executes and no reference points to, and what is there afterwards is code
/// that means what the caller wants.
#[cfg(target_arch = "x86_64")]
pub unsafe fn patch_text(at: usize, bytes: &[u8]) -> Result<()> {
    const PAGE: usize = 4096;
    let first = at - at % PAGE;
    let len = (at + bytes.len()).next_multiple_of(PAGE) - first;
    let executable = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: the pages keep their content, and no right is taken from them.
    unsafe {
        syscall!(
            libc::SYS_mprotect,
            first,
            len,
            executable | libc::PROT_WRITE
        )
    }?;
    // SAFETY: writable now, and nobody's but the caller's, as it promises.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    // SAFETY: code needs no right to be written. If this is refused, the code is as good.
    let _ = unsafe { syscall!(libc::SYS_mprotect, first, len, executable) };
    Ok(())
}

/// Asks that `addr..addr+len` reads as zeroes in the child of any fork.
pub fn wipe_on_fork(addr: NonNull<u8>, len: usize) -> Result<()> {
    // SAFETY: advice on a mapping; the contents change only in a child.
    unsafe { syscall!(libc::SYS_madvise, addr.as_ptr(), len, libc::MADV_WIPEONFORK) }.map(|_| ())
}

/// Asks that the child of any fork does not have the mapping `addr..addr+len`.
pub fn keep_from_children(addr: NonNull<u8>, len: usize) {
    // SAFETY: advice on a mapping; it is missing only in a child.
    let _ = unsafe { syscall!(libc::SYS_madvise, addr.as_ptr(), len, libc::MADV_DONTFORK) };
}

/// Asks for huge pages in `addr..addr+len`, which saves most of what it costs to find a page. Where there are none,
/// nothing changes.
pub fn huge_if_possible(addr: NonNull<u8>, len: usize) {
    // SAFETY: advice on a mapping; its contents stay.
    let _ = unsafe { syscall!(libc::SYS_madvise, addr.as_ptr(), len, libc::MADV_HUGEPAGE) };
}

/// Gives whole pages of private memory back to the kernel; they read as zero afterwards.
///
/// # Safety
/// `addr`/`len` are whole pages of a mapping that [`map_anon`] made, and of which nobody has a reference.
pub unsafe fn give_back(addr: NonNull<u8>, len: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(libc::SYS_madvise, addr.as_ptr(), len, libc::MADV_DONTNEED) }.map(|_| ())
}

/// Gives whole pages of a shared mapping of a memfd back to the kernel, for everybody who has it mapped; they read as
/// zero afterwards. The memfd's length stays, and with it every seal.
///
/// # Safety
/// `addr`/`len` are whole pages of a writable shared mapping, and nobody needs what lies in them.
pub unsafe fn punch(addr: NonNull<u8>, len: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(libc::SYS_madvise, addr.as_ptr(), len, libc::MADV_REMOVE) }.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_where_they_can_be_and_nothing_happens_elsewhere() {
        let mut place = [0_u8; 4];
        write_if_possible(place.as_mut_ptr() as usize, &[1, 2, 3, 4]).expect("our own memory");
        assert_eq!(place, [1, 2, 3, 4]);
        static READ_ONLY: [u8; 4] = [5; 4];
        for bad in [READ_ONLY.as_ptr() as usize, 0, 16, usize::MAX - 2] {
            let error = write_if_possible(bad, &[1, 2, 3, 4]).expect_err("bad memory");
            assert_eq!(error, Errno(libc::EFAULT), "{bad:#x}");
        }
        assert_eq!(READ_ONLY, [5; 4]);
    }
}
