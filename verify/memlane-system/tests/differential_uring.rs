//! io_uring by syscall(2) and by liburing: changes of epoll sets as libuv makes them, and operations on connections.

use std::path::Path;

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn io_uring_does_what_it_does_for_tcp() {
    compare("uring", EXCEPTIONS);
}

#[test]
fn io_uring_by_liburing_does_what_it_does_for_tcp() {
    if !Path::new(env!("OUT_DIR")).join("liburing").exists() {
        eprintln!("!! skipped: liburing.h is missing; apt-get install liburing-dev");
        return;
    }
    compare("liburing", EXCEPTIONS);
}
