//! For tests: which fields a document has, and which docs/guides/bench.md says that it has; what a text and a picture
//! consist of.

use std::collections::BTreeSet;

use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/guides/bench.md");

/// The fields that the page names for `bench WHAT --json`.
///
/// # Panics
/// If it has no part about it, or one about another schema.
pub(crate) fn documented(what: &str, schema: &str) -> BTreeSet<String> {
    let head = format!("## The document of `{what}`");
    let (_, part) = PAGE.split_once(&head).expect("a part of the page");
    let part = part.split("\n## ").next().unwrap_or(part);
    assert!(part.contains(schema), "{schema}");
    let mut documented = BTreeSet::new();
    for line in part.lines().filter(|line| line.starts_with("| `")) {
        let cell = line.split('|').nth(1).unwrap_or_default();
        let names = cell.split('`').skip(1).step_by(2);
        documented.extend(names.map(str::to_owned));
    }
    documented
}

/// Each place of a document where a value stands; elements of lists, and of `maps` by name, share one. A spread is the
/// same wherever it stands, and what is null in one place and has fields in another has fields.
pub(crate) fn of(value: &Value, maps: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(value, "", maps, &mut found);
    let spread = [".median", ".min", ".max", ".values[]"];
    let mut told = BTreeSet::new();
    for place in found {
        let end = spread.iter().find_map(|end| place.strip_suffix(end));
        told.insert(end.unwrap_or(&place).to_owned());
    }
    let nested = |place: &str| {
        let inner = format!("{place}.");
        told.iter().any(|other| other.starts_with(&inner))
    };
    told.iter()
        .filter(|place| !nested(place))
        .cloned()
        .collect()
}

fn walk(value: &Value, at: &str, maps: &[&str], found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = if maps.contains(&at) { "NAME" } else { key };
                walk(value, &format!("{at}.{key}"), maps, found);
            }
        }
        Value::Array(values) => {
            for value in values {
                walk(value, &format!("{at}[]"), maps, found);
            }
        }
        _ => drop(found.insert(at.trim_start_matches('.').to_owned())),
    }
}

/// How many marks of a kind a picture has: bars (`rect`), points (`circle`).
pub(crate) fn marks(picture: &str, kind: &str) -> usize {
    let parsed = roxmltree::Document::parse(picture).expect("XML");
    let nodes = parsed.descendants();
    nodes
        .filter(|node| node.tag_name().name() == kind)
        .filter(|node| kind != "rect" || node.attribute("class") == Some("bar"))
        .count()
}

/// How many Markdown tables a text has; each line of one has as many cells as its head.
pub(crate) fn even_tables(text: &str) -> usize {
    let tables = text.split("\n\n").map(|part| {
        let lines = part.lines().filter(|line| line.starts_with('|'));
        lines.collect::<Vec<&str>>()
    });
    let tables = tables.filter(|lines| !lines.is_empty());
    let cells = |line: &str| line.matches('|').count();
    let looked = tables.inspect(|lines| {
        for line in lines {
            assert_eq!(cells(line), cells(lines[0]), "{line}\n{}", lines[0]);
        }
    });
    looked.count()
}
