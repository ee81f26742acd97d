//! Event loops: several sets in one process, fairness, and the order in which a set reports what is ready.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn event_loops_see_what_they_see_on_tcp() {
    compare("loops", EXCEPTIONS);
}
