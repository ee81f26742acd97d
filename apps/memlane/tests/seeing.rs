//! `memlane ss` and `memlane stats` on hand-made stats pages.

mod common;

use std::fs;
use std::mem::offset_of;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Output, Stdio};

use common::{Dir, Holder, Page, assert_golden, clean, memlane, settled, squeezed, stderr, stdout};
use memlane_core::reason::Reason;
use memlane_core::stats::{ConnEntry, ConnState, Counter, HEADER_LEN, Header, MEMFD_NAME};

fn ask(verb: &str, pid: u32, flags: &[&str]) -> Output {
    let mut command = memlane();
    command.args([verb, "--pid", &pid.to_string()]).args(flags);
    command.output().unwrap()
}

fn told(verb: &str, pid: u32, flags: &[&str]) -> String {
    let output = ask(verb, pid, flags);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    stdout(&output)
}

macro_rules! words {
    ($($field:ident = $value:expr),* $(,)?) => { &[$((offset_of!(ConnEntry, $field), $value)),*] };
}

/// One connection of every kind.
fn sample() -> Page {
    let page = Page::new();
    page.entry(
        0,
        words!(
            state = ConnState::Memlane as u32,
            fd = 7,
            role = 1,
            peer_pid = 4242,
            peer_uid = 33,
            parked = 1,
            tx_ring_size = 262_144,
            rx_ring_size = 262_144,
            seq = 8
        ),
        words!(
            inode = 9001,
            since_ns = 1_700_000_001_000_000_000,
            tx_ring_bytes = 5_000_000,
            tx_tcp_bytes = 1200,
            rx_ring_bytes = 70_000,
            rx_tcp_bytes = 99,
            tx_calls = 40,
            rx_calls = 50
        ),
    );
    page.addresses(0, ("::ffff:127.0.0.1", 8080), ("::ffff:127.0.0.1", 50000));
    page.entry(
        1,
        words!(
            state = ConnState::Tcp as u32,
            fd = 8,
            reason = Reason::PEER_NO_MEMLANE.0
        ),
        words!(tx_tcp_bytes = 10, rx_tcp_bytes = 20),
    );
    page.addresses(
        1,
        ("2001:db8:1111:2222:3333:4444:5555:6666", 40001),
        ("::1", 443),
    );
    page.entry(
        2,
        words!(
            state = ConnState::Tcp as u32,
            fd = 9,
            role = 1,
            reason = Reason::PEER_DECLINED.0,
            peer_reason = Reason::PEER_REFUSED.0
        ),
        &[],
    );
    page.entry(
        3,
        words!(
            state = ConnState::Pending as u32,
            fd = 10,
            reason = Reason::NONE.0
        ),
        &[],
    );
    page.entry(
        4,
        words!(
            state = ConnState::Downgraded as u32,
            fd = 11,
            reason = Reason::URGENT.0
        ),
        &[],
    );
    page.entry(5, words!(state = ConnState::New as u32, fd = 12), &[]);
    page.entry(6, words!(state = 77), &[]);
    fill_counters(&page);
    page
}

fn fill_counters(page: &Page) {
    for (index, counter) in [
        Counter::Conns,
        Counter::ConnsClient,
        Counter::ConnsServer,
        Counter::Upgraded,
        Counter::HandshakeErrors,
        Counter::Fallbacks,
        Counter::Downgrades,
        Counter::TxRingBytes,
        Counter::TxTcpBytes,
        Counter::RxRingBytes,
        Counter::RxTcpBytes,
        Counter::TxCalls,
        Counter::RxCalls,
        Counter::RingFull,
        Counter::Parks,
        Counter::SpinHits,
        Counter::SpinMisses,
        Counter::WakeupsSent,
        Counter::WaitsAvoided,
        Counter::KernelWaits,
        Counter::CtlAvoided,
        Counter::PeerMisbehaved,
        Counter::Sendfile,
        Counter::Splice,
        Counter::Cork,
        Counter::NoDelay,
        Counter::Urgent,
        Counter::LinkGroups,
    ]
    .into_iter()
    .enumerate()
    {
        page.counter(counter, 1000 + index as u64);
    }
    page.counter(Counter::UpgradedClient, 1028);
    page.counter(Counter::UpgradedServer, 1029);
    page.counter(Counter::TxBeyondRing, 1030);
    page.reason(0, Reason::PEER_NO_MEMLANE.0, 3, 1);
    page.reason(1, Reason::CLOSING.0, 0, 9);
    page.reason(2, 0x0bad_0000, 1, 0);
    for class in 0..8 {
        page.u64(offset_of!(Header, tx_sizes) + 8 * class, 100 + class as u64);
        page.u64(offset_of!(Header, rx_sizes) + 8 * class, 200 + class as u64);
    }
}

#[test]
fn ss_shows_every_connection_with_its_lane() {
    let page = sample();
    let holder = Holder::new(&page);
    let pid = holder.pid();
    assert_golden(
        "ss.json",
        &settled(&told("ss", pid, &["--json", "-a"]), pid),
    );
    assert_golden("ss.txt", &squeezed(&told("ss", pid, &[]), pid));
    assert_golden(
        "ss-apw.txt",
        &squeezed(&told("ss", pid, &["-a", "-p", "-w"]), pid),
    );
}

#[test]
fn stats_shows_counters_by_lane_and_reason() {
    let page = sample();
    let holder = Holder::new(&page);
    let pid = holder.pid();
    assert_golden(
        "stats.json",
        &settled(&told("stats", pid, &["--json"]), pid),
    );
    assert_golden("stats.txt", &settled(&told("stats", pid, &[]), pid));
    assert_golden("stats-d.txt", &settled(&told("stats", pid, &["-d"]), pid));
}

/// A page with one connection on the memory lane: ports, ring bytes, ring sizes (own, then the peer's).
fn one_end(
    (own, peer): (u16, u16),
    (sent, received): (u64, u64),
    (tx_size, rx_size): (u32, u32),
) -> Page {
    let page = Page::new();
    page.entry(
        0,
        words!(
            state = ConnState::Memlane as u32,
            tx_ring_size = tx_size,
            rx_ring_size = rx_size
        ),
        words!(tx_ring_bytes = sent, rx_ring_bytes = received),
    );
    let home = "::ffff:127.0.0.1";
    page.addresses(0, (home, own), (home, peer));
    page
}

fn rings_of(verb: &str, pid: u32) -> [serde_json::Value; 2] {
    let seen: serde_json::Value = serde_json::from_str(&told(verb, pid, &["--json"])).unwrap();
    let flows = match verb {
        "ss" => &seen["connections"][0],
        _ => &seen["totals"],
    };
    ["tx", "rx"].map(|way| flows[way]["ring_used_bytes"].clone())
}

#[test]
fn a_ring_holds_what_one_end_sent_and_the_other_has_not_taken() {
    let pages = [
        one_end((41, 42), (9_000, 5_000), (65_536, 4_096)),
        one_end((42, 41), (99_000, 7_000), (4_096, 65_536)),
    ];
    let [a, b] = pages.each_ref().map(Holder::new);
    let name = |page: &Page, peer: u32| page.entry(0, words!(peer_pid = peer), &[]);
    // Who does not name the other process is a stranger with the same addresses.
    name(&pages[0], b.pid());
    name(&pages[1], b.pid());
    assert!(
        rings_of("ss", a.pid())
            .iter()
            .all(serde_json::Value::is_null)
    );
    name(&pages[1], a.pid());
    for verb in ["ss", "stats"] {
        // 94,000 bytes can't be: the ring has room for 4,096.
        assert_eq!(rings_of(verb, a.pid()), [2_000, 4_096], "{verb}");
        assert_eq!(rings_of(verb, b.pid()), [4_096, 2_000], "{verb}");
    }
    assert!(told("ss", a.pid(), &["-w"]).contains(" 2000/65536 "));
    assert!(told("stats", a.pid(), &[]).contains(" 1.9KiB/64KiB\n"));
    drop(b);
    for verb in ["ss", "stats"] {
        assert!(
            rings_of(verb, a.pid())
                .iter()
                .all(serde_json::Value::is_null),
            "{verb}"
        );
    }
    assert!(told("ss", a.pid(), &[]).contains(" -/64KiB "));
    assert!(told("stats", a.pid(), &[]).contains(" -/64KiB\n"));
}

#[test]
fn ends_with_the_same_lane_belong_together_behind_any_translation_of_addresses() {
    let pages = [
        one_end((41, 42), (9_000, 5_000), (65_536, 4_096)),
        one_end((42, 41), (99_000, 7_000), (4_096, 65_536)),
    ];
    pages[1].addresses(0, ("::ffff:10.1.0.9", 7), ("::ffff:10.1.0.1", 8));
    let [a, b] = pages.each_ref().map(Holder::new);
    for page in &pages {
        page.entry(0, words!(peer_pid = 4242), words!(lane = 77));
    }
    assert_eq!(rings_of("ss", a.pid()), [2_000, 4_096]);
    let seen: serde_json::Value = serde_json::from_str(&told("ss", a.pid(), &["--json"])).unwrap();
    assert_eq!(seen["connections"][0]["peer_pid"], b.pid());
    // A third one of that name: nobody is believed.
    let third = one_end((1, 2), (1, 1), (4_096, 4_096));
    third.entry(0, words!(peer_pid = 4242), words!(lane = 77));
    let _third = Holder::new(&third);
    assert!(
        rings_of("ss", a.pid())
            .iter()
            .all(serde_json::Value::is_null)
    );
}

#[test]
fn every_line_of_stats_is_explained_in_the_guide() {
    let guide = include_str!("../../../docs/guides/seeing.md");
    let sheet = include_str!("golden/stats-d.txt");
    let labels = sheet
        .lines()
        .filter_map(|line| line.trim().split("  ").next())
        .filter(|label| !label.is_empty() && !label.starts_with("0x") && !label.starts_with("8KB"));
    for label in labels {
        assert!(
            guide.contains(&format!("| `{label}`")) || guide.contains(&format!("## {label}")),
            "{label}"
        );
    }
}

#[test]
fn totals_cover_all_processes_that_can_be_read() {
    let pages = [sample(), sample()];
    let holders = pages.each_ref().map(Holder::new);
    let all = memlane().args(["stats", "--json"]).output().unwrap();
    let all: serde_json::Value = serde_json::from_slice(&all.stdout).unwrap();
    let processes = all["processes"].as_array().unwrap();
    for holder in &holders {
        assert!(processes.iter().any(|p| p["pid"] == holder.pid()));
    }
    let sum: u64 = processes
        .iter()
        .map(|p| p["tx"]["ring_bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(all["totals"]["tx"]["ring_bytes"], sum);
    assert!(sum >= 2 * (1007 + 5_000_000));
}

#[test]
fn addresses_that_were_not_asked_yet_come_from_the_kernel() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let stream = TcpStream::connect(at).unwrap();
    let own = stream.local_addr().unwrap();
    let page = Page::new();
    page.entry(
        0,
        words!(
            state = ConnState::Tcp as u32,
            fd = 0,
            reason = Reason::TOO_YOUNG.0
        ),
        &[],
    );
    let holder = Holder::of(&page, Stdio::from(OwnedFd::from(stream)));
    page.u32(offset_of!(Header, pid), holder.pid());
    let seen: serde_json::Value =
        serde_json::from_str(&told("ss", holder.pid(), &["--json"])).unwrap();
    let conn = &seen["connections"][0];
    assert_eq!(conn["local"]["port"], own.port());
    assert_eq!(conn["peer"]["port"], at.port());
    assert_eq!(conn["peer"]["address"], "127.0.0.1");
    assert!(conn["inode"].as_u64().unwrap() > 0);

    // Another inode than the entry's: the descriptor was reused, so nothing is claimed.
    page.entry(0, &[], words!(inode = 1));
    let seen: serde_json::Value =
        serde_json::from_str(&told("ss", holder.pid(), &["--json"])).unwrap();
    assert!(seen["connections"][0]["local"].is_null());
}

#[test]
fn a_page_inherited_over_fork_is_not_the_childs() {
    let page = sample();
    let parent = Holder::new(&page);
    let child = Holder::of(&page, Stdio::null());
    let output = ask("stats", child.pid(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("has no stats page"),
        "{}",
        stderr(&output)
    );
    assert!(ask("stats", parent.pid(), &[]).status.success());
}

#[test]
fn garbage_is_skipped_and_named() {
    let page = Page::empty(MEMFD_NAME);
    page.0.set_len(HEADER_LEN as u64).unwrap();
    let holder = Holder::new(&page);
    let output = ask("ss", holder.pid(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no magic number"),
        "{}",
        stderr(&output)
    );
    let all = memlane().args(["ss", "-v"]).output().unwrap();
    assert!(all.status.success());
    let named = format!("the page of {} was skipped", holder.pid());
    assert!(stderr(&all).contains(&named), "{}", stderr(&all));
}

#[test]
fn a_name_that_only_looks_like_a_page_is_not_opened() {
    let page = Page::empty(c"memlane-stats-not");
    let holder = Holder::of(&page, Stdio::null());
    let output = ask("ss", holder.pid(), &[]);
    assert!(stderr(&output).contains("has no stats page"));
}

#[test]
fn an_error_leaves_stdout_empty_in_both_forms() {
    let gone = u32::MAX >> 1;
    for verb in ["ss", "stats"] {
        let output = ask(verb, gone, &[]);
        assert_eq!(
            (output.status.code(), stdout(&output)),
            (Some(1), String::new())
        );
        assert_eq!(stderr(&output), format!("memlane: no process {gone}\n"));
        let output = ask(verb, gone, &["--json"]);
        assert_eq!(
            (output.status.code(), stdout(&output)),
            (Some(1), String::new())
        );
        let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(error["schema"], "memlane.error/1");
        assert_eq!(error["exit_code"], 1);
    }
    let output = memlane().args(["ss", "--nonsense"]).output().unwrap();
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(2), String::new())
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for verb in ["ss", "stats", "--help"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = memlane().arg(verb).stdout(writer).output().unwrap();
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), String::new()),
            "{verb}"
        );
    }
}

#[test]
fn an_ordinary_user_sees_no_page_of_root_and_is_told_how_many() {
    if fs::metadata("/proc/self")
        .map(|m| std::os::unix::fs::MetadataExt::uid(&m))
        .unwrap()
        != 0
    {
        eprintln!("needs root: nothing checked");
        return;
    }
    let dir = Dir::new();
    let page = sample();
    let holder = Holder::new(&page);
    let output = clean(&dir.memlane())
        .args(["ss", "-v"])
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stdout(&output).contains(&format!("/{} ", holder.pid())));
    let first = stderr(&output);
    let count: u64 = first
        .strip_prefix("memlane: ")
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(count >= 1, "{first}");
    let pid = holder.pid().to_string();
    let one = clean(&dir.memlane())
        .args(["ss", "--pid", &pid])
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    assert_eq!(one.status.code(), Some(1));
    assert!(stderr(&one).contains("another user"), "{}", stderr(&one));
}
