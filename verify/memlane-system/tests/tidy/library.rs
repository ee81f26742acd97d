//! The built preload library: what it exports, what it imports from libc, and how its code is laid out.

use super::{code, code_files, nothing_wrong, text, without_tests};
use memlane_system::harness::{self, Built, TempDir};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release build; `None` if this run leaves memlane out.
fn library() -> Option<PathBuf> {
    if harness::plain_only() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: the preload library's own shape"
        );
        return None;
    }
    let library = Built::find().preload;
    let dir = library.parent().and_then(Path::file_name);
    let debug = dir.is_some_and(|dir| dir == "debug");
    assert!(
        !debug,
        "only a debug build found: run `cargo build --release`"
    );
    Some(library)
}

/// What a program of binutils prints about the library.
fn binutils(program: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(file)
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|error| panic!("{program} (binutils): {error}"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {}: {complaint}",
        file.display()
    );
    String::from_utf8(output.stdout).expect("ASCII")
}

/// Names of dynamic symbols, without their versions.
fn symbols(library: &Path, which: &str) -> BTreeSet<String> {
    let printed = binutils("nm", &["-D", which], library);
    let names = printed
        .lines()
        .filter_map(|line| line.split_whitespace().last());
    let names: BTreeSet<String> = names.map(without_version).collect();
    assert!(names.len() > 5, "nm -D {which}: {names:?}");
    names
}

fn without_version(name: &str) -> String {
    name.split('@').next().unwrap_or_default().into()
}

/// The names in the tables of apps/memlane-preload: lib.rs, and liburing.rs.
fn hooked() -> BTreeSet<String> {
    let source = |name: &str| text(&format!("apps/memlane-preload/src/{name}.rs")).expect(name);
    let table = |file: &str, start: &str| {
        let source = source(file);
        let (_, rest) = source.split_once(start).expect(start);
        rest.split("\n}").next().unwrap_or_default().to_string()
    };
    let (hooks, shims) = (table("lib", "\nhooks! {"), table("lib", "\nshims! {"));
    let liburing = table("liburing", "\nliburing! {");
    let functions = hooks
        .lines()
        .chain(liburing.lines())
        .filter_map(|line| line.trim().strip_prefix("fn "));
    let functions = functions.filter_map(|line| line.split_once('('));
    let jumps = shims
        .lines()
        .filter_map(|line| line.trim().split_once(" => "));
    let names = functions.chain(jumps).map(|(name, _)| name);
    let names = names.filter(|name| !name.starts_with("memlane_"));
    let names: BTreeSet<String> = names.map(String::from).collect();
    assert!(names.len() > 60, "{names:?}");
    names
}

#[test]
fn the_library_exports_what_its_table_says_and_nothing_else() {
    let Some(library) = library() else { return };
    let ours = |name: &String| !name.starts_with("memlane_");
    let (table, exported) = (hooked(), symbols(&library, "--defined-only"));
    let exported: BTreeSet<String> = exported.into_iter().filter(ours).collect();
    let difference: Vec<_> = table.symmetric_difference(&exported).collect();
    assert!(
        difference.is_empty(),
        "{}: {difference:?}",
        library.display()
    );
}

/// Symbols that the dynamic linker looks up, and with which kind of relocation.
fn relocations(library: &Path) -> Vec<(String, String)> {
    let printed = binutils("readelf", &["-rW"], library);
    let fields = printed
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let entries = fields.filter(|f| f.len() >= 3 && f[2].starts_with("R_"));
    let name = |f: &[&str]| {
        f.get(4)
            .map_or_else(String::new, |name| without_version(name))
    };
    let found: Vec<_> = entries.map(|f| (f[2].to_string(), name(&f))).collect();
    assert!(found.iter().any(|(_, name)| name == "dlsym"), "{found:?}");
    found
}

/// Fault points are for tests: a library that is shipped has no word of them.
#[test]
fn the_library_has_no_trace_of_fault_points() {
    let Some(library) = library() else { return };
    let bytes = std::fs::read(&library).expect("the library");
    let has = |word: &str| {
        bytes
            .windows(word.len())
            .any(|part| part == word.as_bytes())
    };
    assert!(has("MEMLANE_UPGRADE"), "its variables are in it as text");
    let steps = memlane_system::faulty::STEPS.iter().map(|(name, ..)| *name);
    // One word each: short ones may be anywhere.
    let long = steps.filter(|name| name.contains('-'));
    let found: Vec<_> = long
        .chain(["MEMLANE_FAULT"])
        .filter(|word| has(word))
        .collect();
    assert!(found.is_empty(), "{}: {found:?}", library.display());
    // The one of the tests has: this looks at the right thing.
    let faulty = std::fs::read(memlane_system::faulty::library()).expect("the library");
    assert!(faulty.windows(13).any(|part| part == b"MEMLANE_FAULT"));
}

/// A call to a hooked name would come back to the hook, not to libc.
#[test]
fn the_library_calls_none_of_the_names_that_it_hooks() {
    let Some(library) = library() else { return };
    let hooked = hooked();
    let asked = symbols(&library, "--undefined-only");
    // Its own hooks are "defined", so a call to one shows as a relocation only.
    let looked_up = relocations(&library).into_iter().map(|(_, name)| name);
    let called = asked.into_iter().chain(looked_up);
    let wrong: Vec<_> = called.filter(|name| hooked.contains(name)).collect();
    nothing_wrong(&wrong, "called by the library itself");
}

/// In Rust the compiler joins such a call to the hook: nothing of it is left to see above.
#[test]
fn no_code_of_the_library_calls_a_hooked_name_of_libc() {
    let hooked = hooked().into_iter();
    let calls: Vec<_> = hooked.map(|name| format!("libc::{name}(")).collect();
    let mut wrong = Vec::new();
    for (file, text) in code_files(&[
        "spine/",
        "lanes/memlane-socket/src/",
        "apps/memlane-preload/",
    ]) {
        for (at, line) in without_tests(&text) {
            let called = calls.iter().filter(|call| code(line).contains(*call));
            wrong.extend(called.map(|call| format!("{file}:{at}: {call}…)")));
        }
    }
    nothing_wrong(&wrong, "comes back to the hook (use memlane-sys, or real!)");
}

/// What a hook must not do: it may run in a signal handler, in a forked child
/// of a threaded program, or before the program's own allocator is ready.
#[test]
fn the_library_neither_allocates_nor_locks_nor_unwinds() {
    let Some(library) = library() else { return };
    let exact = [
        "malloc",
        "calloc",
        "realloc",
        "posix_memalign",
        "aligned_alloc",
    ];
    let begin = ["pthread_", "_Unwind_", "__tls_get_addr", "__tlsdesc"];
    let refused = |name: &String| {
        exact.contains(&name.as_str()) || begin.iter().any(|start| name.starts_with(start))
    };
    let asked = symbols(&library, "--undefined-only").into_iter();
    let wrong: Vec<_> = asked.filter(refused).collect();
    nothing_wrong(&wrong, "asked of libc");
    let lazy = ["DTPMOD", "DTPOFF", "TLSDESC"];
    let late = relocations(&library).into_iter();
    let late = late.filter(|(kind, _)| lazy.iter().any(|word| kind.contains(word)));
    let late: Vec<_> = late.map(|(kind, name)| format!("{kind} {name}")).collect();
    nothing_wrong(
        &late,
        "thread-local memory that is allocated when first touched",
    );
}

#[test]
fn the_library_needs_libc_alone_and_its_code_stays_read_only() {
    let Some(library) = library() else { return };
    let dynamic = binutils("readelf", &["-dW"], &library);
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let needed: Vec<_> = needed
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    assert!(needed.contains(&"libc.so.6"), "{needed:?}");
    // libdl.so.2 is a part of libc that was a file of its own before glibc 2.34.
    let known = ["libc.so.6", "libdl.so.2"];
    let other = |name: &&&str| !known.contains(name) && !name.starts_with("ld-linux");
    assert_eq!(needed.iter().filter(other).count(), 0, "{needed:?}");
    for refused in ["TEXTREL", "(RPATH)", "(RUNPATH)"] {
        assert!(!dynamic.contains(refused), "{refused}:\n{dynamic}");
    }
    let dir = TempDir::new("tidy");
    let stripped = dir.path().join("stripped.so");
    let to = stripped.to_str().expect("ASCII path");
    binutils("strip", &["-o", to], &library);
    let bytes = std::fs::metadata(&stripped).expect("stripped").len();
    // Not println: it is to be seen when the test passes, too.
    let _ = writeln!(
        std::io::stderr(),
        "preload library, stripped: {bytes} bytes"
    );
}

/// In a static program the library loads itself (`alone/load.c`): what it takes for granted about its own file.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_library_can_load_itself() {
    const ROOM: u64 = 2560; // VARIABLES of alone/thread.rs
    let Some(library) = library() else { return };
    let header = binutils("readelf", &["-hW"], &library);
    let entry = header.lines().find(|line| line.contains("Entry point"));
    assert!(
        entry.is_some_and(|line| !line.ends_with(" 0x0")),
        "{header}"
    );
    let segments = binutils("readelf", &["-lW"], &library);
    let line = segments
        .lines()
        .find(|line| line.trim_start().starts_with("TLS "));
    let words: Vec<u64> = line
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .collect();
    // Offset, addresses, length in the file and in memory, alignment.
    let [_, _, _, in_file, in_memory, align] = words[..] else {
        panic!("no thread-local variables:\n{segments}");
    };
    assert_eq!(in_file, 0, "variables that are not zero at first");
    assert!(in_memory.next_multiple_of(align) <= ROOM && align <= 64);
    let served = [
        "JUMP_SLOT",
        "GLOB_DAT",
        "R_X86_64_64",
        "RELATIVE",
        "TPOFF64",
    ];
    let other = |kind: &&String| !served.iter().any(|served| kind.ends_with(served));
    let relocations = relocations(&library);
    let other: Vec<_> = relocations
        .iter()
        .map(|(kind, _)| kind)
        .filter(other)
        .collect();
    assert!(other.is_empty(), "{other:?}");
}

/// System calls that a file of the preload library names.
fn numbers(file: &str) -> BTreeSet<String> {
    let source = text(&format!("apps/memlane-preload/src/{file}")).unwrap_or_default();
    let names = source.split("libc::SYS_").skip(1).map(|rest| {
        let end = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        rest[..end.unwrap_or(rest.len())].to_owned()
    });
    names.collect()
}

/// A number with a body that Go's door does not know would pass an open lane by.
#[test]
fn the_door_for_go_programs_serves_each_number_that_has_a_body() {
    let mut bodies = numbers("numbers.rs");
    assert!(bodies.len() > 30, "{bodies:?}");
    bodies.insert("execve".to_owned());
    assert_eq!(numbers("golang/served.rs"), bodies);
}
