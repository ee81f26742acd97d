//! Each suite, very short: every row that was asked for is there, or the output says why it is missing. Then the verbs for recorded runs.

mod common;

use common::{Dir, memlane_bench, preload, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

/// What a run printed: the head, the figures, what is not there.
struct Run {
    head: Value,
    samples: Vec<Value>,
    absent: Vec<Value>,
    said: String,
}

impl Run {
    /// A short run of `suite`; its tables and plots go to `dir`.
    fn of(suite: &str, only: &str, more: &[&str], dir: &Dir) -> Run {
        let output = memlane_bench()
            .envs(preload().map(|library| ("MEMLANE_PRELOAD", library)))
            .args(["run", suite, "--rounds", "1", "--seconds", "0.2", "--json"])
            .args(["--only", only])
            .args(more)
            .arg("--out")
            .arg(&dir.0)
            .output()
            .expect("it starts");
        let said = stderr(&output);
        // 5: all was measured, but where others keep the CPUs busy, waiters sleep and their bytes go by TCP.
        assert!(matches!(output.status.code(), Some(0 | 5)), "{said}");
        let text = stdout(&output);
        let mut lines = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        let head: Value = lines.next().expect("a head");
        assert_eq!(
            (&head["schema"], &head["suite"]),
            (&"memlane.bench/1".into(), &suite.into())
        );
        let (absent, samples) = lines.partition(|line: &Value| line.get("why").is_some());
        let run = Run {
            head,
            samples,
            absent,
            said,
        };
        let failed: Vec<&Value> = run
            .absent
            .iter()
            .filter(|one| !one["round"].is_null())
            .collect();
        assert!(failed.is_empty(), "{failed:?}: {}", run.said);
        run
    }

    /// Systems that have a figure of a row, which is above zero.
    fn systems(&self, row: &str, metric: &str) -> BTreeSet<&str> {
        let of = self.samples.iter();
        let of = of.filter(|one| one["row"] == row && one["metric"] == metric);
        of.map(|one| {
            assert!(one["value"].as_f64() > Some(0.0), "{one}");
            one["system"].as_str().expect("a name")
        })
        .collect()
    }

    fn value(&self, row: &str, system: &str, metric: &str) -> Option<f64> {
        let mut of = self.samples.iter();
        let found =
            of.find(|one| one["row"] == row && one["system"] == system && one["metric"] == metric);
        found?["value"].as_f64()
    }

    /// Systems that cannot be measured here, which the run has said.
    fn missing(&self, row: &str) -> BTreeSet<&str> {
        let of = self.absent.iter().filter(|one| one["row"] == row);
        of.map(|one| {
            let system = one["system"].as_str().expect("a name");
            let told = format!("!! NOT MEASURED: {row}, {system}: ");
            assert!(self.said.contains(&told), "{}", self.said);
            eprintln!("SKIPPED {row}, {system}: not root, or not installed");
            system
        })
        .collect()
    }
}

fn without<'a>(all: &[&'a str], missing: &BTreeSet<&str>) -> BTreeSet<&'a str> {
    let there = all
        .iter()
        .copied()
        .filter(|system| !missing.contains(system));
    there.collect()
}

const SYSTEMS: [&str; 5] = ["api-local", "api-tcp", "fio-local", "nbd-local", "nbdkit"];
const ROWS: [&str; 2] = ["randread-qd1", "seqwrite"];
/// Of the sweep.
const MANY: [&str; 2] = ["randread-x1", "randread-x8"];
const GAP: &str = "gap-reset-2";

#[test]
fn a_very_short_run_has_every_row_that_was_asked_for() {
    let dir = Dir::new();
    let only = [&SYSTEMS[..], &ROWS, &MANY, &[GAP]].concat().join(",");
    let run = Run::of("blocks", &only, &["--volume", "16m"], &dir);
    assert_eq!(run.head["settings"]["volume"], "16 MiB");
    let missing = run.missing("rows");
    // The API by our own generator takes nothing that could be missing.
    assert!(
        !missing.iter().any(|system| system.starts_with("api-")),
        "{}",
        run.said
    );
    let there = without(&SYSTEMS, &missing);
    for row in ROWS.iter().chain(&MANY) {
        for metric in ["rate", "p50", "p99"] {
            assert_eq!(run.systems(row, metric), there, "{row}, {metric}");
        }
    }
    // Not how long: this machine may be busy. That a path did die, the bench has made sure of.
    assert_eq!(run.systems(GAP, "gap").len(), 1, "{}", run.said);
    let files = std::fs::read_dir(&dir.0).expect("the folder").flatten();
    let files: BTreeSet<String> = files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    let expected = [
        "blocks-gap-gap.svg",
        "blocks-jobs-read-randread-cpu.svg",
        "blocks-jobs-read-randread-rate-scaling.svg",
        "blocks-jobs-read-randread-rate.svg",
        "blocks-volumes-cpu.svg",
        "blocks-volumes-rate.svg",
        "blocks.html",
        "blocks.jsonl",
        "blocks.md",
    ];
    assert_eq!(files, expected.map(String::from).into());
}

#[test]
fn nothing_is_measured_for_an_unknown_name_or_a_value_that_cannot_be() {
    for (suite, flag, value, told) in [
        ("blocks", "--only", "nbdkat", "not one of"),
        ("blocks", "--volume", "1000", "whole MiB"),
        ("blocks", "--seconds", "0", "0.2"),
        ("counted", "--only", "rr-1", "not one of"),
        ("counted", "--rounds", "0", "1..=1000"),
        ("counted", "--stranger", "--json", "which nobody else uses"),
        ("kernels", "--stranger", "--json", "which nobody else uses"),
        ("kernels", "--only", "nbd", "not one of"),
        ("machines", "--only", "iperf3", "not one of"),
        ("packets", "--only", "ovs", "not one of"),
        ("packets", "--seconds", "0", "0.2"),
        ("devmem", "--only", "netcat", "not one of"),
        ("devmem", "--seconds", "0", "0.2"),
        ("devmem", "--congestion", "warp", "this kernel has"),
    ] {
        let output = memlane_bench()
            .args(["run", suite, flag, value])
            .output()
            .expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}

#[test]
fn a_run_beside_a_stranger_says_so_and_one_without_does_not() {
    for (more, with) in [(&["--stranger"][..], true), (&[], false)] {
        let dir = Dir::new();
        let run = Run::of("devmem", "recv-copy,chunks-1m", more, &dir);
        assert_eq!(run.head["stranger"], with, "{}", run.said);
        let page = std::fs::read_to_string(dir.0.join("devmem.md")).expect("devmem.md");
        let flags = [more, &["--only", "recv-copy,chunks-1m: "]].concat();
        let command = format!("run devmem {}", flags.join(" "));
        assert!(page.contains(&command), "{page}");
    }
}

#[test]
fn a_stranger_computes_on_one_cpu_while_others_are_measured() {
    let mut run = memlane_bench()
        .args(["run", "devmem", "--stranger"])
        .args(["--only", "recv-copy,chunks-1m"])
        .args(["--rounds", "3", "--seconds", "0.5"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let threads = format!("/proc/{}/task", run.id());
    // In ticks of a hundredth of a second.
    let (mut computed, mut cpus) = (0, String::new());
    while run.try_wait().expect("it is ours").is_none() {
        for thread in std::fs::read_dir(&threads).into_iter().flatten().flatten() {
            let text = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let (stat, status) = (text("stat"), text("status"));
            let Some((_, stat)) = stat.split_once("(stranger) ") else {
                continue;
            };
            let user = stat.split(' ').nth(11).and_then(|ticks| ticks.parse().ok());
            computed = computed.max(user.unwrap_or(0));
            let mut lines = status.lines();
            if let Some(list) = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:")) {
                list.trim().clone_into(&mut cpus);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(computed >= 20, "{computed} ticks");
    assert!(cpus.parse::<usize>().is_ok(), "it may use {cpus:?}");
}

/// Rows of sockets, the parts that they belong to, and what is told of them.
const SOCKETS: [(&str, &str, &[&str]); 14] = [
    ("paced", "paced-100-c1", &["p50", "p99", "cpu"]),
    ("paced", "paced-1k-c50", &["p50", "p99", "cpu"]),
    ("iperf3", "iperf3-bidir", &["throughput"]),
    ("nginx", "nginx-16m", &["throughput"]),
    ("redis", "redis-set-1m", &["rate", "p50", "p99"]),
    ("redis", "redis-get-1m", &["rate", "p50", "p99"]),
    ("pgbench", "pgbench", &["rate"]),
    ("haproxy", "haproxy", &["rate", "p50", "p99"]),
    ("netty", "netty", &["rate", "p50", "p99"]),
    ("nc", "nc", &["throughput"]),
    ("ssh", "ssh", &["throughput"]),
    ("one-cpu", "one-cpu-msg100", &["rate", "p50", "p99"]),
    ("one-cpu", "one-cpu-iperf3", &["throughput"]),
    ("one-cpu", "one-cpu-nginx-128", &["rate", "p50", "p99"]),
];

#[test]
fn a_very_short_run_of_sockets_has_every_row_and_a_ring_of_a_fixed_size() {
    if preload().is_none() {
        return eprintln!("SKIPPED: no preload library: cargo build --release -p memlane-preload");
    }
    let dir = Dir::new();
    let rows = SOCKETS.map(|(_, row, _)| row).join(",");
    let only = format!("tcp,nocopy,ring-16k,rings-stream-64k,{rows}");
    let run = Run::of("sockets", &only, &["--quick"], &dir);
    for (part, row, metrics) in SOCKETS {
        let there = without(&["tcp", "nocopy"], &run.missing(part));
        for metric in metrics {
            assert_eq!(run.systems(row, metric), there, "{row}: {}", run.said);
        }
    }
    let rings = run.systems("rings-stream-64k", "throughput");
    assert_eq!(rings, ["nocopy", "ring-16k"].into(), "{}", run.said);
    let page = std::fs::read_to_string(dir.0.join("sockets.md")).expect("sockets.md");
    assert!(page.contains("rings of fixed sizes"), "{page}");
}

const NETWORKS: [&str; 7] = [
    "tcp-cable",
    "sockmap-cable",
    "memlane-cable",
    "tcp-nat",
    "memlane-nat",
    "memlane-same",
    "memlane-region",
];

#[test]
fn a_very_short_run_of_containers_has_every_row_and_only_tcp_uses_the_cable() {
    if preload().is_none() {
        return eprintln!("SKIPPED: no preload library: cargo build --release -p memlane-preload");
    }
    let dir = Dir::new();
    let run = Run::of("containers", "msg100,short-100,rr-64k,opening", &[], &dir);
    let lacking = |part: &str| {
        let mut lacking = run.missing(part);
        // There is none behind NAT, whatever the machine has.
        assert!(lacking.remove("sockmap-nat"), "{}", run.said);
        lacking
    };
    let missing = lacking("embedded");
    for (row, metric) in [
        ("msg100", "rate"),
        ("msg100", "p50"),
        ("short-100", "rate"),
        ("rr-64k", "p50"),
    ] {
        let there = without(&NETWORKS, &missing);
        assert_eq!(run.systems(row, metric), there, "{row}: {}", run.said);
    }
    // Several times as many, unless programs sleep on after their peers have closed. Other tests may take the CPUs from
    // one of the two.
    let rate = |system| run.value("short-100", system, "rate");
    let lanes = without(&["memlane-cable", "memlane-same"], &missing);
    let mut above = lanes.iter().filter(|lane| rate(lane) > rate("tcp-cable"));
    assert!(lanes.is_empty() || above.next().is_some(), "{}", run.said);
    for system in without(
        &["memlane-cable", "memlane-nat", "memlane-region"],
        &missing,
    ) {
        let others = ["open-first", "open-64"].into_iter();
        let others = others.filter(|_| system != "memlane-region");
        for row in others.chain(["open-later"]) {
            for metric in ["p50", "agent_cpu"] {
                let told = run.value(row, system, metric);
                assert!(told > Some(0.0), "{row}, {system}: {metric}");
            }
        }
    }
    // Beside TCP's, what the handshake and the first eight exchanges have carried is nothing.
    let of = |system, metric| run.value("rr-64k", system, metric);
    for system in without(&["sockmap-cable", "memlane-cable"], &missing) {
        let tcp = of("tcp-cable", "wire_bytes").expect("bytes");
        // Its bytes that it has sent by TCP itself, with their headers, are another matter.
        let known = of(system, "tcp_bytes").unwrap_or_default() * 1.05;
        let it = of(system, "wire_bytes").expect("bytes") - known;
        assert!(it < tcp / 10.0, "{system}: {it} of {tcp}");
    }
    assert!(dir.0.join("containers.html").exists());
}

/// Systems that join two network namespaces.
const BULK: [&str; 7] = [
    "persistent",
    "alone",
    "lent",
    "map",
    "copy",
    "copier",
    "veth",
];

/// Rows of packets, and the systems of their parts.
const PACKETS: [(&str, &str, &[&str]); 6] = [
    ("table", "tx-64-b32", &["persistent", "map", "copy"]),
    ("table", "rx-65535-b1", &["persistent", "map", "copy"]),
    ("table", "rx-1496-b32-q2", &["persistent", "map", "copy"]),
    ("bulk", "tcp-tx-1", &BULK),
    ("bulk", "udp-rx", &BULK),
    (
        "memif",
        "memif-tx-64",
        &["testpmd", "to-testpmd", "from-testpmd", "memlane", "lane"],
    ),
];

#[test]
fn a_very_short_run_of_packets_has_every_row_that_was_asked_for() {
    let dir = Dir::new();
    let only = PACKETS.map(|(_, row, _)| row).join(",");
    let run = Run::of("packets", &only, &[], &dir);
    assert!(run.missing("table").is_empty(), "{}", run.said);
    for (part, row, systems) in PACKETS {
        let there = without(systems, &run.missing(part));
        let metric = if part == "bulk" { "throughput" } else { "rate" };
        assert_eq!(run.systems(row, metric), there, "{row}: {}", run.said);
        // Ends of memif never sleep, so that nobody asks.
        let costs = if part == "memif" {
            BTreeSet::new()
        } else {
            there
        };
        assert_eq!(run.systems(row, "cpu"), costs, "{row}");
    }
    for (name, part) in [
        ("packets.md", "table"),
        ("packets.jsonl", "table"),
        ("packets-frames-rate.svg", "table"),
        ("packets-frames-cpu.svg", "table"),
        ("packets-tcp-throughput.svg", "bulk"),
        ("packets-memif-rate.svg", "memif"),
    ] {
        let there = part != "bulk" || !run.missing(part).contains("veth");
        assert_eq!(dir.0.join(name).exists(), there, "{name}");
    }
}

const STREAMS: [&str; 5] = ["lane", "mapped", "staged", "recv-copy", "splice"];

#[test]
fn a_very_short_run_of_devmem_has_every_row_and_every_byte_is_copied_as_often_as_it_should_be() {
    let dir = Dir::new();
    let only = "kept-1m,chunks-4k,tokens,python";
    let run = Run::of("devmem", only, &["--python", "no-such-python"], &dir);
    let missing = run.missing("python");
    assert!(
        missing.contains("wheel") && missing.contains("rust"),
        "{}",
        run.said
    );
    for row in ["kept-1m", "chunks-4k"] {
        for metric in ["throughput", "cpu", "receiver_cpu"] {
            assert_eq!(run.systems(row, metric), STREAMS.into(), "{}", run.said);
        }
        for system in STREAMS {
            is_copied_as_it_should_be(&run, row, system);
        }
    }
    for way in ["1x1", "8x1", "128x1", "1x8", "128x8", "1x1024"] {
        assert_eq!(
            run.systems(&format!("tokens-{way}"), "token"),
            ["release"].into()
        );
    }
    for name in [
        "devmem.md",
        "devmem.jsonl",
        "devmem-stream-throughput.svg",
        "devmem-stream-receiver_cpu.svg",
    ] {
        assert!(dir.0.join(name).exists(), "{name}");
    }
}

fn is_copied_as_it_should_be(run: &Run, row: &str, system: &str) {
    let copies = ["kernel_copies", "program_copies"]
        .map(|metric| run.value(row, system, metric).expect(metric));
    match system {
        "mapped" | "splice" => assert_eq!(copies, [2.0, 0.0], "{row}, {system}"),
        "staged" | "recv-copy" => assert_eq!(copies, [2.0, 1.0], "{row}, {system}"),
        // What went past the kernel is copied once, all else twice, however much that was.
        _ => assert!(
            (copies[0] / 2.0 + copies[1] - 1.0).abs() < 0.05,
            "{copies:?}"
        ),
    }
    let ours = matches!(system, "lane" | "mapped" | "staged");
    assert_eq!(
        ours,
        run.value(row, system, "fragments") > Some(0.0),
        "{row}, {system}"
    );
}

#[test]
fn recorded_runs_are_compared_and_a_file_that_is_none_is_refused() {
    let dir = Dir::new();
    let measured = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../published/measured/blocks.jsonl"
    );
    let text = std::fs::read_to_string(measured).expect("a recorded run");
    let slower = |line: &str| {
        let mut one: Value = serde_json::from_str(line).expect("JSON");
        if one["metric"] == "rate" {
            one["value"] = (one["value"].as_f64().expect("a figure") / 1000.0).into();
        }
        format!("{one}\n")
    };
    let slower: String = text.lines().map(slower).collect();
    let write = |name: &str, text: &str| {
        let file = dir.0.join(name);
        std::fs::write(&file, text).expect("a file");
        file
    };
    let lines = |text: &str, keep: &str| -> String {
        let kept = text
            .lines()
            .enumerate()
            .filter(|(at, line)| *at == 0 || line.contains(keep));
        kept.map(|(_, line)| format!("{line}\n")).collect()
    };
    let one = "\"round\":0";
    let (old, new) = (
        write("old", &lines(&text, one)),
        write("new", &lines(&slower, one)),
    );
    let garbled = write("garbled", "\u{1}{]");
    for (files, code, told) in [
        ([&old, &old], 0, "0 better, 0 worse"),
        ([&old, &new], 1, " worse"),
        ([&new, &old], 0, " better, 0 worse"),
        ([&old, &garbled], 2, "line 1: not JSON"),
        ([&old, &dir.0], 2, "memlane-bench: "),
    ] {
        let output = memlane_bench()
            .arg("compare")
            .args(files)
            .output()
            .expect("it starts");
        let said = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(told), "{told}: {said}");
    }
}

#[test]
fn each_suite_names_the_rows_that_it_has_always_had() {
    for (suite, count, some) in [
        (
            "sockets",
            103 + 30 + 27,
            "embedded sockmap sockperf iperf3-8 iperf3-100 iperf3-bidir crowd-400 nginx-1000 nginx-close nginx-16m redis-get-c200 redis-set-1m pgbench pgbench-connect haproxy netty go-http script-go nc ssh oversubscribed-32 strangers one-cpu one-cpu-nginx-128 connections-10000 rr-4m stream-4m paced paced-10k-c50 rings ring-16k rings-iperf3-8 iceoryx2-event seqpacket ring handover-1 carried-4194304",
        ),
        (
            "containers",
            9 + 8 + 27 - 2,
            "opening tcp-cable sockmap-nat memlane-same memlane-region nginx-16 redis-set-c1 short-100 rr-1m stream-64 open-first",
        ),
        (
            "machines",
            4 + 4 + 4,
            "embedded tcp-guests memlane-host msg100 stream-64k redis-get-c50 nginx-16",
        ),
        (
            "counted",
            6 + 3 + 14,
            "bulk smc nocopy sockperf-pp nginx-16 redis-set-c50 iperf3-p4",
        ),
        (
            "kernels",
            4 + 6 + 3 + 12 + 4 + 1 + 9,
            "volumes sockets rnbd nvme-rdma memlane-ublk smc randwrite-x16 two-seqread gap-cut-2 iperf3-p4",
        ),
        (
            "blocks",
            3 + 2 + 24 + 10 + 18 + 4,
            "fio-tcp api-local api-region nbd-direct nbd-lent fio-lent fuse fuse-lent nbd-server-tcp qsd-fuse qsd-relay randwrite-qd32-jobs8 seqread randwrite-x64 gap-cut-1",
        ),
        (
            "packets",
            3 + 12 + 42,
            "persistent alone lent copier veth from-testpmd rx-65535-b32-q4 tcp-tx-3 udp-rx memif-rx-1496",
        ),
        (
            "devmem",
            3 + 10 + 6,
            "lane recv-copy recv-into-fresh kept-32m writes-4k tokens tensor chunks-1m",
        ),
    ] {
        let output = memlane_bench()
            .args(["run", suite, "--only", "no-such-row"])
            .output()
            .expect("it starts");
        let said = stderr(&output);
        let (_, names) = said.split_once("not one of ").expect("the names");
        let names: Vec<&str> = names.trim().split(", ").collect();
        assert_eq!(names.len(), count, "{suite}: {names:?}");
        for name in some.split(' ') {
            assert!(names.contains(&name), "{suite}: {name}");
        }
    }
}
