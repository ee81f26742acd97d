//! Where families of cases may differ from plain TCP, for the tests that run the same family in several ways.

use crate::cases::Exception;

/// Of `death`.
pub const DEATH: &[Exception] = &[
    Exception::Limit {
        case: "killed_with_unread_bytes",
        plain: "[A] poll: IN|OUT|ERR|HUP|RDHUP",
        memlane: "[A] poll: IN|OUT|RDHUP",
        because: FIN_FOR_RST,
    },
    Exception::Limit {
        case: "killed_after_an_answer_with_unread_bytes",
        plain: "[A] poll: IN|OUT|ERR|HUP|RDHUP",
        memlane: "[A] poll: IN|OUT|RDHUP",
        because: FIN_FOR_RST,
    },
];

const FIN_FOR_RST: &str =
    "the kernel sends FIN where it would send RST: it does not know of ring bytes";

/// Of `dup`.
pub const DUP: &[Exception] = &[Exception::NoLane {
    case: "connection_is_descriptor_1",
    because: "descriptors 0 to 2 are stdio's",
}];

/// Of `handover`.
pub const HANDOVER: &[Exception] = &[
    Exception::NoLane {
        case: "new_connection_in_a_chroot",
        because: "no /proc there",
    },
    Exception::Gap {
        case: "passed_with_unread_bytes",
        because: "EBUSY",
    },
    Exception::Gap {
        case: "passed_in_mid_stream",
        because: "EBUSY",
    },
];
