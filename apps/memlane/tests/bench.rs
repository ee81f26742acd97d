//! `memlane bench blocks`, very short: every row that was asked for is there, or it is said why not.

mod common;

use common::{Dir, memlane, stderr, stdout};
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
    let output = memlane()
        .args(["bench", "blocks", "--rounds", "1", "--seconds", "0.2"])
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
        let output = memlane()
            .args(["bench", "blocks", flag, value])
            .output()
            .expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}
