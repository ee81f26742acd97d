//! connect, accept, address families, reused ports.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn connections_come_about_as_on_tcp() {
    compare("connect", EXCEPTIONS);
}
