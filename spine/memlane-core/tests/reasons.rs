//! The table of reasons in the guide is the table of the code.

use std::path::Path;

use memlane_core::reason::Reason;

/// Rows of the table: code, name, meaning, test.
fn rows() -> Vec<[&'static str; 4]> {
    include_str!("../../../docs/guides/seeing.md")
        .lines()
        .filter(|line| line.starts_with("| `0x"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            match cells[..] {
                ["", code, name, meaning, test, ""] => [code, name, meaning, test],
                _ => panic!("not a row of four cells: {line}"),
            }
        })
        .collect()
}

/// All Rust code below a directory.
fn code(dir: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            text.push_str(&code(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
    text
}

#[test]
fn every_reason_stands_in_the_guide_with_its_code_and_meaning() {
    let given = Reason::ALL.iter().filter(|reason| **reason != Reason::NONE);
    let expected: Vec<[String; 3]> = given
        .map(|reason| {
            let code = format!("`0x{:08x}`", reason.0);
            [code, format!("`{}`", reason.name()), reason.text().into()]
        })
        .collect();
    let told: Vec<[String; 3]> = rows()
        .iter()
        .map(|[code, name, meaning, _]| [code, name, meaning].map(|cell| cell.to_string()))
        .collect();
    assert_eq!(told, expected);
}

#[test]
fn every_test_that_the_guide_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all: String = ["spine", "lanes", "verify"]
        .map(|dir| code(&root.join(dir)))
        .concat();
    for [_, name, _, test] in rows() {
        let test = test.trim_matches('`');
        assert!(
            test == "–" || all.contains(&format!("fn {test}()")),
            "{name}: no test {test}"
        );
    }
}
