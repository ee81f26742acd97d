//! Where the preload library is, and whether it is this program's own.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use memchr::memmem;

const FILE: &str = "libmemlane_preload.so";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What stands in the library before its version, and what behind it.
const MARK: &[u8] = b"memlane-preload of version: <";
const MARK_END: u8 = b'>';
/// The most bytes of a version and of [`MARK_END`].
const VERSION_MOST: usize = 32;
/// A library is read in pieces of this many bytes.
const PIECE: u64 = 64 * 1024;

/// The library to preload: the one that is named, or the one that belongs to this program.
pub(crate) fn find(named: Option<OsString>) -> anyhow::Result<PathBuf> {
    let path = match named.filter(|name| !name.is_empty()) {
        Some(name) => of_name(&name)?,
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

fn of_name(name: &OsStr) -> anyhow::Result<PathBuf> {
    let path = std::path::absolute(name)
        .ok()
        .filter(|path| path.is_file())
        .with_context(|| {
            format!(
                "MEMLANE_PRELOAD names {}, which is no file",
                Path::new(name).display()
            )
        })?;
    if let Some(other) = version_of(&path).filter(|version| version != VERSION) {
        bail!(
            "{} is of version {other}, and this program of {VERSION}: name the one that belongs to it in MEMLANE_PRELOAD",
            path.display()
        );
    }
    Ok(path)
}

fn beside_us() -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot find out where this program is")?;
    let places = places(&exe);
    let there = || places.iter().filter(|path| path.is_file());
    // One that does not say its version is believed to be ours.
    let ours = |path: &&PathBuf| version_of(path).is_none_or(|version| version == VERSION);
    if let Some(path) = there().find(ours) {
        return Ok(path.clone());
    }
    let looked: Vec<String> = places
        .iter()
        .map(|path| match version_of(path) {
            Some(other) => format!("{} (which is there, of version {other})", path.display()),
            None => path.display().to_string(),
        })
        .collect();
    bail!(
        "cannot find {FILE} of version {VERSION}; looked for {}. Build it with `cargo build --release -p memlane-preload`, \
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
        let lib = prefix.join("lib/memlane");
        places.push(lib.join(VERSION).join(FILE));
        places.push(lib.join(FILE));
        places.push(prefix.join("lib").join(triplet).join("memlane").join(FILE));
    }
    places
}

/// The version that a library says it is of; `None`: it says nothing. The mark is near the beginning, and a library with debug
/// information is long: so this reads no further than it must.
fn version_of(library: &Path) -> Option<String> {
    let mut file = File::open(library).ok()?;
    let mut read = Vec::new();
    loop {
        let before = read.len();
        let more = Read::by_ref(&mut file).take(PIECE).read_to_end(&mut read);
        if more.ok()? == 0 {
            return None;
        }
        // The mark and the version may begin in the piece before.
        let from = before.saturating_sub(MARK.len() + VERSION_MOST);
        if let Some(version) = version_in(&read[from..]) {
            return Some(version);
        }
    }
}

fn version_in(bytes: &[u8]) -> Option<String> {
    let at = memmem::find(bytes, MARK)? + MARK.len();
    let rest = bytes.get(at..at + VERSION_MOST)?;
    let end = rest.iter().position(|b| *b == MARK_END)?;
    String::from_utf8(rest[..end].to_vec()).ok()
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
            &format!("/opt/x/lib/memlane/{VERSION}/{FILE}"),
            "/opt/x/lib/memlane/libmemlane_preload.so",
            &triplet,
        ];
        assert_eq!(
            places(Path::new("/opt/x/bin/memlane")),
            expected.map(PathBuf::from)
        );
    }

    #[test]
    fn a_library_tells_its_version() {
        let dir = std::env::temp_dir().join(format!("memlane-version-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(FILE);
        let told = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            version_of(&path)
        };
        let mut bytes = b"\x7fELF...".to_vec();
        assert_eq!(told(&bytes), None);
        assert_eq!(told(&[0; 200_000]), None);
        bytes.extend_from_slice(MARK);
        assert_eq!(told(&bytes), None, "cut short");
        bytes.extend_from_slice(b"0.0.9>");
        bytes.resize(200, 0);
        assert_eq!(told(&bytes).as_deref(), Some("0.0.9"));
        for before in [PIECE - 1, PIECE - 30, PIECE - 40, 3 * PIECE + 7] {
            let far = [&vec![0; usize::try_from(before).unwrap()][..], &bytes].concat();
            assert_eq!(told(&far).as_deref(), Some("0.0.9"), "{before}");
        }
        let refused = find(Some(path.into())).unwrap_err().to_string();
        assert!(refused.contains("of version 0.0.9"), "{refused}");
        std::fs::remove_dir_all(&dir).unwrap();
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
