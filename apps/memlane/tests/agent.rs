//! `memlane agent` where it cannot work: each time it says why, and what to do, and exits with 3.
//!
//! Needs root for the namespaces.

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Dir, memlane, stderr};

/// What the agent says when a command starts it; `None`, and a word on standard error, where the command cannot run.
fn agent_under(test: &str, command: &[&str]) -> Option<Output> {
    let works = Command::new(command[0])
        .args(&command[1..])
        .arg("true")
        .output();
    if !works.as_ref().is_ok_and(|done| done.status.success()) {
        eprintln!("SKIPPED {test}: {command:?} does not work here: {works:?}");
        return None;
    }
    let program = memlane().get_program().to_owned();
    let dir = Dir::new();
    // An agent that works would serve for ever.
    let done = Command::new(command[0])
        .args(&command[1..])
        .args(["timeout", "10"])
        .arg(program)
        .arg("agent")
        .arg(dir.0.join("domain"))
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
    let command = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];
    refuses("capabilities", &command, "lacks CAP_BPF or CAP_PERFMON");
}

/// Older engines know no other capability to give a container for this.
#[test]
fn with_sys_admin_instead_of_the_two_the_agent_keeps_it_and_gives_up_the_others() {
    let without = ["setpriv", "--bounding-set", "-bpf,-perfmon"];
    let works = Command::new("setpriv")
        .args(&without[1..])
        .arg("true")
        .output();
    if !works.is_ok_and(|done| done.status.success()) {
        eprintln!("SKIPPED with_sys_admin: no setpriv, or not root");
        return;
    }
    let (program, dir) = (memlane().get_program().to_owned(), Dir::new());
    let mut agent = Command::new("setpriv")
        .args(&without[1..])
        .arg(program)
        .arg("agent")
        .arg(dir.0.join("domain"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("setpriv is there");
    let mut line = String::new();
    let said = BufReader::new(agent.stdout.take().expect("piped")).read_line(&mut line);
    // It gives them up just after it has said that it serves.
    let (end, mut permitted) = (Instant::now() + Duration::from_secs(5), u64::MAX);
    while permitted != 1 << CAP_SYS_ADMIN && Instant::now() < end {
        permitted = permitted_by(agent.id());
    }
    agent.kill().expect("ours");
    agent.wait().expect("a child");
    assert!(said.is_ok() && line.starts_with("serves"), "{line}");
    assert_eq!(permitted, 1 << CAP_SYS_ADMIN, "{permitted:x}");
}

/// Its number (include/uapi/linux/capability.h).
const CAP_SYS_ADMIN: u32 = 21;

fn permitted_by(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
    u64::from_str_radix(line.unwrap_or_default().trim(), 16).unwrap_or_default()
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
