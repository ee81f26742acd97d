//! Checks on the work tree and on the built library, whatever they do at run time: which package uses which, what the
//! documents say, how each `unsafe` block is justified, and what the library asks of libc.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/formats.rs"]
mod formats;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/library.rs"]
mod library;
#[path = "tidy/publication.rs"]
mod publication;
#[path = "tidy/safety.rs"]
mod safety;
#[path = "tidy/strata.rs"]
mod strata;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the work tree")
}

/// Files of the work tree that git tracks or would track, relative to its root.
fn files() -> Vec<String> {
    let root = root();
    let listed = Command::new("git")
        .arg("-C")
        .arg(&root)
        .args(["-c", "safe.directory=*", "ls-files", "-coz"])
        .arg("--exclude-standard")
        .output();
    let mut files: Vec<String> = match listed {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter(|file| root.join(file).is_file())
            .map(String::from)
            .collect(),
        // An unpacked archive has no .git.
        _ => walk(&root, &root),
    };
    files.sort();
    assert!(files.iter().any(|file| file == "Cargo.toml"), "{files:?}");
    files
}

/// Every file below `dir` that is not a build output.
fn walk(dir: &Path, root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("readable").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().expect("a file type");
        if kind.is_dir() && name != ".git" && !path.join("CACHEDIR.TAG").exists() {
            found.extend(walk(&path, root));
        } else if kind.is_file() {
            let file = path.strip_prefix(root).expect("below the root");
            found.push(file.to_string_lossy().into_owned());
        }
    }
    found
}

/// The text of a file of the work tree; `None` if it is not there, or no text.
fn text(file: &str) -> Option<String> {
    std::fs::read_to_string(root().join(file)).ok()
}

fn rust_files() -> Vec<(String, String)> {
    let ours = [
        "spine/",
        "lanes/",
        "apps/",
        "bindings/",
        "bench/",
        "verify/",
    ];
    let files = files().into_iter();
    let rust = files.filter(|f| f.ends_with(".rs") && ours.iter().any(|dir| f.starts_with(dir)));
    let found: Vec<_> = rust.filter_map(|f| text(&f).map(|t| (f, t))).collect();
    assert!(found.len() > 50, "only {} Rust files", found.len());
    found
}

/// `word` in `text` as a word of its own: not as a part of a longer name.
fn mentions(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part))
}

#[track_caller]
fn nothing_wrong(wrong: &[String], what: &str) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

/// Files of modules that are declared under `#[cfg(test)]`.
fn test_modules(files: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (file, text) in files {
        let stem = file.trim_end_matches(".rs");
        let dir = match file.rsplit_once('/') {
            Some((dir, "mod.rs" | "lib.rs" | "main.rs")) => dir,
            _ => stem,
        };
        for declared in text.split("#[cfg(test)]\nmod ").skip(1) {
            let name = declared.split([';', ' ']).next().unwrap_or_default();
            found.extend([format!("{dir}/{name}.rs"), format!("{dir}/{name}/mod.rs")]);
        }
    }
    found
}

/// Rust files below `dirs` that are not tests.
fn code_files(dirs: &[&str]) -> Vec<(String, String)> {
    let mut found = rust_files();
    let modules = test_modules(&found);
    found.retain(|(file, _)| {
        let test = file.starts_with("verify/") || file.contains("/tests/");
        let test = test || file.ends_with("/tests.rs") || file.ends_with("_tests.rs");
        !test && !modules.contains(file) && dirs.iter().any(|dir| file.starts_with(dir))
    });
    found
}

/// The lines of a file, numbered from 1, less its `#[cfg(test)]` modules.
fn without_tests(text: &str) -> Vec<(usize, &str)> {
    let (mut kept, mut in_tests, mut above) = (Vec::new(), false, "");
    for (at, line) in text.lines().enumerate() {
        in_tests |= above == "#[cfg(test)]" && line.ends_with('{');
        if !in_tests {
            kept.push((at + 1, line));
        }
        // rustfmt puts the end of a module at the margin.
        in_tests &= line != "}";
        above = line;
    }
    kept
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}
