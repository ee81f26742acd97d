//! A request from its user to the volume and back, all of it: nothing is allocated, at neither end.
//!
//! Alone in its program, because it counts for all threads.

use memlane_block::client::{Access, Client};
use memlane_block::server::{ServerConfig as Served, Shared};
use memlane_block::volume::{Done, Io, Op, Queue, Volume as _};
use memlane_transport::engine::client::Config as ClientEngine;
use memlane_transport::engine::server::Config as ServerEngine;
use memlane_transport::io::{Address, ClientConfig, PathAddr, ServerConfig, open, serve};
use memlane_transport::wire::Geometry;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts what is allocated, by any thread.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: it does what the system's allocator does.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: u64 = 16;
const ROUNDS: u64 = 500;
/// Heartbeats, and whatever else has its own time.
const BESIDE: u64 = DEPTH * ROUNDS / 50;

/// `DEPTH` requests, to their end.
fn round(queue: &mut dyn Queue, op: Op, done: &mut Vec<Done>) {
    for n in 0..DEPTH {
        let lease = queue.lease(4096).unwrap().expect("one is free");
        queue.submit(Io::data(n, op, n * 4096, 4096, lease));
    }
    queue.push();
    let (began, mut over) = (Instant::now(), 0);
    while over < DEPTH {
        queue.wait(Some(Duration::from_secs(1)));
        queue.reap(done);
        for done in done.drain(..) {
            assert_eq!(done.result, Ok(()));
            over += 1;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "it does not end");
    }
}

fn count(listen: Address) {
    let served = Served {
        test_volumes: true,
        ..Served::new(std::env::temp_dir())
    };
    let shared = Shared::new(served).unwrap();
    let geometry = Geometry::new(64, 128 << 10, 4096).unwrap();
    let config = ServerConfig::new(vec![listen], ServerEngine::new(geometry, 1));
    let server = serve(config, move |_| shared.service()).unwrap();
    let engine = ClientEngine::new("hot", *b"hot-hot-hot-hot!");
    let paths = vec![PathAddr::to(server.addresses()[0].clone())];
    let client = Client::new(open(ClientConfig { engine, paths }).unwrap()).unwrap();
    let volume = client.open("mem:1048576", Access::ReadWrite).unwrap();
    let mut queue = volume.queue().unwrap();
    let mut done = Vec::with_capacity(64);
    for op in [Op::Write, Op::Read] {
        // Whatever grows with what is under way has grown.
        (0..ROUNDS / 5).for_each(|_| round(&mut *queue, op, &mut done));
        let before = ALLOCATED.load(Ordering::SeqCst);
        (0..ROUNDS).for_each(|_| round(&mut *queue, op, &mut done));
        let allocated = ALLOCATED.load(Ordering::SeqCst) - before;
        let requests = DEPTH * ROUNDS;
        println!("{op:?}: {allocated} allocations for {requests} requests");
        assert!(allocated < BESIDE, "{op:?}: {allocated} allocations");
    }
    drop(queue);
    drop(volume);
}

#[test]
fn a_request_takes_no_memory_at_either_end() {
    count(Address::Local(format!(
        "memlane-hot-{}",
        std::process::id()
    )));
    count(Address::Tcp(([127, 0, 0, 1], 0).into()));
}
