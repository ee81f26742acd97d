//! io_uring by syscall(2): changes of epoll sets as libuv makes them, and operations on connections.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn io_uring_does_what_it_does_for_tcp() {
    compare("uring", EXCEPTIONS);
}
