//! A Linux in QEMU whose network is `memlane net link vhost-user:… tap:…`. Ordinary traffic passes, and recovers
//! after the command or the machine is killed.
#![cfg(target_arch = "x86_64")]

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memlane_fixtures::guest::{self, Guest, Kernel};
use memlane_system::blocks::machines::{Machines, Side};
use memlane_system::blocks::{has, memlane, must};
use memlane_system::harness::{self, Running};
use memlane_system::packets::TAP;

/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(200);
const HOST: &str = "198.51.100.1";
const GUEST: &str = "198.51.100.2";

/// This machine's end: a namespace with a TAP device, and the program that links it with the guest's socket.
struct Host {
    link: Option<Running>,
    kernel: Kernel,
    queues: u16,
    /// Last, as its end kills all that is left there.
    machines: Machines,
}

impl Host {
    /// `None` if this cannot run here; the reason is printed.
    fn new(test: &str, queues: u16) -> Option<Host> {
        let here = || -> Result<Host, String> {
            if let Some(missing) = ["ping", "curl", "python3"]
                .into_iter()
                .find(|name| !has(name))
            {
                return Err(format!("no {missing}"));
            }
            guest::qemu()?;
            let kernel = Kernel::of_package("linux-image-amd64")?;
            if !Path::new("/dev/net/tun").exists() {
                return Err("no /dev/net/tun".into());
            }
            Ok(Host {
                link: None,
                kernel,
                queues,
                machines: Machines::new(test, 0)?,
            })
        };
        // Not for want of a package: kernels come by the network.
        let host = here().map_err(|why| eprintln!("SKIPPED {test}: {why}"));
        let mut host = host.ok()?;
        let mut tap = vec!["tuntap", "add", TAP, "mode", "tap"];
        tap.extend((queues > 1).then_some("multi_queue"));
        host.ip(&tap);
        host.ip(&["addr", "add", &format!("{HOST}/24"), "dev", TAP]);
        host.ip(&["link", "set", TAP, "mtu", "9000", "up"]);
        host.start();
        Some(host)
    }

    fn ip(&self, args: &[&str]) {
        self.machines.ip(Side::Client, args);
    }

    fn command(&self, program: &str) -> Command {
        self.machines.command(Side::Client, program)
    }

    fn dir(&self) -> &Path {
        self.machines.dir()
    }

    fn start(&mut self) {
        let mut command = self.machines.command(Side::Client, memlane());
        let socket = self.dir().join("guest.sock");
        command.args(["net", "link", &format!("vhost-user:{}", socket.display())]);
        command.args([&format!("tap:{TAP}"), "--json"]);
        command.args(["--queues", &self.queues.to_string()]);
        self.link = Some(Running::start(command));
    }

    /// Waits until it has seen that a guest is gone.
    fn ended(&mut self) {
        let link = self.link.as_mut().expect("it was started");
        let end = std::time::Instant::now() + LIMIT;
        while !link.stderr().contains("waiting for another") {
            assert!(std::time::Instant::now() < end, "{}", link.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn kill(&mut self) {
        self.link.take().expect("it was started").stop();
    }

    /// Ends the link in an orderly way; what it counted.
    fn finish(&mut self) -> serde_json::Value {
        let link = self.link.take().expect("it was started");
        link.signal("TERM");
        let said = link.finish(LIMIT);
        assert!(said.is_ok(), "{}", said.report());
        serde_json::from_str(&said.stdout).expect("JSON")
    }

    fn guest(&self, cpus: u32, script: &str) -> guest::Running {
        let socket = self.dir().join("guest.sock");
        let chardev = format!("socket,id=net,path={},reconnect=1", socket.display());
        let netdev = format!("vhost-user,id=net,chardev=net,queues={}", self.queues);
        // QEMU 7.2 without KVM falls over the MSI-X vectors of a vhost network device (docs/limits.md): none.
        let mq = if self.queues > 1 { "on" } else { "off" };
        let device = format!("virtio-net-pci,netdev=net,mq={mq},vectors=0");
        let script = format!(
            "ip link set lo up\nip addr add {GUEST}/24 dev eth0\nip link set eth0 mtu 9000 up\n{script}"
        );
        Guest::new(&self.kernel)
            .modules(&["virtio_pci", "virtio_net"])
            .cpus(cpus)
            .limit(LIMIT)
            .arguments(&["-chardev", &chardev, "-netdev", &netdev, "-device", &device])
            .start(&script)
    }

    /// Gives out its folder.
    fn serve_files(&self) -> Running {
        let mut server = self.command("python3");
        server.args(["-m", "http.server", "8000", "--bind", HOST]);
        server.arg("--directory").arg(self.dir());
        Running::start(server)
    }

    fn curl(&self, file: &str, into: &Path) -> Command {
        let mut client = self.command("curl");
        client.args(["-sS", "--retry", "20", "--retry-connrefused"]);
        client.args(["--retry-delay", "1", "-o"]).arg(into);
        client.arg(format!("http://{GUEST}/{file}"));
        client
    }
}

/// A file of which no two pages are alike; its sum.
fn make_file(path: &Path, bytes: u64) -> String {
    let file = std::fs::File::create(path).expect("a new file");
    let mut file = std::io::BufWriter::new(file);
    for n in 0..bytes / 8 {
        let word = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ n;
        file.write_all(&word.to_le_bytes()).expect("room for it");
    }
    file.flush().expect("room for it");
    sum(path)
}

fn sum(file: &Path) -> String {
    let mut command = Command::new("sha256sum");
    command.arg(file);
    must(command)[..64].to_owned()
}

fn number(value: &serde_json::Value, end: usize, key: &str) -> u64 {
    let found = value["ends"][end][key].as_u64();
    found.unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

#[test]
fn a_guest_pings_and_files_go_both_ways_in_large_frames() {
    let Some(mut host) = Host::new("guest-files", 1) else {
        return;
    };
    let expected = make_file(&host.dir().join("file"), 16 << 20);
    let _server = host.serve_files();
    let script = format!(
        "
        echo features $(cat /sys/class/net/eth0/device/features)
        ping -c 3 -q {HOST}
        for size in 0 1472 1473 4000 8900; do ping -c 3 -q -s $size {HOST}; done
        wget -q -O /tmp/file http://{HOST}:8000/file
        echo sum $(sha256sum </tmp/file)
        httpd -p 80 -h /tmp
        echo serving
        read line
    "
    );
    let mut guest = host.guest(1, &script);
    assert!(guest.hears("serving"), "{}", guest.console());
    let console = guest.console();
    let unlost = console.matches(" 0% packet loss").count();
    assert_eq!(unlost, 6, "{console}");
    assert!(console.contains(&format!("sum {expected}")), "{console}");
    let back = host.dir().join("back");
    let said = harness::run(host.curl("file", &back), LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    assert_eq!(sum(&back), expected);
    guest.types("end");
    let ended = guest.finish();
    assert!(ended.ok, "{}", ended.console);
    let counts = host.finish();
    println!("guest-files: {counts:#}");
    // From the guest, and to it.
    for (frames, bytes) in [("received", "received_bytes"), ("sent", "sent_bytes")] {
        let (frames, bytes) = (number(&counts, 0, frames), number(&counts, 0, bytes));
        assert!(bytes > 16 << 20, "{counts:#}");
        assert!(bytes / frames > 4000, "no large frames: {counts:#}");
    }
    assert_eq!([0, 1].map(|end| number(&counts, end, "failed")), [0, 0]);
}

#[test]
fn a_download_survives_the_link_killed_and_the_next_guest_finds_it() {
    let Some(mut host) = Host::new("guest-killed", 2) else {
        return;
    };
    let expected = make_file(&host.dir().join("file"), 24 << 20);
    let _server = host.serve_files();
    let script = format!(
        "
        echo queues $(ls /sys/class/net/eth0/queues | wc -l)
        wget -q -O /tmp/file http://{HOST}:8000/file
        httpd -p 80 -h /tmp
        echo serving
        read line
    "
    );
    let mut guest = host.guest(2, &script);
    assert!(guest.hears("serving"), "{}", guest.console());
    assert!(guest.console().contains("queues 4"), "{}", guest.console());
    let back = host.dir().join("back");
    let mut client = host.curl("file", &back);
    // So that it lasts while things happen.
    client.args(["--limit-rate", "4M"]);
    let mut client = Running::start(client);
    let size = || back.metadata().map_or(0, |file| file.len());
    client.wait_until(LIMIT, "first bytes", || size() > 1 << 20);
    for _ in 0..2 {
        let before = size();
        host.kill();
        std::thread::sleep(Duration::from_millis(300));
        host.start();
        client.wait_until(LIMIT, "bytes after a kill", || size() > before + (2 << 20));
    }
    let said = client.finish(LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    assert_eq!(sum(&back), expected);
    // The machine's power fails; the next one comes to the same link.
    guest.kill();
    host.ended();
    let mut guest = host.guest(1, &format!("ping -c 3 -q {HOST}"));
    let ended = guest.finish();
    assert!(
        ended.ok && ended.console.contains(" 0% packet loss"),
        "{}",
        ended.console
    );
    let counts = host.finish();
    assert_eq!([0, 1].map(|end| number(&counts, end, "failed")), [0, 0]);
}
