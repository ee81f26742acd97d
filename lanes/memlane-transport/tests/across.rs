//! Sessions in memory that the machines of both ends have. A memory file stands for it, and each end maps it under the
//! name of a machine of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod support;

use memlane_transport::engine::path::PathState;
use memlane_transport::error::{ENOSPC, EOPNOTSUPP, PathError};
use memlane_transport::io::{
    Address, ClientConfig, ClientSession, Holder, Means, PathAddr, Server, ServerConfig,
    SharedMemory, SharedMemoryError, open_with, serve,
};
use memlane_transport::port::{News, Session as _};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::proxy::Proxy;
use support::{
    CHUNK, Disk, DiskService, Manners, Rng, User, client_engine, each_once, hear, server_engine,
    start_with, tcp, until,
};

/// Where extents begin: see docs/formats/ivshmem-volumes.md.
const MEMORY_AT: usize = 0x21000;
/// Where their entries do, and their length.
const EXTENTS_AT: u64 = 0x1000;
const ENTRY: u64 = 128;
/// Bytes of a session's chunks, and of a connection's queues.
const CHUNKS: usize = 32 * CHUNK as usize;
const QUEUES: usize = 8192;
/// Connections of a path that have queues.
const CONNECTIONS: usize = 1;

/// A claim that says that the client is gone for good.
const DEPARTED: u64 = 1;

const SERVER: u64 = 1;
const GUEST: u64 = 2;
const OTHER_GUEST: u64 = 3;

/// Memory that several machines have.
struct Memory(File);

impl Memory {
    fn of(len: usize) -> Memory {
        let file = memfd_create("memlane-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len as u64).unwrap();
        Memory(file.into())
    }

    /// With room for `sessions` sessions, each with one path.
    fn for_sessions(sessions: usize) -> Memory {
        Memory::of(MEMORY_AT + sessions * (CHUNKS + CONNECTIONS * QUEUES))
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    fn mapped(&self, machine: u64) -> Result<SharedMemory, SharedMemoryError> {
        mapped(&self.path(), Holder { machine, boot: 1 })
    }

    fn at(&self, machine: u64) -> Arc<SharedMemory> {
        Arc::new(self.mapped(machine).unwrap())
    }

    /// A word of each entry that is in use: 3 is the claim, 4 the machine.
    fn words(&self, which: u64) -> Vec<u64> {
        let word = |entry: u64, word: u64| {
            let mut bytes = [0; 8];
            let at = EXTENTS_AT + entry * ENTRY + word * 8;
            self.0.read_exact_at(&mut bytes, at).unwrap();
            u64::from_le_bytes(bytes)
        };
        let used = (0..1024).filter(|entry| word(*entry, 0) != 0);
        used.map(|entry| word(entry, which)).collect()
    }

    fn extents(&self) -> usize {
        self.words(0).len()
    }
}

fn mapped(path: &str, holder: Holder) -> Result<SharedMemory, SharedMemoryError> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    SharedMemory::map(file.into(), holder)
}

fn config(memory: Option<Arc<SharedMemory>>) -> ServerConfig {
    let born = memlane_sys::proc::random_u64().unwrap();
    let mut config = ServerConfig::new(vec![tcp()], server_engine(born));
    config.shares = memory;
    config
}

fn start(disk: &Arc<Disk>, memory: &Memory) -> Server {
    let config = config(Some(memory.at(SERVER)));
    start_with(disk, config, Manners::default())
}

fn socket(server: &Server) -> SocketAddr {
    match server.addresses()[0] {
        Address::Tcp(socket) => socket,
        ref other => panic!("{other} is not TCP"),
    }
}

fn by_memory(server: &Server) -> Address {
    Address::Ivshmem(socket(server))
}

fn connect(paths: &[Address], shares: Option<Arc<SharedMemory>>) -> Arc<ClientSession> {
    let mut engine = client_engine("test");
    engine.connections = CONNECTIONS as u16;
    let paths = paths.iter().cloned().map(PathAddr::to).collect();
    let means = Means {
        shares,
        ..Means::default()
    };
    open_with(ClientConfig { engine, paths }, means).unwrap()
}

fn why(session: &ClientSession) -> PathError {
    let mut why = None;
    until("a reason", || {
        why = session.paths()[0].why;
        why.is_some()
    });
    why.unwrap()
}

fn is_up(session: &ClientSession, path: usize) -> bool {
    session.paths()[path].state == PathState::Connected
}

/// Requests that the path has had.
fn count(session: &ClientSession, path: usize) -> u64 {
    let stats = &session.paths()[path].stats;
    stats.reads + stats.writes
}

#[test]
fn data_goes_by_memory_and_the_network_carries_bells_only() {
    let (disk, memory) = (Arc::<Disk>::default(), Memory::for_sessions(1));
    let server = start(&disk, &memory);
    let proxy = Proxy::new(socket(&server), 1);
    let forwarded = || proxy.switches.forwarded.load(Ordering::SeqCst);
    let session = connect(&[Address::Ivshmem(proxy.address)], Some(memory.at(GUEST)));
    hear(&session, |news| matches!(news, News::PathUp(_)));
    let before = forwarded();
    let mut user = User::new(&*session, 1);
    user.work(300, 1);
    user.work(3000, 16);
    each_once(&disk, &user.ids);
    // 3,300 requests of about 20 KiB; a bell has a byte.
    let by_network = forwarded() - before;
    assert!(by_network < 100_000, "{by_network} bytes went by TCP");
    assert_eq!(
        server.sessions()[0].paths[0].peer,
        "ivshmem+tcp:127.0.0.1",
        "people see by what it goes"
    );
}

#[test]
fn several_threads_and_several_machines_share_one_region() {
    let (disk, memory) = (Arc::<Disk>::default(), Memory::for_sessions(2));
    let server = start(&disk, &memory);
    std::thread::scope(|scope| {
        for machine in [GUEST, OTHER_GUEST] {
            let session = connect(&[by_memory(&server)], Some(memory.at(machine)));
            for seed in 1..=3 {
                let (session, disk) = (Arc::clone(&session), &disk);
                scope.spawn(move || {
                    let mut user = User::new(&*session, machine * 10 + seed);
                    user.work(400, 1 + seed as usize);
                    each_once(disk, &user.ids);
                });
            }
        }
    });
}

#[test]
fn an_extent_is_free_when_both_ends_have_let_go_of_it_and_not_before() {
    let (disk, memory) = (Arc::<Disk>::default(), Memory::for_sessions(1));
    let server = start(&disk, &memory);
    for round in 0..3 {
        let session = connect(&[by_memory(&server)], Some(memory.at(GUEST)));
        hear(&session, |news| matches!(news, News::PathUp(_)));
        assert_eq!(memory.extents(), 1 + CONNECTIONS, "round {round}");
        let mut user = User::new(&*session, 1 + round);
        let lease = user.lease(4096);
        session.close();
        until("the queues are free", || memory.extents() == 1);
        let other = connect(&[by_memory(&server)], Some(memory.at(OTHER_GUEST)));
        assert_eq!(why(&other), PathError::Refused(ENOSPC));
        // The lease's owner may write there until now.
        drop((lease, user, session));
        hear(&other, |news| matches!(news, News::PathUp(_)));
        User::new(&*other, 100 + round).work(100, 4);
        drop(other);
        until("nothing is left", || {
            memory.extents() == 0 && server.sessions().is_empty()
        });
    }
}

#[test]
fn a_path_says_what_it_lacks() {
    let disk = Arc::<Disk>::default();
    let memory = Memory::for_sessions(1);
    let without = start_with(&disk, config(None), Manners::default());
    let session = connect(&[by_memory(&without)], Some(memory.at(GUEST)));
    assert_eq!(why(&session), PathError::Refused(EOPNOTSUPP));

    let server = start(&disk, &memory);
    let session = connect(&[by_memory(&server)], None);
    assert_eq!(why(&session), PathError::NoSharedMemory);
    session.close();

    for other in [Memory::for_sessions(1), Memory::for_sessions(2)] {
        let session = connect(&[by_memory(&server)], Some(other.at(GUEST)));
        assert_eq!(why(&session), PathError::OtherMemory);
        assert!(why(&session).wants_a_person());
        session.close();
        until("what it was offered is free", || memory.extents() == 0);
    }

    let first = connect(&[by_memory(&server)], Some(memory.at(GUEST)));
    hear(&first, |news| matches!(news, News::PathUp(_)));
    let second = connect(&[by_memory(&server)], Some(memory.at(OTHER_GUEST)));
    assert_eq!(why(&second), PathError::Refused(ENOSPC));
    let mut user = User::new(&*first, 1);
    user.work(100, 4);
}

#[test]
fn a_server_takes_no_memory_that_it_could_not_use() {
    let memory = Memory::for_sessions(1);
    let first = start(&Arc::default(), &memory);
    let refused = |memory: &Memory| {
        let config = config(Some(memory.at(SERVER)));
        let disk = Arc::<Disk>::default();
        let server = serve(config, move |_| {
            Ok(DiskService::new(Arc::clone(&disk), Manners::default()))
        });
        server.unwrap_err().to_string()
    };
    assert!(refused(&memory).contains("another server uses it"));
    drop(first);
    drop(start(&Arc::default(), &memory));

    let small = Memory::of(MEMORY_AT + CHUNKS);
    assert!(refused(&small).contains("one session needs"));
    let foreign = Memory::for_sessions(1);
    foreign.0.write_all_at(b"somebody's data", 64).unwrap();
    assert!(refused(&foreign).contains("other contents"));
    memory.0.write_all_at(&[9], 8).unwrap();
    assert!(refused(&memory).contains("version 9"));
    let damaged = Memory::for_sessions(1);
    drop(start(&Arc::default(), &damaged));
    damaged.0.write_all_at(&[0xFF; 24], EXTENTS_AT).unwrap();
    assert!(refused(&damaged).contains("damaged"));
    assert!(matches!(
        Memory::of(4097).mapped(SERVER),
        Err(SharedMemoryError::Ragged(4097))
    ));
    assert!(matches!(
        Memory::of(4096).mapped(SERVER),
        Err(SharedMemoryError::Small { .. })
    ));
}

/// Writes random words all over the memory until told to stop.
fn scribble(memory: &Memory, seed: u64, over: &AtomicBool) {
    let len = memory.0.metadata().unwrap().len();
    let mut rng = Rng(seed);
    while !over.load(Ordering::Relaxed) {
        let at = match rng.below(4) {
            0 => rng.below(MEMORY_AT as u64 / 8) * 8,
            _ => rng.below(len / 8) * 8,
        };
        memory
            .0
            .write_all_at(&rng.next().to_le_bytes(), at)
            .unwrap();
    }
}

#[test]
fn when_the_memory_is_no_good_any_more_requests_go_on_over_tcp_and_each_is_executed_once() {
    let (disk, memory) = (Arc::<Disk>::default(), Memory::for_sessions(1));
    let server = start(&disk, &memory);
    let paths = [by_memory(&server), Address::Tcp(socket(&server))];
    let session = connect(&paths, Some(memory.at(GUEST)));
    until("both paths", || is_up(&session, 0) && is_up(&session, 1));
    let mut user = User::new(&*session, 1);
    user.work(500, 8);
    let before = [count(&session, 0), count(&session, 1)];
    assert!(before[0] > 0 && before[1] > 0, "{before:?}");
    // The queues lie behind the chunks. What they count cannot be any more; an end may overwrite that with what it counts.
    let queues = (MEMORY_AT + CHUNKS) as u64;
    let mut is_left = false;
    while !is_left {
        memory.0.write_all_at(&[0xFF; 1024], queues).unwrap();
        user.work(50, 8);
        is_left =
            std::iter::from_fn(|| session.news()).any(|news| matches!(news, News::PathDown(..)));
    }
    user.work(500, 8);
    assert!(count(&session, 1) > before[1]);
    // With memory that is good again, the path is, too.
    until("it is back", || {
        is_up(&session, 0) && session.paths()[0].stats.connected > 1
    });
    let before = count(&session, 0);
    user.work(500, 8);
    assert!(count(&session, 0) > before);
    each_once(&disk, &user.ids);
}

#[test]
fn a_scribbler_hurts_the_sessions_of_the_region_and_nothing_else() {
    let (disk, memory) = (Arc::<Disk>::default(), Memory::for_sessions(2));
    let mut config = config(Some(memory.at(SERVER)));
    config.listen.push(support::local());
    let server = start_with(&disk, config, Manners::default());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..=2 {
            let (memory, over) = (&memory, &over);
            scope.spawn(move || scribble(memory, seed, over));
        }
        // Its requests may get wrong bytes, or never end; the process may not.
        let hurt = connect(&[by_memory(&server)], Some(memory.at(GUEST)));
        let is_over = &over;
        let harmed = scope.spawn(move || {
            let mut port = hurt.port().unwrap();
            let (mut flying, mut done) = (0, Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                while flying < 8
                    && let Some(lease) = port.lease(4096).unwrap_or(None)
                {
                    port.submit(memlane_transport::port::Submission {
                        tag: 1,
                        direction: memlane_transport::engine::Direction::Write,
                        usr: support::usr(u64::MAX - 1, 1 << 40),
                        len: 4096,
                        lease: Some(lease),
                    });
                    flying += 1;
                }
                port.push();
                port.wait(Some(Duration::from_millis(20)));
                flying -= port.reap(&mut done);
                done.clear();
            }
        });
        let untouched = support::connect(&[&server.addresses()[1], &server.addresses()[0]]);
        let mut user = User::new(&*untouched, 9);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) {
            user.work(100, 8);
        }
        each_once(&disk, &user.ids);
        over.store(true, Ordering::Relaxed);
        harmed.join().unwrap();
    });
}

const REGION: &str = "MEMLANE_TEST_REGION";
const SERVER_AT: &str = "MEMLANE_TEST_SERVER";

/// Not a test: what a child of the tests below does until it is killed.
#[test]
#[ignore = "the child of other tests"]
fn works_in_a_process_of_its_own() {
    let (Ok(region), Ok(server)) = (std::env::var(REGION), std::env::var(SERVER_AT)) else {
        return;
    };
    let holder = Holder {
        machine: GUEST,
        boot: 1,
    };
    let memory = Arc::new(mapped(&region, holder).unwrap());
    let session = connect(&[Address::Ivshmem(server.parse().unwrap())], Some(memory));
    let mut user = User::new(&*session, u64::from(std::process::id()));
    user.work(10, 4);
    println!("\nready");
    loop {
        user.work(10, 4);
    }
}

fn child(memory: &Memory, server: &Server) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "works_in_a_process_of_its_own"])
        .args(["--ignored", "--nocapture"])
        .env(REGION, memory.path())
        .env(SERVER_AT, socket(server).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let ready = output
        .lines()
        .any(|line| line.is_ok_and(|line| line.ends_with("ready")));
    assert!(ready, "the client did not work");
    child
}

#[test]
fn what_a_killed_client_held_is_free_when_a_process_of_its_machine_looks_and_not_before() {
    let (disk, memory) = (Arc::<Disk>::default(), Memory::for_sessions(1));
    let server = start(&disk, &memory);
    for round in 0..3 {
        let mut client = child(&memory, &server);
        client.kill().unwrap();
        client.wait().unwrap();
        // A machine that is paused looks the same from here.
        let stranger = connect(&[by_memory(&server)], Some(memory.at(OTHER_GUEST)));
        assert_eq!(why(&stranger), PathError::Refused(ENOSPC));
        std::thread::sleep(Duration::from_millis(500));
        assert!(memory.words(3).iter().any(|claim| *claim > DEPARTED));
        drop(stranger);
        let neighbour = connect(&[by_memory(&server)], Some(memory.at(GUEST)));
        hear(&neighbour, |news| matches!(news, News::PathUp(_)));
        User::new(&*neighbour, 1 + round).work(100, 4);
    }
}

#[test]
fn a_machine_that_was_booted_again_holds_nothing_of_its_former_boot() {
    let (disk, memory) = (Arc::<Disk>::default(), Memory::for_sessions(1));
    let server = start(&disk, &memory);
    let before = connect(&[by_memory(&server)], Some(memory.at(GUEST)));
    hear(&before, |news| matches!(news, News::PathUp(_)));
    let held: Vec<u64> = memory.words(3);
    // Its power is lost: nobody is left to change a word. Here, it is only not asked.
    let holder = Holder {
        machine: GUEST,
        boot: 2,
    };
    let again = Arc::new(mapped(&memory.path(), holder).unwrap());
    let after = connect(&[by_memory(&server)], Some(again));
    until("the old claims are gone", || {
        memory.words(3).iter().all(|claim| !held.contains(claim))
    });
    before.close();
    hear(&after, |news| matches!(news, News::PathUp(_)));
    User::new(&*after, 1).work(100, 4);
}

#[test]
fn a_server_that_was_killed_leaves_its_successor_what_clients_still_hold() {
    let (disk, memory) = (Arc::<Disk>::default(), Memory::for_sessions(2));
    let first = start(&disk, &memory);
    let session = connect(&[by_memory(&first)], Some(memory.at(GUEST)));
    hear(&session, |news| matches!(news, News::PathUp(_)));
    let mut user = User::new(&*session, 1);
    let lease = user.lease(4096);
    let (_, chunks) = (memory.words(1), memory.words(1)[0]);
    // A server that ends in order leaves the extents of its clients just as one that is killed does.
    drop(first);
    let second = start(&disk, &memory);
    let other = connect(&[by_memory(&second)], Some(memory.at(OTHER_GUEST)));
    hear(&other, |news| matches!(news, News::PathUp(_)));
    let places = memory.words(1);
    assert_eq!(
        places.iter().filter(|at| **at == chunks).count(),
        1,
        "nobody else lies where the lease does: {places:x?}"
    );
    let mut neighbour = User::new(&*other, 2);
    assert!(lease.fill(0, &[0xAA; 4096]));
    neighbour.work(300, 8);
    each_once(&disk, &neighbour.ids);
}
