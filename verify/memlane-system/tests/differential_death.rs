//! kill -9, stop and crash of the other end.

use memlane_system::cases::{Exception, compare};

const EXCEPTIONS: &[Exception] = &[
    Exception::Limit {
        case: "killed_with_unread_bytes",
        plain: "[A] poll: IN|OUT|ERR|HUP|RDHUP",
        memlane: "[A] poll: IN|OUT|RDHUP",
        because: "the kernel sends FIN where it would send RST: it does not know of ring bytes",
    },
    Exception::Limit {
        case: "killed_after_an_answer_with_unread_bytes",
        plain: "[A] poll: IN|OUT|ERR|HUP|RDHUP",
        memlane: "[A] poll: IN|OUT|RDHUP",
        because: "likewise",
    },
];

#[test]
fn survivors_see_what_tcp_would_show() {
    compare("death", EXCEPTIONS);
}
