//! Where the program for iceoryx2 is. It is no part of memlane: `bench/peers/iceoryx2` is a workspace of its own.

use std::path::{Path, PathBuf};

use crate::runner::proc;

const NAME: &str = "memlane-bench-iceoryx2";

/// What to do where it is missing.
pub(super) const HOW: &str = "not built (./dev bench sockets builds it; or cargo build --release --manifest-path \
                              bench/peers/iceoryx2/Cargo.toml, and --iceoryx2 PROGRAM)";

/// The one that is named; or beside this program, or in the target folder that this program is in, or on PATH.
pub(in super::super) fn find(named: Option<&Path>, exe: &Path) -> Option<PathBuf> {
    if let Some(named) = named {
        return Some(named.to_owned());
    }
    let here = exe.parent()?;
    let of_its_own = here.parent().map(|target| target.join("peers/release"));
    let places = [Some(here.to_owned()), of_its_own];
    let found = places.into_iter().flatten().map(|place| place.join(NAME));
    found
        .into_iter()
        .find(|file| file.is_file())
        .or_else(|| proc::find_program(NAME))
}
