//! `memlane agent` where it cannot work: each time it says why, and what to do, and exits with 3. What it tells of itself where
//! it works.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for an agent that works.

mod common;

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Dir, memlane, stderr, stdout};
use memlane_socket::protocol::agent::{Answer, LEN, Outcome, Question, Refusal, Role, SOCKET};
use memlane_sys::fd::{self, Fd};
use memlane_sys::sock;

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

// --- where it works ---------------------------------------------------------

/// An agent that serves one domain. Killed when dropped.
struct Running {
    child: Child,
    dir: Dir,
}

impl Running {
    /// `None`, and a word on standard error, where there can be none.
    fn start(test: &str) -> Option<Running> {
        let dir = Dir::new();
        let mut command = memlane();
        command.arg("agent").arg(dir.0.join("domain"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("memlane starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        let _ = BufReader::new(out).read_line(&mut line);
        if line.starts_with("serves ") {
            return Some(Running { child, dir });
        }
        let done = child.wait_with_output().expect("it ends");
        assert_eq!(done.status.code(), Some(3), "{}", stderr(&done));
        eprintln!("SKIPPED {test}: {}", stderr(&done));
        None
    }

    fn domain(&self) -> String {
        self.dir.0.join("domain").display().to_string()
    }

    /// What `memlane info` says to a program of the domain.
    fn info(&self) -> String {
        let mut command = memlane();
        command.arg("info").env("MEMLANE_DOMAIN", self.domain());
        stdout(&command.output().expect("memlane starts"))
    }

    /// The lines of the exporter about this agent, without its domain.
    fn metrics(&self) -> Vec<String> {
        let mut command = memlane();
        command.args(["exporter", "--textfile", "-"]);
        let page = stdout(&command.output().expect("memlane starts"));
        let domain = format!("domain=\"{}\"", self.domain());
        let its = page.lines().filter(|line| line.contains(&domain));
        its.map(|line| line.replace(&domain, "")).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks the agent about a socket of this process, with that inode.
fn ask(agent: &Fd, fd: i32, inode: u64, role: Role) {
    let question = Question {
        id: 1,
        fd,
        inode,
        role,
    };
    sock::send_to_peer(agent.raw(), &question.encode(), &[]).expect("it hears");
}

fn outcome(agent: &Fd) -> Outcome {
    let end = Instant::now() + Duration::from_secs(10);
    let mut bytes = [0; LEN];
    while sock::recv_with_fds(agent.raw(), &mut bytes).is_err() {
        assert!(Instant::now() < end, "no answer");
        std::thread::sleep(Duration::from_millis(1));
    }
    Answer::decode(&bytes).expect("an answer").outcome
}

/// Has the agent introduce two ends of a connection, and refuse a question about no socket. The process stays connected for as
/// long as what is returned.
fn introduced(domain: &str) -> Fd {
    let agent = sock::unix_seqpacket_to(format!("{domain}/{SOCKET}").as_bytes());
    let agent = agent.expect("it listens");
    ask(&agent, -1, 0, Role::Connected);
    assert_eq!(outcome(&agent), Outcome::Refuse(Refusal::NotSeen));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (server, _) = listener.accept().expect("connected");
    for (end, role) in [(&client, Role::Connected), (&server, Role::Accepted)] {
        let inode = fd::stat(end.as_raw_fd()).expect("open").ino;
        ask(&agent, end.as_raw_fd(), inode, role);
    }
    for _ in 0..2 {
        assert!(matches!(outcome(&agent), Outcome::Meet { .. }));
    }
    agent
}

/// Looks again and again until it is so: the agent answers a question just before it counts it.
fn comes(look: impl Fn() -> String, so: impl Fn(&str) -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let seen = look();
        if so(&seen) {
            return;
        }
        assert!(Instant::now() < end, "{seen}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn info_and_the_exporter_show_what_the_agent_has_done() {
    let Some(agent) = Running::start("info_and_the_exporter") else {
        return;
    };
    let nothing = "0 connections introduced of 0 questions";
    comes(|| agent.info(), |said| said.contains(nothing));
    let process = introduced(&agent.domain());
    let counted = "1 connections introduced of 3 questions";
    comes(|| agent.info(), |said| said.contains(counted));
    let lines = [
        "memlane_agent_processes{} 1",
        "memlane_agent_questions_total{} 3",
        "memlane_agent_introductions_total{} 1",
        "memlane_agent_refusals_total{,reason=\"not_seen\"} 1",
        "memlane_agent_refusals_total{,reason=\"nobody\"} 0",
        "memlane_agent_sent_away_total{} 0",
    ];
    comes(
        || agent.metrics().join("\n"),
        |page| lines.iter().all(|line| page.lines().any(|l| l == *line)),
    );
    drop(process);
    comes(
        || agent.metrics().join("\n"),
        |page| page.contains("memlane_agent_processes{} 0"),
    );
}

/// Reads the agent's lines until it says so.
fn says(out: &mut impl BufRead, wanted: &str) {
    let mut line = String::new();
    while !line.contains(wanted) {
        line.clear();
        let n = out.read_line(&mut line).expect("a line");
        assert!(n > 0, "the agent has ended before it said {wanted:?}");
    }
}

#[test]
fn the_agent_of_a_folder_serves_domains_that_come_and_go_and_tells_them() {
    let folder = Dir::new();
    let mut command = memlane();
    command.args(["agent", "--domains"]).arg(&folder.0);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("memlane starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    let _ = out.read_line(&mut line);
    if !line.starts_with("serves each domain in ") {
        let done = child.wait_with_output().expect("it ends");
        assert_eq!(done.status.code(), Some(3), "{}", stderr(&done));
        eprintln!("SKIPPED the_agent_of_a_folder: {}", stderr(&done));
        return;
    }
    let agent = Running { child, dir: folder };
    // What the engine of a pod's namespace does; the umask of a test may be any.
    std::fs::DirBuilder::new()
        .mode(0o755)
        .create(agent.domain())
        .expect("made");
    says(&mut out, "serves ");
    let process = introduced(&agent.domain());
    let counted = "1 connections introduced of 3 questions";
    comes(|| agent.info(), |said| said.contains(counted));
    let label = format!(
        "memlane_agent_introductions_total{{domain=\"{}\"}} 1",
        agent.dir.0.display()
    );
    let mut exporter = memlane();
    exporter.args(["exporter", "--textfile", "-"]);
    let page = stdout(&exporter.output().expect("memlane starts"));
    assert!(page.lines().any(|line| line == label), "{page}");
    std::fs::remove_dir_all(agent.domain()).expect("ours");
    says(&mut out, "no longer serves ");
    drop(process);
}
