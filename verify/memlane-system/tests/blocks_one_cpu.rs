//! Both ends of a volume on one CPU. While one of them looks, the other cannot work, so an end that has nothing to do sleeps at
//! once: the kernel looks before it lets it sleep. strace shows the reads that found nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::blocks::alone::Alone;
use memlane_system::blocks::{has, must, skip};
use memlane_system::harness::Running;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const TEST: &str = "one-cpu";
const LIMIT: Duration = Duration::from_secs(30);
const REQUESTS: usize = 400;

/// Keeps this thread, and the programs that it starts, on one CPU.
fn stay_on_one_cpu() {
    let allowed = sched_getaffinity(None).expect("the CPUs of this thread");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(first.expect("it has one"));
    sched_setaffinity(None, &one).expect("one of its own CPUs");
}

/// The reads of some processes.
struct Reads {
    strace: Running,
    file: PathBuf,
}

impl Reads {
    fn trace(processes: &[u32], dir: &Path) -> Reads {
        let file = dir.join("reads");
        let mut strace = Command::new("strace");
        strace.args([
            "-f",
            "-q",
            "-yy",
            "-e",
            "trace=recvmsg,recvfrom,readv,read",
            "-o",
        ]);
        strace.arg(&file);
        for process in processes {
            strace.args(["-p", &process.to_string()]);
        }
        let reads = Reads {
            strace: Running::start(strace),
            file,
        };
        processes
            .iter()
            .for_each(|process| wait_until_traced(*process));
        reads
    }

    /// Those of sockets of TCP: how many have brought something, and how many nothing.
    fn end(self) -> (usize, usize) {
        self.strace.signal("INT");
        drop(self.strace.finish(LIMIT));
        let text = std::fs::read_to_string(&self.file).expect("what strace writes");
        let of_tcp = text.lines().filter(|line| line.contains("<TCP:"));
        let (vain, good): (Vec<_>, Vec<_>) = of_tcp.partition(|line| line.contains("EAGAIN"));
        (good.len(), vain.len())
    }
}

fn wait_until_traced(process: u32) {
    let begin = Instant::now();
    let is_traced = |task: &Path| {
        let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        !status.contains("TracerPid:\t0")
    };
    loop {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
        if tasks.flatten().all(|task| is_traced(&task.path())) {
            return;
        }
        assert!(begin.elapsed() < LIMIT, "strace does not trace {process}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_request_over_tcp_costs_no_reads_that_find_nothing() {
    let programs = ["fio", "strace"];
    if let Some(missing) = programs.iter().find(|program| !has(program)) {
        return skip(TEST, &format!("no {missing}"));
    }
    stay_on_one_cpu();
    let mut alone = Alone::in_memory(TEST);
    alone.volume("disk", 16 << 20);
    alone.serve(&[]);
    let mapping = alone.nbd("m", &alone.tcp(), "disk", &[]);
    mapping.wait_for_paths(1);
    let reads = Reads::trace(&[alone.pid(), mapping.pid()], alone.dir());
    let mut fio = Command::new("fio");
    fio.args([
        "--name=one",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=1",
        "--size=16m",
    ]);
    fio.arg(format!("--number_ios={REQUESTS}"));
    fio.arg(format!("--uri={}", mapping.shown()));
    must(fio);
    let (good, vain) = reads.end();
    mapping.end();
    alone.end();
    // Each request is one read of the server's, and its answer one of the client's.
    assert!(good >= 2 * REQUESTS, "{good} reads for {REQUESTS} requests");
    assert!(
        vain < REQUESTS / 5,
        "{vain} of {} reads found nothing",
        good + vain
    );
}
