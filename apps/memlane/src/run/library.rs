//! Where the preload library is.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

const FILE: &str = "libmemlane_preload.so";

/// The library to preload: the one that is named, or the one that belongs to this program.
pub(crate) fn find(named: Option<OsString>) -> anyhow::Result<PathBuf> {
    let path = match named.filter(|name| !name.is_empty()) {
        Some(name) => std::path::absolute(&name)
            .ok()
            .filter(|path| path.is_file())
            .with_context(|| {
                format!(
                    "MEMLANE_PRELOAD names {}, which is no file",
                    Path::new(&name).display()
                )
            })?,
        None => beside_us()?,
    };
    // ld.so splits LD_PRELOAD at these and expands $ORIGIN and the like.
    if path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| b": \t\n$".contains(b))
    {
        bail!(
            "{} cannot be preloaded: its path has a colon, a blank or a dollar sign in it; \
             copy it elsewhere and name it in MEMLANE_PRELOAD",
            path.display()
        );
    }
    Ok(path)
}

fn beside_us() -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot find out where this program is")?;
    let places = places(&exe);
    if let Some(path) = places.iter().find(|path| path.is_file()) {
        return Ok(path.clone());
    }
    let looked: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    bail!(
        "cannot find {FILE}; looked for {}. Build it with `cargo build --release -p memlane-preload`, \
         or name it in MEMLANE_PRELOAD",
        looked.join(", ")
    )
}

fn places(exe: &Path) -> Vec<PathBuf> {
    let Some(dir) = exe.parent() else {
        return Vec::new();
    };
    let mut places = vec![dir.join(FILE)];
    if let Some(prefix) = dir.parent() {
        let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
        places.push(prefix.join("lib/memlane").join(FILE));
        places.push(prefix.join("lib").join(triplet).join("memlane").join(FILE));
    }
    places
}

/// LD_PRELOAD with our library after what is already there, once.
pub(crate) fn append(preload: Option<&OsStr>, library: &Path) -> OsString {
    let library = library.as_os_str();
    let Some(before) = preload.filter(|p| !p.is_empty()) else {
        return library.to_owned();
    };
    let mut there = before.as_bytes().split(|b| b": \t\n".contains(b));
    if there.any(|name| name == library.as_bytes()) {
        return before.to_owned();
    }
    let mut list = before.to_owned();
    list.push(":");
    list.push(library);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_looks_in_its_prefix() {
        let triplet = format!(
            "/opt/x/lib/{}-linux-gnu/memlane/{FILE}",
            std::env::consts::ARCH
        );
        let expected = [
            "/opt/x/bin/libmemlane_preload.so",
            "/opt/x/lib/memlane/libmemlane_preload.so",
            &triplet,
        ];
        assert_eq!(
            places(Path::new("/opt/x/bin/memlane")),
            expected.map(PathBuf::from)
        );
    }

    #[test]
    fn what_was_preloaded_before_stays_and_comes_first() {
        let ours = Path::new("/l/ours.so");
        let append = |before: Option<&str>| append(before.map(OsStr::new), ours);
        assert_eq!(append(None), "/l/ours.so");
        assert_eq!(append(Some("")), "/l/ours.so");
        assert_eq!(append(Some("a.so b.so")), "a.so b.so:/l/ours.so");
        assert_eq!(append(Some("/l/ours.so:a.so")), "/l/ours.so:a.so");
        assert_eq!(append(Some("/l/ours.so.1")), "/l/ours.so.1:/l/ours.so");
    }
}
