//! Gigabytes into device memory over each path, between two processes and between two machines, and with programs
//! that know nothing of memlane.

use std::process::Command;

use memlane_system::blocks::machines::{Machines, Side};
use memlane_system::blocks::{has, skip};
use memlane_system::devmem::{
    LIMIT, Listening, PATHS, PATHS_HERE, both, carry, command, command_on, counted, nothing_is_lost,
};
use memlane_system::harness::{self, Running, TempDir};
use memlane_system::real::blob;

/// No multiple of a page, a chunk or the pattern.
const BYTES: u64 = (1 << 30) + 4097;

#[test]
fn gigabytes_arrive_right_over_each_path() {
    for (path, bounced) in PATHS_HERE.into_iter().zip([0.0, 0.0, 1.0]) {
        let region = ["--into", "memfd:16M", "--validate", "251", "--json"];
        let receiver = Listening::start(&[&region[..], &["--require", path]].concat());
        let bytes = BYTES.to_string();
        let from = ["--from", "memfd:4M", "--bytes", &bytes, "--json"];
        let more = [&["--validate", "251"], both(path)].concat();
        let args = [&["nc", &receiver.at], &from[..], &more].concat();
        let sent = counted(&harness::run(command(&args), LIMIT));
        assert_eq!(sent["bytes"], BYTES);
        let counted = receiver.counted();
        nothing_is_lost(&counted, BYTES);
        assert_eq!(
            (&counted["path"], &counted["validated"]),
            (&path.into(), &true.into())
        );
        assert_eq!(counted["bounced_per_byte"], bounced);
    }
}

#[test]
fn gigabytes_arrive_right_between_two_machines() {
    let machines = match Machines::new("devmem", 1) {
        Ok(machines) => machines,
        Err(why) => return skip("gigabytes_arrive_right_between_two_machines", &why),
    };
    for path in PATHS {
        let here = format!("{}:0", machines.address(0, Side::Server));
        let into = ["--into", "memfd:16M", "--validate", "7", "--json"];
        let args = [&["nc", "-l", &here], &into[..], &["--require", path]].concat();
        let receiver = Listening::of(command_on(&machines, Side::Server, &args));
        let bytes = BYTES.to_string();
        let from = ["--from", "memfd:4M", "--bytes", &bytes, "--validate", "7"];
        let args = [&["nc", &receiver.at], &from[..]].concat();
        let sent = harness::run(command_on(&machines, Side::Client, &args), LIMIT);
        assert!(sent.is_ok(), "{}", sent.report());
        nothing_is_lost(&receiver.counted(), BYTES);
    }
}

/// What `./dev demo devmem` shows.
#[test]
fn a_file_that_goes_through_a_region_has_the_same_hash_over_each_path() {
    let dir = TempDir::new("nc-carry");
    let [file, copy] = ["file", "copy"].map(|name| dir.path().join(name));
    std::fs::write(&file, blob(7, 33_000_001)).expect("a file");
    let hash = memlane_system::real::sha256_of_file(&file);
    for path in PATHS_HERE {
        let carried = carry(&file, &copy, "memfd:2M", path);
        nothing_is_lost(&carried.counted, 33_000_001);
        assert_eq!(carried.counted["path"], path);
        assert_eq!(carried.hash, hash, "{path}");
        std::fs::remove_file(&copy).expect("removed");
    }
}

/// What memlane receives from a plain program, and a plain program from memlane, is what plain programs give each other:
/// the file.
#[test]
fn plain_programs_at_the_other_end_send_and_get_the_same_bytes() {
    let dir = TempDir::new("nc-plain");
    let name = |name: &str| dir.path().join(name).to_str().expect("a path").to_owned();
    let [from, to] = ["from", "to"].map(name);
    let bytes = blob(7, 64_000_003);
    std::fs::write(&from, &bytes).expect("a file");
    let same = |what: &str| {
        let copy = std::fs::read(&to).expect("the copy");
        assert!(copy == bytes, "other bytes: {what}");
        std::fs::remove_file(&to).expect("removed");
    };
    for path in PATHS {
        let receiver = Listening::start(&[
            "--into",
            "memfd:4M",
            "--require",
            path,
            "--output",
            &to,
            "--json",
        ]);
        let sent = harness::run(plain(&receiver.at, &format!("cat {from} >&3")), LIMIT);
        assert!(sent.is_ok(), "{}", sent.report());
        nothing_is_lost(&receiver.counted(), bytes.len() as u64);
        same(path);
    }
    let sender = Listening::start(&["--from", &from, "--json"]);
    let got = harness::run(plain(&sender.at, &format!("cat <&3 > {to}")), LIMIT);
    assert!(got.is_ok(), "{}", got.report());
    assert_eq!(sender.counted()["bytes"], bytes.len() as u64);
    same("sent by memlane");
}

/// bash opens TCP connections by itself, here as descriptor 3.
fn plain(at: &str, script: &str) -> Command {
    let (host, port) = at.rsplit_once(':').expect("an address");
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("exec 3<>/dev/tcp/{host}/{port}; {script}")]);
    bash
}

/// Other people's netcats connect to memlane, and memlane connects to them.
#[test]
fn netcats_of_others_are_served_and_used() {
    if !has("socat") {
        // Nothing else of this tree needs it.
        eprintln!("SKIPPED netcats_of_others_are_served_and_used: no socat");
        return;
    }
    let dir = TempDir::new("nc-socat");
    let name = |name: &str| dir.path().join(name).to_str().expect("a path").to_owned();
    let [from, to] = ["from", "to"].map(name);
    let bytes = blob(7, 20_000_003);
    std::fs::write(&from, &bytes).expect("a file");
    let port = memlane_system::real::net::free_port();
    let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1");
    let at = format!("127.0.0.1:{port}");
    let socat = |one: &str, other: &str| {
        let mut command = Command::new("socat");
        command.args(["-u", one, other]);
        let running = Running::start(command);
        memlane_system::real::net::wait_listening(port, "socat");
        running
    };
    let server = socat(&listen, &format!("CREATE:{to}"));
    let sent = harness::run(command(&["nc", &at, "--from", &from]), LIMIT);
    assert!(sent.is_ok(), "{}", sent.report());
    assert!(server.finish(LIMIT).is_ok());
    assert!(std::fs::read(&to).expect("the copy") == bytes);
    let server = socat(&format!("OPEN:{from}"), &listen);
    let into = ["--into", "memfd:1M", "--output", &to, "--json"];
    let got = harness::run(command(&[&["nc", &at], &into[..]].concat()), LIMIT);
    nothing_is_lost(&counted(&got), bytes.len() as u64);
    assert!(server.finish(LIMIT).is_ok());
    assert!(std::fs::read(&to).expect("the copy") == bytes);
}
