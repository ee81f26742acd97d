//! Manual pages and completions, as `memlane __pages` writes them: formatters and shells take them, and they complete.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Dir, memlane, stderr, stdout};

/// Everything, as it would be installed.
fn generated(dir: &Dir) -> PathBuf {
    let share = dir.0.join("share");
    let output = memlane().arg("__pages").arg(&share).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    share
}

/// What a program prints, errors first; `None` if it is not installed.
fn said(program: &str, arguments: &[&str], files: &[PathBuf]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).args(files).env("LC_ALL", "C");
    match command.output() {
        Ok(output) => Some(stderr(&output) + &stdout(&output)),
        Err(_) => {
            assert!(
                std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_none(),
                "{program} is not installed"
            );
            eprintln!("SKIPPED: no {program}");
            None
        }
    }
}

fn manuals(share: &Path) -> Vec<PathBuf> {
    let pages = ["man/man1", "man/man7"].iter();
    let pages = pages.flat_map(|section| fs::read_dir(share.join(section)).unwrap());
    let pages: Vec<PathBuf> = pages.map(|page| page.unwrap().path()).collect();
    assert!(pages.len() > 20, "{pages:?}");
    pages
}

#[test]
fn formatters_have_nothing_to_say_about_the_manual_pages() {
    let dir = Dir::new();
    let pages = manuals(&generated(&dir));
    for (program, flags) in [
        ("groff", &["-man", "-ww", "-z"][..]),
        ("mandoc", &["-T", "lint", "-W", "warning"]),
    ] {
        if let Some(said) = said(program, flags, &pages) {
            assert_eq!(said, "", "{program}");
        }
    }
    // They would have.
    let broken = dir.file("broken.1", ".TH X 1\n.SH NAME\n.BOGUS \\fB\n", 0o644);
    if let Some(said) = said("mandoc", &["-T", "lint", "-W", "warning"], &[broken]) {
        assert!(said.contains("BOGUS"), "{said}");
    }
}

#[test]
fn a_manual_page_says_what_help_says_and_how_the_verb_can_end() {
    let dir = Dir::new();
    let share = generated(&dir);
    let page = |name: &str| fs::read_to_string(share.join("man/man1").join(name)).unwrap();
    let run = page("memlane-run.1");
    for text in ["\\-\\-upgrade", "\\fB127\\fR", "memlane (7)"] {
        assert!(run.contains(text), "{text}");
    }
    assert!(!run.contains("\\fB2\\fR"), "2 is the command's own");
    assert!(page("memlane-net-sink.1").contains("\\fB6\\fR"));
    assert!(!page("memlane-ss.1").contains("\\fB6\\fR"));
    assert!(
        !page("memlane.1").contains("__"),
        "hidden verbs stay hidden"
    );
    let again = Dir::new();
    let other = generated(&again);
    for page in manuals(&share) {
        let same = other.join(page.strip_prefix(&share).unwrap());
        assert_eq!(
            fs::read(&page).unwrap(),
            fs::read(same).unwrap(),
            "built twice"
        );
    }
}

#[test]
fn the_shells_take_their_completions() {
    let dir = Dir::new();
    let share = generated(&dir);
    for (shell, file) in [
        ("bash", "bash-completion/completions/memlane"),
        ("zsh", "zsh/vendor-completions/_memlane"),
        ("fish", "fish/vendor_completions.d/memlane.fish"),
    ] {
        let file = share.join(file);
        assert!(fs::metadata(&file).unwrap().len() > 1000, "{shell}");
        if let Some(said) = said(shell, &["-n"], &[file]) {
            assert_eq!(said, "", "{shell}");
        }
    }
}

/// What bash offers for the last of `words`.
fn offered_by_bash(share: &Path, words: &[&str]) -> Option<Vec<String>> {
    let file = share.join("bash-completion/completions/memlane");
    let last = words.len() - 1;
    let script = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={last}; \
         _memlane memlane '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        file.display(),
        words.join(" "),
        words[last],
        words[last - 1],
    );
    let said = said("bash", &["-c", &script], &[])?;
    Some(said.lines().map(str::to_owned).collect())
}

#[test]
fn bash_and_fish_complete_verbs_and_flags_and_nothing_hidden() {
    let dir = Dir::new();
    let share = generated(&dir);
    if let Some(verbs) = offered_by_bash(&share, &["memlane", "s"]) {
        assert!(
            ["ss", "stats"]
                .iter()
                .all(|verb| verbs.iter().any(|v| v == verb))
        );
        assert!(verbs.iter().all(|verb| verb.starts_with('s')), "{verbs:?}");
        let flags = offered_by_bash(&share, &["memlane", "stats", "--de"]);
        assert_eq!(flags.unwrap(), ["--details"]);
        let values = offered_by_bash(&share, &["memlane", "run", "--upgrade", "e"]);
        assert_eq!(values.unwrap(), ["eager"]);
        let hidden = offered_by_bash(&share, &["memlane", "__"]);
        assert!(hidden.unwrap().iter().all(String::is_empty));
    }
    let file = share.join("fish/vendor_completions.d/memlane.fish");
    let script = format!("source {}; complete -C 'memlane sta'", file.display());
    if let Some(said) = said("fish", &["--no-config", "-c", &script], &[]) {
        assert!(said.starts_with("stats\t"), "{said}");
    }
}
