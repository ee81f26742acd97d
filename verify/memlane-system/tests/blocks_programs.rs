//! Common disk programs on volumes mapped from a server, over TCP and over shared memory, as NBD exports and as loop
//! devices. The server's file must contain what they wrote.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memlane_system::blocks::alone::{Alone, Mapping};
use memlane_system::blocks::fio::Verifying;
use memlane_system::blocks::{Rng, has, must, skip};
use memlane_system::harness;

const LIMIT: Duration = Duration::from_secs(60);
const SIZE: u64 = 24 << 20;

fn all_here(test: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| !has(program));
    if let Some(missing) = missing {
        skip(test, &format!("no {missing}"));
    }
    missing.is_none()
}

/// A server with a file for a volume, and both ways to it.
fn served(test: &str) -> (Alone, [String; 2]) {
    let mut alone = Alone::new(test);
    alone.volume("disk", SIZE);
    alone.serve(&[]);
    let places = [alone.tcp(), alone.local()];
    (alone, places)
}

fn run(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    must(command)
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    let words = std::iter::repeat_with(|| rng.next().to_le_bytes());
    words.flatten().take(bytes).collect()
}

/// Bytes that a file takes of its disk.
fn taken(file: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(file).expect("the file").blocks() * 512
}

#[test]
fn libnbds_tools_see_a_mapped_volumes_abilities_and_copy_images_in_and_out() {
    let test = "programs-libnbd";
    if !all_here(test, &["nbdinfo", "nbdcopy"]) {
        return;
    }
    let (alone, places) = served(test);
    let file = alone.root().join("disk");
    let at = |name: &str| alone.dir().join(name).display().to_string();
    for (n, place) in places.iter().enumerate() {
        let mapping = alone.nbd(&format!("m{n}"), place, "disk", &[]);
        let uri = mapping.shown();
        assert_eq!(run("nbdinfo", &["--size", uri]).trim(), SIZE.to_string());
        for ability in [
            "multi-conn",
            "flush",
            "fua",
            "trim",
            "zero",
            "fast-zero",
            "df",
            "write",
        ] {
            run("nbdinfo", &["--can", ability, uri]);
        }
        let image = noise(usize::try_from(SIZE).expect("small"), n as u64);
        std::fs::write(at("in"), &image).expect("written");
        run("nbdcopy", &["--flush", "--connections=3", &at("in"), uri]);
        assert!(std::fs::read(&file).expect("the file") == image, "{place}");
        run(
            "nbdcopy",
            &["--connections=2", "--requests=32", uri, &at("out")],
        );
        assert!(
            std::fs::read(at("out")).expect("copied") == image,
            "{place}"
        );
        // Holes stay holes, on both sides.
        let sparse = std::fs::File::create(at("sparse")).expect("a file");
        sparse.set_len(SIZE).expect("its size");
        std::os::unix::fs::FileExt::write_all_at(&sparse, &image[..100_000], 5 << 20)
            .expect("written");
        run("nbdcopy", &["--flush", &at("sparse"), uri]);
        assert!(
            std::fs::read(&file).expect("the file")
                == std::fs::read(at("sparse")).expect("the image")
        );
        assert!(taken(&file) < 2 << 20, "{} bytes are taken", taken(&file));
        let map = run("nbdinfo", &["--map", uri]);
        assert!(map.lines().any(|line| line.contains("hole,zero")), "{map}");
        mapping.end();
    }
}

#[test]
fn qemus_tools_convert_compare_map_and_verify_a_mapped_volume() {
    let test = "programs-qemu";
    if !all_here(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let (alone, places) = served(test);
    let file = alone.root().join("disk").display().to_string();
    let at = |name: &str| alone.dir().join(name).display().to_string();
    let mut image = noise(usize::try_from(SIZE).expect("small"), 7);
    image[3 << 20..6 << 20].fill(0);
    std::fs::write(at("raw"), &image).expect("written");
    run(
        "qemu-img",
        &[
            "convert",
            "-f",
            "raw",
            "-O",
            "qcow2",
            &at("raw"),
            &at("qcow2"),
        ],
    );
    for (n, place) in places.iter().enumerate() {
        let mapping = alone.nbd(&format!("m{n}"), place, "disk", &[]);
        let uri = mapping.shown();
        run(
            "qemu-img",
            &[
                "convert",
                "-n",
                "-W",
                "-m",
                "8",
                "-O",
                "raw",
                &at("qcow2"),
                uri,
            ],
        );
        for (one, other) in [(at("raw"), uri), (file.clone(), uri)] {
            run(
                "qemu-img",
                &["compare", "-f", "raw", "-F", "raw", &one, other],
            );
        }
        let map = run("qemu-img", &["map", "--output=json", "-f", "raw", uri]);
        let map: serde_json::Value = serde_json::from_str(&map).expect("a map");
        let mut holes = map
            .as_array()
            .expect("extents")
            .iter()
            .filter(|one| one["zero"] == true);
        assert!(
            holes.any(|one| one["length"].as_u64() >= Some(2 << 20)),
            "{map}"
        );
        qemu_io(uri);
        run(
            "qemu-img",
            &["compare", "-f", "raw", "-F", "raw", &file, uri],
        );
        mapping.end();
    }
}

/// Writes in odd pieces, zeroes, discards, and what is then there.
fn qemu_io(uri: &str) {
    let mut commands = Vec::new();
    for i in 1..40_u64 {
        let at = (i * 37 % 40) * 300_000 + i * 13;
        commands.push(format!("aio_write -P {i} {at} {}", 1000 + i * 2500));
    }
    commands.push("aio_flush".into());
    for i in 1..40_u64 {
        let at = (i * 37 % 40) * 300_000 + i * 13;
        commands.push(format!("read -P {i} {at} {}", 1000 + i * 2500));
    }
    let last = [
        "write -f -P 5 0 4096",
        "write -z 13M 8192",
        "write -z -u 14M 2M",
        "write -z -n 16M 64k",
        "write -P 9 18M 1M",
        "discard 18M 512k",
        "flush",
        "read -P 5 0 4096",
        "read -P 0 13M 8192",
        "read -P 0 14M 2M",
        "read -P 9 18944k 512k",
    ];
    commands.extend(last.map(String::from));
    let mut args = vec!["-f", "raw", "-t", "none"];
    for command in &commands {
        args.extend(["-c", command.as_str()]);
    }
    args.push(uri);
    let said = run("qemu-io", &args);
    assert!(!said.contains("failed"), "{said}");
}

#[test]
fn fio_finds_what_it_wrote_and_zeros_where_it_trimmed() {
    let test = "programs-fio";
    if !all_here(test, &["fio"]) {
        return;
    }
    let (alone, places) = served(test);
    for (n, place) in places.iter().enumerate() {
        let mapping = alone.nbd(&format!("m{n}"), place, "disk", &[]);
        let many = [
            "--numjobs=4",
            "--size=5m",
            "--offset_increment=6m",
            "--bsrange=512-64k",
            "--bs_unaligned=0",
        ];
        let written = Verifying::start(mapping.shown(), 2, &many).must_find_nothing(LIMIT);
        // A trim and the write behind it are both under way at greater depths: fio gives them no order.
        let trims = [
            "--rw=randtrimwrite",
            "--iodepth=1",
            "--trim_percentage=40",
            "--trim_backlog=32",
            "--trim_verify_zero=1",
            "--size=16m",
        ];
        let trimmed = Verifying::start(mapping.shown(), 2, &trims).must_find_nothing(LIMIT);
        let show = mapping.show();
        assert!(
            show["volumes"][0]["counters"]["trims"].as_u64() > Some(0),
            "{show:#}"
        );
        println!(
            "{test}: {place}: {} and {} requests",
            written.requests, trimmed.requests
        );
        mapping.end();
    }
}

#[test]
fn a_file_system_on_a_mapped_volume_keeps_its_files_while_its_server_is_killed() {
    let test = "programs-ext4";
    if !harness::is_root() || !Path::new("/dev/loop-control").exists() {
        return eprintln!("SKIPPED {test}: not root, or no loop devices");
    }
    if std::fs::File::open("/dev/fuse").is_err() || !all_here(test, &["mkfs.ext4", "e2fsck"]) {
        return eprintln!("SKIPPED {test}: no /dev/fuse, or no e2fsprogs");
    }
    let (mut alone, places) = served(test);
    for (n, place) in places.iter().enumerate() {
        let mapping = alone.map(&format!("m{n}"), place, "disk", "loop", &[]);
        let device = mapping.shown().to_owned();
        let tree = Mounted::new(&alone, &mapping);
        let files = tree.fill(n as u64, || {
            alone.kill();
            alone.serve(&[]);
        });
        drop(tree);
        run("e2fsck", &["-fn", &device]);
        mapping.end();
        // What is in the server's file, by another way.
        let file = alone.root().join("disk").display().to_string();
        run("e2fsck", &["-fn", &file]);
        for (name, bytes) in files {
            let copy = alone.dir().join("copy").display().to_string();
            run("debugfs", &["-R", &format!("dump {name} {copy}"), &file]);
            assert!(
                std::fs::read(&copy).expect("a copy") == bytes,
                "{place}: {name}"
            );
        }
    }
}

/// An ext4 on a device, mounted until it is dropped.
struct Mounted(String);

impl Mounted {
    fn new(alone: &Alone, mapping: &Mapping) -> Mounted {
        let tree = alone.dir().join("tree").display().to_string();
        std::fs::create_dir_all(&tree).expect("a folder");
        run("mkfs.ext4", &["-q", "-F", mapping.shown()]);
        run("mount", &["-t", "ext4", mapping.shown(), &tree]);
        Mounted(tree)
    }

    /// Files, some written before and some after `trouble`, all of them synced.
    fn fill(&self, seed: u64, trouble: impl FnOnce()) -> Vec<(String, Vec<u8>)> {
        let mut rng = Rng(seed);
        let mut trouble = Some(trouble);
        let mut files = Vec::new();
        for n in 0..20 {
            if n == 10 {
                trouble.take().expect("once")();
            }
            let bytes = noise(
                usize::try_from(rng.below(400_000)).expect("small"),
                rng.next(),
            );
            let name = format!("file-{n}");
            std::fs::write(format!("{}/{name}", self.0), &bytes).expect("written");
            files.push((name, bytes));
        }
        run("sync", &["-f", &self.0]);
        files
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
