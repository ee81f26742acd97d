//! Machines in QEMU: one boots from a volume, one serves volumes and loses its power, one has a network that delays,
//! loses and reorders.
//!
//! The first test is short and runs wherever its kernel is available. `./dev test-kernels` runs all of them.
#![cfg(target_arch = "x86_64")]

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlane_fixtures::guest::{self, Guest, Kernel};
use memlane_system::blocks::alone::Alone;
use memlane_system::blocks::writer::{BLOCK, Loses, Writer};
use memlane_system::blocks::{has, memlane, must, seed};
use memlane_system::harness::{TempDir, free_port, stripped};

/// Debian 12's own kernel, and the newer one that it offers.
const STOCK: &str = "linux-image-amd64";
const NEWER: &str = "linux-image-6.12-amd64";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(300);

/// Not for want of a package that can be demanded: kernels come by the network.
fn kernel(test: &str, package: &str) -> Option<Kernel> {
    let needed = ["mkfs.ext4", "e2fsck", "debugfs", "strip"];
    let missing = needed.into_iter().find(|program| !has(program));
    let kernel = match missing {
        Some(missing) => Err(format!("no {missing}")),
        None => guest::qemu().and_then(|()| Kernel::of_package(package)),
    };
    kernel
        .map_err(|why| eprintln!("SKIPPED {test}: {why}"))
        .ok()
}

fn run(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    must(command)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A guest that also has this machine's program of that name, in `/usr/bin`.
fn with_program(guest: Guest, name: &str) -> Guest {
    let found = run("sh", &["-c", &format!("command -v {name}")]);
    let to = format!("/usr/bin/{name}");
    let guest = guest.program(Path::new(found.trim()), &to);
    guest.expect("its libraries")
}

// ---- booting from a volume --------------------------------------------------

/// Reads, writes and reads back on its own root; `@` stands for the sum of what was there from the beginning.
const FROM_ITS_ROOT: &str = r"
grep ' / ' /proc/mounts
sum() { md5sum <$1 | cut -c1-32; }
test $(sum /data) = @
echo running
cp /data /copy
sync
n=0
while [ $n -lt 20 ]; do
    dd if=/data of=/more-$n bs=64k conv=fsync 2>/dev/null
    n=$((n + 1))
done
echo 3 >/proc/sys/vm/drop_caches
for file in /copy /more-*; do
    test $(sum $file) = @
done
rm /more-*
echo booted >/booted
";

fn a_machine_boots_by(frontend: &str, kernel: &Kernel) {
    let mut alone = Alone::new("boots");
    let image = alone.volume("disk", 48 << 20);
    let data = alone.dir().join("data");
    let bytes: Vec<u8> = (0..750_000_u32)
        .flat_map(|n| (n / 3 * 7).to_le_bytes())
        .step_by(3)
        .collect();
    std::fs::write(&data, &bytes).expect("written");
    let sum = run("md5sum", &[text(&data)]);
    let script = FROM_ITS_ROOT.replace('@', &sum[..32]);
    let guest = Guest::new(kernel)
        .modules(&["virtio_pci", "virtio_blk", "ext4", "crc32c_generic"])
        .limit(LIMIT);
    let made = guest
        .clone()
        .file(&data, "/data")
        .root_image(&image, &script);
    made.expect("a root file system");
    alone.serve(&[]);
    let socket = alone.dir().join("socket");
    let mapping = alone.map(
        "machine",
        &alone.tcp(),
        "disk",
        &format!("{frontend}:{}", text(&socket)),
        &[],
    );
    let disk = match frontend {
        "nbd:unix" => [
            "-drive".to_owned(),
            format!("file=nbd:unix:{},format=raw,if=none,id=disk", text(&socket)),
            "-device".to_owned(),
            "virtio-blk-pci,drive=disk".to_owned(),
        ],
        _ => [
            "-chardev".to_owned(),
            format!("socket,id=disk,path={}", text(&socket)),
            "-device".to_owned(),
            "vhost-user-blk-pci,chardev=disk".to_owned(),
        ],
    };
    let mut running = guest
        .arguments(&disk.each_ref().map(String::as_str))
        .boot("/dev/vda");
    assert!(running.hears("running"), "{}", running.console());
    // The server goes and comes back under the machine, which only waits.
    alone.kill();
    std::thread::sleep(Duration::from_millis(500));
    alone.serve(&[]);
    let said = running.finish();
    let mounted = said.console.contains("/dev/vda / ext4");
    assert!(said.ok && mounted, "{frontend}: {}", said.console);
    drop(running);
    mapping.end();
    run("e2fsck", &["-fn", text(&image)]);
    assert_eq!(
        run("debugfs", &["-R", "cat /booted", text(&image)]).trim(),
        "booted"
    );
    let copy = alone.dir().join("copied");
    run(
        "debugfs",
        &["-R", &format!("dump /copy {}", text(&copy)), text(&image)],
    );
    assert!(std::fs::read(&copy).expect("a copy") == bytes);
}

#[test]
fn a_machine_boots_from_a_volume_and_works_while_its_server_is_killed() {
    let Some(kernel) = kernel("boots", STOCK) else {
        return;
    };
    for frontend in ["nbd:unix", "vhost-user"] {
        a_machine_boots_by(frontend, &kernel);
    }
}

// ---- the server's power fails -----------------------------------------------

const SERVES: &str = r"
ip link set lo up
ip addr add 192.0.2.2/24 dev eth0
ip link set eth0 up
mount -t ext4 /dev/vda /mnt
echo mounted
memlane serve --root /mnt --listen tcp://192.0.2.2:1234 --insecure --queue-depth 64
";

/// A machine that serves what is on `disk`, at a port of this one.
fn serving_machine(kernel: &Kernel, memlane: &Path, disk: &Path, port: u16) -> guest::Running {
    let arguments = [
        "-drive".to_owned(),
        format!("file={},format=raw,if=none,id=disk", text(disk)),
        "-device".to_owned(),
        "virtio-blk-pci,drive=disk".to_owned(),
        "-netdev".to_owned(),
        format!(
            "user,id=net,net=192.0.2.0/24,host=192.0.2.1,dns=192.0.2.3,restrict=on,hostfwd=tcp:127.0.0.1:{port}-192.0.2.2:1234"
        ),
        "-device".to_owned(),
        "virtio-net-pci,netdev=net".to_owned(),
    ];
    let guest = Guest::new(kernel)
        .modules(&[
            "virtio_pci",
            "virtio_blk",
            "virtio_net",
            "ext4",
            "crc32c_generic",
        ])
        .arguments(&arguments.each_ref().map(String::as_str))
        .memory(512)
        .limit(LIMIT)
        .program(memlane, "/bin/memlane")
        .expect("its libraries");
    let mut running = guest.start(SERVES);
    assert!(running.hears("serving /mnt"), "{}", running.console());
    running
}

#[test]
#[ignore = "a minute: ./dev test-kernels"]
fn what_was_flushed_is_there_after_the_servers_machine_has_lost_its_power() {
    let test = "machine-power";
    let Some(kernel) = kernel(test, STOCK) else {
        return;
    };
    if File::open("/dev/fuse").is_err() {
        return eprintln!("SKIPPED {test}: no /dev/fuse");
    }
    let (seed, blocks) = (seed(), 256);
    let alone = Alone::new(test);
    let (memlane, disk) = (stripped(&memlane(), alone.dir()), alone.dir().join("disk"));
    let (tree, port) = (alone.dir().join("tree"), free_port());
    std::fs::create_dir(&tree).expect("a folder");
    File::create(tree.join("volume"))
        .and_then(|file| file.set_len(blocks as u64 * BLOCK))
        .expect("a volume");
    File::create(&disk)
        .and_then(|file| file.set_len(32 << 20))
        .expect("a disk");
    run("mkfs.ext4", &["-q", "-F", "-d", text(&tree), text(&disk)]);
    let mut machine = serving_machine(&kernel, &memlane, &disk, port);
    let more = [
        "--on-disconnect",
        "queue:200s",
        "--connections",
        "1",
        "--wait",
        "60s",
    ];
    let mapping = alone.fuse("power", &format!("127.0.0.1:{port}"), "volume", &more);
    let file = File::options()
        .read(true)
        .write(true)
        .open(mapping.shown())
        .expect("the volume");
    let mut writer = Writer::new(0, blocks, seed);
    for round in 0..3 {
        let over = AtomicBool::new(false);
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| writer.work(&file, &over));
            std::thread::sleep(Duration::from_millis(1500 + 400 * round));
            machine.kill();
            machine = serving_machine(&kernel, &memlane, &disk, port);
            mapping.wait_for_paths(1);
            // Some writes take the path that is back, before the writer learns that this round is over.
            std::thread::sleep(Duration::from_millis(1000));
            over.store(true, Ordering::SeqCst);
        });
        // The last word: if it is "flushed", all since the loss is there.
        while !writer.flush(&file) {
            assert!(began.elapsed() < LIMIT, "no flush succeeds any more");
        }
        let name = format!("seed {seed}, round {round}");
        let bytes = std::fs::read(mapping.shown()).expect("the volume");
        assert!(!writer.is_unsure(), "{name}: a write failed");
        writer.check(&bytes, Loses::Unflushed, &name);
    }
    // The last cut, with nobody who writes: by content, on the machine's disk.
    machine.kill();
    mapping.kill();
    run(
        "sh",
        &[
            "-c",
            &format!("e2fsck -fp {} || test $? -le 1", text(&disk)),
        ],
    );
    let left = alone.dir().join("left");
    run(
        "debugfs",
        &["-R", &format!("dump /volume {}", text(&left)), text(&disk)],
    );
    writer.check(
        &std::fs::read(&left).expect("the volume"),
        Loses::Unflushed,
        "at the end",
    );
    println!(
        "{test}: seed {seed}: {} writes, {} flushes, {} that told of a loss",
        writer.writes, writer.flushes, writer.failed_flushes
    );
    // Three cuts between writes and flushes: nothing is promised for what came between, and that is said.
    assert!(writer.flushes > 0 && writer.failed_flushes > 0);
}

// ---- a bad network ----------------------------------------------------------

const BAD_NETWORK: &str = r#"
# Not busybox's own.
export PATH=/usr/bin:$PATH
ip() { /usr/bin/ip "$@"; }
tc() { /usr/bin/tc "$@"; }
mkdir -p /srv /run/netns
truncate -s 32M /srv/disk
ip link set lo up
ip netns add server
for n in 0 1; do
    ip link add c$n type veth peer name s$n
    ip link set s$n netns server
    ip addr add 192.0.2.$((n * 4 + 1))/30 dev c$n
    ip link set c$n up
    ip netns exec server ip addr add 192.0.2.$((n * 4 + 2))/30 dev s$n
    ip netns exec server ip link set s$n up
done
one=192.0.2.2
other=192.0.2.6
ip netns exec server memlane serve --root /srv --insecure --queue-depth 64 \
    --listen tcp://$one --listen tcp://$other >/tmp/served 2>&1 &
memlane map --session bad --connections 1 --policy rr --as nbd:unix:/tmp/disk $one,$other disk
# What the client hears is late, lost and out of order on one cable; what the server hears is lost on the other.
ip netns exec server tc qdisc add dev s0 root netem delay 8ms 6ms reorder 25% 50% loss 1%
tc qdisc add dev c1 root netem delay 3ms 2ms loss 2% duplicate 1%
fio --name=verify --ioengine=nbd --uri='nbd+unix:///?socket=/tmp/disk' --rw=randrw --bs=4k --size=8m --iodepth=16 \
    --verify=crc32c --verify_fatal=1 --verify_backlog=64 --verify_state_save=0 --time_based --runtime=20 >/tmp/fio || {
    cat /tmp/fio
    exit 1
}
grep -E 'read|write|err=' /tmp/fio
tc -s qdisc show dev c1
memlane session show bad
test $(memlane session show bad | grep -c '^tcp.*connected') = 2
memlane vol unmap disk
echo verified
"#;

#[test]
#[ignore = "a minute: ./dev test-kernels"]
fn over_a_network_that_delays_loses_and_reorders_every_block_is_right() {
    let test = "netem";
    let Some(kernel) = kernel(test, NEWER) else {
        return;
    };
    let programs = ["fio", "ip", "tc"];
    if let Some(missing) = programs.into_iter().find(|program| !has(program)) {
        return eprintln!("SKIPPED {test}: no {missing}");
    }
    let folder = TempDir::new(test);
    let mut guest = Guest::new(&kernel)
        .modules(&["veth", "sch_netem"])
        .cpus(2)
        .memory(1024)
        .limit(LIMIT)
        .program(&stripped(&memlane(), folder.path()), "/bin/memlane")
        .expect("its libraries");
    for name in programs {
        guest = with_program(guest, name);
    }
    let said = guest.start(BAD_NETWORK).finish();
    assert!(
        said.ok && said.console.contains("verified"),
        "{}",
        said.console
    );
    println!("{}", said.console);
}

// ---- who may borrow ---------------------------------------------------------

/// A user's server lends a volume in memory by default. Its own client and root's map that, for each value of Yama's
/// `ptrace_scope`: only root may trace other processes at 1 and 2, and nobody may at 3, which stays until the next boot.
const BORROWERS: &str = r#"
scope=/proc/sys/kernel/yama/ptrace_scope
cat $scope
for user in 0 1000; do
    mkdir -m 700 /tmp/of-$user
    chown $user:$user /tmp/of-$user
done
as() {
    user=$1
    shift
    /usr/bin/setpriv --reuid $user --regid $user --clear-groups env XDG_RUNTIME_DIR=/tmp/of-$user "$@"
}
as 1000 memlane serve --root /tmp/of-1000 --listen local:lends --test-volumes >/tmp/served 2>&1 &
until grep -q serving /tmp/served; do sleep 0.2; done
borrows() {
    as $1 memlane map --session of-$1 --as nbd:unix:/tmp/of-$1/socket local:lends mem:1M >/dev/null
    as $1 memlane vol ls >/tmp/told
    as $1 memlane vol unmap mem:1M --session of-$1 >/dev/null
    grep -q 'of-'$1 /tmp/told
    if grep 'of-'$1 /tmp/told | grep -q 'ok, lent'; then echo yes; else echo no; fi
}
for n in 0 1 2 3; do
    echo $n >$scope
    echo "scope $n: user $(borrows 1000), root $(borrows 0)"
done
"#;

#[test]
#[ignore = "a minute: ./dev test-kernels"]
fn a_client_borrows_a_volume_exactly_where_its_kernel_would_let_it_trace_the_server() {
    let test = "borrowers";
    // Linux 6.1 has no `SO_PEERPIDFD`, and 6.12 has.
    for package in [STOCK, NEWER] {
        let Some(kernel) = kernel(test, package) else {
            return;
        };
        if !has("setpriv") {
            return eprintln!("SKIPPED {test}: no setpriv");
        }
        let folder = TempDir::new(test);
        let guest = Guest::new(&kernel)
            .memory(512)
            .limit(LIMIT)
            .program(&stripped(&memlane(), folder.path()), "/bin/memlane")
            .expect("its libraries");
        let said = with_program(guest, "setpriv").start(BORROWERS).finish();
        let scopes = said
            .console
            .lines()
            .filter(|line| line.starts_with("scope"));
        let scopes: Vec<&str> = scopes.map(str::trim).collect();
        let expected = [
            "scope 0: user yes, root yes",
            "scope 1: user no, root yes",
            "scope 2: user no, root yes",
            "scope 3: user no, root no",
        ];
        assert!(said.ok && scopes == expected, "{package}: {}", said.console);
    }
}
