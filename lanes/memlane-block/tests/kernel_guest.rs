//! Volumes as devices of the kernel (nbd, ublk), in guests with Debian's kernels: this machine's own may have neither the
//! drivers nor leave to use them. What is told in a guest is in `kernel_guest/stories.rs`.
//!
//! `./dev test-kernels` runs all; without it, one guest, if its kernel is there already.
#![cfg(all(target_arch = "x86_64", feature = "ublk"))]

#[path = "kernel_guest/device.rs"]
mod device;
#[path = "../../../verify/memlane-system/src/guest.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "linted in its own crate"
)]
mod guest;
#[path = "support/slow.rs"]
mod slow;
#[path = "kernel_guest/stories.rs"]
mod stories;
#[path = "support/mod.rs"]
mod support;

use device::Face;
use guest::{Guest, Kernel};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::{Folder, has};

/// Debian 12's own kernel, and the newer one that it offers.
const STOCK: &str = "linux-image-amd64";
const NEWER: &str = "linux-image-6.12-amd64";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(540);

/// For each face, one test for each story. They run where `MEMLANE_GUEST` is set.
macro_rules! stories {
    ($($story:ident)*) => {
        stories!(Nbd in inside_nbd: $($story)*);
        stories!(Ublk in inside_ublk: $($story)*);
    };
    ($face:ident in $module:ident: $($story:ident)*) => {
        mod $module {
            use super::{Face, in_guest, stories};
            $(
                #[test]
                #[ignore = "runs in a guest: ./dev test-kernels"]
                fn $story() {
                    if in_guest() {
                        stories::$story(Face::$face);
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

/// This program without what only a debugger needs: all of it is in the guest's memory.
fn stripped(folder: &Folder) -> PathBuf {
    let (own, small) = (std::env::current_exe().unwrap(), folder.at("memlane-test"));
    let strip = Command::new("strip")
        .arg("-o")
        .args([&small, &own])
        .status();
    match strip {
        Ok(status) if status.success() => small,
        _ => own,
    }
}

/// Runs the stories whose names contain `filter` in a guest.
fn told_in_a_guest(kernel: &Kernel, modules: &[&str], filter: &str) -> Result<String, String> {
    let folder = Folder::new();
    let all = [modules, &["ext4", "crc32c_generic"]].concat();
    let mut guest = Guest::new(kernel)
        .modules(&all)
        .cpus(2)
        .memory(768)
        .limit(LIMIT)
        .file(Path::new("/etc/mke2fs.conf"), "/etc/mke2fs.conf");
    let programs = [
        (stripped(&folder), "/bin/memlane-test"),
        (PathBuf::from("/usr/sbin/mkfs.ext4"), "/usr/sbin/mkfs.ext4"),
        (PathBuf::from("/usr/sbin/e2fsck"), "/usr/sbin/e2fsck"),
    ];
    for (from, to) in programs {
        guest = guest.program(&from, to)?;
    }
    let script = format!(
        "chmod 1777 /tmp\n\
         MEMLANE_GUEST=1 memlane-test --ignored --test-threads=1 --nocapture {filter}"
    );
    let said = guest.start(&script).finish();
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

/// All stories of a face on a kernel.
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
    let error = match memlane_block::nbd_kernel::probe() {
        Ok(()) => return support::skip("nbd is loaded here"),
        Err(error) => error.to_string(),
    };
    let said = ["modprobe nbd", "root only", "no generic netlink"];
    assert!(said.iter().any(|reason| error.contains(reason)), "{error}");
}

#[test]
fn where_ublk_is_missing_that_is_what_one_is_told() {
    let error = match memlane_block::ublk::probe() {
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
