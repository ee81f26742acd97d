//! `memlane stats reset`: what is put aside, for whom, and what becomes of a file that lies.

mod common;

use std::fs;
use std::mem::offset_of;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Dir, Holder, Page, clean, stderr, stdout};
use memlane_core::reason::Reason;
use memlane_core::stats::{ConnEntry, ConnState, Counter, Header};
use serde_json::Value;

/// A user with a run directory and processes of his own: root's directory is fixed, so that the tests are somebody else,
/// and each of them is another one.
struct User {
    id: u32,
    dir: Dir,
    program: PathBuf,
}

impl User {
    /// `None`: not root, so that no other user can be had.
    fn new() -> Option<User> {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            eprintln!("SKIPPED: needs root");
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(61_000);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = Dir::new();
        let program = dir.memlane();
        std::os::unix::fs::chown(&dir.0, Some(id), Some(id)).unwrap();
        Some(User { id, dir, program })
    }

    fn command(&self, program: &Path) -> Command {
        use std::os::unix::process::CommandExt as _;
        let mut command = clean(program);
        command.uid(self.id).gid(self.id);
        command.env("XDG_RUNTIME_DIR", &self.dir.0);
        command
    }

    /// A process of this user that shows `page`.
    fn holder(&self, page: &Page) -> Holder {
        let mut sleep = self.command(Path::new("sleep"));
        Holder::by(&mut sleep, page)
    }

    fn stats(&self, flags: &[&str]) -> Output {
        let mut command = self.command(&self.program);
        command.arg("stats").args(flags).output().unwrap()
    }

    /// The document about one process, and whether stderr was silent.
    fn told(&self, pid: u32, flags: &[&str]) -> (Value, String) {
        let pid = pid.to_string();
        let output = self.stats(&[&["--json", "--pid", &pid], flags].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        (document["processes"][0].clone(), stderr(&output))
    }

    fn reset(&self, flags: &[&str]) -> Value {
        let output = self.stats(&[&["reset", "--json"], flags].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.dir.0.join("memlane/stats-baseline.json")
    }
}

/// A page that has counted something, with one connection open.
fn counted(n: u32) -> Page {
    let page = Page::new();
    page.counter(Counter::Conns, n.into());
    page.counter(Counter::TxRingBytes, 100);
    page.reason(0, Reason::CLOSING.0, u64::from(n), 0);
    page.u64(offset_of!(Header, tx_sizes), 7);
    page.u64(offset_of!(Header, gid), 0xabc0 + u64::from(n));
    connection(&page, 1_000);
    page
}

fn connection(page: &Page, sent: u64) {
    page.entry(
        0,
        &[(offset_of!(ConnEntry, state), ConnState::Memlane as u32)],
        &[(offset_of!(ConnEntry, tx_ring_bytes), sent)],
    );
}

#[test]
fn after_a_reset_counters_begin_anew_and_what_is_open_stays() {
    let Some(user) = User::new() else { return };
    let page = counted(5);
    let holder = user.holder(&page);
    let (before, _) = user.told(holder.pid(), &[]);
    assert_eq!(before["tx"]["ring_bytes"], 1_100);
    assert!(before["since_reset_unix_seconds"].is_null());

    let done = user.reset(&[]);
    assert_eq!(done["schema"], "memlane.stats-reset/1");
    assert_eq!(done["processes"], 1);
    let at = fs::metadata(user.file()).unwrap();
    assert_eq!(
        (at.uid(), at.permissions().mode() & 0o777),
        (user.id, 0o600)
    );

    page.counter(Counter::Conns, 7);
    page.reason(0, Reason::CLOSING.0, 6, 0);
    connection(&page, 1_250);
    let (since, said) = user.told(holder.pid(), &[]);
    assert_eq!(said, "");
    assert!(since["since_reset_unix_seconds"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(since["connections"]["handled"], 2);
    assert_eq!(since["connections"]["open"]["memlane"], 1);
    assert_eq!(since["tx"]["ring_bytes"], 250);
    assert_eq!(since["tx"]["calls_by_size"][0], 0);
    assert_eq!(since["fallbacks"]["reasons"][0]["client"], 1);
    let (absolute, _) = user.told(holder.pid(), &["--absolute"]);
    assert_eq!(absolute["tx"]["ring_bytes"], 1_350);
    let text = stdout(&user.stats(&[]));
    assert!(text.contains("counted since a reset"), "{text}");
    assert!(!stdout(&user.stats(&["-a"])).contains("since a reset"));
}

#[test]
fn another_process_or_another_user_is_not_touched_by_a_reset() {
    let Some(user) = User::new() else { return };
    let pages = [counted(3), counted(4)];
    let holders = pages.each_ref().map(|page| user.holder(page));
    let [first, second] = holders.each_ref().map(Holder::pid);
    user.reset(&["--pid", &first.to_string()]);
    assert_eq!(user.told(first, &[]).0["connections"]["handled"], 0);
    assert_eq!(user.told(second, &[]).0["connections"]["handled"], 4);
    // One more, without losing the one before.
    user.reset(&["--pid", &second.to_string()]);
    for pid in [first, second] {
        assert_eq!(user.told(pid, &[]).0["connections"]["handled"], 0);
    }
    // Another process, with the same number in its page or the same id, is not the one that was reset.
    pages[0].u64(offset_of!(Header, gid), 1);
    assert_eq!(user.told(first, &[]).0["connections"]["handled"], 3);
    pages[0].u64(offset_of!(Header, gid), 0xabc3);
    assert_eq!(user.told(first, &[]).0["connections"]["handled"], 0);
    let edited = fs::read_to_string(user.file()).unwrap();
    let edited = edited.replace("\"started_ticks\":", "\"started_ticks\":1");
    fs::write(user.file(), edited).unwrap();
    assert_eq!(user.told(first, &[]).0["connections"]["handled"], 3);
    // Who has ended is forgotten with the next reset.
    drop(holders);
    assert_eq!(user.reset(&[])["processes"], 0);
    assert!(!fs::read_to_string(user.file()).unwrap().contains("\"pid\""));
}

#[test]
fn a_file_that_lies_is_named_and_costs_no_answer() {
    let Some(user) = User::new() else { return };
    let page = counted(5);
    let holder = user.holder(&page);
    user.reset(&[]);
    let good = fs::read_to_string(user.file()).unwrap();
    let lie = |content: &str| {
        fs::write(user.file(), content).unwrap();
        let (told, said) = user.told(holder.pid(), &[]);
        (told["connections"]["handled"].as_u64().unwrap(), said)
    };
    assert_eq!(lie(&good), (0, String::new()));
    for broken in [
        "",
        "{",
        "[]",
        "\u{7f}ELF",
        &good.replace("baseline/1", "baseline/9"),
        &good.replace("\"counters\":[", "\"counters\":[-1,"),
        &good.replace("\"tx_sizes\":[", "\"tx_sizes\":[1,"),
        &format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
    ] {
        let (handled, said) = lie(broken);
        assert_eq!(handled, 5, "{broken:.60}");
        assert!(
            said.contains("cannot be used") && said.contains("stats reset"),
            "{said}"
        );
    }
    // Numbers that cannot be: nothing below nothing.
    let most = good.replace("\"counters\":[0,", &format!("\"counters\":[{},", u64::MAX));
    let most = most.replace("\"counters\":[5,", &format!("\"counters\":[{},", u64::MAX));
    assert_ne!(most, good);
    assert_eq!(lie(&most), (0, String::new()));
    // Of another boot, process numbers mean nothing.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let other = good.replace(boot.trim(), "another");
    assert_eq!(lie(&other), (5, String::new()));
    // No file at all: a link, a pipe that nobody fills.
    for make in [
        &mut |at: &Path| std::os::unix::fs::symlink("/dev/zero", at).unwrap(),
        &mut |at: &Path| assert!(Command::new("mkfifo").arg(at).status().unwrap().success()),
    ] as [&mut dyn FnMut(&Path); 2]
    {
        fs::remove_file(user.file()).unwrap();
        make(&user.file());
        let (told, said) = user.told(holder.pid(), &[]);
        assert_eq!(told["connections"]["handled"], 5);
        assert!(said.contains("cannot be used"), "{said}");
    }
    // The way out that is named works.
    user.reset(&[]);
    assert_eq!(user.told(holder.pid(), &[]).0["connections"]["handled"], 0);
}
