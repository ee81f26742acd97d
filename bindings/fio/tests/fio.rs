//! fio, as it is installed, with the engine of this build: contents checked by fio, requests counted by the server.

#[path = "../../../lanes/memlane-transport/tests/certs/mod.rs"]
mod certs;
mod support;

use memlane_block::server::{Lend, OpenerView, ServerConfig as BlockConfig, Shared};
use memlane_transport::engine::server::Config;
use memlane_transport::io::tls::ServerTls;
use memlane_transport::io::{Address, Server, ServerConfig, serve};
use memlane_transport::wire::Geometry;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::memory::{self, Asked};
use support::{Folder, fio, fresh};

const MAX_IO: u32 = 64 << 10;

/// Where `local:NAME` is.
fn at(name: &str) -> Address {
    Address::Local(format!("memlane/blocks/{name}"))
}

/// A server in memory, and how fio finds it.
fn in_memory(depth: u16) -> (Server, Arc<Asked>, String) {
    let name = fresh("server");
    let (server, asked) = memory::start(at(&name), depth, MAX_IO).expect("a server");
    (server, asked, format!("--address=local:{name}"))
}

/// A server of the file `disk` over TCP.
struct OnDisk {
    server: Server,
    root: Folder,
}

impl OnDisk {
    /// Serves a hole of 16 MiB; over TLS if there are certificates.
    fn new(name: &str, tls: Option<ServerTls>) -> OnDisk {
        let root = Folder::new(name);
        let disk = std::fs::File::create(root.path().join("disk")).expect("a file");
        disk.set_len(16 << 20).expect("a length");
        let shared = Shared::new(BlockConfig::new(root.path().to_owned())).expect("a root");
        let geometry = Geometry::new(64, 128 << 10, 4096).expect("a geometry");
        let listen = vec![Address::Tcp(([127, 0, 0, 1], 0).into())];
        let mut config = ServerConfig::new(listen, Config::new(geometry, 1));
        config.tls = tls;
        let server = serve(config, move |_| shared.service()).expect("a server");
        OnDisk { server, root }
    }

    /// How fio finds it.
    fn address(&self) -> String {
        format!("--address={}", self.server.addresses()[0])
    }
}

/// A job that writes all of `disk` at random, and verifies it.
const WHOLE_DISK: [&str; 7] = [
    "--volume=disk",
    "--rw=randwrite",
    "--bsrange=4k-256k",
    "--blockalign=4k",
    "--size=16m",
    "--iodepth=8",
    "--verify=crc32c",
];

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn run(address: &str, options: &[&str]) -> Option<support::Ended> {
    let all = [&["--name=job", "--thread", address], options].concat();
    fio(&all)
}

// ---- contents ---------------------------------------------------------------

#[test]
fn what_one_fio_wrote_to_a_file_over_tcp_the_next_one_finds() {
    let disk = OnDisk::new("root", None);
    let address = disk.address();
    let job = [&WHOLE_DISK[..], &["--randrepeat=1"]].concat();
    let writes = [&job[..], &["--do_verify=0", "--end_fsync=1"]].concat();
    let Some(ended) = run(&address, &writes) else {
        return;
    };
    ended.succeeds();
    let reads = [&job[..], &["--verify_only=1"]].concat();
    run(&address, &reads).expect("fio").succeeds();
    // It would see the difference.
    std::fs::write(disk.root.path().join("disk"), vec![7; 16 << 20]).expect("a file");
    let ended = run(&address, &reads).expect("fio");
    assert_ne!(ended.code, Some(0), "{}", ended.text);
    assert!(ended.text.contains("verify"), "{}", ended.text);
}

#[test]
fn what_a_server_lends_is_verified_and_no_read_or_write_reaches_the_server() {
    let root = Folder::below(Path::new("/dev/shm"), "lent");
    let disk = std::fs::File::create(root.path().join("disk")).expect("a file");
    disk.set_len(16 << 20).expect("a length");
    let config = BlockConfig {
        lend: Lend::ToUser,
        ..BlockConfig::new(root.path().to_owned())
    };
    let shared = Shared::new(config).expect("a root");
    let geometry = Geometry::new(64, 128 << 10, 4096).expect("a geometry");
    let name = fresh("lends");
    let config = ServerConfig::new(vec![at(&name)], Config::new(geometry, 1));
    let served = Arc::clone(&shared);
    let _server = serve(config, move |_| served.service()).expect("a server");
    let seen = std::thread::scope(|scope| {
        let address = format!("--address=local:{name}");
        // Each round writes all, and verifies it.
        let job = scope.spawn(move || {
            let rounds = ["--loops=8", "--verify_fatal=1"];
            run(&address, &[&WHOLE_DISK[..], &rounds].concat())
        });
        let mut seen = Vec::new();
        while !job.is_finished() {
            let openers = shared.snapshot().volumes.into_iter();
            seen.extend(openers.flat_map(|volume| volume.openers));
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = job.join().expect("no panic")?;
        ended.succeeds();
        Some(seen)
    });
    let Some(seen) = seen else {
        return;
    };
    let lent = seen.iter().filter(|opener| opener.lent);
    assert!(lent.count() > 2, "{seen:?}");
    let reached = |opener: &OpenerView| opener.counters.reads + opener.counters.writes;
    assert!(seen.iter().all(|opener| reached(opener) == 0), "{seen:?}");
}

#[test]
fn contents_are_verified_over_tls_and_a_stranger_is_told_why_at_once() {
    let both = certs::Both::new(&certs::Wish::server(), &certs::Wish::client(&["job-*"]));
    let disk = OnDisk::new("tls", Some(both.server()));
    let address = disk.address();
    let tls = format!("--tls={}", both.client.0.display());
    let job = |more: &[&str]| run(&address, &[&WHOLE_DISK[..], more].concat());
    let Some(verified) = job(&[&tls, "--session=job-1"]) else {
        return;
    };
    verified.succeeds();
    let name = "--tls_name=storage.example";
    let named = job(&[&tls, "--session=job-2", name]).expect("fio");
    named.succeeds();
    for (more, why) in [
        (&[&tls[..], "--session=other"][..], "may not have a session"),
        (
            &[&tls, "--session=job-3", "--tls_name=x.example"],
            "for another name",
        ),
        (&["--session=job-4"], "it wants TLS"),
        (&["--session=job-5", "--tls=/nowhere"], "ca-cert.pem"),
    ] {
        let begin = std::time::Instant::now();
        let refused = job(more).expect("fio");
        refused.refuses(why);
        let took = begin.elapsed();
        assert!(
            took < std::time::Duration::from_secs(8),
            "told after {took:?}"
        );
    }
}

#[test]
fn reads_and_writes_at_random_are_verified() {
    let (_server, asked, address) = in_memory(128);
    let options = [
        "--volume=mem:16m",
        "--rw=randrw",
        "--bs=4k",
        "--size=8m",
        "--iodepth=32",
        "--verify=crc32c",
        "--verify_backlog=64",
        "--iodepth_batch_submit=8",
        "--iodepth_batch_complete_min=4",
    ];
    let Some(ended) = run(&address, &options) else {
        return;
    };
    ended.succeeds();
    assert!(count(&asked.writes) > 500 && count(&asked.reads) > 1500);
}

#[test]
fn requests_that_are_longer_than_the_server_takes_go_in_parts() {
    let (_server, asked, address) = in_memory(64);
    let options = [
        "--volume=mem:32m",
        "--rw=write",
        "--bs=1m",
        "--size=32m",
        "--iodepth=4",
        "--verify=crc32c",
    ];
    let Some(ended) = run(&address, &options) else {
        return;
    };
    ended.succeeds();
    let parts = u64::from((32_u32 << 20) / MAX_IO);
    assert_eq!(count(&asked.writes), parts);
    assert_eq!(count(&asked.reads), parts);
}

#[test]
fn jobs_that_want_more_than_the_server_has_wait_for_each_other() {
    // Three jobs of 16 requests of 8 parts, and one of requests with more parts than there is memory for.
    let (_server, asked, address) = in_memory(4);
    let all = [
        "--thread",
        &address,
        "--volume=mem:32m",
        "--rw=randwrite",
        "--size=8m",
        "--verify=crc32c",
    ];
    let small = ["--bs=512k", "--iodepth=16"];
    let jobs = [
        &all[..],
        &["--name=a"],
        &small,
        &["--name=b", "--offset=8m"],
        &small,
        &["--name=c", "--offset=16m"],
        &small,
        &["--name=d", "--offset=24m", "--bs=8m", "--iodepth=2"],
    ];
    let Some(ended) = fio(&jobs.concat()) else {
        return;
    };
    ended.succeeds();
    let parts = u64::from((32_u32 << 20) / MAX_IO);
    assert_eq!((count(&asked.writes), count(&asked.reads)), (parts, parts));
}

#[test]
fn more_jobs_than_a_session_knows_memories_of_get_on_with_requests_in_parts() {
    let disk = OnDisk::new("many", None);
    let options = [
        "--volume=disk",
        "--rw=write",
        "--bs=192k",
        "--size=192k",
        "--offset_increment=192k",
        "--numjobs=80",
        "--verify=crc32c",
    ];
    if let Some(ended) = run(&disk.address(), &options) {
        ended.succeeds();
    }
}

// ---- what reaches the server ------------------------------------------------

#[test]
fn all_jobs_of_a_process_share_one_session_and_one_volume() {
    let (_server, asked, address) = in_memory(128);
    let options = [
        "--volume=mem:16m",
        "--connections=2",
        "--rw=randwrite",
        "--bs=4k",
        "--size=1m",
        "--offset_increment=1m",
        "--numjobs=4",
        "--iodepth=8",
        "--verify=crc32c",
    ];
    let Some(ended) = run(&address, &options) else {
        return;
    };
    ended.succeeds();
    assert_eq!((count(&asked.sessions), count(&asked.opens)), (1, 1));
    assert_eq!(count(&asked.writes), 4 * 256);
}

#[test]
fn fsync_sync_and_trim_are_what_they_are_called() {
    let (_server, asked, address) = in_memory(64);
    let volume = "--volume=mem:16m";
    let writes = [
        volume,
        "--rw=write",
        "--bs=4k",
        "--size=256k",
        "--iodepth=4",
    ];
    let Some(ended) = run(&address, &[&writes[..], &["--fsync=8"]].concat()) else {
        return;
    };
    ended.succeeds();
    assert!(count(&asked.flushes) >= 7, "{asked:?}");
    assert_eq!(count(&asked.durable_writes), 0);
    let durable = [&writes[..], &["--sync=1"]].concat();
    run(&address, &durable).expect("fio").succeeds();
    assert_eq!(count(&asked.durable_writes), 64);
    // Longer than the server trims at a time.
    let trims = [volume, "--rw=trim", "--bs=4m", "--size=16m"];
    run(&address, &trims).expect("fio").succeeds();
    assert_eq!((count(&asked.trims), count(&asked.zeroes)), (16, 0));
    let zeroes = [&trims[..], &["--zero_trim=1"]].concat();
    run(&address, &zeroes).expect("fio").succeeds();
    assert_eq!((count(&asked.trims), count(&asked.zeroes)), (16, 16));
}

#[test]
fn what_was_written_with_zeroes_is_verified_as_such() {
    let (_server, asked, address) = in_memory(64);
    let all = [
        "--thread",
        &address,
        "--volume=mem:16m",
        "--size=8m",
        "--bs=64k",
        "--verify=pattern",
    ];
    let zero = "--verify_pattern=0x00";
    let jobs = [
        &all[..],
        &["--name=a", "--rw=write", "--verify_pattern=0x5a"],
        &[
            "--name=b",
            "--stonewall",
            "--rw=trim",
            "--zero_trim=1",
            zero,
        ],
        &["--name=c", "--stonewall", "--rw=read", "--iodepth=4", zero],
    ];
    let Some(ended) = fio(&jobs.concat()) else {
        return;
    };
    ended.succeeds();
    assert_eq!(count(&asked.zeroes), 128);
    // It would see the difference.
    let again = [jobs[0], jobs[1], jobs[3]].concat();
    let ended = fio(&again).expect("fio");
    assert_ne!(ended.code, Some(0), "{}", ended.text);
}

// ---- what goes wrong --------------------------------------------------------

#[test]
fn an_error_of_the_disk_is_the_jobs_error() {
    let (_server, _, address) = in_memory(64);
    let options = [
        "--volume=bad:16m",
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=16",
    ];
    if let Some(ended) = run(&address, &options) {
        ended.refuses("Input/output error");
    }
}

#[test]
fn a_server_that_is_not_there_is_told_at_once() {
    let nobody = fresh("nobody");
    let address = format!("--address=local:{nobody}");
    let options = ["--volume=mem:1m", "--rw=randread"];
    let Some(ended) = run(&address, &options) else {
        return;
    };
    ended.refuses(&format!("no server at local:{nobody}: Connection refused"));
    let two = "--address=tcp:127.0.0.1:1,local:also-nobody";
    let ended = run(two, &options).expect("fio");
    ended.refuses("no server at tcp://127.0.0.1:1: Connection refused");
    ended.refuses("; local:also-nobody: Connection refused");
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    let (_server, _, address) = in_memory(64);
    let address = address.as_str();
    let read = ["--thread", "--rw=randread"];
    let write = ["--thread", "--rw=randwrite"];
    let cases: [(&[&str], &[&str], &str); 11] = [
        (
            &["--rw=randread"],
            &[address, "--volume=mem:1m"],
            "--thread",
        ),
        (&read, &["--volume=mem:1m"], "address= is not set"),
        (
            &read,
            &["--address=udp:x", "--volume=mem:1m"],
            "address=udp:x",
        ),
        (&read, &[address], "volume= is not set"),
        (&read, &[address, "--volume=gone"], "no such volume"),
        (&write, &[address, "--volume=ro:1m"], "volume ro:1m at"),
        (
            &write,
            &[address, "--volume=ro:1m", "--access=ro"],
            "can only be read",
        ),
        (
            &write,
            &[address, "--volume=mem:1m", "--bs=777"],
            "blocks of 512",
        ),
        (
            &["--thread", "--rw=trim"],
            &[address, "--volume=odd:1m"],
            "can't trim",
        ),
        (
            &read,
            &[address, "--volume=mem:1m", "--session=a/b"],
            "session",
        ),
        (
            &read,
            &[address, "--volume=mem:1m", "--iomem=mmap"],
            "iomem can't be set",
        ),
    ];
    for (job, options, words) in cases {
        let Some(ended) = fio(&[&["--name=job"], job, options].concat()) else {
            return;
        };
        ended.refuses(words);
    }
    let fine = ["--volume=ro:1m", "--access=ro", "--rw=randread"];
    run(address, &fine).expect("fio").succeeds();
}

#[test]
fn jobs_that_want_one_volume_in_two_ways_are_refused() {
    let (_server, _, address) = in_memory(64);
    let address = address.as_str();
    // What stands before the first name is for all jobs.
    let all = ["--thread", address, "--volume=mem:1m", "--rw=randread"];
    let jobs = ["--name=a", "--access=rw", "--name=b", "--access=ro"];
    if let Some(ended) = fio(&[&all[..], &jobs].concat()) {
        ended.refuses("different access=");
    }
}
