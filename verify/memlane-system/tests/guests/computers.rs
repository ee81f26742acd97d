//! A guest and the host alike: a shell that does what it is told, and stock programs that it runs.
//!
//! On each of them, `$opt` is a folder with what was put there for the story, `$work` one for what it writes, and `$domain` the
//! agent's directory.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memlane_system::blocks::memlane;
use memlane_system::harness::{Built, TempDir};

use super::{Host, Machine, PATIENCE};

/// How programs are run: as they are, which is the oracle, and under memlane.
pub(crate) const MODES: [&str; 2] = ["", "memlane run --domain $domain --"];

/// A guest, or the host.
pub(crate) trait Computer {
    /// Has its shell do this; what it says.
    fn shell(&mut self, order: &str) -> String;
    /// Where it is reached.
    fn address(&self) -> String;
}

impl Computer for Machine {
    fn shell(&mut self, order: &str) -> String {
        // Its shell reports an order that fails; here, what it says is all that counts.
        Machine::shell(self, &format!("{{ {order}; }} || true"))
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

/// The host. Each of its shells is in one process group, which is killed when this is dropped.
pub(crate) struct Local {
    leader: Child,
    address: String,
    domain: String,
    opt: PathBuf,
    work: TempDir,
}

impl Local {
    pub(crate) fn new(host: &Host, opt: &Path) -> Local {
        let mut leader = Command::new("sleep");
        leader.arg("infinity").process_group(0);
        Local {
            leader: leader.spawn().expect("sleep"),
            address: host.tap.address(1),
            domain: host.agent.directory(),
            opt: opt.to_owned(),
            work: TempDir::new("work"),
        }
    }

    fn group(&self) -> i32 {
        i32::try_from(self.leader.id()).expect("a process")
    }
}

impl Computer for Local {
    fn shell(&mut self, order: &str) -> String {
        let own = memlane();
        let own = own.parent().expect("a folder").display().to_string();
        let path = std::env::var("PATH").expect("PATH");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", order])
            .env("PATH", format!("{own}:{path}:/usr/sbin"))
            .env("MEMLANE_PRELOAD", Built::find().preload)
            .env("MEMLANE_UPGRADE", "eager")
            .env("opt", &self.opt)
            .env("work", self.work.path())
            .env("domain", &self.domain)
            .process_group(self.group())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit());
        let said = shell.output().expect("sh");
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_raw(self.group()).expect("not 0");
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.leader.wait();
    }
}

/// A server that a computer's shell has started.
pub(crate) struct Service {
    name: &'static str,
    pid: u32,
    pub(crate) port: u16,
}

impl Service {
    /// Starts it in one of the modes, and waits until it listens.
    pub(crate) fn start(
        on: &mut dyn Computer,
        under: &str,
        (name, port): (&'static str, u16),
        command: &str,
    ) -> Service {
        let begin = format!("{under} {command} </dev/null >$work/{name}.log 2>&1 & echo $!");
        let said = on.shell(&begin);
        let service = Service {
            name,
            pid: said.trim().parse().unwrap_or_else(|_| panic!("{said}")),
            port,
        };
        let listens = format!("grep -q ':{port:04X} 00000000:0000 0A' /proc/net/tcp && echo yes");
        let since = Instant::now();
        while on.shell(&listens).is_empty() {
            assert!(since.elapsed() < PATIENCE, "{}", service.log(on));
            std::thread::sleep(Duration::from_millis(100));
        }
        service
    }

    /// Bytes that it and its children have sent and taken by the lane until now.
    pub(crate) fn by_lane(&self, on: &mut dyn Computer) -> u64 {
        let children = format!("echo $(cat /proc/{}/task/*/children)", self.pid);
        let children = on.shell(&children);
        let all = children.split_whitespace().map(str::to_owned);
        all.chain([self.pid.to_string()])
            .map(|pid| {
                let said = on.shell(&format!("memlane stats --json --pid {pid} 2>/dev/null"));
                ring_bytes(&said)
            })
            .sum()
    }

    /// What it has written.
    pub(crate) fn log(&self, on: &mut dyn Computer) -> String {
        on.shell(&format!("cat $work/{}.log", self.name))
    }

    /// Sends a signal to it and its children, and waits until it is over.
    pub(crate) fn ends_by(self, on: &mut dyn Computer, signal: &str) {
        let pid = self.pid;
        on.shell(&format!(
            "kill -{signal} {pid} $(cat /proc/{pid}/task/*/children); wait {pid} 2>/dev/null"
        ));
        let since = Instant::now();
        let lives = format!("grep '^State' /proc/{pid}/status 2>/dev/null | grep -v Z");
        while !on.shell(&lives).is_empty() {
            assert!(since.elapsed() < PATIENCE, "{} does not end", self.name);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Bytes that went by the lane, as `memlane stats --json` says. Nothing, if it says nothing.
pub(crate) fn ring_bytes(said: &str) -> u64 {
    let parsed: serde_json::Value = serde_json::from_str(said).unwrap_or_default();
    let carried = ["tx", "rx"].map(|flow| parsed["totals"][flow]["ring_bytes"].as_u64());
    carried.into_iter().flatten().sum()
}
