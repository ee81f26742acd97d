//! `memlane-csi` in a machine in QEMU, for what this machine's kernel may lack: thin volumes of LVM, and mirrors of md, over
//! the kernel's nbd driver. `./dev test-kernels` runs it, or `-- --include-ignored`.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memlane_fixtures::guest::{self, Guest, Kernel};
use memlane_system::blocks::{has, memlane, must};
use memlane_system::csi;
use memlane_system::harness::{TempDir, find_csi, stripped};

/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(1200);

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

/// Tests of mirrored volumes, whose console tells how each one ended.
const MIRRORS: &str = r"
export PATH=/usr/sbin:/usr/bin:/bin MEMLANE_BIN=/usr/bin/memlane
mkdir -p /etc /run
ln -s /proc/self/mounts /etc/mtab
ip link set lo up
/usr/bin/mirrors --test-threads=1
echo all is well
";

/// Tests that must have run there.
const OF_MIRRORS: usize = 6;

/// Programs for file systems, in `/usr/sbin` of the guest.
const TOOLS: [&str; 8] = [
    "mkfs.ext4",
    "fsck.ext4",
    "resize2fs",
    "dumpe2fs",
    "blkid",
    "mount",
    "umount",
    "ip",
];

/// Those of LVM.
const OF_LVM: [&str; 4] = ["lvm", "thin_check", "thin_repair", "dmsetup"];

fn found(program: &str) -> PathBuf {
    let mut which = Command::new("/bin/sh");
    which.args(["-c", &format!("command -v {program}")]);
    let path = PathBuf::from(must(which).trim());
    // Its libraries are found by its real name.
    path.canonicalize().expect("a program")
}

/// A guest with these programs of this machine, and memlane.
fn guest(dir: &TempDir, kernel: &Kernel, tools: &[&str]) -> Result<Guest, String> {
    let small = stripped(&memlane(), dir.path());
    let mut guest = Guest::new(kernel)
        .cpus(2)
        .limit(LIMIT)
        .program(&small, "/usr/bin/memlane")?;
    for tool in tools {
        guest = guest.program(&found(tool), &format!("/usr/sbin/{tool}"))?;
    }
    Ok(guest)
}

fn with_lvm(dir: &TempDir, kernel: &Kernel, suite: &Path) -> Result<Guest, String> {
    let conf = dir.path().join("lvm.conf");
    std::fs::write(&conf, LVM_CONF).map_err(|error| error.to_string())?;
    let disk = dir.path().join("disk");
    let made = std::fs::File::create(&disk).and_then(|disk| disk.set_len(1 << 30));
    made.map_err(|error| error.to_string())?;
    let drive = format!("file={},if=none,format=raw,id=disk", disk.display());
    let small = stripped(&find_csi(), dir.path());
    guest(dir, kernel, &[&TOOLS[..], &OF_LVM].concat())?
        .memory(1024)
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
        .file(suite, "/usr/bin/csi-sanity")
        .program(&small, "/usr/bin/memlane-csi")
}

fn with_mirrors(dir: &TempDir, kernel: &Kernel) -> Result<Guest, String> {
    let mdadm = guest::files_of("mdadm")?.join("sbin/mdadm");
    let (tests, plugin) = test_program();
    let small = stripped(&tests, dir.path());
    let small_plugin = stripped(&plugin, dir.path());
    guest(dir, kernel, &TOOLS)?
        .memory(1800)
        .modules(&["ext4", "crc32c_generic", "nbd", "loop", "fuse", "raid1"])
        .program(&mdadm, "/usr/sbin/mdadm")?
        .program(&small, "/usr/bin/mirrors")?
        // The tests start the plugin by the path that it was built at.
        .program(&small_plugin, &plugin.to_string_lossy())
}

/// Builds the tests `mirrors` of memlane-csi. Returns the program, and the plugin that was built with it.
fn test_program() -> (PathBuf, PathBuf) {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["test", "--no-run", "--quiet", "-p", "memlane-csi"])
        .args(["--features", "faults", "--test", "mirrors"])
        .args(["--message-format", "json-render-diagnostics"]);
    let said = must(cargo);
    let programs = said.lines().filter_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        let program = line["executable"].as_str()?;
        Some((
            line["target"]["name"].as_str()?.to_owned(),
            PathBuf::from(program),
        ))
    });
    let programs: Vec<(String, PathBuf)> = programs.collect();
    let of = |wanted: &str| {
        let found = programs.iter().rfind(|(name, _)| name == wanted);
        found.expect(wanted).1.clone()
    };
    (of("mirrors"), of("memlane-csi"))
}

/// The guest's kernel; if these tests cannot run here, why.
fn kernel(tools: &[&str]) -> Result<Kernel, String> {
    match tools.iter().find(|tool| !has(tool)) {
        Some(missing) => Err(format!("no {missing}")),
        None => guest::qemu().and_then(|()| Kernel::of_package("linux-image-amd64")),
    }
}

#[test]
#[ignore = "minutes: ./dev test-kernels"]
fn all_that_the_plugin_offers_passes_with_thin_volumes_of_lvm_and_the_kernels_nbd() {
    let (kernel, suite) = match (kernel(&[&TOOLS[..], &OF_LVM].concat()), csi::sanity()) {
        (Ok(kernel), Some(suite)) => (kernel, suite),
        (Err(why), _) => return eprintln!("SKIPPED csi in a guest: {why}"),
        (_, None) => return,
    };
    let dir = TempDir::new("csi-guest");
    let guest = with_lvm(&dir, &kernel, &suite).expect("a guest");
    let said = guest.start(STORY).finish();
    assert!(said.ok, "{}", said.console);
    for sentence in ["all is well", "82 Passed | 0 Failed"] {
        assert!(said.console.contains(sentence), "{}", said.console);
    }
}

#[test]
#[ignore = "minutes: ./dev test-kernels"]
fn mirrored_volumes_lose_nothing_with_md_over_the_kernels_nbd() {
    let kernel = match kernel(&TOOLS) {
        Ok(kernel) => kernel,
        Err(why) => return eprintln!("SKIPPED mirrors in a guest: {why}"),
    };
    let dir = TempDir::new("csi-mirrors");
    let guest = with_mirrors(&dir, &kernel).expect("a guest");
    let said = guest.start(MIRRORS).finish();
    let all = format!("{OF_MIRRORS} passed; 0 failed");
    assert!(said.ok && said.console.contains(&all), "{}", said.console);
    assert!(!said.console.contains("SKIPPED"), "{}", said.console);
}
