//! A volume as the disk of a virtual machine: a Linux in QEMU reads and writes it, and the volume's bytes are looked
//! at from here.
#![cfg(all(feature = "vhost", target_arch = "x86_64"))]

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
#[path = "support/mod.rs"]
mod support;

use guest::{Guest, Kernel};
use memlane_block::vhost::{self, Options};
use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Flags, Op};
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
