//! The program under test, with the `memlane` command beside it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// `memlane-bench`, without settings from outside. The first call builds the command that it measures.
pub(crate) fn memlane_bench() -> Command {
    static BUILT: Once = Once::new();
    BUILT.call_once(build_the_command);
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlane-bench"));
    for (key, _) in std::env::vars() {
        if key.starts_with("MEMLANE_") || key == "LD_PRELOAD" {
            command.env_remove(key);
        }
    }
    command
}

/// The preload library, which has only a release build.
pub(crate) fn preload() -> Option<PathBuf> {
    let bench = PathBuf::from(env!("CARGO_BIN_EXE_memlane-bench"));
    let target = bench.parent()?.parent()?;
    let library = target.join("release/libmemlane_preload.so");
    library.is_file().then_some(library)
}

/// Cargo builds for a package's tests only the programs of that package. A test program that is run by itself finds what
/// was built with it.
fn build_the_command() {
    let Some(cargo) = std::env::var_os("CARGO") else {
        return;
    };
    let bench = PathBuf::from(env!("CARGO_BIN_EXE_memlane-bench"));
    let folder = bench.parent().and_then(|folder| folder.file_name());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "-p", "memlane"]);
    if folder.is_some_and(|name| name == "release") {
        build.arg("--release");
    }
    let done = build.status().expect("cargo starts");
    assert!(done.success(), "{build:?}: {done}");
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// An empty folder that goes away with the test.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("memlane-bench-test-{}-{n}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
