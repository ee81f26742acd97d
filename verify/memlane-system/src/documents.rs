//! Checks JSON documents by shape, and Prometheus pages by grammar; reads commands in guides.
//!
//! A document may gain fields. A field in `tests/shapes/` may neither disappear nor change its type unless the number
//! in `schema` changes. `MEMLANE_WRITE_SHAPES=1` rewrites the files.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

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

/// A document's shape.
pub fn shape_of(value: &Value) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    shape(value, "", &mut lines);
    lines
}

/// Lines of `kept` that `now` has not.
pub fn lost(kept: &BTreeSet<String>, now: &BTreeSet<String>) -> Vec<String> {
    kept.difference(now).cloned().collect()
}

/// Checks that a document has this schema, and every field that `tests/shapes/NAME` lists.
///
/// # Panics
/// If it has not.
pub fn keeps_its_shape(name: &str, document: &[u8], schema: &str) {
    let document: Value = serde_json::from_slice(document).expect("one document");
    assert_eq!(document["schema"], schema, "{name}");
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
        "{name} lost {lost:?} of {}: {document:#}",
        file.display()
    );
}

// ---- Prometheus -------------------------------------------------------------

/// What a page for Prometheus is answered with: head, body.
///
/// # Panics
/// If it is not answered as HTTP.
pub fn page(at: &str, path: &str) -> (String, String) {
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
pub fn faults(page: &str) -> Vec<String> {
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

// ---- Guides -----------------------------------------------------------------

/// A block of code in a guide.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// The heading above it, without its marks.
    pub section: String,
    /// Its language; empty, if it has commands for a shell.
    pub language: String,
    /// Its lines.
    pub text: String,
}

/// The blocks of code of a guide, in its order.
pub fn blocks(guide: &str) -> Vec<Block> {
    let (mut section, mut found) = (String::new(), Vec::new());
    let mut lines = guide.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inside = lines.by_ref().take_while(|line| *line != "```");
            found.push(Block {
                section: section.clone(),
                language: language.to_owned(),
                text: inside.map(|line| format!("{line}\n")).collect(),
            });
        } else if line.starts_with('#') {
            section = line.trim_start_matches(['#', ' ']).to_owned();
        }
    }
    found
}
