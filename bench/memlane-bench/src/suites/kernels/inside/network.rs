//! The paths: veth pairs with an RDMA device at each end.
//!
//! Both ends of a pair are in one network namespace, because rxe works in the first one only. A packet from one address of the
//! machine to another one would never leave it; rules of routing, which come before the kernel's own, send it by the pair.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::TOOLS;

/// The two ends of a path: the client's, and the server's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cable {
    pub(super) client: String,
    pub(super) server: String,
    ends: [String; 2],
    /// From 0.
    pub(super) number: u16,
}

/// The first cable's table of routes; the kernel's own begin with 253.
const TABLES: u16 = 100;

/// All that there are.
pub(super) struct Network(Vec<Cable>);

impl Network {
    /// Makes two paths.
    ///
    /// # Errors
    /// The machine lacks something.
    pub(super) fn new() -> anyhow::Result<Network> {
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0")?;
        // The machine's own addresses come after what is said of the paths.
        run("ip", "rule add pref 100 lookup local")?;
        run("ip", "rule del pref 0")?;
        let cables = [0, 1].map(cable);
        cables.iter().try_for_each(lay)?;
        Ok(Network(cables.to_vec()))
    }

    /// The first ones.
    pub(super) fn paths(&self, count: usize) -> anyhow::Result<&[Cable]> {
        self.0.get(..count).context("more paths than there are")
    }

    /// Has a path lose all packets, both ways; or none any more. Nobody is told.
    pub(super) fn silence(&self, path: usize, silent: bool) -> anyhow::Result<()> {
        let cable = self.0.get(path).context("no such path")?;
        for end in &cable.ends {
            run("tc", &quiet(end, silent))?;
        }
        Ok(())
    }
}

fn cable(number: u16) -> Cable {
    let net = ["192.0.2", "198.51.100"][usize::from(number)];
    let end = |side| format!("{side}{number}");
    Cable {
        client: format!("{net}.1"),
        server: format!("{net}.2"),
        ends: [end("c"), end("s")],
        number,
    }
}

fn quiet(end: &str, silent: bool) -> String {
    match silent {
        true => format!("qdisc add dev {end} root netem loss 100%"),
        false => format!("qdisc del dev {end} root"),
    }
}

/// Makes the pair, and its routes.
fn lay(cable: &Cable) -> anyhow::Result<()> {
    let [client, server] = &cable.ends;
    run(
        "ip",
        &format!("link add {client} type veth peer name {server}"),
    )?;
    let sides = [
        (client, &cable.client, &cable.server),
        (server, &cable.server, &cable.client),
    ];
    for (end, own, other) in sides {
        let of = Path::new("/proc/sys/net/ipv4/conf").join(end);
        std::fs::write(of.join("rp_filter"), "0")?;
        std::fs::write(of.join("accept_local"), "1")?;
        run("ip", &format!("addr add {own}/30 dev {end}"))?;
        run("ip", &format!("link set {end} up"))?;
        let table = TABLES + cable.number;
        run(
            "ip",
            &format!("rule add pref 10 to {own} iif {end} lookup local"),
        )?;
        run("ip", &format!("rule add pref 11 to {own} lookup {table}"))?;
        run(
            "ip",
            &format!("route add {other} dev {end} src {own} table {table}"),
        )?;
    }
    // Nobody has to ask who is at the other end, as that may be lost.
    for (end, other, peer) in [
        (client, &cable.server, server),
        (server, &cable.client, client),
    ] {
        let at = std::fs::read_to_string(format!("/sys/class/net/{peer}/address"))?;
        let at = at.trim();
        run(
            "ip",
            &format!("neigh replace {other} lladdr {at} nud permanent dev {end}"),
        )?;
        run("rdma", &format!("link add rxe-{end} type rxe netdev {end}"))?;
    }
    Ok(())
}

/// One of the machine's tools.
fn run(tool: &str, words: &str) -> anyhow::Result<()> {
    debug_assert!(TOOLS.contains(&tool));
    let output = Command::new(Path::new("/opt").join(tool))
        .args(words.split_whitespace())
        .output()
        .with_context(|| format!("/opt/{tool}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{tool} {words}: {}", said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cables_have_nothing_in_common() {
        let [one, other] = [0, 1].map(cable);
        assert_eq!(
            (one.client.as_str(), one.server.as_str()),
            ("192.0.2.1", "192.0.2.2")
        );
        assert_ne!(one.client, other.client);
        assert_ne!(one.ends, other.ends);
        assert_ne!(one.number, other.number);
    }
}
