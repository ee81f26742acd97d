//! The Python wheel is built as for a release and accepted by twine. Its own tests (`bindings/python/tests`) pass in fresh
//! environments where it is installed: alone, with the newest NumPy, and with the PyTorch and NumPy that Debian has.

use memlane_system::blocks::skip;
use memlane_system::harness::{self, Outcome, TempDir};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time to fetch a package or to build the wheel.
const BUILT: Duration = Duration::from_secs(900);
const TESTED: Duration = Duration::from_secs(600);
/// How `packaging/wheel.sh` ends where maturin and twine cannot be installed.
const NOT_INSTALLED: i32 = 3;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the work tree")
}

/// Debian's Python, for which PyTorch is a package; or another one.
fn python() -> Option<PathBuf> {
    let known = ["/usr/bin/python3", "python3"].map(PathBuf::from);
    known.into_iter().find(|python| {
        let mut asked = Command::new(python);
        asked.args(["-c", "import sys; sys.exit(sys.version_info < (3, 11))"]);
        asked.output().is_ok_and(|said| said.status.success())
    })
}

/// A virtual environment.
struct Environment {
    python: PathBuf,
}

impl Environment {
    /// `Err`: why it cannot be made here.
    fn new(python: &Path, at: &Path, with_system: bool) -> Result<Environment, String> {
        let mut command = Command::new(python);
        command.args(["-m", "venv"]).arg(at);
        if with_system {
            command.arg("--system-site-packages");
        }
        let made = harness::run(command, BUILT);
        match made.is_ok() {
            true => Ok(Environment {
                python: at.join("bin/python"),
            }),
            false => Err(format!(
                "no virtual environment: apt-get install python3-venv ({})",
                made.ending()
            )),
        }
    }

    fn run(&self, args: &[&str], at: &Path, limit: Duration) -> Outcome {
        let mut command = Command::new(&self.python);
        command.args(args).current_dir(at);
        // Packages that a user has installed do not count.
        command.env("PYTHONNOUSERSITE", "1");
        command.env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        harness::run(command, limit)
    }

    /// `Err`: there is no way to such a package.
    fn fetch(&self, package: &str, at: &Path) -> Result<(), String> {
        let fetched = self.run(&["-m", "pip", "install", "-q", package], at, BUILT);
        match fetched.is_ok() {
            true => Ok(()),
            false => Err(format!(
                "pip does not get {package}: {}",
                fetched.stderr.lines().last().unwrap_or_default()
            )),
        }
    }

    fn install(&self, wheel: &str, at: &Path) {
        let args = [
            "-m",
            "pip",
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            wheel,
        ];
        let installed = self.run(&args, at, BUILT);
        assert!(installed.is_ok(), "{}", installed.report());
    }

    fn has(&self, module: &str, at: &Path) -> bool {
        let asked = format!("import {module}");
        self.run(&["-c", &asked], at, TESTED).is_ok()
    }

    /// Runs the tests; says what they left out.
    fn test(&self, name: &str) {
        let tests = root().join("bindings/python/tests");
        // Nothing is written beside the sources.
        let args = ["-B", "-W", "error::ResourceWarning", "-m", "unittest", "-v"];
        let tested = self.run(&args, &tests, TESTED);
        assert!(tested.is_ok(), "{name}: {}", tested.report());
        // unittest says so on standard error, as all it says.
        let ran = tested.stderr.lines().find(|line| line.starts_with("Ran "));
        let count = ran.and_then(|line| line.split(' ').nth(1)?.parse::<u32>().ok());
        assert!(count.is_some_and(|count| count > 50), "{name}: {ran:?}");
        eprintln!("{name}: {}", ran.unwrap_or_default());
    }
}

/// Builds the wheel into `to`, as a release does, and returns its file. `Err`: what is missing here.
fn build(python: &Path, to: &Path) -> Result<String, String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = target.parent().expect("a target folder");
    let out = to.join("wheels");
    let mut command = Command::new("sh");
    command.arg(root().join("packaging/wheel.sh"));
    command.arg("--out").arg(&out).arg("--python").arg(python);
    command.env("CARGO_TARGET_DIR", target);
    let built = harness::run(command, BUILT);
    if built.status.code() == Some(NOT_INSTALLED) {
        return Err(built.stderr.lines().last().unwrap_or_default().to_owned());
    }
    assert!(built.is_ok(), "{}", built.report());
    let files: Vec<&str> = built.stdout.lines().collect();
    let ends = |end: &str| files.iter().find(|file| file.ends_with(end));
    let (Some(wheel), Some(sources), 2) = (ends(".whl"), ends(".tar.gz"), files.len()) else {
        panic!("not one wheel for all versions of Python and its sources: {files:?}");
    };
    has_licences(Path::new(sources));
    Ok((*wheel).to_owned())
}

/// Whoever builds from the source archive has both licences, and the crates that the binding is made of.
fn has_licences(sources: &Path) {
    let mut command = Command::new("tar");
    command.arg("-tzf").arg(sources);
    let listed = harness::run(command, TESTED);
    assert!(listed.is_ok(), "{}", listed.report());
    for end in [
        "/LICENSE-MIT",
        "/LICENSE-APACHE",
        "/memlane-devmem/Cargo.toml",
    ] {
        assert!(
            listed.stdout.lines().any(|line| line.ends_with(end)),
            "{end}: {}",
            listed.stdout
        );
    }
}

#[test]
fn the_wheel_is_built_and_passes_its_tests_in_fresh_environments() {
    let name = "python-wheel";
    let Some(python) = python() else {
        return skip(name, "no Python 3.11: apt-get install python3 python3-venv");
    };
    let dir = TempDir::new(name);
    let wheel = match build(&python, dir.path()) {
        Ok(wheel) => wheel,
        Err(why) => return skip(name, &why),
    };
    assert!(wheel.contains("-cp311-abi3-"), "{wheel}");
    let alone = Environment::new(&python, &dir.path().join("alone"), false);
    let alone = alone.expect("there was one");
    alone.install(&wheel, dir.path());
    alone.test("the wheel alone");
    match alone.fetch("numpy>=2", dir.path()) {
        Ok(()) => alone.test("the wheel with the newest NumPy"),
        Err(why) => skip("python-wheel-numpy", &why),
    }
    let with_torch = Environment::new(&python, &dir.path().join("torch"), true);
    let with_torch = with_torch.expect("there was one");
    with_torch.install(&wheel, dir.path());
    match with_torch.has("torch, numpy", dir.path()) {
        true => with_torch.test("the wheel with PyTorch"),
        false => skip(
            "python-wheel-torch",
            "no PyTorch: apt-get install python3-torch python3-numpy",
        ),
    }
}
