//! What a process holds: descriptors, memfds, mappings. A long-running server must return to what it held before,
//! whatever its clients did.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What one process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Open descriptors, ours among them.
    pub fds: usize,
    /// Those of them that are memfds.
    pub memfds: usize,
    /// Mappings of memory that can be shared: memfds.
    pub shared_maps: usize,
    /// All mappings.
    pub maps: usize,
}

/// By how much each may differ from one quiet moment to another: programs have
/// caches and heaps of their own, link groups go when the next one is made. A
/// group holds a life line, a memfd, up to three ends of bells, and the two
/// chunks; there may be three such groups.
pub const SLACK: Held = Held {
    fds: 15,
    memfds: 5,
    shared_maps: 6,
    maps: 96,
};

impl Held {
    /// What process `pid` holds now; `None` if it has gone.
    pub fn by(pid: u32) -> Option<Held> {
        let links = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let links = links
            .flatten()
            .filter_map(|link| std::fs::read_link(link.path()).ok());
        let targets: Vec<PathBuf> = links.collect();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let is_memfd = |target: &&PathBuf| target.to_string_lossy().starts_with("/memfd:");
        Some(Held {
            fds: targets.len(),
            memfds: targets.iter().filter(is_memfd).count(),
            shared_maps: maps.lines().filter(|map| map.contains("/memfd:")).count(),
            maps: maps.lines().count(),
        })
    }

    /// Is nothing of it more than `before` and [`SLACK`] together?
    pub fn is_back_to(&self, before: &Held) -> bool {
        self.fds <= before.fds + SLACK.fds
            && self.memfds <= before.memfds + SLACK.memfds
            && self.shared_maps <= before.shared_maps + SLACK.shared_maps
            && self.maps <= before.maps + SLACK.maps
    }
}

/// What each of `pids` holds; those that have gone hold nothing.
pub fn by_each(pids: &[u32]) -> BTreeMap<u32, Held> {
    let held = pids.iter().filter_map(|pid| Some((*pid, Held::by(*pid)?)));
    held.collect()
}

/// The processes that hold more now than `before`, for people; empty if none does.
pub fn grown(before: &BTreeMap<u32, Held>, now: &BTreeMap<u32, Held>) -> String {
    let grown = now.iter().filter_map(|(pid, now)| {
        let before = before.get(pid)?;
        let what = format!("process {pid}: {before:?} has become {now:?}\n");
        (!now.is_back_to(before)).then_some(what)
    });
    grown.collect()
}

/// How many unnamed SEQPACKET sockets a process holds: its connection to an agent, life lines, channels.
///
/// # Panics
/// If it has gone.
pub fn channels_of(pid: u32) -> usize {
    // A socket is in the table of the network namespace where it was made: a channel is in the agent's, which is ours.
    let tables = [pid.to_string(), "self".into()].map(|of| {
        let table = std::fs::read(format!("/proc/{of}/net/unix")).expect("/proc");
        String::from_utf8_lossy(&table).into_owned() // names may be any bytes
    });
    let is_ours = |inode: &str| {
        tables.iter().flat_map(|table| table.lines()).any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(4) == Some(&"0005") && words.get(6) == Some(&inode)
        })
    };
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("/proc")
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|link| {
            let name = link.to_string_lossy().into_owned();
            let inode = name
                .strip_prefix("socket:[")
                .and_then(|rest| rest.strip_suffix(']'));
            inode.is_some_and(is_ours)
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::program;
    use std::io::Read as _;
    use std::process::{Child, Command, Stdio};

    /// A Python that does `work` and then waits to be killed.
    fn python(work: &str) -> Child {
        let ready = "import sys\nprint('ready', flush=True)\nsys.stdin.read()";
        let mut command = Command::new(program("python3"));
        command.args(["-c", &format!("import os, mmap\n{work}\n{ready}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("python starts")
    }

    #[test]
    fn a_process_that_keeps_memory_that_it_shared_is_found_out() {
        let [mut modest, mut greedy] = [
            "pass",
            "held = [os.memfd_create('m') for _ in range(9)]\n\
             [os.ftruncate(fd, 4096) for fd in held]\n\
             maps = [mmap.mmap(fd, 4096) for fd in held]",
        ]
        .map(python);
        for child in [&mut modest, &mut greedy] {
            let mut ready = [0; 6];
            let out = child.stdout.as_mut().expect("piped");
            out.read_exact(&mut ready)
                .expect("it says that it is ready");
        }
        let held = [&modest, &greedy].map(|child| Held::by(child.id()).expect("it lives"));
        let told = |before, now| grown(&BTreeMap::from([(1, before)]), &BTreeMap::from([(1, now)]));
        assert_eq!(told(held[0], held[0]), "");
        assert!(told(held[0], held[1]).starts_with("process 1: "));
        // mmap.mmap keeps a duplicate of its own.
        assert_eq!((held[1].memfds, held[1].shared_maps), (18, 9));
        for child in [&mut modest, &mut greedy] {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }
}
