//! fio with the engine of this build, and servers for it.

pub(crate) mod memory;

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long one fio may run, on a machine that is busy with others.
const LIMIT: Duration = Duration::from_secs(120);

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A name that no other test has.
pub(crate) fn fresh(what: &str) -> String {
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("memlane-fio-{what}-{}-{n}", std::process::id())
}

/// A folder that goes with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(what: &str) -> Folder {
        Folder::below(&std::env::temp_dir(), what)
    }

    pub(crate) fn below(dir: &Path, what: &str) -> Folder {
        let path = dir.join(fresh(what));
        std::fs::create_dir(&path).expect("a folder");
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The engine; `None`, loudly, if there is no fio or none of its headers.
fn engine() -> Option<PathBuf> {
    let missing = if Command::new("fio").arg("--version").output().is_err() {
        let required = std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_some();
        assert!(!required, "no fio");
        "no fio"
    } else if env!("MEMLANE_FIO_HEADERS").is_empty() {
        // Whoever has all programs may still be without a network.
        "the engine was built without fio's headers (./dev build fetches them)"
    } else {
        let tests = std::env::current_exe().expect("this program");
        let beside = tests.with_file_name("libmemlane_fio.so");
        assert!(beside.exists(), "{} was not built", beside.display());
        return Some(beside);
    };
    // Not eprintln: it is to be seen when the test passes, too.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {missing}");
    None
}

/// How a fio ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// None: by a signal.
    pub(crate) code: Option<i32>,
    /// All that it printed.
    pub(crate) text: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn succeeds(&self) {
        assert_eq!(self.code, Some(0), "{}", self.text);
    }

    /// With an exit code of its own, and these words.
    #[track_caller]
    pub(crate) fn refuses(&self, words: &str) {
        assert_eq!(self.code, Some(1), "{}", self.text);
        assert!(self.text.contains(words), "no {words:?} in {}", self.text);
    }
}

/// Runs fio with the engine and these options; `None`: it cannot run here.
pub(crate) fn fio(options: &[&str]) -> Option<Ended> {
    let engine = engine()?;
    // Some of its jobs leave files.
    let folder = Folder::new("run");
    let output = folder.path().join("output");
    let file = std::fs::File::create(&output).expect("a file");
    let mut child = Command::new("fio")
        .current_dir(folder.path())
        .arg(format!("--ioengine=external:{}", engine.display()))
        .args(options)
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a descriptor"))
        .stderr(file)
        .spawn()
        .expect("fio");
    let start = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status,
            None if start.elapsed() > LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("fio {options:?} did not end: {}", read(&output));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    Some(Ended {
        code: status.code(),
        text: read(&output),
    })
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
    let _ = file.and_then(|mut file| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}
