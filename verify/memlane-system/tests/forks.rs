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
