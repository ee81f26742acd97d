//! FILE streams, dprintf, POSIX aio.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn streams_over_a_connection_read_and_write_what_tcp_would_carry() {
    compare("stdio", EXCEPTIONS);
}
