//! What a fork costs a program that has connections, which servers that fork for each connection pay each time; and what the child
//! knows of its parent's peers.

use std::path::Path;
use std::time::Duration;

use memlane_system::harness::{Mode, Running, command};

/// More pages than this, and the child writes to tables that it need not write to: each such page is copied. It writes to the
/// words that make it a process of its own, and to its table of descriptors: five pages.
const MOST_MORE_IN_A_CHILD: i64 = 7;
/// More pages than this, and a program that makes a connection and ends pays for statics that lie far apart: those that every
/// process uses share a few pages (`far.ld`). They are 18; a preloaded library that does nothing has 3.
const MOST_MORE_IN_A_SHORT_PROGRAM: i64 = 21;

/// How many pages a child of `ends/forks.c` writes to: the least of ten.
fn pages_of_a_child(mode: Mode, how: &[&str]) -> i64 {
    let program = Path::new(env!("OUT_DIR")).join("forks");
    let mut command = command(mode, program);
    let ran = command.arg("10").args(how).output().expect("it runs");
    let text = String::from_utf8_lossy(&ran.stdout);
    let pages: Vec<i64> = text.lines().flat_map(str::parse).collect();
    assert!(ran.status.success() && pages.len() == 10, "{ran:?}");
    pages.into_iter().min().expect("ten numbers")
}

#[test]
fn a_forked_child_copies_few_pages_more_than_it_does_without_memlane() {
    let plain = pages_of_a_child(Mode::Plain, &[]);
    let under = pages_of_a_child(Mode::Auto, &[]);
    assert!(
        (plain..=plain + MOST_MORE_IN_A_CHILD).contains(&under),
        "{under} pages in a child, {plain} without memlane"
    );
}

#[test]
fn a_short_program_writes_to_few_pages_more_than_it_does_without_memlane() {
    let plain = pages_of_a_child(Mode::Plain, &["starts"]);
    let under = pages_of_a_child(Mode::Auto, &["starts"]);
    assert!(
        (plain..=plain + MOST_MORE_IN_A_SHORT_PROGRAM).contains(&under),
        "{under} pages, {plain} without memlane"
    );
}

/// A server that answers each message with itself, to each client in a thread. It prints its port.
const SERVER: &str = r#"
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def answer(far):
    while message := far.recv(100):
        far.sendall(message)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Its client. Parent and child each make a connection to it, and use them at the same time.
const CLIENT: &str = r#"
import os, socket, sys
def connect():
    return socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def ask(near, who):
    for n in range(1000):
        near.sendall(f"{who} {n}".encode())
        assert near.recv(100) == f"{who} {n}".encode()
near = connect()
ask(near, "parent")
child = os.fork()
if child == 0:
    ask(connect(), "child")
    sys.exit()
ask(near, "parent")
assert os.waitpid(child, 0)[1] == 0
ask(near, "parent")
"#;

#[test]
fn a_child_and_its_parent_have_each_a_lane_to_the_same_server() {
    let mut server = command(Mode::Auto, "python3");
    server.args(["-c", SERVER]);
    let mut server = Running::start(server);
    let limit = Duration::from_secs(30);
    while !server.stdout().ends_with('\n') {
        assert!(server.is_running(), "{}", server.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut client = command(Mode::Auto, "python3");
    client.args(["-c", CLIENT, server.stdout().trim()]);
    client.env("MEMLANE_STATS_ON_EXIT", "1");
    let ran = Running::start(client).finish(limit);
    let sent = ran.stderr.lines().filter_map(sent_by_ring_and_tcp);
    let by_ring = sent.filter(|(ring, tcp)| ring > tcp).count();
    assert!(ran.is_ok() && by_ring == 2, "{}", ran.report());
}

/// From `memlane: sent 5096 ring + 84 TCP bytes, …`, which a process writes at its end.
fn sent_by_ring_and_tcp(line: &str) -> Option<(u64, u64)> {
    let mut words = line.strip_prefix("memlane: sent ")?.split(' ');
    let ring = words.next()?.parse().ok()?;
    Some((ring, words.nth(2)?.parse().ok()?))
}
