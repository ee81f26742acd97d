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

/// What a library says about a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defined {
    /// It defines a function or a variable of this name, at this address.
    At(usize),
    /// It does not define the name.
    Nowhere,
    /// It defines the name in another way, which only the dynamic linker knows how to follow.
    Otherwise,
}

/// The tables in which a loaded library finds its names.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    base: usize,
    strings: usize,
    symbols: usize,
    hashes: usize,
    /// 0: its names have no versions.
    versions: usize,
}

impl Library {
    /// The tables of the library that is loaded at `base`. `None`: it lacks one of them.
    ///
    /// # Safety
    /// At `dynamic` lies the library's dynamic section, and the library stays loaded as long as the result is used.
    #[must_use]
    pub unsafe fn at(base: usize, dynamic: usize) -> Option<Library> {
        // SAFETY: the caller's promise.
        let table = |tag| unsafe { address(base, dynamic, tag) };
        let library = Library {
            base,
            strings: table(DT_STRTAB),
            symbols: table(DT_SYMTAB),
            hashes: table(DT_GNU_HASH),
            versions: table(DT_VERSYM),
        };
        let is_whole = library.strings != 0 && library.symbols != 0 && library.hashes != 0;
        is_whole.then_some(library)
    }

    /// Where the library defines the name.
    #[must_use]
    pub fn define(&self, name: Name<'_>) -> Defined {
        // SAFETY: a GNU hash table: four words, the filter, the buckets, and a word for each symbol from `first` on; the
        // last of a chain has its lowest bit set. Its indices are those of the symbol table and the version table, whose
        // names lie in the string table. All of it is mapped as long as the library is loaded, as was promised to `at`.
        unsafe {
            let words = self.hashes as *const u32;
            let (buckets, first, filter) = (*words, *words.add(1), *words.add(2));
            let bucket = words.add(4 + 2 * filter as usize);
            let chain = bucket.add(buckets as usize);
            if buckets == 0 || !self.may_have(name) {
                return Defined::Nowhere;
            }
            let mut index = *bucket.add((name.hash % buckets) as usize);
            if index < first {
                return Defined::Nowhere;
            }
            loop {
                let hashed = *chain.add((index - first) as usize);
                let symbol = &*(self.symbols as *const Symbol).add(index as usize);
                if hashed | 1 == name.hash | 1
                    && self.shows(index)
                    && symbol.section != 0
                    && CStr::from_ptr((self.strings + symbol.name as usize) as *const c_char)
                        == name.text
                {
                    return match symbol.info & 15 {
                        STT_OBJECT | STT_FUNC if symbol.value != 0 => {
                            Defined::At(self.base.wrapping_add(symbol.value as usize))
                        }
                        _ => Defined::Otherwise,
                    };
                }
                if hashed & 1 == 1 {
                    return Defined::Nowhere;
                }
                index += 1;
            }
        }
    }

    /// Does the table's filter let the name pass? It has two bits of a word for each name of the library.
    ///
    /// # Safety
    /// The library is loaded.
    unsafe fn may_have(&self, name: Name<'_>) -> bool {
        // SAFETY: the filter lies behind the table's four words, and has as many words of 64 bits as the third one says.
        unsafe {
            let words = self.hashes as *const u32;
            let (filter, shift) = (*words.add(2), *words.add(3));
            if filter == 0 {
                return true;
            }
            let word = *words
                .add(4)
                .cast::<u64>()
                .add((name.hash / 64 % filter) as usize);
            let second = name.hash.checked_shr(shift).unwrap_or(0);
            word >> (name.hash % 64) & word >> (second % 64) & 1 == 1
        }
    }

    /// Is the symbol found without its version?
    ///
    /// # Safety
    /// The library is loaded and has this symbol.
    unsafe fn shows(&self, index: u32) -> bool {
        // SAFETY: the version table has an entry for each symbol.
        self.versions == 0
            || unsafe { *(self.versions as *const u16).add(index as usize) } & VERSYM_HIDDEN == 0
    }
}

/// The address that a library defines for the name; 0: none.
///
/// # Safety
/// At `dynamic` lies the dynamic section of a library that is loaded at `base`, and stays loaded during the call.
#[must_use]
pub unsafe fn define(base: usize, dynamic: usize, name: Name<'_>) -> usize {
    // SAFETY: the caller's promise.
    let library = unsafe { Library::at(base, dynamic) };
    match library.map(|library| library.define(name)) {
        Some(Defined::At(address)) => address,
        _ => 0,
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

    /// The tables of libc.
    #[cfg(target_env = "gnu")]
    fn of_libc() -> Library {
        unsafe extern "C" fn look_at(
            info: *mut libc::dl_phdr_info,
            _: usize,
            found: *mut libc::c_void,
        ) -> libc::c_int {
            // SAFETY: the dynamic linker's record, and the place that `of_libc` gave it.
            let (info, found) = unsafe { (&*info, &mut *found.cast::<Option<Library>>()) };
            let base = info.dlpi_addr as usize;
            let is_libc = |name: &CStr| name.to_bytes().ends_with(b"/libc.so.6");
            // SAFETY: the linker's name ends with a zero, and what is loaded with the test stays.
            unsafe {
                if is_libc(CStr::from_ptr(info.dlpi_name)) {
                    *found = Library::at(base, dynamic_section(base));
                }
            }
            0
        }
        let mut found: Option<Library> = None;
        // SAFETY: the callback has the type that the call expects, and gets a pointer to `found` while that lives.
        unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut found).cast()) };
        found.expect("the test is linked with glibc")
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn libc_defines_a_name_where_dlsym_finds_it() {
        let libc_itself = of_libc();
        // The last one has an older version, too, which only those find who name it.
        for name in [
            c"read",
            c"sendmsg",
            c"epoll_pwait",
            c"posix_spawn_file_actions_adddup2",
            c"stdin",
            c"fclose",
            c"pthread_cond_wait",
        ] {
            // SAFETY: a name.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
            let found = libc_itself.define(Name::new(name));
            assert_eq!(found, Defined::At(expected), "{name:?}");
        }
        for name in [c"rea", c"readx", c"no_such_function", c""] {
            assert_eq!(libc_itself.define(Name::new(name)), Defined::Nowhere);
        }
    }

    /// libc chooses a `memcpy` for the CPU, and has an `errno` for each thread.
    #[test]
    #[cfg(target_env = "gnu")]
    fn what_the_dynamic_linker_must_follow_has_no_address() {
        for name in [c"memcpy", c"errno"] {
            let found = of_libc().define(Name::new(name));
            assert_ne!(found, Defined::Nowhere);
            assert!(!matches!(found, Defined::At(_)), "{name:?}");
        }
    }
}
