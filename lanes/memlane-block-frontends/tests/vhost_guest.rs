//! A volume as the disk of a virtual machine: a Linux in QEMU reads and writes it, and the volume's bytes are looked
//! at from here.
#![cfg(all(feature = "vhost", target_arch = "x86_64"))]

#[path = "support/slow.rs"]
mod slow;
#[path = "support/mod.rs"]
mod support;

use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Flags, Op};
use memlane_block_frontends::vhost::{self, Options};
use memlane_fixtures::guest::{self, Guest, Kernel};
use std::path::Path;
use std::sync::Arc;
use support::{Folder, text};

const SIZE: u64 = 16 << 20;

fn kernel() -> Option<Kernel> {
    let kernel = guest::qemu().and_then(|()| Kernel::of_package("linux-image-amd64"));
    kernel.map_err(|why| support::skip(&why)).ok()
}

fn guest(kernel: &Kernel, socket: &Path, device: &str) -> Guest {
    let chardev = format!("socket,id=disk,path={}", text(socket));
    let device = format!("vhost-user-blk-pci,chardev=disk{device}");
    Guest::new(kernel)
        .modules(&["virtio_pci", "virtio_blk", "ext4", "crc32c_generic"])
        .arguments(&["-chardev", &chardev, "-device", &device])
}

fn bytes(volume: &MemVolume, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: `bytes` is so long.
    assert!(unsafe { volume.bytes().copy_out(at, bytes.as_mut_ptr(), len) });
    bytes
}

fn options() -> Options {
    Options {
        queues: 2,
        serial: "number-twenty-is-cut-here".into(),
        ..Options::default()
    }
}

#[test]
fn a_guest_reads_and_writes_and_the_volume_has_it() {
    let Some(kernel) = kernel() else {
        return;
    };
    let folder = Folder::new();
    let memory = MemVolume::with(SIZE, |info| info.max_trim = 1 << 20).unwrap();
    let volume = Arc::new(slow::SlowVolume::new(memory.clone(), 8));
    let served = vhost::serve(volume, &folder.at("socket"), &options()).unwrap();
    let pattern: Vec<u8> = (0..1_u32 << 20)
        .map(|i| (i * 7 / 3).to_le_bytes()[0])
        .collect();
    // SAFETY: `pattern` is so long.
    assert!(unsafe {
        memory
            .bytes()
            .copy_in(1 << 20, pattern.as_ptr(), pattern.len())
    });
    let script = "
        echo size $(cat /sys/block/vda/size) serial $(cat /sys/block/vda/serial)
        echo queues $(ls /sys/block/vda/mq | wc -l) discard $(cat /sys/block/vda/queue/discard_max_bytes)
        echo sum $(dd if=/dev/vda bs=64k skip=16 count=16 iflag=direct 2>/dev/null | md5sum)
        # The same bytes again, elsewhere, in odd pieces, past and through the cache.
        dd if=/dev/vda of=/tmp/copy bs=1M skip=1 count=1
        dd if=/tmp/copy of=/dev/vda bs=512 seek=8193 oflag=direct
        dd if=/tmp/copy of=/dev/vda bs=1M seek=8 conv=fsync
        yes memlane | dd of=/dev/vda bs=1M seek=10 count=2 iflag=fullblock conv=fsync
        blkdiscard -o 11534336 -l 1048576 /dev/vda
        blkdiscard -z -o 10485760 -l 4096 /dev/vda || true
        mkdir -p /mnt
    ";
    let mut running = guest(&kernel, served.path(), ",num-queues=2")
        .cpus(2)
        .start(script);
    let said = running.finish();
    assert!(said.ok, "{}", said.console);
    let console = &said.console;
    assert!(
        console.contains("size 32768 serial number-twenty-is-cut"),
        "{console}"
    );
    assert!(console.contains("queues 2 discard 1048576"), "{console}");
    std::fs::write(folder.at("pattern"), &pattern).unwrap();
    let md5 = support::run("md5sum", &[text(&folder.at("pattern"))]);
    let sum = md5.unwrap().split_whitespace().next().unwrap().to_owned();
    assert!(console.contains(&format!("sum {sum}")), "{sum}\n{console}");
    assert!(bytes(&memory, 8193 * 512, 1 << 20) == pattern);
    assert!(bytes(&memory, 8 << 20, 1 << 20) == pattern);
    let ops = memory.log();
    assert!(ops.iter().any(|(op, ..)| *op == Op::Flush));
    assert!(
        ops.iter()
            .any(|(op, at, ..)| *op == Op::Trim && *at == 11 << 20),
        "{ops:?}"
    );
    assert!(
        !ops.iter().any(|(.., flags)| flags.has(Flags::FUA)),
        "the guest flushes itself"
    );
}

/// A volume with a file system of this machine's making.
fn with_file_system(folder: &Folder) -> Option<MemVolume> {
    if !support::has("mkfs.ext4") || !support::has("e2fsck") {
        return None;
    }
    let image = folder.at("image");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(SIZE)
        .unwrap();
    support::run("mkfs.ext4", &["-q", text(&image)]).unwrap();
    let made = std::fs::read(&image).unwrap();
    let memory = MemVolume::new(SIZE).unwrap();
    // SAFETY: `made` is so long.
    assert!(unsafe { memory.bytes().copy_in(0, made.as_ptr(), made.len()) });
    Some(memory)
}

/// What this machine finds on it.
fn found(folder: &Folder, memory: &MemVolume, file: &str) -> String {
    let image = folder.at("found");
    let len = usize::try_from(SIZE).unwrap();
    std::fs::write(&image, bytes(memory, 0, len)).unwrap();
    // Its journal is played back, as the next mount would do.
    let checked = support::run("e2fsck", &["-fp", text(&image)]);
    assert!(checked.is_ok(), "{checked:?}");
    support::run("debugfs", &["-R", &format!("cat {file}"), text(&image)]).unwrap()
}

#[test]
fn a_file_system_that_a_guest_wrote_is_whole_also_after_a_power_cut() {
    let Some(kernel) = kernel() else {
        return;
    };
    let folder = Folder::new();
    let Some(memory) = with_file_system(&folder) else {
        return;
    };
    let volume = Arc::new(slow::SlowVolume::new(memory.clone(), 4));
    let served = vhost::serve(volume, &folder.at("socket"), &options()).unwrap();
    let script = "
        mount -t ext4 /dev/vda /mnt
        seq 1 20000 > /mnt/numbers
        sync
        echo synced
        while true; do seq 1 20000 > /mnt/more; rm /mnt/more; done
    ";
    let mut running = guest(&kernel, served.path(), "").start(script);
    assert!(running.hears("synced"), "{}", running.console());
    running.kill();
    // The next machine comes to the same socket and finds it.
    let script = "
        mount -t ext4 /dev/vda /mnt
        echo numbers $(md5sum < /mnt/numbers)
        echo second > /mnt/second
        umount /mnt
    ";
    let said = guest(&kernel, served.path(), "").start(script).finish();
    assert!(said.ok, "{}", said.console);
    let numbers: String = (1..=20000).map(|n| format!("{n}\n")).collect();
    assert!(found(&folder, &memory, "numbers").contains(&numbers));
    assert!(found(&folder, &memory, "second").contains("second"));
}

#[test]
fn a_guest_sees_that_a_disk_is_read_only_or_has_large_blocks() {
    let Some(kernel) = kernel() else {
        return;
    };
    let folder = Folder::new();
    let memory = MemVolume::with(SIZE, |info| {
        info.read_only = true;
        info.block = 4096;
    });
    let volume = Arc::new(memory.unwrap());
    let served = vhost::serve(volume, &folder.at("socket"), &options()).unwrap();
    let script = "
        echo ro $(cat /sys/block/vda/ro) block $(cat /sys/block/vda/queue/logical_block_size)
        dd if=/dev/vda of=/dev/null bs=4096 count=16 iflag=direct
        ! dd if=/dev/zero of=/dev/vda bs=4096 count=1 oflag=direct
    ";
    let said = guest(&kernel, served.path(), "").start(script).finish();
    assert!(
        said.ok && said.console.contains("ro 1 block 4096"),
        "{}",
        said.console
    );
}

#[test]
fn a_guest_that_boots_again_finds_its_disk() {
    let Some(kernel) = kernel() else {
        return;
    };
    let folder = Folder::new();
    let memory = MemVolume::new(SIZE).unwrap();
    let volume = Arc::new(slow::SlowVolume::new(memory.clone(), 4));
    let served = vhost::serve(volume, &folder.at("socket"), &options()).unwrap();
    let script = "
        if [ $(dd if=/dev/vda bs=512 count=1 2>/dev/null | cut -c1-5) = first ]; then
            echo found
        else
            echo first | dd of=/dev/vda conv=fsync
            dd if=/dev/vda of=/dev/null bs=1M &
            reboot -f
        fi
    ";
    let said = guest(&kernel, served.path(), "")
        .may_reboot()
        .start(script)
        .finish();
    assert!(
        said.ok && said.console.contains("found"),
        "{}",
        said.console
    );
}
