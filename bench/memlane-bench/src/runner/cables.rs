//! Two machines of one kernel: network namespaces with cables, or a bridge and NAT, between them; for root.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context as _;

use super::proc::{confined, find_program};

/// Our namespaces' names begin so; then come the process and a number.
const STEM: &str = "mlbench";

/// Which machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Where requests and connections come from.
    Client,
    /// Where they go.
    Server,
}

/// The two namespaces, and perhaps a router; gone when dropped. Whatever runs in them must have ended before.
pub(crate) struct Cables {
    names: [String; 2],
    router: Option<String>,
}

/// The end of the first cable, on either machine.
const END: &str = "c0";
/// The router's address, to which clients of a server behind NAT connect. The whole network is from a block that is reserved
/// for documentation.
pub(crate) const ROUTER: &str = "203.0.113.1";
/// Behind NAT: the client's address.
const CLIENT: &str = "203.0.113.2";
/// Behind NAT: the server's address, at which it listens.
pub(crate) const SERVER: &str = "203.0.113.3";

impl Cables {
    /// Makes the namespaces, and this number of cables between them.
    pub(crate) fn new(cables: usize) -> anyhow::Result<Cables> {
        let made = Cables::unplugged(false)?;
        for cable in 0..cables {
            made.lay(cable)?;
        }
        Ok(made)
    }

    /// Makes them as engines of containers do: both at a bridge of a router, and the server's port published by it. The
    /// client connects to the router, which translates the server's address (DNAT) and the client's (masquerade).
    pub(crate) fn behind_nat() -> anyhow::Result<Cables> {
        anyhow::ensure!(find_program("nft").is_some(), "not installed: nft");
        let made = Cables::unplugged(true)?;
        let router = made.router.as_deref().unwrap_or_default();
        let set = |words: &str| {
            let words = words.split(' ');
            ip(&["-n", router].into_iter().chain(words).collect::<Vec<_>>())
        };
        set("link add b0 type bridge")?;
        for (side, port, address) in [(Side::Client, "c", CLIENT), (Side::Server, "s", SERVER)] {
            join(made.name(side), END, router, port)?;
            set(&format!("link set {port} master b0 up"))?;
            made.ip(side, &["addr", "add", &format!("{address}/24"), "dev", END])?;
            made.ip(side, &["link", "set", END, "up"])?;
        }
        set(&format!("addr add {ROUTER}/24 dev b0"))?;
        set("link set b0 up")?;
        translate(router)?;
        Ok(made)
    }

    fn unplugged(with_router: bool) -> anyhow::Result<Cables> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        anyhow::ensure!(find_program("ip").is_some(), "not installed: ip");
        clear_away();
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let stem = format!("{STEM}{}x{serial}", std::process::id());
        let made = Cables {
            names: [format!("{stem}c"), format!("{stem}s")],
            router: with_router.then(|| format!("{stem}r")),
        };
        for name in made.names.iter().chain(&made.router) {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(made)
    }

    /// Bytes that the client's end of the first cable has carried, both ways.
    pub(crate) fn carried(&self) -> Option<u64> {
        let mut command = confined(find_program("ip")?);
        command.args([
            "-n",
            self.name(Side::Client),
            "-j",
            "-s",
            "link",
            "show",
            END,
        ]);
        let said = command.stdin(Stdio::null()).output().ok()?;
        let told: serde_json::Value = serde_json::from_slice(&said.stdout).ok()?;
        let bytes = |way: &str| told[0]["stats64"][way]["bytes"].as_u64();
        Some(bytes("rx")? + bytes("tx")?)
    }

    fn lay(&self, cable: usize) -> anyhow::Result<()> {
        let [client, server] = [Side::Client, Side::Server].map(|side| self.name(side));
        let end = format!("c{cable}");
        join(client, &end, server, &end)?;
        for side in [Side::Client, Side::Server] {
            let address = format!("{}/30", address(cable, side));
            self.ip(side, &["addr", "add", &address, "dev", &end])?;
            self.ip(side, &["link", "set", &end, "up"])?;
        }
        Ok(())
    }

    /// What a machine's namespace is called.
    pub(crate) fn name(&self, side: Side) -> &str {
        &self.names[usize::from(side == Side::Server)]
    }

    /// `ip` on a machine.
    pub(crate) fn ip(&self, side: Side, args: &[&str]) -> anyhow::Result<()> {
        ip(&[&["-n", self.name(side)], args].concat())
    }

    /// A command that runs `program` on a machine; it becomes that program, and so has its process id.
    pub(crate) fn command(&self, side: Side, program: &std::path::Path) -> Command {
        let mut command = confined(find_program("ip").unwrap_or_else(|| "ip".into()));
        command
            .args(["netns", "exec", self.name(side)])
            .arg(program);
        command
    }

    /// Pulls a cable at the server's end, or puts it back: nothing arrives, and nobody is told.
    pub(crate) fn pull(&self, cable: usize, out: bool) -> anyhow::Result<()> {
        let state = if out { "down" } else { "up" };
        self.ip(Side::Server, &["link", "set", &format!("c{cable}"), state])
    }
}

impl Drop for Cables {
    fn drop(&mut self) {
        for name in self.names.iter().chain(&self.router) {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// Removes what runs that were killed have left.
fn clear_away() {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten();
    let names = names.flatten().map(|entry| entry.file_name());
    for name in names.filter_map(|name| name.into_string().ok()) {
        let dead = |pid: u32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
        if owner(&name).is_some_and(dead) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

/// The process that made a namespace, if it is one of ours.
fn owner(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(STEM)?.split_once('x')?;
    pid.parse().ok()
}

/// The address of a cable's end, from a block that is reserved for documentation: it is nobody's.
pub(crate) fn address(cable: usize, side: Side) -> String {
    let host = cable * 4 + 1 + usize::from(side == Side::Server);
    format!("198.51.100.{host}")
}

/// A veth pair.
fn join(one: &str, one_end: &str, other: &str, other_end: &str) -> anyhow::Result<()> {
    ip(&[
        "link", "add", one_end, "netns", one, "type", "veth", "peer", "name", other_end, "netns",
        other,
    ])
}

/// Lets a router translate addresses.
fn translate(router: &str) -> anyhow::Result<()> {
    let rules = format!(
        "echo 1 > /proc/sys/net/ipv4/ip_forward && nft 'table ip nat {{ \
         chain before {{ type nat hook prerouting priority -100; ip daddr {ROUTER} meta l4proto tcp dnat to {SERVER}; }}; \
         chain after {{ type nat hook postrouting priority 100; ip daddr {SERVER} masquerade; }}; }}'"
    );
    ip(&["netns", "exec", router, "sh", "-c", &rules])
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    let program = find_program("ip").context("not installed: ip")?;
    // In a group of its own: Ctrl-C must not end what clears away.
    let said = confined(program).args(args).stdin(Stdio::null()).output()?;
    let error = String::from_utf8_lossy(&said.stderr);
    let what = args.join(" ");
    anyhow::ensure!(said.status.success(), "ip {what}: {}", error.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_namespaces_have_an_owner() {
        assert_eq!(owner("mlbench4711x0c"), Some(4711));
        for other in ["mlbench", "mlbenchx0c", "ml4711x0c", "mlbench47y", "x"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn cables_have_networks_of_their_own() {
        let ends =
            (0..2).flat_map(|cable| [Side::Client, Side::Server].map(|side| address(cable, side)));
        let ends: Vec<String> = ends.collect();
        assert_eq!(
            ends,
            [
                "198.51.100.1",
                "198.51.100.2",
                "198.51.100.5",
                "198.51.100.6"
            ]
        );
    }
}
