//! Programs with another libc, and with an older glibc, that inherit the environment of a program under memlane.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memlane_system::harness::{Built, Mode, Outcome, command, run};
use memlane_system::musl;

/// The newest symbol version that the library may need: that of `memcpy`, glibc 2.14 (2011).
const NEWEST: (u32, u32) = (2, 14);
const LIMIT: Duration = Duration::from_secs(60);
/// Where musl's packages have its libc.
const MUSL: [&str; 3] = [
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
    "/usr/lib/musl/lib/libc.so",
];

#[test]
fn the_library_needs_no_symbol_newer_than_glibc_2_14() {
    let needed = undefined(&Built::find().preload);
    assert!(needed.len() > 5, "nm names the symbols: {needed:?}");
    for symbol in &needed {
        if let Some((_, version)) = symbol.name.split_once("@GLIBC_") {
            assert!(number(version) <= NEWEST, "{}", symbol.name);
        }
    }
}

/// An image may have no more libraries than its program wants: one that is missing ends every program.
#[test]
fn the_library_wants_no_library_but_libc() {
    let library = Built::find().preload;
    let output = Command::new("readelf").arg("-d").arg(&library).output();
    let output = output.expect("readelf runs (package binutils)");
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let wanted: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .collect();
    assert!(
        wanted.len() == 1 && wanted[0].contains("[libc.so.6]"),
        "{wanted:?}"
    );
}

#[test]
fn every_symbol_that_the_library_must_have_is_in_musl_too() {
    let Some(musl) = MUSL.map(Path::new).into_iter().find(|path| path.exists()) else {
        return skip("musl is not installed (package musl)");
    };
    let defined = nm(&["--defined-only"], musl);
    let has = |name: &str| {
        defined
            .lines()
            .any(|line| line.ends_with(&format!(" {name}")))
    };
    assert!(has("malloc"), "musl's table was read");
    for symbol in undefined(&Built::find().preload) {
        let name = symbol.name.split('@').next().unwrap_or_default();
        assert!(
            symbol.weak || has(name),
            "{name} is not in {}",
            musl.display()
        );
    }
}

#[test]
fn a_program_that_defines_names_of_libc_itself_runs_as_without_the_library() {
    for mode in [Mode::Plain, Mode::Eager, Mode::Auto] {
        let mut program = command(mode, concat!(env!("OUT_DIR"), "/own_names"));
        program.arg("pair");
        let outcome = run(program, LIMIT);
        let report = outcome.report();
        assert_eq!(
            said(&outcome),
            "bytes: 1000\nchild: 0\n",
            "{}: {report}",
            mode.name()
        );
    }
}

#[test]
fn a_musl_program_runs_as_the_child_of_a_program_under_memlane() {
    if !musl::is_here() {
        return;
    }
    for mode in [Mode::Plain, Mode::Eager, Mode::Auto] {
        let mut shell = command(mode, "sh");
        shell
            .args(["-c", "\"$0\" pair; echo ended: $?"])
            .arg(musl::end("other_libc"));
        let outcome = run(shell, LIMIT);
        assert_eq!(
            said(&outcome),
            "bytes: 1000\nchild: 0\nended: 0\n",
            "{}: {}",
            mode.name(),
            outcome.report()
        );
        assert_eq!(outcome.stderr, "", "the library says nothing there");
    }
}

#[test]
fn unread_bytes_are_handed_to_a_program_of_either_libc() {
    let glibc = PathBuf::from(concat!(env!("OUT_DIR"), "/other_libc"));
    let mut programs = vec![glibc];
    if musl::is_here() {
        programs.push(musl::end("other_libc"));
    }
    for from in &programs {
        for to in &programs {
            for mode in [Mode::Plain, Mode::Eager] {
                let mut program = command(mode, from);
                program.arg("hand").arg(to);
                let outcome = run(program, LIMIT);
                let report = outcome.report();
                assert_eq!(said(&outcome), "bytes: 1000\nread: 6\n", "{report}");
            }
        }
    }
}

fn said(outcome: &Outcome) -> &str {
    &outcome.stdout
}

fn skip(why: &str) {
    assert!(
        std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_none(),
        "{why}"
    );
    eprintln!("SKIPPED: other_libc: {why}");
}

#[derive(Debug)]
struct Symbol {
    /// With its version, if it has one: `read@GLIBC_2.2.5`.
    name: String,
    weak: bool,
}

fn undefined(library: &Path) -> Vec<Symbol> {
    nm(&["--undefined-only"], library)
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (kind, name) = (words.next()?, words.next()?);
            Some(Symbol {
                name: name.to_owned(),
                weak: kind.eq_ignore_ascii_case("w"),
            })
        })
        .collect()
}

fn nm(what: &[&str], file: &Path) -> String {
    let output = Command::new("nm").arg("-D").args(what).arg(file).output();
    let output = output.expect("nm runs (package binutils)");
    assert!(output.status.success(), "nm {}", file.display());
    String::from_utf8(output.stdout).expect("nm writes ASCII")
}

/// "2.14" or "2.3.4", by its first two numbers.
fn number(version: &str) -> (u32, u32) {
    let mut parts = version
        .split('.')
        .map(|part| part.parse().unwrap_or(u32::MAX));
    (parts.next().unwrap_or(u32::MAX), parts.next().unwrap_or(0))
}
