//! A server in a process of its own, killed in the middle of everything.

mod support;

use memlane_core::access::SharedBytes;
use memlane_transport::engine::Direction;
use memlane_transport::engine::server::{Job, SessionId};
use memlane_transport::io::{Address, ServerConfig, serve};
use memlane_transport::port::{Finished, Identity, News, Service, Session, Submission};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{MOST, PATIENCE, Rng, connect, hear, local, server_engine, usr};

const LISTEN: &str = "MEMLANE_TEST_LISTEN";

/// What belongs to a request: anybody can tell, so that a server needs no memory for it.
fn pattern(id: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(id);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| rng.next().to_le_bytes())
        .collect();
    bytes.truncate(len);
    bytes
}

/// Checks what is written, and fills in what is read.
struct Checks(Vec<Finished>);

impl Service for Checks {
    fn opened(&mut self, _: SessionId, _: &str, who: &Identity) -> bool {
        let me = memlane_sys::proc::euid();
        !matches!(who, Identity::Local { uid, .. } if *uid != me)
    }

    fn execute(&mut self, job: Job, chunk: SharedBytes) {
        let id = u64::from_le_bytes(job.usr[8..16].try_into().expect("8 bytes"));
        let right = pattern(id, job.len as usize);
        let mut bytes = right.clone();
        // SAFETY: both vectors are as long as is said.
        let ok = unsafe {
            match job.direction {
                Direction::Write => chunk.copy_out(0, bytes.as_mut_ptr(), bytes.len()),
                Direction::Read => chunk.copy_in(0, bytes.as_ptr(), bytes.len()),
            }
        };
        self.0.push(Finished {
            session: job.session,
            permit: job.permit,
            generation: job.generation,
            errno: if ok && bytes == right { 0 } else { 5 },
        });
    }

    fn finished(&mut self, into: &mut Vec<Finished>) {
        into.append(&mut self.0);
    }

    fn notices(&mut self, _: &mut Vec<(SessionId, u32)>) {}

    fn gone(&mut self, _: SessionId) {}

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Not a test: what a child of the tests below does until its input ends.
#[test]
#[ignore = "the child of other tests"]
fn serves_in_a_process_of_its_own() {
    let Ok(listen) = std::env::var(LISTEN) else {
        return;
    };
    let listen = match listen.strip_prefix("tcp:") {
        Some(addr) => Address::Tcp(addr.parse().expect("an address")),
        None => Address::Local(listen),
    };
    let born = memlane_sys::proc::random_u64().expect("random");
    let config = ServerConfig::new(vec![listen], server_engine(born));
    let server = serve(config, |_| Ok(Checks(Vec::new()))).expect("a server");
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
    drop(server);
}

struct Process(Child);

impl Process {
    fn start(listen: &str) -> Process {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args([
                "--exact",
                "serves_in_a_process_of_its_own",
                "--ignored",
                "--nocapture",
            ])
            .env(LISTEN, listen)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let ready = output
            .lines()
            .any(|line| line.is_ok_and(|line| line.ends_with("ready")));
        assert!(ready, "the server did not start");
        Process(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Requests of all sizes, until told to stop; how many?
fn work(session: &dyn Session, seed: u64, over: &AtomicBool) -> u64 {
    let mut port = session.port().expect("a port");
    let mut rng = Rng(seed);
    let (mut flying, mut count, mut next, mut done) = (0, 0, seed << 32, Vec::new());
    let mut last = Instant::now();
    while flying > 0 || !over.load(Ordering::Relaxed) {
        while flying < 12 && !over.load(Ordering::Relaxed) {
            let len = match rng.below(4) {
                0 => MOST,
                _ => u32::try_from(rng.below(6000)).expect("small"),
            };
            let Some(lease) = port.lease(len).expect("open") else {
                break;
            };
            let direction = match rng.below(2) {
                0 => Direction::Read,
                _ => Direction::Write,
            };
            let bytes = match direction {
                Direction::Write => pattern(next, len as usize),
                Direction::Read => vec![0; len as usize],
            };
            assert!(lease.fill(0, &bytes));
            port.submit(Submission {
                tag: next,
                direction,
                usr: usr(u64::from(direction == Direction::Read), next),
                len,
                lease: Some(lease),
            });
            next += 1;
            flying += 1;
        }
        port.push();
        port.wait(Some(Duration::from_millis(50)));
        if port.reap(&mut done) > 0 {
            last = Instant::now();
        }
        assert!(last.elapsed() < PATIENCE, "nothing is done any more");
        for completion in done.drain(..) {
            assert_eq!(completion.result, Ok(()), "request {:#x}", completion.tag);
            let lease = completion.lease.expect("it comes back");
            let mut bytes = vec![0; lease.bytes().len()];
            assert!(lease.take(0, &mut bytes));
            assert!(
                bytes == pattern(completion.tag, bytes.len()),
                "{:#x}",
                completion.tag
            );
            flying -= 1;
            count += 1;
        }
    }
    count
}

/// An address whose port no outgoing connection takes while the server is away: below the kernel's range for these.
fn kept_address() -> SocketAddr {
    let first = 11_000 + u16::try_from(std::process::id() % 10_000).expect("small");
    (first..first + 1000)
        .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .find(|address| std::net::TcpListener::bind(address).is_ok())
        .expect("a port")
}

#[test]
fn a_server_process_that_is_killed_and_started_again_loses_nothing() {
    let tcp = kept_address();
    let Address::Local(name) = local() else {
        panic!("it is local");
    };
    for (listen, address) in [
        (format!("tcp:{tcp}"), Address::Tcp(tcp)),
        (name.clone(), Address::Local(name)),
    ] {
        let mut server = Process::start(&listen);
        let session = connect(&[&address]);
        let over = AtomicBool::new(false);
        let count: u64 = std::thread::scope(|scope| {
            let workers: Vec<_> = (1..=2)
                .map(|seed| {
                    let (session, over) = (&session, &over);
                    scope.spawn(move || work(&**session, seed, over))
                })
                .collect();
            for _ in 0..4 {
                hear(&session, |news| matches!(news, News::PathUp(_)));
                std::thread::sleep(Duration::from_millis(150));
                drop(server);
                server = Process::start(&listen);
            }
            hear(&session, |news| matches!(news, News::PathUp(_)));
            over.store(true, Ordering::Relaxed);
            workers
                .into_iter()
                .map(|worker| worker.join().expect("all was right"))
                .sum()
        });
        assert!(count > 100, "only {count} requests");
    }
}
