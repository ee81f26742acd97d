//! Compiles each `cases/*.c` with the system's C compiler, twice: plain, and fortified (so that libc's `__read_chk`,
//! `__recv_chk` and the like are called). Compiles `ends/*.c`, which are not cases, once; libraries see what they define.
//! Makes libraries of `plugins/*.c`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=CC");
    let out_dir = PathBuf::from(env("OUT_DIR"));
    for (path, name) in sources("cases") {
        let libraries: &[&str] = match name.as_str() {
            "liburing" if !has_liburing() => continue,
            "liburing" => &["-luring"],
            _ => &[],
        };
        let plain = ["-O1", "-U_FORTIFY_SOURCE"];
        compile(&path, &out_dir.join(&name), &plain, libraries);
        let fortified = out_dir.join(format!("{name}-fortified"));
        let flags = ["-O2", "-D_FORTIFY_SOURCE=2"];
        compile(&path, &fortified, &flags, libraries);
    }
    for (path, name) in sources("ends") {
        compile(&path, &out_dir.join(name), &["-O2", "-rdynamic"], &[]);
    }
    for (path, name) in sources("plugins") {
        let library = out_dir.join(format!("{name}.so"));
        // Without optimisation, its calls go by name.
        compile(&path, &library, &["-O0", "-shared", "-fPIC"], &[]);
    }
}

/// Is liburing installed, with its header? Without it, the tests say that they need it.
fn has_liburing() -> bool {
    Path::new("/usr/include/liburing.h").exists()
}

/// The C files of a directory, with the names of their programs.
fn sources(dir: &str) -> Vec<(PathBuf, String)> {
    let dir = PathBuf::from(env("CARGO_MANIFEST_DIR")).join(dir);
    println!("cargo::rerun-if-changed={}", dir.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&dir).expect("a readable directory") {
        let path = entry.expect("a readable directory").path();
        println!("cargo::rerun-if-changed={}", path.display());
        if path.extension().is_some_and(|ext| ext == "c") {
            let name = path.file_stem().and_then(|name| name.to_str());
            let name = name.expect("ASCII file name").to_owned();
            found.push((path, name));
        }
    }
    found
}

fn env(name: &str) -> String {
    std::env::var(name).expect("set by cargo")
}

fn compile(source: &Path, program: &Path, flags: &[&str], libraries: &[&str]) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(&compiler)
        .args([
            "-std=gnu11",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
        ])
        .args(["-Wno-unused-parameter", "-Wno-unused-function"])
        .args(flags)
        .arg("-o")
        .args([program, source])
        .args(libraries)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{compiler} {}: {status}", source.display()),
        Err(error) => panic!("cannot run the C compiler `{compiler}`: {error}"),
    }
}
