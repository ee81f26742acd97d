//! Volumes over RDMA between two machines (guests), that lose a link or a device.
//!
//! `./dev test-kernels` runs all stories.
#![cfg(target_arch = "x86_64")]

mod rdma;

use std::path::Path;

use memlane_fixtures::guest::{Guest, Running};
use memlane_system::harness::TempDir;
use rdma::{assert_well, guest, kernel, with_pings};

/// Two links, each with an RDMA device at both ends. `ME` is this machine's number in both networks; the server is number 1.
const DEVICES: &str = r"
export PATH=/bin
export XDG_RUNTIME_DIR=/run
mkdir -p /vols /mnt /var
address() {
    echo 192.0.2.$(($1 * 16 + $2))
}
first=rdma://$(address 1 1)
second=rdma://$(address 2 1)
/opt/ip link set lo up
for n in 1 2; do
    link=eth$((n - 1))
    /opt/ip link set $link up
    /opt/ip addr add $(address $n $ME)/28 dev $link
    /opt/rdma link add rxe$n type rxe netdev $link
done
";

const SERVES: &str = r"
for n in 1 2; do
    answers rxe$n $(address $n 1) $((18514 + n))
done
dd if=/dev/zero of=/vols/disk bs=1M count=16 2>/dev/null
memlane serve --root /vols --listen $first --listen $second --insecure --queue-depth 128 &
sleep 2
echo server-is-up
";

/// Serves until a line is typed.
const ENDS: &str = r"
read word </dev/console
md5sum /vols/disk
";

/// Maps the volume over both links.
const CLIENT: &str = r#"
for n in 1 2; do
    asks rxe$n $(address $n 1) $((18514 + n))
done
tries=0
until memlane map --heartbeat 1s --path $first --path $second $first disk --as fuse:/tmp/disk; do
    tries=$((tries + 1))
    [ $tries -lt 5 ]
    sleep 1
done
dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null
connected() {
    memlane session ls --json | grep -o '"state": *"connected"' | wc -l
}
paths_become() {
    tries=0
    until [ $(connected) = $1 ]; do
        tries=$((tries + 1))
        [ $tries -lt 60 ] || { memlane session ls; exit 1; }
        sleep 1
    done
    echo "paths connected: $1"
}
writes() {
    dd if=/tmp/data of=/tmp/disk bs=64k seek=$1 conv=notrunc,fsync 2>/dev/null
}
reads_back() {
    echo 3 >/proc/sys/vm/drop_caches
    dd if=/tmp/disk of=/tmp/back bs=64k skip=$1 count=64 2>/dev/null
    cmp /tmp/data /tmp/back
}
paths_become 2
"#;

/// One end of both links. The end that listens is started first.
fn machine(one: Guest, listens: bool, folder: &Path) -> Guest {
    let server = if listens { "on" } else { "off" };
    let mut arguments = Vec::new();
    for n in [1, 2] {
        let socket = folder.join(format!("link{n}"));
        let mac = format!("52:54:00:00:0{n}:0{}", u8::from(!listens) + 1);
        arguments.extend([
            "-netdev".into(),
            format!(
                "stream,id=link{n},server={server},addr.type=unix,addr.path={}",
                socket.display()
            ),
            "-device".into(),
            format!("virtio-net-pci,netdev=link{n},mac={mac},romfile="),
        ]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    one.arguments(&arguments)
}

/// A server and a client, each of which does as its story says; then the server says what its volume holds.
fn two_machines(test: &str, of_server: &str, of_client: &str) {
    let Some(kernel) = kernel(test, &[]) else {
        return;
    };
    let folder = TempDir::new(test);
    let plain = || {
        guest(&kernel, &["virtio_pci", "virtio_net"], folder.path())
            .expect("programs of this machine")
    };
    let script = |me: u8, script: &str| with_pings(&format!("ME={me}\n{DEVICES}{script}"));
    let mut server: Running = machine(plain(), true, folder.path())
        .start(&script(1, &format!("{SERVES}{of_server}{ENDS}")));
    assert!(server.hears("server-is-up"), "{}", server.console());
    let client = machine(plain(), false, folder.path())
        .start(&script(2, &format!("{CLIENT}{of_client}")))
        .finish();
    server.types("over");
    let served = server.finish();
    assert_well(&client);
    assert_well(&served);
    println!("{}", client.console);
}

/// What is written while the first path is lost, and behind it, is there by the other path. `loses` is the command that the
/// path is lost by; it must end by itself. Then the story goes on with `then`.
fn one_path_is_lost(test: &str, loses: &str, then: &str) {
    let story = format!(
        "
(sleep 0.3; {loses}; echo gone >/tmp/gone) &
writes 0
writes 64
reads_back 0
reads_back 64
paths_become 1
writes 128
reads_back 128
reads_back 0
tries=0
until [ -e /tmp/gone ]; do
    tries=$((tries + 1))
    [ $tries -lt 20 ] || {{ echo it does not end: {loses}; exit 1; }}
    sleep 1
done
{then}
memlane session ls
"
    );
    two_machines(test, "", &story);
}

/// Both paths carry again.
fn comes_back_by(brings_back: &str) -> String {
    format!(
        "
{brings_back}
paths_become 2
writes 192
reads_back 192
reads_back 128
"
    )
}

/// It does not come back with its link: rxe's queue pair for connection requests (GSI) then stays in the state ERR, and no
/// program can connect by this device any more.
#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_link_that_goes_down_costs_a_path_and_no_byte() {
    one_path_is_lost("rdma-link-down", "/opt/ip link set eth0 down", "");
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_link_that_falls_silent_for_a_while_costs_a_path_for_a_while_and_no_byte() {
    // The server does not take frames for another's address.
    one_path_is_lost(
        "rdma-link-silent",
        "/opt/ip neigh replace $(address 1 1) lladdr 52:54:00:00:0f:0f nud permanent dev eth0",
        &comes_back_by("/opt/ip neigh del $(address 1 1) dev eth0"),
    );
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_device_that_is_taken_away_and_comes_back_costs_a_path_for_a_while_and_no_byte() {
    one_path_is_lost(
        "rdma-device-gone",
        "/opt/rdma link del rxe1",
        &comes_back_by("/opt/rdma link add rxe1 type rxe netdev eth0"),
    );
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_server_whose_device_is_taken_away_listens_again_when_it_comes_back() {
    let of_server = "
until /opt/rdma resource show cm_id | grep -q 'rxe1.*CONNECT'; do
    sleep 1
done
sleep 3
/opt/rdma link del rxe1
echo the device is gone
sleep 5
/opt/rdma link add rxe1 type rxe netdev eth0
";
    let of_client = "
paths_become 1
writes 0
reads_back 0
paths_become 2
writes 64
reads_back 64
reads_back 0
";
    two_machines("rdma-server-device", of_server, of_client);
}
