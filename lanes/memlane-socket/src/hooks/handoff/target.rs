//! Will a program that is about to start load this library?

use crate::config;
use core::ffi::CStr;
use memlane_sys::fd::{self, Fd};

/// How many scripts may be each other's interpreters, as in the kernel.
const DEPTH: u32 = 4;
/// How much of a script's first line the kernel reads (BINPRM_BUF_SIZE).
const LINE: usize = 256;
/// The longest path that is tried.
const PATH: usize = 4096;
/// The most program headers that are read.
const HEADERS: u64 = 128;
const PT_INTERP: u32 = 3;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62; // EM_X86_64
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183; // EM_AARCH64
/// A part of the library's file name, as LD_PRELOAD has it.
const LIBRARY: &[u8] = b"memlane_preload";

/// How a call names the program.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// `execve`, `posix_spawn`: a path.
    Path(*const u8),
    /// `execvpe`, `posix_spawnp`: a name that is looked up in `PATH`, unless it has a slash.
    Search(*const u8),
    /// `fexecve`: an open file.
    Open(i32),
    /// `system`, `popen`.
    Shell,
}

/// A program and the environment that it gets.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The program.
    pub program: Program,
    /// Its environment, as the call passes it.
    pub envp: *const *const u8,
}

/// The path of a library, with a zero at its end.
#[derive(Debug)]
pub struct LibraryPath([u8; PATH]);

impl LibraryPath {
    /// The path.
    #[must_use]
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

/// What a file is that is about to be executed.
enum Kind {
    /// Its loader loads what LD_PRELOAD names.
    Loaded,
    /// It is a program without a loader.
    Static(Fd),
    /// Another loader, a program that gains rights, or no program at all.
    Other,
}

impl Target {
    /// Will the program's loader load this library? `false` also if that cannot be found out.
    pub fn loads_us(&self) -> bool {
        library_in(self.envp).is_some() && matches!(self.kind(), Some(Kind::Loaded))
    }

    /// The program's file, and this library's as its environment names it, if no loader will come to the program.
    pub fn without_loader(&self) -> Option<(Fd, LibraryPath)> {
        // In this order: most programs have a loader, and paths need much of a thread's stack.
        let Kind::Static(file) = self.kind()? else {
            return None;
        };
        let library = library_in(self.envp)?;
        (library.0[0] == b'/').then_some((file, library))
    }

    fn kind(&self) -> Option<Kind> {
        let file = match self.program {
            Program::Path(path) => text(path).and_then(open),
            Program::Search(name) => search(name),
            Program::Open(n) => fd::duplicate(n).ok(),
            Program::Shell => open(c"/bin/sh"),
        };
        Some(kind_of(file?, 0))
    }
}

fn text<'a>(p: *const u8) -> Option<&'a CStr> {
    // SAFETY: null, or the program's string, as it promised its call.
    (!p.is_null()).then(|| unsafe { CStr::from_ptr(p.cast()) })
}

fn open(path: &CStr) -> Option<Fd> {
    fd::open_read(path).ok()
}

/// This library, as an environment names it; `None`: it does not, or switches memlane off.
fn library_in(envp: *const *const u8) -> Option<LibraryPath> {
    let (mut library, mut disabled) = (None, false);
    let mut at = envp;
    while !at.is_null() {
        // SAFETY: the program's array, ended by a null pointer.
        let Some(entry) = text(unsafe { *at }) else {
            break;
        };
        let entry = entry.to_bytes();
        if let Some(list) = entry.strip_prefix(b"LD_PRELOAD=") {
            library = list.split(|b| b" :".contains(b)).find_map(our_library);
        } else if let Some(value) = entry.strip_prefix(b"MEMLANE_DISABLE=") {
            disabled = !value.is_empty() && value != b"0";
        }
        // SAFETY: the terminator has not been reached.
        at = unsafe { at.add(1) };
    }
    library.filter(|_| !disabled)
}

/// The path that this entry of LD_PRELOAD is, if it names this library and the file exists: after a chroot it may not. A bare
/// name is taken as it is: the loader finds it.
fn our_library(entry: &[u8]) -> Option<LibraryPath> {
    let mut path = [0u8; PATH];
    path.get_mut(..entry.len() + 1)?[..entry.len()].copy_from_slice(entry);
    let path = LibraryPath(path);
    let is_ours = entry.windows(LIBRARY.len()).any(|w| w == LIBRARY)
        && (!entry.contains(&b'/') || open(path.as_c_str()).is_some());
    is_ours.then_some(path)
}

/// The file that `execvp` would execute.
fn search(name: *const u8) -> Option<Fd> {
    let name = text(name)?;
    if name.to_bytes().contains(&b'/') {
        return open(name);
    }
    let dirs = config::env(c"PATH").unwrap_or(b"/bin:/usr/bin");
    dirs.split(|&b| b == b':').find_map(|dir| {
        let mut path = [0u8; PATH];
        let dir = if dir.is_empty() { b"." } else { dir };
        let len = dir.len() + 1 + name.to_bytes_with_nul().len();
        let whole = path.get_mut(..len)?;
        whole[..dir.len()].copy_from_slice(dir);
        whole[dir.len()] = b'/';
        whole[dir.len() + 1..].copy_from_slice(name.to_bytes_with_nul());
        let file = open(CStr::from_bytes_with_nul(whole).ok()?)?;
        let mode = fd::stat(file.raw()).ok()?.mode;
        (mode & libc::S_IFMT == libc::S_IFREG && mode & 0o111 != 0).then_some(file)
    })
}

fn kind_of(file: Fd, depth: u32) -> Kind {
    let mut head = [0u8; LINE];
    let Ok(len) = fd::read_at(file.raw(), &mut head, 0) else {
        return Kind::Other;
    };
    let head = head.get(..len).unwrap_or(&[]);
    if is_privileged(&file) {
        return Kind::Other;
    }
    match head.strip_prefix(b"#!") {
        Some(line) if depth < DEPTH => {
            interpreter(line).map_or(Kind::Other, |f| kind_of(f, depth + 1))
        }
        Some(_) => Kind::Other,
        None => match loader_of(&file, head) {
            Some(Loader::Known) => Kind::Loaded,
            Some(Loader::None) => Kind::Static(file),
            Some(Loader::Other) | None => Kind::Other,
        },
    }
}

/// Does the program gain rights when it starts? The loader ignores LD_PRELOAD then.
fn is_privileged(file: &Fd) -> bool {
    let mode = fd::stat(file.raw()).map_or(0, |s| s.mode);
    mode & (libc::S_ISUID | libc::S_ISGID) != 0
        || fd::has_attribute(file.raw(), c"security.capability")
}

fn interpreter(line: &[u8]) -> Option<Fd> {
    let line = line.split(|&b| b == b'\n').next()?.trim_ascii();
    let name = line.split(|b| b" \t".contains(b)).next()?;
    let mut path = [0u8; LINE + 1];
    path.get_mut(..name.len())?.copy_from_slice(name);
    open(CStr::from_bytes_until_nul(&path).ok()?)
}

/// The dynamic loader that a program asks for.
enum Loader {
    /// That of glibc or of musl.
    Known,
    /// Another one. It loads the library too, but there that passes every call on.
    Other,
    None,
}

/// `None`: it is no ELF program for this machine.
fn loader_of(file: &Fd, head: &[u8]) -> Option<Loader> {
    let word = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    // 64-bit, little-endian (Elf64_Ehdr, elf(5)).
    if head.get(..6)? != b"\x7fELF\x02\x01" || word(18)? != MACHINE {
        return None;
    }
    let (table, size, count) = (long(32)?, u64::from(word(54)?), u64::from(word(56)?));
    for i in 0..count.min(HEADERS) {
        // Elf64_Phdr: the type at 0, the offset in the file at 8.
        let mut header = [0u8; 16];
        let at = table.checked_add(i * size)?;
        if fd::read_at(file.raw(), &mut header, at).ok()? == header.len()
            && header[..4] == PT_INTERP.to_le_bytes()
        {
            let name = u64::from_le_bytes(header[8..].try_into().ok()?);
            return Some(match is_known_loader(file, name) {
                true => Loader::Known,
                false => Loader::Other,
            });
        }
    }
    Some(Loader::None)
}

/// Does the file name a loader of glibc (`ld-linux-x86-64.so.2`, `ld-linux-aarch64.so.1`) or of musl (`ld-musl-x86_64.so.1`,
/// `ld-musl-aarch64.so.1`) at this offset, in any directory?
fn is_known_loader(file: &Fd, at: u64) -> bool {
    let mut path = [0u8; LINE];
    let Ok(read) = fd::read_at(file.raw(), &mut path, at) else {
        return false;
    };
    CStr::from_bytes_until_nul(&path[..read]).is_ok_and(|path| {
        let name = path.to_bytes().rsplit(|&b| b == b'/').next();
        name.is_some_and(|name| name.starts_with(b"ld-linux") || name.starts_with(b"ld-musl"))
    })
}
