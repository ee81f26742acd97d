//! fork, vfork, posix_spawn, exec, system, popen.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn processes_that_share_a_connection_see_what_tcp_would_show() {
    compare("fork", EXCEPTIONS);
}
