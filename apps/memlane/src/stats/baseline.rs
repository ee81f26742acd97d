//! The baseline that `memlane stats reset` stores: the counters of one moment, for one user. `memlane stats` subtracts it.
//!
//! The baseline is a file in the user's run directory. It is checked when it is read, and the pages of the processes are
//! never changed.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use memlane_observe::control;
use memlane_observe::counters::Counters;
use memlane_observe::processes::Process;
use serde::{Deserialize, Serialize};

const NAME: &str = "stats-baseline.json";
const SCHEMA: &str = "memlane.stats-baseline/1";
/// Longest file that is read, in bytes: room for some 20,000 processes.
const LONGEST: u64 = 32 << 20;

/// The counters of some processes at some moments.
#[derive(Serialize, Deserialize, Default, Debug)]
pub(super) struct Baseline {
    schema: String,
    /// The kernel's id of this boot. Process ids and clock ticks start again with the next boot.
    boot: String,
    entries: Vec<Entry>,
}

/// One process. Its process id may belong to another process by now, so its start time and the random id of its page
/// identify it.
#[derive(Serialize, Deserialize, Clone, Debug)]
struct Entry {
    pid: u32,
    started_ticks: u64,
    id: u64,
    page_unix_nanoseconds: u64,
    /// Time of the reset, in seconds since 1970.
    at: u64,
    sums: Counters,
}

impl Entry {
    /// The counters of a process now. `None`: the process has ended.
    fn new(process: &Process) -> Option<Entry> {
        Some(Entry {
            pid: process.pid,
            started_ticks: process.started()?,
            id: process.page.gid,
            page_unix_nanoseconds: process.page.start_ns,
            at: now(),
            sums: Counters::of(&process.page),
        })
    }

    fn is_of(&self, process: &Process) -> bool {
        self.id == process.page.gid
            && self.page_unix_nanoseconds == process.page.start_ns
            && process.started() == Some(self.started_ticks)
    }
}

impl Baseline {
    /// Reads the user's baseline. It is empty if there is none, or if it comes from an earlier boot.
    pub(super) fn load() -> anyhow::Result<Baseline> {
        for folder in control::own_directories() {
            let file = folder.join(NAME);
            match read(&file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!(
                            "the baseline {} cannot be used; `memlane stats reset` makes a new one",
                            file.display()
                        )
                    });
                }
                Ok(baseline) if baseline.boot == boot()? => return Ok(baseline),
                Ok(_) => {}
            }
        }
        Ok(Baseline::default())
    }

    /// Resets the counters of `processes`. Earlier resets of other processes stay, unless these have ended.
    pub(super) fn reset(&mut self, processes: &[Process], alive: &[Process]) {
        let is_another = |entry: &Entry| !processes.iter().any(|process| entry.is_of(process));
        let lives = |entry: &Entry| alive.iter().any(|process| entry.is_of(process));
        self.entries
            .retain(|entry| is_another(entry) && lives(entry));
        self.entries.extend(processes.iter().filter_map(Entry::new));
    }

    /// Changes the user's baseline under a lock, and returns the path of its file.
    pub(super) fn change(with: impl FnOnce(&mut Baseline)) -> anyhow::Result<PathBuf> {
        let folder = control::own_directory()?;
        let _lock = control::lock(&folder).with_context(|| folder.display().to_string())?;
        // A baseline that cannot be used is replaced.
        let mut baseline = Baseline::load().unwrap_or_default();
        with(&mut baseline);
        baseline.schema = SCHEMA.into();
        baseline.boot = boot()?;
        let file = folder.join(NAME);
        replace(&file, &serde_json::to_vec(&baseline)?)
            .with_context(|| file.display().to_string())?;
        Ok(file)
    }

    /// The stored counters of a process, and when they were stored, in seconds since 1970.
    pub(super) fn of(&self, process: &Process) -> Option<(&Counters, u64)> {
        let entry = self.entries.iter().find(|entry| entry.is_of(process))?;
        Some((&entry.sums, entry.at))
    }
}

/// Reads a baseline, which must be a regular file of this user.
fn read(file: &Path) -> io::Result<Baseline> {
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(file)?;
    let meta = opened.metadata()?;
    if !meta.is_file() || meta.uid() != rustix::process::getuid().as_raw() {
        return Err(io::Error::other("it is not a file of yours"));
    }
    if meta.len() > LONGEST {
        return Err(io::Error::other("it is too long"));
    }
    let mut bytes = Vec::new();
    opened.take(LONGEST).read_to_end(&mut bytes)?;
    let baseline: Baseline = serde_json::from_slice(&bytes)?;
    match baseline.schema == SCHEMA {
        true => Ok(baseline),
        false => Err(io::Error::other("another version of memlane wrote it")),
    }
}

/// Replaces the file at once: a reader sees the old one or the new one.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let next = file.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&next);
    let written = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&next)
        .and_then(|mut opened| opened.write_all(bytes))
        .and_then(|()| fs::rename(&next, file));
    if written.is_err() {
        let _ = fs::remove_file(&next);
    }
    written
}

fn boot() -> io::Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
