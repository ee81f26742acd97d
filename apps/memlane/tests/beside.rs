//! Verbs that are programs of their own.

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{Dir, memlane, stderr, stdout};

/// One test at a time: a program that the other test starts meanwhile has, for a moment, a copy of a descriptor by which a file
/// is written here, and the kernel executes no such file (`ETXTBSY`).
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that has memlane in `bin`, as if it were installed there.
fn installed() -> Dir {
    let dir = Dir::new();
    std::fs::create_dir(dir.0.join("bin")).expect("made");
    std::fs::copy(memlane().get_program(), dir.0.join("bin/memlane")).expect("copied");
    dir
}

fn run(dir: &Dir, arguments: &[&str]) -> Output {
    let mut command = Command::new(dir.0.join("bin/memlane"));
    command.args(arguments).output().expect("memlane starts")
}

#[test]
fn a_verb_without_its_program_says_where_it_looked_and_what_to_do() {
    let _alone = alone();
    let dir = installed();
    for verb in ["webhook", "csi"] {
        let done = run(&dir, &[verb, "--help"]);
        let said = stderr(&done);
        assert_eq!(done.status.code(), Some(3), "{said}");
        assert!(
            said.contains(&format!("memlane-{verb} is not installed")),
            "{said}"
        );
        assert!(said.contains("/libexec/memlane/"), "{said}");
    }
}

#[test]
fn a_verb_becomes_the_program_beside_with_all_its_arguments_and_its_exit_code() {
    let _alone = alone();
    let dir = installed();
    for (place, verb) in [("bin", "csi"), ("libexec/memlane", "webhook")] {
        let folder = dir.0.join(place);
        std::fs::create_dir_all(&folder).expect("made");
        let program = folder.join(format!("memlane-{verb}"));
        std::fs::write(&program, "#!/bin/sh\necho \"$#: $*\"\nexit 42\n").expect("written");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("ours");
        let done = run(&dir, &[verb, "node", "--help", "--json", "-x"]);
        assert_eq!(done.status.code(), Some(42), "{}", stderr(&done));
        assert_eq!(stdout(&done), "4: node --help --json -x\n");
    }
}
