//! Static Go programs on Debian's own kernels, in QEMU, where Yama says who may trace whom: they get the lane where it lets
//! memlane trace them, and stay on TCP with a reason where it does not.
//!
//! `./dev test-kernels` runs both kernels; without it, the older one, if it is there already.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memlane_fixtures::guest::{self, Guest, Kernel};
use memlane_system::blocks::{memlane, must};
use memlane_system::harness::{Built, plain_only, stripped};
use memlane_system::real::lang::GoBuild;
use memlane_system::real::{Story, note, program, script};

/// Debian 12's own kernel, and the newer one that it offers.
const STOCK: &str = "linux-image-amd64";
const NEWER: &str = "linux-image-6.12-amd64";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(400);
const NEEDED: [&str; 7] = [
    "go",
    "cc",
    "strip",
    "redis-server",
    "redis-cli",
    "make",
    "setpriv",
];

/// The paths keep busybox from taking its own programs. `talk LANES USER COMMAND`: a Go client of redis, which has one connection
/// that must get (1) or not get (0) a lane. Two ways to start it: `memlane run` executes it, and make starts it by `posix_spawn`.
const STORY: &str = r"
export MEMLANE_PRELOAD=/libmemlane_preload.so PATH=/bin
ip link set lo up
chmod 1777 /tmp
printf 'all:\n\t@/opt/go-client redis 6379\n' >/makefile
as() { user=$1; shift; /opt/setpriv --reuid $user --regid $user --clear-groups -- $@; }
talk() {
    lanes=$1; user=$2; shift 2
    MEMLANE_STATS_ON_EXIT=1 as $user memlane run -- /opt/redis-server --protected-mode no --save '' >/tmp/redis.log 2>&1 &
    redis=$!
    until /opt/redis-cli ping 2>/dev/null | grep -q PONG; do sleep 0.2; done
    as $user memlane run -- $@ >/tmp/said 2>&1
    /opt/redis-cli shutdown nosave || true
    wait $redis || true
    echo scope $(cat /proc/sys/kernel/yama/ptrace_scope), user $user, $@:
    cat /tmp/said
    grep upgraded /tmp/redis.log
    grep -q '^done' /tmp/said
    grep -q $lanes' upgraded' /tmp/redis.log
}
both() {
    talk $1 $2 /opt/go-client redis 6379
    if [ $1 = 0 ]; then grep 'system does not let memlane into it' /tmp/said; fi
    talk $1 $2 /opt/make -s -f /makefile
}
scope() { echo $1 >/proc/sys/kernel/yama/ptrace_scope; }
scope 0; both 1 1000
scope 1; both 1 1000
# Who may trace a program is what the program has said, also after memlane has traced it.
talk 1 1000 /opt/chosen-tracer /opt/go-client redis 6379
grep 'tracer can trace' /tmp/said
scope 2; both 0 1000; both 1 0
scope 3; both 0 0
";

fn chosen_tracer(folder: &Path) -> PathBuf {
    let made = folder.join("chosen-tracer");
    let mut cc = Command::new("cc");
    must({
        cc.arg("-o").args([&made, &script("chosen_tracer.c")]);
        cc
    });
    made
}

fn guest(kernel: &Kernel, story: &Story) -> Result<Guest, String> {
    let folder = story.dir();
    let library = stripped(&Built::find().preload, folder);
    let client = GoBuild::STATIC.build(story, &["many.go"], "go-client");
    let mut guest = Guest::new(kernel)
        .modules(&["tcp_diag"])
        .memory(512)
        .cpus(2)
        .limit(LIMIT)
        .file(&library, "/libmemlane_preload.so")
        .file(&client, "/opt/go-client")
        .program(&chosen_tracer(folder), "/opt/chosen-tracer")?
        .program(&stripped(&memlane(), folder), "/bin/memlane")?;
    for name in ["redis-server", "redis-cli", "make", "setpriv"] {
        guest = guest.program(&program(name), &format!("/opt/{name}"))?;
    }
    Ok(guest)
}

fn tell(name: &str, kernel: Result<Kernel, String>) {
    if plain_only() {
        return;
    }
    let kernel = match guest::qemu().and(kernel) {
        Ok(kernel) => kernel,
        Err(why) => return note(&format!("SKIPPED {name}: {why}")),
    };
    let Some(story) = Story::new(name, &NEEDED) else {
        return;
    };
    let guest = guest(&kernel, &story).expect("programs of this machine");
    let outcome = guest.start(STORY).finish();
    println!("{}", outcome.console);
    assert!(outcome.ok, "{}", outcome.console);
}

#[test]
fn a_static_program_gets_the_lane_where_yama_lets_memlane_trace_it() {
    tell("go-yama", Kernel::of_cache(STOCK));
}

#[test]
#[ignore = "fetches kernels: ./dev test-kernels"]
fn on_both_of_debians_kernels_a_static_program_gets_the_lane_where_yama_allows_it() {
    for package in [STOCK, NEWER] {
        tell("go-yama-kernels", Kernel::of_package(package));
    }
}
