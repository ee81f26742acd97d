//! FILE streams, dprintf, POSIX aio.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[Exception::Gap {
    case: "freopen_of_dev_fd_style_close",
    because: "freopen of a memory-lane stream is refused",
}];

#[test]
fn streams_over_a_connection_read_and_write_what_tcp_would_carry() {
    compare("stdio", EXCEPTIONS);
}
