//! fork, vfork, posix_spawn, exec, system, popen.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[
    Exception::Gap {
        case: "posix_spawn_onto_stdin_with_unread_bytes",
        because: "EBUSY",
    },
    Exception::Gap {
        case: "exec_with_more_unread_bytes",
        because: "EBUSY",
    },
    Exception::Gap {
        case: "exec_in_mid_stream",
        because: "EBUSY",
    },
];

#[test]
fn processes_that_share_a_connection_see_what_tcp_would_show() {
    compare("fork", EXCEPTIONS);
}
