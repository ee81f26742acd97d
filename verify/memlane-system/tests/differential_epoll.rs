//! epoll: levels, edges, one shot, nesting, sets shared between threads and processes.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn epoll_reports_what_it_reports_for_tcp() {
    compare("epoll", EXCEPTIONS);
}
