//! Streams as std's users, epoll loops and runtimes use them (`--features std`).

#[path = "../examples/echo_epoll.rs"]
mod echo_epoll;
#[path = "../examples/echo_tokio.rs"]
mod echo_tokio;

use memlane_core::reason::Reason;
use memlane_socket::Listener;
use memlane_socket::Stream;
use memlane_socket::native::{Counts, End, Standing};
use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 24).to_le_bytes()[0]
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(byte).collect()
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn negotiated(mut stream: Stream) -> Stream {
    assert_eq!(stream.negotiate(LIMIT), Standing::Memory);
    stream
}

/// Both ends in memory.
fn open_pair() -> (Stream, Stream) {
    let listener = Listener::bind(&loopback()).unwrap();
    let there = Stream::connect(&listener.local_addr().unwrap()).unwrap();
    let here = listener.accept().unwrap();
    assert_eq!(there.peer_addr(), here.local_addr());
    let other = std::thread::spawn(move || negotiated(there));
    (negotiated(here), other.join().unwrap())
}

#[test]
fn std_copies_a_stream_to_its_end() {
    let (mut here, mut there) = open_pair();
    let sender = std::thread::spawn(move || {
        io::copy(&mut bytes(3_000_000).as_slice(), &mut there).unwrap();
        there.finish().unwrap();
        there
    });
    let mut got = Vec::new();
    assert_eq!(io::copy(&mut here, &mut got).unwrap(), 3_000_000);
    assert_eq!(got, bytes(3_000_000));
    let counts = sender.join().unwrap().counts();
    assert_eq!(counts.sent_in_memory + counts.sent_by_tcp, 3_000_000);
}

#[test]
fn many_buffers_are_sent_and_filled_in_one_call() {
    let (mut here, mut there) = open_pair();
    let (a, b) = (bytes(1000), bytes(3000));
    let parts = [IoSlice::new(&a), IoSlice::new(&[]), IoSlice::new(&b)];
    assert_eq!(there.write_vectored(&parts).unwrap(), 4000);
    let (mut one, mut two) = (vec![0; 10], vec![0; 3990]);
    let mut have = 0;
    while have < 4000 {
        let (into_one, into_two) = match have {
            0 => (&mut one[..], &mut two[..]),
            n => (&mut [][..], &mut two[n - 10..]),
        };
        let mut into = [IoSliceMut::new(into_one), IoSliceMut::new(into_two)];
        have += here.read_vectored(&mut into).unwrap();
        assert!(have >= 10);
    }
    assert_eq!([one, two].concat(), [a, b].concat());
    assert_eq!(
        here.counts().received_in_memory + here.counts().received_by_tcp,
        4000
    );
}

#[test]
fn errors_are_std_s() {
    let (mut here, mut there) = open_pair();
    here.set_nonblocking(true).unwrap();
    let nothing = Read::read(&mut here, &mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    drop(here);
    let gone = loop {
        if let Err(error) = Write::write(&mut there, b"x") {
            break error;
        }
    };
    assert!(
        matches!(
            gone.kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
        ),
        "{gone}"
    );
    let refused = |errno: memlane_sys::Errno| io::Error::from(errno).kind();
    let nobody = TcpListener::bind(loopback()).unwrap().local_addr().unwrap();
    let error = Stream::connect(&nobody).unwrap_err();
    assert_eq!(refused(error), ErrorKind::ConnectionRefused);
}

#[test]
fn sockets_of_std_become_streams_and_go_back_while_memory_was_never_open() {
    let listener = Listener::from(TcpListener::bind(loopback()).unwrap());
    let address = listener.local_addr().unwrap();
    assert!(listener.as_fd().as_raw_fd() > 2);
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"before").unwrap();
    let client = Stream::try_from((plain, End::Connected)).unwrap();
    let mut server = listener.accept().unwrap();
    let mut got = [0; 6];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"before");
    // Nothing was agreed: both go back, and TCP carries on.
    let mut client = client.into_tcp().unwrap();
    client.write_all(b"after").unwrap();
    let mut server = server.into_tcp().unwrap();
    server.read_exact(&mut got[..5]).unwrap();
    assert_eq!(&got[..5], b"after");
    drop(TcpListener::from(listener));

    let (here, there) = open_pair();
    let here = here.into_tcp().unwrap_err();
    assert_eq!(here.standing(), Standing::Memory);
    drop(there);
}

#[test]
fn what_goes_by_tcp_behind_a_lane_s_end_is_counted() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // SAFETY: no memory is given; the descriptor is `there`'s, which outlives the lane.
    let lane = unsafe { memlane_socket::native::Lane::of(there.as_raw_fd(), End::Connected, None) }
        .unwrap();
    let here = listener.accept().unwrap().0;
    let (tell, told) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        let mut here = negotiated(Stream::try_from((here, End::Accepted)).unwrap());
        tell.send(()).unwrap();
        let mut all = Vec::new();
        here.read_to_end(&mut all).unwrap();
        (all, here.counts())
    });
    assert_eq!(lane.negotiate(LIMIT), Standing::Memory);
    // A connection that is shut down before its other side has opened the lane does not get it.
    told.recv().unwrap();
    let sent = bytes(200_000);
    send(&lane, &sent[..100_000]);
    lane.end(Reason::PASSED_ON);
    send(&lane, &sent[100_000..]);
    let counts = lane.counts();
    there.shutdown(std::net::Shutdown::Write).unwrap();
    let (all, theirs) = other.join().unwrap();
    assert_eq!(all, sent);
    assert_eq!(counts.sent_in_memory + counts.sent_by_tcp, 200_000);
    assert!(counts.sent_by_tcp >= 100_000, "{counts:?}");
    assert_eq!(theirs.received_in_memory, counts.sent_in_memory);
    assert_eq!(theirs.received_by_tcp, counts.sent_by_tcp);
}

fn send(lane: &memlane_socket::native::Lane, mut from: &[u8]) {
    while !from.is_empty() {
        let piece = memlane_sys::iov::Piece {
            base: from.as_ptr().cast_mut(),
            len: from.len(),
        };
        // SAFETY: a slice, which is readable.
        match unsafe { lane.send(piece) } {
            Ok(n) => from = &from[n..],
            Err(memlane_sys::Errno::AGAIN) => {
                lane.wait(memlane_socket::native::Ready::ToWrite, LIMIT)
                    .unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A conversation with pieces of many sizes, some longer than the ring.
fn talk(address: SocketAddr, seed: usize) {
    let mut stream = Stream::connect(&address).unwrap();
    for round in 0..60 {
        let len = match round % 6 {
            5 => 400_000 + seed,
            n => 1 + (round * 31 + seed * 7) % [1, 10, 100, 1000, 10_000][n],
        };
        let out = bytes(len);
        let mut back = vec![0; len];
        // The echo of a long piece must be taken while it is sent.
        for (out, back) in out.chunks(30_000).zip(back.chunks_mut(30_000)) {
            stream.write_all(out).unwrap();
            stream.read_exact(back).unwrap();
        }
        assert_eq!(out, back, "round {round}");
        if round % 10 == 9 {
            // Long enough for the other end to fall asleep.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

const CLIENTS: usize = 4;

fn talkers(address: SocketAddr) -> Vec<std::thread::JoinHandle<()>> {
    (0..CLIENTS)
        .map(|seed| std::thread::spawn(move || talk(address, seed)))
        .collect()
}

fn all_came_back(counts: &[Counts]) {
    assert_eq!(counts.len(), CLIENTS);
    for counts in counts {
        let received = counts.received_in_memory + counts.received_by_tcp;
        assert_eq!(received, counts.sent_in_memory + counts.sent_by_tcp);
    }
}

#[test]
fn a_plain_epoll_loop_serves_streams() {
    let listener = Listener::bind(&loopback()).unwrap();
    let talkers = talkers(listener.local_addr().unwrap());
    let counts = echo_epoll::serve(&listener, CLIENTS).unwrap();
    all_came_back(&counts);
    talkers
        .into_iter()
        .for_each(|talker| talker.join().unwrap());
}

#[test]
fn tasks_of_a_runtime_wait_for_streams() {
    let listener = Listener::bind(&loopback()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let talkers = talkers(listener.local_addr().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let counts = runtime.block_on(async {
        // SAFETY: a listener's descriptor is open until the listener is dropped.
        let listener = unsafe { tokio::io::unix::AsyncFd::register(listener) }.unwrap();
        let mut tasks = Vec::new();
        for _ in 0..CLIENTS {
            let stream = echo_tokio::accept(&listener).await.unwrap();
            tasks.push(tokio::spawn(echo_tokio::echo(stream)));
        }
        let mut counts = Vec::new();
        for task in tasks {
            counts.push(task.await.unwrap().unwrap());
        }
        counts
    });
    all_came_back(&counts);
    talkers
        .into_iter()
        .for_each(|talker| talker.join().unwrap());
}

/// A task that waits for a stream in memory sleeps: others get their turn, and a word of the peer's wakes it.
#[test]
fn a_task_that_waits_lets_others_run_and_is_woken() {
    let (here, mut there) = open_pair();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut here = echo_tokio::AsyncStream::new(here).unwrap();
        let mut got = [0; 8];
        for round in 0..50_u8 {
            let wait = here.read(&mut got);
            let early = tokio::time::timeout(Duration::from_millis(2), wait).await;
            assert!(early.is_err(), "nothing was sent yet");
            there.write_all(&[round]).unwrap();
            let n = tokio::time::timeout(LIMIT, here.read(&mut got))
                .await
                .unwrap()
                .unwrap();
            assert_eq!((n, got[0]), (1, round));
            // Awake now: what comes before it sleeps again comes in memory.
            there.write_all(b"more").unwrap();
            assert_eq!(here.read(&mut got).await.unwrap(), 4);
        }
        let counts = here.counts();
        assert!(
            counts.received_by_tcp > 25 && counts.received_in_memory > 0,
            "most of the 50 wake-ups found the task asleep: {counts:?}"
        );
    });
}

/// Ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The launcher beside this test's own program, or in the release folder beside it.
fn launcher() -> Option<std::path::PathBuf> {
    let own = std::env::current_exe().ok()?;
    let target = own.ancestors().nth(3)?;
    ["release", "debug"]
        .map(|profile| target.join(profile).join("memlane"))
        .into_iter()
        .find(|path| path.is_file() && path.with_file_name("libmemlane_preload.so").is_file())
}

fn skipped(why: &str) {
    assert!(
        std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_none_or(|v| v != "1"),
        "{why}"
    );
    let _ = writeln!(
        io::stderr(),
        "SKIPPED a_redis_server_under_memlane_is_spoken_to_with_std_s_traits: {why}"
    );
}

/// A port below the ephemeral range, which nobody gets by chance.
fn free_port() -> u16 {
    let start = 21_000 + u16::try_from(std::process::id() % 9000).unwrap();
    (start..32_000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}

fn redis(port: u16) -> Option<Server> {
    let Some(memlane) = launcher() else {
        skipped("memlane and its library are not built: ./dev build");
        return None;
    };
    let mut command = Command::new(memlane);
    command
        .args([
            "run",
            "--upgrade",
            "eager",
            "--",
            "redis-server",
            "--save",
            "",
            "--port",
        ])
        .arg(port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if Command::new("redis-server")
        .arg("--version")
        .output()
        .is_err()
    {
        skipped("there is no redis-server");
        return None;
    }
    Some(Server(command.spawn().unwrap()))
}

fn connect(port: u16) -> Stream {
    let began = Instant::now();
    loop {
        match Stream::connect(&SocketAddr::from(([127, 0, 0, 1], port))) {
            Ok(stream) => return stream,
            Err(error) => assert!(began.elapsed() < LIMIT, "redis does not answer: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_redis_server_under_memlane_is_spoken_to_with_std_s_traits() {
    let port = free_port();
    let Some(_server) = redis(port) else { return };
    let mut redis = BufReader::new(connect(port));
    let mut line = String::new();
    for round in 0..3000 {
        let value = format!("value {round}").repeat(1 + round % 40);
        let order = format!(
            "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n",
            value.len()
        );
        redis.get_mut().write_all(order.as_bytes()).unwrap();
        line.clear();
        redis.read_line(&mut line).unwrap();
        assert_eq!(line, "+OK\r\n");
        redis
            .get_mut()
            .write_all(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
            .unwrap();
        line.clear();
        redis.read_line(&mut line).unwrap();
        assert_eq!(line, format!("${}\r\n", value.len()));
        let mut back = vec![0; value.len() + 2];
        redis.read_exact(&mut back).unwrap();
        assert_eq!(back.strip_suffix(b"\r\n"), Some(value.as_bytes()));
    }
    let stream = redis.get_ref();
    assert_eq!(stream.standing(), Standing::Memory);
    let counts = stream.counts();
    assert!(
        counts.sent_in_memory > 0 && counts.received_in_memory > 0,
        "{counts:?}"
    );
}
