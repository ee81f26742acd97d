//! Programs that are linked with musl (dynamically), by Debian's `musl-gcc`: those of this package, and stock programs that
//! `musl/build.sh` makes from Debian's sources.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Can programs be linked with musl here? Says so if they cannot.
///
/// # Panics
/// If they cannot, and no test may be skipped.
pub fn is_here() -> bool {
    let here = Command::new("musl-gcc").arg("--version").output().is_ok();
    if !here {
        assert!(
            std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_none(),
            "no musl-gcc (package musl-tools)"
        );
        eprintln!("SKIPPED: programs with musl: no musl-gcc (package musl-tools)");
    }
    here
}

/// The program of the hard cases of `family`, compiled if it is older than its sources.
///
/// # Panics
/// If it cannot be compiled.
pub fn case(family: &str) -> PathBuf {
    built("cases", family)
}

/// The program of `ends/NAME.c`, likewise.
///
/// # Panics
/// If it cannot be compiled.
pub fn end(name: &str) -> PathBuf {
    built("ends", name)
}

/// Are these stock programs here, linked with musl? Says so if one is not. `./dev test-musl` makes them.
pub fn has(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|name| !program(name).is_file());
    if let Some(name) = missing {
        let text = format!("no {name} with musl in {}", program("").display());
        assert!(
            std::env::var_os("MEMLANE_MUSL_PROGRAMS").is_none(),
            "{text}"
        );
        eprintln!("SKIPPED: {text}: ./dev test-musl");
    }
    missing.is_none()
}

/// Where a stock program that is linked with musl lies, if it is here: in the folder `MEMLANE_MUSL_PROGRAMS`, or in
/// `target/musl`.
pub fn program(name: &str) -> PathBuf {
    let named = std::env::var_os("MEMLANE_MUSL_PROGRAMS").map(PathBuf::from);
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/musl");
    named.unwrap_or_else(usual).join(name)
}

fn built(folder: &str, name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let program = Path::new(env!("OUT_DIR")).join(format!("{name}-musl"));
    if !is_newer(&program, &sources) {
        compile(&sources.join(format!("{name}.c")), &program);
    }
    program
}

/// Is `program` newer than every file in `sources`?
fn is_newer(program: &Path, sources: &Path) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let Some(made) = changed(program) else {
        return false;
    };
    let files = std::fs::read_dir(sources).expect("the folder of sources");
    let mut times = files.flatten().map(|file| changed(&file.path()));
    times.all(|time| time.is_some_and(|time| time < made))
}

fn compile(source: &Path, program: &Path) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let serial = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = program.with_extension(format!("{}-{serial}", std::process::id()));
    // The kernel's headers lie beside glibc's, which musl's own must hide.
    let headers = ["/usr/include".into(), multiarch_headers()];
    let status = Command::new("musl-gcc")
        .args([
            "-std=gnu11",
            "-g",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
        ])
        .args(["-Wno-unused-parameter", "-Wno-unused-function", "-rdynamic"])
        .args(headers.iter().flat_map(|folder| ["-idirafter", folder]))
        .arg("-o")
        .args([&new, source])
        .status();
    let ok = status.as_ref().is_ok_and(std::process::ExitStatus::success);
    assert!(ok, "musl-gcc {}: {status:?}", source.display());
    std::fs::rename(&new, program).expect("the same folder");
}

fn multiarch_headers() -> String {
    format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH)
}
