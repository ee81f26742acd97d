//! What the verbs of volumes print with `--json`, by shape, and the pages for Prometheus, by their grammar.
//!
//! A document of a schema may gain fields; none that is in `shapes/` may vanish or become something else without
//! another number in `schema`. `MEMLANE_WRITE_SHAPES=1` writes the files anew.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use memlane_system::blocks::alone::{Alone, Mapping};
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

/// `.volumes[].size number`, one line for each leaf.
fn shape(value: &Value, at: &str, into: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(all) => {
            for one in all {
                shape(one, &format!("{at}[]"), into);
            }
            "list"
        }
        Value::Object(fields) => {
            for (name, one) in fields {
                shape(one, &format!("{at}.{name}"), into);
            }
            "object"
        }
    };
    into.insert(format!("{} {kind}", if at.is_empty() { "." } else { at }));
}

fn shape_of(value: &Value) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    shape(value, "", &mut lines);
    lines
}

/// Lines of `kept` that `now` has not.
fn lost(kept: &BTreeSet<String>, now: &BTreeSet<String>) -> Vec<String> {
    kept.difference(now).cloned().collect()
}

/// The document that a verb prints has what `shapes/NAME` lists, and the schema that is told.
fn keeps_its_shape(scene: &Scene, name: &str, args: &[&str], schema: &str) {
    let said = scene.alone.memlane(args);
    assert!(said.status.success(), "{args:?}: {said:?}");
    let document: Value = serde_json::from_slice(&said.stdout).expect("one document");
    assert_eq!(document["schema"], schema, "{args:?}");
    let now = shape_of(&document);
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/shapes")
        .join(name);
    if std::env::var_os("MEMLANE_WRITE_SHAPES").is_some() {
        let text: Vec<String> = now.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&file, text.concat()).expect("written");
    }
    let kept = std::fs::read_to_string(&file).expect("the shape that is kept");
    let kept = kept.lines().map(str::to_owned).collect();
    let lost = lost(&kept, &now);
    assert!(
        lost.is_empty(),
        "{args:?} lost {lost:?} of {}: {document:#}",
        file.display()
    );
}

#[test]
fn documents_keep_their_fields_as_long_as_they_keep_their_schema() {
    let scene = scene("documents");
    let session = scene.mapping.session().to_owned();
    let (other, to) = (format!("{session}-json"), scene.alone.tcp());
    let face = format!(
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
        &face,
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

fn page(at: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(at).expect("the metrics");
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a limit");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("asked");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("answered");
    let (head, body) = said.split_once("\r\n\r\n").expect("a head and a body");
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    assert_eq!(length, Some(body.len().to_string().as_str()), "{head}");
    (head.to_owned(), body.to_owned())
}

/// What is wrong with a page of OpenMetrics 1.0, as far as counters and gauges go: `# HELP`, `# TYPE` before a
/// family's samples, families in one piece, no sample twice, counters with `_total`, `# EOF` at the end.
fn faults(page: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mut kinds, mut seen, mut current) = (BTreeMap::new(), BTreeSet::new(), String::new());
    let Some(lines) = page.strip_suffix("# EOF\n") else {
        return vec!["no # EOF at the end".into()];
    };
    for line in lines.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            if !["counter", "gauge"].contains(&kind)
                || kinds.insert(name.to_owned(), kind.to_owned()).is_some()
            {
                wrong.push(format!("type: {line}"));
            }
            name.clone_into(&mut current);
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            if help.is_empty() || !is_name(name) {
                wrong.push(format!("help: {line}"));
            }
        } else if let Some(why) = sample(line, &current, &kinds) {
            wrong.push(format!("{why}: {line}"));
        } else if !seen.insert(line.rsplit_once(' ').map(|(series, _)| series.to_owned())) {
            wrong.push(format!("twice: {line}"));
        }
    }
    if seen.is_empty() {
        wrong.push("no samples".into());
    }
    wrong
}

fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(letter) && text.chars().all(|c| letter(c) || c.is_ascii_digit())
}

/// What is wrong with a line `name{label="value",…} 1`.
fn sample(line: &str, family: &str, kinds: &BTreeMap<String, String>) -> Option<&'static str> {
    let Some((series, value)) = line.rsplit_once(' ') else {
        return Some("no value");
    };
    if value.parse::<f64>().is_err() {
        return Some("no number");
    }
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let expected = match kinds.get(family).map(String::as_str) {
        Some("counter") => format!("{family}_total"),
        Some(_) => family.to_owned(),
        None => return Some("before its type"),
    };
    if name != expected {
        return Some("of another family");
    }
    let Some(mut rest) = labels.strip_suffix('}') else {
        return Some("labels without an end");
    };
    while !rest.is_empty() {
        let Some((label, after)) = rest.split_once("=\"") else {
            return Some("a label without a value");
        };
        let Some(after) = quoted(after) else {
            return Some("a value without an end");
        };
        if !is_name(label) {
            return Some("a label's name");
        }
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    None
}

/// What follows a quoted value; `\\`, `\"` and `\n` are the only escapes.
fn quoted(text: &str) -> Option<&str> {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some(&text[at + 1..]),
            '\\' if !matches!(chars.next(), Some((_, '\\' | '"' | 'n'))) => return None,
            _ => {}
        }
    }
    None
}

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
