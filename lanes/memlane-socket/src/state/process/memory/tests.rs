use super::*;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// A host whose kernel says what the test wants.
struct Host(PathBuf);

impl Host {
    fn new(name: &str) -> Host {
        let host =
            std::env::temp_dir().join(format!("memlane-memory-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&host).unwrap();
        Host(host)
    }

    fn says(self, file: &str, text: &str) -> Host {
        let file = self.0.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        self
    }

    fn usable(&self) -> Option<u64> {
        let c = |name: &str| CString::new(self.0.join(name).as_os_str().as_bytes()).unwrap();
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        usable(&Places {
            groups: &c("cgroup"),
            meminfo: &c("meminfo"),
            overcommit: &c("overcommit"),
            unified: &bytes(&self.0.join("unified")),
            legacy: &bytes(&self.0.join("legacy")),
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_host_that_says_nothing_or_nonsense_sets_no_limit() {
    assert_eq!(Host::new("nothing").usable(), None);
    let odd = Host::new("odd")
        .says("cgroup", "0::/a\n\n7\n8:memory\n:::\n3:cpu,cpuset:/x\n")
        .says("unified/a/memory.max", "max\n")
        .says("unified/a/memory.current", "99999999999999999999999999\n")
        .says("overcommit", "0\n")
        .says("meminfo", "CommitLimit: 1 kB\nCommitted_AS: 1 kB\n");
    assert_eq!(odd.usable(), None);
    let long = format!("0::/{}\n", "x".repeat(3000));
    assert_eq!(Host::new("long").says("cgroup", &long).usable(), None);
}

#[test]
fn the_narrowest_group_on_the_way_up_counts() {
    let host = Host::new("groups")
        .says("cgroup", "1:name=systemd:/\n0::/top/mid/low\n")
        .says("unified/top/memory.max", "1073741824\n")
        .says("unified/top/memory.current", "1063256064\n") // 10 MiB left
        .says("unified/top/mid/low/memory.max", "max\n")
        .says("unified/top/mid/low/memory.current", "5\n");
    // The reserve is larger than what is left.
    assert_eq!(host.usable(), Some(0));
    // What the kernel can take back counts by half.
    let host = host.says(
        "unified/top/memory.stat",
        "anon 7\ninactive_file 41943040\nactive_file 0\n",
    );
    assert_eq!(host.usable(), Some(14 * MIB));
    // `memory.high` slows a program down: it counts as a limit too.
    let host = host.says("unified/top/mid/memory.high", "16777216\n");
    let host = host.says("unified/top/mid/memory.current", "8388608\n");
    assert_eq!(host.usable(), Some(7 * MIB));
}

#[test]
fn groups_of_version_1_and_containers_that_see_only_their_own_are_understood() {
    let host = Host::new("legacy")
        .says("cgroup", "4:cpu,memory:/docker/0123\n0::/\n")
        .says("legacy/memory.limit_in_bytes", "536870912\n")
        .says("legacy/memory.usage_in_bytes", "0\n");
    assert_eq!(host.usable(), Some(496 * MIB));
    let host = host.says("legacy/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(host.usable(), None);
}

#[test]
fn a_kernel_that_counts_every_page_sets_a_limit() {
    let host = Host::new("commit").says("overcommit", "2\n").says(
        "meminfo",
        "MemTotal: 8 kB\nCommitLimit:    4194304 kB\nCommitted_AS:   4096000 kB\n",
    );
    assert_eq!(host.usable(), Some(96 * MIB - 64 * MIB));
}

#[test]
fn an_answer_is_good_for_a_while_and_for_so_many_bytes() {
    let a = Answer::NONE;
    let never = || panic!("it has just been looked");
    // There is no limit: no thread looks for a second.
    assert!(a.allows(MIB, 10, || None));
    assert!(a.allows(1 << 40, 9 + FREE_NS, never));
    // Of 80 MiB, 10 are granted; more than that needs a new look.
    let now = 2 * FREE_NS;
    assert!(a.allows(4 * MIB, now, || Some(80 * MIB)));
    assert!(a.allows(6 * MIB, now + 1, never));
    assert!(a.allows(1, now + 2, || Some(30 * MIB)));
    // Too little: the answer stays for a while, and then a thread looks again.
    assert!(!a.allows(8 * MIB, now + 3, || Some(MIB)));
    assert_eq!(a.scarce.load(Ordering::Relaxed), 1);
    assert!(!a.allows(1, now + 2 + LIMITED_NS, never));
    assert!(a.allows(1, now + 3 + LIMITED_NS, || Some(MIB)));
    assert_eq!(a.scarce.load(Ordering::Relaxed), 0);
    // All that is left is granted, if all of it is asked for.
    let later = now + 9 * FREE_NS;
    assert!(a.allows(MIB, later, || Some(MIB)) && !a.take(1));
}

#[test]
fn who_asks_while_another_one_looks_gets_the_answer_before() {
    for (before, usable) in [(true, None), (false, Some(0))] {
        let answer = Answer::NONE;
        assert_eq!(answer.allows(MIB, 0, || usable), before);
        let later = 2 * FREE_NS;
        let meanwhile = || {
            assert_eq!(
                answer.allows(MIB, later, || panic!("two look at a time")),
                before
            );
            None
        };
        assert!(answer.allows(MIB, later, meanwhile));
    }
}
