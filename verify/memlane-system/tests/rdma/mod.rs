//! Guests with an RDMA device made of software (rxe, RoCE).
#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memlane_fixtures::guest::{self, Guest, Kernel, Outcome};
use memlane_system::blocks::{has, memlane, must};
use memlane_system::harness::stripped;

/// Debian 12's newer kernel, and its stock kernel.
const NEWER: &str = "linux-image-6.12-amd64";
const STOCK: &str = "linux-image-amd64";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(240);
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// One end of a veth pair is an RDMA device, by which it reaches itself. A device on the loopback interface has no route.
pub(crate) const DEVICE: &str = r"
export PATH=/bin
export XDG_RUNTIME_DIR=/run
mkdir -p /vols /mnt /var
/opt/ip link set lo up
/opt/ip link add v0 type veth peer name v1
/opt/ip link set v0 up
/opt/ip link set v1 up
/opt/ip addr add 192.0.2.1/24 dev v0
/opt/rdma link add r0 type rxe netdev v0
/opt/rdma link show
ls /dev/infiniband
";

/// What a guest says whose own RDMA does not work.
const BROKEN: &str = "this guest has no working RDMA, and memlane is no part of it:";

/// rdma-core's own programs over a device: `answers DEVICE ADDRESS PORT` at one end, then `asks DEVICE ADDRESS PORT` at the other. The
/// address is that of the end that answers; the port is for `ibv_rc_pingpong`, which tells its queue pair by TCP.
///
/// `ibv_rc_pingpong` needs no connection manager, `rping` does, as memlane does.
pub(crate) const PINGS: &str = r#"
gid_of() {
    for try in 1 2 3; do
        for gid in /sys/class/infiniband/$1/ports/1/gids/*; do
            case $(cat $gid 2>/dev/null) in 0000:0000:0000:0000:0000:ffff:*) basename $gid; return ;; esac
        done
        sleep 1
    done
    echo 0
}
answers() {
    /opt/ibv_rc_pingpong -d $1 -g "$(gid_of $1)" -p $3 -n 20 >/tmp/pingpong.$1 2>&1 &
    /opt/rping -s -a $2 -C 5 >/tmp/rping.$1 2>&1 &
}
tries() {
    for try in 1 2 3; do
        ! timeout 20 "$@" >/tmp/pings 2>&1 || return 0
        sleep 1
    done
    echo "BROKEN $*"
    cat /tmp/pings /tmp/pingpong.* /tmp/rping.*
    exit 1
}
asks() {
    tries /opt/ibv_rc_pingpong -d $1 -g "$(gid_of $1)" -p $3 -n 20 $2
    tries /opt/rping -c -a $2 -C 5
}
"#;

/// [`PINGS`], and `then`.
pub(crate) fn with_pings(then: &str) -> String {
    format!("{}{then}", PINGS.replace("BROKEN", BROKEN))
}

/// A device as above, which has been seen to work.
pub(crate) fn device() -> String {
    device_after("")
}

/// The same; `first` happens before it is looked at.
pub(crate) fn device_after(first: &str) -> String {
    let pings = "\nanswers r0 192.0.2.1 18515\nasks r0 192.0.2.1 18515\n";
    with_pings(&format!("{DEVICE}{first}{pings}"))
}

/// Does the guest say that its own RDMA does not work?
pub(crate) fn is_broken(outcome: &Outcome) -> bool {
    outcome.console.contains(BROKEN)
}

/// Did the guest's story end well? If not, whose fault is it?
pub(crate) fn assert_well(outcome: &Outcome) {
    let console = &outcome.console;
    assert!(!is_broken(outcome), "{BROKEN}\n{console}");
    assert!(outcome.ok, "{console}");
}

/// A server, and a volume of it as a file.
pub(crate) const VOLUME: &str = r"
dd if=/dev/zero of=/vols/disk bs=1M count=16 2>/dev/null
memlane serve --root /vols --listen rdma://192.0.2.1 --insecure --queue-depth 128 >/tmp/serve.log 2>&1 &
tries=0
until memlane map rdma://192.0.2.1 disk --as fuse:/tmp/disk; do
    tries=$((tries + 1))
    cat /tmp/serve.log
    [ $tries -lt 5 ]
    sleep 1
done
memlane session ls
";

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn found(program: &str) -> PathBuf {
    let mut which = Command::new("/bin/sh");
    which.args(["-c", &format!("readlink -f $(command -v {program})")]);
    PathBuf::from(must(which).trim())
}

/// A program of this machine, in `/opt`.
pub(crate) fn with_program(guest: Guest, name: &str) -> Result<Guest, String> {
    guest.program(&found(name), &format!("/opt/{name}"))
}

/// rdma-core, as far as it is loaded at run time.
fn rdma_core(mut guest: Guest) -> Result<Guest, String> {
    for library in [
        "libibverbs.so.1",
        "librdmacm.so.1",
        "libibverbs/librxe-rdmav34.so",
        "libgcc_s.so.1",
    ] {
        let place = format!("{LIBRARIES}/{library}");
        guest = guest.program(Path::new(&place), &place)?;
    }
    let driver = "/etc/libibverbs.d/rxe.driver";
    Ok(guest.file(Path::new(driver), driver))
}

pub(crate) fn guest(kernel: &Kernel, more: &[&str], folder: &Path) -> Result<Guest, String> {
    let modules = [
        "crc32_generic",
        "veth",
        "rdma_rxe",
        "rdma_ucm",
        "ib_uverbs",
        "fuse",
    ];
    let mut guest = Guest::new(kernel)
        .modules(&modules)
        .modules(more)
        .memory(768)
        .cpus(2)
        .limit(LIMIT)
        .program(&stripped(&memlane(), folder), "/bin/memlane")?;
    let programs = [
        "ip",
        "rdma",
        "blkdiscard",
        "mke2fs",
        "e2fsck",
        "dd",
        "ibv_rc_pingpong",
        "rping",
    ];
    for program in programs {
        guest = with_program(guest, program)?;
    }
    rdma_core(guest)
}

/// Mainline's RTRS and RNBD, built for the kernel that this folder is named after; where `./dev test-kernels` has put them.
const MODULES: &str = "MEMLANE_RNBD_MODULES";

/// Mainline's modules of one end.
pub(crate) const MAINLINE_CLIENT: &[&str] = &["rtrs-core", "rtrs-client", "rnbd-client"];
pub(crate) const MAINLINE_SERVER: &[&str] = &["brd", "rtrs-core", "rtrs-server", "rnbd-server"];

/// A kernel with mainline's modules.
fn with_mainline() -> Result<Kernel, String> {
    let folder = std::env::var_os(MODULES).map(PathBuf::from);
    let folder = folder.ok_or_else(|| format!("{MODULES} is not set: ./dev test-kernels"))?;
    let release = folder.file_name().unwrap_or_default().to_string_lossy();
    let is_newer = release.starts_with("6.12.");
    let kernel = Kernel::of_package(if is_newer { NEWER } else { STOCK })?;
    if kernel.release() != release {
        return Err(format!("modules of {release} for {}", kernel.release()));
    }
    let names = [
        "rtrs-core",
        "rtrs-client",
        "rtrs-server",
        "rnbd-client",
        "rnbd-server",
    ];
    let mut kernel = kernel;
    for name in names {
        kernel = kernel.with_module(&folder.join(format!("{name}.ko")));
    }
    Ok(kernel)
}

/// The kernel of the guests, with mainline's modules if the story has any; `None`: something is missing here, which is said.
pub(crate) fn kernel(test: &str, mainline: &[&str]) -> Option<Kernel> {
    let missing = ["strip", "ip", "rdma", "ibv_rc_pingpong", "rping"]
        .into_iter()
        .find(|program| !has(program));
    let missing = missing.map(|program| format!("no {program}"));
    let library = Path::new(LIBRARIES).join("librdmacm.so.1");
    let missing = missing.or_else(|| (!library.exists()).then(|| "no rdma-core".into()));
    let ready = match missing {
        Some(missing) => Err(missing),
        None => guest::qemu().and_then(|()| match mainline {
            [] => Kernel::of_package(NEWER),
            _ => with_mainline(),
        }),
    };
    ready
        .inspect_err(|why| eprintln!("SKIPPED {test}: {why}"))
        .ok()
}
