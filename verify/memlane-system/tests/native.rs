//! Streams by name, with programs at the other end that run under memlane, and the same programs without it.

use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use memlane_devmem::DeviceRegion;
use memlane_devmem::error::ReceiveError;
use memlane_devmem::io::lane::{self, End};
use memlane_devmem::io::{Binding, Path, Terms, Wait};
use memlane_socket::Listener;
use memlane_socket::Stream;
use memlane_socket::native::Standing;
use memlane_system::harness::{Mode, Running, command, plain_only};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: usize = 40_000_000;
/// The period of what is sent: 1 to 250 and 0.
const PERIOD: usize = 251;

/// Sends the pattern in pieces of many sizes, or reads it to its end; both look at each byte.
const PEER: &str = r#"
import socket, sys
part, port, total = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pattern = bytes(list(range(1, 251)) + [0]) * 2000
s = socket.create_connection(("127.0.0.1", port))
at = 0
if part == "sends":
    n = 1
    while at < total:
        size = min(n, total - at, 400000)
        start = at % 251
        s.sendall(pattern[start:start + size])
        at += size
        n = n * 7 % 500000 + 1
    s.shutdown(socket.SHUT_WR)
elif part == "pours":
    while True:
        s.sendall(pattern)
else:
    while True:
        b = s.recv(300000)
        if not b:
            break
        start = at % 251
        assert b == pattern[start:start + len(b)], at
        at += len(b)
    assert at == total, at
"#;

fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: there is no python3");
    }
    found
}

fn modes() -> Vec<Mode> {
    match plain_only() {
        true => vec![Mode::Plain],
        false => vec![Mode::Plain, Mode::Eager, Mode::Auto],
    }
}

/// The other end, and a listener that it connects to.
fn peer(mode: Mode, part: &str, listener: &Listener) -> Running {
    let port = listener.local_addr().unwrap().port().to_string();
    let mut python = command(mode, "python3");
    python.args(["-c", PEER, part, &port, &BYTES.to_string()]);
    Running::start(python)
}

fn listener() -> Listener {
    Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap()
}

/// At the speed of a memcmp, also in a test that is not optimised: a receiver that takes its time is sent everything by TCP.
fn is_pattern(bytes: &[u8], at: usize) -> bool {
    static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let period: Vec<u8> = (1..=250).chain([0]).collect();
        period.repeat((2 << 20) / PERIOD)
    });
    bytes == &PATTERN[at % PERIOD..][..bytes.len()]
}

/// Reads to the end, in place; how many bytes.
fn read_all(stream: &mut Stream) -> usize {
    let (mut at, mut copy) = (0, vec![0; 1 << 20]);
    loop {
        let here = stream.peek().unwrap();
        let n = here.len().min(copy.len());
        assert!(here.copy_to(0, &mut copy[..n]));
        here.consume(n);
        if n == 0 {
            return at;
        }
        assert!(is_pattern(&copy[..n], at), "other bytes at {at}");
        at += n;
    }
}

/// Runs a story in each mode; it returns the number of bytes that went through memory. Which lane carries a byte depends
/// on who has a CPU when, so a story that succeeds but moves nothing through memory runs again.
fn tell(story: impl Fn(Mode) -> u64) {
    if !has_python() {
        return;
    }
    for mode in modes() {
        match mode {
            Mode::Plain => assert_eq!(story(mode), 0, "nobody is at the other end of a ring"),
            _ => assert!((0..6).any(|_| story(mode) > 0), "{mode:?}: all by TCP"),
        }
    }
}

#[test]
fn what_a_program_sends_is_read_in_place() {
    tell(|mode| {
        let listener = listener();
        let program = peer(mode, "sends", &listener);
        let mut stream = listener.accept().unwrap();
        assert_eq!(read_all(&mut stream), BYTES);
        let done = program.finish(LIMIT);
        assert!(done.is_ok(), "{}", done.report());
        stream.counts().received_in_memory
    });
}

#[test]
fn a_program_gets_what_is_put_into_its_memory() {
    tell(|mode| {
        let listener = listener();
        let program = peer(mode, "reads", &listener);
        let mut stream = listener.accept().unwrap();
        let pattern: Vec<u8> = (1..=2 << 20)
            .map(|n| u8::try_from(n % PERIOD).unwrap())
            .collect();
        let mut at = 0;
        while at < BYTES {
            let slot = stream.reserve((BYTES - at).min(1 << 20)).unwrap();
            let n = slot.len().min(BYTES - at);
            assert!(slot.fill(0, &pattern[at % PERIOD..][..n]));
            slot.commit(n).unwrap();
            at += n;
        }
        stream.finish().unwrap();
        let done = program.finish(LIMIT);
        assert!(done.is_ok(), "{mode:?}: {}", done.report());
        stream.counts().sent_in_memory
    });
}

#[test]
fn a_program_puts_bytes_into_a_region_and_nobody_else_copies_them() {
    tell(|mode| {
        let region = DeviceRegion::create(&"memfd:4M".parse().unwrap()).unwrap();
        let binding = Binding::new(region, 4096).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let mut python = command(mode, "python3");
        python.args(["-c", PEER, "sends", &port, &BYTES.to_string()]);
        let program = Running::start(python);
        let socket = listener.accept().unwrap().0;
        let terms = Terms::default();
        let mut stream = lane::stream(socket.into(), End::Accepted, &binding, &terms).unwrap();
        let (mut at, mut fragments, mut copy) = (0, Vec::new(), Vec::new());
        loop {
            match stream.receive(&mut fragments) {
                Ok(0) => break,
                Err(ReceiveError::WouldBlock) => {
                    assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
                }
                came => assert!(came.is_ok(), "{came:?}"),
            }
            for fragment in fragments.drain(..) {
                copy.resize(fragment.len as usize, 0);
                stream.read(fragment.token, 0, &mut copy).unwrap();
                assert!(is_pattern(&copy, at), "{mode:?}: other bytes at {at}");
                at += copy.len();
                assert_eq!(stream.release(&[fragment.into()]), Ok(1));
            }
        }
        assert_eq!(at, BYTES);
        let (counts, path) = (stream.counts(), stream.path());
        assert_eq!(counts.bounced, 0);
        match mode {
            Mode::Plain => assert_eq!(path, Path::Mapped),
            _ => assert!(counts.by_lane == 0 || path == Path::Lane, "{path}"),
        }
        drop(stream);
        assert_eq!(binding.counts().free, binding.counts().chunks);
        let done = program.finish(LIMIT);
        assert!(done.is_ok(), "{}", done.report());
        counts.by_lane
    });
}

#[test]
fn a_program_that_is_killed_ends_the_stream_and_nothing_else() {
    if !has_python() || plain_only() {
        return;
    }
    let listener = listener();
    let program = peer(Mode::Eager, "pours", &listener);
    let mut stream = listener.accept().unwrap();
    let mut at = 0;
    let mut copy = vec![0; 1 << 20];
    let mut program = Some(program);
    loop {
        let here = match stream.peek() {
            Ok(here) => here,
            Err(error) => {
                assert_eq!(error.0, 104, "ECONNRESET or an end: {error}");
                break;
            }
        };
        let n = here.len().min(copy.len());
        assert!(here.copy_to(0, &mut copy[..n]));
        here.consume(n);
        if n == 0 {
            break;
        }
        // 502,000 bytes are whole periods.
        assert!(is_pattern(&copy[..n], at), "other bytes at {at}");
        at += n;
        if at > 5_000_000
            && stream.standing() == Standing::Memory
            && let Some(program) = program.take()
        {
            program.signal("KILL");
            program.finish(LIMIT);
        }
    }
    assert!(program.is_none(), "it ended by itself at {at}");
}
