//! Guests that share an ivshmem device, with each other and with their host.
//!
//! | room | what |
//! |---|---|
//! | `computers` | stock programs in a guest or on the host, told by its shell |
//! | `ends` | programs of a test's own with one connection, in a guest or on the host |
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod computers;
pub(crate) mod ends;

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
use memlane_system::pair::{Alone, End, flags};

/// Debian 12's own kernel, and the newer one that it offers.
const STOCK: &str = "linux-image-amd64";
const NEWER: &str = "linux-image-6.12-amd64";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(600);
/// The longest that a guest takes for one order.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);
/// Bytes of a region with the smallest rings.
pub(crate) const SMALL: u64 = 16 << 20;
/// Bytes of a region with rings that grow while they are used.
pub(crate) const LARGE: u64 = 256 << 20;
/// Bytes by the lane that are no accident.
pub(crate) const ENOUGH: u64 = 1 << 18;
/// How long a guest is stopped.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);

/// An agent, a network, and a shell that does what is typed. What is typed is not shown. Each order has a number, and its answer ends
/// with `over` and that number.
const SHELL: &str = r#"
export PATH=/bin HOME=/ MEMLANE_PRELOAD=/libmemlane_preload.so MEMLANE_UPGRADE=eager END_SECONDS=300
export opt=/opt work=/tmp domain=/domain
mkdir -p /run/memlane /var/log /etc /domain /dev/shm
mount -t tmpfs none /dev/shm
echo root:x:0:0::/:/bin/sh >/etc/passwd
echo nobody:x:65534:65534::/:/bin/sh >>/etc/passwd
echo root:x:0: >/etc/group
echo nogroup:x:65534: >>/etc/group
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
ends_end() {
    tries=0
    while kill -0 $end 2>/dev/null && [ $tries -lt 20 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    kill -9 $end 2>/dev/null
    wait $end && status=0 || status=$?
    end=
    echo status $status
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
pub(crate) struct Stage {
    kernels: [Kernel; 2],
    pub(crate) folder: TempDir,
    pub(crate) region: PathBuf,
    size: u64,
}

impl Stage {
    pub(crate) fn new(test: &str, size: u64) -> Option<Stage> {
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
    pub(crate) fn guest(&self, number: u8, network: &str) -> Guest {
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
pub(crate) fn extents_in_use(region: &Path) -> usize {
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
pub(crate) struct Machine {
    pub(crate) running: Running,
    pub(crate) address: String,
    orders: u32,
}

impl Machine {
    pub(crate) fn boot(guest: &Guest, name: &str, address: &str) -> Machine {
        let story = SHELL.replace("NAME", name).replace("ADDRESS", address);
        let mut running = guest.start(&story);
        assert!(running.hears("guest-is-up"), "{}", running.console());
        let mut machine = Machine {
            running,
            address: address.to_owned(),
            orders: 0,
        };
        machine.answer_that(|line| line.contains("guest-is-up"));
        machine
    }

    /// The first line of the console for which this is so.
    pub(crate) fn answer_that(&mut self, wanted: impl Fn(&str) -> bool) -> String {
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
    pub(crate) fn begins(&mut self, order: &str) -> String {
        self.orders += 1;
        self.running.types(&format!("{} {order}", self.orders));
        format!("over {}", self.orders)
    }

    /// Has the shell do this; what it says.
    pub(crate) fn shell(&mut self, order: &str) -> String {
        let over = self.begins(order);
        self.rest_of(&over)
    }

    /// What the shell says until an order that was begun is over.
    pub(crate) fn rest_of(&mut self, over: &str) -> String {
        let mut said = String::new();
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
    pub(crate) fn meets(&mut self, machines: usize) {
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
    pub(crate) fn runs_end(&mut self, arguments: &str) -> String {
        self.begins(&format!("runs_end {arguments}"));
        self.answer_that(|line| line == "a new end");
        self.answer_that(|line| line.starts_with("port ") || line.starts_with("end:"))
    }

    /// Waits a moment for that end to be over, or else kills it; its exit status, as the shell says it.
    pub(crate) fn ends_end(&mut self) -> i32 {
        self.begins("ends_end");
        let said = self.answer_that(|line| line.starts_with("status "));
        said["status ".len()..].parse().expect(&said)
    }
}

/// A network device of the host's that is a guest's network, and stays when the guest is gone.
pub(crate) struct Tap {
    name: String,
    network: u32,
}

impl Tap {
    pub(crate) fn new() -> Tap {
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
    pub(crate) fn address(&self, machine: u8) -> String {
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
pub(crate) struct Host {
    pub(crate) agent: Agent,
    pub(crate) tap: Tap,
    guest: Guest,
    pub(crate) stage: Stage,
}

impl Host {
    pub(crate) fn new(test: &str, region: u64) -> Option<Host> {
        Host::with(test, region, &|guest| guest)
    }

    /// The same, with more in the guest.
    pub(crate) fn with(test: &str, region: u64, fit: &dyn Fn(Guest) -> Guest) -> Option<Host> {
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
            guest: fit(stage.guest(2, &tap.as_netdev())),
            tap,
            stage,
        })
    }

    pub(crate) fn boot(&self) -> Machine {
        let mut machine = Machine::boot(&self.guest, "guest", &self.tap.address(2));
        machine.meets(2);
        machine
    }

    /// A program of the host that listens, and one of the guest that has connected to it.
    pub(crate) fn listens(&self, machine: &mut Machine) -> Alone {
        let at = self.tap.address(1);
        let (alone, port) = End::listening_at(&flags(&["--domain", &self.agent.directory()]), &at);
        machine.runs_end(&format!("connect {port} {at}"));
        alone
    }

    /// A program of the guest that listens, and one of the host that has connected to it.
    pub(crate) fn connects(&self, machine: &mut Machine) -> Alone {
        let at = self.tap.address(2);
        let said = machine.runs_end(&format!("listen {at}"));
        let port = said.trim_start_matches("port ").parse().expect(&said);
        End::connecting_to(&flags(&["--domain", &self.agent.directory()]), &at, port)
    }
}

/// Two guests with a cable between their network devices. Each of them can be booted again.
pub(crate) struct Neighbours {
    guests: [Guest; 2],
    pub(crate) stage: Stage,
}

impl Neighbours {
    /// `None`: they cannot be here, and that was said.
    pub(crate) fn new(test: &str, region: u64) -> Option<Neighbours> {
        Neighbours::with(test, region, &|guest| guest)
    }

    /// The same, with more in each guest.
    pub(crate) fn with(
        test: &str,
        region: u64,
        fit: &dyn Fn(Guest) -> Guest,
    ) -> Option<Neighbours> {
        let stage = Stage::new(test, region)?;
        // Datagrams: a QEMU that waits for a stopped one to take bytes of a stream does not go on itself.
        let cable = |ends: [&str; 2]| {
            let [own, other] = ends.map(|end| stage.folder.path().join(end).display().to_string());
            format!(
                "dgram,id=net,local.type=unix,local.path={own},remote.type=unix,remote.path={other}"
            )
        };
        let guests = [
            stage.guest(2, &cable(["server", "client"])),
            stage.guest(3, &cable(["client", "server"])),
        ];
        Some(Neighbours {
            guests: guests.map(fit),
            stage,
        })
    }

    /// Boots the first of them, which has to be there before the second.
    pub(crate) fn boot_server(&self) -> Machine {
        Machine::boot(&self.guests[0], "server", "198.18.0.2")
    }

    /// Boots the second, and waits until it sees the first.
    pub(crate) fn boot_client(&self) -> Machine {
        let mut client = Machine::boot(&self.guests[1], "client", "198.18.0.3");
        client.meets(2);
        client
    }
}

/// A program of the first guest accepts one of the second.
pub(crate) fn connected([server, client]: [&mut Machine; 2]) {
    let said = server.runs_end("listen 198.18.0.2");
    let port = said.trim_start_matches("port ");
    client.runs_end(&format!("connect {port} 198.18.0.2"));
}

/// Waits until no extent of the region is in use.
pub(crate) fn all_extents_are_free(region: &Path) {
    let begin = Instant::now();
    while extents_in_use(region) > 0 {
        assert!(begin.elapsed() < PATIENCE, "memory of the dead");
        std::thread::sleep(Duration::from_millis(20));
    }
}
