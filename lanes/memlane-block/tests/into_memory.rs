//! Reads into memory of the user's own (a device's region): they are there and nowhere else before, which is counted.

use memlane_block::client::{self, Access, Client, RemoteVolume};
use memlane_block::server::{Lend, ServerConfig as Served, Shared};
use memlane_block::store::StoreKind;
use memlane_block::volume::local::{LocalVolume, Options};
use memlane_block::volume::{Detour, Done, Errno, Io, Lease, Memory, Op, Queue, Volume};
use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_sim::rng::Rng;
use memlane_transport::engine::client::{AfterRestart, Config as ClientEngine};
use memlane_transport::engine::server::Config as ServerEngine;
use memlane_transport::io::{Address, ClientConfig, PathAddr, Server, ServerConfig, open, serve};
use memlane_transport::wire::Geometry;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// So long, and something is broken.
const FOR_EVER: Duration = Duration::from_secs(60);
const SIZE: usize = 4 << 20;
const PART: u32 = 60 << 10;
const EINVAL: Errno = Errno(22);
const ENOSPC: Errno = Errno(28);

static COUNT: AtomicU32 = AtomicU32::new(0);

/// What a device's region is to the block lane.
#[derive(Debug)]
struct Target(Region);

impl Memory for Target {
    fn bytes(&self) -> SharedBytes {
        self.0.bytes()
    }
}

fn target(len: usize) -> Arc<dyn Memory> {
    Arc::new(Target(Region::create(c"target", len, false).unwrap()))
}

fn bytes_of(memory: &SharedBytes, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: `bytes` is writable for its length.
    assert!(unsafe { memory.copy_out(at, bytes.as_mut_ptr(), len) });
    bytes
}

/// A folder with a volume of random bytes, gone when dropped.
struct Folder(PathBuf, Vec<u8>);

impl Folder {
    fn new() -> Folder {
        Folder::below(std::env::temp_dir())
    }

    /// In a tmpfs, so that its volume can be lent.
    fn in_memory() -> Folder {
        Folder::below("/dev/shm".into())
    }

    fn below(dir: PathBuf) -> Folder {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("memlane-into-memory-{}-{number}", std::process::id());
        let folder = dir.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let mut rng = Rng::new(7);
        let bytes: Vec<u8> = (0..SIZE / 8)
            .flat_map(|_| rng.any().to_le_bytes())
            .collect();
        std::fs::write(folder.join("disk"), &bytes).unwrap();
        Folder(folder, bytes)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn local() -> Address {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("local:into-memory-{}-{number}", std::process::id());
    name.parse::<PathAddr>().unwrap().dst
}

fn tcp() -> Address {
    Address::Tcp(([127, 0, 0, 1], 0).into())
}

/// A server, and a client of it that has the volume open.
struct Remote {
    volume: Arc<RemoteVolume>,
    _client: Client,
    _server: Server,
}

fn remote(folder: &Folder, listen: Address) -> Remote {
    remote_that(Lend::Never, folder, listen)
}

/// The same, of a server that lends, or does not.
fn remote_that(lend: Lend, folder: &Folder, listen: Address) -> Remote {
    let config = Served {
        max_io: PART,
        lend,
        ..Served::new(folder.0.clone())
    };
    let shared = Shared::new(config).unwrap();
    let geometry = Geometry::new(64, 64 << 10, 4096).unwrap();
    let config = ServerConfig::new(vec![listen], ServerEngine::new(geometry, 1));
    let server = serve(config, move |_| shared.service()).unwrap();
    let engine = ClientEngine {
        after_restart: AfterRestart::Fail,
        ..ClientEngine::new("into-memory", [3; 16])
    };
    let paths = vec![PathAddr::to(server.addresses()[0].clone())];
    let options = client::Options {
        borrow: lend != Lend::Never,
        ..client::Options::default()
    };
    let session = open(ClientConfig { engine, paths }).unwrap();
    let client = Client::with(session, options).unwrap();
    Remote {
        volume: client.open("disk", Access::ReadWrite).unwrap(),
        _client: client,
        _server: server,
    }
}

/// All of these, each with its lease.
fn ask(queue: &mut dyn Queue, requests: Vec<Io>) -> Vec<Done> {
    let (count, began) = (requests.len(), Instant::now());
    for request in requests {
        queue.submit(request);
    }
    queue.push();
    let mut done = Vec::new();
    while done.len() < count {
        assert!(began.elapsed() < FOR_EVER, "they do not end");
        queue.wait(Some(Duration::from_secs(1)));
        queue.reap(&mut done);
    }
    assert!(done.iter().all(|done| done.result == Ok(())), "{done:?}");
    done
}

/// Reads the volume from its beginning into `memory`, so that bytes lie there in the other order of their parts; bytes
/// that were copied on the way.
fn read_all(queue: &mut dyn Queue, memory: &Arc<dyn Memory>, parts: usize) -> u64 {
    let part = PART as usize;
    let mut copied = 0;
    for some in (0..parts).collect::<Vec<_>>().chunks(8) {
        let request = |n: &usize| {
            let at = (parts - 1 - n) * part;
            let lease = queue.lease_in(memory, (at, PART)).unwrap();
            Io::data(0, Op::Read, (n * part) as u64, PART, lease.expect("few"))
        };
        let requests = some.iter().map(request).collect();
        for done in ask(queue, requests) {
            copied += u64::from(done.lease.as_ref().map_or(0, Lease::copied));
        }
    }
    copied
}

fn is_there(folder: &Folder, memory: &Arc<dyn Memory>, parts: usize) {
    let part = PART as usize;
    for n in 0..parts {
        let found = bytes_of(&memory.bytes(), (parts - 1 - n) * part, part);
        assert!(found == folder.1[n * part..][..part], "part {n}");
    }
}

const PARTS: usize = SIZE / PART as usize;

#[test]
fn over_tcp_bytes_come_from_the_socket_straight_into_the_user_s_memory() {
    let folder = Folder::new();
    let remote = remote(&folder, tcp());
    let mut queue = remote.volume.queue().unwrap();
    let memory = target(SIZE);
    assert_eq!(read_all(&mut *queue, &memory, PARTS), 0, "through a buffer");
    is_there(&folder, &memory, PARTS);
    assert!(queue.chunk_file().unwrap().is_none());
}

#[test]
fn within_a_host_they_are_copied_once_out_of_the_server_s_chunks() {
    let folder = Folder::new();
    let remote = remote(&folder, local());
    let mut queue = remote.volume.queue().unwrap();
    let memory = target(SIZE);
    let copied = read_all(&mut *queue, &memory, PARTS);
    assert_eq!(copied, (PARTS * PART as usize) as u64);
    is_there(&folder, &memory, PARTS);
}

#[test]
fn within_a_host_the_chunks_can_be_the_user_s_memory_and_nothing_is_copied() {
    let folder = Folder::new();
    let remote = remote(&folder, local());
    let mut queue = remote.volume.queue().unwrap();
    let part = PART as usize;
    let mut leases = Vec::new();
    // Whoever gives this file to a device has the device see what the server reads.
    let file = queue.chunk_file().unwrap().expect("it is on this host");
    let file_of = file.file;
    let region = Region::attach(file.fd, file.len).unwrap();
    for n in 0..4 {
        let lease = queue.lease(PART).unwrap().expect("there are many");
        let at = (n * part) as u64;
        let mut done = ask(&mut *queue, vec![Io::data(0, Op::Read, at, PART, lease)]);
        let lease = done
            .pop()
            .and_then(|done| done.lease)
            .expect("it comes back");
        assert_eq!(lease.copied(), 0);
        let place = lease.in_chunks().expect("it lies there");
        assert_eq!(place.file, file_of);
        leases.push((n, place.offset, lease));
    }
    for (n, offset, _lease) in &leases {
        let found = bytes_of(&region.bytes(), *offset, part);
        assert!(found == folder.1[n * part..][..part], "part {n}");
    }
}

#[test]
fn a_file_of_this_machine_is_read_straight_into_the_user_s_memory() {
    let folder = Folder::new();
    for store in [StoreKind::Auto, StoreKind::Threads] {
        let options = Options {
            read_only: true,
            store,
            ..Options::default()
        };
        let volume = LocalVolume::open(&folder.0.join("disk"), options).unwrap();
        let mut queue = volume.queue().unwrap();
        let memory = target(SIZE);
        assert_eq!(read_all(&mut *queue, &memory, PARTS), 0);
        is_there(&folder, &memory, PARTS);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_costs_no_lease() {
    let folder = Folder::new();
    let remote = remote(&folder, tcp());
    let volume = LocalVolume::open(&folder.0.join("disk"), Options::default()).unwrap();
    for mut queue in [remote.volume.queue().unwrap(), volume.queue().unwrap()] {
        let memory = target(SIZE);
        for place in [(SIZE - 1, 512), (usize::MAX, 1), (0, 1 << 20)] {
            for _ in 0..200 {
                let refused = queue.lease_in(&memory, place).err();
                assert_eq!(refused, Some(EINVAL), "{place:?}");
            }
        }
        assert!(
            queue
                .lease_in(&memory, (SIZE - 512, 512))
                .unwrap()
                .is_some()
        );
    }
}

/// As a GPU's: a dma-buf, for which a memfd stands here, and nothing that is mapped.
#[derive(Debug)]
struct BeyondCpu(Region);

impl Memory for BeyondCpu {
    fn bytes(&self) -> SharedBytes {
        // SAFETY: no bytes.
        unsafe { SharedBytes::new(std::ptr::NonNull::dangling(), 0) }
    }

    fn dma_buf(&self) -> Option<(BorrowedFd<'_>, usize)> {
        // SAFETY: open as long as the region is.
        let fd = unsafe { BorrowedFd::borrow_raw(self.0.fd()?) };
        Some((fd, self.0.len()))
    }
}

#[test]
fn without_a_device_what_is_for_memory_beyond_the_cpu_comes_to_the_lease_which_says_why() {
    let folder = Folder::in_memory();
    let memory = Region::create(c"test", SIZE, false).unwrap();
    let memory: Arc<dyn Memory> = Arc::new(BeyondCpu(memory));
    for (listen, lend) in [
        (tcp(), Lend::Never),
        (local(), Lend::Never),
        (local(), Lend::ToTracers),
        (local(), Lend::ToUser),
    ] {
        let remote = remote_that(lend, &folder, listen);
        assert_eq!(remote.volume.is_lent(), lend != Lend::Never, "{lend:?}");
        let mut queue = remote.volume.queue().unwrap();
        let lease = queue.lease_in(&memory, (SIZE - 4096, 4096)).unwrap();
        let read = Io::data(0, Op::Read, 8192, 4096, lease.expect("there are many"));
        let mut done = ask(&mut *queue, vec![read]);
        let lease = done.pop().and_then(|done| done.lease).expect("a lease");
        assert_eq!(lease.detour(), Some(Detour::NoDevice));
        assert!(bytes_of(&lease.bytes(), 0, 4096) == folder.1[8192..][..4096]);

        let write = Io::data(0, Op::Write, 0, 4096, lease);
        queue.submit(write);
        let mut done = Vec::new();
        while queue.reap(&mut done) == 0 {
            queue.wait(None);
        }
        assert_eq!(done[0].result, Err(Errno(libc::EOPNOTSUPP)));
        for place in [(SIZE - 1, 512), (usize::MAX, 1)] {
            assert_eq!(queue.lease_in(&memory, place).err(), Some(EINVAL));
        }
        // Nor is a mapped lease thought to have made a detour.
        let lease = queue.lease_in(&target(SIZE), (0, 512)).unwrap();
        let read = Io::data(0, Op::Read, 0, 512, lease.expect("there are many"));
        let done = ask(&mut *queue, vec![read]);
        assert_eq!(done[0].lease.as_ref().expect("a lease").detour(), None);
    }
    let volume = LocalVolume::open(&folder.0.join("disk"), Options::default()).unwrap();
    let refused = volume.queue().unwrap().lease_in(&memory, (0, 512)).err();
    assert_eq!(refused, Some(Errno(libc::EOPNOTSUPP)));
}

#[test]
fn a_session_keeps_the_memories_that_it_knows_and_no_more_than_64() {
    let folder = Folder::new();
    let remote = remote(&folder, tcp());
    let mut queue = remote.volume.queue().unwrap();
    let memories: Vec<_> = (0..65).map(|_| target(4096)).collect();
    for memory in &memories[..64] {
        let lease = queue.lease_in(memory, (0, 512)).unwrap();
        drop(lease.expect("one at a time"));
        assert!(Arc::strong_count(memory) > 1, "it is kept");
    }
    let refused = queue.lease_in(&memories[64], (0, 512)).err();
    assert_eq!(refused, Some(ENOSPC));
    assert!(queue.lease_in(&memories[3], (0, 512)).unwrap().is_some());
}
