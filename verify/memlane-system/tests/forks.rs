//! What a fork costs a program that has connections. Servers that fork for each connection pay it each time.

use std::path::Path;

use memlane_system::harness::{Mode, command};

/// More faults than this, and the child writes to tables that it need not write to: each such page is copied. It writes to
/// the words that make it a process of its own, and to its new stats page, trace page and table of descriptors.
const MOST_MORE_FAULTS: i64 = 22;

/// Page faults of a child that exits at once: the least of ten.
fn faults_of_a_child(mode: Mode) -> i64 {
    let program = Path::new(env!("OUT_DIR")).join("forks");
    let ran = command(mode, program).arg("10").output().expect("it runs");
    let text = String::from_utf8_lossy(&ran.stdout);
    let faults: Vec<i64> = text.lines().flat_map(str::parse).collect();
    assert!(ran.status.success() && faults.len() == 10, "{ran:?}");
    faults.into_iter().min().expect("ten numbers")
}

#[test]
fn a_forked_child_copies_few_pages_more_than_it_does_without_memlane() {
    let plain = faults_of_a_child(Mode::Plain);
    let under = faults_of_a_child(Mode::Auto);
    assert!(
        (plain..=plain + MOST_MORE_FAULTS).contains(&under),
        "{under} page faults in a child, {plain} without memlane"
    );
}
