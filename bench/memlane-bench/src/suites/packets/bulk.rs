//! TCP between two network namespaces, by iperf3, over whatever joins them.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::copier::READY;
use super::rows::{ALONE, LENT, Outcome, Row, UDP_BYTES, VETH, Way};
use crate::runner::cables::{Cables, Side, address};
use crate::runner::proc::{Job, Service, find_program, listens};
use crate::runner::turn::Bench;
use crate::runner::{parse, sys};

const PORT: u16 = 5201;
const LIMIT: Duration = Duration::from_secs(30);
/// The TAP device of a namespace; the veth pair is cable 0.
const TAP: &str = "tap1";
const CABLE: usize = 1;

/// Why that cannot be measured here, if so.
pub(super) fn lacks(system: &str) -> Option<String> {
    for (name, package) in [("iperf3", "iperf3"), ("ip", "iproute2")] {
        if find_program(name).is_none() {
            return Some(format!("not installed: {name} (apt-get install {package})"));
        }
    }
    if system != VETH && !Path::new("/dev/net/tun").exists() {
        return Some("no /dev/net/tun (modprobe tun)".into());
    }
    Cables::new(1)
        .err()
        .map(|why| format!("no network namespaces here: {why:#}"))
}

/// Two namespaces, joined.
pub(super) struct Joined {
    /// Before the namespaces: it ends first.
    services: Vec<Service>,
    server: Service,
    cables: Cables,
    /// Of the server.
    address: String,
}

impl Joined {
    pub(super) fn new(bench: &Bench, system: &str) -> anyhow::Result<Joined> {
        let cables = Cables::new(1)?;
        let (services, cable) = match system {
            VETH => (Vec::new(), 0),
            "copier" => {
                add_taps(&cables)?;
                (vec![copier(bench, &cables)?], CABLE)
            }
            ALONE => {
                add_taps(&cables)?;
                (vec![alone(bench, &cables)?], CABLE)
            }
            LENT => {
                add_taps(&cables)?;
                (lent(bench, &cables)?, CABLE)
            }
            mode => {
                add_taps(&cables)?;
                (lane(bench, &cables, mode)?, CABLE)
            }
        };
        let address = address(cable, Side::Server);
        let mut server = cables.command(Side::Server, &program("iperf3")?);
        server.args(["-s", "-B", &address, "-p", &PORT.to_string()]);
        let server = Service::start_until(server, &bench.scratch, |pid| listens(pid, PORT))?;
        Ok(Joined {
            services,
            server,
            cables,
            address,
        })
    }

    /// The rate in Gbit/s, and processor seconds for a gigabyte: of the link's processes and of both iperf3.
    pub(super) fn measure(
        &self,
        bench: &Bench,
        row: &Row,
        congestion_control: &str,
    ) -> anyhow::Result<Outcome> {
        let mut client = self.cables.command(Side::Client, &program("iperf3")?);
        let seconds = bench.seconds.ceil().to_string();
        client.args([
            "-J",
            "-c",
            &self.address,
            "-p",
            &PORT.to_string(),
            "-t",
            &seconds,
        ]);
        client.args((row.way == Way::Rx).then_some("-R"));
        match row.flows {
            0 => client.args(["-u", "-b", "0", "-l", &UDP_BYTES.to_string()]),
            flows => client.args(["-P", &flows.to_string(), "-C", congestion_control]),
        };
        let limit = LIMIT + Duration::from_secs_f64(bench.seconds);
        let before = self.cpu() + sys::children_cpu_seconds();
        let text = Job::start(client, limit, &bench.scratch)?.finish()?;
        let cpu = self.cpu() + sys::children_cpu_seconds() - before;
        let gigabytes = parse::iperf3_bytes(&text)? / 1e9;
        Ok(Outcome {
            value: parse::iperf3_gbits(&text)?,
            cpu: Some(cpu / gigabytes),
        })
    }

    fn cpu(&self) -> f64 {
        let services = self.services.iter().chain([&self.server]);
        let pids = services.flat_map(Service::pids);
        pids.map(sys::cpu_seconds).sum()
    }
}

fn program(name: &str) -> anyhow::Result<std::path::PathBuf> {
    find_program(name).with_context(|| format!("not installed: {name}"))
}

fn add_taps(cables: &Cables) -> anyhow::Result<()> {
    for side in [Side::Client, Side::Server] {
        let address = format!("{}/30", address(CABLE, side));
        cables.ip(side, &["tuntap", "add", TAP, "mode", "tap"])?;
        cables.ip(side, &["addr", "add", &address, "dev", TAP])?;
        cables.ip(side, &["link", "set", TAP, "up"])?;
    }
    Ok(())
}

fn copier(bench: &Bench, cables: &Cables) -> anyhow::Result<Service> {
    let mut command = cables.command(Side::Client, &bench.programs.bench);
    let namespace = Path::new("/run/netns").join(cables.name(Side::Server));
    command
        .args(["peer", "copier", TAP])
        .arg(namespace)
        .arg(TAP);
    Service::start_saying(command, &bench.scratch, READY)
}

fn alone(bench: &Bench, cables: &Cables) -> anyhow::Result<Service> {
    let mut link = cables.command(Side::Client, &bench.programs.memlane);
    let there = format!("tap:{TAP}?netns={}", cables.name(Side::Server));
    link.args(["net", "link", &format!("tap:{TAP}"), &there]);
    Service::start_saying(link, &bench.scratch, "linked: ")
}

/// The server's namespace lends its device to the client's.
fn lent(bench: &Bench, cables: &Cables) -> anyhow::Result<Vec<Service>> {
    let socket = bench.scratch.name("loan");
    let tap = format!("tap:{TAP}");
    let mut lender = cables.command(Side::Server, &bench.programs.memlane);
    lender.args(["net", "lend"]).arg(&socket).arg(&tap);
    let lender = Service::start_saying(lender, &bench.scratch, "lending ")?;
    let mut link = cables.command(Side::Client, &bench.programs.memlane);
    link.args(["net", "link", &tap, &format!("lent:{}", socket.display())]);
    let link = Service::start_saying(link, &bench.scratch, "linked: ")?;
    Ok(vec![lender, link])
}

/// The front is the client's.
fn lane(bench: &Bench, cables: &Cables, mode: &str) -> anyhow::Result<Vec<Service>> {
    let socket = bench.scratch.name("link");
    let at = |end: &str| format!("{end}:{}", socket.display());
    let tap = format!("tap:{TAP}");
    let mut back = cables.command(Side::Server, &bench.programs.memlane);
    back.args(["net", "link", &tap, &at("back")]);
    let back = Service::start_until(back, &bench.scratch, |_| socket.exists())?;
    let mut front = cables.command(Side::Client, &bench.programs.memlane);
    front.args(["net", "link", &tap, &at("front"), "--mode", mode]);
    let front = Service::start_saying(front, &bench.scratch, "linked: ")?;
    Ok(vec![back, front])
}
