//! The search for names among the libraries of this process, without `dlsym`.
//!
//! Before glibc 2.34, `dlsym` was in a library of its own, which not every program loads and not every image has. The
//! library that is preloaded must not want it: a program whose loader misses a library does not start. Where `dlsym` is there,
//! a search of our own still takes a quarter of the instructions, for the [many names](Behind) that each start looks up.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use memlane_sys::elf::{self, Defined, Library, Name, PT_DYNAMIC};

/// A segment that is loaded (`elf.h`).
const PT_LOAD: u32 = 1;

/// What is looked for.
struct Search<'a> {
    name: Name<'a>,
    /// Only libraries behind this one count (as with `RTLD_NEXT`).
    behind_us: bool,
    found: usize,
}

/// The address of the first definition of `name`, among all libraries or those behind this one. Null: there is none.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memlane_search(
    behind_us: c_int,
    name: *const c_char,
) -> *mut c_void {
    let mut search = Search {
        // SAFETY: the caller's promise.
        name: Name::new(unsafe { CStr::from_ptr(name) }),
        behind_us: behind_us != 0,
        found: 0,
    };
    // SAFETY: the callback has the type that the call expects, and gets a pointer to the search while that lives.
    unsafe { libc::dl_iterate_phdr(Some(look_into), (&raw mut search).cast()) };
    search.found as *mut c_void
}

/// `dl_iterate_phdr` callback: ends the walk when the name is found.
unsafe extern "C" fn look_into(
    info: *mut libc::dl_phdr_info,
    _: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker passes a valid record, and what `memlane_search` gave it.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    if search.behind_us {
        // From here on all are behind us.
        search.behind_us = !is_ours(info);
        return 0;
    }
    if let Some(dynamic) = dynamic_section(info) {
        // SAFETY: a library's dynamic section lies there, and ends with an entry of zeros.
        search.found = unsafe { elf::define(info.dlpi_addr as usize, dynamic, search.name) };
    }
    c_int::from(search.found != 0)
}

/// The next definition of a name that is looked up when it is first called, since not every process has its library, and some load
/// it late. Any thread may look it up, and all find the same.
pub(crate) struct Late(AtomicUsize);

impl Late {
    #[allow(clippy::declare_interior_mutable_const)] // each use makes a value of its own
    pub(crate) const NEW: Late = Late(AtomicUsize::new(0));

    /// Its address; 0: there is none yet.
    pub(crate) fn address(&self, name: &CStr) -> usize {
        let known = self.0.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        // SAFETY: the name is NUL-terminated.
        let found = unsafe { memlane_search(1, name.as_ptr()) } as usize;
        self.0.store(found, Ordering::Relaxed);
        found
    }
}

/// The libraries behind this one up to libc, in the order in which `dlsym(RTLD_NEXT)` searches them.
pub(crate) struct Behind {
    libraries: [Option<Library>; Behind::MOST],
    count: usize,
    /// This library has been passed.
    is_behind: bool,
}

impl Behind {
    /// The most libraries that are noted: libc is among the first few of nearly all programs.
    const MOST: usize = 32;
    /// What only libc defines, glibc and musl alike.
    const OF_LIBC: &CStr = c"__libc_start_main";

    /// Notes them. The first one without the tables, and those behind it, are left out.
    pub(crate) fn note() -> Behind {
        let mut behind = Behind {
            libraries: [None; Behind::MOST],
            count: 0,
            is_behind: false,
        };
        // SAFETY: the callback has the type that the call expects, and gets a pointer to `behind` while that lives.
        unsafe { libc::dl_iterate_phdr(Some(note_one), (&raw mut behind).cast()) };
        behind
    }

    /// The address of the first definition of `name`. `None`: only `dlsym` knows.
    pub(crate) fn find(&self, name: &CStr) -> Option<usize> {
        let name = Name::new(name);
        let libraries = self.libraries.iter().flatten();
        let mut found = libraries.map(|library| library.define(name));
        match found.find(|found| *found != Defined::Nowhere) {
            Some(Defined::At(address)) => Some(address),
            _ => None,
        }
    }
}

/// `dl_iterate_phdr` callback: notes a library that is behind this one. Ends the walk at libc, and at one that cannot be noted.
unsafe extern "C" fn note_one(
    info: *mut libc::dl_phdr_info,
    _: usize,
    behind: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker passes a valid record, and what `note` gave it.
    let (info, behind) = unsafe { (&*info, &mut *behind.cast::<Behind>()) };
    if !behind.is_behind {
        behind.is_behind = is_ours(info);
        return 0;
    }
    // SAFETY: a library's dynamic section lies there. `behind` is used during the start only, when nothing is unloaded.
    let library = dynamic_section(info)
        .and_then(|dynamic| unsafe { Library::at(info.dlpi_addr as usize, dynamic) });
    let Some((place, library)) = behind.libraries.get_mut(behind.count).zip(library) else {
        return 1;
    };
    *place = Some(library);
    behind.count += 1;
    c_int::from(library.define(Name::new(Behind::OF_LIBC)) != Defined::Nowhere)
}

fn segments(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the linker's own table of a library's segments.
    unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

fn dynamic_section(info: &libc::dl_phdr_info) -> Option<usize> {
    let dynamic = segments(info).iter().find(|s| s.p_type == PT_DYNAMIC)?;
    Some((info.dlpi_addr as usize).wrapping_add(dynamic.p_vaddr as usize))
}

fn is_ours(info: &libc::dl_phdr_info) -> bool {
    let here = memlane_search as *const () as usize;
    let base = info.dlpi_addr as usize;
    segments(info)
        .iter()
        .filter(|s| s.p_type == PT_LOAD)
        .any(|s| here.wrapping_sub(base.wrapping_add(s.p_vaddr as usize)) < s.p_memsz as usize)
}
