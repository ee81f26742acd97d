//! Which names give a server's volumes, and to whom.

#[allow(dead_code)] // other tests use the rest
mod server_driver;

use memlane_block::server::ServerConfig;
use memlane_block::volume::Op;
use memlane_block::wire::{Open, OpenRsp, Wish};
use memlane_transport::engine::server::SessionId;
use memlane_transport::port::{Identity, Service as _};
use server_driver::{Driver, Folder, RO, RW, SOMEBODY, io};
use std::os::unix::fs::{FileTypeExt as _, symlink};

#[test]
fn a_name_that_is_no_volume_below_the_root_is_refused_with_its_reason() {
    let folder = Folder::new("names");
    let root = &folder.0.join("root");
    folder.file("root/disk", 1 << 20);
    folder.file("secret", 1 << 20);
    std::fs::create_dir(root.join("dir")).expect("a folder");
    symlink("../secret", root.join("out")).expect("a link");
    symlink("/etc/hostname", root.join("absolute")).expect("a link");
    symlink("../..", root.join("dir/up")).expect("a link");
    symlink("/proc/self/fd/0", root.join("magic")).expect("a link");
    symlink("round", root.join("round")).expect("a link");
    symlink("../disk", root.join("dir/in")).expect("a link");
    let fifo = rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    );
    fifo.expect("a FIFO");
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).expect("a socket");
    let mut driver = Driver::of(ServerConfig::new(root.clone()));
    let one = driver.session("one");
    let cases = [
        (
            "nothing",
            libc::ENOENT,
            "there is no such file below the root",
        ),
        (
            "disk/below",
            libc::ENOENT,
            "there is no such file below the root",
        ),
        ("", libc::EINVAL, ""),
        ("/", libc::EINVAL, "the name is empty"),
        ("./.", libc::EINVAL, "the name is empty"),
        ("..", libc::EINVAL, "the name holds '..'"),
        ("../secret", libc::EINVAL, "the name holds '..'"),
        ("dir/../disk", libc::EINVAL, "the name holds '..'"),
        ("/../../etc/passwd", libc::EINVAL, "the name holds '..'"),
        ("a\nb", libc::EINVAL, "the name holds control characters"),
        (
            "out",
            libc::EACCES,
            "the name leads out of what this session may see",
        ),
        (
            "absolute",
            libc::EACCES,
            "the name leads out of what this session may see",
        ),
        (
            "dir/up/secret",
            libc::EACCES,
            "the name leads out of what this session may see",
        ),
        (
            "magic",
            libc::EACCES,
            "the name leads out of what this session may see",
        ),
        (
            "round",
            libc::EACCES,
            "the name leads out of what this session may see",
        ),
        ("dir", libc::EISDIR, "it is a directory"),
        ("fifo", libc::ENOTBLK, "it is a FIFO"),
        ("socket", libc::ENOTBLK, "it is a socket"),
        (
            "mem:1M",
            libc::EPERM,
            "volumes for tests are given with --test-volumes",
        ),
        (
            "null:1M",
            libc::EPERM,
            "volumes for tests are given with --test-volumes",
        ),
    ];
    for (name, errno, why) in cases {
        // The encoder would refuse an empty one.
        let mut usr = Open::new(RW, "x").encode().expect("a name");
        usr[6..6 + name.len().max(1)].fill(0);
        usr[6..6 + name.len()].copy_from_slice(name.as_bytes());
        assert_eq!(driver.read(one, &usr, 56), Err(errno), "{name:?}");
        assert!(!why.is_empty() || name.is_empty());
    }
    let told = driver.refusals();
    let expected: Vec<_> = cases.iter().filter(|case| !case.0.is_empty()).collect();
    assert_eq!(told.len(), expected.len());
    for ((name, why), case) in told.iter().zip(expected) {
        assert_eq!((name.as_str(), why.as_str()), (case.0, case.2));
    }
    driver
        .open(one, "dir/in", RW)
        .expect("a link that stays below");
}

#[test]
fn devices_are_given_only_if_the_server_was_told_so() {
    let folder = Folder::new("devices");
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.0.join("block"),
        rustix::fs::FileType::BlockDevice,
        rustix::fs::Mode::RWXU,
        // The first loop device.
        rustix::fs::makedev(7, 0),
    );
    let character = rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.0.join("character"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::RWXU,
        // /dev/null
        rustix::fs::makedev(1, 3),
    );
    if made.is_err() || character.is_err() {
        eprintln!("SKIPPED: no device nodes without root");
        return;
    }
    let block = std::fs::metadata(folder.0.join("block")).expect("a node");
    assert!(block.file_type().is_block_device());
    for devices in [false, true] {
        let mut driver = Driver::of(ServerConfig {
            devices,
            ..folder.config()
        });
        let one = driver.session("one");
        assert_eq!(driver.open(one, "character", RO), Err(libc::ENOTBLK));
        let opened = driver.open(one, "block", RO).map(|_| ());
        // Whatever such a device says now that nothing is behind it.
        assert_eq!(opened == Err(libc::EPERM), !devices, "{opened:?}");
    }
}

#[test]
fn each_session_has_its_folder_and_links_out_of_it_lead_nowhere() {
    let folder = Folder::new("namespace");
    folder.file("tenants/one/disks/a", 1 << 20);
    folder.file("tenants/two/disks/a", 2 << 20);
    folder.file("tenants/two/disks/sub/b", 3 << 20);
    symlink(
        "../../one/disks/a",
        folder.0.join("tenants/two/disks/theirs"),
    )
    .expect("a link");
    let namespace = Some("tenants/%SESSNAME%/disks".to_owned());
    let mut driver = Driver::of(ServerConfig {
        namespace,
        ..folder.config()
    });
    let (one, two) = (driver.session("one"), driver.session("two"));
    let size = |opened: Result<OpenRsp, i32>| opened.map(|rsp| rsp.info().size);
    assert_eq!(size(driver.open(one, "a", RW)), Ok(1 << 20));
    assert_eq!(size(driver.open(two, "a", RW)), Ok(2 << 20));
    assert_eq!(
        size(driver.open(two, "sub/b", RW)),
        Ok(3 << 20),
        "the rest of the path counts"
    );
    assert_eq!(driver.open(two, "theirs", RO), Err(libc::EACCES));
    let three = driver.session("three");
    assert_eq!(driver.open(three, "a", RO), Err(libc::ENOENT));
    for name in ["..", "a/b", "a.b", "", "%SESSNAME%", "a\u{7}"] {
        assert!(
            !driver.service.opened(SessionId(99), name, &SOMEBODY),
            "{name:?}"
        );
    }
    // Whose certificate names somebody else.
    let certified =
        |names: &[&str]| Identity::Certificate(names.iter().map(|n| (*n).into()).collect());
    assert!(
        !driver
            .service
            .opened(SessionId(100), "one", &certified(&["two"]))
    );
    assert!(
        driver
            .service
            .opened(SessionId(100), "one", &certified(&["two", "one"]))
    );
    // A renewed certificate may say more or less, if only it still names this one.
    for (names, still) in [(&["one"][..], true), (&["two"][..], false)] {
        let opened = driver
            .service
            .opened(SessionId(100), "one", &certified(names));
        assert_eq!(opened, still, "{names:?}");
    }
    // Another user of this machine has names of his own.
    let other = Identity::Local { uid: 7, pid: 8 };
    for (number, (name, his)) in (200..).zip([("one", false), ("uid7", true), ("uid7@x", true)]) {
        let opened = driver.service.opened(SessionId(number), name, &other);
        assert_eq!(opened, his, "{name}");
    }
    // A second path of a session is the same client's.
    assert!(
        driver
            .service
            .opened(one, "one", &Identity::Local { uid: 0, pid: 9 })
    );
    assert!(!driver.service.opened(one, "two", &SOMEBODY));
    assert!(
        !driver
            .service
            .opened(one, "one", &Identity::Local { uid: 8, pid: 8 })
    );
    let names: Vec<_> = driver
        .service
        .shared()
        .snapshot()
        .volumes
        .into_iter()
        .map(|v| v.name)
        .collect();
    assert_eq!(
        names,
        [
            "tenants/one/disks/a",
            "tenants/two/disks/a",
            "tenants/two/disks/sub/b"
        ]
    );
}

#[test]
fn volumes_for_tests_are_there_if_the_server_was_told_so() {
    let folder = Folder::new("test-volumes");
    let mut driver = Driver::of(ServerConfig {
        test_volumes: true,
        ..folder.config()
    });
    let (one, two) = (driver.session("one"), driver.session("two"));
    let memory = driver.open(one, "mem:1M", RW).expect("memory");
    assert_eq!(memory.info().size, 1 << 20);
    assert!(!memory.info().cached);
    let write = io(memory.device_id, Op::Write, 4096, 4096).encode();
    assert_eq!(driver.write(one, &write, &[9; 4096]), Ok(()));
    let same = driver.open(two, "mem:1M", RO).expect("the same memory");
    let read = io(same.device_id, Op::Read, 4096, 4096).encode();
    assert_eq!(driver.read(two, &read, 4096), Ok(vec![9; 4096]));
    let nothing = driver.open(one, "null:8T", RW).expect("nothing");
    assert_eq!(nothing.info().size, 8 << 40);
    let write = io(nothing.device_id, Op::Write, 7 << 40, 4096).encode();
    assert_eq!(driver.write(one, &write, &[9; 4096]), Ok(()));
    for name in [
        "mem:",
        "mem:0",
        "mem:-1",
        "mem:+1M",
        "mem:100",
        "mem:1X",
        "mem:99999999T",
        "null:99999999999999999999",
    ] {
        assert_eq!(driver.open(one, name, RW), Err(libc::EINVAL), "{name}");
    }
}

#[test]
fn a_name_ends_at_its_first_nul_and_one_without_an_end_is_none() {
    let folder = Folder::new("nul");
    folder.file("disk", 1 << 20);
    let mut driver = Driver::of(folder.config());
    let one = driver.session("one");
    let open = |name: &[u8]| {
        let mut usr = Open {
            access: RO,
            name: "x".to_owned(),
            wish: Wish::default(),
        }
        .encode()
        .expect("a name");
        usr[6..6 + name.len()].copy_from_slice(name);
        driver.read(one, &usr, 56).map(|_| ())
    };
    let longest = 256;
    let cases: [(Vec<u8>, Result<(), i32>); 5] = [
        (b"disk\0/../../etc/passwd".to_vec(), Ok(())),
        (b"\0disk".to_vec(), Err(libc::EINVAL)),
        (vec![b'a'; longest], Err(libc::EINVAL)),
        (b"di\xffsk".to_vec(), Err(libc::EINVAL)),
        // Longer than any here.
        (vec![b'a'; 200], Err(libc::ENOENT)),
    ];
    let mut open = open;
    for (name, expected) in cases {
        assert_eq!(
            open(&name),
            expected,
            "{:?}",
            String::from_utf8_lossy(&name)
        );
    }
}
