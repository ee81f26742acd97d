//! `memlane serve`, `map` and `exporter` under a service manager: one that listens for them, as systemd does, through
//! environment variables; and one that ends them whenever it likes.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memlane_system::blocks::{has, memlane, must, skip};
use memlane_system::harness::{Running, TempDir};

const LIMIT: Duration = Duration::from_secs(20);

/// The command with these descriptors from 3 on, and variables that say so.
fn activated(name: &str, sockets: &[(&str, BorrowedFd<'_>)], more: &[&str]) -> Command {
    let mut script = String::new();
    for (number, (_, socket)) in sockets.iter().enumerate() {
        // They lie anywhere: first away from where they are to be.
        script += &format!("exec {}<&{}; ", 100 + number, socket.as_raw_fd());
        rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty()).expect("inherited");
    }
    for number in 0..sockets.len() {
        script += &format!("exec {}<&{}; ", 3 + number, 100 + number);
    }
    let names: Vec<&str> = sockets.iter().map(|(name, _)| *name).collect();
    script += &format!(
        "LISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={} exec \"$0\" \"$@\"",
        sockets.len(),
        names.join(":")
    );
    let mut command = Command::new("bash");
    command.arg("-c").arg(script).arg(memlane());
    command.args(["serve", "--name", name]).args(more);
    command
}

fn wait_until_it_serves(server: &mut Running) {
    let begin = Instant::now();
    while !server.stderr().contains("serving") {
        let waits = server.is_running() && begin.elapsed() < LIMIT;
        assert!(waits, "{}", server.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_takes_the_sockets_of_its_manager_and_nobody_is_refused_while_it_restarts() {
    if !has("bash") {
        return skip("activation", "no bash");
    }
    let dir = TempDir::new("activation");
    let name = format!("activation-{}", std::process::id());
    let disk = std::fs::File::create(dir.path().join("disk")).expect("a file");
    disk.set_len(1 << 20).expect("its size");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = SocketAddr::from_abstract_name(format!("memlane/blocks/{name}")).expect("a name");
    let local = UnixListener::bind_addr(&at).expect("a socket");
    let root = dir.path().display().to_string();
    let start = || {
        let sockets = [("tcp", tcp.as_fd()), ("here", local.as_fd())];
        let mut server = Running::start(activated(&name, &sockets, &["--root", &root]));
        wait_until_it_serves(&mut server);
        server
    };
    let server = start();
    let port = tcp.local_addr().expect("an address").port();
    let expected = format!("tcp://127.0.0.1:{port}, local:{name}");
    assert!(server.stderr().contains(&expected), "{}", server.stderr());
    let places = [format!("127.0.0.1:{port}"), format!("local:{name}")];
    let sessions = ["tcp", "local"].map(|kind| format!("{name}-{kind}"));
    for (place, session) in places.iter().zip(&sessions) {
        let socket = dir.path().join(format!("{session}.sock"));
        let frontend = format!("nbd:unix:{}", socket.display());
        let mut command = Command::new(memlane());
        command.args(["map", "--access", "ro", "--session", session]);
        command.args(["--as", &frontend, place, "disk"]);
        must(command);
    }
    drop(server.stop());
    let _server = start();
    for session in &sessions {
        let show = || {
            let mut command = Command::new(memlane());
            command.args(["session", "show", session]);
            must(command)
        };
        let begin = Instant::now();
        while !(show().contains("connected") && show().contains(": ok")) {
            assert!(begin.elapsed() < LIMIT, "{}", show());
            std::thread::sleep(Duration::from_millis(20));
        }
        // Whoever came while nobody served, waited.
        assert!(!show().contains("refused"), "{}", show());
        let mut command = Command::new(memlane());
        command.args(["vol", "unmap", "disk", "--session", session]);
        must(command);
    }
}

#[test]
fn a_descriptor_that_does_not_listen_or_is_open_to_all_is_refused_by_its_name() {
    if !has("bash") {
        return skip("activation", "no bash");
    }
    let dir = TempDir::new("activation-wrong");
    let name = format!("activation-wrong-{}", std::process::id());
    let root = dir.path().display().to_string();
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let open = TcpListener::bind("0.0.0.0:0").expect("a port");
    for (socket, why) in [
        (
            ("odd", udp.as_fd()),
            "(\"odd\") of the service manager: not a stream socket that listens",
        ),
        (("wide", open.as_fd()), "--insecure"),
    ] {
        let said = activated(&name, &[socket], &["--root", &root]).output();
        let said = said.expect("the command");
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(2), "{text}");
        assert!(text.contains(why), "{text}");
    }
}

/// Starts it, and ends it with SIGTERM at the moment in which it says the first line.
fn end_when_it_speaks(args: &[&str]) {
    let mut command = Command::new(memlane());
    command
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let said = child.stdout.take().expect("a pipe");
    let mut line = String::new();
    let read = BufReader::new(said).read_line(&mut line);
    let pid = rustix::process::Pid::from_child(&child);
    let sent = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    let ended = child.wait().expect("it ends");
    read.expect("a line");
    sent.expect("it was alive");
    assert!(ended.success(), "{ended} after {line:?} of {args:?}");
}

#[test]
fn who_is_told_to_end_as_soon_as_it_is_ready_ends_in_order() {
    let dir = TempDir::new("early-end");
    let disk = std::fs::File::create(dir.path().join("disk")).expect("a file");
    disk.set_len(1 << 20).expect("its size");
    let name = format!("early-end-{}", std::process::id());
    let (root, file) = (
        dir.path().display().to_string(),
        format!("file:{}/disk", dir.path().display()),
    );
    let export = format!("nbd:unix:{root}/export");
    let local = format!("local:{name}");
    for _ in 0..30 {
        end_when_it_speaks(&["map", "--foreground", "--as", &export, &file]);
        end_when_it_speaks(&[
            "serve", "--json", "--name", &name, "--root", &root, "--listen", &local,
        ]);
        end_when_it_speaks(&["exporter", "--listen", "127.0.0.1:0"]);
    }
}
