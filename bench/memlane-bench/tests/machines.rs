//! Programs in two emulated machines, and on their host: a very short run.

mod common;

use common::{memlane_bench, preload, stderr, stdout};
use serde_json::Value;

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn each_row_is_measured_in_each_column_and_the_lane_carries_bytes_in_both_of_memlanes() {
    let Some(library) = preload() else {
        return eprintln!("SKIPPED: no preload library: cargo build --release -p memlane-preload");
    };
    let output = memlane_bench()
        .env("MEMLANE_PRELOAD", library)
        .args([
            "run",
            "machines",
            "--json",
            "--rounds",
            "1",
            "--seconds",
            "0.5",
        ])
        .output()
        .expect("it starts");
    let said = stderr(&output);
    if output.status.code() == Some(3) || said.contains("!! NOT MEASURED") {
        return eprintln!("SKIPPED: {}", said.lines().last().unwrap_or_default());
    }
    let text = stdout(&output);
    let lines = text.lines().skip(1);
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let sum = |row: &str, system: &str, metric: &str| -> f64 {
        let of = lines.iter();
        let of = of.filter(|one| {
            (&one["row"], &one["system"], &one["metric"])
                == (&row.into(), &system.into(), &metric.into())
        });
        of.filter_map(|one| one["value"].as_f64()).sum()
    };
    let rows = [
        ("msg100", "rate"),
        ("stream-64k", "throughput"),
        ("redis-get-c50", "rate"),
        ("nginx-16", "rate"),
    ];
    for (tcp, lane) in [
        ("tcp-guests", "memlane-guests"),
        ("tcp-host", "memlane-host"),
    ] {
        let mut carried = 0.0;
        for (row, metric) in rows {
            for system in [tcp, lane] {
                assert!(
                    sum(row, system, metric) > 0.0,
                    "{row} {system}: {said}{text}"
                );
            }
            assert_eq!(sum(row, tcp, "ring_bytes"), 0.0, "{row}");
            carried += sum(row, lane, "ring_bytes");
        }
        assert!(carried > 0.0, "{lane}: {text}");
    }
}
