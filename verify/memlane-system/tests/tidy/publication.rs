//! What must not appear in a published tree: paths and hosts of private machines, unfinished work, private
//! registries.

use super::{files, mentions, nothing_wrong, text};

/// Hosts that the files may name: public ones that a reader can open.
const HOSTS: &str = "
    127.0.0.1 localhost github.com doc.rust-lang.org docs.rs rustup.rs keepachangelog.com
    semver.org www.apache.org www.rfc-editor.org datatracker.ietf.org www.kernel.org
    docs.kernel.org lore.kernel.org lwn.net man7.org netdevconf.info www.ibm.com
    fio.readthedocs.io tools.ietf.org www.w3.org www.debian.org 192.0.2.1 192.0.2.2
    kubernetes.default.svc
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
