//! Volumes as devices of the kernel (nbd, ublk), in guests with Debian's kernels: this machine's own may have neither the
//! drivers nor leave to use them. What is told in a guest is in `kernel_guest/stories.rs`.
//!
//! `./dev test-kernels` runs all; without it, one guest, if its kernel is there already.
#![cfg(all(target_arch = "x86_64", feature = "ublk"))]

#[path = "kernel_guest/device.rs"]
mod device;
#[path = "support/files.rs"]
mod files;
#[path = "support/slow.rs"]
mod slow;
#[path = "kernel_guest/stories.rs"]
mod stories;
#[path = "support/mod.rs"]
mod support;

use device::Frontend;
use memlane_fixtures::guest::{self, Guest, Kernel};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::{Folder, has};

/// Debian 12's own kernel, and the newer one that it offers.
const STOCK: &str = "linux-image-amd64";
const NEWER: &str = "linux-image-6.12-amd64";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(540);

/// For each frontend, one test for each story. They run where `MEMLANE_GUEST` is set.
macro_rules! stories {
    ($($story:ident)*) => {
        stories!(Nbd in inside_nbd: $($story)*);
        stories!(Ublk in inside_ublk: $($story)*);
    };
    ($frontend:ident in $module:ident: $($story:ident)*) => {
        mod $module {
            use super::{Frontend, in_guest, stories};
            $(
                #[test]
                #[ignore = "runs in a guest: ./dev test-kernels"]
                fn $story() {
                    if in_guest() {
                        stories::$story(Frontend::$frontend);
                    }
                }
            )*
        }
    };
}

stories!(
    a_file_system_keeps_its_files_and_is_found_clean
    it_does_what_a_disk_does
    many_threads_use_it_at_once
    it_grows_while_it_is_open
    attached_and_taken_away_again_and_again_it_leaves_nothing
    taken_away_by_force_it_ends_what_waits
    what_the_volume_refuses_is_an_error
    a_volume_that_is_read_only_is_not_written
    it_outlives_its_daemon
    who_is_not_root_is_told_so
);

fn in_guest() -> bool {
    std::env::var_os("MEMLANE_GUEST").is_some()
}

/// A process that serves a device.
#[test]
fn daemon() {
    if let Some((_, arguments)) = support::role() {
        stories::daemon(&arguments);
    }
}

/// A program without what only a debugger needs: all of it is in the guest's memory.
fn stripped(program: &Path, folder: &Folder) -> PathBuf {
    let small = folder.at("program");
    let strip = Command::new("strip")
        .arg("-o")
        .args([small.as_path(), program])
        .status();
    match strip {
        Ok(status) if status.success() => small,
        _ => program.to_owned(),
    }
}

/// Runs the stories whose names contain `filter` in a guest.
fn told_in_a_guest(kernel: &Kernel, modules: &[&str], filter: &str) -> Result<String, String> {
    let script = format!(
        "chmod 1777 /tmp\n\
         MEMLANE_GUEST=1 program --ignored --test-threads=1 --nocapture {filter}"
    );
    run_in_a_guest(kernel, modules, &std::env::current_exe().unwrap(), &script)
}

/// Runs a script in a guest that has `program` and what file systems need.
fn run_in_a_guest(
    kernel: &Kernel,
    modules: &[&str],
    program: &Path,
    script: &str,
) -> Result<String, String> {
    let folder = Folder::new();
    let all = [modules, &["ext4", "crc32c_generic"]].concat();
    let mut guest = Guest::new(kernel)
        .modules(&all)
        .cpus(2)
        .memory(768)
        .limit(LIMIT)
        .file(Path::new("/etc/mke2fs.conf"), "/etc/mke2fs.conf");
    let programs = [
        (stripped(program, &folder), "/bin/program"),
        (PathBuf::from("/usr/sbin/mkfs.ext4"), "/usr/sbin/mkfs.ext4"),
        (PathBuf::from("/usr/sbin/e2fsck"), "/usr/sbin/e2fsck"),
    ];
    for (from, to) in programs {
        guest = guest.program(&from, to)?;
    }
    let said = guest.start(script).finish();
    match said.ok {
        true => Ok(said.console),
        false => Err(said.console),
    }
}

fn can_run() -> bool {
    let qemu = guest::qemu();
    if let Err(why) = &qemu {
        support::skip(why);
    }
    qemu.is_ok() && has("mkfs.ext4") && has("e2fsck") && has("ldd")
}

/// All stories of a frontend on a kernel.
fn all(package: &str, modules: &[&str], filter: &str, stories: usize) {
    if in_guest() || !can_run() {
        return;
    }
    let kernel = match Kernel::of_package(package) {
        Ok(kernel) => kernel,
        Err(why) => return support::skip(&why),
    };
    let console = told_in_a_guest(&kernel, modules, filter).unwrap_or_else(|told| panic!("{told}"));
    assert!(console.contains(&format!("{stories} passed")), "{console}");
    eprintln!("{console}");
}

#[test]
#[ignore = "minutes: ./dev test-kernels"]
fn on_debians_own_kernel_volumes_are_nbd_devices() {
    all(STOCK, &["nbd"], "inside_nbd", 10);
}

#[test]
#[ignore = "minutes: ./dev test-kernels"]
fn on_debians_newer_kernel_volumes_are_nbd_devices() {
    all(NEWER, &["nbd"], "inside_nbd", 10);
}

#[test]
#[ignore = "minutes: ./dev test-kernels"]
fn on_debians_newer_kernel_volumes_are_ublk_devices() {
    all(NEWER, &["ublk_drv"], "inside_ublk", 10);
}

/// All of it: a server, a session, a device, a file system; and the process behind the session is killed.
const SERVED_AND_MAPPED: &str = r"
ip link set lo up
PATH=$PATH:/usr/sbin
mkdir -p /srv /run
truncate -s 48M /srv/disk
program serve --root /srv --listen tcp://127.0.0.1:1234 --queue-depth 64 >/tmp/served 2>&1 &
map() {
    n=0
    # The server gives up a session whose process was killed after two minutes.
    until device=$(program map --as $frontend --connections 1 127.0.0.1 disk 2>/tmp/why); do
        n=$((n + 1))
        test $n -lt 60
        sleep 5
    done
    echo $frontend is $device
}
for frontend in nbd-kernel ublk; do
    map
    first=$device
    mkfs.ext4 -q -F $device
    mount -t ext4 $device /mnt
    yes memlane | head -c 3000000 >/mnt/before
    sync
    for process in /proc/[0-9]*; do
        if grep -q __volumes $process/cmdline; then kill -9 ${process#/proc/}; fi
    done
    yes memlane | dd of=/mnt/after bs=64k count=40 iflag=fullblock conv=fsync 2>/dev/null &
    writer=$!
    map
    test $device = $first
    wait $writer
    umount /mnt
    echo 3 >/proc/sys/vm/drop_caches
    mount -t ext4 $device /mnt
    test $(head -c 2621440 /mnt/after | md5sum | cut -c1-32) = $(head -c 2621440 /mnt/before | md5sum | cut -c1-32)
    umount /mnt
    e2fsck -fn $device
    program vol unmap disk
    echo $frontend is done
done
";

#[test]
#[ignore = "minutes: ./dev test-kernels"]
fn on_debians_newer_kernel_a_served_volume_is_mapped_and_outlives_its_process() {
    if in_guest() || !can_run() {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let memlane = own.ancestors().nth(2).unwrap().join("memlane");
    if !memlane.exists() {
        return support::skip("memlane is not built: cargo build -p memlane");
    }
    let kernel = match Kernel::of_package(NEWER) {
        Ok(kernel) => kernel,
        Err(why) => return support::skip(&why),
    };
    let told = run_in_a_guest(&kernel, &["nbd", "ublk_drv"], &memlane, SERVED_AND_MAPPED);
    let console = told.unwrap_or_else(|told| panic!("{told}"));
    for frontend in ["nbd-kernel is done", "ublk is done"] {
        assert!(console.contains(frontend), "{console}");
    }
}

#[test]
fn one_guest_has_a_volume_as_a_device() {
    if !can_run() {
        return;
    }
    match Kernel::of_cache(NEWER) {
        Ok(kernel) => {
            let told = told_in_a_guest(&kernel, &["nbd", "ublk_drv"], "it_grows_while_it_is_open");
            let console = told.unwrap_or_else(|told| panic!("{told}"));
            assert!(console.contains(" 2 passed"), "{console}");
        }
        Err(why) => support::skip(&why),
    }
}

#[test]
fn where_the_driver_is_missing_that_is_what_one_is_told() {
    let error = match memlane_block_frontends::nbd_kernel::probe() {
        Ok(()) => return support::skip("nbd is loaded here"),
        Err(error) => error.to_string(),
    };
    let said = ["modprobe nbd", "root only", "no generic netlink"];
    assert!(said.iter().any(|reason| error.contains(reason)), "{error}");
}

#[test]
fn where_ublk_is_missing_that_is_what_one_is_told() {
    let error = match memlane_block_frontends::ublk::probe() {
        Ok(()) => return support::skip("ublk is loaded here"),
        Err(error) => error.to_string(),
    };
    let said = [
        "modprobe ublk_drv",
        "root only",
        "too old",
        "broken",
        "io_uring",
    ];
    assert!(said.iter().any(|reason| error.contains(reason)), "{error}");
}
