//! The network of a node's pods. What the CNI plugins made outside a pod's own network goes with the node, also if a test
//! was killed.

use std::process::{Command, Stdio};

/// The bridge of the pods, and their addresses.
pub(super) const BRIDGE: &str = "memlane-pods";
pub(super) const SUBNET: &str = "10.244.7.0/24";
/// How each address of a pod begins.
const PREFIX: &str = "10.244.7.";

/// Removes the bridge, and what lies around it.
pub(super) fn clear() {
    delete_link(BRIDGE);
    remove_namespaces();
    remove_masquerading();
    // kube-proxy's.
    for family in ["ip", "ip6"] {
        try_to("nft", &["delete", "table", family, "kube-proxy"]);
    }
}

pub(super) fn delete_link(name: &str) {
    try_to("ip", &["link", "delete", name]);
}

/// containerd gives each pod a network namespace with a name.
fn remove_namespaces() {
    let names = said("ip", &["netns", "list"]);
    let names = names.lines().filter_map(|line| line.split(' ').next());
    for name in names.filter(|name| name.starts_with("cni-")) {
        let addresses = said("ip", &["-n", name, "-oneline", "-4", "address", "show"]);
        if addresses.contains(&format!(" {PREFIX}")) {
            try_to("ip", &["netns", "delete", name]);
        }
    }
}

/// The plugin `bridge` makes a chain for each address that it masquerades.
fn remove_masquerading() {
    let nat = ["-w", "-t", "nat"];
    let iptables = |words: &[&str]| try_to("iptables", &[&nat, words].concat());
    let rules = said(
        "iptables",
        &[&nat, ["-S", "POSTROUTING"].as_slice()].concat(),
    );
    // The policy is line 0. Rules are numbered from 1, and those behind a removed one move up.
    let numbered: Vec<(usize, &str)> = rules.lines().enumerate().collect();
    for (number, rule) in numbered.into_iter().rev() {
        let chain = rule.rsplit(" -j ").next().unwrap_or_default();
        if rule.contains(&format!(" -s {PREFIX}")) && chain.starts_with("CNI-") {
            iptables(&["-D", "POSTROUTING", &number.to_string()]);
            iptables(&["-F", chain]);
            iptables(&["-X", chain]);
        }
    }
}

fn said(program: &str, words: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(words).stderr(Stdio::null());
    let stdout = command.output().map(|done| done.stdout);
    String::from_utf8_lossy(&stdout.unwrap_or_default()).into_owned()
}

/// What is gone already is no error.
fn try_to(program: &str, words: &[&str]) {
    let mut command = Command::new(program);
    command.args(words).stdout(Stdio::null());
    let _ = command.stderr(Stdio::null()).status();
}
