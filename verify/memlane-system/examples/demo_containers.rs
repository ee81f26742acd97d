//! `./dev demo containers`: redis and its benchmark in two network namespaces, with a router between them that translates both
//! addresses, as between a container and a published port. Over TCP, and over memlane with an agent.

use std::process::{Child, Command, Stdio, exit};
use std::time::{Duration, Instant};

use memlane_system::blocks::has;
use memlane_system::containers::{Agent, Between, Networks};
use memlane_system::harness::Built;

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
const PORT: &str = "6379";

fn main() {
    let needed = ["ip", "nft", "redis-server", "redis-benchmark", "redis-cli"];
    if let Some(missing) = needed.into_iter().find(|name| !has(name)) {
        eprintln!("no {missing}: apt-get install iproute2 nftables redis-server redis-tools");
        exit(3);
    }
    let networks = Networks::new(Between::Nat).unwrap_or_else(|why| {
        eprintln!("two network namespaces cannot be made here: {why}");
        exit(3);
    });
    let agent = Agent::start("demo-containers").unwrap_or_else(|why| {
        eprintln!("no agent can run here: {why}");
        exit(3);
    });
    demo(&networks, &agent);
}

fn demo(networks: &Networks, agent: &Agent) {
    println!("host#   memlane agent /run/memlane/default");
    println!("server# memlane run -- redis-server              (198.51.100.2)");
    println!(
        "client# memlane run -- redis-benchmark -h {}   (NAT to the server)\n",
        networks.reached_at()
    );
    println!(
        "{:<28} {:>12} {:>12} {:>7}",
        "between two namespaces", "TCP, req/s", "memlane", "times"
    );
    let domain = agent.directory();
    let mut server = Server::start(networks, None);
    let plain: Vec<f64> = WORKLOADS
        .iter()
        .map(|(_, args)| rate(networks, None, args))
        .collect();
    server.stop();
    let _server = Server::start(networks, Some(&domain));
    for ((name, args), plain) in WORKLOADS.iter().zip(plain) {
        let lane = rate(networks, Some(&domain), args);
        println!(
            "{name:<28} {plain:>12.0} {lane:>12.0} {:>6.1}×",
            lane / plain
        );
    }
    show(networks, &domain);
}

/// What `memlane ss` on the host shows of them while they talk.
fn show(networks: &Networks, domain: &str) {
    let mut talking = benchmark(
        networks,
        Some(domain),
        &["-t", "get", "-c", "2", "-n", "100000000"],
    );
    let mut talking = talking
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-benchmark");
    std::thread::sleep(Duration::from_millis(700));
    let said = memlane().args(["ss", "-p"]).output();
    let _ = talking.kill();
    let _ = talking.wait();
    println!("\nhost# memlane ss -p");
    let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    let said = said.unwrap_or_default();
    let lines = said
        .lines()
        .filter(|line| line.contains("redis") || line.starts_with("State"));
    for line in lines.take(5) {
        let line: String = line.chars().take(100).collect();
        println!("{}", line.trim_end());
    }
    println!(
        "\nIn containers: memlane agent install, then docker or podman run --device memlane.dev/lane=on …"
    );
}

/// redis in the server's namespace. Killed when dropped.
struct Server(Child);

impl Server {
    fn start(networks: &Networks, domain: Option<&str>) -> Server {
        let redis = [
            "redis-server",
            "--bind",
            networks.server_address(),
            "--port",
            PORT,
        ];
        let more = ["--protected-mode", "no", "--save", "", "--daemonize", "no"];
        let mut command = within(networks, networks.server(), domain);
        command.args(redis).args(more).stdout(Stdio::null());
        let server = Server(command.spawn().expect("redis-server starts"));
        let begin = Instant::now();
        while !answers(networks) {
            if begin.elapsed() > Duration::from_secs(10) {
                eprintln!("redis-server does not answer");
                exit(1);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    fn stop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn answers(networks: &Networks) -> bool {
    let mut ping = within(networks, networks.client(), None);
    ping.args(["redis-cli", "-h", networks.reached_at(), "-p", PORT, "ping"]);
    ping.output()
        .is_ok_and(|said| said.stdout.starts_with(b"PONG"))
}

fn memlane() -> Command {
    let built = Built::find();
    let mut command = Command::new(built.memlane.expect("built"));
    command.env("MEMLANE_PRELOAD", built.preload);
    command
}

/// A command in a namespace, under memlane if there is a domain.
fn within(networks: &Networks, namespace: &str, domain: Option<&str>) -> Command {
    let Some(domain) = domain else {
        return networks.command(namespace, "env");
    };
    let built = Built::find();
    let memlane = built.memlane.expect("built");
    let mut command = networks.command(namespace, &memlane.display().to_string());
    command.args(["run", "--domain", domain, "--"]);
    command.env("MEMLANE_PRELOAD", built.preload);
    command
}

fn benchmark(networks: &Networks, domain: Option<&str>, args: &[&str]) -> Command {
    let mut command = within(networks, networks.client(), domain);
    command.args([
        "redis-benchmark",
        "-h",
        networks.reached_at(),
        "-p",
        PORT,
        "--csv",
    ]);
    command.args(args);
    command
}

/// Requests a second.
fn rate(networks: &Networks, domain: Option<&str>, args: &[&str]) -> f64 {
    let said = benchmark(networks, domain, args)
        .output()
        .expect("redis-benchmark");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let rate = text
        .lines()
        .filter_map(|line| line.split(',').nth(1))
        .find_map(|field| field.trim_matches('"').parse().ok());
    rate.unwrap_or_else(|| {
        eprintln!("redis-benchmark said {text:?}");
        exit(1);
    })
}
