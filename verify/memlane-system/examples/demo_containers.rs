//! `./dev demo containers`: redis and its benchmark in two containers, by a published port, over TCP and over memlane. Where podman
//! cannot run containers: in two network namespaces, with a router between them that translates both addresses.

use std::process::{Child, Command, Stdio, exit};
use std::time::{Duration, Instant};

use memlane_system::blocks::has;
use memlane_system::containers::{Agent, Between, Engine, Lane, Networks, Server};
use memlane_system::harness::{Built, free_port};

/// What is run, and by which options of redis-benchmark.
const WORKLOADS: [(&str, &[&str]); 3] = [
    (
        "redis GET, 1 connection",
        &["-t", "get", "-c", "1", "-n", "60000"],
    ),
    (
        "redis GET, 50 connections",
        &["-t", "get", "-c", "50", "-n", "200000"],
    ),
    (
        "redis SET, 50 connections",
        &["-t", "set", "-c", "50", "-n", "200000"],
    ),
];
/// What runs while `memlane ss` is shown.
const TALK: [&str; 6] = ["-t", "get", "-c", "2", "-n", "100000000"];
const PORT: &str = "6379";

fn main() {
    let needed = ["ip", "nft", "redis-server", "redis-benchmark", "redis-cli"];
    if let Some(missing) = needed.into_iter().find(|name| !has(name)) {
        eprintln!("no {missing}: apt-get install iproute2 nftables redis-server redis-tools");
        exit(3);
    }
    match Engine::start("cache") {
        Ok(engine) => demo(&InContainers {
            engine,
            port: free_port().to_string(),
        }),
        Err(why) => {
            println!("(no containers: {})", why.trim());
            demo(&in_namespaces());
        }
    }
}

/// Two places for programs, with NAT between them.
trait Scene {
    /// What is run, as a user would type it.
    fn commands(&self);
    /// Starts redis; it runs until what is returned is dropped.
    fn server(&self, lane: Lane) -> Box<dyn Running + '_>;
    /// redis-benchmark with these options, at the other place.
    fn benchmark(&self, lane: Lane, args: &[&str]) -> Child;
    /// Ends the benchmark that runs there.
    fn end(&self, benchmark: Child);
}

/// A server, which ends when this is dropped.
trait Running {}
impl Running for Server<'_> {}
impl Running for Redis {}

fn demo(scene: &impl Scene) {
    scene.commands();
    println!(
        "\n{:<28} {:>12} {:>12} {:>7}",
        "", "TCP, req/s", "memlane", "times"
    );
    let server = scene.server(Lane::Off);
    let plain: Vec<f64> = WORKLOADS
        .iter()
        .map(|(_, args)| rate(scene, Lane::Off, args))
        .collect();
    drop(server);
    let _server = scene.server(Lane::On);
    for ((name, args), plain) in WORKLOADS.iter().zip(plain) {
        let lane = rate(scene, Lane::On, args);
        let times = lane / plain;
        println!("{name:<28} {plain:>12.0} {lane:>12.0} {times:>6.1}×");
    }
    show(scene);
}

/// Requests a second.
fn rate(scene: &impl Scene, lane: Lane, args: &[&str]) -> f64 {
    let said = scene.benchmark(lane, args).wait_with_output();
    let text = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    let text = text.unwrap_or_default();
    let rate = text
        .lines()
        .filter_map(|line| line.split(',').nth(1))
        .find_map(|field| field.trim_matches('"').parse().ok());
    rate.unwrap_or_else(|| {
        eprintln!("redis-benchmark said {text:?}");
        exit(1);
    })
}

/// What `memlane ss` on the host shows of them while they talk.
fn show(scene: &impl Scene) {
    let talking = scene.benchmark(Lane::On, &TALK);
    std::thread::sleep(Duration::from_millis(1500));
    let said = memlane().args(["ss"]).output();
    scene.end(talking);
    println!("\nhost# memlane ss      (of its columns, these)");
    let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    for line in said.unwrap_or_default().lines() {
        let cells: Vec<&str> = line.split_whitespace().collect();
        if let [state, _, _, process, container, peer, mode, ..] = cells[..]
            && (state == "State" || process.contains("redis"))
        {
            println!("{state:<8}{process:<24}{container:<22}{peer:<22}{mode}");
        }
    }
}

fn memlane() -> Command {
    let built = Built::find();
    let mut command = Command::new(built.memlane.expect("built"));
    command.env("MEMLANE_PRELOAD", built.preload);
    command
}

// --- in containers -----------------------------------------------------------

/// Two containers of podman; the server's port is published.
struct InContainers {
    engine: Engine,
    port: String,
}

impl Scene for InContainers {
    fn commands(&self) {
        let (name, port) = (self.engine.name(), &self.port);
        println!("host# memlane agent install && systemctl enable --now memlane-agent");
        println!(
            "host# podman run --device memlane.dev/lane=on --name {name} -p {port}:6379 redis"
        );
        println!(
            "host# podman run --device memlane.dev/lane=on --name {name}-client redis redis-benchmark -p {port} …"
        );
    }

    fn server(&self, lane: Lane) -> Box<dyn Running + '_> {
        let published = format!("{}:{PORT}", self.port);
        let server = self.engine.server(lane, &["--publish", &published]);
        server.is_up();
        Box::new(server)
    }

    fn benchmark(&self, lane: Lane, args: &[&str]) -> Child {
        let gateway = self.engine.gateway();
        let at = ["-h", &gateway, "-p", &self.port, "--csv"];
        self.engine.client(lane, &[], &[&at, args].concat())
    }

    fn end(&self, mut benchmark: Child) {
        let name = format!("{}-client", self.engine.name());
        let _ = self.engine.podman(&["kill", &name]);
        let _ = benchmark.wait();
    }
}

// --- in network namespaces ---------------------------------------------------

/// Two network namespaces and a router.
struct InNamespaces {
    networks: Networks,
    agent: Agent,
}

fn in_namespaces() -> InNamespaces {
    let networks = Networks::new(Between::Nat).unwrap_or_else(|why| {
        eprintln!("two network namespaces cannot be made here: {why}");
        exit(3);
    });
    let agent = Agent::start("demo-containers").unwrap_or_else(|why| {
        eprintln!("no agent can run here: {why}");
        exit(3);
    });
    InNamespaces { networks, agent }
}

impl InNamespaces {
    /// A command in a namespace, under memlane if it is to have lanes.
    fn within(&self, namespace: &str, lane: Lane) -> Command {
        if lane == Lane::Off {
            return self.networks.command(namespace, "env");
        }
        let built = Built::find();
        let memlane = built.memlane.expect("built").display().to_string();
        let mut command = self.networks.command(namespace, &memlane);
        command.args(["run", "--domain", &self.agent.directory(), "--"]);
        command.env("MEMLANE_PRELOAD", built.preload);
        command
    }

    fn answers(&self) -> bool {
        let mut ping = self.within(self.networks.client(), Lane::Off);
        let to = self.networks.reached_at();
        ping.args(["redis-cli", "-h", to, "-p", PORT, "ping"]);
        ping.output()
            .is_ok_and(|said| said.stdout.starts_with(b"PONG"))
    }
}

impl Scene for InNamespaces {
    fn commands(&self) {
        println!("host#   memlane agent /run/memlane/default");
        println!(
            "server# memlane run -- redis-server              ({})",
            self.networks.server_address()
        );
        println!(
            "client# memlane run -- redis-benchmark -h {}   (NAT to the server)",
            self.networks.reached_at()
        );
    }

    fn server(&self, lane: Lane) -> Box<dyn Running + '_> {
        let mut command = self.within(self.networks.server(), lane);
        command.args(["redis-server", "--bind", self.networks.server_address()]);
        command.args(["--port", PORT, "--protected-mode", "no", "--save", ""]);
        let server = Redis(command.stdout(Stdio::null()).spawn().expect("it starts"));
        let end = Instant::now() + Duration::from_secs(10);
        while !self.answers() {
            if Instant::now() > end {
                eprintln!("redis-server does not answer");
                exit(1);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Box::new(server)
    }

    fn benchmark(&self, lane: Lane, args: &[&str]) -> Child {
        let mut command = self.within(self.networks.client(), lane);
        let to = self.networks.reached_at();
        command.args(["redis-benchmark", "-h", to, "-p", PORT, "--csv"]);
        command.args(args).stdout(Stdio::piped());
        command.spawn().expect("redis-benchmark")
    }

    fn end(&self, mut benchmark: Child) {
        let _ = benchmark.kill();
        let _ = benchmark.wait();
    }
}

/// Killed when dropped.
struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
