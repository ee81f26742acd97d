//! What becomes of a thread that reads or writes a page of a mapping which the file has lost: no signal, but zeroes and a note.
//!
//! Whoever may write a file may also make it shorter, at any time. The kernel then takes the pages away from everybody who has
//! them mapped, and answers an access with `SIGBUS`. The handler here covers the whole mapping with zeroes, notes that it is
//! broken, and lets the thread go on: it finds the note after its copy, and asks the file itself.
//!
//! A handler belongs to the whole process, so nothing is mapped before the process says that it may be ([`allow_mappings`]).

use memlane_sys::mem::{self, PAGE};
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Mappings that a process may have at a time.
const PLACES: usize = 256;
/// Bits of a place's word for the number of its pages: a mapping has less than 1 TiB. The others are the number of its first.
const PAGES_BITS: u32 = 28;

/// A mapping, as the handler finds it.
struct Place {
    /// Its first page and their number, in one word, so that the handler sees both or neither. 0: it is free. Written by the
    /// owner of the mapping, read by the handler.
    pages: AtomicU64,
    /// Written by the handler before it covers the pages, read after each copy.
    broken: AtomicBool,
}

static PLACED: [Place; PLACES] = [const {
    Place {
        pages: AtomicU64::new(0),
        broken: AtomicBool::new(false),
    }
}; PLACES];

/// Who handled `SIGBUS` before. Set as soon as mappings are allowed.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Lets this process's stores read and write files in memory through mappings, and handles `SIGBUS` from now on. What no mapping of a
/// store caused goes to the handler that there was before.
///
/// For programs that leave `SIGBUS` alone: one that sets another handler later loses this one, and a file that becomes shorter
/// may then end it. Without this call, all data goes by system calls. Calling it again does nothing.
pub fn allow_mappings() {
    BEFORE.get_or_init(install);
}

/// Has the process allowed it?
pub(super) fn allows_mappings() -> bool {
    BEFORE.get().is_some_and(Option::is_some)
}

fn install() -> Option<libc::sigaction> {
    // SAFETY: all zero is an action without flags and an empty mask.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_bus_error as *const () as libc::sighandler_t;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: as above.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both are readable or writable for one action; the handler calls only what may be called in one.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) };
    (set == 0).then_some(before)
}

extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO, the kernel hands over a description, which lives as long as this call.
    let told = unsafe { &*info };
    // SAFETY: a signal that the kernel itself sends has an address.
    let at = (told.si_code > 0).then(|| unsafe { told.si_addr() }.addr());
    let of_ours = at.and_then(|at| PLACED.iter().find(|place| place.holds(at)));
    if of_ours.is_some_and(Place::cover) {
        return;
    }
    pass_on(signal, info, context);
}

/// As if there were no handler of ours.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let handler = BEFORE.get().and_then(Option::as_ref);
    let (address, flags) = handler.map_or((libc::SIG_DFL, 0), |handler| {
        (handler.sa_sigaction, handler.sa_flags)
    });
    if address == libc::SIG_DFL || address == libc::SIG_IGN {
        // The instruction is executed again, and now ends the process.
        // SAFETY: may be called in a handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    if flags & libc::SA_SIGINFO != 0 {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: an action with this flag has the address of such a function.
        let handler: Handler = unsafe { std::mem::transmute(address) };
        handler(signal, info, context);
    } else {
        // SAFETY: an action without it has the address of such a function.
        let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(address) };
        handler(signal);
    }
}

impl Place {
    fn range(&self) -> Option<(usize, usize)> {
        let word = self.pages.load(Ordering::Acquire);
        let (first, pages) = (word >> PAGES_BITS, word & ((1 << PAGES_BITS) - 1));
        let begin = usize::try_from(first).ok()?.checked_mul(PAGE)?;
        let len = usize::try_from(pages).ok()?.checked_mul(PAGE)?;
        (len > 0).then_some((begin, len))
    }

    fn holds(&self, at: usize) -> bool {
        let range = self.range();
        range.is_some_and(|(begin, len)| at >= begin && at - begin < len)
    }

    /// Puts zeroes in the place of all pages. `false`: it cannot be done.
    fn cover(&self) -> bool {
        let Some((begin, len)) = self.range() else {
            return false;
        };
        let Some(begin) = NonNull::new(std::ptr::with_exposed_provenance_mut(begin)) else {
            return false;
        };
        self.broken.store(true, Ordering::SeqCst);
        // SAFETY: a whole mapping, which its owner keeps while somebody uses it, as the thread that was interrupted does. It is
        // used by copies alone; no reference points there.
        unsafe { mem::cover_with_zeroes(begin, len) }.is_ok()
    }
}

/// What the handler reads of a mapping. `None`: it has too many pages, or lies too high.
fn word(first: u64, pages: u64) -> Option<u64> {
    let fits = pages >> PAGES_BITS == 0 && first >> (u64::BITS - PAGES_BITS) == 0;
    fits.then_some(first << PAGES_BITS | pages)
}

/// Gives the mapping that `word` describes a place; which one.
fn take_place(word: u64) -> Option<usize> {
    let (done, taken) = (Ordering::AcqRel, Ordering::Relaxed);
    let take = |place: &Place| {
        let free = place.pages.compare_exchange(0, word, done, taken);
        free.is_ok()
    };
    PLACED.iter().position(take)
}

/// A mapping of a file that may become shorter: only for opaque copies.
#[derive(Debug)]
pub(super) struct Guarded {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    place: usize,
}

// SAFETY: memory of the whole process, which is only used by copies that the compiler does not look into.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// The first `len` bytes of a file, in whole pages, to be read, and written if `writable`; the file may have less.
    ///
    /// # Errors
    /// `ENOSPC`: there are too many of them, or it is too long. `EINVAL`: mappings are not allowed, or it is empty. What `mmap` says.
    pub(super) fn new(fd: i32, len: usize, writable: bool) -> io::Result<Guarded> {
        let os = |errno: memlane_sys::Errno| io::Error::from_raw_os_error(errno.0);
        let len = len.next_multiple_of(PAGE);
        let pages = (len / PAGE) as u64;
        if !allows_mappings() || pages == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let base = mem::map_shared(fd, 0, len, writable).map_err(os)?;
        let first = (base.as_ptr().expose_provenance() / PAGE) as u64;
        let place = word(first, pages).and_then(take_place);
        let Some(place) = place else {
            // SAFETY: all of what was just mapped, which nobody knows of.
            unsafe { mem::unmap(base, len) };
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        };
        Ok(Guarded {
            base,
            len,
            writable,
            place,
        })
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where it begins. Other pages may come to lie there, of zeroes; an address is always readable, and writable if the mapping is.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Can it be written?
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Has a page been missing? Then anything that was read may have been zeroes instead, and what was written may be lost. To be asked
    /// after a copy.
    pub(super) fn is_broken(&self) -> bool {
        // Whoever has read the zeroes finds the note that was made before they were put there.
        fence(Ordering::SeqCst);
        PLACED[self.place].broken.load(Ordering::SeqCst)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let place = &PLACED[self.place];
        place.broken.store(false, Ordering::SeqCst);
        // First of all: what the handler finds at a place, it covers, and other mappings may come to lie there.
        place.pages.store(0, Ordering::SeqCst);
        // SAFETY: a whole mapping, which nobody reads any more.
        unsafe { mem::unmap(self.base, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_core::access::SharedBytes;

    #[test]
    fn what_a_file_has_lost_reads_as_zeroes_and_is_noted() {
        allow_mappings();
        let file = mem::memfd(c"guarded", 2 * PAGE, false).expect("a file");
        let bytes = [7; 2 * PAGE];
        memlane_sys::fd::write_at(file.raw(), &bytes, 0).expect("written");
        let before = Guarded::new(file.raw(), 2 * PAGE, false).expect("mapped");
        let other = Guarded::new(file.raw(), PAGE, false).expect("mapped");
        let read = |of: &Guarded, at: usize| {
            // SAFETY: the mapping lives as long as this call, and can always be read.
            let window = unsafe { SharedBytes::read_only(of.base(), of.len()) };
            let mut byte = [0xEE];
            // SAFETY: room for one byte.
            assert!(unsafe { window.copy_out(at, byte.as_mut_ptr(), 1) });
            byte[0]
        };
        assert_eq!((read(&before, PAGE), before.is_broken()), (7, false));
        let shorter = rustix::fs::ftruncate(borrowed(&file), PAGE as u64);
        assert_eq!(shorter, Ok(()));
        assert_eq!((read(&before, PAGE), before.is_broken()), (0, true));
        assert_eq!(read(&before, 0), 0, "a broken one has nothing any more");
        assert_eq!((read(&other, 0), other.is_broken()), (7, false));
        // Its place is used again, and the next one is whole.
        let place = before.place;
        drop(before);
        let next = Guarded::new(file.raw(), PAGE, false).expect("mapped");
        assert_eq!(
            (next.place, next.is_broken(), read(&next, 0)),
            (place, false, 7)
        );
    }

    fn borrowed(file: &memlane_sys::fd::Fd) -> std::os::fd::BorrowedFd<'_> {
        // SAFETY: open as long as `file`.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(file.raw()) }
    }
}
