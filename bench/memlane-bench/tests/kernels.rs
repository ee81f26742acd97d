//! Volumes beside mainline's RNBD: a very short run in a guest.

mod common;

use common::{memlane_bench, preload, stderr, stdout};
use serde_json::Value;

#[test]
#[ignore = "fetches a kernel, needs mainline's modules: ./dev test-kernels"]
fn mainlines_volume_and_ours_are_measured_beside_each_other_and_a_busy_machine_is_seen() {
    let Some(library) = preload() else {
        return eprintln!("SKIPPED: no preload library: cargo build --release -p memlane-preload");
    };
    let systems = ["rnbd", "memlane-ublk"];
    let output = memlane_bench()
        .env("MEMLANE_PRELOAD", library)
        .args(["run", "kernels", "--json"])
        .args(["--only", "randread-qd32,two-randwrite-qd32,gap-cut-2"])
        .args(["--only", &systems.join(",")])
        .output()
        .expect("it starts");
    let said = stderr(&output);
    if output.status.code() == Some(3) {
        return eprintln!("SKIPPED: {}", said.lines().last().unwrap_or_default());
    }
    assert!(output.status.success(), "{said}");
    let text = stdout(&output);
    let lines: Vec<Value> = text
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let value = |row: &str, system: &str, metric: &str| -> f64 {
        let found = lines.iter().find(|one| {
            (&one["row"], &one["system"], &one["metric"])
                == (&row.into(), &system.into(), &metric.into())
        });
        let found = found.unwrap_or_else(|| panic!("no {metric} of {row} {system}: {text}"));
        found["value"].as_f64().expect("a figure")
    };
    for system in systems {
        for row in ["randread-qd32", "two-randwrite-qd32"] {
            let busy = value(row, system, "rate") * value(row, system, "cpu") / 1e6;
            // All of it is on one CPU, and 32 requests are under way.
            assert!((0.8..=1.001).contains(&busy), "{row} {system}: {busy}");
        }
        // A path that is silent must be noticed first.
        let gap = value("gap-cut-2", system, "gap");
        assert!((10.0..60_000.0).contains(&gap), "{system}: {gap} ms");
    }
}
