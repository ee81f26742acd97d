//! The counted clock: a very short run in a guest, twice.

mod common;

use common::{memlane_bench, preload, stderr, stdout};
use serde_json::Value;

/// How far two rounds may be from each other.
const REPEATS_WITHIN: f64 = 0.01;

#[test]
#[ignore = "fetches a kernel: ./dev test-kernels"]
fn on_the_counted_clock_two_rounds_are_the_same_and_memlane_is_ahead_of_tcp() {
    let Some(library) = preload() else {
        return eprintln!("SKIPPED: no preload library: cargo build --release -p memlane-preload");
    };
    let output = memlane_bench()
        .env("MEMLANE_PRELOAD", library)
        .args(["run", "counted", "--json", "--rounds", "2"])
        .args(["--only", "sockperf-pp,tcp,nocopy"])
        .output()
        .expect("it starts");
    let said = stderr(&output);
    if output.status.code() == Some(3) || said.contains("!! NOT MEASURED") {
        return eprintln!("SKIPPED: {}", said.lines().last().unwrap_or_default());
    }
    assert!(output.status.success(), "{said}");
    let text = stdout(&output);
    let lines = text.lines().skip(1);
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let p50 = |system: &str| -> Vec<f64> {
        let of = lines.iter();
        let of = of.filter(|one| one["system"] == system && one["metric"] == "p50");
        of.map(|one| one["value"].as_f64().expect("a figure"))
            .collect()
    };
    let [tcp, lane] = ["tcp", "nocopy"].map(p50);
    for rounds in [&tcp, &lane] {
        assert_eq!(rounds.len(), 2, "{text}");
        assert!(
            (rounds[0] / rounds[1] - 1.0).abs() < REPEATS_WITHIN,
            "{rounds:?}"
        );
    }
    assert!(lane[0] < tcp[0] * 0.67, "{lane:?} against {tcp:?}");
    let by_memory = lines.iter().find(|one| one["metric"] == "ring_bytes");
    assert!(
        by_memory.is_some_and(|one| one["value"].as_f64() > Some(0.0)),
        "{text}"
    );
}
