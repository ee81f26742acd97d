//! Two machines whose only cable is the packet lane: each has a TAP device and a `memlane net link` beside it.

pub mod hostile;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::blocks::machines::{Machines, Side};
use crate::blocks::{has, memlane, must, skip};
use crate::harness::{self, Outcome, Running};

const LIMIT: Duration = Duration::from_secs(90);
const BOTH: [Side; 2] = [Side::Client, Side::Server];

/// Data in which no two MiB are alike.
const SERVER: &str = r"
import hashlib, http.server, os, sys
base = os.urandom(1 << 20)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Length', str(int(sys.argv[2]) << 20))
        self.end_headers()
        sum = hashlib.sha256()
        for n in range(int(sys.argv[2])):
            at = n * 4097 % (1 << 20)
            block = base[at:] + base[:at]
            sum.update(block)
            self.wfile.write(block)
        print(sum.hexdigest(), flush=True)
http.server.HTTPServer((sys.argv[1], 8000), Handler).serve_forever()
";

/// The name of the TAP device on each machine.
pub const TAP: &str = "tap0";

/// What joins the two devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The packet lane: the client's machine has the front, the server's the back.
    Lane,
    /// The server's machine lends its device to the client's.
    Loan,
}

/// Machines with a link between them.
#[derive(Debug)]
pub struct Linked {
    front: Option<Running>,
    back: Option<Running>,
    args: Vec<String>,
    by: By,
    /// The last field, because its drop kills everything left on the machines.
    machines: Machines,
}

impl Linked {
    /// Two machines, a process in each, and the packet lane between them. `None` if this cannot run here; the reason is
    /// printed.
    ///
    /// # Panics
    /// If it cannot be set up where it should.
    pub fn new(test: &str, args: &[&str]) -> Option<Linked> {
        Linked::by(By::Lane, test, args)
    }

    /// Two machines, of which the server's lends its device to a process on the client's. `None` if this cannot run here;
    /// the reason is printed.
    ///
    /// # Panics
    /// If it cannot be set up where it should.
    pub fn lent(test: &str, args: &[&str]) -> Option<Linked> {
        Linked::by(By::Loan, test, args)
    }

    fn by(by: By, test: &str, args: &[&str]) -> Option<Linked> {
        if let Some(missing) = ["ping", "iperf3", "curl"]
            .into_iter()
            .find(|name| !has(name))
        {
            skip(test, &format!("no {missing}: ./dev installs it"));
            return None;
        }
        let machines = Machines::new(test, 0);
        // Not for want of a package: it cannot be demanded.
        let machines = machines
            .map_err(|why| eprintln!("SKIPPED {test}: {why}"))
            .ok()?;
        if !std::path::Path::new("/dev/net/tun").exists() {
            eprintln!("SKIPPED {test}: no /dev/net/tun");
            return None;
        }
        let args = args.iter().map(ToString::to_string).collect();
        let mut linked = Linked {
            front: None,
            back: None,
            args,
            by,
            machines,
        };
        // Devices that stay while the programs behind them come and go.
        for side in BOTH {
            let several = linked.args.iter().any(|arg| arg.starts_with("--queues"));
            let mut add = vec!["tuntap", "add", TAP, "mode", "tap"];
            add.extend(several.then_some("multi_queue"));
            linked.machines.ip(side, &add);
            let address = format!("{}/24", linked.address(side));
            linked
                .machines
                .ip(side, &["addr", "add", &address, "dev", TAP]);
            let address = format!("{}/64", linked.address6(side));
            let add = ["addr", "add", &address, "dev", TAP, "nodad"];
            linked.machines.ip(side, &add);
        }
        linked.mtu(1500);
        linked.start(Side::Server);
        linked.start(Side::Client);
        linked.wait();
        Some(linked)
    }

    /// The address of a machine (from a block that is reserved for documentation).
    pub fn address(&self, side: Side) -> &'static str {
        match side {
            Side::Client => "198.51.100.1",
            Side::Server => "198.51.100.2",
        }
    }

    /// The IPv6 address of a machine.
    pub fn address6(&self, side: Side) -> &'static str {
        match side {
            Side::Client => "2001:db8::1",
            Side::Server => "2001:db8::2",
        }
    }

    /// Bytes that a machine has received by its device.
    ///
    /// # Panics
    /// If it has none.
    pub fn received(&self, side: Side) -> u64 {
        let mut command = self.machines.command(side, "cat");
        command.arg(format!("/sys/class/net/{TAP}/statistics/rx_bytes"));
        let said = must(command);
        said.trim().parse().expect("a number")
    }

    /// The machines.
    pub fn machines(&self) -> &Machines {
        &self.machines
    }

    /// Sets the longest packet of both devices.
    pub fn mtu(&self, bytes: u32) {
        for side in BOTH {
            let mtu = bytes.to_string();
            self.machines
                .ip(side, &["link", "set", TAP, "mtu", &mtu, "up"]);
        }
    }

    /// Where the two sides meet.
    pub fn socket(&self) -> PathBuf {
        self.machines.dir().join("link.sock")
    }

    /// Starts a machine's side of the link.
    pub fn start(&mut self, side: Side) {
        let socket = self.socket();
        let at = |kind: &str| format!("{kind}:{}", socket.display());
        let tap = format!("tap:{TAP}");
        let mut command = self.machines.command(side, memlane());
        match (self.by, side) {
            (By::Lane, Side::Client) => {
                command.args(["net", "link", &tap, &at("front"), "--json"]);
            }
            (By::Lane, Side::Server) => {
                command.args(["net", "link", &tap, &at("back"), "--json"]);
            }
            (By::Loan, Side::Client) => {
                command.args(["net", "link", &tap, &at("lent"), "--json"]);
            }
            (By::Loan, Side::Server) => {
                command.args(["net", "lend"]).arg(&socket).arg(&tap);
            }
        }
        let place = match side {
            Side::Client => &mut self.front,
            Side::Server => &mut self.back,
        };
        // How the lane works is the front's choice.
        let mut args = self.args.iter();
        while let Some(arg) = args.next() {
            if arg == "--mode" && side == Side::Server {
                args.next();
            } else {
                command.arg(arg);
            }
        }
        *place = Some(Running::start(command));
    }

    fn running(&mut self, side: Side) -> &mut Running {
        let place = match side {
            Side::Client => &mut self.front,
            Side::Server => &mut self.back,
        };
        place.as_mut().expect("it was started")
    }

    /// The program of a machine, for tests that freeze or kill it.
    pub fn signal(&mut self, side: Side, signal: &str) {
        // `ip netns exec` becomes the program.
        self.running(side).signal(signal);
    }

    /// What it has printed.
    pub fn said(&mut self, side: Side) -> String {
        self.running(side).stderr()
    }

    /// Kills a machine's side, and waits until it is gone.
    pub fn kill(&mut self, side: Side) {
        let place = match side {
            Side::Client => &mut self.front,
            Side::Server => &mut self.back,
        };
        place.take().expect("it was started").stop();
    }

    /// Waits until a machine's side ends by itself, and returns its outcome.
    ///
    /// # Panics
    /// If it was not started.
    pub fn ended(&mut self, side: Side) -> Outcome {
        let place = match side {
            Side::Client => &mut self.front,
            Side::Server => &mut self.back,
        };
        place.take().expect("it was started").finish(LIMIT)
    }

    /// Waits until a frame has come through, both ways.
    ///
    /// # Panics
    /// If none does.
    pub fn wait(&mut self) {
        let mut tries = 0;
        while !self.ping(&["-c", "1", "-W", "1"]).is_ok() {
            tries += 1;
            let said = BOTH.map(|side| self.said(side));
            assert!(tries < 30, "no ping comes through: {said:#?}");
        }
    }

    /// Pings the server's machine from the client's.
    pub fn ping(&self, args: &[&str]) -> Outcome {
        self.ping_at(self.address(Side::Server), args)
    }

    /// Pings one address of the server's machine from the client's.
    pub fn ping_at(&self, address: &str, args: &[&str]) -> Outcome {
        let mut command = self.machines.command(Side::Client, "ping");
        command.args(["-q", "-n"]).args(args).arg(address);
        harness::run(command, LIMIT)
    }

    /// Runs iperf3 from the client's machine to the server's, and returns its JSON.
    ///
    /// # Panics
    /// If it fails.
    pub fn iperf3(&self, args: &[&str]) -> serde_json::Value {
        self.iperf3_at(self.address(Side::Server), args)
    }

    /// Runs iperf3 to one address of the server's machine.
    ///
    /// # Panics
    /// If it fails.
    pub fn iperf3_at(&self, address: &str, args: &[&str]) -> serde_json::Value {
        iperf3(&self.machines, address, args)
    }

    /// Processes of the link.
    pub fn pids(&self) -> Vec<u32> {
        let both = [&self.front, &self.back];
        both.into_iter().flatten().map(Running::pid).collect()
    }

    /// Starts an HTTP server on the server's machine: a download of `mib` MiB that it generates, and whose
    /// SHA-256 it prints when it has sent everything.
    pub fn serve(&self, mib: u64) -> Running {
        let mut server = self.machines.command(Side::Server, "python3");
        server.args(["-c", SERVER, self.address(Side::Server), &mib.to_string()]);
        Running::start(server)
    }

    /// Fetches it on the client's machine and prints its SHA-256,
    /// at no more than 120 MB a second, so that faults injected meanwhile do not come too late.
    pub fn fetch(&self) -> Command {
        let mut client = self.machines.command(Side::Client, "sh");
        let url = format!("http://{}:8000/", self.address(Side::Server));
        let retry = "--retry 20 --retry-connrefused --retry-delay 1";
        client.args([
            "-c",
            &format!("curl -sS {retry} --limit-rate 120M {url} | sha256sum"),
        ]);
        client
    }

    /// Ends a side in an orderly way, and returns its counts.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn finish(&mut self, side: Side) -> serde_json::Value {
        self.signal(side, "TERM");
        let place = match side {
            Side::Client => &mut self.front,
            Side::Server => &mut self.back,
        };
        let said = place.take().expect("it was started").finish(LIMIT);
        assert!(said.is_ok(), "{}", said.report());
        serde_json::from_str(&said.stdout).expect("JSON")
    }
}

/// A download from the server's machine to the client's, while things happen to the two processes between them.
#[derive(Debug)]
pub struct Download {
    server: Running,
    client: Running,
    /// Bytes that the client's device had received when it was looked at last.
    seen: u64,
}

impl Download {
    /// Starts a download of `mib` MiB.
    pub fn start(linked: &Linked, mib: u64) -> Download {
        Download {
            server: linked.serve(mib),
            client: Running::start(linked.fetch()),
            seen: linked.received(Side::Client),
        }
    }

    /// Waits until 24 MiB more have come.
    ///
    /// # Panics
    /// If they do not come.
    pub fn goes_on(&mut self, linked: &Linked, what: &str) {
        let goal = self.seen + (24 << 20);
        let came = || linked.received(Side::Client) > goal;
        self.client.wait_until(LIMIT, what, came);
        self.seen = linked.received(Side::Client);
    }

    /// Waits for its end, and compares what came with what was sent.
    ///
    /// # Panics
    /// If they differ.
    pub fn is_whole(mut self) {
        let said = self.client.finish(LIMIT);
        assert!(said.is_ok(), "{}", said.report());
        let hash = said.stdout.split(' ').next().unwrap_or_default();
        let start = std::time::Instant::now();
        while self.server.stdout().trim().is_empty() {
            let waits = self.server.is_running() && start.elapsed() < LIMIT;
            assert!(waits, "{}", self.server.stderr());
        }
        assert_eq!(hash, self.server.stdout().trim());
    }
}

/// Runs iperf3 from the client's machine to an address of the server's, and returns its JSON.
///
/// # Panics
/// If it fails.
pub fn iperf3(machines: &Machines, address: &str, args: &[&str]) -> serde_json::Value {
    let mut server = machines.command(Side::Server, "iperf3");
    server.args(["-s", "-1", "-B", address]);
    let server = Running::start(server);
    let mut tries = 0;
    loop {
        let mut client = machines.command(Side::Client, "iperf3");
        client.args(["-J", "-c", address]).args(args);
        let client = harness::run(client, LIMIT);
        let said: serde_json::Value = serde_json::from_str(&client.stdout).unwrap_or_default();
        // With JSON, iperf3 ends well whatever happened.
        if client.is_ok() && said["error"].is_null() && said["end"].is_object() {
            drop(server);
            return said;
        }
        tries += 1;
        // The server needs its time to listen.
        let early = client.stdout.contains("Connection refused");
        assert!(early && tries < 200, "{}", client.report());
        std::thread::sleep(Duration::from_millis(20));
    }
}
