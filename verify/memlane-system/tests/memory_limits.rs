//! Memory cgroups that are nearly full: programs go on by TCP, and none is killed. Programs that lock all their memory: what
//! the library only reserves takes none.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memlane_system::crowd::{Crowd, Program};
use memlane_system::harness::{Mode, command, plain_only};
use memlane_system::real::counts;

const MIB: u64 = 1 << 20;

/// A memory cgroup of this test's own. Removed when dropped.
struct Group {
    home: PathBuf,
    files: &'static Files,
}

struct Files {
    limit: &'static str,
    usage: &'static str,
    events: &'static str,
}

const LEGACY: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    events: "memory.oom_control",
};
const UNIFIED: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    events: "memory.events",
};

impl Group {
    /// `Err`: why there can be none here.
    fn new(name: &str) -> Result<Group, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let own = |matches: fn(&str) -> bool| {
            let line = groups.lines().find(|line| {
                let names = line.split(':').nth(1);
                names.is_some_and(matches)
            });
            line.and_then(|line| line.splitn(3, ':').nth(2))
        };
        let legacy = own(|names| names.split(',').any(|name| name == "memory"));
        let (base, path, files) = match (legacy, own(str::is_empty)) {
            (Some(path), _) => ("/sys/fs/cgroup/memory", path, &LEGACY),
            (None, Some(path)) => ("/sys/fs/cgroup", path, &UNIFIED),
            (None, None) => return Err("no memory cgroup".to_owned()),
        };
        // In a container, the path may be the host's.
        let parents = [format!("{base}{path}"), base.to_owned()];
        let parent = parents.iter().find(|parent| Path::new(parent).is_dir());
        let parent = Path::new(parent.ok_or("it is not mounted")?);
        let home = parent.join(format!("memlane-{name}-{}", std::process::id()));
        fs::create_dir(&home).map_err(|e| format!("{}: {e}", home.display()))?;
        let group = Group { home, files };
        match group.home.join(files.limit).exists() {
            true => Ok(group),
            false => Err(format!("no {} in it", files.limit)),
        }
    }

    fn limit(&self, bytes: u64) {
        let file = self.home.join(self.files.limit);
        fs::write(file, bytes.to_string()).expect("a limit that can be set");
    }

    fn add(&self, program: &Program) {
        let pid = program.pid().to_string();
        fs::write(self.home.join("cgroup.procs"), pid).expect("a program that can be moved");
    }

    fn usage(&self) -> u64 {
        let text = fs::read_to_string(self.home.join(self.files.usage));
        text.expect("a number").trim().parse().expect("a number")
    }

    /// How many the kernel has killed here.
    fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.home.join(self.files.events)).expect("events");
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.expect("a count").trim().parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have just been killed, and may not be gone yet.
        for _ in 0..200 {
            if fs::remove_dir(&self.home).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Bytes that the lanes' rings and TCP have carried to these programs.
fn carried(crowd: &Crowd) -> [u64; 2] {
    let mut sums = [0, 0];
    for program in [&crowd.server, &crowd.caller] {
        for conn in program.lane().processes.iter().flat_map(|p| &p.conns) {
            sums[0] += conn.bytes[0];
            sums[1] += conn.bytes[2];
        }
    }
    sums
}

fn times_scarce(crowd: &Crowd) -> u64 {
    let both = [&crowd.server, &crowd.caller].map(Program::lane);
    let all = both.iter().flat_map(|report| &report.processes);
    all.map(|process| process.scarce()).sum()
}

/// What `ends/locked.c` says of itself, in KiB. `None`: it may not lock that much.
fn kib_of_a_program_that_locks_its_memory(mode: Mode, how: &[&str]) -> Option<[u64; 2]> {
    let program = Path::new(env!("OUT_DIR")).join("locked");
    let ran = command(mode, program).args(how).output().expect("it runs");
    let counted = counts(&String::from_utf8_lossy(&ran.stdout));
    let kib = ["resident", "locked"].map(|name| counted.get(name).copied());
    let [Some(resident), Some(locked)] = kib else {
        eprintln!("SKIPPED: no memory can be locked here: {ran:?}");
        return None;
    };
    Some([resident, locked])
}

/// The library's own pages, and those of the tables that it has touched.
const MOST_MORE_KIB: u64 = 8 * 1024;

fn a_program_that_locks_pays_for_what_is_used(how: &[&str]) {
    let plain = kib_of_a_program_that_locks_its_memory(Mode::Plain, how);
    let under = kib_of_a_program_that_locks_its_memory(Mode::Auto, how);
    let Some((plain, under)) = plain.zip(under) else {
        return;
    };
    assert!(plain[1] > 0, "{plain:?}");
    for (plain, under) in plain.into_iter().zip(under) {
        assert!(
            under < plain + MOST_MORE_KIB,
            "{under} KiB instead of {plain}"
        );
    }
}

#[test]
fn a_program_that_locks_its_memory_pays_for_what_the_library_uses_and_not_for_what_it_reserves() {
    a_program_that_locks_pays_for_what_is_used(&[]);
}

#[test]
fn what_the_library_reserves_is_not_locked_either_where_pages_are_locked_once_they_are_used() {
    a_program_that_locks_pays_for_what_is_used(&["onfault"]);
}

#[test]
fn programs_whose_cgroup_is_nearly_full_go_on_by_tcp_and_live() {
    if plain_only() {
        return;
    }
    let group = match Group::new("nearly-full") {
        Ok(group) => group,
        Err(why) => return eprintln!("SKIPPED memory_limits: {why}"),
    };
    group.limit(64 * MIB);
    let mut crowd = Crowd::start(Mode::Eager);
    crowd.caller.does("open 800");
    crowd.talk_until_on_lane("talk epoll 0 800 100 4", 800);
    group.add(&crowd.server);
    group.add(&crowd.caller);
    assert!(group.usage() < 8 * MIB, "{}", group.usage());
    // They may have looked just before: there was no limit, and that is good for a second.
    std::thread::sleep(Duration::from_millis(1100));
    // Each ring would grow to 128 KiB and be filled: 200 MB.
    for _ in 0..4 {
        crowd.caller.does("talk epoll 0 800 60000 3");
    }
    assert_eq!(group.killed(), 0);
    let scarce = carried(&crowd);
    eprintln!(
        "{scarce:?} bytes by rings and by TCP, {} bytes in the group",
        group.usage()
    );
    assert!(scarce[0] > 0 && scarce[1] > 100 * MIB, "{scarce:?}");
    assert!(times_scarce(&crowd) > 0);

    // Memory is there again, and so is the lane.
    group.limit(1024 * MIB);
    std::thread::sleep(Duration::from_millis(200));
    crowd.caller.does("talk epoll 0 800 60000 3");
    let before = carried(&crowd);
    crowd.caller.does("talk epoll 0 800 60000 3");
    let after = carried(&crowd);
    assert!(after[0] - before[0] > 50 * MIB, "{before:?} {after:?}");
    crowd.end();
}
