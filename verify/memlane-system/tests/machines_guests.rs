//! Programs in guests that share an ivshmem device, with each other and with programs of the host: the lane opens and carries
//! their bytes, also after a guest was paused, or lost its power and was booted again.
//!
//! `./dev test-kernels` runs all stories. Those with the host need root, for a TAP device.
#![cfg(target_arch = "x86_64")]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memlane_fixtures::guest::{self, Guest, Heard, Kernel, Running};
use memlane_system::blocks::{has, memlane, must};
use memlane_system::containers::Agent;
use memlane_system::harness::{Built, TempDir, is_root, stripped};
use memlane_system::pair::{Alone, End, Hashes, flags};

/// Debian 12's own kernel, and the newer one that it offers.
const STOCK: &str = "linux-image-amd64";
const NEWER: &str = "linux-image-6.12-amd64";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(240);
/// The longest that a guest takes for one order.
const PATIENCE: Duration = Duration::from_secs(50);
/// Bytes of a region with the smallest rings …
const SMALL: u64 = 16 << 20;
/// … and of one with rings that grow while they are used.
const LARGE: u64 = 256 << 20;
/// Bytes by the lane that are no accident.
const ENOUGH: u64 = 1 << 20;
/// How long a guest is stopped.
const PAUSE: Duration = Duration::from_secs(2);
/// Bytes that each end sends while the other does.
const FLOOD: usize = 4 << 20;

/// An agent, a network, and a shell that does what is typed. What is typed is not shown. Each order has a number, and its answer ends
/// with `over` and that number.
const SHELL: &str = r#"
export PATH=/bin MEMLANE_PRELOAD=/libmemlane_preload.so MEMLANE_UPGRADE=eager
mkdir -p /run/memlane /var /etc /domain
echo NAME >/proc/sys/kernel/hostname
dmesg -n 1
stty -echo
ip link set lo up
ip link set eth0 up
ip addr add ADDRESS/24 dev eth0
memlane agent --device=ivshmem:auto /domain >/tmp/agent.log 2>&1 &
agent=$!
until grep -q 'serves' /tmp/agent.log; do
    kill -0 $agent || { cat /tmp/agent.log; exit 1; }
    sleep 0.2
done
cat /tmp/agent.log
runs_end() {
    [ -z "$end" ] || { kill -9 $end; wait $end; } 2>/dev/null
    echo a new end
    rm -f /tmp/orders
    mkfifo /tmp/orders
    memlane run --domain /domain -- /opt/end "$@" </tmp/orders >/dev/console 2>&1 &
    end=$!
    exec 3>/tmp/orders
}
limits_memory() {
    mount -t cgroup2 none /sys/fs/cgroup
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control
    mkdir /sys/fs/cgroup/limited
    echo 64M >/sys/fs/cgroup/limited/memory.max
    echo $$ >/sys/fs/cgroup/limited/cgroup.procs
}
echo guest-is-up
while read -r number order; do
    eval "$order" || echo "failed: $order"
    echo over $number
done
"#;

/// What both kinds of story need. `None`: it is not here, and that was said.
struct Stage {
    kernels: [Kernel; 2],
    folder: TempDir,
    region: PathBuf,
    size: u64,
}

impl Stage {
    fn new(test: &str, size: u64) -> Option<Stage> {
        let missing = ["strip", "ip"].into_iter().find(|program| !has(program));
        let ready = match missing {
            Some(missing) => Err(format!("no {missing}")),
            None => guest::qemu()
                .and_then(|()| Ok([Kernel::of_package(STOCK)?, Kernel::of_package(NEWER)?])),
        };
        let kernels = ready
            .inspect_err(|why| eprintln!("SKIPPED {test}: {why}"))
            .ok()?;
        let region = PathBuf::from(format!("/dev/shm/memlane-{test}-{}", std::process::id()));
        let file = File::create(&region).expect("memory");
        file.set_len(size).expect("memory");
        let folder = TempDir::new(test);
        Some(Stage {
            kernels,
            folder,
            region,
            size,
        })
    }

    /// A guest with the region and one network device. It is the same machine whenever it is booted: its number is in its UUID.
    /// Even ones have the older kernel.
    fn guest(&self, number: u8, network: &str) -> Guest {
        let memory = format!(
            "memory-backend-file,id=m,share=on,mem-path={},size={}",
            self.region.display(),
            self.size
        );
        let uuid = format!("6d656d6c-616e-4000-8000-{:012}", number);
        let card = format!("virtio-net-pci,netdev=net,mac=52:54:00:00:00:{number:02},romfile=");
        let folder = self.folder.path();
        Guest::new(&self.kernels[usize::from(number % 2)])
            .modules(&["virtio_pci", "virtio_net", "tcp_diag"])
            .memory(320)
            .limit(LIMIT)
            .arguments(&["-object", &memory, "-device", "ivshmem-plain,memdev=m"])
            .arguments(&["-uuid", &uuid, "-netdev", network, "-device", &card])
            .file(
                &stripped(&Built::find().preload, folder),
                "/libmemlane_preload.so",
            )
            .program(&stripped(&memlane(), folder), "/bin/memlane")
            .and_then(|guest| guest.program(&Path::new(env!("OUT_DIR")).join("end"), "/opt/end"))
            .expect("programs of this machine")
    }
}

/// Extents that a machine receives in, as the region itself says (`docs/formats/ivshmem.md`).
fn extents_in_use(region: &Path) -> usize {
    let mut table = vec![0; 1024 * 128];
    let file = File::open(region).expect("the region");
    file.read_exact_at(&mut table, 0x2000).expect("its table");
    let receivers = table.chunks(128).map(|extent| &extent[..8]);
    receivers.filter(|word| *word != [0; 8]).count()
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.region);
    }
}

/// A guest that has booted.
struct Machine {
    running: Running,
    orders: u32,
}

impl Machine {
    fn boot(guest: &Guest, name: &str, address: &str) -> Machine {
        let story = SHELL.replace("NAME", name).replace("ADDRESS", address);
        let mut running = guest.start(&story);
        assert!(running.hears("guest-is-up"), "{}", running.console());
        let mut machine = Machine { running, orders: 0 };
        machine.answer_that(|line| line.contains("guest-is-up"));
        machine
    }

    /// The first line of the console for which this is so.
    fn answer_that(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            match self
                .running
                .line(until.saturating_duration_since(Instant::now()))
            {
                Heard::Line(line) if wanted(&line) => return line,
                Heard::Line(_) => {}
                _ => panic!("the guest is silent:\n{}", self.running.console()),
            }
        }
    }

    /// Has the shell begin with this; what it says at the end.
    fn begins(&mut self, order: &str) -> String {
        self.orders += 1;
        self.running.types(&format!("{} {order}", self.orders));
        format!("over {}", self.orders)
    }

    /// Has the shell do this; what it says.
    fn shell(&mut self, order: &str) -> String {
        let mut said = String::new();
        let over = self.begins(order);
        let until = Instant::now() + PATIENCE;
        loop {
            match self
                .running
                .line(until.saturating_duration_since(Instant::now()))
            {
                Heard::Line(line) if line == over => return said,
                Heard::Line(line) if line.starts_with("over ") => {}
                Heard::Line(line) => said += &(line + "\n"),
                _ => panic!("the guest is silent:\n{}", self.running.console()),
            }
        }
    }

    /// Waits until this many machines are alive for it.
    fn meets(&mut self, machines: usize) {
        let until = Instant::now() + PATIENCE;
        loop {
            let said = self.shell("memlane agent machines --device ivshmem:auto");
            if said.matches(" alive ").count() == machines {
                return;
            }
            assert!(Instant::now() < until, "{said}");
        }
    }

    /// Runs one end of a connection (`ends/end.c`); what it says first.
    fn runs_end(&mut self, arguments: &str) -> String {
        self.begins(&format!("runs_end {arguments}"));
        self.answer_that(|line| line == "a new end");
        self.answer_that(|line| line.starts_with("port ") || line.starts_with("end:"))
    }
}

/// One end of a connection, on either kind of machine.
trait Side {
    fn tell(&mut self, order: &str);
    fn answer(&mut self) -> Hashes;
    /// Bytes that it has sent and taken by the lane.
    fn by_lane(&mut self) -> [u64; 2];
    /// What is known of its connection.
    fn describe(&mut self) -> String;
}

impl Side for Alone {
    fn tell(&mut self, order: &str) {
        self.end.tell(order);
    }

    fn answer(&mut self) -> Hashes {
        self.end.answer()
    }

    fn by_lane(&mut self) -> [u64; 2] {
        let conn = self.end.conn();
        conn.map_or([0, 0], |conn| [conn.bytes[0], conn.bytes[1]])
    }

    fn describe(&mut self) -> String {
        format!("{:?}", self.end.conn())
    }
}

impl Side for Machine {
    fn tell(&mut self, order: &str) {
        self.begins(&format!("echo {order} >&3"));
    }

    fn answer(&mut self) -> Hashes {
        let line = self.answer_that(|line| line.starts_with("done ") || line.starts_with("end:"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let hash =
            |n: usize| u64::from_str_radix(words[n], 16).unwrap_or_else(|_| panic!("{line}"));
        Hashes {
            sent: hash(1),
            taken: hash(2),
        }
    }

    fn by_lane(&mut self) -> [u64; 2] {
        let said = self.shell("memlane ss --json");
        let parsed: serde_json::Value = serde_json::from_str(&said).expect(&said);
        let carried = |flow: &str| parsed["connections"][0][flow]["ring_bytes"].as_u64();
        ["tx", "rx"].map(|flow| carried(flow).unwrap_or(0))
    }

    fn describe(&mut self) -> String {
        self.shell("memlane ss; cat /tmp/agent.log")
    }
}

/// Both ends send this much at the same time; each has to receive what the other sent. Meanwhile something happens.
fn flood_while(ends: &mut [&mut dyn Side; 2], bytes: usize, happens: impl FnOnce()) {
    static SEED: AtomicU32 = AtomicU32::new(1);
    for end in ends.iter_mut() {
        let seed = SEED.fetch_add(1, Ordering::Relaxed);
        end.tell(&format!("both {seed} {bytes} {bytes}"));
    }
    happens();
    let [one, other] = ends.each_mut().map(|end| end.answer());
    assert_eq!((one.sent, one.taken), (other.taken, other.sent));
    assert_ne!(one.sent, other.sent, "each sends its own");
}

/// The lane opens, and carries a lot. It need not carry most: a receiver that sleeps gets its next bytes by TCP.
fn opens(mut ends: [&mut dyn Side; 2]) {
    let (begin, mut bytes) = (Instant::now(), 100_000);
    while begin.elapsed() < PATIENCE {
        flood_while(&mut ends, bytes, || ());
        let [sent, taken] = ends[0].by_lane();
        if sent > 0 && taken > 0 {
            if sent + taken > ENOUGH {
                assert_eq!(ends[1].by_lane(), [taken, sent]);
                return;
            }
            bytes = FLOOD;
        }
    }
    panic!("{}", ends.map(|end| end.describe()).join("\n"));
}

/// A network device of the host's that is a guest's network, and stays when the guest is gone.
struct Tap {
    name: String,
    network: u32,
}

impl Tap {
    fn new() -> Tap {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let network = NUMBER.fetch_add(1, Ordering::Relaxed);
        let tap = Tap {
            name: format!("mlt{}-{network}", std::process::id()),
            network,
        };
        let address = format!("{}/24", tap.address(1));
        for arguments in [
            &["tuntap", "add", "dev", &tap.name, "mode", "tap"][..],
            &["addr", "add", &address, "dev", &tap.name],
            &["link", "set", &tap.name, "up"],
        ] {
            let mut ip = Command::new("ip");
            ip.args(arguments);
            must(ip);
        }
        tap
    }

    /// The address of a machine in its network; the host is number 1.
    fn address(&self, machine: u8) -> String {
        format!("198.18.{}.{machine}", self.network)
    }

    fn as_netdev(&self) -> String {
        let name = &self.name;
        format!("tap,id=net,ifname={name},script=no,downscript=no")
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["link", "del", &self.name])
            .status();
    }
}

/// The host with its agent, and a guest that can be booted again.
struct Host {
    agent: Agent,
    tap: Tap,
    guest: Guest,
    stage: Stage,
}

impl Host {
    fn new(test: &str, region: u64) -> Option<Host> {
        if !is_root() {
            eprintln!("SKIPPED {test}: not root");
            return None;
        }
        let stage = Stage::new(test, region)?;
        let agent = Agent::start_sharing(test, &stage.region)
            .inspect_err(|why| eprintln!("SKIPPED {test}: {why}"))
            .ok()?;
        let tap = Tap::new();
        Some(Host {
            agent,
            guest: stage.guest(2, &tap.as_netdev()),
            tap,
            stage,
        })
    }

    fn boot(&self) -> Machine {
        let mut machine = Machine::boot(&self.guest, "guest", &self.tap.address(2));
        machine.meets(2);
        machine
    }

    /// A program of the host that listens, and one of the guest that has connected to it.
    fn listens(&self, machine: &mut Machine) -> Alone {
        let at = self.tap.address(1);
        let (alone, port) = End::listening_at(&flags(&["--domain", &self.agent.directory()]), &at);
        machine.runs_end(&format!("connect {port} {at}"));
        alone
    }

    /// A program of the guest that listens, and one of the host that has connected to it.
    fn connects(&self, machine: &mut Machine) -> Alone {
        let at = self.tap.address(2);
        let said = machine.runs_end(&format!("listen {at}"));
        let port = said.trim_start_matches("port ").parse().expect(&said);
        End::connecting_to(&flags(&["--domain", &self.agent.directory()]), &at, port)
    }
}

/// The guest's second program has a limit for its memory. There the library has the kernel populate a ring's pages, which no kernel
/// does for the memory of a device.
#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_guest_and_its_host_have_the_lane_whoever_connects() {
    let Some(host) = Host::new("guest-and-host", LARGE) else {
        return;
    };
    let mut machine = host.boot();
    let mut server = host.listens(&mut machine);
    opens([&mut server, &mut machine]);
    drop(server);
    assert_eq!(machine.shell("limits_memory"), "");
    let mut client = host.connects(&mut machine);
    opens([&mut client, &mut machine]);
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_guest_that_is_paused_in_the_middle_of_a_stream_goes_on_with_every_byte() {
    let Some(host) = Host::new("guest-paused", LARGE) else {
        return;
    };
    let mut machine = host.boot();
    let mut server = host.listens(&mut machine);
    opens([&mut server, &mut machine]);
    let pid = machine.running.pid();
    for _ in 0..2 {
        let begin = Instant::now();
        flood_while(&mut [&mut server, &mut machine], 4 * FLOOD, || {
            std::thread::sleep(Duration::from_millis(100));
            machine_stops_for(pid, PAUSE);
        });
        assert!(begin.elapsed() > PAUSE, "it was over before");
    }
    opens([&mut server, &mut machine]);
}

/// Stops a QEMU for a while.
fn machine_stops_for(pid: u32, pause: Duration) {
    for (signal, after) in [("-STOP", pause), ("-CONT", Duration::ZERO)] {
        let mut kill = Command::new("kill");
        kill.args([signal, &pid.to_string()]);
        must(kill);
        std::thread::sleep(after);
    }
}

/// Both ends begin to send without end, and the second one's machine loses its power.
fn loses_its_power(survivor: &mut dyn Side, lost: &mut Machine) {
    survivor.tell("both 1 1000000000 1000000000");
    lost.tell("both 2 1000000000 1000000000");
    std::thread::sleep(Duration::from_millis(500));
    lost.running.kill();
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_guest_that_loses_its_power_is_for_its_host_what_tcp_would_show_and_its_memory_is_free_when_it_is_back()
 {
    let Some(host) = Host::new("guest-killed", SMALL) else {
        return;
    };
    let mut machine = host.boot();
    for _ in 0..2 {
        let mut survivor = host.listens(&mut machine);
        opens([&mut survivor, &mut machine]);
        loses_its_power(&mut survivor, &mut machine);
        std::thread::sleep(PAUSE);
        assert!(survivor.end.runs(), "TCP would not give up so soon");
        assert!(extents_in_use(&host.stage.region) > 0, "it may be paused");

        machine = host.boot();
        let ended = survivor.end.end();
        assert_eq!(ended.code(), Some(1), "it was not reset: {ended}");
        let begin = Instant::now();
        while extents_in_use(&host.stage.region) > 0 {
            assert!(begin.elapsed() < PATIENCE, "memory of the dead");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let mut server = host.listens(&mut machine);
    opens([&mut server, &mut machine]);
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn two_guests_have_the_lane_and_have_it_again_when_one_has_lost_its_power() {
    let Some(stage) = Stage::new("two-guests", SMALL) else {
        return;
    };
    let socket = stage.folder.path().join("cable");
    let cable = |server: &str| {
        let socket = socket.display();
        format!("stream,id=net,server={server},addr.type=unix,addr.path={socket}")
    };
    let guests = [stage.guest(2, &cable("on")), stage.guest(3, &cable("off"))];
    let mut server = Machine::boot(&guests[0], "server", "198.18.0.2");
    let mut client = Machine::boot(&guests[1], "client", "198.18.0.3");
    connected([&mut server, &mut client]);
    opens([&mut server, &mut client]);

    loses_its_power(&mut server, &mut client);
    let mut client = Machine::boot(&guests[1], "client", "198.18.0.3");
    server.answer_that(|line| line.starts_with("end:") && line.contains("reset by peer"));
    connected([&mut server, &mut client]);
    opens([&mut server, &mut client]);
}

/// A program of the first guest accepts one of the second.
fn connected([server, client]: [&mut Machine; 2]) {
    client.meets(2);
    let said = server.runs_end("listen 198.18.0.2");
    let port = said.trim_start_matches("port ");
    client.runs_end(&format!("connect {port} 198.18.0.2"));
}
