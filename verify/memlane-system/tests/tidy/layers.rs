//! The layer rule: which package may use which.

use super::{files, nothing_wrong, text};
use std::collections::{BTreeMap, BTreeSet};

/// What a manifest says: the package, and what it uses outside its tests.
#[derive(Debug, Default)]
struct Manifest {
    layer: String,
    name: String,
    uses: BTreeSet<String>,
}

fn manifest(file: &str, text: &str) -> Manifest {
    let layer = file.split('/').next().unwrap_or_default();
    let mut manifest = Manifest {
        layer: layer.into(),
        ..Manifest::default()
    };
    let mut section = String::new();
    for line in text.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']').to_string();
            manifest.uses.extend(table_of_its_own(&section));
        } else if let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            let key = key.split('.').next().unwrap_or_default().trim();
            if section == "package" && key == "name" {
                manifest.name = value.trim().trim_matches('"').into();
            } else if is_dependencies(section.rsplit('.').next().unwrap_or_default()) {
                manifest.uses.insert(key.trim_matches('"').into());
            }
            // `other = { package = "memlane-…" }`: the name does not matter.
            if is_dependencies(&section) || section.contains("dependencies.") {
                let quoted = value.split('"').skip(1).step_by(2);
                let renamed = quoted.filter(|_| value.contains("package") || key == "package");
                manifest.uses.extend(renamed.map(String::from));
            }
        }
    }
    manifest
}

fn is_dependencies(section: &str) -> bool {
    section == "dependencies" || section == "build-dependencies"
}

/// `[dependencies.memlane-core]`, `[target.'cfg(unix)'.dependencies.memlane-core]`.
fn table_of_its_own(section: &str) -> Option<String> {
    let (parent, name) = section.rsplit_once('.')?;
    let kind = parent.rsplit('.').next().unwrap_or_default();
    is_dependencies(kind).then(|| name.trim_matches('"').to_string())
}

/// The packages that may use another package of their own layer, and which one. For the lanes: docs/decisions/0011.
const WITHIN_A_LAYER: [(&str, &str); 10] = [
    ("memlane-block", "memlane-transport"),
    ("memlane-block-frontends", "memlane-block"),
    ("memlane-block-frontends", "memlane-transport"),
    ("memlane-devmem", "memlane-socket"),
    ("memlane-packet-ends", "memlane-packet"),
    ("memlane", "memlane-agent"),
    ("memlane", "memlane-inject"),
    ("memlane", "memlane-observe"),
    ("memlane-csi", "memlane-inject"),
    ("memlane-webhook", "memlane-inject"),
];

/// May the package `user` use the package `used`, which belongs to `layer`?
fn may_use(user: &Manifest, used: &str, layer: &str) -> bool {
    match user.layer.as_str() {
        "verify" => true,
        "bench" => layer != "verify",
        "spine" => layer == "spine",
        own if layer == own => WITHIN_A_LAYER.contains(&(user.name.as_str(), used)),
        "lanes" => layer == "spine",
        "apps" | "bindings" => layer == "lanes" || layer == "spine",
        _ => false,
    }
}

fn broken_rules(manifests: &[Manifest]) -> Vec<String> {
    let layers = manifests.iter().map(|m| (m.name.clone(), m.layer.clone()));
    let layers: BTreeMap<String, String> = layers.collect();
    let mut wrong = Vec::new();
    for user in manifests {
        for used in &user.uses {
            if let Some(layer) = layers.get(used)
                && !may_use(user, used, layer)
            {
                wrong.push(format!(
                    "{} ({}) uses {used} ({layer})",
                    user.name, user.layer
                ));
            }
        }
    }
    wrong
}

fn manifests() -> Vec<Manifest> {
    let files = files().into_iter();
    let packages = files.filter(|file| file.ends_with("/Cargo.toml"));
    let read = packages.map(|file| manifest(&file, &text(&file).expect("a text")));
    read.collect()
}

/// Directories of the workspace's members.
fn members() -> Vec<String> {
    let workspace = text("Cargo.toml").expect("Cargo.toml");
    let (_, list) = workspace.split_once("members = [").expect("members");
    let (list, _) = list.split_once(']').expect("members");
    let members = list.split('"').skip(1).step_by(2).map(String::from);
    members.collect()
}

/// Each member of the workspace: its directory, and its package's name.
pub(super) fn packages() -> Vec<(String, String)> {
    let named = members().into_iter().map(|dir| {
        let file = format!("{dir}/Cargo.toml");
        let name = manifest(&file, &text(&file).expect("a member's manifest")).name;
        (dir, name)
    });
    named.collect()
}

#[test]
fn each_layer_uses_only_the_layers_below_it() {
    let manifests = manifests();
    let uses = |name: &str, used: &str| {
        let package = manifests.iter().find(|m| m.name == name);
        package.is_some_and(|m| m.uses.contains(used))
    };
    assert!(uses("memlane-socket", "memlane-core") && uses("memlane-preload", "memlane-socket"));
    assert!(manifests.len() >= members().len());
    nothing_wrong(&broken_rules(&manifests), "the layer rule is broken");
}

#[test]
fn a_lane_that_used_another_lane_or_the_tests_would_be_found_out() {
    let on = "[dependencies]\n";
    let all = [
        (
            "spine/core",
            "[dependencies.memlane-socket]\npath = \"x\"".into(),
        ),
        (
            "lanes/socket",
            format!("{on}memlane-transport = {{ path = \"x\" }}"),
        ),
        (
            "lanes/transport",
            "[dev-dependencies]\nmemlane-sim = \"1\"".into(),
        ),
        (
            "lanes/block",
            format!("{on}memlane-transport.workspace = true"),
        ),
        (
            "apps/preload",
            "[build-dependencies]\nmemlane-sim = \"1\"".into(),
        ),
        (
            "apps/cli",
            format!("{on}x = {{ package = \"memlane-preload\" }}"),
        ),
        ("verify/sim", format!("{on}memlane-core = \"1\"")),
    ];
    let all = all.map(|(dir, uses)| {
        let name = dir.rsplit('/').next().unwrap_or_default();
        manifest(
            dir,
            &format!("[package]\nname = \"memlane-{name}\"\n{uses}"),
        )
    });
    let wrong = [
        "memlane-core (spine) uses memlane-socket (lanes)",
        "memlane-socket (lanes) uses memlane-transport (lanes)",
        "memlane-preload (apps) uses memlane-sim (verify)",
        "memlane-cli (apps) uses memlane-preload (apps)",
    ];
    assert_eq!(broken_rules(&all), wrong);
}
