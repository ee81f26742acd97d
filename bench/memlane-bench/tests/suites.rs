//! `memlane-bench run blocks`, `packets` and `devmem`, very short: every row that was asked for is there, or it is said why not.

mod common;

use common::{Dir, memlane_bench, stderr, stdout};
use std::collections::BTreeSet;

const SYSTEMS: [&str; 5] = ["api-local", "api-tcp", "fio-local", "nbd-local", "nbdkit"];
const ROWS: [&str; 2] = ["randread-qd1", "seqwrite"];
/// Of the sweep.
const MANY: [&str; 2] = ["randread-x1", "randread-x8"];
const GAP: &str = "gap-reset-2";

fn names(document: &serde_json::Value, list: &str, field: &str) -> BTreeSet<String> {
    let list = document[list].as_array().expect("a list").iter();
    let names = list.map(|one| one[field].as_str().expect("a name").to_owned());
    names.collect()
}

#[test]
fn a_very_short_run_has_every_row_that_was_asked_for() {
    let dir = Dir::new();
    let only = [&SYSTEMS[..], &ROWS, &MANY, &[GAP]].concat().join(",");
    let output = memlane_bench()
        .args(["run", "blocks", "--rounds", "1", "--seconds", "0.2"])
        .args(["--volume", "16m", "--json", "--only", &only, "--out"])
        .arg(&dir.0)
        .output()
        .expect("it starts");
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let text = stdout(&output);
    let document: serde_json::Value = serde_json::from_str(&text).expect("a document");
    assert_eq!(document["schema"], "memlane.bench.blocks/2");
    assert_eq!(document["failed"], serde_json::json!([]), "{said}");

    let missing = names(&document, "missing", "system");
    for absent in &missing {
        // The API by our own generator takes nothing that could be missing.
        assert!(!absent.starts_with("api-"), "{said}");
        assert!(
            said.contains(&format!("!! NOT MEASURED: {absent}")),
            "{said}"
        );
        eprintln!("SKIPPED {absent}: not installed, or not built");
    }
    let there: BTreeSet<String> = SYSTEMS
        .iter()
        .map(|system| (*system).to_owned())
        .filter(|system| !missing.contains(system))
        .collect();

    for row in ROWS {
        let lines = document["rows"].as_array().expect("rows").iter();
        let lines = lines.filter(|line| line["row"] == row);
        let seen = lines.map(|line| {
            let rate = line["per_second"]["median"].as_f64();
            assert!(rate > Some(0.0), "{line}");
            line["system"].as_str().expect("a name").to_owned()
        });
        assert_eq!(seen.collect::<BTreeSet<_>>(), there, "{row}");
    }
    assert_eq!(names(&document, "jobs", "system"), there);
    for sweep in document["jobs"].as_array().expect("jobs") {
        let points = sweep["points"].as_array().expect("points").iter();
        let jobs: Vec<_> = points.map(|point| point["jobs"].as_u64()).collect();
        assert_eq!(jobs, [Some(1), Some(8)], "{sweep}");
    }
    let gaps = document["gaps"].as_array().expect("gaps");
    assert_eq!(gaps.len(), 1);
    // Not how long: this machine may be busy. That a path did die, the bench has made sure of.
    assert!(
        gaps[0]["gap_ms"]["median"].as_f64() > Some(0.0),
        "{}",
        gaps[0]
    );

    let files = std::fs::read_dir(&dir.0).expect("the folder").flatten();
    let files: BTreeSet<String> = files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    let expected = [
        "blocks-cpu.svg",
        "blocks-gap.svg",
        "blocks-jobs-randread-cpu.svg",
        "blocks-jobs-randread-scaling.svg",
        "blocks-jobs-randread.svg",
        "blocks.json",
        "blocks.md",
        "blocks.svg",
    ];
    assert_eq!(files, expected.map(String::from).into());
}

#[test]
fn nothing_is_measured_for_an_unknown_name_or_a_volume_of_half_a_block() {
    for (flag, value, told) in [
        ("--only", "nbdkat", "not one of"),
        ("--volume", "1000", "whole MiB"),
        ("--seconds", "0", "0.2"),
    ] {
        let output = memlane_bench()
            .args(["run", "blocks", flag, value])
            .output()
            .expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}

/// Rows of packets, and the systems of their parts.
const PACKETS: [(&str, &str, &[&str]); 6] = [
    ("table", "tx-64-b32", &["persistent", "map", "copy"]),
    ("table", "rx-65535-b1", &["persistent", "map", "copy"]),
    ("table", "rx-1496-b32-q2", &["persistent", "map", "copy"]),
    (
        "bulk",
        "tcp-tx-1",
        &["persistent", "map", "copy", "copier", "veth"],
    ),
    (
        "bulk",
        "udp-rx",
        &["persistent", "map", "copy", "copier", "veth"],
    ),
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
    let output = memlane_bench()
        .args(["run", "packets", "--rounds", "1", "--seconds", "0.2"])
        .args(["--json", "--only", &only, "--out"])
        .arg(&dir.0)
        .output()
        .expect("it starts");
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let text = stdout(&output);
    let document: serde_json::Value = serde_json::from_str(&text).expect("a document");
    assert_eq!(document["schema"], "memlane.bench.packets/1");
    assert_eq!(document["failed"], serde_json::json!([]), "{said}");

    let missing = document["missing"].as_array().expect("missing").iter();
    let missing: BTreeSet<(&str, &str)> = missing
        .map(|one| {
            let name = |field: &str| one[field].as_str().expect("a name");
            (name("part"), name("system"))
        })
        .collect();
    for &(part, system) in &missing {
        assert_ne!(
            part, "table",
            "it takes nothing that could be missing: {said}"
        );
        let told = format!("!! NOT MEASURED: {part}, {system}: ");
        assert!(said.contains(&told), "{said}");
        eprintln!("SKIPPED {part}, {system}: not root, or not installed");
    }

    let rows = document["rows"].as_array().expect("rows");
    for (part, row, systems) in PACKETS {
        let expected = systems.iter().copied();
        let expected: BTreeSet<&str> = expected
            .filter(|system| !missing.contains(&(part, *system)))
            .collect();
        let line = rows.iter().find(|line| line["row"] == row);
        let cells = line.map(|line| line["systems"].as_array().expect("systems").iter());
        let seen = cells.into_iter().flatten().map(|cell| {
            let (value, cpu) = (&cell["value"]["median"], &cell["cpu"]["median"]);
            assert!(value.as_f64() > Some(0.0), "{row}: {cell}");
            // Ends of memif never sleep, so that nobody asks.
            assert_eq!(part == "memif", cpu.is_null(), "{row}: {cell}");
            assert!(cpu.as_f64().is_none_or(|cpu| cpu > 0.0), "{row}: {cell}");
            cell["system"].as_str().expect("a name")
        });
        assert_eq!(seen.collect::<BTreeSet<_>>(), expected, "{row}: {said}");
    }
    for (name, needs) in [
        ("packets.md", None),
        ("packets.json", None),
        ("packets.svg", None),
        ("packets-cpu.svg", None),
        ("packets-bulk.svg", Some(("bulk", "veth"))),
        ("packets-memif.svg", None),
    ] {
        let there = needs.is_none_or(|system| !missing.contains(&system));
        assert_eq!(dir.0.join(name).exists(), there, "{name}");
    }
}

#[test]
fn no_packets_are_measured_for_an_unknown_name_or_no_time() {
    for (flag, value, told) in [("--only", "ovs", "not one of"), ("--seconds", "0", "0.2")] {
        let output = memlane_bench()
            .args(["run", "packets", flag, value])
            .output()
            .expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}

const STREAMS: [&str; 5] = ["lane", "mapped", "staged", "recv-copy", "splice"];

#[test]
fn a_very_short_run_of_devmem_has_every_row_and_every_byte_is_copied_as_often_as_it_should_be() {
    let dir = Dir::new();
    let output = memlane_bench()
        .args(["run", "devmem", "--rounds", "1", "--seconds", "0.2"])
        .args(["--only", "kept-1m,chunks-4k,tokens,python"])
        .args(["--json", "--python", "no-such-python", "--out"])
        .arg(&dir.0)
        .output()
        .expect("it starts");
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let text = stdout(&output);
    let document: serde_json::Value = serde_json::from_str(&text).expect("a document");
    assert_eq!(document["schema"], "memlane.bench.devmem/1");
    assert_eq!(document["failed"], serde_json::json!([]), "{said}");
    let missing = names(&document, "missing", "system");
    assert!(
        missing.contains("wheel") && missing.contains("rust"),
        "{said}"
    );
    assert!(said.contains("!! NOT MEASURED: python, rust: "), "{said}");

    let rows = document["rows"].as_array().expect("rows");
    let seen: Vec<&str> = rows.iter().filter_map(|row| row["row"].as_str()).collect();
    assert_eq!(seen, ["kept-1m", "chunks-4k"]);
    for row in rows {
        let cells = row["systems"].as_array().expect("systems");
        let ids: Vec<&str> = cells
            .iter()
            .filter_map(|cell| cell["system"].as_str())
            .collect();
        assert_eq!(ids, STREAMS, "{said}");
        cells.iter().for_each(is_as_it_should_be);
    }
    let tokens = document["tokens"].as_array().expect("tokens");
    assert_eq!(tokens.len(), 6);
    for line in tokens {
        assert!(
            line["ns_per_token"]["median"].as_f64() > Some(0.0),
            "{line}"
        );
    }
    for name in ["devmem.md", "devmem.json", "devmem.svg", "devmem-cpu.svg"] {
        assert!(dir.0.join(name).exists(), "{name}");
    }
}

/// One system's figures of a stream.
fn is_as_it_should_be(cell: &serde_json::Value) {
    let median = |what: &str| cell[what]["median"].as_f64().expect(what);
    assert!(median("bytes_per_second") > 0.0, "{cell}");
    assert!(median("cpu_s_per_gb") > 0.0, "{cell}");
    let copies = [median("copied_by_kernel"), median("copied_by_program")];
    match cell["system"].as_str() {
        Some("mapped" | "splice") => assert_eq!(copies, [2.0, 0.0], "{cell}"),
        Some("staged" | "recv-copy") => assert_eq!(copies, [2.0, 1.0], "{cell}"),
        // What went past the kernel is copied once, all else twice, however much that was.
        _ => assert!((copies[0] / 2.0 + copies[1] - 1.0).abs() < 0.05, "{cell}"),
    }
    let some = cell["fragments"]["count"].as_u64() > Some(0);
    assert_eq!(cell["ours"] == true, some, "{cell}");
}

#[test]
fn no_device_memory_is_measured_for_an_unknown_name_or_no_time() {
    for (flag, value, told) in [
        ("--only", "netcat", "not one of"),
        ("--seconds", "0", "0.2"),
        ("--congestion", "warp", "this kernel has"),
    ] {
        let output = memlane_bench()
            .args(["run", "devmem", flag, value])
            .output()
            .expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}
