//! Connections whose clients wait for each answer, on one CPU: they take turns, rather than sleep until they are woken.

mod nbd_support;

use memlane_block::volume::mem::MemVolume;
use nbd_support::{Raw, Served, export};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;
use std::time::Duration;

const CLIENTS: usize = 8;
const REQUESTS: usize = 1_000;

/// All threads that this one starts, and itself, run on one CPU.
fn stay_on_one_cpu() {
    let all = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
}

/// How often the connections' threads of this process have gone to sleep.
fn sleeps() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let status = threads.filter_map(|thread| {
        let path = thread.unwrap().path().join("status");
        std::fs::read_to_string(path).ok()
    });
    let of_connections = status.filter(|status| status.starts_with("Name:\tmemlane-nbd\n"));
    let count = |status: String| {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    of_connections.map(count).sum()
}

/// Sleeps for each request of clients that ask for one block after the other.
fn sleeps_for_a_request(spin: Duration) -> f64 {
    let volume = MemVolume::new(1 << 20).unwrap();
    let served = Served::with(vec![export("", volume)], |config| config.spin = spin);
    let mut clients: Vec<Raw> = (0..CLIENTS).map(|_| served.client(true)).collect();
    let before = sleeps();
    let together = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| {
                together.wait();
                for at in 0..REQUESTS as u64 {
                    let reply = client.read(at % 256 * 4096, 4096);
                    assert_eq!((reply.error, reply.data.len()), (0, 4096));
                }
            });
        }
    });
    // The threads are still there: their clients are.
    (sleeps() - before) as f64 / (CLIENTS * REQUESTS) as f64
}

#[test]
fn connections_take_turns_where_they_would_sleep_after_each_request() {
    stay_on_one_cpu();
    let without = sleeps_for_a_request(Duration::ZERO);
    let with = sleeps_for_a_request(Duration::from_micros(50));
    eprintln!("sleeps for a request: {without} without turns, {with} with them");
    assert!(without > 0.5, "{without}: there is nothing to gain");
    assert!(with < without / 4.0, "{with} instead of {without}");
}
