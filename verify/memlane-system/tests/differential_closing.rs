//! shutdown, close, linger, reset, EPIPE and SIGPIPE.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn streams_end_as_tcp_streams_end() {
    compare("closing", EXCEPTIONS);
}
