//! Names that a loaded library defines, found in its own tables.
//!
//! Source of the layouts and constants: the System V gABI, chapters 4 and 5, and glibc's `elf.h`.

use core::ffi::{CStr, c_char};

/// `PT_DYNAMIC`: the segment that holds the dynamic section.
pub const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_STRSZ: usize = 10;
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

/// A name that is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    text: &'a CStr,
    /// The hash of GNU's tables.
    hash: u32,
}

impl<'a> Name<'a> {
    /// Prepares the search for `text`.
    #[must_use]
    pub fn new(text: &'a CStr) -> Name<'a> {
        let bytes = text.to_bytes().iter();
        let hash = bytes.fold(5381, |hash: u32, &byte| {
            hash.wrapping_mul(33).wrapping_add(u32::from(byte))
        });
        Name { text, hash }
    }
}

/// The value of the entry with this tag; 0: there is none.
///
/// # Safety
/// At `dynamic` lies the dynamic section of a library that is loaded, and stays loaded during the call.
unsafe fn entry(dynamic: usize, wanted: usize) -> usize {
    let mut entry = dynamic as *const Dynamic;
    // SAFETY: within the section: the entry of zeros has not been passed.
    while let Dynamic { tag, value } = unsafe { &*entry }
        && *tag != 0
    {
        if *tag == wanted {
            return *value;
        }
        // SAFETY: as above.
        entry = unsafe { entry.add(1) };
    }
    0
}

/// The address of a table. The linker writes addresses into the section; the kernel's own library (vDSO) has offsets.
///
/// # Safety
/// As [`entry`]; the library is loaded at `base`.
unsafe fn address(base: usize, dynamic: usize, wanted: usize) -> usize {
    // SAFETY: the caller's promise.
    let value = unsafe { entry(dynamic, wanted) };
    if value != 0 && value < base {
        base + value
    } else {
        value
    }
}

/// The names of a library's or program's dynamic symbols, those that it defines and those that it wants, each with a zero
/// behind it.
///
/// # Safety
/// At `dynamic` lies the dynamic section of what is loaded at `base`, and stays loaded.
#[must_use]
pub unsafe fn names(base: usize, dynamic: usize) -> &'static [u8] {
    // SAFETY: the caller's promise.
    let (at, len) = unsafe { (address(base, dynamic, DT_STRTAB), entry(dynamic, DT_STRSZ)) };
    if at == 0 {
        return &[];
    }
    // SAFETY: the string table of this size, which stays loaded and which nobody writes to.
    unsafe { core::slice::from_raw_parts(at as *const u8, len) }
}

/// The address that a library defines for the name; 0: none.
///
/// # Safety
/// At `dynamic` lies the dynamic section of a library that is loaded at `base`, and stays loaded during the call.
#[must_use]
pub unsafe fn define(base: usize, dynamic: usize, name: Name<'_>) -> usize {
    // SAFETY: the caller's promise.
    let table = |tag| unsafe { address(base, dynamic, tag) };
    let (strings, symbols) = (table(DT_STRTAB), table(DT_SYMTAB));
    let (hashes, versions) = (table(DT_GNU_HASH), table(DT_VERSYM));
    if strings == 0 || symbols == 0 || hashes == 0 {
        return 0;
    }
    // SAFETY: a GNU hash table: four words, the filter, the buckets, and a word for each symbol from `first` on; the last
    // of a chain has its lowest bit set. Its indices are those of the symbol table and the version table, whose names lie
    // in the string table. All of it is mapped as long as the library is loaded, as the caller promises.
    unsafe {
        let words = hashes as *const u32;
        let (buckets, first, filter) = (*words, *words.add(1), *words.add(2));
        let bucket = words.add(4 + 2 * filter as usize);
        let chain = bucket.add(buckets as usize);
        let mut index = *bucket.add((name.hash % buckets.max(1)) as usize);
        if buckets == 0 || index < first {
            return 0;
        }
        loop {
            let hashed = *chain.add((index - first) as usize);
            let symbol = &*(symbols as *const Symbol).add(index as usize);
            let shown =
                versions == 0 || *(versions as *const u16).add(index as usize) & VERSYM_HIDDEN == 0;
            if hashed | 1 == name.hash | 1
                && shown
                && symbol.section != 0
                && matches!(symbol.info & 15, STT_OBJECT | STT_FUNC)
                && CStr::from_ptr((strings + symbol.name as usize) as *const c_char) == name.text
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

/// The dynamic section of the library whose ELF header lies at `base`, with its program headers behind it; 0: none.
///
/// # Safety
/// At `base` lies a loaded library's ELF header (64 bits), whose first segment begins at address 0.
#[must_use]
pub unsafe fn dynamic_section(base: usize) -> usize {
    // SAFETY: the caller's promise; `e_phoff` and `e_phnum` name the program headers, which the first segment has.
    unsafe {
        let header = &*(base as *const libc::Elf64_Ehdr);
        let first = (base + header.e_phoff as usize) as *const libc::Elf64_Phdr;
        let segments = core::slice::from_raw_parts(first, usize::from(header.e_phnum));
        let dynamic = segments.iter().find(|segment| segment.p_type == PT_DYNAMIC);
        dynamic.map_or(0, |segment| base + segment.p_vaddr as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_the_kernel_s_library_defines_and_nothing_else() {
        // SAFETY: no pointers; the kernel tells where it has mapped its library.
        let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
        if base == 0 {
            return; // a machine without one
        }
        // SAFETY: the kernel's library lies there, from address 0 on, and is never unmapped.
        let find = |name| unsafe { define(base, dynamic_section(base), Name::new(name)) };
        let clock = match cfg!(target_arch = "x86_64") {
            true => c"__vdso_clock_gettime",
            false => c"__kernel_clock_gettime",
        };
        assert_ne!(find(clock), 0);
        assert_eq!(find(c"__vdso_clock_gettim"), 0);
        assert_eq!(find(c""), 0);
    }
}
