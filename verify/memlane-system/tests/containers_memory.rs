//! What a peer of another network namespace may make a sender pay for: the windows of all rings towards it have a bound together,
//! and what does not fit goes by TCP.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agent.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use memlane_system::blocks::skip;
use memlane_system::containers::{Agent, Between, Networks};
use memlane_system::harness::{Built, plain_only};
use serde_json::Value;

/// Connections, each of which could have a ring of 16 MiB.
const CONNECTIONS: u64 = 8;
/// The bound for one peer process, in bytes, and the first window of a ring, which is not counted.
const BOUND: u64 = 64 << 20;
const FIRST: u64 = 4096;

/// Takes connections. For each byte `p` answers one; after `b`, reads 8 MiB and answers with their sum.
const SERVER: &str = r#"
import hashlib, socket, sys, threading
def serve(s):
    while True:
        what = s.recv(1)
        if what == b"p":
            s.sendall(b"p")
        elif what == b"b":
            left, h = 8 << 20, hashlib.sha256()
            while left:
                part = s.recv(min(left, 1 << 20))
                h.update(part)
                left -= len(part)
            s.sendall(h.digest())
        else:
            return
l = socket.socket()
l.bind((sys.argv[1], 7000))
l.listen(64)
print("up", flush=True)
while True:
    threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()
"#;

/// Makes the connections, lets their lanes open, sends 8 MiB at once over each, compares the sums, and waits. Between two
/// of them it pauses for long enough that they do not share the room of one ring.
const CLIENT: &str = r#"
import hashlib, os, socket, sys, time
all = [socket.create_connection((sys.argv[1], 7000)) for _ in range(int(sys.argv[2]))]
end = time.time() + 3
while time.time() < end:
    for s in all:
        s.sendall(b"p")
        assert s.recv(1) == b"p"
for s in all:
    bulk = os.urandom(8 << 20)
    s.sendall(b"b" + bulk)
    got = b""
    while len(got) < 32:
        got += s.recv(32 - len(got))
    assert got == hashlib.sha256(bulk).digest()
    time.sleep(0.2)
print("sent", flush=True)
sys.stdin.read()
"#;

/// A program under memlane in a namespace, with rings of 16 MiB. Ended when dropped.
struct Python(Child);

impl Python {
    fn start(networks: &Networks, agent: &Agent, at: &str, text: &str, args: &[&str]) -> Python {
        let built = Built::find();
        let memlane = built.memlane.expect("`cargo build --release` first");
        let mut command: Command = networks.command(at, &memlane.display().to_string());
        command.args(["run", "--ring", "16M", "--domain", &agent.directory(), "--"]);
        command.args(["python3", "-c", text]).args(args);
        command.env("MEMLANE_PRELOAD", built.preload);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Python(command.spawn().expect("it starts"))
    }

    /// Returns when it has said so.
    fn says(&mut self, what: &str) {
        let mut line = String::new();
        let out = self.0.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        assert_eq!(line.trim(), what);
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.stdin.take().map(|mut pipe| pipe.flush());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The windows of what this process sends, over connections on the memory lane.
fn windows(pid: u32) -> Vec<u64> {
    let memlane = Built::find().memlane.expect("built");
    let said = Command::new(memlane)
        .args(["ss", "--json", "--pid", &pid.to_string()])
        .output();
    let said: Value = serde_json::from_slice(&said.expect("it runs").stdout).expect("JSON");
    let all = said["connections"].as_array().cloned().unwrap_or_default();
    let lanes = all.iter().filter(|one| one["mode"] == "memlane");
    let window = |one: &Value| one["tx"]["ring_window_bytes"].as_u64();
    lanes.filter_map(window).collect()
}

#[test]
fn rings_towards_a_peer_of_another_namespace_have_a_bound_together() {
    if plain_only() {
        return;
    }
    let test = "memory";
    let networks = match Networks::new(Between::Cable) {
        Ok(networks) => networks,
        Err(why) => return eprintln!("SKIPPED {test}: {why}"),
    };
    let agent = match Agent::start(test) {
        Ok(agent) => agent,
        Err(why) => return skip(test, &why),
    };
    let at = networks.server_address();
    let mut server = Python::start(&networks, &agent, networks.server(), SERVER, &[at]);
    server.says("up");
    let count = CONNECTIONS.to_string();
    let args = [networks.reached_at(), &count];
    let mut client = Python::start(&networks, &agent, networks.client(), CLIENT, &args);
    client.says("sent");
    let windows = windows(client.0.id());
    assert_eq!(windows.len() as u64, CONNECTIONS, "{windows:?}");
    let (sum, most) = (windows.iter().sum::<u64>(), BOUND + CONNECTIONS * FIRST);
    assert!(sum <= most, "{sum} bytes: {windows:?}");
    // It is this bound that is reached.
    assert!(sum > BOUND / 2, "{sum} bytes: {windows:?}");
}
