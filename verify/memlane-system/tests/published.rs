//! The crates that are published have what a registry and its readers need, and depend on nothing that is not published.
//! `./dev crates` packages them and builds each from its package alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Where a registry stops reading.
const KEYWORDS: usize = 5;
const KEYWORD_LENGTH: usize = 20;
const CATEGORIES: usize = 5;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the work tree")
}

/// The packages of the workspace, as cargo knows them.
fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
    let output = command.current_dir(root()).output().expect("cargo");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().expect("a name")
}

/// `publish = false` is an empty list of registries.
fn is_published(package: &Value) -> bool {
    package["publish"].is_null()
}

fn folder(package: &Value) -> PathBuf {
    let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
    manifest.parent().expect("a folder").to_path_buf()
}

fn words(value: &Value) -> Vec<&str> {
    let words = value.as_array().into_iter().flatten();
    words.filter_map(Value::as_str).collect()
}

/// What a crate lacks.
fn lacks(package: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let fields = [
        "description",
        "license",
        "repository",
        "documentation",
        "readme",
        "rust_version",
    ];
    for field in fields {
        if package[field].as_str().is_none_or(str::is_empty) {
            wrong.push(field.to_owned());
        }
    }
    let (keywords, categories) = (words(&package["keywords"]), words(&package["categories"]));
    if !(1..=KEYWORDS).contains(&keywords.len()) {
        wrong.push(format!("1 to {KEYWORDS} keywords"));
    }
    let long = keywords.iter().filter(|word| word.len() > KEYWORD_LENGTH);
    wrong.extend(long.map(|word| format!("a shorter keyword than {word}")));
    if !(1..=CATEGORIES).contains(&categories.len()) {
        wrong.push(format!("1 to {CATEGORIES} categories"));
    }
    for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        if !folder(package).join(file).is_file() {
            wrong.push(file.to_owned());
        }
    }
    wrong
}

/// Dependencies that a registry would refuse: without a version, or on a crate that is not published. One that only tests
/// need is left out of the package.
fn refused<'a>(package: &'a Value, published: &[&str]) -> Vec<&'a str> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let ours = dependencies.filter(|it| it["path"].is_string() && it["kind"] != "dev");
    let refused = ours.filter(|it| {
        let version = it["req"].as_str().unwrap_or("*");
        version == "*" || !published.contains(&name(it))
    });
    refused.map(name).collect()
}

#[test]
fn every_crate_that_others_would_use_can_be_published() {
    let packages = packages();
    let published: Vec<&Value> = packages.iter().filter(|it| is_published(it)).collect();
    let names: Vec<&str> = published.iter().map(|it| name(it)).collect();
    let mut wrong = Vec::new();
    for package in &packages {
        let ours = ["spine", "lanes", "apps/memlane-observe"]
            .map(|room| folder(package).starts_with(root().join(room)));
        if ours.contains(&true) != is_published(package) {
            wrong.push(format!("{}: publish", name(package)));
        }
    }
    for package in published {
        let (lacks, refused) = (lacks(package), refused(package, &names));
        if !lacks.is_empty() || !refused.is_empty() {
            wrong.push(format!("{}: {lacks:?} {refused:?}", name(package)));
        }
    }
    assert!(names.len() > 8, "{names:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// One version for all, which the changelog names or announces.
#[test]
fn all_crates_have_one_version() {
    let packages = packages();
    let versions: Vec<&str> = packages
        .iter()
        .filter_map(|it| it["version"].as_str())
        .collect();
    assert!(versions.iter().all(|it| *it == versions[0]), "{versions:?}");
    let dependencies = packages
        .iter()
        .flat_map(|it| it["dependencies"].as_array().into_iter().flatten());
    let ours = dependencies.filter(|it| it["path"].is_string());
    let wanted = format!("^{}", versions[0]);
    let other: Vec<&str> = ours
        .filter(|it| it["req"] != "*" && it["req"] != wanted.as_str())
        .map(name)
        .collect();
    assert!(other.is_empty(), "of another version: {other:?}");
}

#[test]
fn a_crate_that_lacks_something_would_be_found_out() {
    let packages = packages();
    let whole = packages
        .iter()
        .find(|it| is_published(it))
        .expect("a crate");
    assert!(lacks(whole).is_empty(), "{:?}", lacks(whole));
    let mut package = whole.clone();
    package["description"] = Value::Null;
    package["keywords"] = vec!["a-keyword-that-no-registry-takes"].into();
    assert_eq!(lacks(&package).len(), 2, "{:?}", lacks(&package));
    package["dependencies"] = serde_json::json!([
        {"name": "memlane-sim", "path": "/x", "kind": null, "req": "^0.1.0"},
        {"name": "memlane-core", "path": "/x", "kind": null, "req": "*"},
        {"name": "memlane-sys", "path": "/x", "kind": null, "req": "^0.1.0"},
        {"name": "memlane-sim", "path": "/x", "kind": "dev", "req": "*"},
    ]);
    let published = ["memlane-core", "memlane-sys"];
    assert_eq!(
        refused(&package, &published),
        ["memlane-sim", "memlane-core"]
    );
}
