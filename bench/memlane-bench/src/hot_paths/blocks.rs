//! A volume in a server's memory, over the loopback device. Client and server take turns in this thread.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use memlane_block::client::{Access, Client, RemoteVolume};
use memlane_block::server::{ServerConfig as Served, Shared};
use memlane_block::volume::{Done, Io, Op, Queue, Volume as _};
use memlane_transport::engine::client::Config as ClientEngine;
use memlane_transport::engine::pulse::Heartbeat;
use memlane_transport::engine::server::Config as ServerEngine;
use memlane_transport::io::{Address, ClientConfig, PathAddr, ServerConfig, SteppedServer, open};
use memlane_transport::port::Service;
use memlane_transport::wire::Geometry;

use super::WARM_UP;
use super::counted::counted;

const BLOCK: u32 = 4096;
const VOLUME: &str = "mem:1048576";
/// A path that is silent for so long is down. Long, so that no heartbeat is counted.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// Steps of the server until the requests of one turn are done, unless other programs want the CPUs …
const STEPS: u32 = 1000;
/// … and steps that follow, with pauses of this length. Then they must be done.
const NAPS: u32 = 10_000;
const NAP: Duration = Duration::from_millis(1);

/// Carries `times` requests, `depth` at a time.
pub(super) fn requests(op: Op, depth: u64, times: u64) -> anyhow::Result<()> {
    let shared = Shared::new(Served {
        test_volumes: true,
        ..Served::new(std::env::temp_dir())
    })?;
    let geometry = Geometry::new(64, 128 << 10, 4096).context("a geometry")?;
    let config = ServerConfig::new(vec![address()], ServerEngine::new(geometry, 1));
    let mut server = SteppedServer::new(config, shared.service()?)?;
    let (_client, volume) = opened(&mut server)?;
    let mut queue = volume.queue()?;
    let mut done = Vec::with_capacity(64);
    let mut turns = |count: u64| {
        (0..count).try_for_each(|_| turn(&mut server, &mut *queue, op, depth, &mut done))
    };
    turns(WARM_UP)?;
    counted(&mut || turns(times.div_ceil(depth)))
}

/// An address that no other server has.
fn address() -> Address {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    Address::Local(format!("memlane-bench-path-{}-{n}", std::process::id()))
}

/// The volume, opened by another thread while this one serves.
fn opened<S: Service>(
    server: &mut SteppedServer<S>,
) -> anyhow::Result<(Client, std::sync::Arc<RemoteVolume>)> {
    let address = server.addresses().first().context("an address")?;
    let paths = vec![PathAddr::to(address.clone())];
    let mut engine = ClientEngine::new("hot", *b"hot-hot-hot-hot!");
    engine.heartbeat = Heartbeat::within(HEARTBEAT);
    let opening = std::thread::spawn(move || -> anyhow::Result<_> {
        let client = Client::new(open(ClientConfig { engine, paths })?)?;
        let volume = client.open(VOLUME, Access::ReadWrite)?;
        Ok((client, volume))
    });
    while !opening.is_finished() {
        server.step();
        std::thread::yield_now();
    }
    let opened = opening.join();
    opened.map_err(|_| anyhow::anyhow!("the thread that opens ended badly"))?
}

/// As many requests as go at a time, to their end.
fn turn<S: Service>(
    server: &mut SteppedServer<S>,
    queue: &mut dyn Queue,
    op: Op,
    depth: u64,
    done: &mut Vec<Done>,
) -> anyhow::Result<()> {
    for n in 0..depth {
        let lease = queue.lease(BLOCK)?.context("no memory is free")?;
        queue.submit(Io::data(n, op, n * u64::from(BLOCK), BLOCK, lease));
    }
    queue.push();
    for step in 0..STEPS + NAPS {
        server.step();
        queue.reap(done);
        if done.len() as u64 == depth {
            break;
        }
        // The session's own thread, which looks around now and then, has the lead: it gets the CPU, unless others want it.
        match step < STEPS {
            true => std::thread::yield_now(),
            false => std::thread::sleep(NAP),
        }
    }
    ensure!(done.len() as u64 == depth, "requests without an answer");
    for done in done.drain(..) {
        ensure!(done.result.is_ok(), "a request failed: {:?}", done.result);
    }
    Ok(())
}
