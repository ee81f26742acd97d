//! The JSON of the volume verbs, checked by shape, and their Prometheus pages, checked by grammar.
//!
//! A document may gain fields. A field in `shapes/` may neither disappear nor change its type unless the number in
//! `schema` changes. `MEMLANE_WRITE_SHAPES=1` rewrites the files.

use memlane_system::blocks::alone::{Alone, Mapping};
use memlane_system::documents::{self, faults, lost, page, shape_of};
use memlane_system::harness::free_port;
use serde_json::Value;

/// A server with one session that has a volume, both with pages for Prometheus.
struct Scene {
    mapping: Mapping,
    alone: Alone,
    metrics: [String; 2],
}

fn scene(test: &str) -> Scene {
    let mut alone = Alone::new(test);
    alone.volume("disk", 8 << 20);
    let metrics = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    alone.serve(&["--metrics", &metrics[0]]);
    let mapping = alone.nbd("one", &alone.tcp(), "disk", &["--metrics", &metrics[1]]);
    mapping.wait_for_paths(1);
    Scene {
        mapping,
        alone,
        metrics,
    }
}

/// Checks that a verb's document has this schema, and every field that `shapes/NAME` lists.
fn keeps_its_shape(scene: &Scene, name: &str, args: &[&str], schema: &str) {
    let said = scene.alone.memlane(args);
    assert!(said.status.success(), "{args:?}: {said:?}");
    documents::keeps_its_shape(name, &said.stdout, schema);
}

#[test]
fn documents_keep_their_fields_as_long_as_they_keep_their_schema() {
    let scene = scene("documents");
    let session = scene.mapping.session().to_owned();
    let (other, to) = (format!("{session}-json"), scene.alone.tcp());
    let frontend = format!(
        "nbd:unix:{}",
        scene.alone.root().join("json.sock").display()
    );
    let map = [
        "map",
        "--json",
        "--session",
        &other,
        "--access",
        "ro",
        "--as",
        &frontend,
        &to,
        "disk",
    ];
    let all: [(&str, &[&str], &str); 6] = [
        ("vol-ls", &["vol", "ls", "--json"], "memlane.vol/1"),
        (
            "vol-show",
            &["vol", "show", "disk", "--session", &session, "--json"],
            "memlane.volume/1",
        ),
        (
            "session-ls",
            &["session", "ls", "--json"],
            "memlane.sessions/1",
        ),
        (
            "session-show",
            &["session", "show", &session, "--json"],
            "memlane.session/1",
        ),
        (
            "session-stats",
            &["session", "stats", &session, "--json"],
            "memlane.session-stats/1",
        ),
        ("map", &map, "memlane.map/1"),
    ];
    for (name, args, schema) in all {
        keeps_its_shape(&scene, name, args, schema);
    }
    let unmapped = scene
        .alone
        .memlane(&["vol", "unmap", "--session", &other, "disk"]);
    assert!(unmapped.status.success(), "{unmapped:?}");
}

#[test]
fn a_server_says_where_it_listens() {
    let root = memlane_system::harness::TempDir::new("serve-json");
    let name = format!("serve-json-{}", std::process::id());
    let local = format!("local:{name}");
    let mut server = std::process::Command::new(memlane_system::blocks::memlane())
        .args(["serve", "--json", "--name", &name, "--listen", &local])
        .args(["--listen", "tcp://127.0.0.1:0", "--root"])
        .arg(root.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("a server");
    let said = server.stdout.take().expect("its output");
    let mut said = serde_json::Deserializer::from_reader(said).into_iter::<Value>();
    let hello = said.next().expect("a document").expect("JSON");
    let _ = (server.kill(), server.wait());
    assert_eq!(hello["schema"], "memlane.serve/1");
    assert_eq!(hello["name"], name.as_str());
    assert_eq!(hello["addresses"][0], local.as_str());
    let tcp = hello["addresses"][1].as_str().expect("text");
    let port = tcp.strip_prefix("tcp://127.0.0.1:").expect("an address");
    assert_ne!(port.parse::<u16>().expect("a port"), 0);
}

#[test]
fn a_field_that_is_gone_or_of_another_kind_would_be_found_out() {
    let parse = |text| shape_of(&serde_json::from_str(text).expect("a document"));
    let kept = parse(r#"{"schema": "a/1", "volumes": [{"size": 1, "error": null}]}"#);
    assert!(kept.contains(".volumes[].size number"), "{kept:?}");
    let more = parse(
        r#"{"schema": "b", "more": 1, "volumes": [{"size": 2, "error": null}, {"size": 3}]}"#,
    );
    assert!(lost(&kept, &more).is_empty());
    let less = parse(r#"{"schema": "a/1", "volumes": [{"size": "1"}]}"#);
    assert_eq!(
        lost(&kept, &less),
        [".volumes[].error null", ".volumes[].size number"]
    );
}

#[test]
fn an_error_is_a_document_too_and_standard_output_stays_empty() {
    let scene = scene("documents-errors");
    for args in [
        ["session", "show", "nobody-is-called-so", "--json"],
        ["vol", "show", "nothing-is-called-so", "--json"],
        ["session", "stats", "nobody-is-called-so", "--json"],
    ] {
        let said = scene.alone.memlane(&args);
        assert!(!said.status.success() && said.stdout.is_empty(), "{said:?}");
        // Warnings may come first: other sessions of this user are looked at, too.
        let text = String::from_utf8_lossy(&said.stderr);
        let document = text.find('{').map_or("", |at| &text[at..]);
        let error: Value = serde_json::from_str(document).expect("a document");
        assert_eq!(error["schema"], "memlane.error/1");
        let code = said.status.code().map(i64::from);
        assert_eq!(error["exit_code"].as_i64(), code);
        let why = error["message"].as_str().unwrap_or_default();
        assert!(why.contains(args[2]), "{why}");
    }
}

// ---- Prometheus -------------------------------------------------------------

#[test]
fn pages_for_prometheus_are_well_formed_and_show_sessions_paths_and_volumes() {
    let scene = scene("documents-metrics");
    let shown = [
        [
            "memlane_server_requests_total",
            "memlane_server_paths",
            "memlane_server_volume_size_bytes",
        ],
        [
            "memlane_path_up",
            "memlane_path_bytes_total",
            "memlane_volume_ok",
        ],
    ];
    for (at, names) in scene.metrics.iter().zip(shown) {
        let (head, body) = page(at, "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        assert!(
            head.contains("Content-Type: application/openmetrics-text; version=1.0.0"),
            "{head}"
        );
        let wrong = faults(&body);
        assert!(wrong.is_empty(), "{wrong:?}\n{body}");
        for name in names {
            assert!(
                body.lines()
                    .any(|line| line.starts_with(&format!("{name}{{"))),
                "{name}: {body}"
            );
        }
        assert!(body.contains(scene.mapping.session()), "{body}");
        assert!(page(at, "/").0.starts_with("HTTP/1.1 404"));
    }
}

#[test]
fn a_page_that_is_not_well_formed_would_be_found_out() {
    let good = "# HELP a Some.\n# TYPE a counter\na_total{x=\"1 \\\" }\",y=\"\"} 3\n# EOF\n";
    assert_eq!(faults(good), [""; 0]);
    for (from, to) in [
        ("# EOF\n", ""),
        ("a_total{", "a{"),
        ("# TYPE a counter\n", ""),
        (" 3\n", " three\n"),
        ("\"\"}", "\"\"} 3\na_total{x=\"1 \\\" }\",y=\"\"}"),
        ("y=\"\"", "y=\""),
        ("x=", "1x="),
        ("# HELP a Some.", "# HELP a"),
        ("counter", "counters"),
        ("\\\"", "\\q"),
    ] {
        assert!(good.contains(from), "{from}");
        assert_ne!(
            faults(&good.replacen(from, to, 1)),
            [""; 0],
            "{from} → {to}"
        );
    }
}
