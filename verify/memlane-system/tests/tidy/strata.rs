//! The socket lane's rooms: each uses only those below it, and no module is part of a circle.

use super::{nothing_wrong, rust_files};
use std::collections::{BTreeMap, BTreeSet};

const SOURCE: &str = "lanes/memlane-socket/src/";

/// The rooms, from the ground up. What lies beside them (`config`, `real`, `iov`, `faults`) is the ground.
const STRATA: [&str; 4] = ["state", "protocol", "hooks", "native"];

/// Which modules each module uses: `state::conn`, or `config` on the ground.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// The module that a file below the source directory belongs to; none: it only lists others.
fn module_of(file: &str) -> Option<String> {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [_, "mod"] if STRATA[..3].contains(&parts[0]) => None,
        [room, module, ..] if STRATA[..3].contains(room) => Some(format!("{room}::{module}")),
        ["lib"] => None,
        [module, ..] => Some((*module).to_string()),
        [] => None,
    }
}

/// The code of a file: without comments, and without the tests at its end.
fn code(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line));
    let code = lines.collect::<Vec<_>>().join("\n");
    let tests = code.find("#[cfg(test)]\nmod tests {");
    let tests = tests.or_else(|| code.find("#[cfg(test)]\npub(crate) mod tests {"));
    code[..tests.unwrap_or(code.len())].to_string()
}

/// Files that only tests consist of: `#[cfg(test)] mod name;` declares them.
fn test_files(files: &[(String, String)]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (file, text) in files {
        let dir = match file.strip_suffix("/mod.rs") {
            Some(dir) => dir.to_string(),
            None => file.trim_end_matches(".rs").to_string(),
        };
        for declared in text.split("#[cfg(test)]").skip(1) {
            let declared = declared.trim_start();
            if let Some((name, _)) = declared
                .trim_start_matches("pub(super) ")
                .strip_prefix("mod ")
                .and_then(|rest| rest.split_once(';'))
                && !name.contains('{')
            {
                found.insert(format!("{dir}/{name}.rs"));
            }
        }
    }
    found
}

fn used_by(code: &str) -> impl Iterator<Item = String> {
    let named = code.split("crate::").skip(1).map(|rest| {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let mut names = rest.split("::").map(|part| {
            let end = part.find(|c| !is_name(c)).unwrap_or(part.len());
            part[..end].to_string()
        });
        (
            names.next().unwrap_or_default(),
            names.next().unwrap_or_default(),
        )
    });
    named.map(
        |(room, module)| match STRATA[..3].contains(&room.as_str()) {
            true => format!("{room}::{module}"),
            false => room,
        },
    )
}

fn uses() -> Uses {
    let files: Vec<(String, String)> = rust_files()
        .into_iter()
        .filter_map(|(file, text)| Some((file.strip_prefix(SOURCE)?.to_string(), text)))
        .collect();
    let tests = test_files(&files);
    let mut all = Uses::new();
    for (file, text) in files.iter().filter(|(file, _)| !tests.contains(file)) {
        if let Some(module) = module_of(file) {
            let code = code(text);
            let used = used_by(&code).filter(|used| *used != module);
            all.entry(module.clone()).or_default().extend(used);
        }
    }
    // Names that are no modules: macros and the crate's own re-exports.
    let modules: BTreeSet<String> = all.keys().cloned().collect();
    for used in all.values_mut() {
        used.retain(|name| modules.contains(name));
    }
    all
}

fn stratum(module: &str) -> usize {
    let room = module.split("::").next().unwrap_or(module);
    STRATA
        .iter()
        .position(|name| *name == room)
        .map_or(0, |i| i + 1)
}

fn arrows_upward(uses: &Uses) -> Vec<String> {
    let arrows = uses
        .iter()
        .flat_map(|(user, used)| used.iter().map(move |name| (user, name)));
    let up = arrows.filter(|(user, used)| stratum(used) > stratum(user));
    up.map(|(user, used)| format!("{user} uses {used}"))
        .collect()
}

/// Modules from which a way leads back to themselves.
fn in_circles(uses: &Uses) -> Vec<String> {
    let mut found = Vec::new();
    for start in uses.keys() {
        let (mut seen, mut ways) = (BTreeSet::new(), vec![(start, start.clone())]);
        while let Some((at, way)) = ways.pop() {
            for next in uses.get(at).into_iter().flatten() {
                if next == start {
                    found.push(format!("{way} -> {start}"));
                } else if seen.insert(next) {
                    ways.push((next, format!("{way} -> {next}")));
                }
            }
        }
    }
    found
}

#[test]
fn each_room_of_the_socket_lane_uses_only_those_below_it() {
    let uses = uses();
    assert!(
        uses.len() > 15 && uses["protocol::lane"].contains("state::guard"),
        "{uses:?}"
    );
    nothing_wrong(&arrows_upward(&uses), "arrows that point upward");
}

#[test]
fn no_modules_of_the_socket_lane_use_each_other_in_a_circle() {
    nothing_wrong(&in_circles(&uses()), "circles of modules");
}

#[test]
fn an_arrow_upward_and_a_circle_are_found() {
    let told = |arrows: &[(&str, &str)]| {
        let mut uses = Uses::new();
        for (user, used) in arrows {
            uses.entry((*user).to_string())
                .or_default()
                .insert((*used).to_string());
            uses.entry((*used).to_string()).or_default();
        }
        uses
    };
    let fine = told(&[
        ("hooks::wait", "protocol::lane"),
        ("protocol::lane", "config"),
    ]);
    assert!(arrows_upward(&fine).is_empty() && in_circles(&fine).is_empty());
    let up = told(&[("config", "state::conn"), ("state::conn", "native")]);
    assert_eq!(arrows_upward(&up).len(), 2);
    let round = told(&[
        ("state::a", "state::b"),
        ("state::b", "state::c"),
        ("state::c", "state::a"),
    ]);
    assert_eq!(in_circles(&round).len(), 3);
    let mut from = used_by(
        "use crate::state::conn::Conn; crate::real::errno(); crate::hooks::wait::epoll::wait()",
    );
    assert_eq!(from.next().as_deref(), Some("state::conn"));
    assert_eq!(from.next().as_deref(), Some("real"));
    assert_eq!(from.next().as_deref(), Some("hooks::wait"));
}
