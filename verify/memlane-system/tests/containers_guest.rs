//! The agent on Debian's own kernels, in QEMU: it introduces two network namespaces there, also where the kernel is locked down.
//!
//! `./dev test-kernels` runs both kernels; without it, the older one, if it is there already.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memlane_fixtures::guest::{self, Guest, Kernel};
use memlane_system::blocks::{has, memlane, must};
use memlane_system::harness::{Built, TempDir, stripped};

/// Debian 12's own kernel, and the newer one that it offers.
const STOCK: &str = "linux-image-amd64";
const NEWER: &str = "linux-image-6.12-amd64";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(240);

/// The paths keep busybox from taking its own `ip`. Two namespaces with a cable between them; redis in one, its benchmark in the
/// other, whose four connections get lanes: before the kernel is locked down as far as it can be, and after. (The agent's program
/// reads what the verifier knows the type of, and no helper that lockdown takes away.)
const STORY: &str = r"
export MEMLANE_PRELOAD=/libmemlane_preload.so PATH=/bin
mkdir -p /run/netns /run/memlane /var /sys/kernel/security
mount -t securityfs none /sys/kernel/security
/opt/ip netns add a
/opt/ip netns add b
/opt/ip link add name va netns a type veth peer name vb netns b
for n in a b; do
    /opt/ip -n $n link set lo up
    /opt/ip -n $n link set v$n up
done
/opt/ip -n a addr add 10.0.0.1/24 dev va
/opt/ip -n b addr add 10.0.0.2/24 dev vb
/opt/ip netns exec a memlane run -- /opt/redis-server --protected-mode no --save '' --port 6379 >/tmp/redis.log 2>&1 &
tries=0
until /opt/ip netns exec b /opt/redis-cli -h 10.0.0.1 ping 2>/dev/null | grep -q PONG; do
    tries=$((tries + 1))
    [ $tries -lt 60 ]
    sleep 1
done
talk() {
    memlane agent >/tmp/agent.log 2>&1 &
    agent=$!
    until grep -q serves /tmp/agent.log; do sleep 0.2; done
    MEMLANE_STATS_ON_EXIT=1 /opt/ip netns exec b memlane run -- \
        /opt/redis-benchmark -h 10.0.0.1 -t get -n 400 -c 4 -q 2>/tmp/said
    cat /tmp/said
    grep -q '4 upgraded' /tmp/said
    kill $agent
    wait $agent || true
}
talk
echo confidentiality >/sys/kernel/security/lockdown
grep '\[confidentiality\]' /sys/kernel/security/lockdown
talk
";

fn found(program: &str) -> PathBuf {
    let mut which = Command::new("/bin/sh");
    which.args(["-c", &format!("readlink -f $(command -v {program})")]);
    PathBuf::from(must(which).trim())
}

fn guest(kernel: &Kernel, folder: &Path) -> Result<Guest, String> {
    let mut guest = Guest::new(kernel)
        .modules(&["veth", "tcp_diag"])
        .memory(512)
        .cpus(2)
        .limit(LIMIT)
        .file(
            &stripped(&Built::find().preload, folder),
            "/libmemlane_preload.so",
        )
        .program(&stripped(&memlane(), folder), "/bin/memlane")?;
    for program in ["ip", "redis-server", "redis-benchmark", "redis-cli"] {
        guest = guest.program(&found(program), &format!("/opt/{program}"))?;
    }
    Ok(guest)
}

/// Not for want of a package that can be demanded: kernels come by the network.
fn tell(test: &str, kernel: Result<Kernel, String>) {
    let missing = [
        "strip",
        "ip",
        "redis-server",
        "redis-benchmark",
        "redis-cli",
    ]
    .into_iter()
    .find(|program| !has(program));
    let ready = match missing {
        Some(missing) => Err(format!("no {missing}")),
        None => guest::qemu().and(kernel),
    };
    let kernel = match ready {
        Ok(kernel) => kernel,
        Err(why) => return eprintln!("SKIPPED {test}: {why}"),
    };
    let folder = TempDir::new(test);
    let guest = guest(&kernel, folder.path()).expect("programs of this machine");
    let outcome = guest.start(STORY).finish();
    assert!(outcome.ok, "{}", outcome.console);
}

#[test]
fn the_agent_works_on_debians_kernel_locked_down_or_not() {
    tell("stock-kernel", Kernel::of_cache(STOCK));
}

#[test]
#[ignore = "fetches kernels: ./dev test-kernels"]
fn the_agent_works_on_both_of_debians_kernels_locked_down_or_not() {
    for package in [STOCK, NEWER] {
        tell(package, Kernel::of_package(package));
    }
}
