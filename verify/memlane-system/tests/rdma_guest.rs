//! Volumes over RDMA, between processes of a guest whose kernel has an RDMA device made of software (rxe, RoCE on a veth pair).
//!
//! `./dev test-kernels` runs all stories.
#![cfg(target_arch = "x86_64")]

mod rdma;

use memlane_fixtures::guest::Outcome;
use memlane_system::harness::TempDir;
use rdma::{
    MAINLINE_CLIENT, MAINLINE_SERVER, VOLUME, assert_well, device, device_after, guest, is_broken,
    kernel,
};

/// Runs a story; `None`: something is missing here, which is said.
fn told(test: &str, mainline: &[&str], story: &str) -> Option<Outcome> {
    told_from_the_start(test, mainline, &format!("{}{story}", device()))
}

fn told_from_the_start(test: &str, mainline: &[&str], story: &str) -> Option<Outcome> {
    let kernel = kernel(test, mainline)?;
    let folder = TempDir::new(test);
    let guest = guest(&kernel, mainline, folder.path()).expect("programs of this machine");
    Some(guest.start(story).finish())
}

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn a_guest_whose_rdma_is_broken_is_told_from_a_memlane_that_is_broken() {
    let story = format!("{}{VOLUME}", device_after("/opt/ip link set v0 down\n"));
    if let Some(outcome) = told_from_the_start("rdma-broken", &[], &story) {
        assert!(!outcome.ok && is_broken(&outcome), "{}", outcome.console);
    }
}

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn a_volume_is_mapped_over_rdma_and_what_is_written_is_read_back() {
    let story = format!(
        "{VOLUME}
dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
dd if=/tmp/data of=/tmp/disk bs=128k conv=notrunc,fsync
echo 3 >/proc/sys/vm/drop_caches
dd if=/tmp/disk of=/tmp/back bs=128k count=64
cmp /tmp/data /tmp/back
cmp -n 8388608 /tmp/data /vols/disk
memlane vol unmap disk
"
    );
    if let Some(outcome) = told("rdma-volume", &[], &story) {
        assert_well(&outcome);
        println!("{}", outcome.console);
    }
}

/// The kernel's client maps a volume of ours: what it writes is in the file, what is in the file it reads.
const MAPPED_BY_MAINLINE: &str = r#"
dd if=/dev/urandom of=/vols/disk bs=1M count=16 2>/dev/null
memlane serve --root /vols --listen rdma://192.0.2.1 --insecure --queue-depth 128 >/tmp/serve.log 2>&1 &
sleep 1
echo "sessname=mainline path=ip:192.0.2.1@ip:192.0.2.1 device_path=disk access_mode=rw" \
    >/sys/devices/virtual/rnbd-client/ctl/map_device || { cat /tmp/serve.log; dmesg | tail -30; exit 1; }
ls /sys/block | grep rnbd
cat /sys/block/rnbd0/size
dd if=/dev/rnbd0 of=/tmp/back bs=128k
cmp /tmp/back /vols/disk
dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
dd if=/tmp/data of=/dev/rnbd0 bs=128k conv=fsync
cmp -n 8388608 /tmp/data /vols/disk
echo 3 >/proc/sys/vm/drop_caches
blockdev --flushbufs /dev/rnbd0
dd if=/dev/rnbd0 of=/tmp/back bs=4k count=2048
cmp /tmp/data /tmp/back
cat /tmp/serve.log
echo normal >/sys/block/rnbd0/rnbd/unmap_device
dmesg | grep -iE 'warn|bug|rnbd|rtrs' | tail -20
"#;

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn mainlines_client_maps_a_volume_of_ours() {
    if let Some(outcome) = told("rdma-mainline-client", MAINLINE_CLIENT, MAPPED_BY_MAINLINE) {
        assert_well(&outcome);
        println!("{}", outcome.console);
    }
}

/// The kernel's server has a disk in memory; we map it.
const SERVED_BY_MAINLINE: &str = r#"
dd if=/dev/urandom of=/dev/ram0 bs=1M count=16 2>/dev/null
memlane map rdma://192.0.2.1 /dev/ram0 --as fuse:/tmp/disk || { dmesg | tail -30; exit 1; }
memlane session ls
dd if=/tmp/disk of=/tmp/back bs=128k
cmp /tmp/back /dev/ram0
dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
dd if=/tmp/data of=/tmp/disk bs=128k conv=notrunc,fsync
echo 3 >/proc/sys/vm/drop_caches
blockdev --flushbufs /dev/ram0
cmp -n 8388608 /tmp/data /dev/ram0
dd if=/tmp/disk of=/tmp/back bs=4k count=2048
cmp /tmp/data /tmp/back
memlane vol unmap /dev/ram0 || memlane vol ls
dmesg | grep -iE 'warn|bug|rnbd|rtrs' | tail -20
"#;

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn we_map_a_device_of_mainlines_server() {
    if let Some(outcome) = told("rdma-mainline-server", MAINLINE_SERVER, SERVED_BY_MAINLINE) {
        assert_well(&outcome);
        println!("{}", outcome.console);
    }
}

/// What the kernel's client does with volumes beside reading and writing: it flushes (also with each write: FUA), discards, writes
/// zeroes, refuses to write what it may only read; and it goes on when its path, or our server, is back.
const USED_BY_MAINLINE: &str = r#"
truncate -s 16M /vols/disk
dd if=/dev/urandom of=/vols/other bs=1M count=4 2>/dev/null
dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
serve() {
    memlane serve --root /vols --listen rdma://192.0.2.1 --insecure --queue-depth 128 &
    server=$!
    sleep 1
}
map() {
    echo "sessname=$1 path=ip:192.0.2.1@ip:192.0.2.1 device_path=$2 access_mode=$3" \
        >/sys/devices/virtual/rnbd-client/ctl/map_device
}
becomes() {
    tries=0
    until [ "$(cat $1)" = $2 ]; do
        tries=$((tries + 1))
        [ $tries -lt 30 ] || { echo "$1: $(cat $1), not $2"; dmesg | tail -20; exit 1; }
        sleep 1
    done
}
is_zeroes() {
    dd if=/vols/disk bs=1M skip=$1 count=1 2>/dev/null | cmp -n 1048576 - /dev/zero
}
serve
map one disk rw
map one other ro
map two other ro
path=/sys/class/rtrs-client/one/paths/*

cd /sys/block/rnbd0/queue
[ "$(cat write_cache)" = "write back" ]
[ $(cat fua) = 1 ]
cd /
/opt/dd if=/tmp/data of=/dev/rnbd0 bs=64k oflag=direct,dsync status=none
cmp -n 8388608 /tmp/data /vols/disk

[ $(cat /sys/block/rnbd1/ro) = 1 ]
if dd if=/dev/zero of=/dev/rnbd1 bs=4k count=1; then exit 1; fi
cmp /dev/rnbd1 /vols/other
cmp /dev/rnbd2 /vols/other

truncate -s 1M /vols/moves
map one moves migration
map two moves migration
if map three moves migration; then exit 1; fi

/opt/blkdiscard -o 1048576 -l 1048576 /dev/rnbd0
/opt/blkdiscard -z -o 3145728 -l 1048576 /dev/rnbd0
is_zeroes 1
is_zeroes 3
[ $(du -k /vols/disk | cut -f 1) -lt 8192 ]

/opt/mke2fs -q -t ext2 /dev/rnbd0
/opt/e2fsck -fn /dev/rnbd0

echo 1 >$(echo $path)/disconnect
becomes $(echo $path)/state disconnected
echo 1 >$(echo $path)/reconnect
becomes $(echo $path)/state connected
/opt/e2fsck -fn /dev/rnbd0

kill -9 $server
becomes /sys/block/rnbd0/rnbd/state closed
serve
echo 1 >$(echo $path)/reconnect
becomes /sys/block/rnbd0/rnbd/state open
echo 3 >/proc/sys/vm/drop_caches
/opt/e2fsck -fn /dev/rnbd0
/opt/dd if=/tmp/data of=/dev/rnbd0 bs=64k oflag=direct,dsync status=none
cmp -n 8388608 /tmp/data /vols/disk
"#;

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn mainlines_client_uses_volumes_of_ours_and_goes_on_when_path_and_server_are_back() {
    if let Some(outcome) = told("rdma-mainline-uses", MAINLINE_CLIENT, USED_BY_MAINLINE) {
        assert_well(&outcome);
        println!("{}", outcome.console);
    }
}

/// A server of the kernel's with two disks; what we do with them beside reading and writing. We go on when a path was ended by
/// the server, and when its module was unloaded and loaded again.
const MAINLINE_USED: &str = r#"
dd if=/dev/urandom of=/dev/ram1 bs=1M count=16 2>/dev/null
dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null
says() {
    tries=0
    until memlane session ls --json | grep -q "$1"; do
        tries=$((tries + 1))
        [ $tries -lt 60 ] || { echo "not $1"; memlane session ls --json; dmesg | tail -20; exit 1; }
        sleep 1
    done
}
carries() {
    /opt/dd if=/tmp/data of=/tmp/disk bs=64k conv=notrunc,fsync status=none
    echo 3 >/proc/sys/vm/drop_caches
    blockdev --flushbufs /dev/ram0
    cmp -n 4194304 /tmp/data /dev/ram0
    cmp -n 4194304 /tmp/data /tmp/disk
    cmp /tmp/other /dev/ram1
}
memlane map rdma://192.0.2.1 /dev/ram0 --as fuse:/tmp/disk || { dmesg | tail -30; exit 1; }
memlane map rdma://192.0.2.1 /dev/ram1 --access ro --as fuse:/tmp/other
/opt/mke2fs -q -t ext2 /tmp/disk
/opt/e2fsck -fn /tmp/disk
if dd if=/dev/zero of=/tmp/other bs=4k count=1 conv=notrunc; then exit 1; fi
carries

echo 1 >$(echo /sys/devices/virtual/rtrs-server/*/paths/*/disconnect)
says '"reconnects": 1'
carries

rmmod rnbd_server
says '"state": "reconnecting"'
insmod /modules/rnbd_server.ko
says '"reconnects": 2'
says '"state": "connected"'
memlane vol ls
carries
"#;

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn we_use_devices_of_mainlines_server_and_go_on_when_path_and_module_are_back() {
    if let Some(outcome) = told("rdma-we-use", MAINLINE_SERVER, MAINLINE_USED) {
        assert_well(&outcome);
        println!("{}", outcome.console);
    }
}

/// Both ends' memory is made of huge pages, if there are enough; if not, either end says so.
const HUGE_PAGES: &str = r#"
dd if=/dev/urandom of=/vols/disk bs=1M count=8 2>/dev/null
has_pages() {
    echo $1 >/proc/sys/vm/nr_hugepages
    [ $(cat /proc/sys/vm/nr_hugepages) = $1 ]
}
used_pages() {
    total=$(grep HugePages_Total /proc/meminfo | grep -o '[0-9]*')
    free=$(grep HugePages_Free /proc/meminfo | grep -o '[0-9]*')
    reserved=$(grep HugePages_Rsvd /proc/meminfo | grep -o '[0-9]*')
    echo $((total - free + reserved))
}
fails_and_says() {
    words=$1
    shift
    if "$@" >/tmp/said 2>&1; then exit 1; fi
    cat /tmp/said
    grep -q "$words" /tmp/said
}
serve() {
    memlane serve --root /vols --listen rdma://192.0.2.1 --insecure --queue-depth 32 --memory hugetlb "$@"
}
map() {
    memlane map rdma://192.0.2.1 disk --memory hugetlb --as fuse:/tmp/disk "$@"
}

fails_and_says "sysctl vm.nr_hugepages" serve
has_pages 3
serve 2>/tmp/serve.log &
until grep -q serving /tmp/serve.log; do sleep 1; done
fails_and_says "too few huge pages are free on this machine: the session's memory needs 4" map --wait 3s
# 4 for the client, 2 for its session at the server, 2 for the session that was given up, which the server keeps for a while.
has_pages 8
map
[ $(used_pages) = 8 ]
fails_and_says "its memory is made of huge pages" \
    memlane map --memory plain rdma://192.0.2.1 disk --as fuse:/tmp/other
dd if=/tmp/disk of=/tmp/back bs=128k 2>/dev/null
cmp /tmp/back /vols/disk
dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null
dd if=/tmp/data of=/tmp/disk bs=128k conv=notrunc,fsync 2>/dev/null
cmp -n 4194304 /tmp/data /vols/disk
fails_and_says "it has no memory for another session" \
    memlane map --session other --wait 3s --access ro rdma://192.0.2.1 disk --as fuse:/tmp/other
# The server keeps what its sessions had for a while.
memlane vol unmap disk
tries=0
until [ $(used_pages) = 4 ]; do
    tries=$((tries + 1))
    [ $tries -lt 20 ] || { grep HugePages /proc/meminfo; exit 1; }
    sleep 1
done
"#;

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn memory_of_huge_pages_carries_a_volume_and_too_few_of_them_are_an_error_at_either_end() {
    if let Some(outcome) = told("rdma-huge-pages", &[], HUGE_PAGES) {
        assert_well(&outcome);
        println!("{}", outcome.console);
    }
}
