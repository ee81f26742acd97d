//! Control groups: what engines put a container's processes into, and pause them by.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The two kinds of freezer that Linux has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hierarchy {
    /// The hierarchy `freezer` of the first version.
    Freezer,
    /// The unified hierarchy.
    Unified,
}

/// A control group of its own. Dropped, its processes go on, and go back to the root.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
    root: PathBuf,
    kind: Hierarchy,
}

impl Cgroup {
    /// A new one, empty.
    ///
    /// # Errors
    /// Why there can be none here.
    pub fn new(kind: Hierarchy) -> Result<Cgroup, String> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let root = mounted(kind).ok_or_else(|| format!("no control groups ({kind:?})"))?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let dir = root.join(format!("memlane-test-{}-{serial}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let cgroup = Cgroup { dir, root, kind };
        let (file, _) = cgroup.switch();
        match file.exists() {
            true => Ok(cgroup),
            false => Err(format!("no {}", file.display())),
        }
    }

    /// Puts a process into it, with all children that it starts from now on.
    ///
    /// # Panics
    /// If that fails.
    pub fn take(&self, pid: u32) {
        std::fs::write(self.dir.join("cgroup.procs"), pid.to_string()).expect("root may");
    }

    /// The file that freezes it, and its two words: go, stop.
    fn switch(&self) -> (PathBuf, [&'static str; 2]) {
        match self.kind {
            Hierarchy::Freezer => (self.dir.join("freezer.state"), ["THAWED", "FROZEN"]),
            Hierarchy::Unified => (self.dir.join("cgroup.freeze"), ["0", "1"]),
        }
    }

    /// Pauses all its processes, and waits until they are.
    ///
    /// # Panics
    /// If that fails, or takes long.
    pub fn freeze(&self) {
        let (file, [_, stop]) = self.switch();
        std::fs::write(&file, stop).expect("root may");
        let begin = Instant::now();
        while !self.is_frozen() {
            assert!(begin.elapsed() < Duration::from_secs(10), "it runs on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_frozen(&self) -> bool {
        let (file, word) = match self.kind {
            Hierarchy::Freezer => ("freezer.state", "FROZEN"),
            Hierarchy::Unified => ("cgroup.events", "frozen 1"),
        };
        let text = std::fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        text.lines().any(|line| line == word)
    }

    /// Lets them go on.
    ///
    /// # Panics
    /// If that fails.
    pub fn thaw(&self) {
        let (file, [go, _]) = self.switch();
        std::fs::write(file, go).expect("root may");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let (file, [go, _]) = self.switch();
        let _ = std::fs::write(file, go);
        let procs = std::fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            let _ = std::fs::write(self.root.join("cgroup.procs"), pid);
        }
        // The last one may still be on its way out.
        for _ in 0..200 {
            if std::fs::remove_dir(&self.dir).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Where a hierarchy is mounted.
fn mounted(kind: Hierarchy) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let is_it = |line: &&str| {
        let words: Vec<&str> = line.split(' ').collect();
        match kind {
            Hierarchy::Freezer => {
                words[2] == "cgroup" && words[3].split(',').any(|option| option == "freezer")
            }
            Hierarchy::Unified => words[2] == "cgroup2",
        }
    };
    let line = mounts.lines().find(is_it)?;
    Some(Path::new(line.split(' ').nth(1)?).to_owned())
}
