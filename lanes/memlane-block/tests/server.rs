//! What a server's service does with what sessions ask, told to it as a transport would.

use memlane_block::server::{BlockService, ServerConfig, Shared};
use memlane_block::store::Kind;
use memlane_block::volume::{EXTENT_LEN, Flags, Op};
use memlane_block::wire::{
    Access, CAPS, Close, IoMsg, Open, OpenRsp, SessInfo, SessInfoRsp, VERSION, notice,
};
use memlane_core::region::Region;
use memlane_transport::engine::Direction;
use memlane_transport::engine::server::{Job, SessionId};
use memlane_transport::port::{Finished, Identity, Service as _};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CHUNK: usize = 128 << 10;
const CHUNKS: u16 = 64;
const SOMEBODY: Identity = Identity::Local { uid: 7, pid: 8 };

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("memlane-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(size).expect("its size");
        path
    }

    fn config(&self) -> ServerConfig {
        ServerConfig::new(self.0.clone())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a transport is to a service: sessions, chunks, and results as they come.
struct Driver {
    // Before the chunks: it has their addresses.
    service: BlockService,
    chunks: Region,
    next: u16,
    sessions: u64,
    finished: Vec<Finished>,
}

impl Driver {
    fn new(shared: &Arc<Shared>) -> Driver {
        Driver {
            service: shared.service().expect("a service"),
            chunks: Region::create(c"test-chunks", CHUNK * CHUNKS as usize, false).expect("memory"),
            next: 0,
            sessions: 0,
            finished: Vec::new(),
        }
    }

    fn of(config: ServerConfig) -> Driver {
        Driver::new(&Shared::new(config).expect("a server"))
    }

    /// A session that can do all that this version can.
    fn session(&mut self, name: &str) -> SessionId {
        let id = self.bare_session(name);
        let info = SessInfo {
            version: VERSION,
            caps: CAPS,
        };
        let bytes = self.read(id, &info.encode(), 36).expect("an answer");
        let rsp = SessInfoRsp::decode(&bytes).expect("a response");
        assert_eq!((rsp.version, rsp.caps), (VERSION, CAPS));
        id
    }

    /// One that said nothing of itself.
    fn bare_session(&mut self, name: &str) -> SessionId {
        self.sessions += 1;
        let id = SessionId(self.sessions);
        assert!(self.service.opened(id, name, &SOMEBODY));
        id
    }

    fn begin(&mut self, session: SessionId, direction: Direction, usr: &[u8], len: u32) -> u16 {
        let permit = self.next;
        self.next = (self.next + 1) % CHUNKS;
        let job = Job {
            session,
            permit,
            generation: 1,
            direction,
            len,
            usr: usr.to_vec(),
        };
        let chunk = self.chunks.bytes().part(usize::from(permit) * CHUNK, CHUNK);
        self.service.execute(job, chunk.expect("a chunk"));
        permit
    }

    fn end(&mut self, permit: u16) -> u16 {
        loop {
            let found = self.finished.iter().position(|done| done.permit == permit);
            if let Some(at) = found {
                return self.finished.swap_remove(at).errno;
            }
            if !self.look() {
                let fd = self.service.fd().expect("something is under way");
                let limit = Timespec {
                    tv_sec: 20,
                    tv_nsec: 0,
                };
                let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                let woken = rustix::event::poll(&mut fds, Some(&limit));
                assert_ne!(woken, Ok(0), "nothing came for permit {permit}");
            }
        }
    }

    fn look(&mut self) -> bool {
        let before = self.finished.len();
        self.service.finished(&mut self.finished);
        self.finished.len() > before
    }

    fn read(&mut self, session: SessionId, usr: &[u8], len: u32) -> Result<Vec<u8>, i32> {
        let permit = self.begin(session, Direction::Read, usr, len);
        match self.end(permit) {
            0 => Ok(self.chunk(permit, len as usize)),
            errno => Err(errno.into()),
        }
    }

    fn chunk(&self, permit: u16, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let at = usize::from(permit) * CHUNK;
        // SAFETY: `bytes` is as long.
        assert!(unsafe { self.chunks.bytes().copy_out(at, bytes.as_mut_ptr(), len) });
        bytes
    }

    fn write(&mut self, session: SessionId, usr: &[u8], data: &[u8]) -> Result<(), i32> {
        let at = usize::from(self.next) * CHUNK;
        // SAFETY: `data` is as long.
        assert!(unsafe { self.chunks.bytes().copy_in(at, data.as_ptr(), data.len()) });
        let len = u32::try_from(data.len()).expect("short");
        let permit = self.begin(session, Direction::Write, usr, len);
        match self.end(permit) {
            0 => Ok(()),
            errno => Err(errno.into()),
        }
    }

    fn open(&mut self, session: SessionId, name: &str, access: Access) -> Result<OpenRsp, i32> {
        let name = name.to_owned();
        let usr = Open { access, name }.encode().expect("a name");
        let bytes = self.read(session, &usr, 56)?;
        Ok(OpenRsp::decode(&bytes).expect("a response"))
    }

    fn close(&mut self, session: SessionId, device_id: u32) -> Result<(), i32> {
        self.write(session, &Close { device_id }.encode(), &[])
    }

    fn notices(&mut self) -> Vec<(SessionId, u32)> {
        let mut notices = Vec::new();
        self.service.notices(&mut notices);
        notices
    }
}

fn io(device_id: u32, op: Op, at: u64, len: u32) -> IoMsg {
    IoMsg {
        device_id,
        sector: at / 512,
        op,
        flags: Flags::NONE,
        len,
        prio: 0,
    }
}

const RW: Access = Access::ReadWrite;
const RO: Access = Access::ReadOnly;

// ---- opening and closing ----------------------------------------------------

#[test]
fn opening_twice_is_opening_once_and_ids_are_never_used_again() {
    let folder = Folder::new("open");
    folder.file("a", 1 << 20);
    folder.file("dir/b", 2 << 20);
    let mut driver = Driver::of(folder.config());
    let (one, two) = (driver.session("one"), driver.session("two"));
    let a = driver.open(one, "a", RW).expect("opened");
    assert_eq!(a.info().size, 1 << 20);
    assert!(!a.info().read_only && a.info().cached);
    let b = driver.open(one, "//dir/.//b", RW).expect("opened");
    assert_eq!(b.info().size, 2 << 20);
    assert_ne!(a.device_id, b.device_id);
    assert_eq!(driver.open(one, "/a", RW), Ok(a), "the same again");
    assert_eq!(driver.open(one, "dir/b", RW), Ok(b), "by whatever spelling");
    // Nobody else's id, and not after closing.
    let read = io(a.device_id, Op::Read, 0, 512).encode();
    assert_eq!(driver.read(two, &read, 512), Err(libc::ENODEV));
    assert_eq!(driver.read(one, &read, 512), Ok(vec![0; 512]));
    assert_eq!(driver.close(two, a.device_id), Err(libc::ENODEV));
    assert_eq!(driver.close(one, a.device_id), Ok(()));
    assert_eq!(driver.close(one, a.device_id), Err(libc::ENODEV));
    assert_eq!(driver.read(one, &read, 512), Err(libc::ENODEV));
    let again = driver.open(one, "a", RW).expect("opened");
    assert_ne!(again.device_id, a.device_id);
    assert_eq!(driver.read(one, &read, 512), Err(libc::ENODEV));
}

#[test]
fn an_id_of_an_earlier_life_hits_no_other_volume() {
    let folder = Folder::new("life");
    for n in 0..50 {
        folder.file(&format!("disk{n}"), 1 << 20);
    }
    let ids = || {
        let mut driver = Driver::of(folder.config());
        let session = driver.session("one");
        let open = |n| driver.open(session, &format!("disk{n}"), RW);
        let opened = (0..50).map(open).collect::<Result<Vec<_>, _>>();
        opened
            .expect("opened")
            .iter()
            .map(|rsp| rsp.device_id)
            .collect::<Vec<_>>()
    };
    let (before, after) = (ids(), ids());
    assert!(before.iter().all(|id| !after.contains(id)));
}

#[test]
fn one_writes_or_two_while_a_machine_moves_and_all_may_read() {
    let folder = Folder::new("access");
    let path = folder.file("disk", 1 << 20);
    std::fs::hard_link(&path, folder.0.join("other-name")).expect("linked");
    let shared = Shared::new(folder.config()).expect("a server");
    // Two services: as two threads have them.
    let (mut here, mut there) = (Driver::new(&shared), Driver::new(&shared));
    let (one, two, three) = (
        here.session("one"),
        there.session("two"),
        there.session("three"),
    );
    let writer = here.open(one, "disk", RW).expect("the first writer");
    assert_eq!(there.open(two, "disk", RW), Err(libc::EBUSY));
    assert_eq!(
        there.open(two, "other-name", RW),
        Err(libc::EBUSY),
        "the same file"
    );
    let reader = there.open(two, "disk", RO).expect("readers may");
    assert!(reader.info().read_only);
    let write = io(reader.device_id, Op::Write, 0, 512).encode();
    assert_eq!(there.write(two, &write, &[1; 512]), Err(libc::EROFS));
    // The move: the new host writes too, but no third one.
    let mover = there
        .open(two, "disk", Access::Migration)
        .expect("a second writer");
    assert_ne!(mover.device_id, reader.device_id);
    assert_eq!(
        there.open(three, "disk", Access::Migration),
        Err(libc::EBUSY)
    );
    assert_eq!(here.close(one, writer.device_id), Ok(()));
    assert_eq!(there.open(three, "disk", RW), Err(libc::EBUSY));
    assert_eq!(there.close(two, mover.device_id), Ok(()));
    there
        .open(three, "disk", RW)
        .expect("nobody writes any more");
    let refused = shared.snapshot().refusals;
    assert_eq!(refused.len(), 4);
    assert_eq!(refused[0].why, "another session writes it");
}

#[test]
fn a_session_that_dies_frees_its_volumes_when_its_requests_have_ended() {
    let folder = Folder::new("dies");
    folder.file("disk", 1 << 20);
    for store in [Kind::Auto, Kind::Threads] {
        let shared = Shared::new(ServerConfig {
            store,
            ..folder.config()
        })
        .expect("a server");
        let mut driver = Driver::new(&shared);
        let (one, two) = (driver.session("one"), driver.session("two"));
        let disk = driver.open(one, "disk", RW).expect("opened");
        let usr = io(disk.device_id, Op::Write, 0, 4096).encode();
        let permits: Vec<u16> = (0..20)
            .map(|_| driver.begin(one, Direction::Write, &usr, 4096))
            .collect();
        driver.service.gone(one);
        // Not one has been taken back yet: a second writer would meet them.
        assert_eq!(shared.snapshot().volumes.len(), 1);
        for permit in permits {
            assert_eq!(driver.end(permit), 0, "{store:?}");
        }
        assert_eq!(shared.snapshot().volumes.len(), 0, "{store:?}");
        assert_eq!(driver.read(one, &usr, 4096), Err(libc::EACCES), "nobody's");
        driver.open(two, "disk", RW).expect("free");
    }
}

#[test]
fn a_close_is_answered_when_nothing_is_under_way_any_more() {
    let folder = Folder::new("close");
    folder.file("disk", 1 << 20);
    let mut driver = Driver::of(folder.config());
    let one = driver.session("one");
    let disk = driver.open(one, "disk", RW).expect("opened");
    let usr = io(disk.device_id, Op::Write, 0, 4096).encode();
    let write = driver.begin(one, Direction::Write, &usr, 4096);
    let close = Close {
        device_id: disk.device_id,
    }
    .encode();
    let close = driver.begin(one, Direction::Write, &close, 0);
    let late = driver.begin(one, Direction::Write, &usr, 4096);
    assert_eq!(driver.end(late), u16::try_from(libc::ENODEV).unwrap());
    assert_eq!(driver.end(close), 0);
    assert!(
        driver.finished.iter().any(|done| done.permit == write),
        "told before"
    );
}

#[test]
fn a_service_that_is_dropped_leaves_no_writer_behind() {
    let folder = Folder::new("dropped");
    folder.file("disk", 1 << 20);
    let shared = Shared::new(folder.config()).expect("a server");
    let mut driver = Driver::new(&shared);
    let one = driver.session("one");
    let disk = driver.open(one, "disk", RW).expect("opened");
    let usr = io(disk.device_id, Op::Write, 0, 4096).encode();
    driver.begin(one, Direction::Write, &usr, 4096);
    drop(driver);
    assert!(shared.snapshot().volumes.is_empty());
}

#[test]
fn a_session_opens_so_many_volumes_and_no_more() {
    let folder = Folder::new("many");
    for n in 0..4 {
        folder.file(&format!("disk{n}"), 512);
    }
    let mut driver = Driver::of(ServerConfig {
        volumes: 3,
        ..folder.config()
    });
    let one = driver.session("one");
    let open = |n| driver.open(one, &format!("disk{n}"), RO).map(|_| ());
    let opened: Vec<_> = (0..4).map(open).collect();
    assert_eq!(opened, [Ok(()), Ok(()), Ok(()), Err(libc::EMFILE)]);
}

// ---- names ------------------------------------------------------------------

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
        let mut usr = Open {
            access: RW,
            name: "x".to_owned(),
        }
        .encode()
        .expect("a name");
        usr[6..6 + name.len().max(1)].fill(0);
        usr[6..6 + name.len()].copy_from_slice(name.as_bytes());
        assert_eq!(driver.read(one, &usr, 56), Err(errno), "{name:?}");
        assert!(!why.is_empty() || name.is_empty());
    }
    let told = driver.service_refusals();
    let expected: Vec<_> = cases.iter().filter(|case| !case.0.is_empty()).collect();
    assert_eq!(told.len(), expected.len());
    for ((name, why), case) in told.iter().zip(expected) {
        assert_eq!((name.as_str(), why.as_str()), (case.0, case.2));
    }
    driver
        .open(one, "dir/in", RW)
        .expect("a link that stays below");
}

impl Driver {
    fn service_refusals(&self) -> Vec<(String, String)> {
        let refusals = self.service.shared().snapshot().refusals.into_iter();
        refusals
            .map(|refusal| (refusal.name, refusal.why))
            .collect()
    }
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
    // A second path of a session is the same client's.
    assert!(
        driver
            .service
            .opened(one, "one", &Identity::Local { uid: 7, pid: 9 })
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

// ---- requests ---------------------------------------------------------------

#[test]
fn requests_do_what_they_say_and_are_counted() {
    let folder = Folder::new("requests");
    let path = folder.file("disk", 1 << 20);
    for store in [Kind::Auto, Kind::Threads] {
        let shared = Shared::new(ServerConfig {
            store,
            ..folder.config()
        })
        .expect("a server");
        let mut driver = Driver::new(&shared);
        let one = driver.session("one");
        let id = driver.open(one, "disk", RW).expect("opened").device_id;
        let data: Vec<u8> = (0..8192u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
        let mut write = io(id, Op::Write, 4096, 8192);
        write.flags = Flags::FUA.and(Flags::PREFLUSH);
        assert_eq!(driver.write(one, &write.encode(), &data), Ok(()));
        let read = io(id, Op::Read, 4096, 8192).encode();
        assert_eq!(driver.read(one, &read, 8192).as_ref(), Ok(&data));
        let zero = io(id, Op::WriteZeroes, 4096, 4096).encode();
        assert_eq!(driver.write(one, &zero, &[]), Ok(()));
        let trim = io(id, Op::Trim, 1 << 19, 4096).encode();
        assert_eq!(driver.write(one, &trim, &[]), Ok(()));
        let flush = io(id, Op::Flush, 0, 0).encode();
        assert_eq!(driver.write(one, &flush, &[]), Ok(()));
        let file = std::fs::read(&path).expect("the file");
        assert!(file[4096..8192] == [0; 4096] && file[8192..12288] == data[4096..]);
        let extents = io(id, Op::Extents, 0, 1 << 20).encode();
        let records = driver.read(one, &extents, 3 * 16).expect("extents");
        assert_eq!(records[..8], 8192u64.to_le_bytes(), "a hole first");
        assert_eq!((records[8], records[EXTENT_LEN + 8]), (3, 0));
        let open = &shared.snapshot().volumes[0].openers[0];
        let counters = open.counters;
        assert_eq!((open.session.as_str(), open.access), ("one", RW));
        assert_eq!((counters.writes, counters.written_bytes), (1, 8192));
        assert_eq!((counters.reads, counters.read_bytes), (1, 8192));
        assert_eq!(
            (counters.flushes, counters.trims, counters.errors),
            (1, 2, 0)
        );
    }
}

#[test]
fn a_request_that_makes_no_sense_is_refused_and_changes_nothing() {
    let folder = Folder::new("nonsense");
    let path = folder.file("disk", 1 << 20);
    let mut driver = Driver::of(folder.config());
    let one = driver.session("one");
    let id = driver.open(one, "disk", RW).expect("opened").device_id;
    let invalid = u16::try_from(libc::EINVAL).expect("small");
    let cases = [
        (
            "outside",
            io(id, Op::Write, 1 << 20, 512),
            Direction::Write,
            512,
        ),
        (
            "over the end",
            io(id, Op::Write, (1 << 20) - 512, 1024),
            Direction::Write,
            1024,
        ),
        ("no length", io(id, Op::Write, 0, 0), Direction::Write, 0),
        (
            "not in blocks",
            io(id, Op::Write, 0, 100),
            Direction::Write,
            100,
        ),
        (
            "more than there is",
            io(id, Op::Write, 0, 4096),
            Direction::Write,
            512,
        ),
        (
            "less than there is",
            io(id, Op::Write, 0, 512),
            Direction::Write,
            4096,
        ),
        (
            "the wrong way",
            io(id, Op::Write, 0, 512),
            Direction::Read,
            512,
        ),
        (
            "the wrong way",
            io(id, Op::Read, 0, 512),
            Direction::Write,
            512,
        ),
        (
            "over the chunk",
            io(id, Op::Write, 0, 1 << 18),
            Direction::Write,
            1 << 18,
        ),
        (
            "data beside a trim",
            io(id, Op::Trim, 0, 512),
            Direction::Write,
            512,
        ),
        ("no room", io(id, Op::Extents, 0, 512), Direction::Read, 15),
    ];
    for (what, io, direction, len) in cases {
        let permit = driver.begin(one, direction, &io.encode(), len);
        assert_eq!(driver.end(permit), invalid, "{what}");
    }
    let far = IoMsg {
        sector: u64::MAX,
        ..io(id, Op::Read, 0, 512)
    };
    assert_eq!(driver.read(one, &far.encode(), 512), Err(libc::EINVAL));
    let info = SessInfo {
        version: VERSION,
        caps: CAPS,
    };
    assert_eq!(
        driver.read(one, &info.encode(), 35),
        Err(libc::EINVAL),
        "no room for the answer"
    );
    assert_eq!(driver.read(one, b"", 512), Err(libc::EINVAL));
    assert!(
        std::fs::read(&path)
            .expect("the file")
            .iter()
            .all(|byte| *byte == 0)
    );
    // A client that has not said what it can, has nothing beyond mainline.
    let two = driver.bare_session("two");
    let plain = driver.open(two, "disk", RO).expect("opened");
    assert_eq!(plain.flags, None);
    let extents = io(plain.device_id, Op::Extents, 0, 512).encode();
    assert_eq!(driver.read(two, &extents, 512), Err(libc::EINVAL));
    let mut fast = io(id, Op::WriteZeroes, 0, 512);
    fast.flags = Flags::FAST;
    assert_eq!(driver.write(one, &fast.encode(), &[]), Ok(()));
}

#[test]
fn whatever_bytes_a_client_sends_each_job_has_one_end() {
    let folder = Folder::new("hostile");
    folder.file("disk", 1 << 20);
    let mut driver = Driver::of(ServerConfig {
        test_volumes: true,
        ..folder.config()
    });
    let one = driver.session("one");
    let disk = driver.open(one, "disk", RW).expect("opened").device_id;
    let memory = driver.open(one, "mem:1M", RW).expect("opened").device_id;
    let ids = prop_oneof![Just(disk), Just(memory), any::<u32>()];
    let numbers = prop_oneof![0..4096u64, any::<u64>()];
    let lens = prop_oneof![(0..300u32).prop_map(|n| n * 512), any::<u32>()];
    let request = (ids, numbers, any::<u16>(), lens.clone()).prop_map(|(id, sector, rw, len)| {
        let mut bytes = io(id, Op::Read, 0, len).encode().to_vec();
        bytes[8..16].copy_from_slice(&sector.to_le_bytes());
        // Operations that there are, mostly, and all flags.
        bytes[16..18].copy_from_slice(&(rw & 0xff07).to_le_bytes());
        bytes
    });
    let message = prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..300),
        1 => (0..7u8, prop::collection::vec(any::<u8>(), 300)).prop_map(|(kind, mut bytes)| {
            (bytes[0], bytes[1]) = (kind, 0);
            bytes
        }),
        5 => request,
    ];
    let job = (message, any::<bool>(), lens);
    let mut runner = TestRunner::new(Config::with_cases(200));
    let driver = std::cell::RefCell::new(driver);
    let run = runner.run(&prop::collection::vec(job, 1..30), |jobs| {
        let mut driver = driver.borrow_mut();
        let begun: Vec<u16> = jobs
            .iter()
            .map(|(usr, reads, len)| {
                let direction = if *reads {
                    Direction::Read
                } else {
                    Direction::Write
                };
                driver.begin(one, direction, usr, *len)
            })
            .collect();
        for permit in begun {
            driver.end(permit);
        }
        driver.look();
        assert!(
            driver.finished.is_empty(),
            "a second end: {:?}",
            driver.finished
        );
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

// ---- sizes ------------------------------------------------------------------

#[test]
fn a_new_size_is_told_to_who_has_the_volume_open() {
    let folder = Folder::new("resize");
    let path = folder.file("disk", 1 << 20);
    folder.file("other", 1 << 20);
    let shared = Shared::new(folder.config()).expect("a server");
    let mut driver = Driver::new(&shared);
    let (one, plain) = (driver.session("one"), driver.bare_session("plain"));
    let disk = driver.open(one, "disk", RW).expect("opened");
    driver.open(one, "other", RW).expect("opened");
    driver.open(plain, "disk", RO).expect("opened");
    assert_eq!(driver.notices(), []);
    shared.resize("disk", 2 << 20).expect("resized");
    assert!(readable(&driver), "the service is called");
    driver.look();
    assert_eq!(driver.notices(), [(one, notice(disk.device_id))]);
    assert_eq!(driver.notices(), [], "told once");
    let again = driver.open(one, "disk", RW).expect("looked at");
    assert_eq!(
        (again.device_id, again.info().size),
        (disk.device_id, 2 << 20)
    );
    let end = io(disk.device_id, Op::Write, (2 << 20) - 512, 512).encode();
    assert_eq!(driver.write(one, &end, &[1; 512]), Ok(()));
    // On purpose, smaller: what is behind the end was never promised any more.
    shared.resize("disk", 1 << 20).expect("resized");
    assert_eq!(driver.write(one, &end, &[1; 512]), Err(libc::EINVAL));
    driver.look();
    assert_eq!(driver.notices(), [(one, notice(disk.device_id))]);
    // By somebody else, found out by looking.
    let file = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("the file");
    file.set_len(1 << 19).expect("shorter");
    shared.look();
    driver.look();
    assert_eq!(driver.notices(), [(one, notice(disk.device_id))]);
    let lost = io(disk.device_id, Op::Read, 1 << 19, 512).encode();
    assert_eq!(driver.read(one, &lost, 512), Err(libc::EIO));
    assert_eq!(
        driver.write(one, &end, &[1; 512]),
        Err(libc::EINVAL),
        "never told since"
    );
    let failure = shared.snapshot().volumes[0].openers[0]
        .failure
        .clone()
        .expect("kept");
    assert_eq!(
        failure.why.as_deref(),
        Some("it has shrunk from 1048576 to 524288 bytes")
    );
    for (name, size) in [
        ("nothing", 512),
        ("disk", 100),
        ("../disk", 512),
        ("disk", 0),
    ] {
        assert!(shared.resize(name, size).is_err(), "{name} {size}");
    }
}

fn readable(driver: &Driver) -> bool {
    let fd = driver.service.fd().expect("a descriptor");
    let limit = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&limit)) == Ok(1)
}

#[test]
fn the_owner_takes_a_volume_from_a_client_that_is_gone_for_good() {
    let folder = Folder::new("force");
    folder.file("disk", 1 << 20);
    let shared = Shared::new(folder.config()).expect("a server");
    let mut driver = Driver::new(&shared);
    let (one, two) = (driver.session("one"), driver.session("two"));
    let disk = driver.open(one, "disk", RW).expect("opened");
    assert_eq!(shared.force_close("disk", "two"), 0);
    assert_eq!(shared.force_close("disk", "one"), 1);
    let write = io(disk.device_id, Op::Write, 0, 512).encode();
    assert_eq!(driver.write(one, &write, &[1; 512]), Err(libc::ENODEV));
    driver.notices();
    driver.open(two, "disk", RW).expect("free");
    assert_eq!(driver.write(one, &write, &[1; 512]), Err(libc::ENODEV));
    assert_eq!(driver.open(one, "disk", RW), Err(libc::EBUSY));
}

#[test]
fn a_root_that_is_none_and_a_namespace_that_is_no_path_are_told_at_once() {
    let folder = Folder::new("config");
    let nowhere = ServerConfig::new(Path::new("/nowhere/at/all").to_owned());
    assert!(Shared::new(nowhere).is_err());
    for namespace in ["..", "a/../b", "", "/"] {
        let namespace = Some(namespace.to_owned());
        let config = ServerConfig {
            namespace,
            ..folder.config()
        };
        assert!(Shared::new(config).is_err());
    }
}
