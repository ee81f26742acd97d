//! Two network namespaces, and what lies between them.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Agent, Container};
use crate::blocks::{has, must};
use crate::harness;

/// What lies between the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Between {
    /// One veth pair.
    Cable,
    /// A bridge in a third namespace.
    Bridge,
    /// A router in a third namespace, which translates both addresses: the client connects to the router (DNAT), and the
    /// server sees the router (masquerade).
    Nat,
    /// A third namespace that forwards nothing: a program there takes connections of the one and makes its own to the other.
    Proxy,
}

/// Two namespaces, `client` and `server`, and perhaps a third between them. Gone when dropped.
#[derive(Debug)]
pub struct Networks {
    names: [String; 3],
    between: Between,
}

/// Addresses are from blocks that are reserved for documentation (RFC 5737, RFC 3849).
const SERVER: &str = "198.51.100.2";
const SERVER_V6: &str = "2001:db8::2";
const ROUTER: &str = "203.0.113.1";

impl Networks {
    /// `Err` says why there can be none here.
    ///
    /// # Errors
    /// Not root, no `ip` or `nft`, or no namespaces here.
    ///
    /// # Panics
    /// If one of their commands fails where it should not.
    pub fn new(between: Between) -> Result<Networks, String> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        if !harness::is_root() {
            return Err("not root: no network namespaces".into());
        }
        if let Some(missing) = ["ip", "nft"].into_iter().find(|name| !has(name)) {
            return Err(format!("no {missing}: apt-get install iproute2 nftables"));
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let stem = format!("mln{}x{serial}", std::process::id());
        let networks = Networks {
            names: ["c", "s", "m"].map(|end| format!("{stem}{end}")),
            between,
        };
        let probe = Command::new("ip")
            .args(["netns", "add", networks.client()])
            .output();
        match probe {
            Ok(said) if said.status.success() => networks.wire(),
            Ok(said) => return Err(String::from_utf8_lossy(&said.stderr).into_owned()),
            Err(error) => return Err(error.to_string()),
        }
        Ok(networks)
    }

    /// The client's namespace.
    pub fn client(&self) -> &str {
        &self.names[0]
    }

    /// The server's namespace.
    pub fn server(&self) -> &str {
        &self.names[1]
    }

    /// The namespace between them, if there is one.
    pub fn middle(&self) -> &str {
        &self.names[2]
    }

    /// The address at which the server listens.
    pub fn server_address(&self) -> &'static str {
        SERVER
    }

    /// Its address of the newer protocol.
    pub fn server_address_v6(&self) -> &'static str {
        SERVER_V6
    }

    /// The address to which the client connects.
    pub fn reached_at(&self) -> &'static str {
        match self.between {
            Between::Cable | Between::Bridge => SERVER,
            Between::Nat | Between::Proxy => ROUTER,
        }
    }

    /// The client's namespace, where programs of a story run.
    pub fn at_client(&self, agent: &Agent) -> Container {
        self.container(self.client(), agent, self.reached_at())
    }

    /// The server's namespace, where programs of a story run.
    pub fn at_server(&self, agent: &Agent) -> Container {
        self.container(self.server(), agent, SERVER)
    }

    /// One of the namespaces, for programs that listen at `address`, or connect to it.
    pub fn container(&self, namespace: &str, agent: &Agent, address: &str) -> Container {
        Container {
            namespace: namespace.to_owned(),
            domain: agent.directory(),
            address: address.to_owned(),
        }
    }

    fn wire(&self) {
        ip(&["netns", "add", self.server()]);
        self.set(self.client(), &["link set lo up"]);
        self.set(self.server(), &["link set lo up"]);
        match self.between {
            Between::Cable => self.cable(),
            Between::Bridge => self.bridge(),
            Between::Nat => {
                self.two_networks();
                self.translate();
            }
            Between::Proxy => self.two_networks(),
        }
    }

    fn cable(&self) {
        self.join(self.client(), "e0", self.server(), "e0");
        self.one_network();
    }

    fn bridge(&self) {
        ip(&["netns", "add", self.middle()]);
        self.join(self.client(), "e0", self.middle(), "c0");
        self.join(self.server(), "e0", self.middle(), "s0");
        self.set(
            self.middle(),
            &[
                "link add br0 type bridge",
                "link set c0 master br0",
                "link set s0 master br0",
                "link set br0 up",
            ],
        );
        self.one_network();
    }

    /// Takes the client's network away, as an engine does that disconnects a container: both ends of the cable are gone.
    pub fn pull(&self) {
        ip(&["-n", self.client(), "link", "del", "e0"]);
    }

    /// Gives it back, with the same addresses. Only for [`Between::Cable`].
    pub fn plug(&self) {
        self.cable();
    }

    /// Both are in one network.
    fn one_network(&self) {
        self.set(
            self.client(),
            &[
                "addr add 198.51.100.1/24 dev e0",
                "addr add 2001:db8::1/64 dev e0 nodad",
            ],
        );
        self.set(
            self.server(),
            &[
                &format!("addr add {SERVER}/24 dev e0"),
                &format!("addr add {SERVER_V6}/64 dev e0 nodad"),
            ],
        );
    }

    /// Each is in a network of its own, and the middle is in both.
    fn two_networks(&self) {
        ip(&["netns", "add", self.middle()]);
        self.join(self.client(), "e0", self.middle(), "c0");
        self.join(self.server(), "e0", self.middle(), "s0");
        self.set(
            self.client(),
            &[
                "addr add 203.0.113.2/24 dev e0",
                &format!("route add default via {ROUTER}"),
            ],
        );
        self.set(
            self.server(),
            &[
                &format!("addr add {SERVER}/24 dev e0"),
                "route add default via 198.51.100.1",
            ],
        );
        self.set(
            self.middle(),
            &[
                &format!("addr add {ROUTER}/24 dev c0"),
                "addr add 198.51.100.1/24 dev s0",
                "link set lo up",
            ],
        );
    }

    /// The middle forwards, and translates both addresses.
    fn translate(&self) {
        let rules = format!(
            "table ip nat {{\n\
             chain before {{ type nat hook prerouting priority -100; ip daddr {ROUTER} meta l4proto tcp dnat to {SERVER}; }}\n\
             chain after {{ type nat hook postrouting priority 100; oifname \"s0\" masquerade; }}\n}}\n"
        );
        must({
            let mut command = self.command(self.middle(), "sh");
            let script =
                format!("echo 1 > /proc/sys/net/ipv4/ip_forward; printf '%s' '{rules}' | nft -f -");
            command.args(["-c", &script]);
            command
        });
    }

    /// Gives the client's end of the cable to the network namespace of a process.
    ///
    /// # Panics
    /// If that fails.
    pub fn move_client_to(&self, pid: u32) {
        let pid = pid.to_string();
        ip(&["-n", self.client(), "link", "set", "e0", "netns", &pid]);
        for command in ["addr add 198.51.100.1/24 dev e0", "link set e0 up"] {
            must({
                let mut nsenter = Command::new("nsenter");
                nsenter
                    .args(["--net", "--target", &pid, "ip"])
                    .args(command.split(' '));
                nsenter
            });
        }
    }

    /// A veth pair, both ends up.
    fn join(&self, one: &str, one_end: &str, other: &str, other_end: &str) {
        ip(&[
            "link", "add", one_end, "netns", one, "type", "veth", "peer", "name", other_end,
            "netns", other,
        ]);
        self.set(one, &[&format!("link set {one_end} up")]);
        self.set(other, &[&format!("link set {other_end} up")]);
    }

    /// Runs these commands of `ip` in a namespace.
    fn set(&self, namespace: &str, commands: &[&str]) {
        for command in commands {
            let words = command.split(' ');
            ip(&["-n", namespace]
                .into_iter()
                .chain(words)
                .collect::<Vec<_>>());
        }
    }

    /// A command that runs in a namespace.
    pub fn command(&self, namespace: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, program]);
        command
    }
}

/// Does something in a network namespace, by a thread that goes there. A socket that is made there stays there.
///
/// # Panics
/// If there is no such namespace, or if `act` panics.
pub fn in_namespace<T: Send>(name: &str, act: impl FnOnce() -> T + Send) -> T {
    let file = std::fs::File::open(format!("/run/netns/{name}")).expect("a namespace");
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind)
                .expect("root may go there");
            act()
        });
        thread.join().expect("it did what it should")
    })
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

fn ip(args: &[&str]) {
    must({
        let mut command = Command::new("ip");
        command.args(args);
        command
    });
}
