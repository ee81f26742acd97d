//! Root file systems of containers: some programs of this machine, what they are linked with, and nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that becomes a container's root.
#[derive(Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The root at `path`, with the folders that every image has.
    ///
    /// # Panics
    /// If they cannot be made.
    pub fn new(path: &Path) -> Root {
        let root = Root(path.to_owned());
        for name in ["bin", "tmp", "etc", "proc", "sys", "dev", "run", "opt"] {
            root.folder(name);
        }
        root
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a folder in it, and those above.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn folder(&self, name: &str) {
        std::fs::create_dir_all(self.0.join(name)).expect("a folder");
    }

    /// Puts a program into `/bin`, and what it is linked with.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn put(&self, program: &Path) {
        let name = program.file_name().expect("a program");
        copy(program, &self.0.join("bin").join(name));
        self.put_libraries_of(program);
    }

    /// Puts what a program is linked with into it.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn put_libraries_of(&self, program: &Path) {
        let said = Command::new("ldd").arg(program).output().expect("ldd");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        for library in said.split_whitespace().filter(|word| word.starts_with('/')) {
            copy(Path::new(library), &self.0.join(&library[1..]));
        }
    }
}

/// Where a program of this machine lies.
///
/// # Panics
/// If there is no shell.
pub fn found(program: &str) -> PathBuf {
    let said = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    let said = said.expect("sh").stdout;
    PathBuf::from(String::from_utf8_lossy(&said).trim())
}

/// Copies a file, and makes the folders above it.
///
/// # Panics
/// If it cannot be copied.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
    std::fs::copy(from, to).expect("copied");
}
