//! Finds the processes that run under memlane, by the stats page each of them holds.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::page::{Page, PageError};
use crate::printable::printable;

/// What `/proc/PID/fd/N` of a stats page links to.
const LINK: &str = "/memfd:memlane-stats (deleted)";
/// A process has one page of its own and perhaps inherited ones; more is a trap.
const MAX_PAGES: usize = 16;

/// A process under memlane.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its id as this program sees it (the page has the id in its own namespace).
    pub(crate) pid: u32,
    /// Its name, by the kernel.
    pub(crate) comm: String,
    pub(crate) page: Page,
    /// Where the page was read.
    file: PageFile,
}

/// A page by name, not held open: there may be more pages than descriptors.
#[derive(Debug)]
struct PageFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Process {
    /// Opens its page once more, if that descriptor is still the page that was read.
    pub(crate) fn reopen(&self) -> Option<File> {
        let (file, id) = open(&self.file.path)?;
        (id == self.file.id).then_some(file)
    }

    /// When it began, in the kernel's ticks since boot. `None`: it has ended.
    pub(crate) fn started(&self) -> Option<u64> {
        started(self.pid)
    }
}

/// Likewise, of any process.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and can have anything in it, also a parenthesis.
    let after = stat.rsplit(|byte| *byte == b')').next()?;
    let fields = std::str::from_utf8(after).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Everything that could be seen.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) processes: Vec<Process>,
    /// Processes that were not asked for, but may be at the other end of a connection.
    pub(crate) bystanders: Vec<Process>,
    /// Processes whose descriptors we may not look at.
    pub(crate) unreadable: u64,
    /// Processes whose page was not believed, and why.
    pub(crate) bad_pages: Vec<(u32, PageError)>,
}

/// What one process turned out to be.
enum Look {
    Nothing,
    Forbidden,
    Bad(PageError),
    Found(Box<Process>),
}

impl Survey {
    /// Looks at every process, or at one.
    pub(crate) fn take(only: Option<u32>) -> anyhow::Result<Survey> {
        let mut survey = Survey::default();
        match only {
            Some(pid) => survey.add(pid, look(pid)),
            None => {
                for pid in pids()? {
                    survey.add(pid, look(pid));
                }
            }
        }
        survey.processes.sort_by_key(|p| p.pid);
        Ok(survey)
    }

    /// Looks at one process, which must be there and show a page.
    pub(crate) fn of(pid: u32) -> anyhow::Result<Survey> {
        if !fs::exists(format!("/proc/{pid}"))? {
            anyhow::bail!("no process {pid}");
        }
        let mut survey = Survey::take(Some(pid))?;
        if survey.unreadable > 0 {
            anyhow::bail!("process {pid} belongs to somebody else: try as root");
        }
        if let Some((_, error)) = survey.bad_pages.first() {
            anyhow::bail!("the stats page of process {pid} is not usable: {error}");
        }
        if survey.processes.is_empty() {
            anyhow::bail!(
                "process {pid} shows no stats page: it was not started with `memlane run`, \
                 or has not made a TCP socket yet"
            );
        }
        survey.add_bystanders(pid)?;
        Ok(survey)
    }

    /// A ring can only be measured from both ends.
    fn add_bystanders(&mut self, but_not: u32) -> anyhow::Result<()> {
        let conns = self.processes.iter().flat_map(|p| &p.page.conns);
        if !conns
            .into_iter()
            .any(|c| c.tx.ring_size > 0 || c.rx.ring_size > 0)
        {
            return Ok(());
        }
        let others = pids()?.into_iter().filter(|pid| *pid != but_not);
        self.bystanders = others.filter_map(process).collect();
        Ok(())
    }

    /// One line about what was not seen, for `-v`.
    pub(crate) fn unseen(&self) -> String {
        let mut text = format!(
            "{} processes of other users could not be looked at",
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

/// The page of one process, if it shows a usable one.
pub(crate) fn process(pid: u32) -> Option<Process> {
    match look(pid) {
        Look::Found(process) => Some(*process),
        _ => None,
    }
}

pub(crate) fn pids() -> io::Result<Vec<u32>> {
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

/// Opens a page, and says which file it is. Only ordinary files: the name alone proves
/// nothing, and opening a FIFO or a device could block or do something.
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

/// The process's id in its own pid namespace.
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
