//! Programs in Go that `go/build.sh` builds from their modules.

use std::path::{Path, PathBuf};

/// How a program is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// With libc: `CGO_ENABLED=1`.
    Libc,
    /// With nothing: `CGO_ENABLED=0`.
    Static,
}

impl Linkage {
    /// Those whose programs are tested, and must get the lane.
    pub const TESTED: &[Linkage] = &[Linkage::Libc, Linkage::Static];

    /// As `build.sh` and the folders call it.
    pub fn name(self) -> &'static str {
        match self {
            Linkage::Libc => "libc",
            Linkage::Static => "static",
        }
    }

    /// Where the program lies, if it is here: in the folder `MEMLANE_GO_PROGRAMS`, or in `target/go`.
    pub fn program(self, name: &str) -> PathBuf {
        let named = std::env::var_os("MEMLANE_GO_PROGRAMS").map(PathBuf::from);
        let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/go");
        named.unwrap_or_else(usual).join(self.name()).join(name)
    }

    /// Are these programs here? Says so if one is not. `./dev test-go` makes them.
    ///
    /// # Panics
    /// If one is not, and `MEMLANE_GO_PROGRAMS` says where they are.
    pub fn has(self, programs: &[&str]) -> bool {
        let mut missing = programs.iter().filter(|name| !self.program(name).is_file());
        let Some(name) = missing.next() else {
            return true;
        };
        let text = format!("no {}", self.program(name).display());
        assert!(std::env::var_os("MEMLANE_GO_PROGRAMS").is_none(), "{text}");
        eprintln!("SKIPPED: {text}: ./dev test-go");
        false
    }
}
