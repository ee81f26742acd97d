//! Client, session, server and files as they are: over TCP and on one host's memory, in one process.

use memlane_block::client::error::OpenError;
use memlane_block::client::{Access, Client, RemoteVolume, Status};
use memlane_block::server::{ServerConfig as Served, Shared};
use memlane_block::volume::{EXTENT_LEN, Io, Lease, Op, Queue, Volume as _};
use memlane_block::wire::Busy;
use memlane_sim::rng::Rng;
use memlane_transport::engine::backoff::Backoff;
use memlane_transport::engine::client::{AfterRestart, Config as ClientEngine};
use memlane_transport::engine::server::Config as ServerEngine;
use memlane_transport::io::{Address, ClientConfig, PathAddr, Server, ServerConfig, open, serve};
use memlane_transport::wire::Geometry;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// So long, and something is broken.
const FOR_EVER: Duration = Duration::from_secs(60);
const SIZE: usize = 1 << 20;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A folder of volumes, gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(volumes: &[&str]) -> Folder {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("memlane-client-real-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for volume in volumes {
            let file = std::fs::File::create(folder.join(volume)).unwrap();
            file.set_len(SIZE as u64).unwrap();
        }
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Serving {
    server: Server,
    shared: Arc<Shared>,
}

fn anywhere() -> Address {
    Address::Tcp(([127, 0, 0, 1], 0).into())
}

impl Serving {
    fn start(folder: &Folder, listen: Address, born: u64) -> Serving {
        let config = Served {
            max_io: 60 << 10,
            ..Served::new(folder.0.clone())
        };
        let shared = Shared::new(config).unwrap();
        let geometry = Geometry::new(64, 64 << 10, 4096).unwrap();
        let config = ServerConfig::new(vec![listen], ServerEngine::new(geometry, born));
        let services = Arc::clone(&shared);
        let server = serve(config, move |_| services.service()).unwrap();
        Serving { server, shared }
    }

    fn anywhere(folder: &Folder) -> Serving {
        Serving::start(folder, anywhere(), 1)
    }

    fn address(&self) -> Address {
        self.server.addresses()[0].clone()
    }

    fn client(&self, name: &str) -> Client {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut identity = [7; 16];
        identity[..4].copy_from_slice(&number.to_le_bytes());
        identity[4..8].copy_from_slice(&std::process::id().to_le_bytes());
        let engine = ClientEngine {
            after_restart: AfterRestart::Fail,
            backoff: Backoff {
                first: Duration::from_millis(10),
                most: Duration::from_millis(50),
            },
            ..ClientEngine::new(name, identity)
        };
        let paths = vec![PathAddr::to(self.address())];
        Client::new(open(ClientConfig { engine, paths }).unwrap()).unwrap()
    }
}

/// One request, to its end.
fn ask(queue: &mut dyn Queue, io: Io) -> Option<Lease> {
    queue.submit(io);
    let (mut done, began) = (Vec::new(), Instant::now());
    while queue.reap(&mut done) == 0 {
        assert!(began.elapsed() < FOR_EVER, "it does not end");
        queue.wait(Some(Duration::from_secs(1)));
    }
    let done = done.pop().expect("one");
    assert_eq!(done.result, Ok(()));
    done.lease
}

fn lease(queue: &mut dyn Queue, len: usize) -> Lease {
    let began = Instant::now();
    loop {
        if let Some(lease) = queue.lease(u32::try_from(len).unwrap()).unwrap() {
            return lease;
        }
        assert!(began.elapsed() < FOR_EVER, "no memory");
        queue.wait(Some(Duration::from_millis(10)));
    }
}

/// Random requests to a part of a volume that is this user's, compared with what it should hold.
fn use_it(volume: &RemoteVolume, user: usize, over: &AtomicBool) -> (usize, Vec<u8>) {
    let mut queue = volume.queue().unwrap();
    let (mut rng, part) = (Rng::new(user as u64), SIZE / 4);
    let (first, mut model) = (user * part, vec![0; part]);
    let mut rounds = 0;
    while !over.load(Ordering::Relaxed) || rounds < 50 {
        rounds += 1;
        let below = |rng: &mut Rng, n: usize| usize::try_from(rng.below(n as u64)).unwrap();
        let len = 512 * (1 + below(&mut rng, 64));
        let at = 512 * below(&mut rng, (part - len) / 512);
        let (here, place) = (at..at + len, (first + at) as u64);
        let size = u32::try_from(len).unwrap();
        match rng.below(8) {
            0..=3 => {
                let bytes: Vec<u8> = (0..len / 8).flat_map(|_| rng.any().to_le_bytes()).collect();
                let lease = lease(&mut *queue, len);
                assert!(lease.fill(0, &bytes));
                ask(&mut *queue, Io::data(1, Op::Write, place, size, lease));
                model[here].copy_from_slice(&bytes);
            }
            4 => {
                ask(&mut *queue, Io::bare(1, Op::WriteZeroes, place, size));
                model[here].fill(0);
            }
            5 => drop(ask(&mut *queue, Io::bare(1, Op::Flush, 0, 0))),
            _ => {
                let lease = lease(&mut *queue, len);
                let lease = ask(&mut *queue, Io::data(1, Op::Read, place, size, lease));
                let mut bytes = vec![0; len];
                assert!(lease.unwrap().take(0, &mut bytes));
                assert!(bytes == model[here], "round {rounds}: not what was written");
            }
        }
    }
    (first, model)
}

#[test]
fn what_is_written_is_in_the_files_though_the_server_restarts_again_and_again() {
    restarted_again_and_again(anywhere());
}

#[test]
fn likewise_on_one_host_where_the_memory_is_the_servers() {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("memlane-client-real-{}-{number}", std::process::id());
    restarted_again_and_again(Address::Local(name));
}

fn restarted_again_and_again(listen: Address) {
    let folder = Folder::new(&["a", "b"]);
    let mut serving = Serving::start(&folder, listen, 1);
    let client = serving.client("writer");
    let volumes = ["a", "b"].map(|name| client.open(name, Access::ReadWrite).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let users: Vec<_> = (0..4)
            .map(|user| {
                let (volume, over) = (&volumes[user % 2], &over);
                (user, scope.spawn(move || use_it(volume, user, over)))
            })
            .collect();
        for born in 2..8 {
            std::thread::sleep(Duration::from_millis(60));
            let address = serving.address();
            drop(serving);
            serving = Serving::start(&folder, address, born);
        }
        std::thread::sleep(Duration::from_millis(60));
        over.store(true, Ordering::Relaxed);
        for (user, thread) in users {
            let (first, model) = thread.join().unwrap();
            let file = std::fs::read(folder.0.join(["a", "b"][user % 2])).unwrap();
            assert!(file[first..first + model.len()] == model, "user {user}");
        }
    });
    for volume in &volumes {
        let stats = volume.stats();
        assert_eq!((stats.errors, volume.losses()), (0, 0), "same boot");
    }
    let waits: u64 = volumes.iter().map(|volume| volume.stats().waits).sum();
    assert!(waits > 0, "nobody noticed anything");
}

#[test]
fn what_cannot_be_opened_is_told_by_its_reason() {
    let folder = Folder::new(&["disk"]);
    std::fs::create_dir(folder.0.join("folder")).unwrap();
    let serving = Serving::anywhere(&folder);
    let (one, two) = (serving.client("one"), serving.client("two"));
    let first = one.open("disk", Access::ReadWrite).unwrap();
    let reason = |name: &str, access| two.open(name, access).map(|_| ()).unwrap_err();
    let held = OpenError::Held(Busy::new("one", None));
    assert_eq!(reason("disk", Access::ReadWrite), held);
    assert_eq!(reason("none", Access::ReadOnly), OpenError::NotFound);
    assert_eq!(reason("folder", Access::ReadOnly), OpenError::NotAVolume);
    assert_eq!(
        reason("a/../disk", Access::ReadOnly),
        OpenError::RefusedName
    );
    assert_eq!(
        reason("mem:4096", Access::ReadOnly),
        OpenError::NotPermitted
    );
    let reader = two.open("disk", Access::ReadOnly).unwrap();
    assert!(reader.info().read_only && !first.info().read_only);
    // The writer's place is free as soon as the writer is gone.
    drop((first, reader));
    let began = Instant::now();
    while let Err(error) = two.open("disk", Access::ReadWrite) {
        assert_eq!(error, held);
        assert!(began.elapsed() < FOR_EVER);
    }
}

#[test]
fn another_size_is_told_and_holes_are_seen() {
    let folder = Folder::new(&["disk"]);
    let serving = Serving::anywhere(&folder);
    let client = serving.client("one");
    let volume = client.open("disk", Access::ReadWrite).unwrap();
    let info = volume.info();
    assert_eq!((info.size, info.max_io), (SIZE as u64, 60 << 10));
    assert!(info.extents && info.zeroes && info.trim && info.cached);
    serving.shared.resize("disk", 2 * SIZE as u64).unwrap();
    let began = Instant::now();
    while volume.info().size == SIZE as u64 {
        assert!(began.elapsed() < FOR_EVER, "nobody says so");
        std::thread::yield_now();
    }
    assert_eq!(volume.info().size, 2 * SIZE as u64);
    let mut queue = volume.queue().unwrap();
    let data = lease(&mut *queue, 4096);
    assert!(data.fill(0, &[1; 4096]));
    ask(&mut *queue, Io::data(1, Op::Write, SIZE as u64, 4096, data));
    let room = lease(&mut *queue, EXTENT_LEN * 8);
    let len = u32::try_from(2 * SIZE).unwrap();
    let room = ask(&mut *queue, Io::data(1, Op::Extents, 0, len, room)).unwrap();
    let mut records = [0; EXTENT_LEN * 8];
    assert!(room.take(0, &mut records));
    let first = u64::from_le_bytes(records[..8].try_into().unwrap());
    assert_eq!(
        (first, records[8]),
        (SIZE as u64, 3),
        "a hole up to what was written"
    );
    assert_eq!(volume.status(), Status::Open);
}
