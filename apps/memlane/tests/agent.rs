//! `memlane agent` where it cannot work: each time it says why, and what to do, and exits with 3.
//!
//! Needs root for the namespaces.

mod common;

use std::process::{Command, Output};

use common::{Dir, memlane, stderr};

/// What the agent says when a command starts it; `None`, and a word on standard error, where the command cannot run.
fn agent_under(test: &str, command: &[&str]) -> Option<Output> {
    let works = Command::new(command[0]).args(&command[1..]).arg("true").output();
    if !works.as_ref().is_ok_and(|done| done.status.success()) {
        eprintln!("SKIPPED {test}: {command:?} does not work here: {works:?}");
        return None;
    }
    let program = memlane().get_program().to_owned();
    let dir = Dir::new(test);
    let done = Command::new(command[0])
        .args(&command[1..])
        .arg(program)
        .arg("agent")
        .arg(dir.path().join("domain"))
        .output();
    Some(done.expect("it was just tried"))
}

fn refuses(test: &str, command: &[&str], because: &str) {
    let Some(done) = agent_under(test, command) else {
        return;
    };
    let said = stderr(&done);
    assert_eq!(done.status.code(), Some(3), "{said}");
    assert!(said.contains(because), "{said}");
}

#[test]
fn without_its_capabilities_the_agent_says_which_it_needs() {
    let command = ["setpriv", "--bounding-set", "-bpf", "--inh-caps", "-bpf"];
    refuses("capabilities", &command, "lacks CAP_BPF or CAP_PERFMON");
}

#[test]
fn without_the_kernel_s_types_the_agent_says_which_option_makes_them() {
    let hide = "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"";
    let command = ["unshare", "--mount", "sh", "-c", hide, "sh"];
    refuses("types", &command, "CONFIG_DEBUG_INFO_BTF");
}

#[test]
fn in_a_user_namespace_of_its_own_the_agent_says_so() {
    let command = ["unshare", "--user", "--map-root-user"];
    refuses("users", &command, "user namespace of its own");
}

#[test]
fn in_a_pid_namespace_of_its_own_the_agent_says_so() {
    let command = ["unshare", "--pid", "--fork", "--mount-proc"];
    refuses("pids", &command, "--pid host");
}
