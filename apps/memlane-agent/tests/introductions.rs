//! The agent as its clients see it: who is introduced to whom, and who is not.
//!
//! Needs CAP_BPF and CAP_PERFMON; without them, the tests say so and stop.

use memlane_agent::kernel::{ESTABLISHED, LookError, Looker, Record};
use memlane_agent::server::{Agent, Counts, News};
use memlane_socket::protocol::agent::{Answer, LEN, Outcome, Question, Refusal, Role, SOCKET};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::fs::Permissions;
use std::io::{IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A looker, unless this machine does not allow one.
fn looker() -> Option<Looker> {
    match Looker::open() {
        Ok(looker) => Some(looker),
        Err(e @ (LookError::NotAllowed(_) | LookError::NoTypes(_))) => {
            eprintln!("SKIPPED: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// An agent with one domain, in a thread of its own.
struct Running {
    directory: PathBuf,
    counts: Arc<Mutex<Counts>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(name: &str) -> Option<Running> {
        let looker = looker()?;
        let directory =
            std::env::temp_dir().join(format!("memlane-agent-{}-{name}", std::process::id()));
        let mut agent = Agent::new(looker).expect("an agent");
        agent.serve(&directory).expect("a domain");
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Mutex::new(Counts::default()));
        let (its_stop, its_counts) = (Arc::clone(&stop), Arc::clone(&counts));
        let thread = std::thread::spawn(move || {
            while !its_stop.load(Ordering::Relaxed) {
                agent.turn(Duration::from_millis(20)).expect("a turn");
                *its_counts.lock().unwrap() = agent.counts();
            }
        });
        Some(Running {
            directory,
            counts,
            stop,
            thread: Some(thread),
        })
    }

    fn counts(&self) -> Counts {
        std::thread::sleep(Duration::from_millis(60));
        *self.counts.lock().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A client of the agent's.
struct Client(OwnedFd);

impl Client {
    fn connect(directory: &Path) -> Client {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let name = SocketAddrUnix::new(directory.join(SOCKET)).unwrap();
        rustix::net::connect(&socket, &name).expect("the agent listens");
        Client(socket)
    }

    fn ask(&self, id: u64, socket: &TcpStream, role: Role) {
        self.say(&question(id, socket, role).encode());
    }

    fn say(&self, bytes: &[u8]) {
        rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL).unwrap();
    }

    /// The next answer and what came with it, within `limit`.
    fn answer(&self, limit: Duration) -> Option<(Answer, Option<OwnedFd>)> {
        rustix::net::sockopt::set_socket_timeout(
            &self.0,
            rustix::net::sockopt::Timeout::Recv,
            Some(limit),
        )
        .unwrap();
        let mut bytes = [0u8; LEN];
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let got =
            rustix::net::recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
        let mut end = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                end = fds.next();
            }
        }
        Some((Answer::decode(&bytes[..got.bytes])?, end))
    }

    fn outcome(&self) -> Option<Outcome> {
        self.answer(Duration::from_secs(4))
            .map(|(answer, _)| answer.outcome)
    }
}

fn met(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Meet { peer } if peer != 0)
}

fn question(id: u64, socket: &TcpStream, role: Role) -> Question {
    Question {
        id,
        fd: socket.as_raw_fd(),
        inode: inode(socket),
        role,
    }
}

fn inode(socket: &TcpStream) -> u64 {
    std::fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd()))
        .unwrap()
        .ino()
}

/// A connection over loopback: the connecting end, the accepting end.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn the_kernel_shows_the_same_numbers_at_both_ends_whatever_has_flowed() {
    let Some(looker) = looker() else { return };
    let (mut client, mut server) = connection();
    let own = rustix::process::pidfd_open(
        rustix::process::getpid(),
        rustix::process::PidfdFlags::empty(),
    )
    .unwrap();
    let see = |socket: &TcpStream| {
        let (fd, mut seen) = (socket.as_raw_fd(), None);
        looker
            .look(own.as_fd(), (fd, fd), |r: Record| seen = Some(r))
            .unwrap();
        seen.expect("a TCP socket")
    };
    let before = (see(&client), see(&server));
    let block = vec![7u8; 300_000];
    let reader = std::thread::spawn(move || {
        let mut rest = vec![0; 300_000];
        server.read_exact(&mut rest).unwrap();
        server.write_all(&rest[..1000]).unwrap();
        server
    });
    client.write_all(&block).unwrap();
    client.read_exact(&mut vec![0; 1000]).unwrap();
    let server = reader.join().unwrap();
    std::thread::sleep(Duration::from_millis(100)); // acknowledged, too
    let after = (see(&client), see(&server));
    assert_eq!(before, after);
    let (client, server) = after;
    assert_eq!(client.sends_from.wrapping_add(1), server.receives_from);
    assert_eq!(client.receives_from, server.sends_from);
    assert_eq!((client.state, server.state), (ESTABLISHED, ESTABLISHED));
    assert_eq!(
        (client.network, client.owner),
        (server.network, server.owner)
    );
    assert!(client.network != 0 && client.owner != 0);
}

#[test]
fn two_ends_of_a_connection_get_two_ends_of_a_channel() {
    let Some(agent) = Running::start("meet") else {
        return;
    };
    let (client, server) = connection();
    let (at_client, at_server) = (
        Client::connect(&agent.directory),
        Client::connect(&agent.directory),
    );
    at_server.ask(5, &server, Role::Accepted);
    at_client.ask(6, &client, Role::Connected);
    let (answer, one) = at_client.answer(Duration::from_secs(2)).expect("an answer");
    assert!(answer.id == 6 && met(answer.outcome), "{answer:?}");
    let (answer, other) = at_server.answer(Duration::from_secs(2)).expect("an answer");
    assert!(answer.id == 5 && met(answer.outcome), "{answer:?}");
    let (one, other) = (one.expect("an end"), other.expect("an end"));
    rustix::net::send(&one, b"hello", SendFlags::NOSIGNAL).unwrap();
    let mut bytes = [0; 8];
    let (n, _) = rustix::net::recv(&other, &mut bytes[..], RecvFlags::empty()).unwrap();
    assert_eq!(&bytes[..n], b"hello");
    drop(one);
    // The agent closes its own copy of the end just after it has sent it.
    rustix::io::ioctl_fionbio(&other, false).unwrap();
    let (n, _) = rustix::net::recv(&other, &mut bytes[..], RecvFlags::empty()).unwrap();
    assert_eq!(n, 0, "its end is seen");
    assert_eq!(agent.counts().met, 1);
}

#[test]
fn the_two_sides_of_a_user_space_proxy_do_not_meet() {
    let Some(agent) = Running::start("proxy") else {
        return;
    };
    let ((client, _proxy_in), (_proxy_out, server)) = (connection(), connection());
    let asks = Client::connect(&agent.directory);
    asks.ask(1, &client, Role::Connected);
    asks.ask(2, &server, Role::Accepted);
    for _ in 0..2 {
        assert_eq!(asks.outcome(), Some(Outcome::Refuse(Refusal::Nobody)));
    }
    assert_eq!(agent.counts().met, 0);
}

#[test]
fn nobody_is_answered_about_a_descriptor_that_is_not_his_or_has_changed_hands() {
    let Some(agent) = Running::start("not-seen") else {
        return;
    };
    let (client, server) = connection();
    let asks = Client::connect(&agent.directory);
    let mut about = question(1, &client, Role::Connected);
    about.inode += 1; // closed, and another socket has the number
    asks.say(&about.encode());
    assert_eq!(asks.outcome(), Some(Outcome::Refuse(Refusal::NotSeen)));
    about.fd = 0; // no socket
    asks.say(&about.encode());
    assert_eq!(asks.outcome(), Some(Outcome::Refuse(Refusal::NotSeen)));
    drop(server);
    std::thread::sleep(Duration::from_millis(50));
    asks.ask(3, &client, Role::Connected); // it is in CLOSE_WAIT
    assert_eq!(asks.outcome(), Some(Outcome::Refuse(Refusal::NotSeen)));
}

#[test]
fn two_domains_do_not_meet() {
    let (Some(one), Some(other)) = (Running::start("one"), Running::start("other")) else {
        return;
    };
    let (client, server) = connection();
    let (at_client, at_server) = (
        Client::connect(&one.directory),
        Client::connect(&other.directory),
    );
    at_client.ask(1, &client, Role::Connected);
    at_server.ask(1, &server, Role::Accepted);
    for asks in [&at_client, &at_server] {
        assert_eq!(asks.outcome(), Some(Outcome::Refuse(Refusal::Nobody)));
    }
}

#[test]
fn who_sends_rubbish_is_sent_away_and_nobody_else_notices() {
    let Some(agent) = Running::start("rubbish") else {
        return;
    };
    let (client, server) = connection();
    let good = Client::connect(&agent.directory);
    good.ask(1, &client, Role::Connected);
    for bytes in [&b"x"[..], &[0xff; LEN], &[0; LEN + 1], &[0; 4096]] {
        let bad = Client::connect(&agent.directory);
        bad.say(bytes);
        assert!(bad.answer(Duration::from_secs(2)).is_none());
    }
    good.ask(2, &server, Role::Accepted);
    assert!(good.outcome().is_some_and(met));
    assert!(good.outcome().is_some_and(met));
    assert_eq!(agent.counts().sent_away, 4);
}

#[test]
fn a_flood_of_questions_delays_no_other_party_for_long() {
    let Some(agent) = Running::start("flood") else {
        return;
    };
    let (client, server) = connection();
    let flood = Client::connect(&agent.directory);
    rustix::io::ioctl_fionbio(&flood.0, true).unwrap();
    let about = question(1, &client, Role::Connected).encode();
    let begin = std::time::Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let its_stop = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        while !its_stop.load(Ordering::Relaxed) {
            let _ = rustix::net::send(&flood.0, &about, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    });
    // Of the same party here, and yet.
    let good = Client::connect(&agent.directory);
    good.ask(2, &server, Role::Accepted);
    assert!(good.outcome().is_some_and(met));
    assert!(
        begin.elapsed() < Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}

#[test]
fn a_directory_has_one_agent_and_the_next_takes_it_over_after_a_kill() {
    let Some(looker_a) = looker() else { return };
    let directory = std::env::temp_dir().join(format!("memlane-agent-{}-lock", std::process::id()));
    let mut first = Agent::new(looker_a).unwrap();
    first.serve(&directory).unwrap();
    let mut second = Agent::new(looker().unwrap()).unwrap();
    let refused = second.serve(&directory).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
    // Killed: its socket stays behind.
    let left = directory.join(SOCKET);
    let copy = directory.join("left");
    std::fs::hard_link(&left, &copy).unwrap();
    drop(first);
    std::fs::rename(&copy, &left).unwrap();
    second.serve(&directory).unwrap();
    drop(second);
    assert!(!left.exists());
    std::fs::remove_dir_all(&directory).unwrap();
}

// --- folders of domains ------------------------------------------------------

/// A folder for this test, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("memlane-agent-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        Folder(path)
    }

    fn make(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the agent tells, when it tells something.
fn next_news(agent: &mut Agent) -> Vec<News> {
    for _ in 0..100 {
        agent.turn(Duration::from_millis(50)).unwrap();
        let news = agent.news();
        if !news.is_empty() {
            return news;
        }
    }
    panic!("no news");
}

#[test]
fn each_directory_of_a_folder_is_a_domain_from_when_it_appears_until_it_is_gone() {
    let Some(looker) = looker() else { return };
    let folder = Folder::new("folder");
    let shop = folder.make("shop");
    let mut agent = Agent::new(looker).unwrap();
    agent.serve_each(&folder.0).unwrap();
    assert_eq!(agent.news(), [News::Serves(shop.clone())]);
    let bank = folder.make("bank");
    assert_eq!(next_news(&mut agent), [News::Serves(bank.clone())]);
    let client = Client::connect(&bank);
    agent.turn(Duration::from_millis(50)).unwrap();
    assert_eq!(agent.counts().processes, 1);
    // Its programs are sent away; another directory of its name is another domain.
    std::fs::remove_dir_all(&bank).unwrap();
    assert_eq!(next_news(&mut agent), [News::Closed(bank.clone())]);
    assert_eq!(agent.counts().processes, 0);
    assert!(client.answer(Duration::from_secs(2)).is_none(), "sent away");
    folder.make("bank");
    assert_eq!(next_news(&mut agent), [News::Serves(bank.clone())]);
    Client::connect(&bank);
    Client::connect(&shop);
    drop(agent);
    assert!(!shop.join(SOCKET).exists() && !bank.join(SOCKET).exists());
}

#[test]
fn a_domain_that_takes_the_place_of_another_between_two_looks_is_served_anew() {
    let Some(looker) = looker() else { return };
    let folder = Folder::new("exchanged");
    let shop = folder.make("shop");
    let mut agent = Agent::new(looker).unwrap();
    agent.serve_each(&folder.0).unwrap();
    agent.news();
    std::fs::rename(&shop, folder.0.join("Old")).unwrap();
    folder.make("shop");
    let news = next_news(&mut agent);
    assert_eq!(
        news[..2],
        [News::Closed(shop.clone()), News::Serves(shop.clone())]
    );
    Client::connect(&shop);
}

#[test]
fn a_domain_that_was_made_anew_with_the_number_of_the_old_one_is_served_anew() {
    let Some(looker) = looker() else { return };
    let folder = Folder::new("same-number");
    let shop = folder.make("shop");
    let mut agent = Agent::new(looker).unwrap();
    agent.serve_each(&folder.0).unwrap();
    agent.news();
    // The same directory without its socket, and something that is heard.
    std::fs::remove_file(shop.join(SOCKET)).unwrap();
    folder.make("bank");
    assert!(next_news(&mut agent).contains(&News::Serves(shop.clone())));
    Client::connect(&shop);
}

#[test]
fn what_is_no_domain_of_ours_is_ignored_and_told_once() {
    let Some(looker) = looker() else { return };
    let folder = Folder::new("ignored");
    let shop = folder.make("shop");
    let writable = folder.make("writable");
    std::fs::set_permissions(&writable, Permissions::from_mode(0o777)).unwrap();
    symlink(&shop, folder.0.join("link")).unwrap();
    std::fs::write(folder.0.join("file"), "").unwrap();
    folder.make("Not-A-Name");
    let theirs = folder.make("theirs");
    let is_root = std::os::unix::fs::chown(&theirs, Some(12_345), None).is_ok();
    let mut agent = Agent::new(looker).unwrap();
    agent.serve_each(&folder.0).unwrap();
    let news = agent.news();
    let why = |name: &str| {
        news.iter().find_map(|news| match news {
            News::Ignored(path, why) if *path == folder.0.join(name) => Some(why.as_str()),
            _ => None,
        })
    };
    assert_eq!(why("writable"), Some("others may write to it"));
    assert_eq!(why("link"), Some("it is no directory"));
    assert_eq!(why("file"), Some("it is no directory"));
    assert_eq!(
        why("Not-A-Name"),
        Some("its name is not that of a namespace")
    );
    if is_root {
        assert_eq!(why("theirs"), Some("it belongs to another user"));
        assert_eq!(agent.domains(), [shop]);
    }
    for name in ["writable", "Not-A-Name"] {
        assert!(!folder.0.join(name).join(SOCKET).exists(), "{name}");
    }
    // Told once; and served as soon as nothing is wrong with it.
    std::fs::set_permissions(&writable, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(next_news(&mut agent), [News::Serves(writable.clone())]);
    std::fs::set_permissions(&writable, Permissions::from_mode(0o777)).unwrap();
    let news = next_news(&mut agent);
    assert_eq!(news[0], News::Closed(writable.clone()));
    assert!(matches!(&news[1..], [News::Ignored(path, _)] if *path == writable));
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let Some(looker) = looker() else { return };
    let folder = Folder::new("open");
    std::fs::set_permissions(&folder.0, Permissions::from_mode(0o777)).unwrap();
    let refused = Agent::new(looker)
        .unwrap()
        .serve_each(&folder.0)
        .unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
}

/// In `/run/memlane`, root's control sockets lie beside the domains.
#[test]
fn beside_domains_others_may_have_sockets_and_lock_the_folder() {
    let (Some(a), Some(b)) = (looker(), looker()) else {
        return;
    };
    let folder = Folder::new("shared-folder");
    let shop = folder.make("shop");
    let _control = std::os::unix::net::UnixListener::bind(folder.0.join("agent-1")).unwrap();
    let mut first = Agent::new(a).unwrap();
    first.serve_each(&folder.0).unwrap();
    assert_eq!(first.news(), [News::Serves(shop)]);
    let locked = std::fs::File::open(&folder.0).unwrap();
    let is_free = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    assert!(rustix::fs::flock(&locked, is_free).is_ok());
    // A second agent is refused all the same, and may come when the first has gone.
    let mut second = Agent::new(b).unwrap();
    let refused = second.serve_each(&folder.0).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
    drop(first);
    second.serve_each(&folder.0).unwrap();
}

#[test]
fn a_domain_of_another_agent_is_taken_over_when_that_one_ends() {
    let (Some(a), Some(b)) = (looker(), looker()) else {
        return;
    };
    let folder = Folder::new("handed-over");
    let shop = folder.make("shop");
    let mut first = Agent::new(a).unwrap();
    first.serve(&shop).unwrap();
    let mut second = Agent::new(b).unwrap();
    second.serve_each(&folder.0).unwrap();
    let busy = News::Ignored(shop.clone(), "another agent serves it".to_owned());
    assert_eq!(second.news(), [busy]);
    Client::connect(&shop);
    drop(first);
    assert_eq!(next_news(&mut second), [News::Serves(shop.clone())]);
    Client::connect(&shop);
}
