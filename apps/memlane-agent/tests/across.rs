//! Two agents that share a region, as those of two machines do, and their clients: who meets whom, what passes between them,
//! and what is left when one of them goes.
//!
//! Needs CAP_BPF and CAP_PERFMON; without them, the tests say so and stop.

use memlane_agent::across::layout::{Division, RINGS_AT, Ring};
use memlane_agent::across::participants::Identity;
use memlane_agent::across::region::Region;
use memlane_agent::across::relay::Tally;
use memlane_agent::kernel::{LookError, Looker};
use memlane_agent::server::Agent;
use memlane_socket::protocol::agent::{
    Across, Answer, LONGEST, Outcome, Parting, Question, Refusal, Role, SOCKET,
};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use std::io::IoSliceMut;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const REGION_LEN: u64 = 64 << 20;

/// A folder in memory, for a region and the domains of two machines; gone with it.
struct Host(PathBuf);

impl Host {
    /// `None`: this machine allows no agent.
    fn new(name: &str) -> Option<Host> {
        match Looker::open() {
            Ok(_) => {}
            Err(e @ (LookError::NotAllowed(_) | LookError::NoTypes(_))) => {
                eprintln!("SKIPPED: {e}");
                return None;
            }
            Err(e) => panic!("{e}"),
        }
        let folder = Path::new("/dev/shm");
        let folder = folder.join(format!("memlane-across-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let file = std::fs::File::create_new(folder.join("region")).unwrap();
        file.set_len(REGION_LEN).unwrap();
        Some(Host(folder))
    }

    /// The agent of one of the machines, which was booted for the `boot`th time.
    fn machine(&self, name: &str, boot: u32) -> Machine {
        let directory = self.0.join(name);
        let mut agent = Agent::new(Looker::open().unwrap()).expect("an agent");
        agent.serve(&directory).expect("a domain");
        let region = Region::open(&self.0.join("region")).expect("a region");
        let identity = Identity::of("test", &boot.to_string(), &directory, name.to_owned());
        agent.share(&directory, region, identity).expect("a place");
        Machine::start(directory, agent)
    }

    /// The agents of two machines, which have seen each other.
    fn two_machines(&self) -> [Machine; 2] {
        let machines = ["one", "other"].map(|name| self.machine(name, 1));
        for machine in &machines {
            machine.until("it sees the other", |tally| tally.machines == 1);
        }
        machines
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An agent in a thread of its own.
struct Machine {
    directory: PathBuf,
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Machine {
    fn start(directory: PathBuf, mut agent: Agent) -> Machine {
        let stop = Arc::new(AtomicBool::new(false));
        let tally = Arc::new(Mutex::new(Tally::default()));
        let (its_stop, its_tally) = (Arc::clone(&stop), Arc::clone(&tally));
        let thread = std::thread::spawn(move || {
            while !its_stop.load(Ordering::Relaxed) {
                agent.turn(Duration::from_millis(20)).expect("a turn");
                *its_tally.lock().unwrap() = agent.tally().expect("a region");
            }
        });
        Machine {
            directory,
            tally,
            stop,
            thread: Some(thread),
        }
    }

    fn until(&self, what: &str, is_so: impl Fn(&Tally) -> bool) {
        let begin = Instant::now();
        while !is_so(&self.tally.lock().unwrap()) {
            let waited = begin.elapsed();
            assert!(waited < Duration::from_secs(10), "{what}: {:?}", self.tally);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A program that asks its machine's agent.
struct Client(OwnedFd);

/// What it was given of a program of another machine.
#[derive(Debug)]
struct Met {
    across: Across,
    channel: OwnedFd,
    region: OwnedFd,
    line: Option<OwnedFd>,
}

impl Client {
    fn of(machine: &Machine) -> Client {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let name = SocketAddrUnix::new(machine.directory.join(SOCKET)).unwrap();
        rustix::net::connect(&socket, &name).expect("the agent listens");
        let patience = Some(Duration::from_secs(4));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, patience).unwrap();
        Client(socket)
    }

    fn ask(&self, id: u64, socket: &TcpStream, role: Role) {
        let fd = socket.as_raw_fd();
        let inode = std::fs::metadata(format!("/proc/self/fd/{fd}"))
            .unwrap()
            .ino();
        self.say(
            &Question {
                id,
                fd,
                inode,
                role,
            }
            .encode(),
        );
    }

    fn part(&self, met: &Met) {
        let (peer, serial) = (met.across.peer, met.across.serial);
        self.say(&Parting { peer, serial }.encode());
    }

    fn say(&self, bytes: &[u8]) {
        rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL).unwrap();
    }

    /// The next answer, and what came with it.
    fn answer(&self) -> (Answer, Vec<OwnedFd>) {
        let mut bytes = [0u8; LONGEST];
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(&self.0, &mut into, &mut control, flags).expect("an answer");
        let mut given = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                given.extend(fds);
            }
        }
        (
            Answer::decode(&bytes[..got.bytes]).expect("an answer"),
            given,
        )
    }

    fn meets(&self) -> Met {
        let (answer, given) = self.answer();
        let Outcome::Across(across) = answer.outcome else {
            panic!("{answer:?}");
        };
        let mut given = given.into_iter();
        Met {
            across,
            channel: given.next().expect("a channel"),
            region: given.next().expect("the region"),
            line: given.next(),
        }
    }

    fn is_refused(&self) -> Refusal {
        match self.answer().0.outcome {
            Outcome::Refuse(why) => why,
            other => panic!("{other:?}"),
        }
    }
}

impl Met {
    /// Its own chunk in the region, or the other's, as the program maps it.
    fn chunk(&self, at: u64) -> &'static mut [u8] {
        let division = Division::of(usize::try_from(REGION_LEN).unwrap()).unwrap();
        assert_eq!(division.ring_size, self.across.ring_size as usize);
        let len = memlane_core::layout::chunk_len(division.ring_size);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let at_any = core::ptr::null_mut();
        // SAFETY: a fresh mapping, which stays for as long as the test runs; the tests read and write in turns.
        unsafe {
            let base = rustix::mm::mmap(at_any, len, rights, MapFlags::SHARED, &self.region, at);
            core::slice::from_raw_parts_mut(base.unwrap().cast(), len)
        }
    }

    fn own(&self) -> &'static mut [u8] {
        self.chunk(self.across.own)
    }

    fn theirs(&self) -> &'static mut [u8] {
        self.chunk(self.across.theirs)
    }

    fn say(&self, bytes: &[u8]) {
        rustix::net::send(&self.channel, bytes, SendFlags::NOSIGNAL).unwrap();
    }

    fn hears(&self) -> Vec<u8> {
        assert!(becomes_readable(&self.channel), "nothing comes");
        let mut bytes = vec![0; 1024];
        let (n, _) = rustix::net::recv(&self.channel, &mut bytes[..], RecvFlags::empty()).unwrap();
        bytes.truncate(n);
        bytes
    }

    /// Has the process at the other end ended?
    fn line_ends(&self) -> bool {
        becomes_readable(self.line.as_ref().expect("a life line"))
    }

    fn line_holds(&self) -> bool {
        !is_readable(self.line.as_ref().expect("a life line"), 100)
    }
}

fn becomes_readable(end: &OwnedFd) -> bool {
    is_readable(end, 4_000)
}

fn is_readable(end: &OwnedFd, limit_ms: i32) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec {
        tv_sec: i64::from(limit_ms / 1_000),
        tv_nsec: i64::from(limit_ms % 1_000) * 1_000_000,
    };
    let mut polled = [PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)];
    poll(&mut polled, Some(&limit)).unwrap() > 0
}

/// A connection over loopback: the connecting end, the accepting end.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Two programs meet over a new connection between them.
fn meet(connects: &Client, accepts: &Client) -> (Met, Met) {
    let (client, server) = connection();
    accepts.ask(1, &server, Role::Accepted);
    connects.ask(2, &client, Role::Connected);
    (connects.meets(), accepts.meets())
}

#[test]
fn two_programs_on_two_machines_meet_whoever_asks_first() {
    let Some(host) = Host::new("meet") else {
        return;
    };
    let machines = host.two_machines();
    let [at_one, at_other] = [Client::of(&machines[0]), Client::of(&machines[1])];
    for is_client_first in [true, false] {
        let (client, server) = connection();
        let asks = [
            (&at_one, &client, Role::Connected),
            (&at_other, &server, Role::Accepted),
        ];
        let [first, second] = if is_client_first { [0, 1] } else { [1, 0] };
        for (client, socket, role) in [asks[first], asks[second]] {
            client.ask(7, socket, role);
            std::thread::sleep(Duration::from_millis(50));
        }
        let (one, other) = (at_one.meets(), at_other.meets());
        assert_eq!(
            (one.across.own, one.across.theirs),
            (other.across.theirs, other.across.own)
        );
        assert_eq!(
            (one.line.is_some(), other.line.is_some()),
            (is_client_first, is_client_first)
        );
        assert!(one.own().iter().chain(other.own().iter()).all(|&b| b == 0));
        one.theirs()[100] = 1;
        other.theirs()[200] = 2;
        assert_eq!((other.own()[100], one.own()[200]), (1, 2));
        (one.theirs()[100], other.theirs()[200]) = (0, 0);
        // Messages pass in both directions, and the end of the channel comes after the last of them.
        one.say(b"proposal");
        assert_eq!(other.hears(), b"proposal");
        other.say(&[7; 448]);
        assert_eq!(one.hears(), [7; 448]);
        one.say(b"confirm");
        drop(one.channel);
        assert_eq!(
            (other.hears().as_slice(), other.hears()),
            (&b"confirm"[..], vec![])
        );
    }
    for machine in &machines {
        machine.until("they have met twice", |tally| {
            (tally.met, tally.bonds, tally.extents) == (2, 1, 1)
        });
    }
}

#[test]
fn extents_are_free_when_both_programs_have_let_go() {
    let Some(host) = Host::new("part") else {
        return;
    };
    let machines = host.two_machines();
    let [at_one, at_other] = [Client::of(&machines[0]), Client::of(&machines[1])];
    let (one, other) = meet(&at_one, &at_other);
    at_one.part(&one);
    machines[0].until("it lets go", |tally| tally.bonds == 0);
    std::thread::sleep(Duration::from_millis(100));
    for machine in &machines {
        machine.until("the other uses both", |tally| tally.extents == 1);
    }
    assert!(other.line_ends());
    // Another meeting gives both other memory, and other names.
    let (again, other_again) = meet(&at_one, &at_other);
    assert!(again.line.is_some() && other_again.line.is_some());
    assert_ne!(other.across.peer, other_again.across.peer);
    assert_ne!(other.across.own, other_again.across.own);
    for (client, met) in [
        (&at_one, &again),
        (&at_other, &other),
        (&at_other, &other_again),
    ] {
        client.part(met);
    }
    for machine in &machines {
        machine.until("all is free", |tally| {
            (tally.bonds, tally.extents) == (0, 0)
        });
    }
}

#[test]
fn a_parting_that_has_crossed_another_meeting_is_none() {
    let Some(host) = Host::new("crossed") else {
        return;
    };
    let machines = host.two_machines();
    let [at_one, at_other] = [Client::of(&machines[0]), Client::of(&machines[1])];
    let (first, _) = meet(&at_one, &at_other);
    let (second, other) = meet(&at_other, &at_one); // in the other direction
    assert_eq!((second.line.is_none(), other.line.is_none()), (true, true));
    assert_eq!(first.across.peer, other.across.peer);
    assert!(other.across.serial > first.across.serial);
    at_one.part(&first);
    std::thread::sleep(Duration::from_millis(100));
    machines[0].until("it stays", |tally| tally.bonds == 1);
    at_one.part(&other);
    machines[0].until("it goes", |tally| tally.bonds == 0);
}

#[test]
fn the_end_of_a_program_is_the_end_of_its_life_lines_and_of_what_it_had() {
    let Some(host) = Host::new("end") else {
        return;
    };
    let machines = host.two_machines();
    let [at_one, at_other] = [Client::of(&machines[0]), Client::of(&machines[1])];
    let (one, other) = meet(&at_one, &at_other);
    assert!(one.line_holds() && other.line_holds());
    drop((at_one, one));
    assert!(other.line_ends());
    assert_eq!(other.hears(), b"", "its channel ends, too");
    machines[0].until("the other may still write", |tally| tally.extents == 1);
    at_other.part(&other);
    for machine in &machines {
        machine.until("all is free", |tally| {
            (tally.bonds, tally.extents) == (0, 0)
        });
    }
}

#[test]
fn when_all_memory_is_in_use_programs_are_told_so() {
    let Some(host) = Host::new("full") else {
        return;
    };
    let machines = host.two_machines();
    let extents = Division::of(usize::try_from(REGION_LEN).unwrap())
        .unwrap()
        .extents;
    let mut all = Vec::new();
    for _ in 0..extents / 2 {
        let clients = [Client::of(&machines[0]), Client::of(&machines[1])];
        all.push((meet(&clients[0], &clients[1]), clients));
    }
    let clients = [Client::of(&machines[0]), Client::of(&machines[1])];
    let (client, server) = connection();
    clients[1].ask(1, &server, Role::Accepted);
    clients[0].ask(2, &client, Role::Connected);
    for client in &clients {
        assert_eq!(client.is_refused(), Refusal::NoMemory);
    }
    all.pop();
    machines[0].until("there is room again", |tally| {
        tally.extents < u64::try_from(extents / 2).unwrap()
    });
    machines[1].until("there is room again", |tally| {
        tally.extents < u64::try_from(extents / 2).unwrap()
    });
    // The same two ask again.
    clients[1].ask(3, &server, Role::Accepted);
    clients[0].ask(4, &client, Role::Connected);
    for client in &clients {
        client.meets();
    }
}

#[test]
fn an_agent_that_is_restarted_takes_its_place_again_and_leaves_living_programs_their_memory() {
    let Some(host) = Host::new("restart") else {
        return;
    };
    let [one, other] = host.two_machines();
    let [at_one, at_other] = [Client::of(&one), Client::of(&other)];
    let (met, other_met) = meet(&at_one, &at_other);
    drop(one);
    let one = host.machine("one", 1);
    for machine in [&one, &other] {
        machine.until("they see each other", |tally| tally.machines == 1);
    }
    // This process lives, so its extents are in use: they are not given to others.
    one.until("its extent stays", |tally| tally.extents == 1);
    let again = Client::of(&one);
    let (new, _) = meet(&again, &at_other);
    assert!(![met.across.own, met.across.theirs].contains(&new.across.own));
    assert!(![met.across.own, met.across.theirs].contains(&new.across.theirs));
    // It lets go of what the last agent has given it.
    again.part(&met);
    at_other.part(&other_met);
    for machine in [&one, &other] {
        machine.until("the new memory is left", |tally| tally.extents == 1);
    }
}

#[test]
fn a_machine_that_was_booted_again_uses_nothing_of_what_it_had() {
    let Some(host) = Host::new("boot") else {
        return;
    };
    let [one, other] = host.two_machines();
    let [at_one, at_other] = [Client::of(&one), Client::of(&other)];
    let (_met, other_met) = meet(&at_one, &at_other);
    drop(one);
    std::thread::sleep(Duration::from_millis(1_200));
    other.until("it is silent", |tally| tally.machines == 0);
    assert!(
        other_met.line_holds(),
        "a machine that is silent may be paused"
    );
    let one = host.machine("one", 2);
    assert!(other_met.line_ends());
    at_other.part(&other_met);
    for machine in [&one, &other] {
        machine.until("all is free", |tally| tally.extents == 0);
    }
    for machine in [&one, &other] {
        machine.until("they see each other again", |tally| tally.machines == 1);
    }
    meet(&Client::of(&one), &at_other);
}

#[test]
fn two_programs_of_one_machine_meet_without_the_region() {
    let Some(host) = Host::new("local") else {
        return;
    };
    let machines = host.two_machines();
    let clients = [Client::of(&machines[0]), Client::of(&machines[0])];
    let (client, server) = connection();
    clients[0].ask(1, &client, Role::Connected);
    std::thread::sleep(Duration::from_millis(30));
    clients[1].ask(2, &server, Role::Accepted);
    for client in &clients {
        assert!(matches!(client.answer().0.outcome, Outcome::Meet { .. }));
    }
}

/// Another machine of the region, which writes anything anywhere while programs meet.
#[test]
fn a_machine_that_scribbles_ends_no_agent_and_no_meeting_of_one_machine() {
    let Some(host) = Host::new("scribbles") else {
        return;
    };
    let machines = host.two_machines();
    let file = std::fs::File::options()
        .write(true)
        .open(host.0.join("region"))
        .unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 88_172_645_463_325_252_u64;
            while !stop.load(Ordering::Relaxed) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // The head and the tables, or the rings of the first two machines.
                let at = match state % 3 {
                    0 => state % (RINGS_AT as u64 / 8) * 8,
                    _ => RINGS_AT as u64 + state % (33 * size_of::<Ring>() as u64 / 8) * 8,
                };
                file.write_all_at(&(state >> (state % 64)).to_le_bytes(), at)
                    .unwrap();
            }
        });
        for _ in 0..10 {
            let [at_one, at_other] = [Client::of(&machines[0]), Client::of(&machines[1])];
            let (client, server) = connection();
            at_other.ask(1, &server, Role::Accepted);
            at_one.ask(2, &client, Role::Connected);
            // They meet or not, and are told so.
            at_one.answer();
            at_other.answer();
            let own = [Client::of(&machines[0]), Client::of(&machines[0])];
            let (client, server) = connection();
            own[0].ask(1, &client, Role::Connected);
            own[1].ask(2, &server, Role::Accepted);
            for client in &own {
                assert!(matches!(client.answer().0.outcome, Outcome::Meet { .. }));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
