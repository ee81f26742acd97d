//! What the work tree and the built library must look like, whatever they do:
//! who may use whom, what is written down, what the library asks of libc.

use memlane_system::harness::{self, Built, TempDir};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/formats.rs"]
mod formats;

// The structures whose offsets docs/formats tells, as the spine compiles them.
// By path: nothing here links with what it tests.
#[path = "../../../spine/memlane-core/src/access.rs"]
#[allow(dead_code, unreachable_pub, clippy::all)]
mod access;
#[path = "../../../spine/memlane-core/src/layout.rs"]
#[allow(dead_code, unreachable_pub, clippy::all)] // linted in its own crate
mod layout;
#[path = "../../../spine/memlane-core/src/stats.rs"]
#[allow(dead_code, unreachable_pub, clippy::all)]
mod stats;
#[path = "../../../spine/memlane-core/src/sync.rs"]
#[allow(dead_code, unreachable_pub, unexpected_cfgs, clippy::all)]
mod sync;
#[path = "../../../spine/memlane-core/src/trace.rs"]
#[allow(dead_code, unreachable_pub, clippy::all)]
mod trace;

const MOST_LINES: usize = 799;
/// A SAFETY comment begins at most so many lines above its `unsafe`.
const SAFETY_WITHIN: usize = 6;

// ---- the work tree ----------------------------------------------------------

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the work tree")
}

/// Files of the work tree that git tracks or would track, relative to its root.
fn files() -> Vec<String> {
    let root = root();
    let listed = Command::new("git")
        .arg("-C")
        .arg(&root)
        .args(["-c", "safe.directory=*", "ls-files", "-coz"])
        .arg("--exclude-standard")
        .output();
    let mut files: Vec<String> = match listed {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter(|file| root.join(file).is_file())
            .map(String::from)
            .collect(),
        // An unpacked archive has no .git.
        _ => walk(&root, &root),
    };
    files.sort();
    assert!(files.iter().any(|file| file == "Cargo.toml"), "{files:?}");
    files
}

/// Every file below `dir` that is not a build output.
fn walk(dir: &Path, root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("readable").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().expect("a file type");
        if kind.is_dir() && name != ".git" && !path.join("CACHEDIR.TAG").exists() {
            found.extend(walk(&path, root));
        } else if kind.is_file() {
            let file = path.strip_prefix(root).expect("below the root");
            found.push(file.to_string_lossy().into_owned());
        }
    }
    found
}

/// The text of a file of the work tree; `None` if it is not there, or no text.
fn text(file: &str) -> Option<String> {
    std::fs::read_to_string(root().join(file)).ok()
}

fn rust_files() -> Vec<(String, String)> {
    let ours = ["spine/", "lanes/", "apps/", "bindings/", "verify/"];
    let files = files().into_iter();
    let rust = files.filter(|f| f.ends_with(".rs") && ours.iter().any(|dir| f.starts_with(dir)));
    let found: Vec<_> = rust.filter_map(|f| text(&f).map(|t| (f, t))).collect();
    assert!(found.len() > 50, "only {} Rust files", found.len());
    found
}

/// `word` in `text` as a word of its own: not as a part of a longer name.
fn mentions(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part))
}

#[track_caller]
fn nothing_wrong(wrong: &[String], what: &str) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

// ---- who uses whom ----------------------------------------------------------

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

/// May a package of layer `user` use `used`, which is of layer `layer`?
/// Lanes that use another one: docs/decisions/0011.
const BETWEEN_LANES: [(&str, &str); 2] = [
    ("memlane-block", "memlane-transport"),
    ("memlane-devmem", "memlane-socket"),
];

fn may_use(user: &Manifest, used: &str, layer: &str) -> bool {
    match user.layer.as_str() {
        "verify" => true,
        "spine" => layer == "spine",
        "lanes" if layer == "lanes" => BETWEEN_LANES.contains(&(user.name.as_str(), used)),
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

// ---- what is written down ---------------------------------------------------

/// Is `calls/io.rs` mentioned: as `calls/io`, `calls::io`, or `io` in a line about `calls/`? Of `a/b/c.rs` the line must
/// be about `a/` and `b/`.
fn maps_module(map: &str, file: &str) -> bool {
    let (dir, name) = file.rsplit_once('/').unwrap_or(("", file));
    let stem = name.trim_end_matches(".rs");
    let (quoted, path) = (format!("`{stem}`"), format!("{dir}/{stem}"));
    let behind = format!("{}/{stem}`", dir.rsplit('/').next().unwrap_or_default());
    let about = |line: &str| dir.split('/').all(|one| line.contains(&format!("{one}/")));
    let told = |line: &str| {
        [&quoted, &behind].iter().any(|text| line.contains(*text)) || mentions(line, name)
    };
    map.lines().any(|line| match (dir, name) {
        ("", _) => mentions(line, name) || line.contains(&quoted),
        (_, "mod.rs") => about(line),
        _ => mentions(line, &path.replace('/', "::")) || about(line) && told(line),
    })
}

#[test]
fn the_map_of_the_code_shows_every_crate_and_every_room_of_a_lane() {
    let map = text("ARCHITECTURE.md").expect("there is no ARCHITECTURE.md");
    let mut wrong = Vec::new();
    for member in members() {
        let file = format!("{member}/Cargo.toml");
        let name = manifest(&file, &text(&file).expect("a member's manifest")).name;
        if name.is_empty() || !mentions(&map, &name) {
            wrong.push(format!("{file}: package `{name}`"));
        }
    }
    let files = files();
    for lane in ["socket", "packet", "devmem", "transport", "block"] {
        let lane = format!("lanes/memlane-{lane}/src/");
        let modules: Vec<_> = files
            .iter()
            .filter_map(|file| file.strip_prefix(&lane))
            .collect();
        assert!(modules.len() > 10, "{modules:?}");
        // The crate's name stands for its lib.rs.
        let code = |module: &&&str| **module != "lib.rs" && !module.ends_with("_tests.rs");
        let rooms = modules.iter().filter(code);
        let absent = rooms.filter(|module| !maps_module(&map, module));
        wrong.extend(absent.map(|module| format!("{lane}{module}")));
    }
    nothing_wrong(&wrong, "ARCHITECTURE.md does not mention");
}

#[test]
fn a_longer_name_is_no_mention_of_a_shorter_one() {
    assert!(mentions("the `memlane` command", "memlane"));
    assert!(!mentions("memlane-core, xmemlane", "memlane"));
    let map = "`calls/`: `life`, preal.rs\n`wait::poll`, calls/iov.rs";
    let there = ["calls/life.rs", "wait/poll.rs", "calls/mod.rs"];
    assert_eq!(there.map(|file| maps_module(map, file)), [true; 3]);
    let absent = ["calls/io.rs", "real.rs", "wait/life.rs"];
    assert_eq!(absent.map(|file| maps_module(map, file)), [false; 3]);
    let map = "`a/` – `b/` (`mod`, `c`), `d/e`\n`x/`: `c`";
    assert!(
        ["a/b/mod.rs", "a/b/c.rs", "a/d/e.rs"]
            .iter()
            .all(|file| maps_module(map, file))
    );
    assert!(
        !["a/b/e.rs", "x/b/c.rs", "a/y/c.rs"]
            .iter()
            .any(|file| maps_module(map, file))
    );
}

#[test]
fn no_rust_file_is_longer_than_one_can_read() {
    let count = |(file, text): (String, String)| (file, text.lines().count());
    let lengths = rust_files().into_iter().map(count);
    let long = lengths.filter(|(_, lines)| *lines > MOST_LINES);
    let wrong: Vec<_> = long
        .map(|(file, lines)| format!("{file}: {lines} lines"))
        .collect();
    nothing_wrong(&wrong, &format!("longer than {MOST_LINES} lines"));
}

// ---- unsafe -----------------------------------------------------------------

/// Rust files below `dirs` that are no tests.
fn code_files(dirs: &[&str]) -> Vec<(String, String)> {
    let mut found = rust_files();
    found.retain(|(file, _)| {
        let test = file.starts_with("verify/") || file.contains("/tests/");
        let test = test || file.ends_with("/tests.rs") || file.ends_with("_tests.rs");
        !test && dirs.iter().any(|dir| file.starts_with(dir))
    });
    found
}

/// The lines of a file, numbered from 1, less its `#[cfg(test)]` modules.
fn without_tests(text: &str) -> Vec<(usize, &str)> {
    let (mut kept, mut in_tests, mut above) = (Vec::new(), false, "");
    for (at, line) in text.lines().enumerate() {
        in_tests |= above == "#[cfg(test)]" && line.ends_with('{');
        if !in_tests {
            kept.push((at + 1, line));
        }
        // rustfmt puts the end of a module at the margin.
        in_tests &= line != "}";
        above = line;
    }
    kept
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Line numbers of `unsafe` blocks and impls that do not say why.
fn unexplained(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let explained = |at: usize| {
        let above = &lines[at.saturating_sub(SAFETY_WITHIN + 1)..at];
        above.iter().any(|line| line.contains("// SAFETY:"))
    };
    let is_unsafe = |line| mentions(code(line), "unsafe {") || mentions(code(line), "unsafe impl");
    let code = without_tests(text).into_iter();
    let found = code.filter(|(at, line)| is_unsafe(line) && !explained(*at));
    found.map(|(at, _)| at).collect()
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    let mut wrong = Vec::new();
    for (file, text) in code_files(&[""]) {
        let lines = unexplained(&text).into_iter();
        wrong.extend(lines.map(|line| format!("{file}:{line}")));
    }
    let what = format!("unsafe without a SAFETY comment in the {SAFETY_WITHIN} lines above it");
    nothing_wrong(&wrong, &what);
}

#[test]
fn an_unsafe_block_without_a_reason_would_be_found_out() {
    let said = "// SAFETY: because.\nlet a = unsafe { b() };\n";
    assert!(unexplained(said).is_empty());
    let far = format!("// SAFETY: because.\n{}unsafe {{ b() }}\n", "\n".repeat(6));
    assert_eq!(unexplained(&far), [8]);
    assert_eq!(unexplained("unsafe impl Send for A {}\n"), [1]);
    let tests = "#[cfg(test)]\nmod tests {\n    unsafe { a() }\n}\nunsafe { b() }\n";
    assert_eq!(unexplained(tests), [5]);
}

// ---- what must not be in the files ------------------------------------------

/// Hosts that the files may name: public ones that a reader can open.
const HOSTS: &str = "
    127.0.0.1 localhost github.com doc.rust-lang.org docs.rs rustup.rs keepachangelog.com
    semver.org www.apache.org www.rfc-editor.org datatracker.ietf.org www.kernel.org
    docs.kernel.org lore.kernel.org lwn.net man7.org netdevconf.info www.ibm.com
    fio.readthedocs.io www.w3.org www.debian.org 192.0.2.1 192.0.2.2
";

/// Ends of host names that only one machine room can resolve.
const PRIVATE: [&str; 3] = [".internal", ".corp", ".cluster.local"];

/// What is wrong with a line: a machine's own path, a private host, a promise.
fn private_or_unfinished(line: &str) -> Option<String> {
    // In pieces, for this file is looked at too.
    let path = concat!("/", "work/");
    let relative = |c: char| c.is_alphanumeric() || "_-.})*>".contains(c);
    let absolute = |(at, _): (usize, &str)| !line[..at].ends_with(relative);
    if line.match_indices(path).any(absolute) {
        return Some("a path of somebody's machine".into());
    }
    let promises = [concat!("TO", "DO"), concat!("FIX", "ME")];
    if let Some(word) = promises.iter().find(|word| mentions(line, word)) {
        return Some((*word).into());
    }
    let hosts = line.split("://").skip(1).map(host);
    let strange = hosts
        .filter(|host| !host.is_empty() && !HOSTS.split_whitespace().any(|known| known == *host));
    let private = PRIVATE.iter().filter(|end| {
        let named = |(at, _): (usize, &str)| line[..at].ends_with(char::is_alphanumeric);
        mentions(line, end.trim_start_matches('.')) && line.match_indices(*end).any(named)
    });
    let mut wrong = strange.chain(private.copied());
    wrong.next().map(|host| format!("host {host}"))
}

/// The host at the beginning of what follows `://`; empty if it is filled in later.
fn host(rest: &str) -> &str {
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '.' || c == '-'));
    let host = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
    if host.contains('.') || host == "localhost" {
        host
    } else {
        ""
    }
}

#[test]
fn the_files_name_no_machine_of_ours_and_promise_nothing() {
    let mut wrong = Vec::new();
    for file in files() {
        for (at, line) in text(&file).unwrap_or_default().lines().enumerate() {
            if let Some(what) = private_or_unfinished(line) {
                wrong.push(format!("{file}:{}: {what}", at + 1));
            }
        }
    }
    nothing_wrong(&wrong, "not for publication");
}

#[test]
fn a_private_path_or_host_would_be_found_out() {
    let found = |line: &str| private_or_unfinished(line).is_some();
    assert!(found(concat!("see /", "work/main/dev")));
    assert!(!found("see src/bench/work/nginx.rs"));
    assert!(found(concat!("// TO", "DO: more")));
    assert!(found(concat!(
        "index = \"https://",
        "mirror.example.com/simple\""
    )));
    assert!(found(concat!("cargo.registry", ".internal:8080")));
    assert!(!found(
        "https://github.com/memlane/memlane and http://{host}:{port}/"
    ));
}

#[test]
fn the_lock_files_take_every_crate_from_the_public_index() {
    let read = |file| text(file).unwrap_or_else(|| panic!("{file} is not tracked"));
    let peer = "bench/peers/iceoryx2/Cargo.lock";
    let locks = ["Cargo.lock", peer].map(read);
    let sources = locks
        .iter()
        .flat_map(|lock| lock.lines())
        .filter_map(|line| line.strip_prefix("source = "));
    let public = "\"registry+https://github.com/rust-lang/crates.io-index\"";
    let other: Vec<_> = sources
        .filter(|source| *source != public)
        .map(String::from)
        .collect();
    nothing_wrong(&other, "a Cargo.lock has other sources");
    let named = |file: &String| file.ends_with(".cargo/config.toml") || file.ends_with(".npmrc");
    let settings: Vec<_> = files().into_iter().filter(named).collect();
    nothing_wrong(&settings, "settings of somebody's machine are tracked");
}

/// The page that explains the reasons has all of them, as the code says them, and for each a test that there is.
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

// ---- the preload library ----------------------------------------------------

/// The release build; `None` if this run leaves memlane out.
fn library() -> Option<PathBuf> {
    if harness::plain_only() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: the preload library's own shape"
        );
        return None;
    }
    let library = Built::find().preload;
    let dir = library.parent().and_then(Path::file_name);
    let debug = dir.is_some_and(|dir| dir == "debug");
    assert!(
        !debug,
        "only a debug build found: run `cargo build --release`"
    );
    Some(library)
}

/// What a program of binutils prints about the library.
fn binutils(program: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(file)
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|error| panic!("{program} (binutils): {error}"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {}: {complaint}",
        file.display()
    );
    String::from_utf8(output.stdout).expect("ASCII")
}

/// Names of dynamic symbols, without their versions.
fn symbols(library: &Path, which: &str) -> BTreeSet<String> {
    let printed = binutils("nm", &["-D", which], library);
    let names = printed
        .lines()
        .filter_map(|line| line.split_whitespace().last());
    let names: BTreeSet<String> = names.map(without_version).collect();
    assert!(names.len() > 5, "nm -D {which}: {names:?}");
    names
}

fn without_version(name: &str) -> String {
    name.split('@').next().unwrap_or_default().into()
}

/// The names in the table of apps/memlane-preload/src/lib.rs.
fn hooked() -> BTreeSet<String> {
    let source = text("apps/memlane-preload/src/lib.rs").expect("the table");
    let table = |start: &str| {
        let (_, rest) = source.split_once(start).expect(start);
        rest.split("\n}").next().unwrap_or_default().to_string()
    };
    let (hooks, shims) = (table("\nhooks! {"), table("\nshims! {"));
    let functions = hooks
        .lines()
        .filter_map(|line| line.trim().strip_prefix("fn "));
    let functions = functions.filter_map(|line| line.split_once('('));
    let jumps = shims
        .lines()
        .filter_map(|line| line.trim().split_once(" => "));
    let names = functions.chain(jumps).map(|(name, _)| name);
    let names = names.filter(|name| !name.starts_with("memlane_"));
    let names: BTreeSet<String> = names.map(String::from).collect();
    assert!(names.len() > 60, "{names:?}");
    names
}

#[test]
fn the_library_exports_what_its_table_says_and_nothing_else() {
    let Some(library) = library() else { return };
    let ours = |name: &String| !name.starts_with("memlane_");
    let (table, exported) = (hooked(), symbols(&library, "--defined-only"));
    let exported: BTreeSet<String> = exported.into_iter().filter(ours).collect();
    let difference: Vec<_> = table.symmetric_difference(&exported).collect();
    assert!(
        difference.is_empty(),
        "{}: {difference:?}",
        library.display()
    );
}

/// Symbols that the dynamic linker looks up, and with which kind of relocation.
fn relocations(library: &Path) -> Vec<(String, String)> {
    let printed = binutils("readelf", &["-rW"], library);
    let fields = printed
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let entries = fields.filter(|f| f.len() >= 3 && f[2].starts_with("R_"));
    let name = |f: &[&str]| {
        f.get(4)
            .map_or_else(String::new, |name| without_version(name))
    };
    let found: Vec<_> = entries.map(|f| (f[2].to_string(), name(&f))).collect();
    assert!(found.iter().any(|(_, name)| name == "dlsym"), "{found:?}");
    found
}

/// Fault points are for tests: a library that is shipped has no word of them.
#[test]
fn the_library_has_no_trace_of_fault_points() {
    let Some(library) = library() else { return };
    let bytes = std::fs::read(&library).expect("the library");
    let has = |word: &str| {
        bytes
            .windows(word.len())
            .any(|part| part == word.as_bytes())
    };
    assert!(has("MEMLANE_UPGRADE"), "its variables are in it as text");
    let steps = memlane_system::faulty::STEPS.iter().map(|(name, ..)| *name);
    // One word each: short ones may be anywhere.
    let long = steps.filter(|name| name.contains('-'));
    let found: Vec<_> = long
        .chain(["MEMLANE_FAULT"])
        .filter(|word| has(word))
        .collect();
    assert!(found.is_empty(), "{}: {found:?}", library.display());
    // The one of the tests has: this looks at the right thing.
    let faulty = std::fs::read(memlane_system::faulty::library()).expect("the library");
    assert!(faulty.windows(13).any(|part| part == b"MEMLANE_FAULT"));
}

/// A call to a hooked name would come back to the hook, not to libc.
#[test]
fn the_library_calls_none_of_the_names_that_it_hooks() {
    let Some(library) = library() else { return };
    let hooked = hooked();
    let asked = symbols(&library, "--undefined-only");
    // Its own hooks are "defined", so a call to one shows as a relocation only.
    let looked_up = relocations(&library).into_iter().map(|(_, name)| name);
    let called = asked.into_iter().chain(looked_up);
    let wrong: Vec<_> = called.filter(|name| hooked.contains(name)).collect();
    nothing_wrong(&wrong, "called by the library itself");
}

/// In Rust the compiler joins such a call to the hook: nothing of it is left to see above.
#[test]
fn no_code_of_the_library_calls_a_hooked_name_of_libc() {
    let hooked = hooked().into_iter();
    let calls: Vec<_> = hooked.map(|name| format!("libc::{name}(")).collect();
    let mut wrong = Vec::new();
    for (file, text) in code_files(&[
        "spine/",
        "lanes/memlane-socket/src/",
        "apps/memlane-preload/",
    ]) {
        for (at, line) in without_tests(&text) {
            let called = calls.iter().filter(|call| code(line).contains(*call));
            wrong.extend(called.map(|call| format!("{file}:{at}: {call}…)")));
        }
    }
    nothing_wrong(&wrong, "comes back to the hook (use memlane-sys, or real!)");
}

/// What a hook must not do: it may run in a signal handler, in a forked child
/// of a threaded program, or before the program's own allocator is ready.
#[test]
fn the_library_neither_allocates_nor_locks_nor_unwinds() {
    let Some(library) = library() else { return };
    let exact = [
        "malloc",
        "calloc",
        "realloc",
        "posix_memalign",
        "aligned_alloc",
    ];
    let begin = ["pthread_", "_Unwind_", "__tls_get_addr", "__tlsdesc"];
    let refused = |name: &String| {
        exact.contains(&name.as_str()) || begin.iter().any(|start| name.starts_with(start))
    };
    let asked = symbols(&library, "--undefined-only").into_iter();
    let wrong: Vec<_> = asked.filter(refused).collect();
    nothing_wrong(&wrong, "asked of libc");
    let lazy = ["DTPMOD", "DTPOFF", "TLSDESC"];
    let late = relocations(&library).into_iter();
    let late = late.filter(|(kind, _)| lazy.iter().any(|word| kind.contains(word)));
    let late: Vec<_> = late.map(|(kind, name)| format!("{kind} {name}")).collect();
    nothing_wrong(
        &late,
        "thread-local memory that is allocated when first touched",
    );
}

#[test]
fn the_library_needs_libc_alone_and_its_code_stays_read_only() {
    let Some(library) = library() else { return };
    let dynamic = binutils("readelf", &["-dW"], &library);
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let needed: Vec<_> = needed
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    assert!(needed.contains(&"libc.so.6"), "{needed:?}");
    let other = |name: &&&str| **name != "libc.so.6" && !name.starts_with("ld-linux");
    assert_eq!(needed.iter().filter(other).count(), 0, "{needed:?}");
    for refused in ["TEXTREL", "(RPATH)", "(RUNPATH)"] {
        assert!(!dynamic.contains(refused), "{refused}:\n{dynamic}");
    }
    let dir = TempDir::new("tidy");
    let stripped = dir.path().join("stripped.so");
    let to = stripped.to_str().expect("ASCII path");
    binutils("strip", &["-o", to], &library);
    let bytes = std::fs::metadata(&stripped).expect("stripped").len();
    // Not println: it is to be seen when the test passes, too.
    let _ = writeln!(
        std::io::stderr(),
        "preload library, stripped: {bytes} bytes"
    );
}
