//! Two machines with cables between them, a server on one and a mapped volume on the other.
//!
//! The machines are network namespaces and the cables veth pairs, which can be pulled, cut in one direction, or made
//! lossy or slow. Meanwhile a verifying program runs and must find nothing wrong.

pub mod alone;
pub mod authority;
pub mod fio;
pub mod machines;
#[path = "../../../../lanes/memlane-transport/tests/support/proxy.rs"]
#[allow(
    missing_docs,
    missing_debug_implementations,
    clippy::cast_possible_truncation,
    reason = "linted there"
)]
pub mod proxy;
pub mod region;
pub mod scene;
pub mod volumes;
pub mod writer;

use std::path::PathBuf;
use std::process::Command;

/// Random numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// Any number.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        b ^ (b >> 31)
    }

    /// Less than `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The seed of this run: `MEMLANE_SEED`, or always the same.
pub fn seed() -> u64 {
    let seed = std::env::var("MEMLANE_SEED").ok();
    seed.and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

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
