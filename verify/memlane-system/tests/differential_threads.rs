//! Several threads on one connection, both ends in one process.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn threads_share_a_connection_as_on_tcp() {
    compare("threads", EXCEPTIONS);
}
