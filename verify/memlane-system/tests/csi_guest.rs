//! `memlane-csi` in a machine in QEMU, for what this machine's kernel may lack: thin volumes of LVM, shown by the kernel's nbd
//! driver. `./dev test-kernels` runs it, or `-- --include-ignored`.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memlane_fixtures::guest::{self, Guest, Kernel};
use memlane_system::blocks::{has, memlane, must};
use memlane_system::csi;
use memlane_system::harness::{TempDir, find_csi};

/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(800);

/// There is no udev: LVM makes its device nodes itself.
const LVM_CONF: &str = "activation { udev_sync = 0\n udev_rules = 0\n monitoring = 0 }\n\
                        devices { use_devicesfile = 0 }\nlog { silent = 0 }\n";

const STORY: &str = r"
export PATH=/usr/sbin:/usr/bin:/bin
mkdir -p /run/lvm /run/lock/lvm /var/lib /etc/lvm/archive /etc/lvm/backup
ln -s /proc/self/mounts /etc/mtab
ip link set lo up
lvm pvcreate -q -y /dev/vda
lvm vgcreate -q vg /dev/vda
lvm lvcreate -q -y -L 900m --thinpool pool vg
mkdir /volumes
memlane serve --root /volumes --namespace 'nodes/%SESSNAME%' --devices --listen local:guest --name guest &
memlane-csi single --endpoint unix:///csi.sock --root /volumes --lvm vg/pool --serves local:guest --server guest --node-id n1 &
sleep 5
csi-sanity --ginkgo.no-color --csi.endpoint /csi.sock --csi.mountdir /target --csi.stagingdir /staging \
    --csi.testvolumesize 33554432 --csi.testvolumeexpandsize 67108864 | tail -n 60
lvm lvs vg
test $(lvm lvs --noheadings -o lv_name vg | wc -l) = 1
echo all is well
";

/// Programs of this machine, under the names that the guest has for them.
fn programs() -> [(&'static str, &'static str); 12] {
    [
        ("lvm", "/usr/sbin/lvm"),
        ("thin_check", "/usr/sbin/thin_check"),
        ("thin_repair", "/usr/sbin/thin_repair"),
        ("mkfs.ext4", "/usr/sbin/mkfs.ext4"),
        ("fsck.ext4", "/usr/sbin/fsck.ext4"),
        ("resize2fs", "/usr/sbin/resize2fs"),
        ("dumpe2fs", "/usr/sbin/dumpe2fs"),
        ("blkid", "/usr/sbin/blkid"),
        ("mount", "/usr/bin/mount"),
        ("umount", "/usr/bin/umount"),
        ("ip", "/usr/bin/ip"),
        ("dmsetup", "/usr/sbin/dmsetup"),
    ]
}

fn found(program: &str) -> PathBuf {
    let mut which = Command::new("/bin/sh");
    which.args(["-c", &format!("command -v {program}")]);
    let path = PathBuf::from(must(which).trim());
    // Its libraries are found by its real name.
    path.canonicalize().expect("a program")
}

fn stripped(from: &Path, to: &Path) -> PathBuf {
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(to).arg(from);
    must(strip);
    to.to_owned()
}

fn guest(dir: &TempDir, kernel: &Kernel, suite: &Path) -> Result<Guest, String> {
    let conf = dir.path().join("lvm.conf");
    std::fs::write(&conf, LVM_CONF).map_err(|error| error.to_string())?;
    let disk = dir.path().join("disk");
    let made = std::fs::File::create(&disk).and_then(|disk| disk.set_len(1 << 30));
    made.map_err(|error| error.to_string())?;
    let drive = format!("file={},if=none,format=raw,id=disk", disk.display());
    let mut guest = Guest::new(kernel)
        .memory(1024)
        .cpus(2)
        .limit(LIMIT)
        .modules(&[
            "virtio_pci",
            "virtio_blk",
            "ext4",
            "crc32c_generic",
            "nbd",
            "dm_thin_pool",
            "dm_snapshot",
        ])
        .arguments(&["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"])
        .file(&conf, "/etc/lvm/lvm.conf")
        .file(suite, "/usr/bin/csi-sanity");
    for (name, place) in programs() {
        guest = guest.program(&found(name), place)?;
    }
    for (from, name) in [(memlane(), "memlane"), (find_csi(), "memlane-csi")] {
        let small = stripped(&from, &dir.path().join(name));
        guest = guest.program(&small, &format!("/usr/bin/{name}"))?;
    }
    Ok(guest)
}

#[test]
#[ignore = "minutes: ./dev test-kernels"]
fn all_that_the_plugin_offers_passes_with_thin_volumes_of_lvm_and_the_kernels_nbd() {
    let missing = programs().into_iter().find(|(name, _)| !has(name));
    let kernel = match missing {
        Some((name, _)) => Err(format!("no {name}")),
        None => guest::qemu().and_then(|()| Kernel::of_package("linux-image-amd64")),
    };
    let (kernel, suite) = match (kernel, csi::sanity()) {
        (Ok(kernel), Some(suite)) => (kernel, suite),
        (Err(why), _) => return eprintln!("SKIPPED csi in a guest: {why}"),
        (_, None) => return,
    };
    let dir = TempDir::new("csi-guest");
    let guest = guest(&dir, &kernel, &suite).expect("a guest");
    let said = guest.start(STORY).finish();
    assert!(said.ok, "{}", said.console);
    for sentence in ["all is well", "82 Passed | 0 Failed"] {
        assert!(said.console.contains(sentence), "{}", said.console);
    }
}
