//! Go programs: the second door to the lane, beside libc's names.
//!
//! Go makes its system calls itself. Before a Go program runs, this library puts a jump into the one function that makes them
//! (`Syscall6`). From then on the calls come to [`door`] in a program that Go has linked with libc, and to [`door_alone`] in a
//! static one. The file of the program stays as it is. The decision notes [0029](../../../../docs/decisions/0029-go.md) and
//! [0031](../../../../docs/decisions/0031-static-go.md) have the reasons.

#[cfg(target_arch = "x86_64")]
mod door;
#[cfg(target_arch = "x86_64")]
mod door_alone;
#[cfg(target_arch = "x86_64")]
mod served;
#[cfg(target_arch = "x86_64")]
pub(crate) mod stack;

use core::ffi::{c_int, c_void};
use libc::size_t;
use memlane_core::golang::{self, Syscall6};
use memlane_core::reason::Reason;
use memlane_socket::state::process;
use memlane_sys::elf::{self, Defined, Library, Name, PT_DYNAMIC};

/// A segment that is loaded, and its rights (`elf.h`).
const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;
/// The record of Go's linker lies no further from the beginning of its segment.
const RECORD_WITHIN: usize = 16 << 20;

/// `memlane run` tells of everything else beforehand.
#[cfg(target_arch = "x86_64")]
const REFUSED: &[u8] =
    b"memlane: the system does not allow memlane to change this Go program's code: it stays on TCP\n";

/// Opens the door if this is a Go program that the library knows. If it is one that the library does not know, no
/// connection of this process gets a lane.
pub(crate) fn start() {
    let Some(program) = Program::this().filter(Program::may_be_go) else {
        return;
    };
    let Some(version) = program.go_version() else {
        return;
    };
    process::make_room(); // Go begins threads with a system call of its own
    if !is_served(&program, version) {
        memlane_socket::protocol::upgrade::freeze(Reason::GO);
    }
}

/// Opens the door; `false`: it stays closed.
#[cfg(target_arch = "x86_64")]
fn is_served(program: &Program, version: &str) -> bool {
    // Without libc's threads, FS is Go's, and the library has no thread-local memory. A program that loads plugins gets
    // other copies of the function later.
    let suits = program.imports(b"pthread_create") && !program.loads_plugins();
    let place = || program.place_of(Syscall6::of(version)?);
    let Some(place) = suits.then(place).flatten() else {
        return false;
    };
    tell_of(stack::prepare() && door::open(place))
}

#[cfg(target_arch = "x86_64")]
fn tell_of(is_open: bool) -> bool {
    if !is_open {
        memlane_sys::proc::write_stderr(REFUSED);
    }
    is_open
}

/// Opens the door in a program without libc, which `memlane-enter` has examined.
#[cfg(target_arch = "x86_64")]
pub(crate) fn start_alone(program: &Program) {
    process::make_room();
    let place = || program.place_of(Syscall6::of(program.go_version()?)?);
    if let Some(place) = place() {
        tell_of(door_alone::open(place));
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn is_served(_: &Program, _: &str) -> bool {
    false
}

/// The program itself, without its libraries, as the dynamic linker has loaded it.
pub(crate) struct Program {
    pub(crate) base: usize,
    pub(crate) segments: &'static [libc::Elf64_Phdr],
}

impl Program {
    fn this() -> Option<Program> {
        let mut found: Option<Program> = None;
        // SAFETY: the callback has the type that the call expects, and gets a pointer to `found` while that lives.
        unsafe { libc::dl_iterate_phdr(Some(take_first), (&raw mut found).cast()) };
        found
    }

    /// The bytes from the file in the loaded segments that can be read and whose rights satisfy `wanted`.
    fn loaded(&self, wanted: fn(u32) -> bool) -> impl Iterator<Item = &'static [u8]> {
        let base = self.base;
        let segments = self.segments.iter();
        let loaded = segments
            .filter(move |s| s.p_type == PT_LOAD && s.p_flags & PF_R != 0 && wanted(s.p_flags));
        loaded.map(move |s| {
            let from = base.wrapping_add(s.p_vaddr as usize);
            let aligned = from.next_multiple_of(golang::FUNCTIONS_EVERY);
            let len = (s.p_filesz as usize).saturating_sub(aligned - from);
            // SAFETY: the segment is mapped as long as the process lives. Nobody writes to it: the program has not begun.
            unsafe { core::slice::from_raw_parts(aligned as *const u8, len) }
        })
    }

    /// Does nothing show that this is not a Go program? It takes less than to look for the record of Go's linker, which reads
    /// all of the program's data. That linker makes no table of GNU's hashes. Where another linker has made the program, it
    /// exports the function by which C calls Go (`cgo_export_dynamic` in `runtime/cgo/callbacks.go`).
    fn may_be_go(&self) -> bool {
        let Some(dynamic) = self.dynamic_section() else {
            return true;
        };
        // SAFETY: the dynamic section of the program, which stays loaded.
        let names = unsafe { Library::at(self.base, dynamic) };
        names.is_none_or(|names| names.define(Name::new(c"crosscall2")) != Defined::Nowhere)
    }

    fn dynamic_section(&self) -> Option<usize> {
        let segment = self.segments.iter().find(|s| s.p_type == PT_DYNAMIC)?;
        Some(self.base.wrapping_add(segment.p_vaddr as usize))
    }

    fn go_version(&self) -> Option<&'static str> {
        let mut data = self.loaded(|rights| rights & PF_W != 0);
        data.find_map(|bytes| golang::version(&bytes[..bytes.len().min(RECORD_WITHIN)]))
    }

    /// Where the function begins.
    #[cfg(target_arch = "x86_64")]
    fn place_of(&self, function: Syscall6) -> Option<usize> {
        let mut code = self.loaded(|rights| rights & PF_X != 0);
        code.find_map(|text| Some(text.as_ptr() as usize + function.find(text)?))
    }

    /// A plugin brings its own copy of the function. Other libraries that a program opens with `dlopen` do not matter.
    #[cfg(target_arch = "x86_64")]
    fn loads_plugins(&self) -> bool {
        self.imports(b"dlopen") && self.loaded(|_| true).any(golang::names_plugins)
    }

    /// Is this among the names of the program's dynamic symbols? A linker lets a name lie in the end of a longer one.
    #[cfg(target_arch = "x86_64")]
    fn imports(&self, name: &[u8]) -> bool {
        self.dynamic_section().is_some_and(|section| {
            // SAFETY: the dynamic section of the program, which stays loaded.
            let names = unsafe { elf::names(self.base, section) };
            names
                .split(|&byte| byte == 0)
                .any(|other| other.ends_with(name))
        })
    }
}

/// `dl_iterate_phdr` callback: the first that it is called for is the program.
unsafe extern "C" fn take_first(
    info: *mut libc::dl_phdr_info,
    _: size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker passes a valid record, and what `Program::this` gave it. A program's headers are mapped as
    // long as it runs.
    unsafe {
        let info = &*info;
        *found.cast::<Option<Program>>() = Some(Program {
            base: info.dlpi_addr as usize,
            segments: core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)),
        });
    }
    1
}
