//! What a fork costs a program that has connections. Servers that fork for each connection pay it each time.

use std::path::Path;

use memlane_system::harness::{Mode, command};

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

/// Prints how many stats pages are mapped: in a parent; in its child that ends at once, in one that makes a connection, in one that
/// uses an inherited connection long enough for a lane, and in one that sends urgent data over it, which keeps it on TCP. Each child
/// has its parent's page, and perhaps its own.
const CHILDREN: &str = r#"
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()

def told():
    print(sum("memlane-stats" in line for line in open("/proc/self/maps")), flush=True)

def use():
    for _ in range(100):
        near.sendall(b"ask")
        far.recv(3)
        far.sendall(b"answer")
        near.recv(6)

def connect():
    socket.create_connection(listener.getsockname())

def send_urgently():
    near.send(b"!", socket.MSG_OOB)

told()
for work in (lambda: None, connect, use, send_urgently):
    child = os.fork()
    if child == 0:
        work()
        told()
        os._exit(0)
    os.waitpid(child, 0)
"#;

fn pages(settings: &[(&str, &str)]) -> String {
    let mut command = command(Mode::Auto, "python3");
    let ran = command
        .args(["-c", CHILDREN])
        .envs(settings.iter().copied());
    let ran = ran.output().expect("python3 runs");
    assert!(ran.status.success(), "{ran:?}");
    String::from_utf8_lossy(&ran.stdout).replace('\n', " ")
}

#[test]
fn a_forked_child_has_a_stats_page_once_it_has_something_to_show() {
    assert_eq!(pages(&[]), "1 1 2 2 2 ");
}

#[test]
fn a_forked_child_that_prints_a_summary_at_its_end_has_a_stats_page_at_once() {
    assert_eq!(pages(&[("MEMLANE_STATS_ON_EXIT", "1")]), "1 2 2 2 2 ");
}

#[test]
fn a_forked_child_that_inherits_a_connection_which_stays_on_tcp_has_a_stats_page_at_once() {
    assert_eq!(pages(&[("MEMLANE_UPGRADE", "off")]), "1 2 2 2 2 ");
}
