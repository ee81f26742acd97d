//! `packaging/kubernetes/grafana.json`: each metric that it shows is one that memlane has, and Prometheus understands each
//! query.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use memlane_system::blocks::{has, must, skip};
use memlane_system::harness::TempDir;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The queries of all panels.
fn queries() -> Vec<String> {
    let file = root().join("packaging/kubernetes/grafana.json");
    let text = std::fs::read_to_string(file).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array());
    let queries = targets
        .flatten()
        .map(|target| target["expr"].as_str().expect("a query").to_owned());
    queries.collect()
}

/// Names of metrics in a query.
fn metrics(query: &str) -> Vec<&str> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("memlane_")).collect()
}

/// Texts in quotes in the sources of programs, among them the names of metrics, without what Prometheus puts behind them.
fn quoted(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            quoted(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            found.extend(text.split('"').map(str::to_owned));
        }
    }
}

fn is_known(metric: &str, quoted: &BTreeSet<String>) -> bool {
    let name = ["_total", "_bucket"]
        .iter()
        .find_map(|end| metric.strip_suffix(end))
        .unwrap_or(metric);
    // A unit is written with the name, or beside it.
    let names = [name, name.strip_suffix("_seconds").unwrap_or(name)];
    // A registry puts its own name before each of its metrics.
    names.iter().any(|name| {
        let mut parts = name.match_indices('_').map(|(at, _)| name.split_at(at));
        parts.any(|(registry, rest)| quoted.contains(registry) && quoted.contains(&rest[1..]))
    })
}

#[test]
fn each_metric_of_the_dashboard_is_one_of_memlanes() {
    let mut found = BTreeSet::new();
    quoted(&root().join("apps"), &mut found);
    let queries = queries();
    let all: BTreeSet<&str> = queries.iter().flat_map(|query| metrics(query)).collect();
    assert!(all.len() > 20, "{all:?}");
    let unknown: Vec<&&str> = all.iter().filter(|m| !is_known(m, &found)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert!(!is_known("memlane_socket_never_counted_total", &found));
}

#[test]
fn prometheus_understands_each_query_of_the_dashboard() {
    if !has("promtool") {
        return skip("dashboard", "no promtool: ./dev install-tools");
    }
    // What Grafana fills in.
    let filled = |query: &str| {
        query
            .replace("$__rate_interval", "5m")
            .replace("$__range", "1h")
            .replace("$namespace", ".*")
            .replace("$pod", ".*")
    };
    let rule = |(n, query): (usize, &String)| json!({"record": format!("query:{n}"), "expr": filled(query)});
    let rules: Vec<Value> = queries().iter().enumerate().map(rule).collect();
    let dir = TempDir::new("dashboard");
    let file = dir.path().join("rules.json");
    let groups = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    std::fs::write(&file, groups.to_string()).expect("written");
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "rules"]).arg(&file);
    let said = must(promtool);
    assert!(said.contains("SUCCESS"), "{said}");
}
