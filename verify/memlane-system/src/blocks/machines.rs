//! Two machines and the cables between them.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{has, must};
use crate::harness::{self, TempDir};

/// Which machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Where volumes are mapped.
    Client,
    /// Where they are served.
    Server,
}

/// Two namespaces with `cables` veth pairs. All gone when dropped, with every process in them.
#[derive(Debug)]
pub struct Machines {
    dir: TempDir,
    names: [String; 2],
    cables: usize,
}

impl Machines {
    /// `Err` says why there can be none here.
    ///
    /// # Errors
    /// Not root, no `ip` or `nft`, or no namespaces here.
    ///
    /// # Panics
    /// If one of their commands fails where it should not.
    pub fn new(label: &str, cables: usize) -> Result<Machines, String> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        if !harness::is_root() {
            return Err("not root: no network namespaces".into());
        }
        if let Some(missing) = ["ip", "nft", "tc"].into_iter().find(|name| !has(name)) {
            return Err(format!("no {missing}: apt-get install iproute2 nftables"));
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let stem = format!("ml{}x{serial}", std::process::id());
        let machines = Machines {
            dir: TempDir::new(label),
            names: [format!("{stem}c"), format!("{stem}s")],
            cables,
        };
        let probe = Command::new("ip")
            .args(["netns", "add", machines.name(Side::Client)])
            .output();
        match probe {
            Ok(said) if said.status.success() => machines.wire(),
            Ok(said) => return Err(String::from_utf8_lossy(&said.stderr).into_owned()),
            Err(error) => return Err(error.to_string()),
        }
        Ok(machines)
    }

    fn wire(&self) {
        ip(&["netns", "add", self.name(Side::Server)]);
        for side in [Side::Client, Side::Server] {
            self.ip(side, &["link", "set", "lo", "up"]);
        }
        for cable in 0..self.cables {
            let [client, server] = [Side::Client, Side::Server].map(|side| self.name(side));
            let end = format!("c{cable}");
            ip(&[
                "link", "add", &end, "netns", client, "type", "veth", "peer", "name", &end,
                "netns", server,
            ]);
            for side in [Side::Client, Side::Server] {
                let address = format!("{}/30", self.address(cable, side));
                self.ip(side, &["addr", "add", &address, "dev", &end]);
                self.ip(side, &["link", "set", &end, "up"]);
            }
        }
    }

    /// A folder that both machines see.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// How many cables there are.
    pub fn cables(&self) -> usize {
        self.cables
    }

    /// The name of a machine's network namespace.
    pub fn name(&self, side: Side) -> &str {
        &self.names[usize::from(side == Side::Server)]
    }

    /// The address of a cable's end (from a block that is reserved for documentation).
    pub fn address(&self, cable: usize, side: Side) -> String {
        let host = cable * 4 + 1 + usize::from(side == Side::Server);
        format!("198.51.100.{host}")
    }

    /// A command that runs on a machine.
    pub fn command(&self, side: Side, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", self.name(side)])
            .arg(program);
        command
    }

    /// `ip` on a machine.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, side: Side, args: &[&str]) {
        let mut command = Command::new("ip");
        must({
            command.args(["-n", self.name(side)]).args(args);
            command
        });
    }

    /// Pulls a cable, or puts it back.
    pub fn pull(&self, cable: usize, out: bool) {
        let state = if out { "down" } else { "up" };
        self.ip(Side::Server, &["link", "set", &format!("c{cable}"), state]);
    }

    /// What arrives at one end of a cable is dropped: all (`percent` 100), or some of it.
    pub fn lose(&self, cable: usize, arriving_at: Side, percent: u32) {
        let some = match percent {
            100.. => String::new(),
            _ => format!("numgen random mod 100 < {percent} "),
        };
        self.rule(cable, arriving_at, &format!("{some}drop"));
    }

    /// Answers TCP segments that arrive at one end of a cable with a reset.
    pub fn reset(&self, cable: usize, arriving_at: Side) {
        self.rule(cable, arriving_at, "meta l4proto tcp reject with tcp reset");
    }

    fn rule(&self, cable: usize, arriving_at: Side, verdict: &str) {
        let rule = format!(
            "add table inet cut\n\
             add chain inet cut in {{ type filter hook input priority 0; }}\n\
             add rule inet cut in iifname c{cable} {verdict}\n"
        );
        let mut command = self.command(arriving_at, "nft");
        command.arg(&rule);
        must(command);
    }

    /// No more losses and resets at this machine.
    pub fn stop_losing(&self, at: Side) {
        let mut command = self.command(at, "nft");
        command.args(["delete", "table", "inet", "cut"]);
        must(command);
    }

    /// What a machine sends by a cable goes at this rate (tc's words: `1mbit`); `None`: at full speed again.
    pub fn throttle(&self, cable: usize, from: Side, rate: Option<&str>) {
        let device = format!("c{cable}");
        let mut command = self.command(from, "tc");
        match rate {
            Some(rate) => command
                .args([
                    "qdisc", "replace", "dev", &device, "root", "tbf", "rate", rate,
                ])
                .args(["burst", "16kb", "latency", "400ms"]),
            None => command.args(["qdisc", "del", "dev", &device, "root"]),
        };
        must(command);
    }

    fn processes(&self, side: Side) -> Vec<u32> {
        let said = Command::new("ip")
            .args(["netns", "pids", self.name(side)])
            .output();
        let text = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
        let text = text.unwrap_or_default();
        text.lines()
            .filter_map(|line| line.trim().parse().ok())
            .collect()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for side in [Side::Client, Side::Server] {
            for pid in self.processes(side) {
                let _ = Command::new("/bin/sh")
                    .args(["-c", &format!("kill -KILL {pid}")])
                    .status();
            }
            let _ = Command::new("ip")
                .args(["netns", "del", self.name(side)])
                .status();
        }
    }
}

fn ip(args: &[&str]) {
    let mut command = Command::new("ip");
    must({
        command.args(args);
        command
    });
}
