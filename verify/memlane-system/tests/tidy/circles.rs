//! No two long files of a crate use each other, whether at once or by way of others.
//!
//! A file uses another one if a path in its code leads to something that is defined there. A name that a parent module
//! passes on (`pub use`) leads to the file that defines it, so that passing on is no use of it. Methods are not followed.

use super::{nothing_wrong, rust_files};
use std::collections::{BTreeMap, BTreeSet};

/// A file of more lines is a long one.
const LONG: usize = 200;

/// Circles that stay: the crate, where all long files of the circle are, and why.
const STAY: [(&str, &str, &str); 0] = [];

/// A module's path below its crate: `["io", "link"]`; the crate's root is empty.
type Module = Vec<String>;

/// One file of a crate, as far as names go.
#[derive(Default)]
struct Source {
    lines: usize,
    /// Its code, without comments, tests, inline modules and `use` declarations.
    body: String,
    /// Names that are defined here.
    defined: BTreeSet<String>,
    /// Names that `use` declarations bring here, and the paths that they stand for.
    brought: BTreeMap<String, Vec<String>>,
    /// Those of them that are only passed on.
    passed_on: BTreeSet<String>,
    /// Modules of which everything is brought here.
    all_of: Vec<Vec<String>>,
}

type Crate = BTreeMap<Module, Source>;
/// Which files each file uses, and by which name.
type Uses = BTreeMap<Module, BTreeMap<Module, String>>;

/// The files of each crate, by the crate's directory.
fn crates() -> BTreeMap<String, Vec<(Module, String)>> {
    let files = rust_files();
    let tests = super::test_modules(&files);
    let mut found: BTreeMap<String, Vec<(Module, String)>> = BTreeMap::new();
    for (file, text) in files {
        let is_test = tests.contains(&file) || file.ends_with("tests.rs");
        let Some((dir, path)) = file.split_once("/src/").filter(|_| !is_test) else {
            continue;
        };
        let mut module: Module = path
            .trim_end_matches(".rs")
            .split('/')
            .map(String::from)
            .collect();
        if matches!(
            module.last().map(String::as_str),
            Some("mod" | "lib" | "main")
        ) {
            module.pop();
        }
        found
            .entry(dir.to_string())
            .or_default()
            .push((module, text));
    }
    found
}

/// The code of a file: without comments, tests, and modules within it.
fn code(text: &str) -> String {
    let (mut kept, mut inside) = (String::new(), false);
    for line in text.lines() {
        let line = super::code(line);
        let opens = line
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub(super) ");
        let opens = opens.trim_start_matches("pub ");
        inside |= opens.starts_with("mod ") && line.ends_with('{');
        if !inside {
            kept.push_str(line);
            kept.push('\n');
        }
        // rustfmt puts the end of a module at the margin.
        inside &= line != "}";
    }
    kept
}

/// `a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`.
fn spread(tree: &str) -> Vec<String> {
    let Some((before, rest)) = tree.split_once('{') else {
        return vec![tree.trim().to_string()];
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in inner.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match (c, parts.last_mut()) {
            (',', _) if depth == 0 => parts.push(String::new()),
            (c, Some(part)) => part.push(c),
            (_, None) => {}
        }
    }
    let parts = parts
        .iter()
        .map(|part| part.trim())
        .filter(|part| !part.is_empty());
    let before = before.trim();
    parts
        .flat_map(|part| spread(&format!("{before}{part}")))
        .collect()
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn names_of(path: &str) -> Vec<String> {
    let names = path.split("::").map(|name| name.trim().to_string());
    names.filter(|name| !name.is_empty()).collect()
}

/// The name that an item at the margin defines.
fn defined_by(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().peekable();
    while words
        .next_if(|w| w.starts_with("pub") || matches!(*w, "unsafe" | "async" | "extern" | "\"C\""))
        .is_some()
    {}
    let mut kind = words.next()?;
    if kind == "const" && matches!(words.peek(), Some(&("fn" | "unsafe"))) {
        words.find(|word| *word == "fn")?;
        kind = "fn";
    }
    let items = [
        "fn",
        "struct",
        "enum",
        "trait",
        "type",
        "const",
        "static",
        "union",
        "macro_rules!",
    ];
    let name = items
        .contains(&kind)
        .then(|| words.find(|word| *word != "mut"))??;
    Some(name.split(|c| !is_name(c)).next().unwrap_or(name))
}

fn source(text: &str) -> Source {
    let mut source = Source {
        lines: text.lines().count(),
        ..Source::default()
    };
    let code = code(text);
    let mut rest = code.as_str();
    while let Some(line_end) = rest.find('\n') {
        let line = &rest[..line_end];
        let start = line.trim_start();
        let is_passed_on = start.starts_with("pub");
        let declaration = match start.split_once("use ") {
            Some((before, _)) if before.is_empty() || (is_passed_on && !before.contains("fn ")) => {
                rest.split_once(';').map(|(declaration, behind)| {
                    rest = behind;
                    declaration
                })
            }
            _ => None,
        };
        let Some(declaration) = declaration else {
            if !line.starts_with(' ') || line.trim_start().starts_with("macro_rules!") {
                source.defined.extend(defined_by(line).map(String::from));
            }
            source.body.push_str(line);
            source.body.push('\n');
            rest = &rest[line_end + 1..];
            continue;
        };
        let tree = declaration.split_once("use ").map_or("", |(_, tree)| tree);
        for path in spread(tree) {
            let (path, other_name) = match path.split_once(" as ") {
                Some((path, name)) => (path.to_string(), Some(name.trim().to_string())),
                None => (path, None),
            };
            let mut names = names_of(&path);
            match names.last().map(String::as_str) {
                Some("*") => {
                    names.pop();
                    source.all_of.push(names);
                    continue;
                }
                Some("self") => drop(names.pop()),
                _ => {}
            }
            if let Some(name) = other_name.or_else(|| names.last().cloned()) {
                if is_passed_on {
                    source.passed_on.insert(name.clone());
                }
                source.brought.insert(name, names);
            }
        }
    }
    source
}

/// Where a path leads that begins in `module`: a file, and what is left of the path behind the file's name.
fn leads_to(
    all: &Crate,
    module: &Module,
    path: &[String],
    depth: usize,
) -> Option<(Module, Vec<String>)> {
    // Names that stand for each other.
    let depth = depth.checked_sub(1)?;
    let first = path.first().map(String::as_str);
    let (from, path) = match first {
        Some("crate") => (Module::new(), &path[1..]),
        Some("self") => (module.clone(), &path[1..]),
        Some("super") => {
            let above = path.iter().take_while(|name| *name == "super").count();
            let kept = module.len().checked_sub(above)?;
            (module[..kept].to_vec(), &path[above..])
        }
        _ => (module.clone(), path),
    };
    let source = all.get(&from)?;
    let Some(name) = path.first() else {
        return Some((from, Vec::new()));
    };
    let mut child = from.clone();
    child.push(name.clone());
    if all.contains_key(&child) {
        return leads_to(
            all,
            &child,
            &[&["self".to_string()], &path[1..]].concat(),
            depth,
        );
    }
    if source.defined.contains(name) {
        return Some((from, path.to_vec()));
    }
    if let Some(stands_for) = source.brought.get(name) {
        if stands_for.first() == Some(name) {
            // Another crate's.
            return None;
        }
        let whole = [stands_for, &path[1..]].concat();
        return leads_to(all, &from, &whole, depth);
    }
    // Two modules may bring everything of each other: a name that neither has would be looked for in both, again and again.
    source.all_of.iter().find_map(|module| {
        let whole = [module, path].concat();
        leads_to(all, &from, &whole, depth / 2).filter(|(found, _)| *found != from)
    })
}

/// Paths in code: names with `::` between them.
fn paths_in(body: &str) -> impl Iterator<Item = Vec<String>> + '_ {
    let words = body.split(|c: char| !is_name(c) && c != ':');
    words
        .filter(|word| word.contains("::") && !word.starts_with(':'))
        .map(names_of)
}

fn uses(all: &Crate) -> Uses {
    let mut found = Uses::new();
    for (module, source) in all {
        let used = found.entry(module.clone()).or_default();
        let named: BTreeSet<&str> = source.body.split(|c| !is_name(c)).collect();
        let mut note = |path: &[String]| {
            if let Some((file, left)) = leads_to(all, module, path, 64)
                && file != *module
                && let Some(name) = left.first()
            {
                used.insert(file, name.clone());
            }
        };
        for (name, path) in &source.brought {
            if path.first() != Some(name)
                && (!source.passed_on.contains(name) || named.contains(name.as_str()))
            {
                note(path);
            }
        }
        paths_in(&source.body).for_each(|path| note(&path));
        let is_ours =
            |name: &str| source.defined.contains(name) || source.brought.contains_key(name);
        for module in &source.all_of {
            for name in named
                .iter()
                .filter(|name| !name.is_empty() && !is_ours(name))
            {
                note(&[module.as_slice(), &[(*name).to_string()]].concat());
            }
        }
    }
    found
}

/// Everything that can be reached from a file.
fn reached<'a>(uses: &'a Uses, from: &'a Module) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        let used = uses.get(at).into_iter().flat_map(BTreeMap::keys);
        next.extend(
            used.filter(|module| seen.insert(*module))
                .collect::<Vec<_>>(),
        );
    }
    seen
}

/// A circle with two long files or more.
struct Circle {
    long: Vec<String>,
    /// Who uses whom in it, and by which name.
    arrows: Vec<String>,
}

fn circles(all: &Crate) -> Vec<Circle> {
    let uses = uses(all);
    let reach: BTreeMap<_, _> = uses
        .keys()
        .map(|file| (file, reached(&uses, file)))
        .collect();
    let mut found = BTreeMap::new();
    for file in uses.keys() {
        let is_round =
            |other: &&Module| reach[file].contains(*other) && reach[*other].contains(file);
        let circle: Vec<&Module> = uses.keys().filter(is_round).collect();
        let long = circle.iter().filter(|file| all[**file].lines > LONG);
        let long: Vec<String> = long.map(|file| file.join("/")).collect();
        if long.len() > 1 {
            found.insert(circle, long);
        }
    }
    let arrows = |circle: &[&Module]| {
        let inside = uses.iter().filter(|(file, _)| circle.contains(file));
        let arrows = inside.flat_map(|(file, used)| {
            let used = used.iter().filter(|(file, _)| circle.contains(file));
            used.map(|(to, name)| format!("{} -> {} ({name})", file.join("/"), to.join("/")))
        });
        arrows.collect()
    };
    found
        .into_iter()
        .map(|(circle, long)| Circle {
            long,
            arrows: arrows(&circle),
        })
        .collect()
}

fn crate_of(files: &[(Module, String)]) -> Crate {
    files
        .iter()
        .map(|(module, text)| (module.clone(), source(text)))
        .collect()
}

#[test]
fn no_two_long_files_of_a_crate_use_each_other_in_a_circle() {
    let crates = crates();
    assert!(crates.len() > 20, "{:?}", crates.keys());
    let mut wrong = Vec::new();
    for (dir, files) in &crates {
        for Circle { long, arrows } in circles(&crate_of(files)) {
            let stays = |(of, room, _): &(&str, &str, &str)| {
                of == dir && long.iter().all(|file| file.starts_with(room))
            };
            if !STAY.iter().any(stays) {
                let (long, arrows) = (long.join(", "), arrows.join("; "));
                wrong.push(format!("{dir}: {long}: {arrows}"));
            }
        }
    }
    nothing_wrong(&wrong, "long files that use each other");
}

#[test]
fn a_circle_is_found_by_way_of_names_that_are_passed_on_and_others_are_not() {
    let long = |code: &str| format!("{code}\n{}", "//\n".repeat(LONG));
    let files = |child: &str, parent: &str, third: &str| {
        let at = |path: &str| {
            path.split("::")
                .filter(|p| !p.is_empty())
                .map(String::from)
                .collect::<Module>()
        };
        crate_of(&[
            (
                at(""),
                "pub mod a;\nmod b;\npub use b::{B, C as D};\n".to_string(),
            ),
            (at("a"), long(parent)),
            (at("a::child"), long(child)),
            (at("b"), long(third)),
        ])
    };
    let found = |child, parent, third| circles(&files(child, parent, third)).len();
    let parent = "mod child;\npub use child::Child;\npub struct Parent;";
    // What is only passed on is not used.
    assert_eq!(
        found("use super::Parent;\npub struct Child(Parent);", parent, ""),
        0
    );
    // Used in the parent's own code.
    let uses = format!("{parent}\nfn of(child: Child) {{}}");
    assert_eq!(
        found("use super::Parent;\npub struct Child(Parent);", &uses, ""),
        1
    );
    // By a name that the crate's root passes on, and by a path in the code.
    let third = "pub struct B(crate::a::Child);\npub enum C {}";
    assert_eq!(
        found("use crate::B;\npub struct Child(B);", parent, third),
        1
    );
    assert_eq!(found("pub struct Child(crate::D);", parent, third), 1);
    assert_eq!(
        found("use super::*;\npub struct Child(Parent);", &uses, ""),
        1
    );
    // In tests and comments.
    let tests = "#[cfg(test)]\nmod tests {\n    use crate::B;\n    fn b(b: B) {}\n}\n// crate::B\npub struct Child;";
    assert_eq!(found(tests, parent, third), 0);
}
