//! `./dev demo packets`: joins two machines by `memlane net link` over TAP devices, in the lane's three modes, and by
//! a veth pair. It runs iperf3 over each in turn.

use std::process::exit;
use std::time::Instant;

use memlane_system::blocks::has;
use memlane_system::blocks::machines::{Machines, Side};
use memlane_system::packets::{Linked, iperf3};

/// Of each measurement.
const SECONDS: &str = "2";
const ROUNDS: usize = 3;
/// The last one is the kernel's own.
const WAYS: [&str; 4] = ["persistent", "map", "copy", "veth"];

/// What one way did in one round.
#[derive(Default)]
struct Seen {
    /// Gbit/s from the front's machine to the back's, and back.
    tx: Vec<f64>,
    rx: Vec<f64>,
    /// Processor seconds of the link's processes for a gigabyte.
    cpu: Vec<f64>,
}

fn main() {
    let lacks = |name: &str| !has(name);
    if let Some(missing) = ["ip", "iperf3", "ping", "curl"]
        .into_iter()
        .find(|name| lacks(name))
    {
        eprintln!("no {missing}: apt-get install iproute2 iperf3 iputils-ping curl");
        exit(3);
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("no /dev/net/tun: modprobe tun");
        exit(3);
    }
    if let Err(why) = Machines::new("demo-packets", 0) {
        eprintln!("two network namespaces cannot be made here: {why}");
        exit(3);
    }
    demo();
}

fn demo() {
    let begin = Instant::now();
    println!("front# memlane net link tap:tap0 front:…/link.sock --mode persistent|map|copy");
    println!("back#  memlane net link tap:tap0 back:…/link.sock");
    println!("front# iperf3 -c … -t {SECONDS} [-R]; {ROUNDS} rounds, by turns, about a minute");
    let mut all: [Seen; WAYS.len()] = Default::default();
    for round in 0..ROUNDS {
        for (way, seen) in WAYS.iter().zip(&mut all) {
            match *way {
                "veth" => over_veth(seen),
                mode => over_the_lane(mode, seen),
            }
            let (tx, rx) = (seen.tx[round], seen.rx[round]);
            let at = begin.elapsed().as_secs_f64();
            println!("{at:5.1} s  {way}: {tx:.1} Gbit/s there, {rx:.1} back");
        }
    }
    println!();
    println!(
        "TCP, one flow     there, Gbit/s        back, Gbit/s     × veth  CPU s a GB of the link"
    );
    let veth = median(&all[WAYS.len() - 1].tx);
    for (way, seen) in WAYS.iter().zip(&all) {
        let [tx, rx] = [&seen.tx, &seen.rx].map(|values| spread(values));
        let cpu = match seen.cpu.is_empty() {
            true => "the kernel's".into(),
            false => format!("{:.2}", median(&seen.cpu)),
        };
        let ratio = median(&seen.tx) / veth;
        println!("{way:<12}  {tx:>18}  {rx:>18}  {ratio:>9.2}  {cpu}");
    }
    println!("(medians, lowest–highest; `./dev bench packets` measures more, and more exactly)");
}

fn over_the_lane(mode: &str, seen: &mut Seen) {
    let Some(linked) = Linked::new("demo-packets", &["--mode", mode]) else {
        exit(3);
    };
    let cpu = || -> f64 { linked.pids().into_iter().map(cpu_seconds).sum() };
    let before = cpu();
    let mut bytes = 0.0;
    for (values, args) in [(&mut seen.tx, &[][..]), (&mut seen.rx, &["-R"])] {
        let said = linked.iperf3(&[&["-t", SECONDS], args, control()].concat());
        bytes += received(&said, "bytes");
        values.push(received(&said, "bits_per_second") / 1e9);
    }
    seen.cpu.push((cpu() - before) / (bytes / 1e9));
}

fn over_veth(seen: &mut Seen) {
    let machines = match Machines::new("demo-packets", 1) {
        Ok(machines) => machines,
        Err(why) => {
            eprintln!("a veth pair cannot be made here: {why}");
            exit(3);
        }
    };
    let address = machines.address(0, Side::Server);
    for (values, args) in [(&mut seen.tx, &[][..]), (&mut seen.rx, &["-R"])] {
        let said = iperf3(
            &machines,
            &address,
            &[&["-t", SECONDS], args, control()].concat(),
        );
        values.push(received(&said, "bits_per_second") / 1e9);
    }
}

/// The kernel's own default, where there is it: others pace, and veth would be as fast as its pacing.
fn control() -> &'static [&'static str] {
    let there = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let there = std::fs::read_to_string(there).unwrap_or_default();
    match there.split_whitespace().any(|name| name == "cubic") {
        true => &["-C", "cubic"],
        false => &[],
    }
}

fn received(said: &serde_json::Value, what: &str) -> f64 {
    said["end"]["sum_received"][what].as_f64().unwrap_or(0.0)
}

/// User and system time of a process: fields 14 and 15 of proc(5), counted after its name.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after.split_whitespace().skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median(values: &[f64]) -> f64 {
    sorted(values)[values.len() / 2]
}

fn spread(values: &[f64]) -> String {
    let all = sorted(values);
    let (low, high) = (all[0], all[all.len() - 1]);
    format!("{:.1} ({low:.1}–{high:.1})", median(values))
}
