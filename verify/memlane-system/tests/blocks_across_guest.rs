//! A guest uses a volume of its host by memory that both have: the host's file is the guest's ivshmem device.
//!
//! The first test runs wherever its kernel is there already. `./dev test-kernels` runs both of Debian's kernels.
#![cfg(target_arch = "x86_64")]

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memlane_fixtures::guest::{self, Guest, Heard, Kernel, Running};
use memlane_system::blocks::alone::Alone;
use memlane_system::blocks::region::Region;
use memlane_system::blocks::{has, memlane, must};
use memlane_system::harness::{TempDir, plain_only, stripped};

/// Debian 12's own kernel, and the newer one that it offers.
const STOCK: &str = "linux-image-amd64";
const NEWER: &str = "linux-image-6.12-amd64";
const FUSE: &str = "fuse:/tmp/disk";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(240);
/// A device's memory is a power of two. It has room for one session of 64 chunks, and a second while that one ends.
const REGION: usize = 32 << 20;
const DEPTH: &str = "64";

/// The guest maps the volume by memory and by TCP, kills the mapping, and maps it again. HOST is where QEMU's own network has the
/// host. A line that begins with a sum is for the host to compare.
const STORY: &str = r#"
export PATH=/bin
mkdir -p /run /var /etc /tmp
echo guest >/proc/sys/kernel/hostname
dmesg -n 1
stty -echo
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
touch /tmp/disk
maps() {
    disk=$(memlane map --session guest --device ivshmem:auto --connections 1 --heartbeat 10s --wait 60s \
        --take-over --as FRONTEND ivshmem://HOST,HOST disk)
    echo "it is $disk"
}
is_up() {
    until memlane session show guest | grep "^$1.*connected"; do sleep 0.5; done
}
# What goes by memory, in requests.
by_memory() {
    memlane session show guest --json | tr -d ' \n' | sed 's/.*"path":"ivshmem:[^}]*"writes":\([0-9]*\).*/\1/'
}
writes() {
    dd if=/dev/urandom of=/tmp/data bs=64k count=$1 2>/dev/null
    dd if=/tmp/data of=$disk bs=64k conv=notrunc,fsync 2>/dev/null
    sum=$(md5sum </tmp/data | cut -c1-32)
    echo 3 >/proc/sys/vm/drop_caches
    [ "$(head -c $((65536 * $1)) $disk | md5sum | cut -c1-32)" = "$sum" ]
    echo "sum $1 $sum"
}
maps
is_up ivshmem
is_up tcp
writes 64
[ "$(by_memory)" -gt 10 ]
echo by-memory
read -r next
writes 96
echo without-memory
read -r next
is_up ivshmem
before=$(by_memory)
writes 64
[ "$(by_memory)" -gt "$before" ]
kill -9 $(pidof memlane)
echo killed
umount -l /tmp/disk 2>/dev/null || true
maps
echo again
is_up ivshmem
[ "$(head -c $((65536 * 64)) $disk | md5sum | cut -c1-32)" = "$sum" ]
writes 32
[ "$(by_memory)" -gt 5 ]
memlane vol unmap disk
"#;

/// The first line of the console that has `what` in it.
fn line_with(running: &mut Running, what: &str) -> String {
    loop {
        match running.line(LIMIT) {
            Heard::Line(line) if line.contains(what) => return line,
            Heard::Line(_) => {}
            _ => panic!("never {what:?}:\n{}", running.console()),
        }
    }
}

/// The sum of the first bytes of the volume, as the guest says it, is that of what the host has in its file.
fn compare(running: &mut Running, blocks: usize, file: &Path) {
    let line = line_with(running, &format!("sum {blocks} "));
    let mut command = Command::new("sh");
    let bytes = blocks * 65536;
    command
        .arg("-c")
        .arg(format!("head -c {bytes} {} | md5sum", file.display()));
    let sum = must(command);
    assert_eq!(
        sum.split_whitespace().next(),
        line.split_whitespace().last()
    );
}

fn tell(test: &str, frontend: &str, kernel: Result<Kernel, String>) {
    if plain_only() {
        return;
    }
    let ready = match has("strip") {
        true => guest::qemu().and(kernel),
        false => Err("no strip".to_owned()),
    };
    let kernel = match ready {
        Ok(kernel) => kernel,
        Err(why) => return eprintln!("SKIPPED {test}: {why}"),
    };
    let (mut alone, region) = (Alone::new(test), Region::new(test, REGION as u64));
    let file = alone.volume("disk", 16 << 20);
    alone.serve(&["--queue-depth", DEPTH, "--device", &region.device()]);
    let memory = format!(
        "memory-backend-file,id=m,share=on,mem-path={},size={REGION}",
        region.path().display()
    );
    let folder = TempDir::new(test);
    let port = alone.tcp().rsplit_once(':').expect("a port").1.to_owned();
    let story = STORY
        .replace("HOST", &format!("10.0.2.2:{port}"))
        .replace("FRONTEND", frontend);
    let module = if frontend == FUSE { "fuse" } else { "ublk_drv" };
    let mut running = Guest::new(&kernel)
        .modules(&["virtio_pci", "virtio_net", module])
        .memory(512)
        .cpus(1)
        .limit(LIMIT)
        .arguments(&["-object", &memory, "-device", "ivshmem-plain,memdev=m"])
        .arguments(&["-uuid", "6d656d6c-616e-4000-8000-000000000001"])
        .arguments(&["-netdev", "user,id=net"])
        .arguments(&["-device", "virtio-net-pci,netdev=net,romfile="])
        .program(&stripped(&memlane(), folder.path()), "/bin/memlane")
        .expect("programs of this machine")
        .start(&story);
    compare(&mut running, 64, &file);
    line_with(&mut running, "by-memory");
    // The server comes back without the memory, and the memory is worth nothing.
    let memory = std::fs::File::options().write(true).open(region.path());
    let memory = memory.expect("memory");
    alone.kill();
    memory.write_all_at(&[0xFF; 4096], 0).expect("written");
    alone.serve(&["--queue-depth", DEPTH]);
    running.types("go on");
    compare(&mut running, 96, &file);
    line_with(&mut running, "without-memory");
    alone.kill();
    let zeros = vec![0; REGION];
    memory.write_all_at(&zeros, 0).expect("written");
    alone.serve(&["--queue-depth", DEPTH, "--device", &region.device()]);
    running.types("go on");
    compare(&mut running, 64, &file);
    compare(&mut running, 32, &file);
    let outcome = running.finish();
    assert!(outcome.ok, "{}", outcome.console);
    eprintln!("{}", outcome.console);
}

#[test]
fn a_guest_uses_a_volume_of_its_host_by_memory_and_goes_on_without_it() {
    tell("across-fuse", FUSE, Kernel::of_cache(STOCK));
}

#[test]
#[ignore = "fetches kernels: ./dev test-kernels"]
fn a_guest_with_either_of_debians_kernels_uses_a_volume_of_its_host_by_memory() {
    tell("across-older", FUSE, Kernel::of_package(STOCK));
    tell("across-newer", FUSE, Kernel::of_package(NEWER));
    tell("across-ublk", "ublk", Kernel::of_package(NEWER));
}
