//! A guest with an ivshmem device, and its host: their agents find each other in the device's memory.
//!
//! `./dev test-kernels` runs both of Debian's kernels; without it, the older one, if it is there already.
#![cfg(target_arch = "x86_64")]

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use memlane_fixtures::guest::{self, Guest, Kernel};
use memlane_system::blocks::{has, memlane};
use memlane_system::harness::{TempDir, plain_only, stripped};

/// Debian 12's own kernel, and the newer one that it offers.
const STOCK: &str = "linux-image-amd64";
const NEWER: &str = "linux-image-6.12-amd64";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(240);

/// The guest's agent takes part, and sees the host's; it is told of in `memlane info`, and an agent that is ended leaves its place.
const STORY: &str = r"
export PATH=/bin
mkdir -p /run/memlane /var /etc
echo guest >/proc/sys/kernel/hostname
cat /proc/sys/kernel/random/uuid | tr -d - >/etc/machine-id
device=--device=ivshmem:auto
memlane agent $device /run/memlane/default >/tmp/agent.log 2>&1 &
agent=$!
until grep -q 'shares /sys/bus/pci/devices/.*/resource2 (16 MiB)' /tmp/agent.log; do
    kill -0 $agent || { cat /tmp/agent.log; exit 1; }
    sleep 0.2
done
cat /tmp/agent.log
tries=0
until memlane agent machines $device | grep -c alive | grep -q 2; do
    tries=$((tries + 1))
    [ $tries -lt 30 ]
done
memlane agent machines $device
memlane info sockets | grep 'machines  .*1 other machines'
kill $agent
wait $agent || true
memlane agent machines $device | grep 'silent.*guest'
";

/// The host's agent, and the region. Gone when dropped.
struct Host {
    region: PathBuf,
    agent: Child,
}

impl Host {
    /// `Err` says why there can be no agent here.
    fn start(test: &str, domain: &Path) -> Result<Host, String> {
        let region = PathBuf::from(format!("/dev/shm/memlane-{test}-{}", std::process::id()));
        let file = File::create(&region).expect("memory");
        file.set_len(16 << 20).expect("memory");
        let mut command = Command::new(memlane());
        command
            .args(["agent", "--device"])
            .arg(format!("ivshmem:{}", region.display()));
        command
            .arg(domain)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut agent = command.spawn().expect("memlane starts");
        let mut line = String::new();
        let out = agent.stdout.as_mut().expect("piped");
        let _ = BufReader::new(out).read_line(&mut line);
        if line.starts_with("serves ") {
            return Ok(Host { region, agent });
        }
        let _ = std::fs::remove_file(&region);
        let said = agent.wait_with_output().expect("it ends");
        Err(String::from_utf8_lossy(&said.stderr).into_owned())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
        let _ = std::fs::remove_file(&self.region);
    }
}

fn tell(test: &str, kernel: Result<Kernel, String>) {
    if plain_only() {
        return;
    }
    let ready = match has("strip") {
        true => guest::qemu().and(kernel),
        false => Err("no strip".to_owned()),
    };
    let folder = TempDir::new(test);
    let host = Host::start(test, &folder.path().join("domain"));
    let (kernel, host) = match ready.and_then(|kernel| Ok((kernel, host?))) {
        Ok(both) => both,
        Err(why) => return eprintln!("SKIPPED {test}: {why}"),
    };
    let memory = format!(
        "memory-backend-file,id=m,share=on,mem-path={},size=16M",
        host.region.display()
    );
    let guest = Guest::new(&kernel)
        .memory(512)
        .cpus(1)
        .limit(LIMIT)
        .arguments(&["-object", &memory, "-device", "ivshmem-plain,memdev=m"])
        .program(&stripped(&memlane(), folder.path()), "/bin/memlane")
        .expect("programs of this machine");
    let outcome = guest.start(STORY).finish();
    assert!(outcome.ok, "{}", outcome.console);
    eprintln!("{}", outcome.console);
}

#[test]
fn a_guest_and_its_host_find_each_other_in_the_memory_of_a_device() {
    tell("machines-stock", Kernel::of_cache(STOCK));
}

#[test]
#[ignore = "fetches kernels: ./dev test-kernels"]
fn a_guest_with_either_of_debians_kernels_and_its_host_find_each_other() {
    for package in [STOCK, NEWER] {
        tell(package, Kernel::of_package(package));
    }
}
