//! Sets in sets, sets that poll and select wait on, exclusive waits, connections in many sets.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn sets_of_sets_report_what_they_report_on_tcp() {
    compare("sets", EXCEPTIONS);
}
