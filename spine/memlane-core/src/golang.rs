//! What the library knows about programs that were built by Go.
//!
//! A Go program makes its system calls itself, nearly all of them in one function (`Syscall6`). The library answers for that
//! function if the release is one that was read and tested. Any other release is left alone.

/// How every `Syscall6` on amd64 begins, up to and with the system call (`asm_linux_amd64.s`): the number in RAX, arguments in
/// RBX, RCX, RDI, RSI, R8 and R9. Results are in RAX, RBX and RCX.
#[rustfmt::skip]
pub const SYSCALL6_HEAD: [u8; 14] = [
    0x49, 0x89, 0xf2, // mov r10, rsi
    0x48, 0x89, 0xfa, // mov rdx, rdi
    0x48, 0x89, 0xce, // mov rsi, rcx
    0x48, 0x89, 0xdf, // mov rdi, rbx
    0x0f, 0x05,       // syscall
];

/// The rest of the function, with wide moves.
#[rustfmt::skip]
const WIDE: &[u8] = &[
    0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff,       // cmp rax, -4095
    0x76, 0x15,                               // jbe ok
    0x48, 0xf7, 0xd8,                         // neg rax
    0x48, 0x89, 0xc1,                         // mov rcx, rax
    0x48, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff, // mov rax, -1
    0x48, 0xc7, 0xc3, 0x00, 0x00, 0x00, 0x00, // mov rbx, 0
    0xc3,                                     // ret
    0x48, 0x89, 0xd3,                         // ok: mov rbx, rdx
    0x48, 0xc7, 0xc1, 0x00, 0x00, 0x00, 0x00, // mov rcx, 0
    0xc3,                                     // ret
];

/// The rest of the function, as the assembler of Go 1.27 encodes it.
#[rustfmt::skip]
const NARROW: &[u8] = &[
    0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff,       // cmp rax, -4095
    0x76, 0x13,                               // jbe ok
    0x48, 0xf7, 0xd8,                         // neg rax
    0x48, 0x89, 0xc1,                         // mov rcx, rax
    0x48, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff, // mov rax, -1
    0xbb, 0x00, 0x00, 0x00, 0x00,             // mov ebx, 0
    0xc3,                                     // ret
    0x48, 0x89, 0xd3,                         // ok: mov rbx, rdx
    0xb9, 0x00, 0x00, 0x00, 0x00,             // mov ecx, 0
    0xc3,                                     // ret
];

/// The releases whose sources were read for other places that use descriptors, and which the tests build with: the minor
/// numbers of Go 1, and how `Syscall6` goes on after its head.
///
/// Go 1.19 and older wait for connections (`epoll_wait`) by a function of the runtime's own, so they are not here.
const RELEASES: [(core::ops::RangeInclusive<u32>, Syscall6); 2] = [
    (20..=26, Syscall6 { rest: WIDE }),
    (27..=27, Syscall6 { rest: NARROW }),
];

/// The distance between possible beginnings of a Go function on amd64.
pub const FUNCTIONS_EVERY: usize = 16;

/// The beginning of the record that Go's linker leaves in a program (`debug/buildinfo`).
const MAGIC: &[u8; 14] = b"\xff Go buildinf:";
const RECORD_EVERY: usize = 16;
/// Bytes of a pointer.
const POINTER: u8 = 8;
const FLAGS_AT: usize = 15;
/// The version follows in the record itself; so it is since Go 1.18.
const FLAG_INLINE: u8 = 2;
const VERSION_AT: usize = 32;

/// The Go release that built the program of which `bytes` are a part; `None`: not a Go program, or its record is elsewhere.
/// The first byte must be aligned as in the program's memory.
#[must_use]
pub fn version(bytes: &[u8]) -> Option<&str> {
    let is_record = |at: &usize| {
        let rest = bytes[*at..].strip_prefix(MAGIC);
        rest.is_some_and(|rest| matches!(rest, [POINTER, 0..4, ..]))
    };
    let at = (0..bytes.len()).step_by(RECORD_EVERY).find(is_record)?;
    let found = &bytes[at..];
    if found[FLAGS_AT] & FLAG_INLINE == 0 {
        return Some("go1.17 or older");
    }
    let len = usize::from(*found.get(VERSION_AT)?);
    let text = found.get(VERSION_AT + 1..)?.get(..len)?;
    Some(core::str::from_utf8(text).unwrap_or("an unknown release"))
}

/// Is the function that loads plugins among the functions that these bytes of a program name? Go's linker names all functions
/// that can be called, also where symbols are stripped.
#[must_use]
pub fn names_plugins(bytes: &[u8]) -> bool {
    const NAME: &[u8] = b"\0plugin.open\0";
    bytes.windows(NAME.len()).any(|name| name == NAME)
}

/// What a program of Go's own linker begins with (`rt0_linux_amd64.s`): a jump to its first function.
const JUMP: u8 = 0xe9;
/// How that function begins (`asm_amd64.s`): it takes the arguments from the stack that the kernel has made.
#[rustfmt::skip]
const RT0: &[u8] = &[
    0x48, 0x8b, 0x3c, 0x24,       // mov rdi, [rsp]
    0x48, 0x8d, 0x74, 0x24, 0x08, // lea rsi, [rsp + 8]
    JUMP,                         // jmp rt0_go
];

/// Does a program without dynamic loader begin with Go's code, and not with C's? It begins at `entry`;
/// `at` gives the bytes from an address on.
#[must_use]
pub fn begins<'a>(entry: usize, at: impl Fn(usize) -> Option<&'a [u8]>) -> bool {
    let first = || {
        let code = at(entry)?.strip_prefix(&[JUMP])?;
        let (distance, _) = code.split_first_chunk::<4>()?;
        let distance = i32::from_le_bytes(*distance) as isize;
        at(entry.wrapping_add(1 + 4).wrapping_add_signed(distance))
    };
    first().is_some_and(|code| code.starts_with(RT0))
}

/// What `Syscall6` looks like in one release or more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Syscall6 {
    rest: &'static [u8],
}

impl Syscall6 {
    /// What the function looks like in this release; `None`: the library does not know it. A version that is not a release,
    /// such as `devel go1.28-…`, is not known.
    #[must_use]
    pub fn of(version: &str) -> Option<Syscall6> {
        let digits = version.strip_prefix("go1.")?;
        let end = digits.find(|c: char| !c.is_ascii_digit());
        let minor = digits[..end.unwrap_or(digits.len())].parse().ok()?;
        let row = RELEASES.iter().find(|(minors, _)| minors.contains(&minor));
        row.map(|(_, function)| *function)
    }

    /// Where the function begins in `text`; `None`: it is not there. The first byte of `text` must be aligned as in the program's
    /// memory.
    ///
    /// Go's assembler lets only the runtime's packages take arguments in registers (`ABIInternal`), and its linker puts a package
    /// before those that import it. So the first one is the runtime's, and the megabytes of code behind it are not read.
    #[must_use]
    pub fn find(self, text: &[u8]) -> Option<usize> {
        // Nearly all places differ in their first word.
        let first_word = SYSCALL6_HEAD.first_chunk::<8>()?;
        let is_here = |at: &usize| {
            let rest = text[*at..].strip_prefix(&SYSCALL6_HEAD);
            rest.is_some_and(|rest| rest.starts_with(self.rest))
        };
        let chunks = text.chunks(FUNCTIONS_EVERY).enumerate();
        let alike = chunks.filter(|(_, chunk)| chunk.first_chunk::<8>() == Some(first_word));
        alike.map(|(n, _)| n * FUNCTIONS_EVERY).find(is_here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(flags: u8, version: &str) -> Vec<u8> {
        let mut bytes = vec![0u8; 48];
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[8, flags]);
        bytes.resize(48 + VERSION_AT, 0);
        bytes.push(u8::try_from(version.len()).expect("short"));
        bytes.extend_from_slice(version.as_bytes());
        bytes
    }

    #[test]
    fn the_version_is_read_from_the_record_and_nothing_is_read_beyond_it() {
        assert_eq!(version(&record(2, "go1.26.8")), Some("go1.26.8"));
        assert_eq!(version(&record(0, "go1.26.8")), Some("go1.17 or older"));
        assert_eq!(version(b"no record here, but some text of a program"), None);
        let whole = record(2, "go1.26.8");
        // Programs that read such records contain the magic too.
        let text = [&MAGIC[..], b", and more", &[0; 8], &whole].concat();
        assert_eq!(version(&text), Some("go1.26.8"));
        for len in 0..whole.len() {
            assert_eq!(version(&whole[..len]), None, "{len}");
        }
        let mut no_text = record(2, "go1.26.8");
        *no_text.last_mut().expect("some") = 0xff;
        assert_eq!(version(&no_text), Some("an unknown release"));
    }

    #[test]
    fn only_releases_that_were_read_are_known() {
        let (wide, narrow) = (Syscall6 { rest: WIDE }, Syscall6 { rest: NARROW });
        for version in ["go1.20", "go1.20.14", "go1.26.8 X:arenas"] {
            assert_eq!(Syscall6::of(version), Some(wide), "{version}");
        }
        assert_eq!(Syscall6::of("go1.27rc1"), Some(narrow));
        for version in [
            "go1.19.13",
            "go1.17 or older",
            "go1.28",
            "go1.200",
            "go1.",
            "go2.20",
            "devel go1.27-0123456789 Thu Jan 1",
            "",
        ] {
            assert_eq!(Syscall6::of(version), None, "{version}");
        }
    }

    #[test]
    fn the_first_function_is_found_where_functions_begin() {
        let function = Syscall6 { rest: WIDE };
        let whole = [&SYSCALL6_HEAD[..], WIDE].concat();
        let put = |text: &mut Vec<u8>, at: usize| text[at..at + 54].copy_from_slice(&whole);
        let mut text = vec![0xccu8; 400];
        assert_eq!(function.find(&text), None);
        put(&mut text, 65);
        assert_eq!(function.find(&text), None, "in the middle of another");
        put(&mut text, 336);
        assert_eq!(function.find(&text), Some(336));
        put(&mut text, 128);
        assert_eq!(function.find(&text), Some(128));
        assert_eq!(Syscall6 { rest: NARROW }.find(&text), None);
        text[336 + 53] = 0;
        assert_eq!(function.find(&text[144..]), None, "only its beginning");
        assert_eq!(function.find(&text[..128 + 53]), None, "cut off");
    }
}
