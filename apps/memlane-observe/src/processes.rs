//! Finds the processes that run under memlane, by the stats page that each of them holds.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::page::{Page, PageError};
use crate::printable::printable;

/// What `/proc/PID/fd/N` of a stats page links to.
const LINK: &str = "/memfd:memlane-stats (deleted)";
/// Most pages that are read from one process. It has one of its own and may have inherited a few; a process with
/// more is hostile.
const MAX_PAGES: usize = 16;

/// A process under memlane.
#[derive(Debug)]
pub struct Process {
    /// Its process id as this program sees it. The page has the id in the process's own pid namespace.
    pub pid: u32,
    /// Its name, as the kernel has it, printable.
    pub comm: String,
    /// A copy of its page.
    pub page: Page,
    file: PageFile,
}

/// Where a page was read. The file is not held open: there may be more pages than descriptors.
#[derive(Debug)]
struct PageFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Process {
    /// Opens its page again. `None`: the descriptor is not the page that was read any more.
    pub fn reopen(&self) -> Option<File> {
        let (file, id) = open(&self.file.path)?;
        (id == self.file.id).then_some(file)
    }

    /// When it began, in clock ticks since boot. `None`: it has ended.
    pub fn started(&self) -> Option<u64> {
        started(self.pid)
    }
}

/// When process `pid` began, in clock ticks since boot. `None`: there is no such process.
pub fn started(pid: u32) -> Option<u64> {
    memlane_sys::proc::started(pid)
}

/// The parent of each process.
pub fn parents() -> HashMap<u32, u32> {
    let with_parent = |pid: u32| Some((pid, stat(pid, 4)?.parse().ok()?));
    let pids = pids().unwrap_or_default();
    pids.into_iter().filter_map(with_parent).collect()
}

/// A field of `/proc/PID/stat` behind the name, by its number in proc_pid_stat(5), from 3 on.
fn stat(pid: u32, field: usize) -> Option<String> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name (field 2) stands in parentheses and may itself contain parentheses and blanks.
    let after = stat.rsplit(|byte| *byte == b')').next()?;
    let mut fields = std::str::from_utf8(after).ok()?.split_ascii_whitespace();
    fields.nth(field - 3).map(str::to_owned)
}

/// The processes that were found at one moment.
#[derive(Debug, Default)]
pub struct Survey {
    /// Those that were asked for, by process id.
    pub processes: Vec<Process>,
    /// Others that may be at the other end of a connection.
    pub bystanders: Vec<Process>,
    /// Number of processes whose descriptors this user may not look at.
    pub unreadable: u64,
    /// Processes whose page was rejected, and why.
    pub bad_pages: Vec<(u32, PageError)>,
}

/// Why a process that was asked for cannot be shown.
#[derive(Debug)]
pub enum SurveyError {
    /// No process has this id.
    NoProcess(u32),
    /// Another user's process.
    Forbidden(u32),
    /// It has a page that was rejected.
    BadPage(u32, PageError),
    /// It has no page.
    NoPage(u32),
    /// `/proc` cannot be read.
    Proc(io::Error),
}

impl std::fmt::Display for SurveyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SurveyError::NoProcess(pid) => write!(f, "no process {pid}"),
            SurveyError::Forbidden(pid) => {
                write!(f, "process {pid} belongs to another user: try as root")
            }
            SurveyError::BadPage(pid, error) => {
                write!(f, "the stats page of process {pid} cannot be used: {error}")
            }
            SurveyError::NoPage(pid) => write!(
                f,
                "process {pid} has no stats page: it was not started with `memlane run`, \
                 or has done little by TCP so far"
            ),
            SurveyError::Proc(error) => write!(f, "/proc cannot be read: {error}"),
        }
    }
}

impl std::error::Error for SurveyError {}

impl From<io::Error> for SurveyError {
    fn from(error: io::Error) -> SurveyError {
        SurveyError::Proc(error)
    }
}

/// What one process has.
enum Look {
    Nothing,
    Forbidden,
    Bad(PageError),
    Found(Box<Process>),
}

impl Survey {
    /// Reads the pages of all processes that this user may look at.
    ///
    /// # Errors
    ///
    /// Those of reading `/proc`.
    pub fn all() -> io::Result<Survey> {
        let mut survey = Survey::default();
        for pid in pids()? {
            survey.add(pid, look(pid));
        }
        survey.processes.sort_by_key(|p| p.pid);
        Ok(survey)
    }

    /// Reads the page of process `pid`. If it has rings, all other pages are read too, into
    /// [`bystanders`](Survey::bystanders): how full a ring is can only be told from both ends.
    ///
    /// # Errors
    ///
    /// If the process is not there, or its page is not there, not readable or not usable.
    pub fn of(pid: u32) -> Result<Survey, SurveyError> {
        if !fs::exists(format!("/proc/{pid}"))? {
            return Err(SurveyError::NoProcess(pid));
        }
        let mut survey = Survey::default();
        match look(pid) {
            Look::Nothing => return Err(SurveyError::NoPage(pid)),
            Look::Forbidden => return Err(SurveyError::Forbidden(pid)),
            Look::Bad(error) => return Err(SurveyError::BadPage(pid, error)),
            Look::Found(process) => survey.processes.push(*process),
        }
        survey.add_bystanders(pid)?;
        Ok(survey)
    }

    fn add_bystanders(&mut self, but_not: u32) -> io::Result<()> {
        let mut conns = self.processes.iter().flat_map(|p| &p.page.conns);
        if conns.any(|c| c.tx.ring_size > 0 || c.rx.ring_size > 0) {
            let others = pids()?.into_iter().filter(|pid| *pid != but_not);
            self.bystanders = others.filter_map(process).collect();
        }
        Ok(())
    }

    /// One line about what could not be read.
    pub fn unseen(&self) -> String {
        let mut text = format!(
            "{} processes of other users could not be read",
            self.unreadable
        );
        for (pid, error) in &self.bad_pages {
            text.push_str(&format!("; the page of {pid} was skipped: {error}"));
        }
        text
    }

    fn add(&mut self, pid: u32, look: Look) {
        match look {
            Look::Nothing => {}
            Look::Forbidden => self.unreadable += 1,
            Look::Bad(error) => self.bad_pages.push((pid, error)),
            Look::Found(process) => self.processes.push(*process),
        }
    }
}

/// Process `pid`, if it shows a usable page.
pub fn process(pid: u32) -> Option<Process> {
    match look(pid) {
        Look::Found(process) => Some(*process),
        _ => None,
    }
}

/// The ids of all processes that `/proc` shows.
///
/// # Errors
///
/// Those of reading `/proc`.
pub fn pids() -> io::Result<Vec<u32>> {
    Ok(fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

fn look(pid: u32) -> Look {
    let fds = match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(fds) => fds,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && runs_a_program(pid) => {
            return Look::Forbidden;
        }
        Err(_) => return Look::Nothing,
    };
    let mut seen = HashSet::new();
    let mut found: Option<(Page, PageFile)> = None;
    let mut bad = None;
    for fd in fds.flatten().map(|entry| entry.path()) {
        if !fs::read_link(&fd).is_ok_and(|to| to.as_os_str() == LINK) {
            continue;
        }
        let Some((file, id)) = open(&fd).filter(|(_, id)| seen.insert(*id)) else {
            continue;
        };
        if seen.len() > MAX_PAGES {
            break;
        }
        match Page::read(&file) {
            // A page inherited over fork describes the parent, not this process.
            Ok(page) if Some(page.pid) != own_pid(pid) => {}
            // Of two own pages, the older one is from before an exec.
            Ok(page)
                if found
                    .as_ref()
                    .is_some_and(|(f, _)| f.start_ns >= page.start_ns) => {}
            Ok(page) => found = Some((page, PageFile { path: fd, id })),
            Err(error) => bad = Some(error),
        }
    }
    match (found, bad) {
        (Some((page, file)), _) => Look::Found(Box::new(Process {
            pid,
            comm: comm(pid).unwrap_or_else(|| page.comm.clone()),
            page,
            file,
        })),
        (None, Some(error)) => Look::Bad(error),
        (None, None) => Look::Nothing,
    }
}

/// Opens a page; returns it with its device and inode. It opens regular files only: a hostile process can give a FIFO
/// or a device the same name, and opening one may block or have effects.
fn open(fd: &Path) -> Option<(File, (u64, u64))> {
    if !fs::metadata(fd).ok()?.is_file() {
        return None;
    }
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(fd)
        .ok()?;
    let meta = file.metadata().ok()?;
    meta.is_file().then(|| (file, (meta.dev(), meta.ino())))
}

/// The id of process `pid` in its own pid namespace.
fn own_pid(pid: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

fn comm(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(printable(name.strip_suffix(b"\n").unwrap_or(&name)))
}

/// Kernel threads and zombies have no command line.
fn runs_a_program(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_is_that_of_the_memfd_that_the_library_makes() {
        let name = memlane_core::stats::MEMFD_NAME.to_str().unwrap();
        assert_eq!(LINK, format!("/memfd:{name} (deleted)"));
    }

    #[test]
    fn our_own_process_id_and_name_are_found() {
        let pid = std::process::id();
        assert_eq!(own_pid(pid), Some(pid));
        assert!(comm(pid).is_some_and(|name| !name.is_empty() && name.len() < 16));
    }
}
