//! What the documents must say, how long they may be, and where their links lead.

use super::{files, layers, mentions, nothing_wrong, root, rust_files, text};
use std::collections::BTreeSet;
use std::io::Write as _;

/// The most lines that a Rust file may have.
const MOST_LINES: usize = 1500;
/// From this length on, a file is listed as one that may want to be split.
const MANY_LINES: usize = 800;

/// The documents that a newcomer reads first, and the most bytes that each may have.
const SHORT: [(&str, usize); 3] = [
    ("ARCHITECTURE.md", 15 * 1024),
    ("README.md", 9 * 1024),
    ("CONTRIBUTING.md", 6 * 1024),
];

// ---- the map ----------------------------------------------------------------

#[test]
fn the_map_of_the_code_shows_every_crate() {
    let map = text("ARCHITECTURE.md").expect("there is no ARCHITECTURE.md");
    let packages = layers::packages().into_iter();
    let absent = packages.filter(|(_, name)| name.is_empty() || !mentions(&map, name));
    let wrong: Vec<_> = absent
        .map(|(dir, name)| format!("{dir}: package `{name}`"))
        .collect();
    nothing_wrong(&wrong, "ARCHITECTURE.md does not mention");
}

#[test]
fn a_longer_name_is_no_mention_of_a_shorter_one() {
    assert!(mentions("the `memlane` command", "memlane"));
    assert!(!mentions("memlane-core, xmemlane", "memlane"));
}

#[test]
fn no_rust_file_is_longer_than_one_can_read() {
    let count = |(file, text): (String, String)| (file, text.lines().count());
    let long = rust_files().into_iter().map(count);
    let long: Vec<_> = long.filter(|(_, lines)| *lines > MANY_LINES).collect();
    for (file, lines) in &long {
        let _ = writeln!(std::io::stderr(), "HINT: {file} has {lines} lines");
    }
    let long = long.into_iter().filter(|(_, lines)| *lines > MOST_LINES);
    let wrong: Vec<_> = long
        .map(|(file, lines)| format!("{file}: {lines} lines"))
        .collect();
    nothing_wrong(&wrong, &format!("longer than {MOST_LINES} lines"));
}

// ---- invariants -------------------------------------------------------------

/// The numbered invariants of ARCHITECTURE.md, one string for each.
fn invariants(map: &str) -> Vec<String> {
    let (_, rest) = map
        .split_once("## Invariants\n")
        .expect("a section `Invariants`");
    let section = rest.split("\n## ").next().unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    for line in section.lines() {
        let number = line.split_once(". ").map(|(number, _)| number);
        if number.is_some_and(|number| number.parse::<u8>().is_ok()) {
            found.push(line.into());
        } else if let Some(last) = found.last_mut() {
            last.push('\n');
            last.push_str(line);
        }
    }
    found
}

/// The names in backticks after `*Tests*:`.
fn named_tests(invariant: &str) -> Vec<&str> {
    let (_, tests) = invariant.split_once("*Tests*:").unwrap_or_default();
    tests.split('`').skip(1).step_by(2).collect()
}

/// Is there a test of this name? `ring_oracle` is a file of tests, `real_*` several of them, `lane/copies` a module,
/// `a_sentence` a function.
fn is_a_test(name: &str, files: &[(String, String)]) -> bool {
    let stem = |file: &str| {
        file.trim_end_matches(".rs")
            .trim_end_matches("/mod")
            .to_string()
    };
    let matches = |file: &str| match name.strip_suffix('*') {
        Some(start) => file.contains("/tests/") && file.contains(&format!("/{start}")),
        None => stem(file).ends_with(&format!("/{}", stem(name))),
    };
    let function = format!("fn {name}(");
    files
        .iter()
        .any(|(file, text)| matches(file) && text.contains("#[test]") || text.contains(&function))
}

#[test]
fn each_invariant_names_the_tests_that_hold_it() {
    let map = text("ARCHITECTURE.md").expect("there is no ARCHITECTURE.md");
    let (invariants, files) = (invariants(&map), rust_files());
    assert!(invariants.len() >= 6, "{invariants:?}");
    let mut wrong = Vec::new();
    for invariant in &invariants {
        let (title, tests) = (
            invariant.lines().next().unwrap_or_default(),
            named_tests(invariant),
        );
        if tests.is_empty() {
            wrong.push(format!("{title}: no test"));
        }
        let absent = tests.iter().filter(|test| !is_a_test(test, &files));
        wrong.extend(absent.map(|test| format!("{title}: there is no `{test}`")));
    }
    nothing_wrong(&wrong, "ARCHITECTURE.md, Invariants");
}

/// The last cell of each row with three cells: the names of tests.
fn tests_of_a_table(page: &str) -> Vec<String> {
    let rows = page.lines().map(|line| line.split('|').collect::<Vec<_>>());
    let cells = rows.filter(|cells| cells.len() == 5 && !cells[3].contains("---"));
    let names = cells.flat_map(|cells| {
        let quoted = cells[3].split('`').skip(1).step_by(2);
        quoted
            .filter(|name| !name.contains(['/', ' ']))
            .map(String::from)
            .collect::<Vec<_>>()
    });
    names.collect()
}

#[test]
fn each_test_that_the_list_of_tests_names_is_there() {
    let page = text("verify/README.md").expect("the list of tests");
    let (names, files) = (tests_of_a_table(&page), rust_files());
    assert!(names.len() > 50, "{names:?}");
    let absent = names
        .iter()
        .filter(|name| !name.starts_with("memlane-") && !is_a_test(name, &files));
    nothing_wrong(
        &absent.cloned().collect::<Vec<_>>(),
        "verify/README.md names no test",
    );
    assert_eq!(
        tests_of_a_table("| a | `b` | `c`, `d_*` |\n| e | `f` |\n"),
        ["c", "d_*"]
    );
}

#[test]
fn an_invariant_without_a_test_would_be_found_out() {
    let map =
        "## Invariants\n\n1. **A.** b\n   *Tests*: `ring`, `no_such`.\n2. **C.**\n\n## End\n3. d\n";
    let found = invariants(map);
    assert_eq!(found.len(), 2);
    assert_eq!(named_tests(&found[0]), ["ring", "no_such"]);
    assert!(named_tests(&found[1]).is_empty());
    let files = [(
        "a/tests/ring.rs".to_string(),
        "#[test]\nfn it_holds() {}".to_string(),
    )];
    assert!(
        ["ring", "tests/ring.rs", "ri*", "it_holds"]
            .iter()
            .all(|name| is_a_test(name, &files))
    );
    assert!(
        !["no_such", "ing", "x*", "holds"]
            .iter()
            .any(|name| is_a_test(name, &files))
    );
}

// ---- sizes and links --------------------------------------------------------

#[test]
fn the_first_documents_stay_short() {
    let length = |file| {
        text(file)
            .unwrap_or_else(|| panic!("there is no {file}"))
            .len()
    };
    let long = SHORT.iter().filter(|(file, most)| length(file) > *most);
    let wrong = long.map(|(file, most)| format!("{file}: {} bytes, at most {most}", length(file)));
    nothing_wrong(&wrong.collect::<Vec<_>>(), "too long");
}

/// Markdown without its code blocks, in which brackets are no links.
fn without_code(text: &str) -> String {
    let mut inside = false;
    let mut kept = String::new();
    for line in text.lines() {
        inside ^= line.trim_start().starts_with("```");
        if !inside {
            let spoken = line.split('`').step_by(2);
            kept.extend(spoken.chain(["\n"]));
        }
    }
    kept
}

/// The targets of links to files of the tree: not to other hosts.
fn links(text: &str) -> Vec<String> {
    let plain = without_code(text);
    let targets = plain
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
    local.map(String::from).collect()
}

/// The anchor of a heading, as forges make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect()
}

/// What is wrong with a link from `file` to `target`.
fn broken(file: &str, target: &str) -> Option<String> {
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let dir = file.rsplit_once('/').map_or("", |(dir, _)| dir);
    let to = if path.is_empty() {
        root().join(file)
    } else {
        root().join(dir).join(path)
    };
    if !to.exists() {
        return Some(format!("{file}: {target} is not there"));
    }
    let text = std::fs::read_to_string(&to).unwrap_or_default();
    let known = heading.is_empty() || anchors(&text).contains(heading);
    (!known).then(|| format!("{file}: {target}: no such heading"))
}

fn documents() -> Vec<String> {
    let documents = files().into_iter().filter(|file| file.ends_with(".md"));
    documents.collect()
}

#[test]
fn each_link_of_a_document_leads_somewhere() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for file in documents() {
        for target in links(&text(&file).unwrap_or_default()) {
            seen += 1;
            wrong.extend(broken(&file, &target));
        }
    }
    assert!(seen > 50, "{seen} links");
    nothing_wrong(&wrong, "broken links");
}

#[test]
fn the_index_of_the_documents_names_each_page() {
    let index = links(&text("docs/README.md").expect("the index"));
    let pages = documents().into_iter();
    let pages = pages.filter_map(|file| file.strip_prefix("docs/").map(String::from));
    let linked = |page: &String| {
        index
            .iter()
            .any(|link| link.split('#').next() == Some(page))
    };
    let below = |page: &String| page == "README.md" || page.starts_with("limits/");
    let absent: Vec<_> = pages.filter(|page| !below(page) && !linked(page)).collect();
    nothing_wrong(&absent, "docs/README.md does not link");
}

#[test]
fn a_broken_link_would_be_found_out() {
    let text = "see [a](b.md#c) and `[x](y)`\n```\n[d](e)\n```\n[f](https://github.com/x)\n";
    assert_eq!(links(text), ["b.md#c"]);
    assert_eq!(
        anchor("What a `peer` may do: all"),
        "what-a-peer-may-do-all"
    );
    assert!(broken("README.md", "ARCHITECTURE.md").is_none());
    assert!(broken("README.md", "no/such.md").is_some());
    assert!(broken("README.md", "ARCHITECTURE.md#no-such-heading").is_some());
}

// ---- words ------------------------------------------------------------------

/// Starts of doc comments that do not stand alone.
const LEANING: [&str; 2] = [concat!("Like", "wise"), concat!("As ", "above")];

/// Phrases that have to be decoded. In pieces, for this file is examined, too.
const DECODED: [&str; 10] = [
    concat!("it is said ", "which"),
    concat!("of which ", "so many"),
    concat!("who must ", "sleep"),
    concat!("so many ", "good ones"),
    concat!("what came ", "of"),
    concat!("what it ", "came to"),
    concat!("who asks ", "again"),
    concat!("whoever ", "must"),
    concat!("is somebody ", "else's"),
    concat!("in vain ", "until"),
];

/// What is wrong with the words of a line.
fn words_to_decode(line: &str) -> Option<&'static str> {
    let comment = line.trim_start();
    let doc = ["///", "//!"]
        .iter()
        .find_map(|mark| comment.strip_prefix(mark));
    let leans = |start: &&&str| doc.is_some_and(|doc| doc.trim_start().starts_with(**start));
    let lower = line.to_lowercase();
    let phrase = DECODED.iter().find(|phrase| lower.contains(**phrase));
    LEANING.iter().find(leans).or(phrase).copied()
}

#[test]
fn each_comment_stands_alone_and_needs_no_decoding() {
    let mut wrong = Vec::new();
    let rust = rust_files().into_iter();
    let pages = documents()
        .into_iter()
        .filter_map(|file| Some((file.clone(), text(&file)?)));
    for (file, text) in rust.chain(pages) {
        for (at, line) in text.lines().enumerate() {
            let found = words_to_decode(line).into_iter();
            wrong.extend(found.map(|what| format!("{file}:{}: {what}", at + 1)));
        }
    }
    nothing_wrong(&wrong, "say it in plain English");
}

#[test]
fn a_comment_that_leans_on_another_one_would_be_found_out() {
    assert!(words_to_decode(concat!("    /// Like", "wise, of bytes.")).is_some());
    assert!(words_to_decode(concat!("it is said ", "which one")).is_some());
    assert!(words_to_decode("/// Sends bytes.").is_none());
}

/// Paths of the tree that a document names in backticks.
fn named_paths(text: &str) -> Vec<String> {
    let tops = [
        "spine/",
        "lanes/",
        "apps/",
        "bindings/",
        "bench/",
        "verify/",
        "docs/",
        "packaging/",
    ];
    let quoted = text
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = quoted.filter(|it| tops.iter().any(|top| it.starts_with(top)));
    let plain = paths.filter(|it| !it.contains([' ', '*', '{', '<', ':']));
    plain.map(String::from).collect()
}

#[test]
fn each_path_that_a_document_names_is_there() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for file in documents() {
        for path in named_paths(&text(&file).unwrap_or_default()) {
            seen += 1;
            if !root().join(&path).exists() {
                wrong.push(format!("{file}: {path}"));
            }
        }
    }
    assert!(seen > 30, "{seen} paths");
    nothing_wrong(&wrong, "paths that are not there");
}

// ---- reasons ----------------------------------------------------------------

/// The page about reasons lists each of them in the code's own words, with an existing test.
#[test]
fn every_reason_is_explained_and_brought_about_by_a_test() {
    let source = text("spine/memlane-core/src/reason.rs").expect("the reasons");
    let page = text("docs/guides/seeing.md").expect("the page");
    let rust = rust_files();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for line in source.lines().filter(|line| line.contains(" = 0x")) {
        let (_, rest) = line.split_once(" = ").expect("a code");
        let (code, rest) = rest.split_once(", ").expect("a code");
        let quoted: Vec<&str> = rest.split('"').skip(1).step_by(2).collect();
        let [name, why] = quoted[..] else { continue };
        seen += 1;
        let row = format!("| `{}` | `{name}` | {why} | `", code.replace('_', ""));
        let test = page
            .split_once(&row)
            .and_then(|(_, rest)| rest.split('`').next());
        let written = |test: &str| {
            let function = format!("fn {test}(");
            rust.iter().any(|(_, text)| text.contains(&function))
        };
        if !test.is_some_and(written) {
            wrong.push(format!("{row}…: {test:?}"));
        }
    }
    assert!(seen > 25, "{seen} reasons");
    nothing_wrong(&wrong, "docs/guides/seeing.md lacks a reason, or its test");
}
