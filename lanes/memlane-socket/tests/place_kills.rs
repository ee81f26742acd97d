//! A peer that sends and receives where the bytes lie dies or stops at each step of that (`faults`, part `Places`): who
//! is left sees what TCP would have shown, and nothing of it stays behind.
//!
//! `cargo test -p memlane-socket --features faults --test place_kills`

#![allow(clippy::cast_possible_truncation)] // small numbers, on 64 bits

use memlane_socket::Listener;
use memlane_socket::Stream;
use memlane_socket::faults::{Part, STEPS};
use memlane_socket::native::{Came, End, Lane, Memory, Ready, Standing};
use memlane_sys::iov::Piece;
use memlane_sys::{Errno, mem};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const ROUNDS: u64 = 40;
/// How a peer ends whose lane did not open: with faults, nobody waits long for an answer, and the machine may be slow.
const NO_LANE: i32 = 77;
const TRIES: u32 = 30;
/// The ring that a peer that holds bytes gives for them.
const RING: usize = 64 * 1024;

/// Of each round: bytes there, and as many back.
fn length(round: u64) -> u64 {
    1 + round * 7001 % 50_000
}

fn byte(at: u64, back: bool) -> u8 {
    ((at + u64::from(back)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(from: u64, to: u64, back: bool) -> Vec<u8> {
    (from..to).map(|at| byte(at, back)).collect()
}

fn piece(of: &mut [u8]) -> Piece {
    Piece {
        base: of.as_mut_ptr(),
        len: of.len(),
    }
}

// --- who dies ----------------------------------------------------------------

/// This very program: `part` is `places` or `holds`. `said` is where it writes how many of its bytes are on their way.
fn peer(part: &str, fault: &str, port: u16, said: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "plays_its_part", "--ignored", "--nocapture"])
        .env("MEMLANE_FAULT", fault)
        .env("PLACE_PART", part)
        .env("PLACE_PORT", port.to_string())
        .env("PLACE_SAID", said)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the other process of those below"]
fn plays_its_part() {
    // Whoever waits for a byte that never comes.
    // SAFETY: no pointers are passed.
    unsafe { libc::alarm(LIMIT.as_secs() as u32) };
    let of = |name| std::env::var(name).unwrap();
    let port: u16 = of("PLACE_PORT").parse().unwrap();
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let said = std::fs::File::create(of("PLACE_SAID")).unwrap();
    let say = |sent: u64| said.write_all_at(&sent.to_ne_bytes(), 0).unwrap();
    match of("PLACE_PART").as_str() {
        "places" => fills_places(Stream::connect(&to).unwrap(), say),
        _ => holds_bytes(&TcpStream::connect(to).unwrap(), say),
    }
}

fn is_open(standing: Standing) {
    if standing != Standing::Memory {
        std::process::exit(NO_LANE);
    }
}

/// By reserve and commit, peek and consume.
fn fills_places(mut stream: Stream, say: impl Fn(u64)) {
    is_open(stream.negotiate(LIMIT));
    let (mut sent, mut seen) = (0, 0);
    for round in 0..ROUNDS {
        let end = sent + length(round);
        while sent < end {
            let slot = stream.reserve((end - sent) as usize).unwrap();
            let next = end.min(sent + slot.len() as u64);
            assert!(slot.fill(0, &bytes(sent, next, false)));
            slot.commit((next - sent) as usize).unwrap();
            sent = next;
            say(sent);
        }
        while seen < end {
            let here = stream.peek().unwrap();
            let mut copy = vec![0; here.len().min((end - seen) as usize)];
            assert!(!copy.is_empty() && here.copy_to(0, &mut copy));
            assert_eq!(copy, bytes(seen, seen + copy.len() as u64, true));
            here.consume(copy.len());
            seen += copy.len() as u64;
        }
    }
}

/// What comes lands in memory of this process's own, and is given back a piece later.
fn holds_bytes(socket: &TcpStream, say: impl Fn(u64)) {
    let file = mem::memfd(c"place-kills", RING, false).unwrap();
    mem::add_seals(file.raw(), mem::SEALS_FIXED).unwrap();
    let base = mem::map_shared(file.raw(), 0, RING, true).unwrap();
    let memory = Memory {
        base,
        len: RING as u32,
        file: file.raw(),
        offset: 0,
    };
    // SAFETY: the memory stays until the process ends.
    let lane = unsafe { Lane::of(socket.as_raw_fd(), End::Connected, Some(&memory)) }.unwrap();
    is_open(lane.negotiate(LIMIT));
    let consumer = lane.consumer().unwrap();
    let (mut sent, mut seen, mut held) = (0, 0, 0);
    for round in 0..ROUNDS {
        let end = sent + length(round);
        while sent < end {
            let mut rest = bytes(sent, end, false);
            // SAFETY: it is readable.
            match unsafe { lane.send(piece(&mut rest)) } {
                Ok(n) => sent += n as u64,
                Err(Errno::AGAIN) => drop(lane.wait(Ready::ToWrite, LIMIT).unwrap()),
                Err(error) => panic!("{error}"),
            }
            say(sent);
        }
        while seen < end {
            let mut buffer = vec![0; 20_000];
            // SAFETY: the piece is writable and nobody else's.
            let came = unsafe { lane.receive((end - seen) as usize, &[piece(&mut buffer)]) };
            let came = match came {
                Err(Errno::AGAIN) => {
                    consumer.release_to(held);
                    lane.wait(Ready::ToRead, LIMIT).unwrap();
                    continue;
                }
                came => came.unwrap(),
            };
            let got = match came {
                Came::Ring { offset, at, len } => {
                    consumer.release_to(held); // of the piece before
                    held = offset + len as u64;
                    // SAFETY: `at` and `len` lie in the ring, and the sender does not write there.
                    unsafe { core::slice::from_raw_parts(base.as_ptr().add(at), len) }.to_vec()
                }
                Came::Tcp(n) => buffer[..n].to_vec(),
            };
            assert!(!got.is_empty());
            assert_eq!(got, bytes(seen, seen + got.len() as u64, true));
            seen += got.len() as u64;
        }
    }
}

// --- who is left -------------------------------------------------------------

struct Left {
    listener: Listener,
    port: u16,
    said: std::path::PathBuf,
}

/// How a dialogue went, as the one sees it who is left.
#[derive(PartialEq, Eq, Debug)]
enum Ended {
    Whole,
    /// At the end of the stream, or with a reset.
    Early {
        taken: u64,
        reset: bool,
    },
}

impl Left {
    fn new(test: &str) -> Left {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let name = format!("place-kills-{test}-{}", std::process::id());
        Left {
            listener,
            port,
            said: std::env::temp_dir().join(name),
        }
    }

    /// Takes and answers; every byte is looked at.
    fn dialogue(&self) -> Ended {
        let mut stream = self.listener.accept().unwrap();
        stream.negotiate(LIMIT);
        let early = |taken, error| match error {
            Errno(0) => Ended::Early {
                taken,
                reset: false,
            },
            Errno(libc::ECONNRESET | libc::EPIPE) => Ended::Early { taken, reset: true },
            error => panic!("{error} at {taken}"),
        };
        let (mut taken, mut answered) = (0, 0);
        let mut buffer = vec![0; 30_000];
        for round in 0..ROUNDS {
            let end = taken + length(round);
            while taken < end {
                let most = buffer.len().min((end - taken) as usize);
                let n = match stream.read(&mut buffer[..most]) {
                    Ok(0) => return early(taken, Errno(0)),
                    Ok(n) => n as u64,
                    Err(error) => return early(taken, error),
                };
                assert_eq!(buffer[..n as usize], bytes(taken, taken + n, false));
                taken += n;
            }
            while answered < end {
                match stream.write(&bytes(answered, end, true)) {
                    Ok(n) => answered += n as u64,
                    Err(error) => return early(taken, error),
                }
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) => Ended::Whole,
            other => panic!("not the end: {other:?}"),
        }
    }

    fn said(&self) -> u64 {
        let file = std::fs::File::open(&self.said).unwrap();
        let mut word = [0; 8];
        file.read_exact_at(&mut word, 0)
            .map_or(0, |()| u64::from_ne_bytes(word))
    }

    /// One dialogue with such a peer, whose lane opens; and how the peer ended.
    fn with(&self, part: &str, fault: &str) -> (Ended, ExitStatus) {
        for _ in 0..TRIES {
            let mut child = peer(part, fault, self.port, &self.said);
            let ended = self.dialogue();
            let status = child.wait().unwrap();
            if status.code() != Some(NO_LANE) {
                return (ended, status);
            }
        }
        panic!("{part}, {fault}: the lane never opens");
    }

    fn good_round(&self, part: &str) {
        let (ended, status) = self.with(part, "");
        assert!(
            ended == Ended::Whole && status.success(),
            "{ended:?} {status}"
        );
    }

    /// It dies there. `false`: it never got there, and all was well.
    fn survives(&self, part: &str, fault: &str) -> bool {
        let (ended, status) = self.with(part, fault);
        if ended == Ended::Whole && status.success() {
            return false;
        }
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{fault}: {status}");
        let Ended::Early { taken, reset } = ended else {
            return true; // after its last byte
        };
        let said = self.said();
        assert!(reset || taken >= said, "{fault}: {taken} of {said} bytes");
        true
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.said);
    }
}

/// Who gets to which of the steps.
fn gets_to(part: &str, step: &str) -> bool {
    step.starts_with("held") == (part == "holds")
}

fn steps(part: &str) -> impl Iterator<Item = &'static str> {
    let of_places = STEPS.iter().filter(|(_, of, _)| *of == Part::Places);
    of_places
        .map(|(name, ..)| *name)
        .filter(move |step| gets_to(part, step))
}

/// Descriptors, and mappings of shared memory. A process that has spun on a full machine keeps one descriptor for good, the
/// one that shows how many threads are runnable.
fn held() -> [usize; 2] {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let files = files.filter(|file| {
        std::fs::read_link(file.path()).is_ok_and(|to| to != Path::new("/proc/loadavg"))
    });
    let files = files.count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("memlane-dmb"));
    [files, shared.count()]
}

fn dies_everywhere(part: &str) {
    let left = Left::new(part);
    left.good_round(part);
    let before = held();
    for step in steps(part) {
        // How often bytes come by the ring is a matter of time.
        let reached = (0..TRIES).any(|_| left.survives(part, &format!("{step}:kill:1")));
        assert!(reached, "{step}: it never got there");
        left.survives(part, &format!("{step}:kill:5"));
    }
    // What belonged to the dead goes when somebody new comes, a second later.
    std::thread::sleep(Duration::from_millis(1100));
    left.good_round(part);
    let after = held();
    assert!(
        after[0] <= before[0] && after[1] <= before[1] + 2,
        "{before:?} {after:?}"
    );
}

// In one test: what is held is counted of the whole process.
#[test]
fn a_peer_that_dies_where_it_fills_or_shows_places_or_holds_bytes_is_what_tcp_would_show() {
    dies_everywhere("places");
    dies_everywhere("holds");
    stops_everywhere();
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
    state == Some(b'T')
}

/// It stops there, and goes on later: not a byte is missing.
fn stops_everywhere() {
    let left = Left::new("stops");
    for part in ["places", "holds"] {
        for step in steps(part) {
            let fault = format!("{step}:stop:1");
            let woken = (0..TRIES).any(|_| {
                let child = peer(part, &fault, left.port, &left.said);
                let waker = std::thread::spawn(move || wakes(child));
                let ended = left.dialogue();
                let (woken, status) = waker.join().unwrap();
                let well = ended == Ended::Whole && status.success();
                assert!(
                    well || status.code() == Some(NO_LANE),
                    "{fault}: {ended:?} {status}"
                );
                woken
            });
            assert!(woken, "{fault}: it never got there");
        }
    }
}

/// Has it go on when it has stopped; did it, and how did it end?
fn wakes(mut child: Child) -> (bool, ExitStatus) {
    let pid = child.id().to_string();
    let mut stopped = false;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return (stopped, status);
        }
        std::thread::sleep(Duration::from_millis(2));
        if is_stopped(child.id()) {
            stopped = true;
            std::thread::sleep(Duration::from_millis(20));
            let mut kill = Command::new("kill");
            let woken = kill.args(["-s", "CONT", &pid]).status();
            assert!(woken.is_ok_and(|status| status.success()));
        }
    }
}
