//! How fast is a session? Requests of one size at one depth through a device, to a service that does nothing.
//!
//! `pump [tcp|local] [read|write] [size] [depth] [threads] [seconds]`: requests per second, and the time that one takes.

use memlane_core::access::SharedBytes;
use memlane_transport::engine::server::{self, Job, SessionId};
use memlane_transport::engine::{Direction, client};
use memlane_transport::io::{Address, ClientConfig, PathAddr, ServerConfig, open, serve};
use memlane_transport::port::{Finished, Identity, Service, Session, Submission};
use memlane_transport::wire::Geometry;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Does nothing, at once.
#[derive(Default)]
struct Null(Vec<Finished>);

impl Service for Null {
    fn opened(&mut self, _: SessionId, _: &str, _: &Identity) -> bool {
        true
    }

    fn execute(&mut self, job: Job, _: SharedBytes) {
        self.0.push(Finished {
            session: job.session,
            permit: job.permit,
            generation: job.generation,
            errno: 0,
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

struct Load {
    direction: Direction,
    size: u32,
    depth: usize,
    time: Duration,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |at: usize, default: &str| args.get(at).cloned().unwrap_or(default.into());
    let number = |at: usize, default: &str| -> u64 { arg(at, default).parse().expect("a number") };
    let listen = match arg(0, "tcp").as_str() {
        "tcp" => Address::Tcp(([127, 0, 0, 1], 0).into()),
        "local" => Address::Local(format!("memlane-pump-{}", std::process::id())),
        other => panic!("no device {other}"),
    };
    let direction = match arg(1, "read").as_str() {
        "read" => Direction::Read,
        _ => Direction::Write,
    };
    let load = Load {
        direction,
        size: u32::try_from(number(2, "4096")).expect("a size"),
        depth: usize::try_from(number(3, "1")).expect("a depth"),
        time: Duration::from_secs(number(5, "2")),
    };
    let geometry = Geometry::new(512, 1 << 20 | 4096, 4096);
    let geometry = geometry.or(Geometry::new(256, (1 << 20) + 4096, 4096));
    let geometry = geometry
        .or(Geometry::new(128, 1 << 20, 4096))
        .expect("a geometry");
    let config = ServerConfig::new(vec![listen], server::Config::new(geometry, 1));
    let server = serve(config, |_| Ok(Null::default())).expect("a server");
    let session = open(ClientConfig {
        engine: client::Config::new("pump", *b"pump-pump-pump-1"),
        paths: vec![PathAddr::to(server.addresses()[0].clone())],
    })
    .expect("a session");
    let load = Arc::new(load);
    let before = cpu();
    let threads: Vec<_> = (0..number(4, "1"))
        .map(|_| {
            let (session, load) = (Arc::clone(&session), Arc::clone(&load));
            std::thread::spawn(move || pump(&*session, &load))
        })
        .collect();
    let rates: Vec<_> = threads
        .into_iter()
        .map(|t| t.join().expect("it ran"))
        .collect();
    let total: f64 = rates.iter().sum();
    let micros = 1e6 * load.depth as f64 * rates.len() as f64 / total;
    let used = (cpu() - before) / (total * load.time.as_secs_f64()) * 1e6;
    let bytes = total * f64::from(load.size) / 1e9;
    while let Some(news) = session.news() {
        if !matches!(news, memlane_transport::port::News::PathUp(_)) {
            eprintln!("{news:?}");
        }
    }
    println!("{total:.0} IOPS, {micros:.1} us each, {bytes:.2} GB/s, {used:.2} us CPU each");
}

/// Seconds that this process has computed, both sides of it.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// One thread's requests; how many in a second.
fn pump(session: &dyn Session, load: &Load) -> f64 {
    let mut port = session.port().expect("a port");
    let (mut flying, mut count, mut done) = (0, 0_u64, Vec::new());
    let mut start = Instant::now();
    let mut counts = false;
    loop {
        while flying < load.depth {
            let Some(lease) = port.lease(load.size).expect("not too long") else {
                break;
            };
            flying += 1;
            port.submit(Submission {
                tag: 0,
                direction: load.direction,
                usr: [0; 32].into(),
                len: load.size,
                lease: Some(lease),
            });
        }
        port.push();
        port.wait(Some(Duration::from_millis(100)));
        port.reap(&mut done);
        for completion in done.drain(..) {
            completion.result.expect("it succeeds");
            flying -= 1;
            count += 1;
        }
        if !counts && count > 0 {
            (counts, count, start) = (true, 0, Instant::now());
        }
        if counts && start.elapsed() >= load.time {
            return count as f64 / start.elapsed().as_secs_f64();
        }
    }
}
