//! Processes that mean the agent no good: they forge connections, ask for what is not theirs, flood, crowd, squat. None of
//! them is ever introduced to anybody, and nobody else waits for them.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agent.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memlane_socket::protocol::agent::{self, Answer, LEN, Outcome, Question, Refusal, Role};
use memlane_sys::fd::{self, Fd};
use memlane_sys::sock;
use memlane_system::blocks::skip;
use memlane_system::containers::{
    Agent, Between, Cgroup, Hierarchy, Networks, in_namespace, scene,
};
use memlane_system::harness::{TempDir, plain_only};
use memlane_system::pair::Pair;
use memlane_system::real::{counts, program, script};

/// Honest programs get their lane within this time, whatever others do; on a quiet machine it takes some milliseconds.
const SOON: Duration = Duration::from_millis(1500);

fn is_introduced_soon(agent: &Agent, networks: &Networks, in_spite_of: &str) {
    let mut pair = Pair::in_domain(networks, &agent.directory());
    let begin = Instant::now();
    pair.open();
    let took = begin.elapsed();
    assert!(took < SOON, "{took:?} in spite of {in_spite_of}");
}

/// A connection between the namespaces whose two ends are here: the connecting one, the accepting one.
fn connection(networks: &Networks) -> (TcpStream, TcpStream) {
    let at = networks.server_address();
    let listener = in_namespace(networks.server(), || TcpListener::bind((at, 0)));
    let listener = listener.expect("a listener");
    let port = listener.local_addr().expect("bound").port();
    let client = in_namespace(networks.client(), || {
        TcpStream::connect((networks.reached_at(), port)).expect("it listens")
    });
    (client, listener.accept().expect("connected").0)
}

/// A process's connection to the agent.
struct Asker(Fd);

impl Asker {
    fn new(domain: &str) -> Asker {
        let path = format!("{domain}/{}", agent::SOCKET);
        Asker(sock::unix_seqpacket_to(path.as_bytes()).expect("an agent"))
    }

    fn asks(&self, fd: i32, inode: u64, role: Role) {
        let id = 7;
        let question = Question {
            id,
            fd,
            inode,
            role,
        };
        sock::send_to_peer(self.0.raw(), &question.encode(), &[]).expect("it hears");
    }

    fn asks_about(&self, socket: &impl AsRawFd, role: Role) {
        self.asks(socket.as_raw_fd(), inode(socket), role);
    }

    /// The next answer, within two seconds.
    fn outcome(&self) -> Outcome {
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            let mut bytes = [0; LEN];
            if sock::recv_with_fds(self.0.raw(), &mut bytes).is_ok() {
                return Answer::decode(&bytes).expect("an answer").outcome;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no answer");
    }

    fn refusal(&self) -> Refusal {
        match self.outcome() {
            Outcome::Refuse(why) => why,
            Outcome::Meet { .. } | Outcome::Across(_) => panic!("introduced"),
        }
    }
}

fn inode(socket: &impl AsRawFd) -> u64 {
    fd::stat(socket.as_raw_fd()).expect("open").ino
}

/// `hostile.py`. Killed when dropped.
struct Hostile {
    child: Child,
    orders: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Hostile {
    /// Starts it by way of other programs; it waits for `begin`.
    fn start(under: &[&str], args: &[&str]) -> Hostile {
        // An ordinary user may not see where the tests lie, or a Python of root's own.
        let text = std::fs::read_to_string(script("hostile.py")).expect("a script");
        let everybodys = PathBuf::from("/usr/bin/python3");
        let python = Some(everybodys).filter(|file| file.exists());
        let python = python.unwrap_or_else(|| program("python3"));
        let mut command = match under {
            [] => Command::new(&python),
            [first, more @ ..] => {
                let mut command = Command::new(first);
                command.args(more).arg(&python);
                command
            }
        };
        command.args(["-c", &text]).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python starts");
        Hostile {
            orders: child.stdin.take().expect("piped"),
            lines: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    fn begin(&mut self) {
        writeln!(self.orders).expect("it listens");
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it speaks");
        line.trim().to_owned()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// --- what is not theirs -----------------------------------------------------

#[test]
fn nobody_is_told_of_a_descriptor_that_is_not_an_established_socket_of_his() {
    let Some((agent, networks)) = scene("not-his", Between::Nat) else {
        return;
    };
    let asker = Asker::new(&agent.directory());
    let (client, _server) = connection(&networks);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let file = std::fs::File::open("/dev/null").expect("a file");
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let closed = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (closed_fd, closed_inode) = (closed.as_raw_fd(), inode(&closed));
    drop(closed);
    let own = client.as_raw_fd();
    let questions = [
        (own, inode(&client) + 1),
        (own, 0),
        (listener.as_raw_fd(), inode(&listener)),
        (file.as_raw_fd(), inode(&file)),
        (udp.as_raw_fd(), inode(&udp)),
        (asker.0.raw(), fd::stat(asker.0.raw()).expect("open").ino),
        (closed_fd, closed_inode),
        (-1, inode(&client)),
        (i32::MAX, inode(&client)),
        (i32::MIN, inode(&client)),
    ];
    for (fd, inode) in questions {
        for role in [Role::Connected, Role::Accepted] {
            asker.asks(fd, inode, role);
            assert_eq!(asker.refusal(), Refusal::NotSeen, "{fd} {inode}");
        }
    }
    is_introduced_soon(&agent, &networks, "questions about nothing");
}

#[test]
fn who_repeats_the_question_of_another_process_is_not_answered_for_it() {
    let Some((agent, networks)) = scene("repeats", Between::Nat) else {
        return;
    };
    let mut pair = Pair::in_domain(&networks, &agent.directory());
    let asker = Asker::new(&agent.directory());
    // Every socket of both programs, by the numbers and inodes that they ask with.
    for pid in [pair.client.pid(), pair.server.pid()] {
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc") {
            let entry = entry.expect("/proc");
            let link = std::fs::read_link(entry.path()).expect("/proc");
            let link = link.to_string_lossy();
            let inode = link
                .strip_prefix("socket:[")
                .and_then(|l| l.strip_suffix(']'));
            let (Some(inode), Ok(fd)) = (inode, entry.file_name().to_string_lossy().parse()) else {
                continue;
            };
            asker.asks(fd, inode.parse().expect("a number"), Role::Connected);
            assert_eq!(asker.refusal(), Refusal::NotSeen);
        }
    }
    pair.open();
}

#[test]
fn a_number_that_changes_hands_between_question_and_look_is_noticed() {
    let Some((agent, networks)) = scene("changes-hands", Between::Nat) else {
        return;
    };
    let asker = Asker::new(&agent.directory());
    let ((one, other), (mine, theirs)) = (connection(&networks), connection(&networks));
    agent.signal("STOP");
    asker.asks_about(&one, Role::Connected);
    // The same number is another connection by now.
    let mut number = OwnedFd::from(one);
    rustix::io::dup2(&mine, &mut number).expect("it is open");
    agent.signal("CONT");
    assert_eq!(asker.refusal(), Refusal::NotSeen);
    drop((number, other, theirs));
}

// --- forged connections -----------------------------------------------------

// <linux/in.h> and <linux/tcp.h>.
const IPPROTO_TCP: i32 = 6;
const TCP_REPAIR: i32 = 19;
const TCP_REPAIR_QUEUE: i32 = 20;
const TCP_QUEUE_SEQ: i32 = 21;

/// The sequence numbers with which this end sends and receives, as whoever sniffs the connection knows them.
fn numbers_of(socket: &TcpStream) -> [u32; 2] {
    let fd = socket.as_raw_fd();
    let set = |name, value: i32| {
        sock::set_option(fd, IPPROTO_TCP, name, value).expect("root may");
    };
    set(TCP_REPAIR, 1);
    let numbers = [2, 1].map(|queue| {
        set(TCP_REPAIR_QUEUE, queue);
        sock::option(fd, IPPROTO_TCP, TCP_QUEUE_SEQ).expect("root may")
    });
    set(TCP_REPAIR, -1);
    numbers
}

/// What a forger is told who claims to be one end of a connection with these numbers.
fn forged(under: &[&str], domain: &str, role: Role, [sends, receives]: [u32; 2]) -> String {
    let words = [role as u32, sends, receives].map(|number| number.to_string());
    let [role, sends, receives] = [&words[0], &words[1], &words[2]];
    let mut forger = Hostile::start(under, &["forge", domain, role, sends, receives]);
    forger.begin();
    forger.says()
}

/// root in a network namespace that the host's root has made.
fn in_roots_network(networks: &Networks) -> [&str; 4] {
    ["ip", "netns", "exec", networks.middle()]
}

/// An ordinary user, who is root in a network namespace of his own.
const IN_OWN_NETWORK: [&str; 12] = [
    "setpriv",
    "--reuid=1000",
    "--clear-groups",
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "sh",
    "-c",
    "ip link set lo up && exec \"$@\"",
    "sh",
    "env",
];

fn refused(why: Refusal) -> String {
    format!("refused {}", why as u32)
}

#[test]
fn a_user_who_forges_an_end_in_a_network_of_his_own_is_not_trusted() {
    let Some((agent, networks)) = scene("forger-user", Between::Nat) else {
        return;
    };
    let domain = agent.directory();
    let (client, server) = connection(&networks);
    let numbers = numbers_of(&client);
    // He comes first, and is in vain.
    let said = forged(&IN_OWN_NETWORK, &domain, Role::Connected, numbers);
    assert_eq!(said, refused(Refusal::Nobody));
    // The other end waits when he comes.
    let asker = Asker::new(&domain);
    asker.asks_about(&server, Role::Accepted);
    let said = forged(&IN_OWN_NETWORK, &domain, Role::Connected, numbers);
    assert_eq!(said, refused(Refusal::Untrusted));
    assert_eq!(asker.refusal(), Refusal::Untrusted);
    is_introduced_soon(&agent, &networks, "a forger");
}

#[test]
fn a_third_socket_with_the_same_numbers_is_refused_and_so_are_the_others() {
    let Some((agent, networks)) = scene("forger-root", Between::Nat) else {
        return;
    };
    let domain = agent.directory();
    let in_roots = in_roots_network(&networks);
    // The same end twice: nobody gets it.
    let (client, server) = connection(&networks);
    let (numbers, asker) = (numbers_of(&client), Asker::new(&domain));
    asker.asks_about(&client, Role::Connected);
    let said = forged(&in_roots, &domain, Role::Connected, numbers);
    assert_eq!(said, refused(Refusal::Forged));
    assert_eq!(asker.refusal(), Refusal::Forged);
    asker.asks_about(&server, Role::Accepted);
    assert_eq!(asker.refusal(), Refusal::Forged);

    // The two have met when he comes, at either end.
    let (client, server) = connection(&networks);
    let numbers = [numbers_of(&client), numbers_of(&server)];
    asker.asks_about(&client, Role::Connected);
    asker.asks_about(&server, Role::Accepted);
    for _ in 0..2 {
        assert!(matches!(asker.outcome(), Outcome::Meet { .. }));
    }
    for (role, numbers) in [Role::Connected, Role::Accepted].into_iter().zip(numbers) {
        let said = forged(&in_roots, &domain, role, numbers);
        let never = [refused(Refusal::Forged), refused(Refusal::Nobody)];
        assert!(never.contains(&said), "{said}");
    }
    is_introduced_soon(&agent, &networks, "a forger");
}

// --- floods -----------------------------------------------------------------

/// A process in a control group of its own, as that of another container.
fn in_own_group(args: &[&str], test: &str) -> Option<(Cgroup, Hostile)> {
    let kinds = [Hierarchy::Unified, Hierarchy::Freezer];
    let group = kinds.into_iter().find_map(|kind| Cgroup::new(kind).ok());
    let Some(group) = group else {
        skip(test, "no control groups");
        return None;
    };
    let hostile = Hostile::start(&[], args);
    group.take(hostile.child.id());
    Some((group, hostile))
}

#[test]
fn a_flood_of_questions_is_bounded_and_delays_nobody() {
    let Some((agent, networks)) = scene("flood", Between::Nat) else {
        return;
    };
    let domain = agent.directory();
    let args = ["flood", domain.as_str(), "4"];
    let Some((_group, mut flood)) = in_own_group(&args, "flood") else {
        return;
    };
    let begin = Instant::now();
    flood.begin();
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..5 {
        is_introduced_soon(&agent, &networks, "a flood");
    }
    let said = flood.says();
    let answers = counts(&said)["answers"];
    // 20,000 at once and 5,000 a second.
    let may = 20_000 + 5_000 * (begin.elapsed().as_secs() + 1);
    assert!(answers <= may, "{said} of {may}");
    assert!(answers >= 10_000, "{said}: this is no flood");
    is_introduced_soon(&agent, &networks, "a flood before");
}

#[test]
fn one_container_that_connects_more_often_than_it_may_keeps_nobody_out() {
    let Some((agent, networks)) = scene("crowd", Between::Nat) else {
        return;
    };
    let domain = agent.directory();
    let args = ["crowd", domain.as_str(), "1200"];
    let Some((_group, mut crowd)) = in_own_group(&args, "crowd") else {
        return;
    };
    crowd.begin();
    let said = crowd.says();
    assert_eq!(counts(&said)["kept"], 1024, "{said}");
    is_introduced_soon(&agent, &networks, "1,024 connections");
}

/// CPU time of a process, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let (_, words) = stat.rsplit_once(") ").expect("a state");
    let words: Vec<u64> = words.split(' ').filter_map(|w| w.parse().ok()).collect();
    words[10] + words[11]
}

#[test]
fn an_agent_without_descriptors_waits_until_it_has_some() {
    if plain_only() {
        return;
    }
    let networks = Networks::new(Between::Nat).map_err(|why| skip("descriptors", &why));
    let Ok(networks) = networks else {
        return;
    };
    // It has two for each process: it runs out at the first of them, or at the second.
    for most in [64, 65] {
        let agent = Agent::start_with_descriptors("descriptors", most);
        let Ok(agent) = agent.map_err(|why| skip("descriptors", &why)) else {
            return;
        };
        let domain = agent.directory();
        let crowd: Vec<Asker> = (0..80).map(|_| Asker::new(&domain)).collect();
        std::thread::sleep(Duration::from_millis(200));
        let before = ticks(agent.pid());
        std::thread::sleep(Duration::from_millis(1000));
        let busy = ticks(agent.pid()) - before;
        assert!(busy <= 5, "it has burnt {busy}0 ms of a second");
        drop(crowd);
        std::thread::sleep(Duration::from_millis(300));
        is_introduced_soon(&agent, &networks, "those who have gone");
    }
}

// --- squatters --------------------------------------------------------------

#[test]
fn whatever_lies_in_the_place_of_its_socket_the_agent_serves_there() {
    if plain_only() {
        return;
    }
    let Ok(networks) = Networks::new(Between::Nat).map_err(|why| skip("squatters", &why)) else {
        return;
    };
    let elsewhere = TempDir::new("squatters");
    let file = elsewhere.path().join("private");
    std::fs::write(&file, "mine").expect("a file");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("ours");
    let at = |domain: &Path| domain.join(agent::SOCKET);
    let mut squatter = None;
    type Squat<'a> = &'a mut dyn FnMut(&Path);
    let squats: [(&str, Squat<'_>); 4] = [
        ("file", &mut |domain| {
            std::fs::write(at(domain), "x").expect("a file");
        }),
        ("link", &mut |domain| {
            std::os::unix::fs::symlink(&file, at(domain)).expect("a link");
        }),
        ("hard-link", &mut |domain| {
            std::fs::hard_link(&file, at(domain)).expect("a link");
        }),
        ("listener", &mut |domain| {
            squatter = std::os::unix::net::UnixListener::bind(at(domain)).ok();
        }),
    ];
    for (what, squat) in squats {
        let Ok(agent) = Agent::start_after(what, squat).map_err(|why| skip(what, &why)) else {
            return;
        };
        is_introduced_soon(&agent, &networks, what);
        let mode = std::fs::metadata(&file)
            .expect("a file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{what}: the file of another");
    }
    assert_eq!(std::fs::read(&file).expect("a file"), b"mine");
    drop(squatter);
}

#[test]
fn a_member_that_locks_the_directory_keeps_no_agent_from_serving_it() {
    let Some((mut agent, networks)) = scene("locks", Between::Nat) else {
        return;
    };
    agent.kill();
    // Anybody who can read a directory can lock it.
    let domain = agent.directory();
    let ordinary = ["setpriv", "--reuid=1000", "--clear-groups"];
    let mut member = Hostile::start(&ordinary, &["lock", &domain]);
    member.begin();
    assert_eq!(member.says(), "locked");
    agent.restart();
    is_introduced_soon(&agent, &networks, "a lock");
}
