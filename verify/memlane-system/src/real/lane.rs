//! What the stats pages of a program and its children say.
//!
//! A page is opened while its process lives; the open file keeps the memory, so
//! that it can still be read after the process has gone.

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::tree::tree;
use crate::harness::Mode;

// The page's layout and the reasons from their one source, without building
// the spine: these tests must run against whatever library was built.
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../../../spine/memlane-core/src/reason.rs"]
mod reason;
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../../../spine/memlane-core/src/stats.rs"]
mod stats;

pub use reason::Reason;
use stats::{ConnEntry, ConnState, Counter, Header, ReasonCount};

/// Reasons that every program may have for connections that end after a few
/// exchanges: the upgrade had no time.
pub const SHORT_LIVED: &[Reason] = &[Reason::TOO_YOUNG, Reason::CLOSING];

/// A live connection of one process.
#[derive(Clone, Debug)]
pub struct Conn {
    /// A `ConnState`.
    pub state: u32,
    /// Why it is on TCP; 0 = it isn't, or no reason yet.
    pub reason: Reason,
    /// The peer's reason.
    pub peer_reason: Reason,
    /// Bytes sent and received through the ring, then through TCP.
    pub bytes: [u64; 4],
}

impl Conn {
    /// Is the memory lane open at this end?
    pub fn on_lane(&self) -> bool {
        self.state == ConnState::Memlane as u32
    }
}

/// One process under memlane.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its id, as the test sees it.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    counters: Vec<u64>,
    /// Reasons given so far, with how often.
    pub reasons: Vec<(Reason, u64)>,
    /// Connections that have not ended.
    pub conns: Vec<Conn>,
}

impl Process {
    /// One of the page's counters.
    fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Times that it woke a sleeping peer without TCP.
    pub fn bells(&self) -> u64 {
        self.counter(Counter::BellsRung)
    }

    /// Times that it parked a connection.
    pub fn parks(&self) -> u64 {
        self.counter(Counter::Parks)
    }

    /// Sends that found a ring full.
    pub fn full_rings(&self) -> u64 {
        self.counter(Counter::RingFull)
    }

    /// Times that it found memory to be too scarce for rings.
    pub fn scarce(&self) -> u64 {
        self.counter(Counter::Scarce)
    }

    /// Bytes sent and received through the ring, then through TCP, by ended and live connections.
    pub fn bytes(&self) -> [u64; 4] {
        let ended = [
            Counter::TxRingBytes,
            Counter::RxRingBytes,
            Counter::TxTcpBytes,
            Counter::RxTcpBytes,
        ];
        let mut sums = ended.map(|counter| self.counter(counter));
        for conn in &self.conns {
            for (sum, bytes) in sums.iter_mut().zip(conn.bytes) {
                *sum += bytes;
            }
        }
        sums
    }

    /// Everything that looks wrong, given the reasons that are expected here.
    fn complaints(&self, allowed: &[&[Reason]]) -> Vec<String> {
        let known = |reason: &Reason| {
            // What the peer gave for it is checked at the peer.
            matches!(*reason, Reason::NONE | Reason::PEER_TCP_ONLY)
                || allowed.iter().any(|list| list.contains(reason))
        };
        let mut complaints = Vec::new();
        for (reason, times) in self.reasons.iter().filter(|(reason, _)| !known(reason)) {
            complaints.push(format!(
                "{times} × unexpected reason {} {reason}",
                reason.name()
            ));
        }
        for conn in self.conns.iter().filter(|conn| !known(&conn.reason)) {
            complaints.push(format!("a live connection is on TCP: {}", conn.reason));
        }
        let explained: u64 = self.reasons.iter().map(|(_, times)| times).sum();
        let fallbacks = self.counter(Counter::Fallbacks);
        if fallbacks > explained {
            complaints.push(format!(
                "{} fallbacks without a reason",
                fallbacks - explained
            ));
        }
        // Where a time-out is expected, so is a handshake that it cuts off.
        let cut_off = known(&Reason::TIMEOUT_CL);
        let errors = self.counter(Counter::HandshakeErrors);
        if errors > 0 && !cut_off {
            complaints.push(format!("{errors} handshakes ended in an error"));
        }
        let misbehaved = self.counter(Counter::PeerMisbehaved);
        if misbehaved > 0 {
            complaints.push(format!("{misbehaved} peers wrote impossible values"));
        }
        complaints
    }

    fn describe(&self) -> String {
        let [tx, rx, tx_tcp, rx_tcp] = self.bytes();
        let count = |counter| self.counter(counter);
        let mut text = format!(
            "{} {}: {} connections ({} live), {} upgraded, {} fell back, {} downgraded; \
             ring {tx} out {rx} in; TCP {tx_tcp} out {rx_tcp} in",
            self.pid,
            self.comm,
            count(Counter::Conns),
            self.conns.len(),
            count(Counter::Upgraded),
            count(Counter::Fallbacks),
            count(Counter::Downgrades),
        );
        for (reason, times) in &self.reasons {
            text.push_str(&format!("; {times} × {}", reason.name()));
        }
        for conn in self
            .conns
            .iter()
            .filter(|conn| conn.reason != Reason::NONE)
            .take(4)
        {
            let (reason, peer) = (conn.reason.name(), conn.peer_reason.name());
            text.push_str(&format!(
                "; live: state {} {reason} (peer: {peer})",
                conn.state
            ));
        }
        text
    }
}

/// What a panic carries that says: all was right, but by TCP. Which lane carries a
/// byte depends on who is awake, so on a busy machine a short story may be told by
/// TCP alone; [`Story`](super::stage::Story) tells it again then. It also does so if a
/// program ended before its page was seen. Nothing else is tried twice.
#[derive(Debug)]
pub struct Missed(pub String);

impl Missed {
    /// Ends the story, which then runs again.
    ///
    /// # Panics
    /// Always.
    pub fn report(text: String) -> ! {
        eprintln!("{text}");
        std::panic::panic_any(Missed(text))
    }
}

/// The processes of one program.
#[derive(Clone, Debug)]
pub struct LaneReport {
    /// The program, as the test calls it.
    pub who: String,
    /// Of [`Mode::Plain`] nothing is asked.
    pub mode: Mode,
    /// Those that had a page.
    pub processes: Vec<Process>,
}

impl LaneReport {
    /// Bytes through the ring, both ways.
    pub fn ring_bytes(&self) -> u64 {
        self.processes
            .iter()
            .map(|process| process.bytes()[0] + process.bytes()[1])
            .sum()
    }

    /// Connections of all its processes that fell back for this reason.
    pub fn fell_back_for(&self, reason: Reason) -> usize {
        let given = self.processes.iter().flat_map(|p| &p.reasons);
        let times: u64 = given.filter(|(r, _)| *r == reason).map(|(_, n)| n).sum();
        usize::try_from(times).unwrap_or(usize::MAX)
    }

    /// Connections of all its processes.
    pub fn connections(&self) -> u64 {
        self.processes
            .iter()
            .map(|process| process.counter(Counter::Conns))
            .sum()
    }

    /// Those of them that got their lane.
    pub fn upgraded(&self) -> u64 {
        self.processes
            .iter()
            .map(|process| process.counter(Counter::Upgraded))
            .sum()
    }

    /// The program must have sent or received through the ring, and each of its
    /// fallbacks must be for one of the reasons given.
    ///
    /// # Panics
    /// If not.
    pub fn must_use_ring(&self, allowed: &[&[Reason]]) {
        self.must_explain(allowed);
        if self.mode != Mode::Plain && self.ring_bytes() == 0 {
            Missed::report(format!("nothing took the memory lane:\n{self}"));
        }
    }

    /// The lane must have opened; a pair that always sleeps may still be woken by
    /// TCP each time. Only for the stories where that was seen: see their comments.
    ///
    /// # Panics
    /// If it did not open.
    pub fn must_open_lane(&self, allowed: &[&[Reason]]) {
        self.must_explain(allowed);
        let opened: u64 = self
            .processes
            .iter()
            .map(|p| p.counter(Counter::Upgraded))
            .sum();
        if self.mode != Mode::Plain && opened == 0 {
            Missed::report(format!("no lane opened:\n{self}"));
        }
    }

    /// At least one lane opened, and at least this many bytes went through it.
    ///
    /// # Panics
    /// If not.
    pub fn must_use_ring_for(&self, bytes: u64, allowed: &[&[Reason]]) {
        self.must_use_ring(allowed);
        if self.mode != Mode::Plain && self.ring_bytes() < bytes {
            Missed::report(format!(
                "less than {bytes} bytes took the memory lane:\n{self}"
            ));
        }
    }

    /// Nothing may have taken the ring: the peer is not under memlane.
    ///
    /// # Panics
    /// If it did.
    pub fn must_stay_on_tcp(&self, allowed: &[&[Reason]]) {
        self.must_explain(allowed);
        assert_eq!(
            self.ring_bytes(),
            0,
            "bytes took a lane that nobody reads:\n{self}"
        );
    }

    /// The reason must have been given at least once.
    ///
    /// # Panics
    /// If it was not.
    pub fn must_say(&self, reason: Reason) {
        let said = |process: &Process| {
            process.reasons.iter().any(|(given, _)| *given == reason)
                || process.conns.iter().any(|conn| conn.reason == reason)
        };
        if self.mode != Mode::Plain {
            if self.processes.is_empty() {
                Missed::report(format!("its end came before anyone saw it:\n{self}"));
            }
            assert!(
                self.processes.iter().any(said),
                "{} was not given:\n{self}",
                reason.name()
            );
        }
    }

    /// Each fallback must be for one of the reasons given.
    ///
    /// # Panics
    /// If not.
    pub fn must_explain(&self, allowed: &[&[Reason]]) {
        let complaints = self.complaints(allowed);
        // A peer that gets no CPU for 0.3 s has not been there: on a full machine that may be. Told again.
        let late: &[Reason] = &[
            Reason::PEER_NO_MEMLANE,
            Reason::TIMEOUT_CL,
            Reason::TIMEOUT_AL,
        ];
        let bad = self.complaints(&[allowed, &[late]].concat());
        assert!(bad.is_empty(), "{}\nin:\n{self}", bad.join("\n"));
        if !complaints.is_empty() {
            Missed::report(format!("{}\nin:\n{self}", complaints.join("\n")));
        }
    }

    fn complaints(&self, allowed: &[&[Reason]]) -> Vec<String> {
        let of = |process: &Process| {
            let who = format!("{} {}", process.pid, process.comm);
            let complaints = process.complaints(allowed).into_iter();
            complaints.map(move |what| format!("{who}: {what}"))
        };
        self.processes.iter().flat_map(of).collect()
    }
}

impl std::fmt::Display for LaneReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} ({}):", self.who, self.mode.name())?;
        if self.processes.is_empty() {
            writeln!(f, "  no stats page was seen")?;
        }
        for process in &self.processes {
            writeln!(f, "  {}", process.describe())?;
        }
        Ok(())
    }
}

/// By process id, inode of the page, and the id of the process in its own pid namespace.
type Pages = Arc<Mutex<BTreeMap<(u32, u64, u32), File>>>;

/// Looks for the pages of a process and of what it starts, for as long as it lives.
#[derive(Debug)]
pub struct LaneWatch {
    root: u32,
    pages: Pages,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LaneWatch {
    /// Watches `root` and its descendants.
    pub fn start(root: u32) -> LaneWatch {
        let pages = Pages::default();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (pages, stop) = (Arc::clone(&pages), Arc::clone(&stop));
            std::thread::spawn(move || watch(root, &pages, &stop))
        };
        LaneWatch {
            root,
            pages,
            stop,
            thread: Some(thread),
        }
    }

    /// Looks now at every process that runs: what happens before it ends must be in the report,
    /// however soon that is.
    pub fn look(&self) {
        for pid in tree(self.root) {
            find_pages(pid, &self.pages);
        }
    }

    /// Looks by itself no more: a process with ten thousand descriptors has better to do than to show them.
    pub fn rest(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// What the pages say now (for a process that has gone: what it said last).
    pub fn report(&self, who: &str, mode: Mode) -> LaneReport {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        // A child that was forked also holds its parent's page: not its own.
        let own = pages.iter().filter_map(|((pid, _, itself), file)| {
            let process = read_page(file).filter(|process| process.pid == *itself)?;
            Some(Process {
                pid: *pid,
                ..process
            })
        });
        LaneReport {
            who: who.to_owned(),
            mode,
            processes: own.collect(),
        }
    }
}

impl Drop for LaneWatch {
    fn drop(&mut self) {
        self.rest();
    }
}

fn watch(root: u32, pages: &Pages, stop: &AtomicBool) {
    // Both ends of a lane may spin and leave no CPU to the watch. Without the right to do this, the watch keeps its priority.
    let _ = rustix::process::setpriority_process(None, -10);
    let start = Instant::now();
    let mut looked: BTreeMap<u32, Instant> = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        for pid in tree(root) {
            // Look again now and then: exec and fork bring new pages.
            let again = Duration::from_millis(200);
            if looked.get(&pid).is_none_or(|when| when.elapsed() > again) && find_pages(pid, pages)
            {
                looked.insert(pid, Instant::now());
            }
        }
        // A short client must not be missed, a long one not be slowed down.
        let young = start.elapsed() < Duration::from_millis(300);
        std::thread::sleep(Duration::from_millis(if young { 1 } else { 20 }));
    }
}

/// True if there was one of its own. (Just after a fork a child has only its parent's.)
fn find_pages(pid: u32, pages: &Pages) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let itself = as_it_sees_itself(pid);
    let mut found = false;
    for entry in entries.flatten() {
        let is_page = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:memlane-stats"));
        if !is_page {
            continue;
        }
        if let Ok(file) = File::open(entry.path())
            && let Ok(metadata) = file.metadata()
        {
            let header = Words::read(&file, 0, stats::HEADER_LEN);
            found |= header.is_some_and(|header| header.u32(offset_of!(Header, pid)) == itself);
            let mut pages = pages.lock().unwrap_or_else(PoisonError::into_inner);
            pages.entry((pid, metadata.ino(), itself)).or_insert(file);
        }
    }
    found
}

/// The id of process `pid` in its own pid namespace.
fn as_it_sees_itself(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let last = line.and_then(|ids| ids.split_whitespace().next_back());
    last.and_then(|id| id.parse().ok()).unwrap_or(pid)
}

/// A copy of bytes of a page, read as the words that lie there.
struct Words(Vec<u8>);

impl Words {
    fn read(file: &File, at: usize, len: usize) -> Option<Words> {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, u64::try_from(at).ok()?)
            .ok()?;
        Some(Words(bytes))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("4 bytes"))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0[at..at + 8].try_into().expect("8 bytes"))
    }
}

fn read_page(file: &File) -> Option<Process> {
    let header = Words::read(file, 0, stats::HEADER_LEN)?;
    let as_promised = header.u64(offset_of!(Header, magic)) == stats::MAGIC
        && header.u32(offset_of!(Header, version)) == stats::VERSION;
    if !as_promised {
        return None;
    }
    let counters = offset_of!(Header, counters);
    let high = header.u32(offset_of!(Header, conn_high)) as usize;
    let conns = (0..high.min(stats::CONN_CAPACITY)).filter_map(|index| read_conn(file, index));
    Some(Process {
        pid: header.u32(offset_of!(Header, pid)),
        comm: comm(&header),
        counters: (0..stats::COUNTERS)
            .map(|n| header.u64(counters + n * 8))
            .collect(),
        reasons: reasons(&header),
        conns: conns.collect(),
    })
}

fn comm(header: &Words) -> String {
    let at = offset_of!(Header, comm);
    let name = header.0[at..at + 16]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn reasons(header: &Words) -> Vec<(Reason, u64)> {
    let slots = (0..stats::REASON_SLOTS)
        .map(|slot| offset_of!(Header, reasons) + slot * size_of::<ReasonCount>());
    slots
        .map(|at| {
            let times = header.u64(at + offset_of!(ReasonCount, client))
                + header.u64(at + offset_of!(ReasonCount, server));
            (
                Reason(header.u32(at + offset_of!(ReasonCount, code))),
                times,
            )
        })
        .filter(|(_, times)| *times > 0)
        .collect()
}

/// `None`: the slot is free, or was rewritten all the time.
fn read_conn(file: &File, index: usize) -> Option<Conn> {
    let at = stats::HEADER_LEN + index * stats::CONN_ENTRY_LEN;
    let seq = offset_of!(ConnEntry, seq);
    for _ in 0..100 {
        let entry = Words::read(file, at, stats::CONN_ENTRY_LEN)?;
        let after = Words::read(file, at, stats::CONN_ENTRY_LEN)?;
        if entry.u32(seq) % 2 == 1 || entry.u32(seq) != after.u32(seq) {
            continue;
        }
        let state = entry.u32(offset_of!(ConnEntry, state));
        if state == ConnState::Free as u32 {
            return None;
        }
        let bytes = [
            offset_of!(ConnEntry, tx_ring_bytes),
            offset_of!(ConnEntry, rx_ring_bytes),
            offset_of!(ConnEntry, tx_tcp_bytes),
            offset_of!(ConnEntry, rx_tcp_bytes),
        ];
        return Some(Conn {
            state,
            reason: Reason(entry.u32(offset_of!(ConnEntry, reason))),
            peer_reason: Reason(entry.u32(offset_of!(ConnEntry, peer_reason))),
            bytes: bytes.map(|at| entry.u64(at)),
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::TempDir;

    fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
        page[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A page as a library would have written it: 7 bytes sent by an ended
    /// connection, 5 received by a live one, one fallback for `reason`.
    fn page(reason: Reason) -> Vec<u8> {
        let mut page = vec![0; stats::HEADER_LEN + 2 * stats::CONN_ENTRY_LEN];
        put(
            &mut page,
            offset_of!(Header, magic),
            &stats::MAGIC.to_ne_bytes(),
        );
        put(
            &mut page,
            offset_of!(Header, version),
            &stats::VERSION.to_ne_bytes(),
        );
        put(&mut page, offset_of!(Header, pid), &77u32.to_ne_bytes());
        put(&mut page, offset_of!(Header, comm), b"server");
        put(
            &mut page,
            offset_of!(Header, conn_high),
            &2u32.to_ne_bytes(),
        );
        let counter = |counter: Counter| offset_of!(Header, counters) + counter as usize * 8;
        put(
            &mut page,
            counter(Counter::TxRingBytes),
            &7u64.to_ne_bytes(),
        );
        put(&mut page, counter(Counter::Fallbacks), &1u64.to_ne_bytes());
        let slot = offset_of!(Header, reasons) + 2 * size_of::<ReasonCount>();
        put(
            &mut page,
            slot + offset_of!(ReasonCount, code),
            &reason.0.to_ne_bytes(),
        );
        put(
            &mut page,
            slot + offset_of!(ReasonCount, server),
            &1u64.to_ne_bytes(),
        );
        let entry = stats::HEADER_LEN + stats::CONN_ENTRY_LEN;
        let state = ConnState::Memlane as u32;
        put(
            &mut page,
            entry + offset_of!(ConnEntry, state),
            &state.to_ne_bytes(),
        );
        put(
            &mut page,
            entry + offset_of!(ConnEntry, rx_ring_bytes),
            &5u64.to_ne_bytes(),
        );
        page
    }

    /// A shell whose child makes a page, with its own id, and then does `then`.
    fn maker_of_pages(dir: &TempDir, then: &str) -> std::process::Child {
        let path = dir.path().join("page");
        std::fs::write(&path, page(Reason::CLOSING)).expect("written");
        let pid = offset_of!(Header, pid);
        let python = format!(
            "import os, time\n\
             page = bytearray(open('{}', 'rb').read())\n\
             page[{pid}:{pid}+4] = os.getpid().to_bytes(4, 'little')\n\
             fd = os.memfd_create('memlane-stats')\n\
             os.write(fd, page)\n\
             {then}",
            path.display()
        );
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", "\"$1\" -c \"$2\"; true", "sh"]);
        shell.arg(crate::real::program("python3")).arg(python);
        shell.spawn().expect("a shell")
    }

    fn report(page: &[u8]) -> LaneReport {
        let dir = TempDir::new("page");
        let path = dir.path().join("page");
        std::fs::write(&path, page).expect("written");
        let process = read_page(&File::open(&path).expect("opens")).expect("a page");
        LaneReport {
            who: "it".into(),
            mode: Mode::Eager,
            processes: vec![process],
        }
    }

    #[test]
    fn a_page_is_read_with_ended_and_live_connections_added() {
        let report = report(&page(Reason::TOO_YOUNG));
        let process = &report.processes[0];
        assert_eq!((process.pid, process.comm.as_str()), (77, "server"));
        assert_eq!(process.bytes(), [7, 5, 0, 0]);
        assert_eq!(process.reasons, [(Reason::TOO_YOUNG, 1)]);
        report.must_use_ring(&[SHORT_LIVED]);
    }

    #[test]
    fn the_page_of_a_child_is_read_after_the_child_has_gone() {
        let dir = TempDir::new("watch");
        let mut child = maker_of_pages(&dir, "time.sleep(0.2)");
        let watch = LaneWatch::start(child.id());
        assert!(child.wait().expect("ends").success());
        let report = watch.report("it", Mode::Eager);
        assert_eq!(report.processes.len(), 1, "{report}");
        assert_ne!(report.processes[0].pid, child.id());
        report.must_use_ring(&[SHORT_LIVED]);
    }

    #[test]
    fn a_page_that_was_made_a_moment_ago_is_not_missed() {
        let dir = TempDir::new("look");
        let made = dir.path().join("made");
        let wait = format!("open('{}', 'w')\ntime.sleep(60)", made.display());
        let mut child = maker_of_pages(&dir, &wait);
        while !made.exists() {
            assert!(matches!(child.try_wait(), Ok(None)), "it made no page");
            std::thread::yield_now();
        }
        // One that has not looked yet.
        let watch = LaneWatch {
            root: child.id(),
            pages: Pages::default(),
            stop: Arc::default(),
            thread: None,
        };
        assert!(watch.report("it", Mode::Eager).processes.is_empty());
        watch.look();
        let report = watch.report("it", Mode::Eager);
        crate::real::proc::send("KILL", &tree(child.id()));
        let _ = child.wait();
        report.must_use_ring(&[SHORT_LIVED]);
    }

    #[test]
    fn a_page_of_the_parent_is_not_what_is_looked_for() {
        let dir = TempDir::new("inherited");
        let path = dir.path().join("forked");
        let keep = format!("os.fork()\nopen('{}', 'w')\ntime.sleep(60)", path.display());
        let mut child = maker_of_pages(&dir, &keep);
        let pages = Pages::default();
        let of = |pid: u32| find_pages(pid, &pages);
        let all = loop {
            let all = tree(child.id());
            if all.len() == 3 && path.exists() {
                break all;
            }
            assert!(matches!(child.try_wait(), Ok(None)), "it made no page");
            std::thread::yield_now();
        };
        let found = [of(all[1]), of(all[2])];
        crate::real::proc::send("KILL", &all);
        let _ = child.wait();
        assert_eq!(found, [true, false]);
    }

    #[test]
    #[should_panic(expected = "unexpected reason SYNCERR")]
    fn a_reason_that_was_not_expected_fails() {
        report(&page(Reason::COUNTS)).must_use_ring(&[SHORT_LIVED]);
    }

    #[test]
    #[should_panic(expected = "fallbacks without a reason")]
    fn a_fallback_without_a_reason_fails() {
        let mut page = page(Reason::TOO_YOUNG);
        let fallbacks = offset_of!(Header, counters) + Counter::Fallbacks as usize * 8;
        put(&mut page, fallbacks, &2u64.to_ne_bytes());
        report(&page).must_explain(&[SHORT_LIVED]);
    }

    #[test]
    fn a_program_that_has_no_page_fails() {
        let report = LaneReport {
            who: "it".into(),
            mode: Mode::Auto,
            processes: vec![],
        };
        let used = std::panic::catch_unwind(|| report.must_use_ring(&[SHORT_LIVED]));
        let missed = used.expect_err("no page").downcast::<Missed>();
        let text = missed.expect("all was right, but by TCP").0;
        assert!(text.starts_with("nothing took the memory lane"), "{text}");
    }
}
