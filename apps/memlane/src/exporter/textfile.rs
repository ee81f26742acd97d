//! Writes the file for node_exporter's textfile collector.
//!
//! The collector reads every `*.prom` of a folder at any moment. The file is therefore written under a name that the
//! collector does not read, and then renamed.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::cli::out;

/// Parses the path of the file, or `-`.
pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let fits = path.extension().is_some_and(|end| end == "prom");
    match text == "-" || fits {
        true => Ok(path),
        false => Err("the name must end in .prom: the collector reads no other files".into()),
    }
}

pub(super) fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    if file == Path::new("-") {
        return out::print(text);
    }
    let next = next_name(file);
    let written = fill(&next, text).and_then(|()| fs::rename(&next, file));
    if written.is_err() {
        let _ = fs::remove_file(&next);
    }
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// The temporary name: in the same folder, hidden, and with another extension.
fn next_name(file: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".{}.new", std::process::id()));
    file.with_file_name(name)
}

fn fill(next: &Path, text: &str) -> std::io::Result<()> {
    // A killed process with the same id may have left one.
    let _ = fs::remove_file(next);
    let mut opened = File::options()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(next)?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()
}
