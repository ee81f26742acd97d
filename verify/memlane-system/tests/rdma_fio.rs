//! Volumes over RDMA under fio, which verifies what it wrote: while paths are cut and restored, and while either end is killed.
//!
//! A guest with two RDMA devices made of software. `./dev test-kernels` runs all stories.
#![cfg(target_arch = "x86_64")]

mod rdma;

use std::path::Path;

use memlane_system::harness::TempDir;
use rdma::{MAINLINE_CLIENT, MAINLINE_SERVER, assert_well, device, guest, kernel};

/// A second device, and the words of the stories.
const WORDS: &str = r#"
/opt/ip link add v2 type veth peer name v3
/opt/ip link set v2 up
/opt/ip link set v3 up
/opt/ip addr add 198.51.100.1/24 dev v2
/opt/rdma link add r1 type rxe netdev v2
answers r1 198.51.100.1 18516
asks r1 198.51.100.1 18516
first=192.0.2.1
second=198.51.100.1

# Writes at random and verifies all of it: `verified DISK MORE...`
verified() {
    disk=$1
    shift
    /opt/fio --name=verified --thread --filename=$disk --size=6M --ioengine=libaio --direct=1 \
        --iodepth=16 --rw=randwrite --bsrange=4k-64k --verify=crc32c --verify_fatal=1 \
        --verify_state_save=0 --eta=never --output=/tmp/fio.log "$@"
}
# The same in the background, long enough for something to happen meanwhile; `ends_well` or `ends` waits for it.
under_fire() {
    rm -f /tmp/fio.went
    (
        went=badly
        ! verified "$@" --rate=900k,900k || went=well
        echo $went >/tmp/fio.went
    ) &
    fire=$!
    sleep 2
    [ ! -e /tmp/fio.went ] || { cat /tmp/fio.went /tmp/fio.log; echo "fio is over too early"; exit 1; }
}
ends() {
    wait $fire
    grep -E 'err=|IOPS=' /tmp/fio.log
}
ends_well() {
    ends
    [ $(cat /tmp/fio.went) = well ] || { cat /tmp/fio.log; dmesg | tail -20; exit 1; }
}
# `becomes FILE CONTENT`
becomes() {
    tries=0
    until [ "$(cat $1)" = $2 ]; do
        tries=$((tries + 1))
        [ $tries -lt 30 ] || { echo "$1: $(cat $1), not $2"; dmesg | tail -20; exit 1; }
        sleep 1
    done
}
serve() {
    memlane serve --root /vols --listen rdma://$first --listen rdma://$second --insecure --queue-depth 128 2>/tmp/serve.log &
    server=$!
    tries=0
    until grep -q serving /tmp/serve.log; do
        tries=$((tries + 1))
        [ $tries -lt 20 ] || { cat /tmp/serve.log; exit 1; }
        sleep 1
    done
}
connected() {
    memlane session ls --json | grep -o '"state": *"connected"' | wc -l
}
paths_become() {
    tries=0
    until [ $(connected) = $1 ]; do
        tries=$((tries + 1))
        [ $tries -lt 60 ] || { memlane session ls --json; dmesg | tail -20; exit 1; }
        sleep 1
    done
    echo "paths connected: $1"
}
"#;

fn told(test: &str, mainline: &[&str], story: &str) {
    let Some(kernel) = kernel(test, mainline) else {
        return;
    };
    let fio = Path::new("/usr/bin/fio");
    if !fio.exists() {
        eprintln!("SKIPPED {test}: no fio");
        return;
    }
    let folder = TempDir::new(test);
    let modules = [mainline, &["nbd"]].concat();
    let guest = guest(&kernel, &modules, folder.path())
        .and_then(|guest| guest.memory(1280).program(fio, "/opt/fio"))
        .expect("programs of this machine");
    let outcome = guest.start(&format!("{}{WORDS}{story}", device())).finish();
    assert_well(&outcome);
    println!("{}", outcome.console);
}

/// Between two memlanes nothing is lost, whatever dies: requests wait, and are repeated.
const BETWEEN_MEMLANES: &str = r#"
truncate -s 8M /vols/disk
map() {
    memlane map --path rdma://$first --path rdma://$second --heartbeat 1s rdma://$first disk --as nbd-kernel "$@"
}
serve
disk=$(map)
paths_become 2
verified $disk

under_fire $disk
/opt/rdma link del r1
paths_become 1
/opt/rdma link add r1 type rxe netdev v2
paths_become 2
ends_well

under_fire $disk
kill -9 $server
sleep 1
serve
paths_become 2
ends_well

under_fire $disk
client=$(memlane session ls --json | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*$')
kill -9 $client
[ $(map --take-over) = $disk ]
paths_become 2
ends_well
cmp -n 6291456 $disk /vols/disk
memlane vol unmap disk
"#;

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn between_memlanes_fio_finds_what_it_wrote_whatever_dies_meanwhile() {
    told("rdma-fio", &[], BETWEEN_MEMLANES);
}

/// Mainline's client repeats the requests of a lost path by the other one, and fails them when no path is left.
const MAINLINES_CLIENT: &str = r#"
truncate -s 8M /vols/disk
map() {
    echo "sessname=fio path=ip:$first@ip:$first path=ip:$second@ip:$second device_path=disk access_mode=rw" \
        >/sys/devices/virtual/rnbd-client/ctl/map_device
}
paths=/sys/class/rtrs-client/fio/paths
both_become() {
    for path in $paths/*; do
        becomes $path/state $1
    done
}
serve
map
disk=/dev/rnbd0
both_become connected
verified $disk

under_fire $disk
for path in $paths/*; do
    echo 1 >$path/disconnect
    becomes $path/state disconnected
    sleep 1
    echo 1 >$path/reconnect
    becomes $path/state connected
done
ends_well

under_fire $disk
kill -9 $server
ends
[ $(cat /tmp/fio.went) = badly ]
becomes /sys/block/rnbd0/rnbd/state closed
serve
for path in $paths/*; do
    [ "$(cat $path/state)" = connected ] || echo 1 >$path/reconnect
done
both_become connected
becomes /sys/block/rnbd0/rnbd/state open
verified $disk

under_fire $disk
echo force >/sys/block/rnbd0/rnbd/unmap_device
ends
[ $(cat /tmp/fio.went) = badly ]
until [ ! -e $paths ]; do sleep 1; done
map
verified $disk
cmp -n 6291456 $disk /vols/disk
echo normal >/sys/block/rnbd0/rnbd/unmap_device
"#;

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn on_mainlines_client_fio_finds_what_it_wrote_to_a_volume_of_ours() {
    told(
        "rdma-fio-mainline-client",
        MAINLINE_CLIENT,
        MAINLINES_CLIENT,
    );
}

/// Mainline's server does not count requests: those of a lost path fail, and fio goes on with the others.
const MAINLINES_SERVER: &str = r#"
map() {
    memlane map --path rdma://$first --path rdma://$second --heartbeat 1s rdma://$first /dev/ram0 --as nbd-kernel
}
paths=/sys/devices/virtual/rtrs-server
disk=$(map)
paths_become 2
verified $disk

under_fire $disk --continue_on_error=io
for path in $paths/*/paths/*; do
    echo 1 >$path/disconnect
    sleep 1
    paths_become 2
done
ends_well

under_fire $disk --continue_on_error=io
rmmod rnbd_server
sleep 1
insmod /modules/rnbd_server.ko
paths_become 2
ends_well
verified $disk

under_fire $disk
client=$(memlane session ls --json | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*$')
kill -9 $client
[ $(map) = $disk ]
ends_well
cmp -n 6291456 $disk /dev/ram0
memlane vol unmap /dev/ram0
"#;

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn on_a_disk_of_mainlines_server_fio_finds_what_it_wrote() {
    told(
        "rdma-fio-mainline-server",
        MAINLINE_SERVER,
        MAINLINES_SERVER,
    );
}
