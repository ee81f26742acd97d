//! Two machines with cables between them, a server on one and a mapped volume on the other.
//!
//! The machines are network namespaces, the cables veth pairs: they can be pulled, cut in one direction, made lossy
//! or slow. Whatever happens, a verifying program runs on and must find nothing wrong.

pub mod authority;
pub mod fio;
pub mod machines;
pub mod volumes;

use std::path::PathBuf;
use std::process::Command;

/// The `memlane` program.
///
/// # Panics
/// If it is not built.
pub fn memlane() -> PathBuf {
    crate::harness::Built::find()
        .memlane
        .expect("the memlane program: run `cargo build --release`")
}

/// Says that a test can't run here; fails instead where everything is said to be there.
///
/// # Panics
/// If `MEMLANE_TEST_REQUIRE_ALL=1`.
pub fn skip(test: &str, why: &str) {
    let text = format!("SKIPPED {test}: {why}");
    let required = std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "{text}");
    eprintln!("{text}");
}

/// Is there such a program?
pub fn has(program: &str) -> bool {
    let asked = Command::new("/bin/sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    asked.is_ok_and(|said| said.status.success())
}

/// Runs a command that must succeed; returns what it printed.
///
/// # Panics
/// With its output, if it fails.
pub fn must(mut command: Command) -> String {
    let name = format!("{command:?}");
    let said = command
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        said.status.success(),
        "{name}: {}\n{}\n{}",
        said.status,
        text(&said.stdout),
        text(&said.stderr)
    );
    text(&said.stdout)
}
