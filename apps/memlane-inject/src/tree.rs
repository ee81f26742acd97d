//! The library, where every image's `$LIB` leads to it.
//!
//! glibc takes `$LIB` for `lib/x86_64-linux-gnu` on Debian, `lib64` on Fedora, `lib` elsewhere. musl takes it as it is
//! written: for a folder of this name.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The library's file name.
const FILE: &str = "libmemlane_preload.so";
/// The path to preload, from the tree's root.
pub const PRELOAD_IN_TREE: &str = "$LIB/libmemlane_preload.so";

const AS_WRITTEN: &str = "$LIB";

/// Lays the library out in a directory. Programs that run keep the file that they have loaded.
///
/// # Errors
/// The file system's.
pub fn lay_out(library: &Path, root: &Path) -> io::Result<()> {
    let triplet = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    fs::create_dir_all(root.join(&triplet))?;
    for folder in ["lib64", AS_WRITTEN] {
        fs::create_dir_all(root.join(folder))?;
    }
    let new = root.join(format!("{FILE}.new"));
    fs::copy(library, &new)?;
    fs::rename(&new, root.join(FILE))?;
    let folders = [
        ("lib64", ".."),
        ("lib", ".."),
        (&triplet, "../.."),
        (AS_WRITTEN, ".."),
    ];
    for (folder, way_back) in folders {
        link(&root.join(folder).join(FILE), &format!("{way_back}/{FILE}"))?;
    }
    Ok(())
}

fn link(at: &Path, to: &str) -> io::Result<()> {
    match symlink(to, at) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_leads_to_the_same_file_and_a_newer_one_takes_its_place() {
        let dir = std::env::temp_dir().join(format!("memlane-tree-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (library, root) = (dir.join("built.so"), dir.join("root"));
        for content in ["one", "two"] {
            fs::write(&library, content).unwrap();
            lay_out(&library, &root).unwrap();
            for folder in [
                "lib".to_owned(),
                "lib64".to_owned(),
                format!("lib/{}-linux-gnu", std::env::consts::ARCH),
                "$LIB".to_owned(),
            ] {
                let read = fs::read_to_string(root.join(&folder).join(FILE)).unwrap();
                assert_eq!(read, content, "{folder}");
            }
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
