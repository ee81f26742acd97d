//! What a fork costs a program that has connections. Servers that fork for each connection pay it each time.

use std::path::Path;

use memlane_system::harness::{Mode, command};

/// More faults than this, and the child writes to tables that it need not write to: each such page is copied. It writes to
/// the words that make it a process of its own, and to its new stats page, trace page and table of descriptors.
const MOST_MORE_IN_A_CHILD: i64 = 17;
/// More faults than this, and a program that makes a connection and ends pays for statics that lie far apart: those that every
/// process uses share a few pages (`far.ld`). A preloaded library that does nothing has 8, and the fork about 13.
const MOST_MORE_IN_A_SHORT_PROGRAM: i64 = 52;

/// Page faults of a child of `ends/forks.c`: the least of ten.
fn faults_of_a_child(mode: Mode, how: &[&str]) -> i64 {
    let program = Path::new(env!("OUT_DIR")).join("forks");
    let mut command = command(mode, program);
    let ran = command.arg("10").args(how).output().expect("it runs");
    let text = String::from_utf8_lossy(&ran.stdout);
    let faults: Vec<i64> = text.lines().flat_map(str::parse).collect();
    assert!(ran.status.success() && faults.len() == 10, "{ran:?}");
    faults.into_iter().min().expect("ten numbers")
}

#[test]
fn a_forked_child_copies_few_pages_more_than_it_does_without_memlane() {
    let plain = faults_of_a_child(Mode::Plain, &[]);
    let under = faults_of_a_child(Mode::Auto, &[]);
    assert!(
        (plain..=plain + MOST_MORE_IN_A_CHILD).contains(&under),
        "{under} page faults in a child, {plain} without memlane"
    );
}

#[test]
fn a_short_program_touches_few_pages_more_than_it_does_without_memlane() {
    let plain = faults_of_a_child(Mode::Plain, &["starts"]);
    let under = faults_of_a_child(Mode::Auto, &["starts"]);
    assert!(
        (plain..=plain + MOST_MORE_IN_A_SHORT_PROGRAM).contains(&under),
        "{under} page faults, {plain} without memlane"
    );
}
