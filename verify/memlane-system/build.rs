//! Compiles each `cases/*.c` with the system's C compiler, twice: plain, and
//! fortified (so that libc's `__read_chk`, `__recv_chk`, … are what gets called).

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let source_dir = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("cases");
    println!("cargo::rerun-if-changed={}", source_dir.display());
    println!("cargo::rerun-if-env-changed=CC");
    let out_dir = PathBuf::from(env("OUT_DIR"));
    let entries = std::fs::read_dir(&source_dir).expect("cases/ is readable");
    for entry in entries {
        let path = entry.expect("cases/ is readable").path();
        println!("cargo::rerun-if-changed={}", path.display());
        if path.extension().is_some_and(|ext| ext == "c") {
            let name = path.file_stem().expect("has a name").to_owned();
            let name = name.to_str().expect("ASCII file name");
            compile(&path, &out_dir.join(name), &["-O1", "-U_FORTIFY_SOURCE"]);
            let fortified = out_dir.join(format!("{name}-fortified"));
            compile(&path, &fortified, &["-O2", "-D_FORTIFY_SOURCE=2"]);
        }
    }
}

fn env(name: &str) -> String {
    std::env::var(name).expect("set by cargo")
}

fn compile(source: &Path, program: &Path, flags: &[&str]) {
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
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{compiler} {}: {status}", source.display()),
        Err(error) => panic!("cannot run the C compiler `{compiler}`: {error}"),
    }
}
