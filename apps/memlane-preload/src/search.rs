//! The search for a name among the libraries of this process, where there is no `dlsym`.
//!
//! Before glibc 2.34, `dlsym` was in a library of its own, which not every program loads and not every image has. The
//! library that is preloaded must not want it: a program whose loader misses a library does not start.
//!
//! Source of the layouts and constants: the System V gABI, chapter 5, and glibc's `elf.h`.

use core::ffi::{CStr, c_char, c_int, c_void};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_VERSYM: usize = 0x6fff_fff0;
const DT_GNU_HASH: usize = 0x6fff_fef5;
/// Type of a symbol (`st_info & 15`): a variable, a function.
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
/// Bit of an entry of the version table: only those find it who name its version.
const VERSYM_HIDDEN: u16 = 0x8000;

#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// What is looked for.
struct Search {
    name: *const c_char,
    hash: u32,
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
        name,
        // SAFETY: the caller's promise.
        hash: hash(unsafe { CStr::from_ptr(name) }.to_bytes()),
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
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: the linker's own table of this library's segments.
    let segments =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    if search.behind_us {
        // From here on all are behind us.
        search.behind_us = !is_ours(base, segments);
        return 0;
    }
    let dynamic = segments.iter().find(|s| s.p_type == PT_DYNAMIC);
    if let Some(dynamic) = dynamic {
        // SAFETY: a library's dynamic section lies there, and ends with an entry of zeros.
        search.found = unsafe { define(base, base.wrapping_add(dynamic.p_vaddr as usize), search) };
    }
    c_int::from(search.found != 0)
}

fn is_ours(base: usize, segments: &[libc::Elf64_Phdr]) -> bool {
    let here = memlane_search as *const () as usize;
    segments
        .iter()
        .filter(|s| s.p_type == PT_LOAD)
        .any(|s| here.wrapping_sub(base.wrapping_add(s.p_vaddr as usize)) < s.p_memsz as usize)
}

/// The address that a library defines for the name; 0: none.
///
/// # Safety
/// At `dynamic` lies the dynamic section of a library that is loaded at `base`.
unsafe fn define(base: usize, dynamic: usize, search: &Search) -> usize {
    // The linker writes addresses into the section; the kernel's own library (vDSO) has offsets.
    let table = |wanted: usize| {
        let mut entry = dynamic as *const Dynamic;
        // SAFETY: within the section: the entry of zeros has not been passed.
        while let Dynamic { tag, value } = unsafe { &*entry }
            && *tag != 0
        {
            if *tag == wanted {
                return if *value < base { base + value } else { *value };
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
        0
    };
    let (strings, symbols) = (table(DT_STRTAB), table(DT_SYMTAB));
    let (hashes, versions) = (table(DT_GNU_HASH), table(DT_VERSYM));
    if strings == 0 || symbols == 0 || hashes == 0 {
        return 0;
    }
    // SAFETY: a GNU hash table: four words, the filter, the buckets, and a word for each symbol from `first` on; the last
    // of a chain has its lowest bit set. Its indices are those of the symbol table and the version table, whose names lie
    // in the string table. All of it is mapped as long as the library is loaded, and the walk keeps it so.
    unsafe {
        let words = hashes as *const u32;
        let (buckets, first, filter) = (*words, *words.add(1), *words.add(2));
        let bucket = words.add(4 + 2 * filter as usize);
        let chain = bucket.add(buckets as usize);
        let mut index = *bucket.add((search.hash % buckets.max(1)) as usize);
        if buckets == 0 || index < first {
            return 0;
        }
        loop {
            let hashed = *chain.add((index - first) as usize);
            let symbol = &*(symbols as *const Symbol).add(index as usize);
            let shown =
                versions == 0 || *(versions as *const u16).add(index as usize) & VERSYM_HIDDEN == 0;
            if hashed | 1 == search.hash | 1
                && shown
                && symbol.section != 0
                && matches!(symbol.info & 15, STT_OBJECT | STT_FUNC)
                && same(
                    (strings + symbol.name as usize) as *const c_char,
                    search.name,
                )
            {
                return base.wrapping_add(symbol.value as usize);
            }
            if hashed & 1 == 1 {
                return 0;
            }
            index += 1;
        }
    }
}

/// # Safety
/// Both are C strings.
unsafe fn same(a: *const c_char, b: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(a) == CStr::from_ptr(b) }
}

/// The hash of GNU's tables.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, &byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(byte))
    })
}
