//! The NBD server and the programs that people use with it.

mod nbd_support;

use memlane_block::volume::Op;
use memlane_block::volume::mem::MemVolume;
use nbd_support::{Served, export, have, noise, ok, run};

const SIZE: u64 = 16 << 20;

fn content(volume: &MemVolume) -> Vec<u8> {
    let bytes = volume.bytes();
    let mut copy = vec![0; bytes.len()];
    // SAFETY: the vector is as long.
    assert!(unsafe { bytes.copy_out(0, copy.as_mut_ptr(), copy.len()) });
    copy
}

#[test]
fn nbdinfo_sees_every_ability() {
    if !have("nbdinfo") {
        return;
    }
    let served = Served::volume(MemVolume::new(SIZE).unwrap());
    let uri = served.uri();
    for ability in [
        "connect",
        "cache",
        "df",
        "fast-zero",
        "flush",
        "fua",
        "multi-conn",
        "read",
        "trim",
        "write",
        "zero",
    ] {
        let output = run("nbdinfo", &["--can", ability, &uri]);
        assert_eq!(output.status.code(), Some(0), "{ability}");
    }
    for not in ["read-only", "rotational", "tls"] {
        assert_eq!(
            run("nbdinfo", &["--is", not, &uri]).status.code(),
            Some(2),
            "{not}"
        );
    }
    let json = ok("nbdinfo", &["--json", &uri]);
    for part in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"export-size\": 16777216",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        "\"base:allocation\"",
    ] {
        assert!(json.contains(part), "{part} in {json}");
    }
    assert_eq!(ok("nbdinfo", &["--size", &uri]).trim(), "16777216");
    let map = ok("nbdinfo", &["--map", &uri]);
    let fields: Vec<&str> = map.split_whitespace().collect();
    assert_eq!(fields, ["0", "16777216", "0", "data"]);
}

#[test]
fn a_volume_that_can_do_less_is_said_to_do_less() {
    if !have("nbdinfo") {
        return;
    }
    let less = MemVolume::with(SIZE, |info| {
        (info.trim, info.zeroes, info.extents) = (false, false, false);
        (info.block, info.read_only) = (4096, true);
    });
    let served = Served::volume(less.unwrap());
    let uri = served.uri();
    for ability in ["trim", "zero", "fast-zero", "write"] {
        let output = run("nbdinfo", &["--can", ability, &uri]);
        assert_eq!(output.status.code(), Some(2), "{ability}");
    }
    assert_eq!(
        run("nbdinfo", &["--is", "read-only", &uri]).status.code(),
        Some(0)
    );
    assert!(ok("nbdinfo", &["--map", &uri]).contains("16777216    0  data"));
}

#[test]
fn several_exports_are_listed_and_told_apart() {
    if !have("nbdinfo") {
        return;
    }
    let mut exports = Vec::new();
    for (name, size) in [("one", 1 << 20), ("two/with a slash", 2 << 20)] {
        let mut export = export(name, MemVolume::new(size).unwrap());
        export.description = format!("the volume {name}");
        exports.push(export);
    }
    let served = Served::with(exports, |_| {});
    let list = ok("nbdinfo", &["--list", &served.uri()]);
    for part in [
        "export=\"one\"",
        "export=\"two/with a slash\"",
        "description: the volume one",
    ] {
        assert!(list.contains(part), "{part} in {list}");
    }
    let size = |name: &str| ok("nbdinfo", &["--size", &served.uri_of(name)]);
    assert_eq!(size("one").trim(), "1048576");
    assert_eq!(size("two%2Fwith%20a%20slash").trim(), "2097152");
    assert_eq!(size("").trim(), "1048576", "the first is the default");
    let none = run("nbdinfo", &["--size", &served.uri_of("three")]);
    assert!(!none.status.success());
    assert!(String::from_utf8_lossy(&none.stderr).contains("three"));
}

#[test]
fn nbdcopy_brings_an_image_in_and_out_unchanged() {
    if !have("nbdcopy") {
        return;
    }
    for late in [false, true] {
        let volume = match late {
            false => MemVolume::new(SIZE),
            true => MemVolume::late(SIZE, |_| {}),
        };
        let volume = volume.unwrap();
        let served = Served::volume(volume.clone());
        let image = noise(usize::try_from(SIZE).unwrap(), 7);
        std::fs::write(served.folder.file("in"), &image).unwrap();
        let (from, to) = (served.folder.text("in"), served.folder.text("out"));
        ok(
            "nbdcopy",
            &["--flush", "--connections=2", &from, &served.uri()],
        );
        assert!(content(&volume) == image);
        ok(
            "nbdcopy",
            &["--connections=3", "--requests=32", &served.uri(), &to],
        );
        assert!(std::fs::read(to).unwrap() == image);
        assert!(volume.log().iter().any(|entry| entry.0 == Op::Flush));
    }
}

#[test]
fn nbdcopy_of_a_sparse_image_zeroes_what_is_a_hole() {
    if !have("nbdcopy") {
        return;
    }
    let volume = MemVolume::late(SIZE, |_| {}).unwrap();
    let served = Served::volume(volume.clone());
    let old = noise(usize::try_from(SIZE).unwrap(), 3);
    std::fs::write(served.folder.file("old"), old).unwrap();
    ok("nbdcopy", &[&served.folder.text("old"), &served.uri()]);
    let file = std::fs::File::create(served.folder.file("sparse")).unwrap();
    file.set_len(SIZE).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &noise(100_000, 4), 5_000_000).unwrap();
    ok("nbdcopy", &[&served.folder.text("sparse"), &served.uri()]);
    assert!(content(&volume) == std::fs::read(served.folder.file("sparse")).unwrap());
    assert!(volume.log().iter().any(|entry| entry.0 == Op::WriteZeroes));
}

#[test]
fn qemu_img_converts_compares_and_maps() {
    if !have("qemu-img") {
        return;
    }
    let volume = MemVolume::late(SIZE, |_| {}).unwrap();
    let served = Served::volume(volume.clone());
    let uri = served.uri();
    let raw = served.folder.text("raw");
    let mut image = noise(usize::try_from(SIZE).unwrap(), 9);
    image[3 << 20..5 << 20].fill(0);
    std::fs::write(&raw, &image).unwrap();
    let qcow = served.folder.text("qcow2");
    ok(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "qcow2", &raw, &qcow],
    );
    ok(
        "qemu-img",
        &["convert", "-n", "-W", "-m", "8", "-O", "raw", &qcow, &uri],
    );
    assert!(content(&volume) == image);
    let same = ok("qemu-img", &["compare", "-f", "raw", &raw, &uri]);
    assert!(same.contains("identical"), "{same}");
    let map = ok("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(map.contains("\"length\": 16777216"), "{map}");
    let back = served.folder.text("back");
    ok(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "raw", &uri, &back],
    );
    assert!(std::fs::read(back).unwrap() == image);
}

#[test]
fn qemu_io_reads_what_it_has_written_with_every_cache_mode() {
    if !have("qemu-io") {
        return;
    }
    for cache in ["writeback", "none", "writethrough"] {
        let volume = MemVolume::late(SIZE, |info| info.block = 4096).unwrap();
        let served = Served::volume(volume.clone());
        let mut commands: Vec<String> = Vec::new();
        for i in 1..60_u64 {
            // Not in blocks, not in order, but apart from each other.
            let at = (i * 37 % 60) * 200_000 + i * 13;
            commands.push(format!("write -P {i} {at} {}", 1000 + i * 2500));
        }
        commands.push("aio_write -P 77 12500000 700001".into());
        commands.push("aio_flush".into());
        for i in 1..60_u64 {
            let at = (i * 37 % 60) * 200_000 + i * 13;
            commands.push(format!("read -P {i} {at} {}", 1000 + i * 2500));
        }
        for last in [
            "read -P 77 12500000 700001",
            "write -f -P 5 0 4096",
            "write -z 4096 8192",
            "write -z -u 1M 2M",
            "write -z -n 3M 64k",
            "discard 5M 1M",
            "flush",
            "read -P 0 4096 8192",
            "read -P 0 1M 2M",
            "read -P 5 0 4096",
        ] {
            commands.push(last.into());
        }
        let uri = served.uri();
        let mut arguments = vec!["-f", "raw", "-t", cache];
        for command in &commands {
            arguments.extend(["-c", command.as_str()]);
        }
        arguments.push(&uri);
        let said = ok("qemu-io", &arguments);
        assert!(!said.contains("verification failed"), "{cache}: {said}");
        assert!(!said.contains("failed"), "{cache}: {said}");
        let log = volume.log();
        for op in [Op::Trim, Op::WriteZeroes, Op::Flush] {
            assert!(log.iter().any(|entry| entry.0 == op), "{cache}: {op:?}");
        }
    }
}

#[test]
fn fio_verifies_every_block_that_it_wrote_or_trimmed() {
    if !have("fio") || !run("fio", &["--enghelp=nbd"]).status.success() {
        return;
    }
    let volume = MemVolume::late(SIZE, |_| {}).unwrap();
    let served = Served::volume(volume.clone());
    let uri = format!("--uri={}", served.uri());
    for (rw, depth, sizes) in [
        ("randwrite", "1", "4k"),
        ("randwrite", "32", "512-64k"),
        ("write", "4", "1m"),
        ("randtrimwrite", "1", "4k"),
    ] {
        let said = ok(
            "fio",
            &[
                "--name=v",
                "--ioengine=nbd",
                &uri,
                &format!("--rw={rw}"),
                &format!("--iodepth={depth}"),
                &format!(
                    "--bsrange={}",
                    if sizes.contains('-') {
                        sizes.into()
                    } else {
                        format!("{sizes}-{sizes}")
                    }
                ),
                "--size=16m",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--do_verify=1",
                "--bs_unaligned=0",
                "--verify_state_save=0",
            ],
        );
        assert!(said.contains("err= 0"), "{rw}: {said}");
    }
    assert!(volume.log().iter().any(|entry| entry.0 == Op::Trim));
}

#[test]
fn qemu_nbd_can_be_a_client_of_ours() {
    if !have("qemu-nbd") {
        return;
    }
    let served = Served::volume(MemVolume::new(SIZE).unwrap());
    let socket = served.socket.to_str().unwrap();
    let list = ok("qemu-nbd", &["-L", "-k", socket]);
    assert!(list.contains("exports available: 1"), "{list}");
    assert!(list.contains("size:  16777216"), "{list}");
    assert!(list.contains("base:allocation"), "{list}");
}
